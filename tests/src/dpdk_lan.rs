//! A guest whose NICs DPDK's testpmd has, sending what one of them receives out of the next. Frames
//! come from a port of the switch and go to another, where each is checked; testpmd, the chips and
//! the switch have to count the same.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use tempfile::TempDir;
use vmlan_tools::pktgen::{self, Function, Options, Report, Summary};
use vmlan_transport::Mac;

use crate::{
    Boot, Guest, LanHost, NetNs, Result, Switch,
    guest_testpmd::{self, Counted, GuestTestpmd},
    linux_nic::{self, LinuxNic},
    numbered::STALL,
};

/// In the order of their addresses, which is testpmd's, with their PCI ids.
pub const CARDS: [(&LinuxNic, &str); 3] = [
    (&linux_nic::E1000, "8086 100e"),
    (&linux_nic::E1000E, "8086 10d3"),
    (&linux_nic::VMXNET3, "15ad 07b0"),
];
/// Its place among them.
pub const VMXNET3: usize = 2;
/// Where frames come from.
pub const LEFT: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xa]);
/// Where they go.
pub const RIGHT: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xb]);
/// The same.
pub const RIGHT_TEXT: &str = "52:54:00:00:00:0b";
/// Nobody has it.
pub const NOBODY: Mac = Mac([0x52, 0x54, 0, 0, 0, 0x77]);
/// The same.
pub const NOBODY_TEXT: &str = "52:54:00:00:00:77";

/// The MAC address of a card.
///
/// # Panics
/// If there are more than 255.
#[must_use]
pub fn mac(card: usize) -> Mac {
    Boot::mac(u8::try_from(card + 1).expect("a few")).parse().expect("an address")
}

/// A guest at the left or the right that runs until it has what it waits for, or is told to stop.
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Summary>,
}

impl Running {
    /// Starts it; it is connected when this returns.
    ///
    /// # Panics
    /// If the switch does not answer.
    pub fn start(mut options: Options) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        options.stop = Some(Arc::clone(&stop));
        let (told, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut report = |report| {
                if matches!(report, Report::Connected(_)) {
                    told.send(()).expect("somebody waits");
                }
            };
            pktgen::run(&options, &mut report).expect("a port that answers")
        });
        ready.recv_timeout(STALL).expect("the switch answers");
        Self { stop, thread }
    }

    /// Its end, for which it is not asked.
    ///
    /// # Panics
    /// If it could not run.
    pub fn end(self) -> Summary {
        self.thread.join().expect("its summary")
    }

    /// Ends it.
    pub fn stop(self) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        self.end()
    }
}

/// What is sent through the guest.
#[derive(Clone, Copy)]
pub struct Flow {
    /// Frames.
    pub count: u64,
    /// Shortest and longest frame.
    pub sizes: [u32; 2],
    /// UDP checksums are left to whoever sends the frame on, and judged at the end.
    pub checksums: bool,
    /// To and from many addresses, so that they come by several queues and in any order.
    pub many: bool,
    /// With tags on its way, which not everybody counts.
    pub tagged: bool,
}

