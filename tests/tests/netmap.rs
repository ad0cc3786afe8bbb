//! Packet programs' view of a NIC (`vmlan_tools::netmap`), over every device and bus, through the
//! switch: frames one by one, sleeping by poll(2) on the port's descriptor, and the example
//! programs as processes.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use vmlan_attach::vfio_user::Doorbell;
use vmlan_driver::e1000::registers::Register;
use vmlan_driver::nic::{BusAddress, Connected, E1000Nic, Nic, NicError};
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_tests::exchange::{TestGuest, exchange, exchange_known, one_way};
use vmlan_tests::in_process_chip::InProcessBus;
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Expected, Progress, STALL, Sizes, frame, mac, settles};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Process, build, output_of};
use vmlan_tools::AnyNic;
use vmlan_tools::netmap::{Interest, Port, Refused};
use vmlan_transport::memory::Ram;
use vmlan_transport::{Address, Mac, Model, Options, sys};

/// Every legal length.
const ALL: Sizes = Sizes { least: 14, most: 1514 };
const RX: Interest = Interest { rx: true, tx: false };

/// How a station is plugged in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Door {
    Virtio,
    Trapped,
    Mapped,
    Csb,
}

/// Doors, and keys of the driver's address.
const WAYS: [(Door, &str); 9] = [
    (Door::Virtio, ""),
    (Door::Virtio, ",event_idx=off,mrg=off,in_order=off,size=64"),
    (Door::Trapped, ""),
    (Door::Trapped, ",irq=msi,batch,interrupts=idle,writes=posted,size=32"),
    (Door::Trapped, ",combine=on,combine_us=100"),
    (Door::Trapped, ",receive=poll,completion=lazy"),
    (Door::Trapped, ",receive=adaptive,refill=0,size=64"),
    (Door::Mapped, ",doorbell=mapped"),
    (Door::Csb, ",csb=on,size=64"),
];

/// Adds a port to the switch; its address for a driver.
fn plug(lan: &mut Lan, name: &str, (door, keys): (Door, &str)) -> String {
    let (kind, path) = match door {
        Door::Virtio => ("vhost-user", lan.add(name, 1)),
        Door::Trapped => ("vfio-user", lan.add_e1000_with(name, Doorbell::Trapped)),
        Door::Mapped => ("vfio-user", lan.add_e1000_with(name, Doorbell::Mapped)),
        Door::Csb => ("vfio-user", lan.add_e1000(name, |config| config.csb = true)),
    };
    format!("{kind}:{}{keys}", path.display())
}

/// A guest that is a packet program.
struct PacketGuest<N: Nic> {
    port: Port<N>,
    id: u8,
    expected: Expected,
    sent: u64,
    round: u16,
}

impl PacketGuest<AnyNic> {
    fn open(address: &str, id: u8) -> Self {
        let place: Address = address.parse().unwrap();
        let device =
            AnyNic::open(&place, None, STALL).unwrap_or_else(|e| panic!("{address}: {e:?}"));
        Self::new(device, id)
    }
}

impl<N: Nic> PacketGuest<N> {
    fn new(mut device: N, id: u8) -> Self {
        device.settle_mac(Some(Mac(mac(id, 0))));
        let mut expected = Expected::default();
        expected.padded = matches!(device.connected(), Connected::Chip { .. });
        Self { port: Port::new(device).unwrap(), id, expected, sent: 0, round: 0 }
    }

    /// Sleeps on the descriptor until there is a frame.
    fn sleep(&mut self) {
        while self.port.rx(0).is_empty() {
            if self.port.arm(RX).unwrap() {
                let woken = sys::poll_readable(&[self.port.as_fd()], Some(STALL));
                assert_eq!(woken.unwrap(), 1, "guest {}: a frame was missed", self.id);
            }
        }
    }
}

impl<N: Nic> TestGuest for PacketGuest<N> {
    fn id(&self) -> u8 {
        self.id
    }

    fn flows(&self) -> u64 {
        1
    }

    fn expect_padding(&mut self) {
        self.expected.padded = true;
    }

    fn start_over(&mut self) {
        self.sent = 0;
        self.expected.start_over();
    }

