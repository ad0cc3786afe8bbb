//! `kill -9` under native traffic: of the switch, whose guests go on with their rings as they
//! stand, and of guests, whose neighbours must not notice.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::virtio::queues::NetHeader;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_tests::killed_guest::{
    Descriptors, Pauses, guest_process, has_not_grown, holdings, wait_for,
};
use vmlan_tests::numbered::{MacBytes, STALL, Stops, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;
const NAP: Duration = Duration::from_millis(100);

/// What the threads tell each other.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// How often the sender had connected when it sent the newest frame that arrived.
    generation: AtomicU64,
    received: AtomicU64,
    repeated: AtomicU64,
    longest_gap_us: AtomicU64,
}

fn stopped(shared: &Shared) -> bool {
    shared.stop.load(Ordering::Relaxed)
}

/// 60 bytes: addresses, then number, generation, and a check of both.
fn stamped(to: MacBytes, from: MacBytes, n: u64, generation: u64) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    for (at, word) in [(14, n), (22, generation), (30, check(n, generation))] {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn check(n: u64, generation: u64) -> u64 {
    (n ^ generation.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn read_stamp(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (n, generation) = (word(14), word(22));
    assert_eq!((word(30), bytes.len()), (check(n, generation), 60), "frame {n} is whole");
    (n, generation)
}

/// Sleeps; goes on with the next switch when this one is gone. Every descriptor must be accounted
/// for then: the dead switch can neither have lost one nor given one back twice.
fn wait(guest: &mut VirtioGuest, interest: Interest) {
    if guest.nic.wait(interest, NAP).unwrap() == Wake::Disconnected {
        guest.assert_sound();
        for (ring, audit) in guest.nic.audit().iter().enumerate() {
            assert_eq!(audit.misplaced, 0, "ring {ring} of guest {}: {audit:?}", guest.id);
        }
        let gone = Instant::now();
        guest.nic.reconnect(STALL).unwrap();
        if gone.elapsed() > Duration::from_millis(300) {
            println!("guest {} was let in again after {:.1?}", guest.id, gone.elapsed());
        }
    }
}

fn send_until_stopped(guest: &mut VirtioGuest, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let mut n = 0;
    while !stopped(shared) {
        let bytes = stamped(mac(B, 0), mac(A, 0), n, guest.nic.reconnects());
        if guest.send(0, NetHeader::default(), &bytes) {
            n += 1;
            if n % 32 == 0 {
                guest.flush();
            }
        } else {
            guest.flush();
            wait(guest, Interest { rx: false, tx: true });
        }
    }
}

fn receive_until_stopped(guest: &mut VirtioGuest, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let mut next = 0_u64;
    while !stopped(shared) {
        let mut got = 0;
        guest.receive(|_, bytes| {
            let (n, generation) = read_stamp(bytes);
            if n < next {
                // Delivered, but the switch died before it gave the buffer back: the next one
                // delivers it again.
                assert!(next - n <= 1024, "frame {n} after {next}");
                shared.repeated.fetch_add(1, Ordering::Relaxed);
            }
            (next, got) = (n + 1, got + 1);
            shared.generation.store(generation, Ordering::Relaxed);
        });
        shared.received.fetch_add(got, Ordering::Relaxed);
        if got == 0 {
            wait(guest, Interest { rx: true, tx: false });
        }
    }
}

fn kill_the_switch(times: u64, keys: &str) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let ports = ["a", "b"].map(|n| format!("{n}=vhost-user:{}", path(n).display()));
    let mut switch = Switch::start(dir.path(), None, &ports)?;
    let mut b = VirtioGuest::connect(&path("b"), B, keys);
    let mut a = VirtioGuest::connect(&path("a"), A, keys);
    let shared = Shared::default();
    let silence = std::thread::scope(|scope| {
        scope.spawn(|| send_until_stopped(&mut a, &shared));
        scope.spawn(|| receive_until_stopped(&mut b, &shared));
        let _stops = Stops(&shared.stop);
        kills(&mut switch, times, &shared)
    })?;
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (received, repeated) = (count(&shared.received), count(&shared.repeated));
    println!(
        "{times} kills, {received} frames, {repeated} repeated; \
         silence, median and longest, {silence:.1?}"
    );
    assert_eq!((a.nic.reconnects(), b.nic.reconnects()), (times, times));
    a.assert_sound();
    b.assert_sound();
    Ok(())
}

/// Kills and restarts; the median and the longest time from a kill to the first frame that was sent
/// after it.
fn kills(switch: &mut Switch, times: u64, shared: &Shared) -> Result<[Duration; 2]> {
    let mut pauses = Pauses::default();
    for kill in 1..=times {
        std::thread::sleep(Duration::from_millis(30 + kill * 37 % 60));
        let begin = Instant::now();
        switch.kill9();
        switch.restart()?;
        let restarted = begin.elapsed();
        while shared.generation.load(Ordering::Relaxed) < kill {
            std::thread::sleep(Duration::from_micros(200));
            assert!(begin.elapsed() < STALL, "no traffic after kill {kill}");
            assert!(!stopped(shared), "a guest failed after kill {kill}");
        }
        pauses.add(begin.elapsed());
        if begin.elapsed() > Duration::from_millis(300) {
            println!(
                "kill {kill}: started after {restarted:.1?}, traffic after {:.1?}",
                begin.elapsed()
            );
        }
    }
    Ok(pauses.median_and_longest())
}

#[test]
fn the_switch_is_killed_and_guests_go_on() -> Result<()> {
    kill_the_switch(5, ",size=256")?;
    kill_the_switch(5, ",size=256,event_idx=off,in_order=off,indirect=on,inflight=off")?;
    // What a VMM knows of packed rings is out of date then, and their flags are all there is.
    kill_the_switch(5, ",size=256,packed=on")?;
    kill_the_switch(5, ",size=256,packed=on,event_idx=off,in_order=off,segments=4,inflight=off")
}

#[test]
#[ignore = "soak: a hundred kills"]
fn the_switch_is_killed_a_hundred_times() -> Result<()> {
    kill_the_switch(100, ",size=256")?;
    kill_the_switch(100, ",size=256,packed=on,segments=2,inflight=off")
}

/// A paced flow from A to B and another from A to C's address, as if nothing happened.
fn pace(a: &mut VirtioGuest, shared: &Shared) -> u64 {
    let _stops = Stops(&shared.stop);
    let (begin, mut n) = (Instant::now(), 0);
    while !stopped(shared) {
        let due = u64::try_from(begin.elapsed().as_micros()).unwrap() / 50;
        while n < due {
            let bytes = stamped(mac(B, 0), mac(A, 0), n, 0);
            if !a.send(0, NetHeader::default(), &bytes) {
                break;
            }
            n += 1;
        }
        a.flush();
        a.receive(|_, _| {});
        std::thread::sleep(Duration::from_micros(200));
    }
    n
}

/// Feeds whoever has C's address.
fn feed(d: &mut VirtioGuest, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let bytes = stamped(mac(C, 0), mac(4, 0), 0, 0);
    while !stopped(shared) {
        (0..20).all(|_| d.send(0, NetHeader::default(), &bytes));
        d.flush();
        d.receive(|_, _| {});
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes A's frames, all of them, one after the other.
fn take(b: &mut VirtioGuest, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let (mut next, mut last) = (0, Instant::now());
    while !stopped(shared) {
        let mut got = 0;
        b.receive(|_, bytes| {
            if bytes[..12] == [mac(B, 0), mac(A, 0)].concat() {
                let (n, _) = read_stamp(bytes);
                assert_eq!(n, next, "A's frames come one after the other");
                (next, got) = (n + 1, got + 1);
            }
        });
        if got > 0 {
            let gap = u64::try_from(last.elapsed().as_micros()).unwrap();
            shared.longest_gap_us.fetch_max(gap, Ordering::Relaxed);
            last = Instant::now();
        } else {
            wait(b, Interest { rx: true, tx: false });
        }
        shared.received.store(next, Ordering::Relaxed);
    }
}

/// Starts guest C, waits until it sends (or receives), and kills it.
fn one_kill(switch: &Switch, dir: &Path, function: &str) -> Result<()> {
    let way = if function == "tx" { "in" } else { "out" };
    let frames = |port: &serde_json::Value| port[way]["frames"].as_u64().unwrap_or(0);
    let before = frames(&switch.port("c")?);
    let mut guest = guest_process(
        dir,
        &format!("vhost-user:{}", dir.join("c.sock").display()),
        function,
        C,
        B,
    )?;
    wait_for(switch, "c", "the guest has traffic", |port| frames(port) > before + 20)?;
    guest.kill9();
    wait_for(switch, "c", "the guest is gone", |port| port["up"] == false)
}

fn kill_guests(times: u32) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let mut words = vec!["--full-wait".into(), "10000000".into()];
    words.extend(["a", "b", "c", "d"].map(|n| format!("{n}=vhost-user:{}", path(n).display())));
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut b = VirtioGuest::connect(&path("b"), B, "");
    let mut a = VirtioGuest::connect(&path("a"), A, "");
    let mut d = VirtioGuest::connect(&path("d"), 4, "");
    b.introduce();
    let shared = Shared::default();
    std::thread::scope(|scope| {
        // However this ends, the threads do.
        let stops = Stops(&shared.stop);
        let sender = scope.spawn(|| pace(&mut a, &shared));
        scope.spawn(|| take(&mut b, &shared));
        scope.spawn(|| feed(&mut d, &shared));
        // Once each, so that everything has been allocated that is allocated once.
        one_kill(&switch, dir.path(), "tx")?;
        one_kill(&switch, dir.path(), "rx")?;
        let (first, mut descriptors) = (holdings(&switch), Descriptors::of(&switch));
        let mut pauses = Pauses::default();
        shared.longest_gap_us.store(0, Ordering::Relaxed);
        for kill in 0..times {
            one_kill(&switch, dir.path(), if kill % 2 == 0 { "tx" } else { "rx" })?;
            descriptors.check(&switch, &format!("kill {kill}"));
            let gap = shared.longest_gap_us.swap(0, Ordering::Relaxed);
            pauses.add(Duration::from_micros(gap));
            assert!(!stopped(&shared), "a neighbour failed after kill {kill}");
        }
        // One guest's memory is more than 4 MiB: a map left behind would show.
        let last = has_not_grown(&switch, first, [1024, 2048]);
        let gaps = pauses.median_and_longest();
        drop(stops);
        let sent = sender.join().expect("the sender");
        let received = shared.received.load(Ordering::Relaxed);
        println!(
            "{times} kills: fds, RSS, mapped {first:?} -> {last:?} KiB; \
             {received} of {sent} frames, gaps, median and longest, {gaps:.1?}"
        );
        assert!(sent - received < 2048, "{received} of {sent} arrived, the rest is under way");
        Ok::<_, vmlan_tests::HarnessError>(())
    })?;
    a.assert_sound();
    b.assert_sound();
    switch.alive()
}

#[test]
fn guests_are_killed_and_nobody_notices() -> Result<()> {
    kill_guests(20)
}

#[test]
#[ignore = "soak: a hundred kills"]
fn a_hundred_guests_are_killed() -> Result<()> {
    kill_guests(100)
}
