//! pkt-gen through the switch's sockets: numbered frames on several threads, pings at a rate, a
//! replayed capture, and a switch that dies under two threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vmlan_tests::numbered::{STALL, settles};
use vmlan_tests::{Result, Switch};
use vmlan_tools::pktgen::{Capture, Function, Options, Report, Summary, run};
use vmlan_transport::Mac;

const A: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xa]);
const B: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xb]);

/// Nobody loses frames because a receiver gets too little of the machine.
fn ports(dir: &Path) -> Vec<String> {
    let dir = dir.display();
    vec![
        "--full-wait".into(),
        "10000000".into(),
        format!("a=vhost-user:{dir}/a.sock,queues=4"),
        format!("b=vhost-user:{dir}/b.sock"),
        format!("e=vfio-user:{dir}/e.sock,model=e1000"),
    ]
}

/// Options of a guest with the address `own`, at most some minutes long.
fn guest(dir: &Path, address: &str, function: &str, own: Mac) -> Options {
    let address = address.replace('@', &dir.display().to_string());
    let mut options = Options::new(address.parse().unwrap(), Function::Tx);
    options.set_function(function).unwrap();
    options.src_mac = own;
    options.dst_mac = if own == A { B } else { A };
    options.seconds = Some(STALL);
    options
}

/// A guest that runs until it is told to stop, or has what it waits for; it is there when this
/// returns.
struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Summary>,
}

impl Running {
    fn start(switch: &Switch, mut options: Options) -> Self {
        let own = options.src_mac.0.map(|byte| format!("{byte:02x}")).join(":");
        let stop = Arc::new(AtomicBool::new(false));
        options.stop = Some(Arc::clone(&stop));
        let (told, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut report = |report| {
                if matches!(report, Report::Connected(_)) {
                    told.send(()).unwrap();
                }
            };
            run(&options, &mut report).unwrap()
        });
        ready.recv_timeout(STALL).unwrap();
        // Its announcement is to be seen before anyone looks for it: floods do not wait for a full
        // receiver.
        let known = || switch.ask(&["fdb", "list"]).is_ok_and(|list| list.contains(&own));
        assert!(settles(known), "{own} does not announce itself");
        Self { stop, thread }
    }

    fn finish(self) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn quiet(options: &Options) -> Summary {
    run(options, &mut |_| {}).unwrap()
}

#[test]
fn numbered_frames_pass_whole_on_two_threads_each() -> Result<()> {
    const COUNT: u64 = 20_001;
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::start(dir.path(), None, &ports(dir.path()))?;
    let mut rx = guest(dir.path(), "vhost-user:@/b.sock,queues=2", "rxseq", B);
    (rx.threads, rx.count) = (2, COUNT);
    let rx = Running::start(&switch, rx);
    let mut tx = guest(dir.path(), "vhost-user:@/a.sock,queues=2", "txseq", A);
    (tx.threads, tx.count, tx.rate) = (2, COUNT, 50_000);
    (tx.least_size, tx.size) = (Some(60), 1514);
    (tx.dst_port, tx.random_src) = (1000..=60_000, true);
    let sent = quiet(&tx);
    // It ends when it has all.
    let got = rx.thread.join().unwrap();
    assert_eq!((sent.frames, sent.threads, sent.rings_sound), (COUNT, 2, true), "{sent}");
    assert!(sent.bytes > COUNT * 700 && sent.bytes < COUNT * 875, "sizes between: {sent}");
    assert_eq!((got.duplicated, got.reordered, got.corrupt, got.restarts), (0, 0, 0, 0), "{got}");
    assert_eq!((got.frames, got.lost), (COUNT, 0), "{got}");
    assert_eq!((got.other_frames, got.rings_sound), (0, true), "{got}");
    Ok(())
}

