//! Two guests talk. Their neighbours take their own memory away, never take a frame, send garbage
//! to their sockets, and break their rings. The two lose nothing; each attack is counted and named.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::virtio::queues::NetHeader;
use vmlan_tests::exchange::exchange;
use vmlan_tests::hostile_vhost_user::{Attack, Attacker};
use vmlan_tests::numbered::{STALL, Sizes, Stops, frame, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};

const LENGTHS: Sizes = Sizes { least: 14, most: 1514 };
/// Attacks of each kind in a row.
const ROUNDS: u32 = 5;
/// How long it goes on.
const SIEGE: Duration = Duration::from_secs(3);
/// Frames between the two that show something.
const ENOUGH: u64 = 10_000;

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Two honest guests; every frame is compared with what was sent, none may be missing.
fn talk(a: &mut VirtioGuest, b: &mut VirtioGuest, stop: &AtomicBool, frames: &AtomicU64) {
    let _stops = Stops(stop);
    while !stopped(stop) {
        exchange(a, b, 500, LENGTHS);
        frames.fetch_add(1000, Ordering::Relaxed);
    }
}

/// Sends to everybody, so that the hostile ones are delivered to as well, and to the one who never
/// takes a frame.
fn flood(guest: &mut VirtioGuest, stop: &AtomicBool) {
    let _stops = Stops(stop);
    let all = frame([0xff; 6], mac(guest.id, 0), 0, 600);
    let mute = frame(mac(4, 0), mac(guest.id, 0), 0, 600);
    while !stopped(stop) {
        for _ in 0..8 {
            guest.send(0, NetHeader::default(), &all);
            guest.send(0, NetHeader::default(), &mute);
        }
        guest.flush();
        guest.receive(|_, _| {});
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// One byte now and then, then garbage in one go, then a connection that says nothing.
fn dribble(path: &Path, stop: &AtomicBool) {
    let _stops = Stops(stop);
    let mut round = 0_u8;
    while !stopped(stop) {
        round = round.wrapping_add(1);
        let Ok(mut socket) = UnixStream::connect(path) else { continue };
        // Whatever the switch does with it, including hanging up, is its right.
        let _ = match round % 3 {
            0 => [1, 0, 0, 0, 1, 0, 0].iter().try_for_each(|byte| {
                std::thread::sleep(Duration::from_millis(10));
                socket.write_all(&[*byte])
            }),
            1 => socket.write_all(&[0xa5; 9000]),
            _ => socket.write_all(&[5, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]),
        };
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Attacks; each time the port must count it: as a fault, or as a frame dropped for its pieces.
fn assault(switch: &Switch, path: &Path, port: &str, id: u8, attack: Attack) -> Result<()> {
    let counted = || {
        let port = switch.port(port)?;
        let count = if matches!(attack, Attack::Pieces | Attack::Loop) {
            &port["drops"]["too-long"]
        } else {
            &port["faults"]
        };
        Ok::<_, vmlan_tests::HarnessError>(count.as_u64().unwrap_or(0))
    };
    for round in 0..ROUNDS {
        let end = Instant::now() + STALL;
        let before = counted()?;
        let vm = loop {
            match Attacker::connect(path, id) {
                Ok(vm) => break vm,
                Err(e) => assert!(Instant::now() < end, "{attack:?} {round}: not let in: {e}"),
            }
        };
        vm.attack(attack).unwrap();
        while counted()? == before {
            assert!(Instant::now() < end, "{attack:?} {round} was not noticed");
        }
    }
    Ok(())
}

/// All attacks, over and over, for [`SIEGE`], and until there was `enough` to show something.
fn attack(
    switch: &Switch,
    socket: impl Fn(&str) -> std::path::PathBuf,
    enough: impl Fn() -> bool,
) -> Result<()> {
    const RING: [Attack; 6] = [
        Attack::Pieces,
        Attack::Jump,
        Attack::Loop,
        Attack::Index,
        Attack::Outside,
        Attack::Writable,
    ];
    let end = Instant::now() + SIEGE;
    let late = end + STALL;
    while Instant::now() < end || !enough() && Instant::now() < late {
        assault(switch, &socket("shrinks"), "shrinks", 6, Attack::Truncate)?;
        RING.iter().try_for_each(|a| assault(switch, &socket("breaks"), "breaks", 7, *a))?;
    }
    Ok(())
}

#[test]
fn hostile_neighbours_harm_nobody() -> Result<()> {
    for workers in ["1", "2"] {
        neighbours(workers)?;
    }
    Ok(())
}

fn neighbours(workers: &str) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let names = ["a", "b", "floods", "mute", "dribbles", "shrinks", "breaks"];
    let mut words = ["--full-wait", "10000000", "--workers", workers].map(str::to_owned).to_vec();
    words.extend(names.map(|name| format!("{name}=vhost-user:{}", socket(name).display())));
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = VirtioGuest::connect(&socket("a"), 1, "");
    let mut b = VirtioGuest::connect(&socket("b"), 2, "");
    let mut floods = VirtioGuest::connect(&socket("floods"), 3, "");
    let mut mute = VirtioGuest::connect(&socket("mute"), 4, "");
    assert!(mute.send(0, NetHeader::default(), &frame([0xff; 6], mac(4, 0), 0, 60)));
    mute.flush();
    exchange(&mut a, &mut b, 10, LENGTHS);
    let (stop, frames) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| talk(&mut a, &mut b, &stop, &frames));
        scope.spawn(|| flood(&mut floods, &stop));
        scope.spawn(|| dribble(&socket("dribbles"), &stop));
        let stops = Stops(&stop);
        let done = attack(&switch, socket, || frames.load(Ordering::Relaxed) > ENOUGH);
        drop(stops);
        pair.join().expect("the pair loses nothing");
        done
    })?;
    let moved = frames.load(Ordering::Relaxed);
    println!(
        "{workers} workers: {moved} frames between a and b in {:.1?}, none lost",
        begin.elapsed()
    );
    assert!(moved > ENOUGH, "too little to show anything");
    verdict(&switch)?;
    switch.alive()
}

