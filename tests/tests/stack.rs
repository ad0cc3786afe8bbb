//! Sockets on our own stack through the switch: virtio, an e1000 the plain way, and others of its
//! ways. Every byte of TCP is compared, every request counted, and an application that is slower
//! than its driver still gets its share.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{STALL, settles};
use vmlan_tools::stack::{Options, Report, Schedule, Summary, Workload, run};
use vmlan_transport::Mac;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Kinds of guests, by the keys of their addresses: the client's, the server's, and how many
/// threads they have.
const PAIRS: [(&str, &str, u8); 7] = [
    ("virtio", "virtio", 1),
    ("virtio", "virtio", 2),
    ("", "", 1),
    ("", "", 2),
    (",csb=on", ",csb=on", 1),
    (",csb=on", ",csb=on", 2),
    (",itr=200,combine=on", ",receive=adaptive", 1),
];

/// A switch with two ports for `kinds`.
fn lan(kinds: [&str; 2]) -> (Lan, [String; 2]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let mut add = |name: &str, kind: &str| {
        let text = |path: &Path| path.display().to_string();
        if kind == "virtio" {
            format!("vhost-user:{}", text(&lan.add(name, 1)))
        } else {
            let path = lan.add_e1000(name, |config| config.csb = true);
            format!("vfio-user:{}{kind}", text(&path))
        }
    };
    let places = [add("a", kinds[0]), add("b", kinds[1])];
    (lan, places)
}

fn client(place: &str, workload: Workload, threads: u8) -> Options {
    let ip = (Ipv4Addr::new(10, 0, 0, 1), 24);
    let mut options = Options::new(place.parse().unwrap(), workload, ip);
    options.task.to = Some(SocketAddrV4::new(SERVER, 0));
    // The chips of such a switch all have the same address.
    options.mac = Some(Mac([0x52, 0x54, 0, 0, 0, 0xa]));
    options.task.seconds = Some(STALL);
    options.threads = threads;
    options
}

/// What a server has seen so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    messages: u64,
    bytes: u64,
}

/// A server that runs until it is told to stop; it is there when this returns.
struct Running {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: JoinHandle<Summary>,
}

impl Running {
    fn start(place: &str, workload: Workload, threads: u8, change: fn(&mut Options)) -> Self {
        let mut options = client(place, workload, threads);
        (options.ip, options.task.to) = ((SERVER, 24), None);
        options.mac = Some(Mac([0x52, 0x54, 0, 0, 0, 0xb]));
        let stop = Arc::new(AtomicBool::new(false));
        options.task.stop = Some(Arc::clone(&stop));
        options.task.report_every = Duration::from_millis(10);
        change(&mut options);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let all = Arc::clone(&seen);
        let (told, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut report = |report| match report {
                Report::Connected(..) => told.send(()).unwrap(),
                Report::Interval(more) => {
                    let mut all = all.lock().unwrap();
                    all.messages += more.work.messages;
                    all.bytes += more.work.bytes;
                }
                Report::Disconnected | Report::Reconnected(_) => {}
            };
            run(&options, &mut report).unwrap()
        });
        ready.recv_timeout(STALL).unwrap();
        Self { stop, seen, thread }
    }

    /// Ends it once it has seen what is on its way to it, however long it waits for a core.
    fn end(self, is_all: impl Fn(Seen) -> bool) -> Summary {
        let came = settles(|| is_all(*self.seen.lock().unwrap()));
        assert!(came, "that is not all: {:?}", self.seen.lock().unwrap());
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn ask(options: &Options) -> Summary {
    let summary = run(options, &mut |_| {}).unwrap();
    assert!(summary.rings_sound, "{summary}");
    summary
}

#[test]
fn every_byte_of_tcp_arrives() {
    for (a, b, threads) in PAIRS {
        let (_lan, [at_a, at_b]) = lan([a, b]);
        let sink = Running::start(&at_b, Workload::TcpSink, threads, |o| o.task.verify = true);
        let mut stream = client(&at_a, Workload::TcpStream, threads);
        for (size, count) in [(1460, 700), (65_536, 15)] {
            (stream.task.size, stream.task.count) = (size, count);
            let sent = ask(&stream);
            assert!(sent.totals.bytes >= u64::from(size) * count, "{a} to {b}: {sent}");
        }
        let bytes = 1460 * 700 + 65_536 * 15;
        let got = sink.end(|seen| seen.bytes >= bytes);
        assert!(got.rings_sound && got.totals.corrupt == 0, "{a} to {b}: {got}");
        assert_eq!((got.totals.bytes, got.totals.connections), (bytes, 2), "{a} to {b}");
    }
}

#[test]
fn every_request_is_answered() {
    for (a, b, threads) in PAIRS {
        let (_lan, [at_a, at_b]) = lan([a, b]);
        let responder = Running::start(&at_b, Workload::Responder, threads, |_| {});
        for workload in [Workload::UdpRr, Workload::TcpRr] {
            let mut rr = client(&at_a, workload, threads);
            rr.task.count = 150;
            let asked = ask(&rr);
            assert_eq!((asked.totals.messages, asked.totals.lost), (150, 0), "{a} to {b}: {asked}");
            assert_eq!(asked.totals.latency.map(|latency| latency.samples), Some(150));
        }
        // Each had one more before, which is not measured.
        assert_eq!(responder.end(|seen| seen.messages >= 302).totals.messages, 302, "{a} to {b}");
    }
}

#[test]
fn a_slow_application_gets_its_share() {
    for (a, b, threads) in PAIRS {
        let (_lan, [at_a, at_b]) = lan([a, b]);
        let sink = Running::start(&at_b, Workload::LivelockSink, threads, |o| {
            (o.task.app_ns, o.socket_queue) = (100_000, 32);
        });
        let mut stream = client(&at_a, Workload::UdpStream, threads);
        (stream.task.count, stream.task.rate, stream.task.burst) = (6000, 30_000, 100);
        assert_eq!(ask(&stream).totals.messages, 6000, "{a} to {b}");
        let got = sink.end(|seen| seen.messages > 0);
        // It could take 10,000 a second, and three times as many are offered for at least 0.2 s.
        let most = got.totals.seconds * 10_000.0 + 100.0;
        assert!(
            f64::from(u32::try_from(got.totals.messages).unwrap()) <= most,
            "{a} to {b}: {got}"
        );
        assert!(got.totals.messages + got.dropped <= got.arrived && got.arrived <= 6001, "{got}");
        let schedule = match (threads, b) {
            (2, _) => Schedule::Parallel,
            (_, "") => Schedule::InterruptsFirst,
            _ => Schedule::InTurns,
        };
        assert_eq!(got.schedule, schedule, "{a} to {b}");
    }
}
