//! Floods, after which nothing may have grown. One at a time: they count the whole process.

mod common;

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::*;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn inflight_flood_holds_no_descriptor() {
    let _alone = alone();
    let f = Fixture::new();
    let mut raw = f.ready();
    let mut body = words(&[0, 0]);
    body.extend([4, 0, 0, 1, 0, 0, 0, 0]);
    let sum = |raw: &mut Raw| {
        raw.send(31, 1, &body, &[]);
        raw.reply().map(|(_, body)| body.len())
    };
    assert_eq!(sum(&mut raw), Some(24));
    let (fds, rss) = (open_fds(), rss_kib());
    for _ in 0..2000 {
        // read() throws the descriptor away, so only ours would be left.
        assert_eq!(sum(&mut raw), Some(24));
    }
    assert!(open_fds() <= fds + 1, "{} then {}", fds, open_fds());
    assert!(rss_kib() < rss + 4096);
}

/// xorshift64: the same stream each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// One hostile message: usually a known request of a likely size, with numbers near the edges.
fn nasty(dice: &mut Dice) -> (Vec<u8>, usize) {
    let number = u32::try_from(if dice.roll(16) == 0 { dice.roll(1 << 32) } else { dice.roll(44) });
    let number = number.unwrap();
    let sizes = [0, 8, 8, 8, 16, 20, 24, 40, 40, 40, 72, 264, 4096];
    let size = sizes[usize::try_from(dice.roll(sizes.len() as u64)).unwrap()];
    let mut body = vec![0; size];
    for word in body.chunks_mut(4) {
        let value: u32 = match dice.roll(6) {
            0 => 0,
            1 => 1,
            2 => u32::try_from(dice.roll(8)).unwrap(),
            3 => 4096,
            4 => u32::MAX,
            _ => u32::try_from(dice.roll(1 << 32)).unwrap(),
        };
        word.copy_from_slice(&value.to_ne_bytes()[..word.len()]);
    }
    let flags =
        if dice.roll(64) == 0 { u32::try_from(dice.roll(16)).unwrap() } else { 1 | NEED_REPLY };
    // Few, as a port may send 500 in a second.
    let fds = if dice.roll(32) == 0 { dice.roll(10) } else { 0 };
    (message(number, flags, &body), usize::try_from(fds).unwrap())
}

#[test]
fn a_hundred_thousand_hostile_messages_leave_nothing_behind() {
    let _alone = alone();
    // Each lets few in that move no frames.
    let ports: [_; 8] = std::array::from_fn(|_| Fixture::new());
    let guest = Guest::new();
    let file = memfd(1 << 20);
    let pool = [guest.kick_fd(), file.as_raw_fd(), guest.ram.raw_fd(), guest.call_fd()];
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut sent = 0;
    let (mut fds, mut rss) = (0, 0);
    for f in ports.iter().cycle() {
        if sent >= 100_000 {
            break;
        }
        until("free", || f.detail("state").contains("waiting"));
        if sent >= 10_000 && fds == 0 {
            (fds, rss) = (open_fds(), rss_kib());
        }
        let mut raw = f.connect();
        raw.negotiate();
        raw.sock.set_nonblocking(true).unwrap();
        for _ in 0..2000 {
            let (bytes, count) = nasty(&mut dice);
            let offered: Vec<RawFd> =
                (0..count).map(|_| pool[usize::try_from(dice.roll(4)).unwrap()]).collect();
            match vmlan_transport::sys::send_with_fds(raw.sock.as_fd(), &bytes, &offered) {
                Ok(n) if n == bytes.len() => sent += 1,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => break,
            }
            let mut rest = [0; 4096];
            while std::io::Read::read(&mut raw.sock, &mut rest).is_ok_and(|n| n > 0) {}
        }
    }
    until("descriptors are back", || open_fds() <= fds);
    assert!(rss_kib() < rss + 8192, "{} KiB then {} KiB", rss, rss_kib());
    ports.iter().for_each(Fixture::assert_alive);
}

