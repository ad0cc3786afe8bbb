//! `kill -9` of guests with an e1000 under traffic: the switch gives all back that they had, their
//! neighbours lose nothing, and the port takes the next.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::chip::Offload;
use vmlan_driver::wait::Interest;
use vmlan_tests::chip_guest::E1000Guest;
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::killed_guest::{
    Descriptors, Pauses, guest_process, has_not_grown, holdings, wait_for,
};
use vmlan_tests::numbered::{Stops, frame, mac};
use vmlan_tests::{HarnessError, Result, Switch};
use vmlan_transport::Bus;

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

/// What the threads tell each other.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    received: AtomicU64,
    longest_gap_us: AtomicU64,
}

fn stopped(shared: &Shared) -> bool {
    shared.stop.load(Ordering::Relaxed)
}

/// A paced flow from A to B, 20,000 frames/s, as if nothing happened. Returns how many were sent.
fn pace(a: &mut E1000Guest<impl Bus>, shared: &Shared) -> u64 {
    let _stops = Stops(&shared.stop);
    let (begin, mut n) = (Instant::now(), 0);
    while !stopped(shared) {
        let due = u64::try_from(begin.elapsed().as_micros()).unwrap() / 50;
        while n < due && a.send(Offload::default(), &frame(mac(B, 0), mac(A, 0), n, 60)) {
            n += 1;
        }
        a.flush();
        a.receive(|_, _| {});
        std::thread::sleep(Duration::from_micros(200));
    }
    n
}

/// Feeds whoever has C's address.
fn feed(d: &mut E1000Guest<impl Bus>, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let bytes = frame(mac(C, 0), mac(4, 0), 0, 60);
    while !stopped(shared) {
        (0..20).all(|_| d.send(Offload::default(), &bytes));
        d.flush();
        d.receive(|_, _| {});
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes A's frames, all of them, one after the other.
fn take(b: &mut E1000Guest<impl Bus>, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let (mut next, mut last) = (0, Instant::now());
    while !stopped(shared) {
        let mut got = 0;
        b.receive(|_, bytes| {
            if bytes[..12] == [mac(B, 0), mac(A, 0)].concat() {
                let good = frame(mac(B, 0), mac(A, 0), next, 60);
                assert!(bytes == good, "A's frames come one after the other: {next}");
                (next, got) = (next + 1, got + 1);
            }
        });
        if got > 0 {
            let gap = u64::try_from(last.elapsed().as_micros()).unwrap();
            shared.longest_gap_us.fetch_max(gap, Ordering::Relaxed);
            last = Instant::now();
        } else {
            b.wait(Interest { rx: true, tx: false }, Duration::from_millis(100));
        }
        shared.received.store(next, Ordering::Relaxed);
    }
}

/// Starts guest C, waits until it sends (or receives), and kills it.
fn one_kill(switch: &Switch, dir: &Path, n: u32) -> Result<()> {
    let function = if n.is_multiple_of(2) { "tx" } else { "rx" };
    let keys = ["", ",writes=posted", ",irq=msi,batch=on", ",unmask=message"][n as usize / 2 % 4];
    let way = if function == "tx" { "in" } else { "out" };
    let frames = |port: &serde_json::Value| port[way]["frames"].as_u64().unwrap_or(0);
    let before = frames(&switch.port("c")?);
    let mut guest = guest_process(
        dir,
        &format!("vfio-user:{}{keys}", dir.join("c.sock").display()),
        function,
        C,
        B,
    )?;
    wait_for(switch, "c", "the guest has traffic", |port| frames(port) > before + 20)?;
    guest.kill9();
    wait_for(switch, "c", "the guest is gone", |port| port["up"] == false)
}

fn kill_guests(times: u32, doorbell: &str) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let mut words = vec!["--full-wait".into(), "10000000".into()];
    words.extend(
        ["a", "b", "c", "d"]
            .map(|n| format!("{n}=vfio-user:{},doorbell={doorbell}", path(n).display())),
    );
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut b = E1000Guest::connect(&path("b"), B, "");
    let mut a = E1000Guest::connect(&path("a"), A, ",writes=posted");
    let mut d = E1000Guest::connect(&path("d"), 4, "");
    b.introduce();
    let shared = Shared::default();
    std::thread::scope(|scope| {
        // However this ends, the threads do.
        let stops = Stops(&shared.stop);
        let sender = scope.spawn(|| pace(&mut a, &shared));
        scope.spawn(|| take(&mut b, &shared));
        scope.spawn(|| feed(&mut d, &shared));
        // Once each, so that everything has been allocated that is allocated once.
        (0..8).try_for_each(|n| one_kill(&switch, dir.path(), n))?;
        let (first, mut descriptors) = (holdings(&switch), Descriptors::of(&switch));
        let mut pauses = Pauses::default();
        shared.longest_gap_us.store(0, Ordering::Relaxed);
        for kill in 0..times {
            one_kill(&switch, dir.path(), kill)?;
            descriptors.check(&switch, &format!("kill {kill}"));
            let gap = shared.longest_gap_us.swap(0, Ordering::Relaxed);
            pauses.add(Duration::from_micros(gap));
            assert!(!stopped(&shared), "a neighbour failed after kill {kill}");
        }
        // One guest's memory is 1 MiB: a map left behind would show.
        let last = has_not_grown(&switch, first, [1024, 1024]);
        let gaps = pauses.median_and_longest();
        drop(stops);
        let sent = sender.join().expect("the sender");
        let received = shared.received.load(Ordering::Relaxed);
        println!(
            "{doorbell}: {times} kills: fds, RSS, mapped {first:?} -> {last:?} KiB; \
             {received} of {sent} frames, gaps, median and longest, {gaps:.1?}"
        );
        assert!(sent - received < 2048, "{received} of {sent} arrived, the rest is under way");
        Ok::<_, HarnessError>(())
    })?;
    a.assert_sound();
    b.assert_sound();
    switch.alive()
}

#[test]
fn guests_are_killed_and_nobody_notices() -> Result<()> {
    kill_guests(10, "trapped")?;
    kill_guests(10, "mapped")
}

#[test]
#[ignore = "soak: fifty kills"]
fn fifty_guests_are_killed() -> Result<()> {
    kill_guests(50, "trapped")?;
    kill_guests(50, "mapped")
}