    fn introduce(&mut self) {
        self.port.tx(0).push(&frame([0xff; 6], mac(self.id, 0), 0, 60)).unwrap();
        let mut progress = Progress::default();
        while self.port.tx(0).is_pending() {
            self.port.txsync().unwrap();
            progress.note(0, || "an introduction is not taken".into());
        }
    }

    fn send_next(&mut self, to: u8, count: u64, sizes: Sizes) -> u64 {
        let (begin, mut tx) = (self.sent, self.port.tx(0));
        while self.sent < count {
            let bytes = frame(mac(to, 0), mac(self.id, 0), self.sent, sizes.of(self.sent));
            match tx.push(&bytes) {
                Ok(()) => self.sent += 1,
                Err(Refused::Full) => break,
                Err(refused) => panic!("{refused}"),
            }
        }
        self.port.txsync().unwrap();
        self.sent - begin
    }

    /// Looks at every new frame, and keeps up to three of those it has seen.
    fn receive_next(&mut self, to: u8, sizes: Sizes) -> u64 {
        self.port.rxsync().unwrap();
        let (mut rx, mut count) = (self.port.rx(0), 0);
        while rx.space() > 0 {
            let at = rx.cur();
            let len = rx.slot(at).len();
            let bytes = rx.slot(at).bytes();
            assert_eq!(bytes.len(), len);
            count += u64::from(self.expected.judge(self.id, mac(to, 0), bytes, sizes));
            rx.set_cur(rx.next(at));
        }
        self.round = (self.round + 1) % 4;
        let (mut ends, mut at) = (vec![rx.head()], rx.head());
        while at != rx.tail() {
            at = rx.next(at);
            ends.push(at);
        }
        rx.set_head(ends[(ends.len() - 1).saturating_sub(self.round.into())]);
        count
    }

    fn assert_sound(&self) {
        // Exact only while the switch does not write.
        assert!(settles(|| self.port.device().is_sound()), "guest {}", self.id);
    }
}

#[test]
fn frames_pass_one_by_one_over_every_device() {
    let mut lan = Lan::new(1, FULL_WAIT);
    for (n, way) in WAYS.into_iter().enumerate() {
        let other = WAYS[(n * 3 + 1) % WAYS.len()];
        let (at_a, at_b) = (plug(&mut lan, "a", way), plug(&mut lan, "b", other));
        let (mut a, mut b) = (PacketGuest::open(&at_a, 1), PacketGuest::open(&at_b, 2));
        if a.expected.padded || b.expected.padded {
            a.expect_padding();
            b.expect_padding();
        }
        exchange(&mut a, &mut b, ALL.all(), ALL);
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0), "{way:?} {other:?}");
        lan.remove("a");
        lan.remove("b");
    }
}

/// A frame that lies in several buffers is one slot, and gives them all back.
#[test]
fn a_frame_in_many_buffers_is_one_slot() {
    let sizes = Sizes { least: 60, most: 1514 };
    let mut lan = Lan::new(1, FULL_WAIT);
    let at_a = plug(&mut lan, "a", (Door::Virtio, ""));
    for way in [(Door::Virtio, ",buffer=128,size=64"), (Door::Csb, ",csb=on,buffer=256,size=64")] {
        let at_b = plug(&mut lan, "b", way);
        let (mut a, mut b) = (PacketGuest::open(&at_a, 1), PacketGuest::open(&at_b, 2));
        one_way(&mut a, &mut b, 2 * sizes.all(), sizes);
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0), "{way:?}");
        lan.remove("b");
    }
}

/// The only thing that ends a sleep is the descriptor: were one wake-up lost, both sides would
/// sleep for ever.
#[test]
fn no_frame_is_missed_by_who_polls_the_descriptor() {
    let mut lan = Lan::new(1, FULL_WAIT);
    for (n, way) in WAYS.into_iter().enumerate() {
        let other = WAYS[(n * 7 + 3) % WAYS.len()];
        let (at_a, at_b) = (plug(&mut lan, "a", way), plug(&mut lan, "b", other));
        let (mut a, mut b) = (PacketGuest::open(&at_a, 1), PacketGuest::open(&at_b, 2));
        b.introduce();
        a.introduce();
        let rounds = 400;
        std::thread::scope(|scope| {
            let answers = scope.spawn(|| {
                (0..rounds).for_each(|n| answer(&mut b, 1, n));
                wait_for(&mut b, rounds, 1);
            });
            for n in 0..rounds {
                send(&mut a, 2, n);
                wait_for(&mut a, n, 2);
            }
            // A driver that combines holds a frame back, until it is called again.
            send(&mut a, 2, rounds);
            while !answers.is_finished() {
                a.port.poll(RX, Duration::from_millis(1)).unwrap();
            }
        });
        lan.remove("a");
        lan.remove("b");
    }
}