/// Everybody.
pub struct DpdkLan {
    /// The guest.
    pub guest: Guest,
    /// What has its NICs.
    pub testpmd: GuestTestpmd,
    /// Those that it has, of [`CARDS`].
    pub cards: Range<usize>,
    devices: Vec<String>,
    /// EAL's, and testpmd's own.
    options: [&'static str; 2],
    /// A host at the port `a`, with the interface `vmlan0`.
    pub a: NetNs,
    /// One at `b`, with `vmlan1`.
    pub b: NetNs,
    /// The switch; ports of NICs are called as Linux' drivers of them.
    pub switch: Switch,
    dir: TempDir,
}

#[allow(clippy::missing_errors_doc, clippy::missing_panics_doc)] // Failed checks, all of them.
impl DpdkLan {
    /// Boots the guest, and gives testpmd these NICs.
    pub fn start(cards: Range<usize>, options: [&'static str; 2]) -> Result<DpdkLan> {
        let temporary = tempfile::Builder::new().prefix("vmlan-dpdk.").tempdir();
        let temporary = temporary.expect("a temporary directory");
        let dir = temporary.path();
        let image = guest_testpmd::image(dir)?;
        let mut a = NetNs::new(dir, "a", 101)?;
        let mut b = a.sibling(dir, "b", 102)?;
        // Nobody loses frames because the guest gets too little of the machine.
        let mut ports = vec!["--full-wait".into(), "10000000".into()];
        for (at, (card, _)) in CARDS.iter().enumerate() {
            let (name, socket) = (card.driver, dir.join(card.driver));
            let (keys, mac) = (card.keys, Boot::mac(u8::try_from(at + 1).expect("a few")));
            // Nobody has to announce himself.
            let keys = format!("{keys},mac={mac},macs={mac}");
            ports.push(format!("{name}=vfio-user:{},{keys}", socket.display()));
        }
        ports.push(format!("left=vhost-user:{}", dir.join("left").display()));
        ports.push(format!("right=vhost-user:{},macs={RIGHT_TEXT}", dir.join("right").display()));
        ports.extend(["a=tap:vmlan0".into(), "b=tap:vmlan1".into()]);
        let switch = Switch::start(dir, Some(&a), &ports)?;
        a.give("vmlan1", &b)?;
        for (host, interface) in [(&mut a, "vmlan0"), (&mut b, "vmlan1")] {
            // They say nothing by themselves.
            host.sh(&format!("echo 1 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6"))?;
            host.adopt(interface)?;
        }
        let [first, second, third] = CARDS.map(|(card, _)| dir.join(card.driver));
        let boot = Boot::new("dpdk", 1).vfio_user(&first).beside(&second).beside(&third);
        let [mut guest] = Guest::boot(&image, dir, [boot.iommu().cpus(2).memory(512)])?;
        let mut devices = Vec::new();
        for (at, (_, id)) in CARDS.iter().enumerate() {
            let device = guest_testpmd::take(&mut guest, id)?;
            if cards.contains(&at) {
                devices.push(device);
            }
        }
        let testpmd = GuestTestpmd::start(&mut guest, &devices, options)?;
        let mut lan =
            DpdkLan { guest, testpmd, cards, devices, options, a, b, switch, dir: temporary };
        lan.set_up()?;
        Ok(lan)
    }

    /// Testpmd anew, after it was killed.
    pub fn restart(&mut self) -> Result<()> {
        self.testpmd = GuestTestpmd::start(&mut self.guest, &self.devices, self.options)?;
        self.set_up()
    }

    fn set_up(&mut self) -> Result<()> {
        self.say_of_each(&[&format!("set eth-peer # {RIGHT_TEXT}"), "set promisc # off"])?;
        self.say_all(&["set burst tx delay 50 retry 10000000", "set fwd mac retry", "start"])
    }

    /// One command of testpmd's.
    pub fn say(&mut self, command: &str) -> Result<String> {
        self.testpmd.say(&mut self.guest, command)
    }

    /// Several.
    pub fn say_all(&mut self, commands: &[&str]) -> Result<()> {
        self.say(&commands.join("\n")).map(drop)
    }

    /// Commands about each of testpmd's ports, with `#` for its number.
    pub fn say_of_each(&mut self, commands: &[&str]) -> Result<()> {
        let of = |port: usize| commands.join("\n").replace('#', &port.to_string());
        let all: Vec<_> = (0..self.cards.len()).map(of).collect();
        self.say(&all.join("\n")).map(drop)
    }

    /// The card that sends what `card` has received.
    pub fn next(&self, card: usize) -> usize {
        if card + 1 == self.cards.end { self.cards.start } else { card + 1 }
    }

    /// What testpmd, the chip and the switch have counted of a card, each in the switch's order:
    /// frames to it, frames from it, bytes of each; and testpmd's errors.
    pub fn counted(&mut self, card: usize) -> Result<([Vec<u64>; 3], u64)> {
        let Counted { rx, rx_bytes, tx, tx_bytes, errors } =
            self.testpmd.counted(&mut self.guest, card - self.cards.start)?;
        let (nic, _) = CARDS[card];
        let port = self.switch.port(nic.driver)?;
        let all = [("out", "frames"), ("in", "frames"), ("out", "bytes"), ("in", "bytes")];
        let ours = all.map(|(way, what)| port[way][what].as_u64().expect("a counter"));
        let driver = nic.untrailed(vec![rx, tx, rx_bytes, tx_bytes]);
        Ok(([driver, nic.counted(&port), ours.to_vec()], errors))
    }

    /// Options of a guest `own` on the port `left` or `right`.
    pub fn options(&self, port: &str, function: &str, own: Mac, to: Mac) -> Options {
        let address = format!("vhost-user:{}", self.dir.path().join(port).display());
        let mut options = Options::new(address.parse().expect("an address"), Function::Tx);
        options.set_function(function).expect("a function");
        (options.src_mac, options.dst_mac) = (own, to);
        options.seconds = Some(STALL);
        options
    }

    /// A guest at the right that waits for so many frames.
    pub fn receiver(&self, function: &str, count: u64) -> Running {
        let mut options = self.options("right", function, RIGHT, LEFT);
        (options.count, options.announce) = (count, false);
        Running::start(options)
    }

    /// Sends from the left to `to`.
    pub fn sent(&self, to: Mac, flow: Flow) -> Summary {
        let mut options = self.options("left", "txseq", LEFT, to);
        options.count = flow.count;
        (options.least_size, options.size) = (Some(flow.sizes[0]), flow.sizes[1]);
        if flow.many {
            options.dst_ip = [10, 1, 0, 1].into()..=[10, 1, 3, 255].into();
        }
        if flow.checksums {
            let address = format!("vhost-user:{},csum=on", self.dir.path().join("left").display());
            options.address = address.parse().expect("an address");
            options.offload_checksum = true;
        }
        pktgen::run(&options, &mut |_| {}).expect("a port that answers")
    }

    /// Frames from the left through `card` and the next to the right: all arrive whole, and
    /// everybody counts the same.
    pub fn pass(&mut self, card: usize, flow: Flow) -> Result<()> {
        let next = self.next(card);
        let before = [self.counted(card)?, self.counted(next)?];
        let receiver = self.receiver("rxseq", flow.count);
        let sent = self.sent(mac(card), flow);
        let got = receiver.end();
        println!(
            "  {} -> {}, {:?} bytes: {} of {} frames",
            CARDS[card].0.driver, CARDS[next].0.driver, flow.sizes, got.frames, sent.frames
        );
        assert_eq!((sent.frames, sent.rings_sound), (flow.count, true), "{sent}");
        if got.frames != flow.count {
            let said = self.say("show port xstats all")?;
            said.lines().filter(|line| !line.ends_with(": 0")).for_each(|line| println!("{line}"));
        }
        assert_eq!((got.frames, got.lost, got.corrupt), (flow.count, 0, 0), "{got}");
        assert_eq!((got.duplicated, got.malformed, got.other_frames), (0, 0, 0), "{got}");
        assert!(flow.many || got.reordered == 0, "{got}");
        let wanted = [flow.count, sent.bytes];
        self.settle(card, &before[0], [0, 2], wanted, flow.tagged)?;
        self.settle(next, &before[1], [1, 3], wanted, flow.tagged)
    }

    /// Waits until everybody's counts `which` of a card have grown by `by`; whether bytes count is
    /// another matter.
    pub fn settle(
        &mut self,
        card: usize,
        (before, errors): &([Vec<u64>; 3], u64),
        which: [usize; 2],
        by: [u64; 2],
        any_bytes: bool,
    ) -> Result<()> {
        let since = Instant::now();
        loop {
            let after = self.counted(card)?;
            let pairs = after.0.iter().zip(before);
            let grown: Vec<_> =
                pairs.map(|(after, before)| which.map(|at| after[at] - before[at])).collect();
            if grown.iter().all(|grown| grown[0] == by[0] && (any_bytes || grown[1] == by[1])) {
                assert_eq!(after.1, *errors, "errors");
                return Ok(());
            }
            let name = CARDS[card].0.driver;
            assert!(since.elapsed() < STALL, "{name}: frames and bytes {by:?}, {grown:?}");
        }
    }
}

/// Frames of all sizes up to `longest`.
#[must_use]
pub fn flow(longest: u32) -> Flow {
    Flow { count: 3000, sizes: [60, longest], checksums: false, many: false, tagged: false }
}
