//! The driver against DPDK's vhost library: a back end that shares nothing with this project.
//! `dpdk-testpmd` forwards between two vhost ports; a driver is at either end.
//!
//! Without `dpdk-testpmd` the tests say that they are skipped; with `VMLAN_REQUIRE_PEERS=1` they
//! fail instead.

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlan_driver::virtio::VirtioNet;
use vmlan_tools::pktgen::{self, Function, Options, Report, Summary};
use vmlan_transport::address::VhostUser;

const PATIENCE: Duration = Duration::from_secs(30);
/// testpmd drops what it forwards to a port until it has noticed that the port is connected, and
/// says nothing about when.
const SETTLE: Duration = Duration::from_secs(1);

/// One testpmd at a time: it polls a whole core.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn peer_is_there() -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| dir.join("dpdk-testpmd").exists())
    });
    if !found {
        let required = std::env::var_os("VMLAN_REQUIRE_PEERS").is_some_and(|value| value == "1");
        assert!(!required, "dpdk-testpmd is not installed: apt-get install dpdk-dev");
        println!("skipped: dpdk-testpmd is not installed (apt-get install dpdk-dev)");
    }
    found
}

struct Testpmd {
    child: Child,
    /// testpmd quits when its standard input ends.
    _input: Option<ChildStdin>,
}

impl Testpmd {
    /// `client`: testpmd connects to the sockets instead of making them.
    fn start(dir: &Path, client: bool, queues: u16) -> Self {
        let port = |n: u8, name: &str| {
            let path = dir.join(name);
            let _ = (!client).then(|| std::fs::remove_file(&path));
            let client = u8::from(client);
            format!("net_vhost{n},iface={},client={client},queues={queues}", path.display())
        };
        let log = std::fs::File::create(dir.join("testpmd.log")).unwrap();
        let mut child = Command::new("dpdk-testpmd")
            .args([
                "--lcores",
                "0@0,1@0",
                "--main-lcore",
                "0",
                "--no-pci",
                "--no-huge",
                "-m",
                "256",
            ])
            .args(["--no-shconf", "--no-telemetry"])
            .args(["--vdev", &port(0, "a"), "--vdev", &port(1, "b"), "--", "-i", "--auto-start"])
            .args(["--nb-cores=1", "--forward-mode=io", "--burst=64", "--no-lsc-interrupt"])
            .args(["--no-flush-rx", "--disable-link-check"])
            .args(["--total-num-mbufs=16384", "--mbuf-size=2176,10240"])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        Self { child, _input: input }
    }
}

impl Drop for Testpmd {
    /// SIGKILL: no goodbye to anyone, which is what a back end owes us at worst.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options(dir: &Path, name: &str, keys: &str, function: &str) -> Options {
    let address: VhostUser =
        format!("vhost-user:{}{keys}", dir.join(name).display()).parse().unwrap();
    let mut options = Options::new(address.into(), Function::Tx);
    options.set_function(function).unwrap();
    options.patience = PATIENCE;
    options
}

struct Running {
    frames: Arc<AtomicU64>,
    connected: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Summary>,
}