fn answer(station: &mut PacketGuest<AnyNic>, to: u8, n: u64) {
    wait_for(station, n, to);
    send(station, to, n);
}

fn send(station: &mut PacketGuest<AnyNic>, to: u8, n: u64) {
    station.port.tx(0).push(&frame(mac(to, 0), mac(station.id, 0), n, 64)).unwrap();
    station.port.txsync().unwrap();
}

fn wait_for(station: &mut PacketGuest<AnyNic>, n: u64, from: u8) {
    let expected = frame(mac(station.id, 0), mac(from, 0), n, 64);
    loop {
        station.sleep();
        let mut rx = station.port.rx(0);
        let bytes = rx.pop().unwrap();
        // The other's introduction may be first.
        if bytes[0] != 0xff {
            return assert!(*bytes == expected, "guest {}: {n}", station.id);
        }
    }
}

type Chip = (InProcessBus, Arc<Ram>);

/// A chip in this process, as an address that leads to it once.
#[derive(Clone)]
struct InProcessAddress {
    bus: Arc<Mutex<Option<Chip>>>,
    options: Options,
}

impl InProcessAddress {
    fn plug(lan: &mut Lan, name: &str, id: u8, mapped: bool, options: Options) -> Self {
        let ram = vmlan_driver::nic::make_ram(&options).unwrap();
        let bus = InProcessBus::plug(lan, name, id, mapped, options.csb, &ram);
        Self { bus: Arc::new(Mutex::new(Some((bus, ram)))), options }
    }
}

impl BusAddress for InProcessAddress {
    type Bus = InProcessBus;

    fn driver(&self) -> &Options {
        &self.options
    }

    fn connect(&self, _: Duration) -> Result<Chip, NicError> {
        Ok(self.bus.lock().unwrap().take().expect("once"))
    }

    fn connect_again(&self, _: &Arc<Ram>, _: Duration) -> Result<InProcessBus, NicError> {
        unreachable!("it does not go away")
    }

    fn connected(&self, mac: Mac, bus: &InProcessBus) -> Connected {
        use vmlan_transport::Bus;
        let mapped = bus.mapped(Register::TDT.offset()).is_some();
        Connected::Chip { model: Model::E1000, mac, mapped, posted: false, csb: self.options.csb }
    }
}

#[test]
fn frames_pass_without_a_socket() {
    for (mapped, csb) in [(false, false), (true, false), (false, true)] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let options = Options { csb, size: 64, ..Options::default() };
        let near = InProcessAddress::plug(&mut lan, "a", 1, mapped, options);
        let mut a = PacketGuest::new(E1000Nic::connect(&near, STALL).unwrap(), 1);
        let mut b = VirtioGuest::connect(&lan.add("b", 1), 2, "");
        b.expect_padding();
        exchange(&mut a, &mut b, ALL.all(), ALL);
        let hello = frame(mac(1, 0), mac(2, 0), 0, 60);
        assert!(b.send(0, NetHeader::default(), &hello));
        b.flush();
        let tail = a.port.rx(0).tail();
        a.port.rx(0).set_head(tail);
        a.sleep();
        assert_eq!(*a.port.rx(0).pop().unwrap(), hello);
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
}

/// The example programs, built once for this process.
fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| build(&["--workspace", "--examples"]).join("examples"));
    folder.join(name)
}

/// Starts a program and waits until it says `ready`.
fn start(dir: &TempDir, name: &str, args: &[&str], ready: &str) -> Process {
    let mut argv = vec![example(name).display().to_string()];
    argv.extend(args.iter().map(|&arg| arg.to_owned()));
    let mut program = Process::start(name, &dir.path().join(name), &argv).unwrap();
    let log = program.log_path().to_owned();
    let said = || std::fs::read_to_string(&log).unwrap_or_default().contains(ready);
    program.wait("its first line", STALL, said).unwrap();
    program
}

