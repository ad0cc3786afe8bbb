//! What a hostile front end can send. It harms itself at most. `docs/known-faults.md` says which
//! other back ends had these faults.

mod common;

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use common::*;
use vmlan_attach::Files;
use vmlan_frame::{Batch, Sink};
use vmlan_keeper::MAX_FDS;

struct Nobody;
impl Sink for Nobody {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

fn pull(f: &Fixture) -> usize {
    f.door.port().pull(0, &mut Batch::new(), 256, &mut Nobody)
}

#[test]
fn wrong_version_reply_flag_and_oversize_end_the_connection() {
    let f = Fixture::new();
    for (flags, size) in [(0, 0), (2, 0), (3, 0), (5, 0), (1, 4097), (1, u32::MAX)] {
        until("free", || f.detail("state").contains("waiting"));
        let mut raw = f.connect();
        raw.bytes(&halves(&[1, flags, size]), &[]).unwrap();
        assert!(raw.is_closed(), "flags {flags:#x} size {size}");
    }
    assert_eq!(f.faults(), 6);
    f.assert_alive();
}

#[test]
fn every_request_with_every_wrong_size_or_fd_count_is_refused_and_leaks_nothing() {
    let f = Fixture::new();
    let file = memfd(4096);
    let (mut refused, mut open) = (0, None::<Raw>);
    for number in 0..64u32 {
        for size in [0usize, 1, 7, 8, 9, 16, 20, 40, 41, 300, 4096] {
            for count in [0usize, 1, 2, 8, 9, 16] {
                // Every case would take long: a port may send 500 descriptors in a second.
                if size != 8 && count > 2 && number % 7 != 0 {
                    continue;
                }
                let mut raw = open.take().unwrap_or_else(|| f.ready_or_wait());
                let fds: Vec<RawFd> = vec![file.as_raw_fd(); count];
                let answer = raw.ask(number, &vec![0xa5; size], &fds);
                refused += u64::from(answer != Some(0));
                // A refusal keeps it open.
                open = (answer == Some(1)).then_some(raw);
            }
        }
    }
    drop(open);
    assert!(refused > 1000, "{refused}");
    until("free", || f.detail("state").contains("waiting"));
    until("descriptors are back", || fds_of(&file) == 1);
    f.assert_alive();
}

trait ReadyOrWait {
    fn ready_or_wait(&self) -> Raw;
}

impl ReadyOrWait for Fixture {
    /// The front end before may still be on its way out: one at a time.
    fn ready_or_wait(&self) -> Raw {
        until("free", || self.detail("state").contains("waiting"));
        self.ready()
    }
}

#[test]
fn ring_numbers_are_checked_in_full_width() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    for ring in [8u32, 0x100, 0x1_0000, 0x1_0001, u32::MAX] {
        assert_eq!(raw.set_num(ring, 64), Some(1));
        assert_eq!(raw.set_addr(ring, 0, 0, 0), Some(1));
        assert_eq!(raw.enable(ring, true), Some(1));
        assert_eq!(raw.ask(10, &halves(&[ring, 0]), &[]), Some(1), "SET_VRING_BASE");
    }
    assert_eq!(raw.ask(10, &halves(&[0, 0x1_0000]), &[]), Some(1), "a base of 17 bits");
    for value in [8u64, 0xff, 0x200, 0x1_0000_0000] {
        assert_eq!(raw.ask(12, &words(&[value]), &[guest.kick_fd()]), Some(1), "{value:#x}");
        assert_eq!(raw.ask(13, &words(&[value]), &[guest.call_fd()]), Some(1), "{value:#x}");
        assert_eq!(raw.ask(14, &words(&[value]), &[guest.call_fd()]), Some(1), "{value:#x}");
    }
    for num in [0u32, 3, 65, 0x8001, 0x1_0000, 0x1_0040] {
        assert_eq!(raw.set_num(0, num), Some(1), "size {num}");
    }
    assert_eq!(raw.set_num(0, 0x8000), Some(0));
}

#[test]
fn get_vring_base_of_no_ring_ends_the_connection() {
    let f = Fixture::new();
    let mut raw = f.ready();
    assert_eq!(raw.base(0x1_0000), None, "an answer of its own kind cannot say no");
    f.assert_alive();
}