#[test]
fn pings_at_a_rate_are_timed_from_when_they_were_due() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::start(dir.path(), None, &ports(dir.path()))?;
    let pong = Running::start(&switch, guest(dir.path(), "vfio-user:@/e.sock", "pong", B));
    let mut ping = guest(dir.path(), "vhost-user:@/a.sock", "ping", A);
    (ping.count, ping.rate) = (500, 1000);
    let open = quiet(&ping);
    let (sent, due) = (open.latency.unwrap(), open.latency_due.unwrap());
    assert_eq!(
        (open.frames, sent.samples + open.lost, due.samples),
        (500, 500, sent.samples),
        "{open}"
    );
    // A ping that is late by a second counts as lost: on a machine that stands still for so long.
    assert!(sent.samples > 0 && open.seconds >= 0.49, "{open}");
    assert!(due.max_ns >= sent.max_ns && due.mean_ns >= sent.mean_ns, "{open}");
    assert!(sent.p50_ns <= sent.p99_ns && sent.p99_ns <= sent.p9999_ns, "{open}");
    ping.rate = 0;
    let closed = quiet(&ping);
    let answered = closed.latency.unwrap().samples;
    assert!(closed.latency_due.is_none() && answered > 0, "{closed}");
    assert_eq!(answered + closed.lost, 500, "{closed}");
    assert!(pong.finish().frames >= sent.samples + answered);
    Ok(())
}

/// Three frames, 50 ms apart.
fn capture() -> Arc<Capture> {
    let word = |value: u32| value.to_le_bytes();
    let mut file: Vec<u8> =
        [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1].into_iter().flat_map(word).collect();
    for (n, len) in [(0, 42), (1, 100), (2, 1514)] {
        file.extend([7, n * 50_000, len, len].into_iter().flat_map(word));
        let frame = [B.0, A.0].concat().into_iter().chain([0x88, 0xb5]).chain([9; 1500]);
        file.extend(frame.take(len as usize));
    }
    Arc::new(Capture::parse(&file).unwrap())
}

#[test]
fn a_capture_is_replayed_lap_by_lap() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::start(dir.path(), None, &ports(dir.path()))?;
    for receiver in ["vhost-user:@/b.sock", "vfio-user:@/e.sock"] {
        let mut rx = guest(dir.path(), receiver, "rx", B);
        rx.count = 6;
        let rx = Running::start(&switch, rx);
        let mut tx = guest(dir.path(), "vhost-user:@/a.sock", "tx", A);
        (tx.replay, tx.recorded_timing, tx.count) = (Some(capture()), true, 6);
        let sent = quiet(&tx);
        assert_eq!((sent.frames, sent.bytes), (6, 2 * (60 + 100 + 1514)), "{sent}");
        assert!(sent.seconds >= 0.24, "two laps of 150 ms, but for the last gap: {sent}");
        let got = rx.thread.join().unwrap();
        assert_eq!((got.frames, got.bytes), (6, sent.bytes), "{receiver}: {got}");
    }
    Ok(())
}

#[test]
fn two_threads_go_on_together_after_the_switch_died() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let mut switch = Switch::start(dir.path(), None, &ports(dir.path()))?;
    let mut tx = guest(dir.path(), "vhost-user:@/a.sock,queues=3", "txseq", A);
    (tx.threads, tx.rate, tx.report_every) = (2, 20_000, Duration::from_millis(100));
    let stop = Arc::new(AtomicBool::new(false));
    tx.stop = Some(Arc::clone(&stop));
    let (mut seen, mut gone, mut back, mut after, mut killed) = (0, 0, 0, 0, false);
    let summary = run(&tx, &mut |report| match report {
        Report::Interval(interval) if back == 0 => {
            seen += interval.frames;
            // Once: what is still in the rings goes on being counted until its end is seen.
            if seen > 0 && !killed {
                killed = true;
                switch.kill9();
                switch.restart().unwrap();
                seen = 0;
            }
        }
        Report::Interval(interval) => {
            after += interval.frames;
            stop.store(after > 4000, Ordering::Relaxed);
        }
        Report::Disconnected => gone += 1,
        Report::Reconnected(_) => back += 1,
        Report::Connected(_) => {}
    });
    let summary = summary.unwrap();
    assert!(after > 4000, "{summary}");
    assert_eq!((gone, back, summary.reconnects, summary.rings_sound), (1, 1, 1, true), "{summary}");
    Ok(())
}