/// Ctrl-C; the last line it says.
fn interrupt(program: &mut Process) -> String {
    output_of("kill", &["-INT", &program.pid().to_string()]).unwrap();
    assert_eq!(program.terminate(STALL).unwrap(), Some(0), "{}", program.log());
    program.log().lines().last().unwrap_or_default().to_owned()
}

/// Both know each other across whatever is between them.
fn meet(a: &mut VirtioGuest, b: &mut VirtioGuest) {
    greet(a, b);
    greet(b, a);
}

fn greet(from: &mut VirtioGuest, to: &mut VirtioGuest) {
    from.introduce();
    let mut progress = Progress::default();
    while to.receive(|_, _| {}) == 0 {
        progress.note(0, || "an introduction does not arrive".into());
    }
}

/// Two switches, a port on each for a program between them, and a guest on each.
fn two_lans(ways: [(Door, &str); 2]) -> ([Lan; 2], [String; 2], [VirtioGuest; 2]) {
    let mut lans = [(); 2].map(|()| Lan::new(1, FULL_WAIT));
    let padded = ways.iter().any(|way| way.0 != Door::Virtio);
    let mut between = ways.into_iter();
    let at = lans.each_mut().map(|lan| plug(lan, "between", between.next().unwrap()));
    let mut ids = 1..;
    let guests = lans.each_mut().map(|lan| {
        let mut guest = VirtioGuest::connect(&lan.add("guest", 1), ids.next().unwrap(), "");
        if padded {
            guest.expect_padding();
        }
        guest
    });
    (lans, at, guests)
}

#[test]
fn the_bridge_joins_two_lans() {
    let dir = tempfile::tempdir().unwrap();
    for ways in [
        [(Door::Virtio, ""), (Door::Virtio, ",size=64")],
        [(Door::Trapped, ",promisc"), (Door::Virtio, "")],
        [(Door::Mapped, ",promisc,size=64"), (Door::Csb, ",promisc,csb=on")],
    ] {
        let (lans, at, [mut a, mut b]) = two_lans(ways);
        let mut bridge = start(&dir, "bridge", &[&at[0], &at[1]], "bridging");
        meet(&mut a, &mut b);
        exchange_known(&mut a, &mut b, ALL.all(), ALL);
        let all = ALL.all() + 1;
        assert_eq!(interrupt(&mut bridge), format!("{all} frames there, {all} back"));
        std::fs::remove_file(bridge.log_path()).unwrap();
        drop((a, b, lans));
    }
}

/// A frame for the firewall, numbered, and whether it may pass when 53 and 23 are closed.
fn traffic(from: u8, to: u8, n: u64) -> (Vec<u8>, bool) {
    let number = u8::try_from(n % 251).unwrap();
    let mut bytes = frame(mac(to, 0), mac(from, 0), n, 200);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let ipv4 = |bytes: &mut [u8], protocol, port: u16| {
        bytes[14] = 0x45;
        bytes[20..22].copy_from_slice(&[0x40, 0]);
        bytes[23] = protocol;
        bytes[34..36].copy_from_slice(&[0, 53]);
        bytes[36..38].copy_from_slice(&port.to_be_bytes());
    };
    match number % 9 {
        0 => ipv4(&mut bytes, 17, 53),
        1 => ipv4(&mut bytes, 6, 23),
        2 => ipv4(&mut bytes, 17, 54),
        3 => ipv4(&mut bytes, 6, 80),
        4 => {
            ipv4(&mut bytes, 6, 80);
            // Options before the ports.
            bytes[14] = 0x46;
            bytes[36..42].copy_from_slice(&[0, 80, 0, 80, 0, 23]);
        }
        5 => {
            ipv4(&mut bytes, 17, 53);
            bytes[21] = 7; // A later fragment: no ports.
        }
        6 => {
            bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
            bytes[20] = 17;
            bytes[56..58].copy_from_slice(&[0, 53]);
        }
        7 => {
            ipv4(&mut bytes, 6, 23);
            bytes.copy_within(12..100, 16);
            bytes[12..16].copy_from_slice(&[0x81, 0, 0, 5]);
        }
        _ => bytes[12..14].copy_from_slice(&[8, 6]),
    }
    (bytes, [false, false, true, true, false, true, false, false, true][usize::from(number % 9)])
}