fn inflight_body(size: u64, offset: u64, queues: u16, ring: u16) -> Vec<u8> {
    let mut body = words(&[size, offset]);
    body.extend(queues.to_ne_bytes());
    body.extend(ring.to_ne_bytes());
    body.extend([0; 4]);
    body
}

#[test]
fn inflight_numbers_are_checked() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let file = sealed(1 << 20);
    let fd = [file.as_raw_fd()];
    let good = 8 * (16 + 16 * 256u64).next_multiple_of(64);
    for (size, offset, queues, ring) in [
        (good, 0, 9, 256),
        (good, 0, 0, 256),
        (good, 0, u16::MAX, 256),
        (good, 0, 8, 0),
        (good, 0, 8, 0x8001),
        (good - 1, 0, 8, 256),
        (0, 0, 8, 256),
        (u64::MAX, 0, 8, 256),
        (good, u64::MAX, 8, 256),
        (good, 1 << 20, 8, 256),
        (good << 8, 0, 8, 256),
    ] {
        let body = inflight_body(size, offset, queues, ring);
        assert_eq!(raw.ask(32, &body, &fd), Some(1), "{size} {offset} {queues} {ring}");
    }
    assert_eq!(raw.ask(32, &inflight_body(good, 0, 8, 256), &fd), Some(0));
    assert_eq!(raw.ask(32, &inflight_body(good, 0, 8, 256)[..20], &fd), Some(0));
}

#[test]
fn get_inflight_numbers_are_checked() {
    for (queues, ring) in [(9, 256), (0, 256), (u16::MAX, u16::MAX), (2, 0), (2, 0x8001)] {
        let f = Fixture::new();
        let mut raw = f.ready();
        raw.send(31, 1, &inflight_body(0, 0, queues, ring), &[]);
        assert!(raw.reply().is_none(), "{queues} {ring}");
    }
}

#[test]
fn inflight_fds_where_none_belong_are_closed() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let file = sealed(4096);
    for _ in 0..300 {
        assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[file.as_raw_fd(); 3]), Some(1));
        assert_eq!(raw.ask(32, &inflight_body(4096, 0, 1, 64), &[file.as_raw_fd(); 2]), Some(1));
    }
    assert_eq!(fds_of(&file), 1);
}

#[test]
fn short_files_and_bad_sizes_are_refused() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let file = memfd(1 << 20);
    let fd = file.as_raw_fd();
    for region in [
        [0, 2 << 20, 0, 0],
        [0, 1 << 20, 0, 4096],
        [0, 0, 0, 0],
        [0, u64::MAX, 0, 0],
        [0, 4096, 0, u64::MAX],
        [0, 4096, 0, u64::MAX - 4095],
        [u64::MAX, 4096, 0, 0],
        [0, 4096, u64::MAX, 0],
        [0, 1 << 63, 0, 0],
    ] {
        assert_eq!(raw.add_region(region, fd), Some(1), "{region:x?}");
        let mut body = halves(&[1, 0]);
        body.extend(words(&region));
        assert_eq!(raw.ask(5, &body, &[fd]), Some(1), "{region:x?}");
    }
    assert_eq!(raw.add_region([0, 1 << 20, 0x7000_0000, 0], fd), Some(0));
    assert_eq!(raw.add_region([1 << 19, 4096, 0x1000, 0], fd), Some(1), "overlap");
    assert_eq!(f.detail("memory"), "1 MiB", "what was refused changed nothing");
}

/// A worker that touches a page of such memory waits for the disk, and its other ports with it.
#[test]
fn memory_on_a_disk_is_refused_unless_the_port_allows_it() {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(4096).unwrap();
    if rustix::fs::fcntl_get_seals(&file).is_ok() {
        eprintln!("not tested: the target directory is in memory");
        return;
    }
    let ask = |memory| {
        let f = Fixture::with(|config| config.memory = memory);
        f.ready().add_region([0, 4096, 0, 0], file.as_raw_fd())
    };
    let _ = log_lines();
    assert_eq!(ask(Files::Ram), Some(1));
    until("one line says what to do", || {
        log_lines().iter().any(|l| l.contains("not in memory") && l.contains("memory=disk"))
    });
    let disks = [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC];
    if disks.contains(&rustix::fs::fstatfs(&file).unwrap().f_type) {
        assert_eq!(ask(Files::Disk), Some(0));
    }
}

