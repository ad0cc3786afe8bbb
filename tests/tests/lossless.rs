//! Nothing is lost, doubled or reordered, however often everybody falls asleep: ten million
//! numbered frames through the program, with random pauses of sender and receiver. Nobody polls:
//! sender, switch and receiver sleep on their doorbell, and a wake-up that gets lost shows as a
//! sleep that nothing ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vmlan_driver::virtio::queues::NetHeader;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_tests::numbered::{STALL, mac};
use vmlan_tests::random::Random;
use vmlan_tests::sleep_together::Sleeper;
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};

/// Frames of the long run: `LOSSLESS_FRAMES` or ten million.
fn frames() -> u64 {
    let wanted = std::env::var("LOSSLESS_FRAMES").ok();
    wanted.map_or(10_000_000, |n| n.parse().expect("LOSSLESS_FRAMES is a number"))
}

/// How often a guest slept, and with what end.
#[derive(Debug, Default)]
struct Sleeps {
    pauses: u64,
    sleeps: u64,
}

/// Sleeps on the interrupt. Longer than anybody pauses means that a wake-up was lost.
fn sleep(own: &Sleeper, guest: &mut VirtioGuest, interest: Interest, who: &str, at: u64) {
    match own.sleep(|| guest.nic.wait(interest, STALL)).unwrap() {
        Wake::Ready => {}
        end => panic!("{who} at frame {at}: {end:?} instead of a wake-up"),
    }
}

const FRAME: usize = 60;
const NUMBER: usize = 14;

/// `own` and `other`: what this guest and its peer are doing.
fn send_all(guest: &mut VirtioGuest, to: u8, count: u64, [own, other]: [&Sleeper; 2]) -> Sleeps {
    let (mut random, mut sleeps, mut n) = (Random(0x1234_5678), Sleeps::default(), 0);
    let mut bytes = [0; FRAME];
    bytes[..6].copy_from_slice(&mac(to, 0));
    bytes[6..12].copy_from_slice(&mac(guest.id, 0));
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut next = random.stretch();
    while n < count {
        bytes[NUMBER..NUMBER + 8].copy_from_slice(&n.to_le_bytes());
        bytes[NUMBER + 8..NUMBER + 16].copy_from_slice(&(!n).to_le_bytes());
        if guest.send(0, NetHeader::default(), &bytes) {
            n += 1;
        } else {
            guest.flush();
            sleeps.sleeps += 1;
            sleep(own, guest, Interest { rx: false, tx: true }, "the sender", n);
        }
        if n >= next {
            guest.flush();
            own.sometimes_wait_for(other, &mut random);
            random.pause();
            sleeps.pauses += 1;
            next = n + random.stretch();
        } else if n % 64 == 0 {
            guest.flush();
        }
    }
    guest.flush();
    own.done();
    sleeps
}

fn receive_all(guest: &mut VirtioGuest, count: u64, [own, other]: [&Sleeper; 2]) -> Sleeps {
    let (mut random, mut sleeps, mut n) = (Random(0x8765_4321), Sleeps::default(), 0);
    let mut next = random.stretch();
    let address = mac(guest.id, 0);
    while n < count {
        let mut got = 0;
        guest.receive(|_, bytes| {
            if bytes[..6] != address {
                return;
            }
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let (number, check) = (word(NUMBER), word(NUMBER + 8));
            assert_eq!((number, check, bytes.len()), (n, !n, FRAME), "frame {n} is the next");
            (n, got) = (n + 1, got + 1);
        });
        if n >= next {
            own.sometimes_wait_for(other, &mut random);
            random.pause();
            sleeps.pauses += 1;
            next = n + random.stretch();
        } else if got == 0 && n < count {
            sleeps.sleeps += 1;
            sleep(own, guest, Interest { rx: true, tx: false }, "the receiver", n);
        }
    }
    own.done();
    sleeps
}

/// One run through a switch of its own.
fn run(name: &str, workers: &str, keys: &str, count: u64) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: &str| -> PathBuf { dir.path().join(format!("{n}.sock")) };
    let mut switch = start(dir.path(), workers, &[path("a"), path("b")])?;
    let mut a = VirtioGuest::connect(&path("a"), 1, keys);
    let mut b = VirtioGuest::connect(&path("b"), 2, keys);
    b.introduce();
    let begin = Instant::now();
    let (of_a, of_b) = (Sleeper::default(), Sleeper::default());
    let (sender, receiver) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(&mut a, 2, count, [&of_a, &of_b]));
        let receiver = receive_all(&mut b, count, [&of_b, &of_a]);
        (sender.join().expect("the sender"), receiver)
    });
    let time = begin.elapsed();
    // The last buffers come back too.
    while a.nic.pairs[0].tx.outstanding() > 0 {
        a.nic.pairs[0].tx.reap();
        assert!(begin.elapsed() < time + STALL, "transmit buffers were not given back");
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(b.receive(|_, _| {}), 0, "no frame comes twice");
    a.assert_sound();
    b.assert_sound();
    let port = switch.port("b")?;
    assert_eq!(port["drops"].as_object().map(serde_json::Map::len), Some(0), "{port}");
    let rung = a.nic.pairs[0].tx.stats().doorbells;
    println!(
        "{name}: {count} frames in {time:.1?}, doorbells {rung}, \
         sender {sender:?}, receiver {receiver:?}"
    );
    // A run in which nobody slept has shown nothing: each waited for that often.
    let least = count / 100_000;
    assert!(rung > 0 && receiver.sleeps > least && sender.sleeps > least, "too few sleeps");
    switch.alive()
}

fn start(dir: &Path, workers: &str, sockets: &[PathBuf; 2]) -> Result<Switch> {
    let [a, b] = sockets.each_ref().map(|path| path.display());
    let words = ["--full-wait", "10000000", "--workers", workers].map(str::to_owned);
    let ports = [format!("a=vhost-user:{a}"), format!("b=vhost-user:{b}")];
    Switch::start(dir, None, &[words.as_slice(), &ports].concat())
}

#[test]
fn ten_million_frames_and_none_lost() -> Result<()> {
    run("event_idx", "1", ",size=256", frames())
}

#[test]
fn nor_without_event_idx() -> Result<()> {
    run("flags", "1", ",size=256,event_idx=off,in_order=off", frames() / 5)
}

#[test]
fn nor_with_two_workers() -> Result<()> {
    run("two workers", "2", ",size=64", frames() / 5)
}