#[test]
fn disconnects_at_every_step_leave_nothing_behind() {
    let _alone = alone();
    let f = Fixture::new();
    let guest = Guest::new();
    let steps: &[&dyn Fn(&mut Raw)] = &[
        &|raw| raw.bytes(&[1, 0, 0], &[]).unwrap(),
        &|raw| raw.negotiate(),
        &|raw| guest.give_memory(raw),
        &|raw| guest.start_ring(raw, 0),
        &|raw| guest.start_ring(raw, 1),
        &|raw| raw.send(11, 1, &halves(&[0, 0]), &[]),
        &|raw| raw.bytes(&message(12, 1, &words(&[0]))[..14], &[guest.kick_fd()]).unwrap(),
    ];
    let mut fds = 0;
    for round in 0..20 {
        for last in 1..=steps.len() {
            until("free", || f.detail("state").contains("waiting"));
            assert!(!f.is_up());
            assert_eq!(f.door.vhost_port().kicks().len(), 0);
            let mut raw = f.connect();
            until("served", || f.detail("state") == "connected");
            // Half a header only as the last thing said.
            for step in steps[usize::from(last > 1)..last].iter() {
                step(&mut raw);
            }
        }
        until("free", || f.detail("state").contains("waiting"));
        if round == 0 {
            fds = open_fds();
        }
        until("descriptors are back", || open_fds() <= fds);
    }
    f.assert_alive();
}

#[test]
fn ports_come_and_go_and_leave_nothing_behind() {
    let _alone = alone();
    // Of ports: the other tests' come and go.
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        tasks.filter_map(|task| name(task).ok()).filter(|name| name.trim() == "vhost-user").count()
    };
    let mut before = 0;
    for round in 0..100 {
        let f = Fixture::new();
        let mut raw = f.ready();
        Guest::new().start(&mut raw);
        let dir = f.dir.path().to_owned();
        let Fixture { dir: keep, door, .. } = f;
        assert!(threads() > 0, "it has a thread of that name");
        drop(door);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "the socket is gone");
        assert!(raw.is_closed());
        drop((keep, raw));
        if round == 0 {
            // What the process keeps from its first port on is open.
            until("threads are gone", || threads() == 0);
            before = open_fds();
        }
    }
    until("threads are gone", || threads() == 0);
    until("descriptors are back", || open_fds() <= before);
}

/// How often the threads of all ports fell asleep so far.
fn wake_ups() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let named = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "vhost-user")
    };
    let switches = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.filter(named).map(switches).sum()
}

#[test]
fn a_hundred_idle_ports_use_no_cpu() {
    let _alone = alone();
    // A dozen for each port and its client: more than the 1,024 that a user has at first. Where
    // more is not to be had, fewer ports.
    set_fd_limit(4096);
    let ports = (set_fd_limit(4096) / 16).min(100);
    let ports: Vec<_> = (0..ports).map(|_| Fixture::new()).collect();
    let guest = Guest::new();
    let raws: Vec<_> = ports
        .iter()
        .map(|f| {
            let mut raw = f.ready();
            guest.start(&mut raw);
            raw
        })
        .collect();
    // What was still under way at first is over sooner or later. Then none of them wakes up at all.
    until("they sleep", || {
        let before = wake_ups();
        std::thread::sleep(std::time::Duration::from_secs(2));
        wake_ups() == before
    });
    drop(raws);
}

#[test]
fn without_a_descriptor_left_accepting_pauses_and_goes_on_later() {
    let _alone = alone();
    log_lines();
    let f = Fixture::new();
    // The lowest number that is free: with this limit nothing else is.
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let limit = set_fd_limit(u64::try_from(free).unwrap() + 1);
    // This takes the last one; the port has none to accept it with.
    let begin = std::time::Instant::now();
    let connected = std::os::unix::net::UnixStream::connect(f.path());
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let spins = accepts_without_pause(&f.path(), begin);
    let state = f.detail("state");
    set_fd_limit(limit);
    assert!(state.contains("waiting"), "{state}");
    assert!(!spins);
    let mut raw = Raw::new(connected.unwrap());
    raw.negotiate();
}