#[test]
fn memory_tables_that_contradict_themselves_are_refused() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let file = memfd(1 << 20);
    let fd = file.as_raw_fd();
    let region = words(&[0, 4096, 0x1000, 0]);
    let body = |count: u32, regions: usize| {
        let mut body = halves(&[count, 0]);
        (0..regions).for_each(|_| body.extend(&region));
        body
    };
    for (count, regions, fds) in
        [(2, 1, 1), (1, 2, 2), (1, 1, 0), (1, 1, 2), (9, 8, 8), (u32::MAX, 1, 1), (0, 1, 1)]
    {
        assert_eq!(raw.ask(5, &body(count, regions), &vec![fd; fds]), Some(1));
    }
    assert_eq!(raw.ask(5, &body(1, 1), &[fd]), Some(0));
    assert_eq!(raw.ask(38, &words(&[0, 0, 8192, 0x1000, 0]), &[]), Some(1), "no such region");
    assert_eq!(raw.ask(38, &words(&[0, 0, 4096, 0x1000, 0]), &[]), Some(0));
    assert_eq!(raw.ask(5, &body(0, 0), &[]), Some(0), "no memory at all is allowed");
}

#[test]
fn the_65th_region_and_absurd_amounts_are_refused() {
    let f = Fixture::new();
    let mut raw = f.ready();
    assert_eq!(raw.get(36, &[]), Some(64), "GET_MAX_MEM_SLOTS");
    let file = memfd(1 << 20);
    for i in 0..65u64 {
        let answer = raw.add_region([i << 12, 4096, i << 12, 0], file.as_raw_fd());
        assert_eq!(answer, Some(u64::from(i == 64)), "region {i}");
    }
    let huge = memfd(16 << 40);
    assert_eq!(raw.add_region([1 << 45, 16 << 40, 1 << 45, 0], huge.as_raw_fd()), Some(1));
}

#[test]
fn memory_that_is_no_mappable_file_is_refused() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let guest = Guest::new();
    let null = std::fs::File::open("/dev/null").unwrap();
    let read_only = std::fs::File::open("/proc/self/exe").unwrap();
    let dir = std::fs::File::open("/").unwrap();
    let fds = [guest.kick_fd(), null.as_raw_fd(), read_only.as_raw_fd(), dir.as_raw_fd()];
    for fd in fds.into_iter().chain([raw.sock.as_raw_fd()]) {
        assert_eq!(raw.add_region([0, 4096, 0x1000, 0], fd), Some(1));
    }
}

#[test]
fn a_ring_larger_than_its_inflight_part_does_not_start() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.give_memory(&mut raw);
    let file = sealed(1 << 16);
    let body = inflight_body(4 * 320, 0, 4, 16);
    assert_eq!(raw.ask(32, &body, &[file.as_raw_fd()]), Some(0));
    let [desc, used, avail] = guest.ring_addr(0);
    assert_eq!(raw.set_num(0, 64), Some(0));
    assert_eq!(raw.set_addr(0, desc, used, avail), Some(0));
    assert_eq!(raw.kick(0, guest.kick_fd()), Some(1), "64 descriptors, room for 16");
    assert_eq!(raw.set_num(0, 16), Some(0));
    assert_eq!(raw.kick(0, guest.kick_fd()), Some(0));
    assert_eq!(raw.set_num(0, 64), Some(1), "started now");
    assert_eq!(raw.ask(32, &body, &[file.as_raw_fd()]), Some(1), "rings are started");
}

#[test]
fn more_fds_than_fit_end_the_connection_and_leak_nothing() {
    let f = Fixture::new();
    let file = memfd(4096);
    for _ in 0..50 {
        let mut raw = f.ready_or_wait();
        // The driver's half sends as many at once as fit.
        let bytes = message(5, 1 | NEED_REPLY, &halves(&[0, 0]));
        raw.bytes(&bytes[..4], &[file.as_raw_fd(); MAX_FDS / 2]).unwrap();
        let _ = raw.bytes(&bytes[4..], &[file.as_raw_fd(); MAX_FDS / 2 + 1]);
        assert!(raw.is_closed());
    }
    until("free", || f.detail("state").contains("waiting"));
    until("descriptors are back", || fds_of(&file) == 1);
}