impl Running {
    fn start(mut options: Options) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        options.stop = Some(Arc::clone(&stop));
        options.report_every = Duration::from_millis(20);
        let (frames, connected) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, state) = (Arc::clone(&frames), Arc::clone(&connected));
        let thread = std::thread::spawn(move || {
            let mut report = |report: Report| match report {
                Report::Interval(interval) => {
                    count.fetch_add(interval.frames, Ordering::Relaxed);
                }
                Report::Disconnected => state.store(false, Ordering::Relaxed),
                _ => {
                    state.store(true, Ordering::Relaxed);
                }
            };
            pktgen::run(&options, &mut report).unwrap()
        });
        Self { frames, connected, stop, thread }
    }

    fn wait_until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "{what} did not happen");
            assert!(!self.thread.is_finished(), "the run ended before: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_connected(&self, wanted: bool) {
        self.wait_until("connect or disconnect", |run| {
            run.connected.load(Ordering::Relaxed) == wanted
        });
    }

    fn wait_frames(&self, more: u64) {
        let from = self.frames.load(Ordering::Relaxed);
        self.wait_until("traffic", |run| run.frames.load(Ordering::Relaxed) >= from + more);
    }

    /// Once it has all, or when no frame has come for so long.
    fn finish_after(self, silence: Duration) -> Summary {
        let (mut last, mut since) = (0, Instant::now());
        while !self.thread.is_finished() && since.elapsed() < silence {
            let now = self.frames.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.finish()
    }

    fn finish(self) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Sends numbered frames from `a` to `b` slowly enough that testpmd need not drop any, and wants
/// each exactly once and whole. On a busy machine the receiver may sleep for longer than its ring
/// is filled: what is only lost is tried again.
fn transfer(keys: &str, queues: u16, size: u32, count: u64) -> (Summary, Summary) {
    for tries_left in (0..3).rev() {
        let (sent, got) = try_transfer(keys, queues, size, count);
        eprintln!("{keys} {size} B\n  {sent}\n  {got}");
        assert_eq!((got.out_of_order, got.corrupt, got.other_frames), (0, 0, 0), "{keys}");
        assert!(sent.frames == count && got.frames <= count, "{keys}: {sent:?} {got:?}");
        assert_eq!(got.bytes, got.frames * u64::from(size));
        assert!(sent.rings_sound && got.rings_sound && got.malformed == 0);
        if got.frames == count {
            return (sent, got);
        }
        assert!(tries_left > 0, "{keys}: {} of {count} frames arrive", got.frames);
    }
    unreachable!("the last try returns or fails");
}

fn try_transfer(keys: &str, queues: u16, size: u32, count: u64) -> (Summary, Summary) {
    let dir = tempfile::tempdir().unwrap();
    let _peer = Testpmd::start(dir.path(), false, queues);
    let mut rx = options(dir.path(), "b", keys, "rxseq");
    rx.count = count;
    rx.seconds = Some(PATIENCE);
    let rx = Running::start(rx);
    rx.wait_connected(true);
    std::thread::sleep(SETTLE);
    let mut tx = options(dir.path(), "a", keys, "txseq");
    (tx.size, tx.count, tx.rate) = (size, count, 20_000);
    let sent = pktgen::run(&tx, &mut |_| {}).unwrap();
    (sent, rx.finish_after(SETTLE * 10))
}

#[test]
fn every_frame_arrives_once_and_whole() {
    let _turn = turn();
    if !peer_is_there() {
        return;
    }
    for (keys, size) in [
        (",size=8192", 60),
        (",size=8192,event_idx=off,in_order=off,mrg=off", 1514),
        (",size=8192,indirect=on,segments=4", 301),
        (",size=8192,segments=4,in_order=off", 999),
        (",size=8192,buffer=256", 1500),
        (",size=4096,mem_slots=off,reply_ack=off,status=off,inflight=off", 61),
    ] {
        transfer(keys, 1, size, 20_000);
    }
}

#[test]
fn a_legacy_driver_is_understood() {
    let _turn = turn();
    if !peer_is_there() {
        return;
    }
    let legacy = ",size=8192,version_1=off,any_layout=off,in_order=off,event_idx=off";
    transfer(&format!("{legacy},mrg=off"), 1, 73, 20_000);
    transfer(legacy, 1, 1514, 20_000);
}

#[test]
fn several_queues_are_all_used() {
    let _turn = turn();
    if peer_is_there() {
        let (sent, _) = transfer(",size=8192,queues=2", 2, 90, 40_000);
        assert!(sent.doorbells > 0);
    }
}

#[test]
fn pings_come_back() {
    let _turn = turn();
    if !peer_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _peer = Testpmd::start(dir.path(), false, 1);
    let pong = Running::start(options(dir.path(), "b", "", "pong"));
    pong.wait_connected(true);
    std::thread::sleep(SETTLE);
    let mut ping = options(dir.path(), "a", "", "ping");
    ping.count = 2_000;
    let summary = pktgen::run(&ping, &mut |_| {}).unwrap();
    let answered = pong.finish();
    eprintln!("{summary}\n{answered}");
    let latency = summary.latency.unwrap();
    // The first answer may meet testpmd's other port before it has settled.
    assert!(summary.lost <= 1 && summary.corrupt == 0, "{summary:?}");
    assert_eq!(latency.samples, 2_000 - summary.lost);
    assert!(latency.min_ns <= latency.p50_ns && latency.p99_ns <= latency.max_ns);
    assert!(answered.frames >= latency.samples);
}

/// Kill -9 under traffic, again and again; the rings stay whole and the traffic comes back.
fn killed(client: bool, rounds: u32) {
    let dir = tempfile::tempdir().unwrap();
    let keys = if client { ",listen" } else { "" };
    let mut peer = Testpmd::start(dir.path(), client, 1);
    let rx = Running::start(options(dir.path(), "b", keys, "rxseq"));
    let mut tx = options(dir.path(), "a", keys, "txseq");
    tx.rate = 400_000;
    let tx = Running::start(tx);
    for _ in 0..rounds {
        rx.wait_connected(true);
        tx.wait_connected(true);
        rx.wait_frames(1_000);
        drop(peer);
        rx.wait_connected(false);
        tx.wait_connected(false);
        peer = Testpmd::start(dir.path(), client, 1);
    }
    rx.wait_frames(1_000);
    let (sent, got) = (tx.finish(), rx.finish());
    eprintln!("{sent}\n{got}");
    assert_eq!((u64::from(rounds), u64::from(rounds)), (sent.reconnects, got.reconnects));
    assert!(sent.rings_sound && got.rings_sound, "{sent:?} {got:?}");
    assert_eq!((got.corrupt, got.malformed), (0, 0));
}

#[test]
fn a_killed_back_end_is_survived() {
    let _turn = turn();
    if peer_is_there() {
        killed(false, 3);
    }
}

#[test]
fn a_killed_back_end_that_connects_to_us_is_survived() {
    let _turn = turn();
    if peer_is_there() {
        killed(true, 3);
    }
}

#[test]
fn stopped_rings_go_on_where_they_were() {
    let _turn = turn();
    if !peer_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _peer = Testpmd::start(dir.path(), false, 1);
    let address = VhostUser::new(dir.path().join("a"));
    let mut nic = VirtioNet::connect(&address, PATIENCE).unwrap();
    for round in 1..4 {
        let tx = &mut nic.pairs[0].tx;
        assert_eq!(tx.send_filled(100, 60), 100);
        tx.flush();
        let end = Instant::now() + PATIENCE;
        while nic.pairs[0].tx.reap() < 1024 {
            assert!(Instant::now() < end, "the back end does not take frames in round {round}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(nic.stop().unwrap(), [0, 100 * round], "nothing received, all sent");
        assert!(nic.audit().iter().all(vmlan_driver::virtio::virtqueue::Audit::is_sound));
        nic.start_rings().unwrap();
    }
}

#[test]
fn writes_to_guest_memory_are_logged() {
    let _turn = turn();
    if !peer_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _peer = Testpmd::start(dir.path(), false, 1);
    let mut nic = VirtioNet::connect(&VhostUser::new(dir.path().join("b")), PATIENCE).unwrap();
    std::thread::sleep(SETTLE);
    let log = nic.start_dirty_log().unwrap();
    assert_eq!(log.dirty_pages().unwrap(), 0);
    let mut tx = options(dir.path(), "a", "", "tx");
    (tx.count, tx.rate) = (100, 10_000);
    pktgen::run(&tx, &mut |_| {}).unwrap();
    let end = Instant::now() + PATIENCE;
    let mut batch = nic.pairs[0].rx.batch();
    while nic.pairs[0].rx.poll(&mut batch, 100) < 100 {
        assert!(Instant::now() < end, "only {} frames came", batch.frames().len());
    }
    let used = nic.pairs[0].rx.ring().places().used;
    assert!(log.is_dirty(nic.ram().guest_phys(used)).unwrap(), "the used ring");
    for frame in batch.frames() {
        let at = nic.pairs[0].rx.place(&batch, *frame);
        assert!(log.is_dirty(nic.ram().guest_phys(at)).unwrap(), "the buffer at {at}");
    }
    let pages = log.dirty_pages().unwrap();
    assert!((50..=110).contains(&pages), "{pages} pages for 100 buffers of 2112 bytes");
    nic.stop_dirty_log().unwrap();
}