/// Every attacker is counted, and the log names it.
fn verdict(switch: &Switch) -> Result<()> {
    for name in ["a", "b", "floods", "mute"] {
        assert_eq!(switch.port(name)?["faults"], 0, "{name} did nothing wrong");
    }
    for (name, least) in [("dribbles", 3), ("shrinks", ROUNDS), ("breaks", 4 * ROUNDS)] {
        let port = switch.port(name)?;
        assert!(port["faults"].as_u64() >= Some(least.into()), "{port}");
        let named = format!("WARN  port {name}: ");
        let lines = switch.log().lines().filter(|line| line.contains(&named)).count();
        assert!(lines > 0, "no line of the log names {name}:\n{}", switch.log());
    }
    let mute = switch.port("mute")?;
    assert!(mute["drops"]["receiver-full"].as_u64() > Some(0), "{mute}");
    Ok(())
}

/// Frames of a joint breath lie in pages that their sender has paid for before they are delivered
/// with others': also the last page of a frame that reaches into one.
#[test]
fn pages_of_a_batch_are_there_when_it_was_touched() {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use vmlan_frame::{Batch, Offload};
    use vmlan_ram::{Map, Mapping, Region};
    // Far from each other: a page may be a huge one.
    const FAR: u64 = 2 << 20;
    const SIZE: u64 = 4 * FAR;
    let file = rustix::fs::memfd_create("batch", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, SIZE).unwrap();
    let is_there = |at| rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) == Ok(at);
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, SIZE).unwrap());
    let map = Map::new(vec![Region::new(0, SIZE, 0, 0, mapping).unwrap()], None).unwrap();
    let mut batch = Batch::new();
    // What is behind the first head ends in another page than it begins in.
    for (body, len) in [(2 * FAR - 256, 1386), (3 * FAR, 100)] {
        let pieces = [map.slice(0, 128).unwrap(), map.slice(body, len).unwrap()];
        batch.add(&pieces, Offload::NONE).unwrap();
    }
    let pages = [2 * FAR - 4096, 2 * FAR, 3 * FAR];
    assert_eq!((is_there(0), pages.map(is_there)), (true, [false; 3]), "heads were copied");
    batch.touch();
    assert_eq!(pages.map(is_there), [true; 3]);
}