#[test]
fn fds_spread_over_a_dribbled_message_are_counted_together() {
    let f = Fixture::new();
    let file = memfd(4096);
    let mut raw = f.ready();
    let bytes = message(8, 1 | NEED_REPLY, &halves(&[0, 64]));
    for byte in &bytes[..8] {
        raw.bytes(&[*byte], &[file.as_raw_fd()]).unwrap();
    }
    raw.bytes(&bytes[8..], &[]).unwrap();
    assert_eq!(raw.reply().unwrap().1, words(&[1]), "8 descriptors where none belong");
    assert_eq!(fds_of(&file), 1);
    for byte in &bytes {
        if raw.bytes(&[*byte], &[file.as_raw_fd(); 2]).is_err() {
            break;
        }
    }
    assert!(2 * bytes.len() > MAX_FDS && raw.is_closed());
    until("descriptors are back", || fds_of(&file) == 1);
}

#[test]
fn a_dribbled_message_is_whole_in_the_end_and_has_a_deadline() {
    let f = Fixture::new();
    let mut raw = f.ready();
    for byte in message(8, 1 | NEED_REPLY, &halves(&[0, 64])) {
        raw.bytes(&[byte], &[]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(raw.reply().unwrap().1, words(&[0]));
    // Silent between messages for longer than the deadline, then stuck within one.
    let idle = f.changes.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(5500));
    let changes = f.changes.load(std::sync::atomic::Ordering::SeqCst) - idle;
    assert!(changes <= 1, "{changes}: what was said before is told after its reply");
    let start = Instant::now();
    raw.bytes(&message(8, 1, &halves(&[0, 64]))[..15], &[]).unwrap();
    assert!(raw.is_closed());
    let took = start.elapsed();
    assert!(took > Duration::from_secs(4), "{took:?}");
    f.assert_alive();
}

#[test]
fn a_front_end_that_never_reads_is_dropped_in_time() {
    let f = Fixture::new();
    let raw = f.ready();
    raw.sock.set_nonblocking(true).unwrap();
    let ask = message(1, 1, &[]);
    let start = Instant::now();
    // Until our side no longer takes any: its replies fill the socket, and it waits for room.
    while f.detail("state").contains("connected") && start.elapsed() < PATIENCE {
        let _ = vmlan_transport::sys::send_with_fds(std::os::fd::AsFd::as_fd(&raw.sock), &ask, &[]);
    }
    let took = start.elapsed();
    assert!(took < PATIENCE, "{took:?}");
    f.assert_alive();
}

#[test]
fn unknown_requests_are_refused_or_ignored_and_the_connection_goes_on() {
    let f = Fixture::new();
    let mut raw = f.ready();
    for number in [0, 21, 22, 24, 25, 26, 27, 28, 29, 30, 33, 35, 41, 42, 43, 100, u32::MAX] {
        assert_eq!(raw.ask(number, &[0; 32], &[]), Some(1), "{number}");
        raw.send(number, 1, &[0; 32], &[]);
    }
    assert_eq!(raw.get(40, &[]), Some(0));
}

#[test]
fn requests_of_features_not_negotiated_are_refused() {
    for (number, size, fds) in [(36, 0, 0), (37, 40, 1), (40, 0, 0), (6, 16, 1), (34, 0, 0)] {
        let f = Fixture::new();
        let mut raw = f.connect();
        let file = memfd(4096);
        raw.send(number, 1, &vec![0; size], &vec![file.as_raw_fd(); fds]);
        assert!(raw.is_closed(), "{number}");
    }
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let offered = raw.get(1, &[]).unwrap();
    for bit in 0..64 {
        let answer = raw.ask(2, &words(&[1 << bit | F_PROTOCOL]), &[]);
        assert_eq!(answer, Some(u64::from(offered >> bit & 1 == 0)), "bit {bit}");
        let answer = raw.ask(16, &words(&[PROTOCOL_ALL | 1 << bit]), &[]);
        assert_eq!(answer, Some(u64::from(PROTOCOL_ALL >> bit & 1 == 0)), "protocol bit {bit}");
    }
}

#[test]
fn a_doorbell_that_is_no_eventfd_is_refused() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    let file = memfd(4096);
    let (pipe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    for fd in [file.as_raw_fd(), pipe.as_raw_fd()] {
        assert_eq!(raw.kick(0, fd), Some(1));
        assert_eq!(raw.call(0, fd), Some(1));
        assert_eq!(raw.ask(14, &words(&[0]), &[fd]), Some(1));
    }
    assert_eq!(raw.ask(12, &words(&[0x100]), &[]), Some(1), "a polled ring");
    assert_eq!(raw.ask(13, &words(&[0x100]), &[]), Some(0), "no interrupt is allowed");
    assert_eq!(raw.ask(13, &words(&[0x100]), &[guest.call_fd()]), Some(1));
    assert_eq!(raw.ask(13, &words(&[0]), &[]), Some(1));
}

#[test]
fn rings_outside_memory_do_not_start() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.give_memory(&mut raw);
    let [desc, used, avail] = guest.ring_addr(0);
    let end = guest.ram.user_addr(guest.ram.buffers());
    assert_eq!(raw.set_num(0, NUM), Some(0));
    for addr in [
        [0, used, avail],
        [desc, 0, avail],
        [desc, used, u64::MAX],
        [end - 16, used, avail],
        [desc, end - 4, avail],
        [desc, used, end - 2],
        [desc + 1, used, avail],
        [desc, used + 1, avail],
        [desc, used, avail + 1],
    ] {
        assert_eq!(raw.set_addr(0, addr[0], addr[1], addr[2]), Some(0));
        assert_eq!(raw.kick(0, guest.kick_fd()), Some(1), "{addr:x?}");
        assert!(!f.is_up());
    }
    assert_eq!(raw.set_addr(0, desc, used, avail), Some(0));
    assert_eq!(raw.kick(0, guest.kick_fd()), Some(0));
}