/// `from` sends frames, `to` gets those that may pass, in order; how many do not.
fn filtered(from: &mut VirtioGuest, to: &mut VirtioGuest, count: u64) -> u64 {
    let (a, b) = (from.id, to.id);
    let mut expected = (0..count).map(|n| traffic(a, b, n)).filter(|(_, may)| *may);
    let (mut sent, mut left, mut progress) = (0, expected.clone().count(), Progress::default());
    let all = left as u64;
    while left > 0 {
        let begin = (sent, left);
        while sent < count && from.send(0, NetHeader::default(), &traffic(a, b, sent).0) {
            sent += 1;
        }
        from.flush();
        to.receive(|_, bytes| {
            let (good, _) = expected.next().expect("no more frames than may pass");
            assert!(bytes == good, "{left} frames before the end: another one");
            left -= 1;
        });
        progress.note(sent - begin.0 + (begin.1 - left) as u64, || format!("{left} are missing"));
    }
    count - all
}

#[test]
fn the_firewall_drops_by_port() {
    let dir = tempfile::tempdir().unwrap();
    for ways in [
        [(Door::Virtio, ""), (Door::Virtio, "")],
        [(Door::Csb, ",promisc,csb=on"), (Door::Trapped, ",promisc")],
    ] {
        let (lans, at, [mut a, mut b]) = two_lans(ways);
        let mut firewall = start(&dir, "firewall", &[&at[0], &at[1], "53", "23"], "closed");
        meet(&mut a, &mut b);
        let count = 900;
        // The last ones of each lap may pass, so all that came before have come by then.
        let dropped = filtered(&mut a, &mut b, count) + filtered(&mut b, &mut a, count);
        let passed = 2 * count + 2 - dropped;
        let summary = format!("{passed} frames passed, {dropped} dropped");
        assert_eq!(interrupt(&mut firewall), summary);
        std::fs::remove_file(firewall.log_path()).unwrap();
        drop((a, b, lans));
    }
}

#[test]
fn the_counter_counts_by_protocol() {
    let dir = tempfile::tempdir().unwrap();
    for way in [(Door::Virtio, ""), (Door::Trapped, ",promisc")] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let at = plug(&mut lan, "counter", way);
        let mut guest = VirtioGuest::connect(&lan.add("guest", 1), 1, "");
        let mut counter = start(&dir, "counter", &[&at], "counting");
        for n in 0..18 {
            assert!(guest.send(0, NetHeader::default(), &traffic(1, 2, n).0));
        }
        guest.flush();
        let log = counter.log_path().to_owned();
        let said = || std::fs::read_to_string(&log).unwrap().contains("arp 0, tcp 0, udp 0");
        counter.wait("a line each second", STALL, said).unwrap();
        assert_eq!(interrupt(&mut counter), "all: arp 2, tcp 8, udp 8");
        let seconds: Vec<_> = counter.log().lines().skip(1).map(str::to_owned).collect();
        assert!(seconds.len() >= 3, "{seconds:?}");
        std::fs::remove_file(&log).unwrap();
    }
}

#[test]
fn programs_say_how_they_are_used() {
    for name in ["bridge", "firewall", "counter"] {
        let run = |args: &[&str]| Command::new(example(name)).args(args).output().unwrap();
        let help = run(&["--help"]);
        let usage = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && usage.starts_with(&format!("usage: {name} ADDRESS")));
        let none = run(&[]);
        assert_eq!(none.status.code(), Some(2));
        assert_eq!(String::from_utf8(none.stderr).unwrap(), usage);
        let wrong = run(&["tap:x", "tap:y", "1"]);
        assert_eq!(wrong.status.code(), Some(1));
        let said = String::from_utf8(wrong.stderr).unwrap();
        assert!(said.contains("'tap:x'") && said.lines().count() == 1, "{said}");
    }
}