#[test]
fn kicks_and_enables_before_anything_else_are_harmless() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    assert_eq!(raw.enable(0, true), Some(0));
    assert_eq!(raw.kick(0, guest.kick_fd()), Some(0));
    guest.kick.signal();
    assert_eq!(pull(&f), 0);
    assert!(!f.is_up());
    let [desc, used, avail] = guest.ring_addr(0);
    assert_eq!(raw.set_num(0, NUM), Some(0));
    assert_eq!(raw.set_addr(0, desc, used, avail), Some(1), "no memory yet");
    guest.give_memory(&mut raw);
    assert!(f.is_up(), "the ring started when the last part came");
}

#[test]
fn a_started_ring_keeps_its_size_and_place() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let [desc, used, avail] = guest.ring_addr(0);
    assert_eq!(raw.set_num(0, NUM * 2), Some(1));
    assert_eq!(raw.set_num(0, NUM), Some(0), "the same again");
    assert_eq!(raw.set_addr(0, desc + 4096, used, avail), Some(1));
    assert_eq!(raw.set_addr(0, desc, used, avail), Some(0));
    assert_eq!(raw.ask(10, &halves(&[0, 0]), &[]), Some(1));
    assert_eq!(raw.ask(2, &words(&[F_PROTOCOL]), &[]), Some(1), "features");
    assert_eq!(raw.ask(2, &words(&[F_PROTOCOL | VERSION_1]), &[]), Some(0));
    assert_eq!(raw.ask(2, &words(&[F_PROTOCOL | VERSION_1 | 1 << 26]), &[]), Some(0), "log");
    assert!(f.is_up());
    assert_eq!(raw.base(0), Some(0));
    assert!(!f.is_up());
    assert_eq!(raw.set_num(0, NUM * 2), Some(0));
}

#[test]
fn log_sizes_and_offsets_are_checked() {
    let f = Fixture::new();
    let file = memfd(8192);
    for (size, offset) in
        [(0, 0), (8193, 0), (8192, 1), (u64::MAX, 4096), (4096, u64::MAX), (1 << 40, 0)]
    {
        let mut raw = f.ready_or_wait();
        raw.send(6, 1, &words(&[size, offset]), &[file.as_raw_fd()]);
        assert_eq!(raw.reply(), None, "size {size} offset {offset}");
    }
    let mut raw = f.ready_or_wait();
    for body in [[4096, 4096], [100, 5]] {
        raw.send(6, 1, &words(&body), &[file.as_raw_fd()]);
        assert_eq!(raw.reply(), Some((6, words(&body))), "answered in kind, unaligned too");
    }
}

#[test]
fn a_file_truncated_under_use_costs_its_own_port_only() {
    vmlan_ram::sigbus::install().unwrap();
    let (f, other) = (Fixture::new(), Fixture::new());
    let (guest, neighbour) = (Guest::new(), Guest::new());
    let mut calm = other.ready();
    neighbour.start(&mut calm);
    let mut raw = f.ready();
    let file = memfd(1 << 20);
    assert_eq!(raw.add_region([0, 1 << 20, 0x1_0000_0000, 0], file.as_raw_fd()), Some(0));
    for ring in [0u32, 1] {
        let at = 0x1_0000_0000 + u64::from(ring) * 0x3000;
        assert_eq!(raw.set_num(ring, NUM), Some(0));
        assert_eq!(raw.set_addr(ring, at, at + 0x2000, at + 0x1000), Some(0));
        assert_eq!(raw.kick(ring, guest.kick_fd()), Some(0));
        assert_eq!(raw.enable(ring, true), Some(0));
    }
    assert!(f.is_up());
    file.set_len(0).unwrap();
    pull(&f);
    assert!(!f.is_up());
    assert!(raw.is_closed(), "the connection ends");
    assert_eq!(pull(&other), 0);
    assert!(other.is_up());
    assert_eq!(calm.get(40, &[]), Some(0));
    f.assert_alive();
    assert!(f.faults() > 0);
}

#[test]
fn a_guest_that_breaks_its_ring_is_quarantined_until_the_ring_starts_afresh() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let err = vmlan_transport::sys::EventFd::new().unwrap();
    let fd = std::os::fd::AsFd::as_fd(&err).as_raw_fd();
    assert_eq!(raw.ask(14, &words(&[1]), &[fd]), Some(0));
    let path = f.path().display().to_string();
    let is_ours = |line: &String| line.contains(&path) && line.contains("avail index");
    let logged = || log_lines().iter().filter(|line| is_ours(line)).count();
    assert_eq!(logged(), 0);
    for times in 1..=2 {
        // An avail index far beyond the ring.
        guest.ram.write(guest.ring_at(1) + 4096 + 2, &1000u16.to_le_bytes());
        assert_eq!(pull(&f), 0);
        assert!(!f.is_up());
        until("the reason is shown", || f.detail("state").contains("avail index"));
        until("the front end is told", || err.take() > 0);
        until("so is the log", || logged() == times);
        assert!(f.faults() > 0);
        assert!(!f.door.port().arm(0), "nothing to stay awake for");
        assert!(f.door.port().is_connected(), "a guest that stops its port is the same peer");
        guest.ram.write(guest.ring_at(1) + 4096 + 2, &0u16.to_le_bytes());
        assert_eq!(raw.base(1), Some(0));
        guest.start_ring(&mut raw, 1);
        assert!(f.is_up(), "forgiven");
        assert_eq!(f.detail("state"), "up", "and forgotten");
    }
}

#[test]
fn refusals_hold_no_lock() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    for _ in 0..100 {
        assert_eq!(raw.set_num(0, 3), Some(1));
        assert_eq!(raw.ask(5, &[0; 40], &[]), Some(1));
    }
    assert_eq!(pull(&f), 0);
    assert_eq!(f.door.port().push(&Batch::new(), &mut []), 0);
    assert!(f.is_up());
}

#[test]
fn a_saturated_interrupt_is_no_trouble_and_a_blocking_one_is_made_nonblocking() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    use std::io::Write;
    let mut call = std::fs::File::from(guest.call.as_fd_owned());
    let full = (u64::MAX - 1 - guest.call.take()).to_ne_bytes();
    call.write_all(&full).unwrap();
    guest.post(1, 0, guest.ram.guest_phys(1 << 20), 64, false);
    assert_eq!(pull(&f), 1, "the frame goes although nobody can be told");
    assert!(f.is_up());
    assert_eq!(guest.used_idx(1), 1);
}

trait Owned {
    fn as_fd_owned(&self) -> std::os::fd::OwnedFd;
}

impl Owned for vmlan_transport::sys::EventFd {
    fn as_fd_owned(&self) -> std::os::fd::OwnedFd {
        std::os::fd::AsFd::as_fd(self).try_clone_to_owned().unwrap()
    }
}
