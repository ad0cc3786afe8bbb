//! Unit tests: the parts that need no server.

use std::time::{Duration, Instant};

use super::wire::{Frames, HEADER, Header, InflightDesc, MAX_BODY, Malformed, Reply, Request};
use crate::connection::tests::{peeked, turns};
use crate::eventfd;
use crate::interrupt_eventfd::InterruptEventFd;
use crate::memory::sealed_memfd;
use crate::port_log::PortLog;
use vmlan_frame::{Batch, Port};
use vmlan_nic::Interrupt;

fn head(number: u32, flags: u32, size: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    for (i, word) in [number, flags, size].into_iter().enumerate() {
        bytes[4 * i..4 * i + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[test]
fn requests_have_distinct_numbers_and_bodies_that_fit() {
    for request in Request::ALL {
        assert_eq!(Request::from_number(request.number()), Some(*request));
        let (sizes, fds) = request.limits();
        assert!(*sizes.end() <= MAX_BODY && *fds.end() <= 8, "{}", request.name());
    }
    assert_eq!(Request::from_number(0), None);
}

#[test]
fn headers_of_version_1_requests_only() {
    let parsed = Header::parse(&head(5, 0x9, 4096)).unwrap();
    assert_eq!(parsed, Header { number: 5, size: 4096, need_reply: true });
    assert_eq!(Header::parse(&head(1, 5, 0)), Err(Malformed::Flags(5)));
    assert_eq!(Header::parse(&head(1, 2, 0)), Err(Malformed::Flags(2)));
    assert_eq!(Header::parse(&head(1, 1, 4097)), Err(Malformed::Oversize(4097)));
}

/// A message and its body of so many bytes.
fn message(size: usize) -> (Vec<u8>, Vec<u8>) {
    let body: Vec<u8> = (0..size).map(|n| n.to_le_bytes()[0]).collect();
    let number = Request::SetVringEnable.number();
    ([&head(number, 1, u32::try_from(size).unwrap())[..], &body].concat(), body)
}

/// With a journal each is peeked at anew, and what is behind it is copied for nothing.
#[test]
fn a_flood_of_messages_is_not_copied_for_each_of_them() {
    let (small, body) = message(8);
    let turns = turns::<Frames>(&small.repeat(1000));
    assert!(turns.len() == 1000 && turns.iter().all(|turn| turn.bodies == [&body[..]]));
    let all = peeked(&turns);
    assert!(all <= 128 * 1000, "{all} bytes were peeked at for 1000 messages of {}", small.len());
}

#[test]
fn a_long_message_in_a_flood_is_peeked_at_once_and_whole() {
    let [small, long] = [8, 3072].map(message);
    let flood = small.0.repeat(100);
    let turns = turns::<Frames>(&[&long.0[..], &flood, &long.0, &flood].concat());
    assert_eq!(turns.len(), 202);
    for (n, turn) in turns.iter().enumerate() {
        let (bytes, body) = if n % 101 == 0 { &long } else { &small };
        assert_eq!(turn.bodies, [&body[..]], "message {n}");
        let most = (2 * bytes.len()).max(128);
        assert!(turn.peeked <= most, "{} bytes for message {n}", turn.peeked);
    }
}

#[test]
fn replies_are_marked_and_sized() {
    let bytes = Reply::u64(7).encode(11);
    assert_eq!(bytes[..12], head(11, 5, 8));
    assert_eq!(bytes[12..], 7u64.to_ne_bytes());
    let desc = InflightDesc { size: 1, offset: 2, queues: 3, ring_size: 4 };
    assert_eq!(desc.encode(24).len(), 24);
    assert_eq!(InflightDesc::parse(super::wire::Body(&desc.encode(20))), desc);
}

#[test]
fn warnings_are_few() {
    let start = Instant::now();
    let mut log = PortLog::new("port".to_owned(), start);
    let said = (0..1000).filter(|_| log.warn(start, &"again")).count();
    assert_eq!(said, 5);
    assert!(log.warn(start + Duration::from_secs(11), &"later"));
    assert!(!log.warn(start + Duration::from_secs(12), &"later"));
    assert!(log.warn(start + Duration::from_secs(3600), &"much later"));
}

#[test]
fn an_interrupt_on_a_broken_descriptor_is_tried_once() {
    let call = InterruptEventFd::default();
    call.raise();
    assert_eq!((call.raised(), call.is_stuck()), (0, false), "nobody listens");
    call.set(Some(std::fs::File::open("/dev/null").unwrap().into()));
    call.raise();
    call.raise();
    assert_eq!((call.raised(), call.is_stuck()), (1, true));
    call.set(Some(eventfd::new().unwrap()));
    call.raise();
    assert_eq!((call.raised(), call.is_stuck()), (1, true), "no second chance");
}

#[test]
fn fuzz_inputs_that_were_kept_are_replayed() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/vhost_user");
    let mut seen = 0;
    for file in std::fs::read_dir(dir).unwrap().flatten() {
        crate::fuzz::vhost_user(&std::fs::read(file.path()).unwrap());
        seen += 1;
    }
    assert!(seen > 0, "{dir} is empty");
}

#[test]
fn an_honest_set_up_of_the_fuzzer_brings_the_port_up() {
    // One frame: descriptor, avail entry, avail index, pull. Then a request that hangs up.
    let mut input = vec![0x8f];
    let mut write = |at: u16, bytes: &[u8]| {
        input.push(0xc0);
        input.extend(at.to_be_bytes());
        input.push(u8::try_from(bytes.len()).unwrap());
        input.extend(bytes);
    };
    write(0x4000, &[0, 0x30, 0, 0, 0, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0]);
    write(0x5002, &[1, 0, 0, 0]);
    input.extend([0x9f, 0xa1, 0xb0, 11, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0]);
    crate::fuzz::vhost_user(&input);
}

#[test]
fn a_held_interrupt_is_raised_afterwards_and_once() {
    use std::io::Read;
    let fd = eventfd::new().unwrap();
    let mut ours = std::fs::File::from(fd.try_clone().unwrap());
    let call = InterruptEventFd::default();
    call.set(Some(fd));
    call.hold();
    call.raise();
    call.raise();
    assert_eq!(call.raised(), 0);
    call.release();
    call.release();
    let mut count = [0; 8];
    ours.read_exact(&mut count).unwrap();
    assert_eq!((call.raised(), u64::from_ne_bytes(count)), (1, 1));
}

#[test]
fn looking_at_a_doorbells_count_changes_nothing() {
    use std::io::Write;
    use std::os::fd::AsFd;
    let fd = eventfd::new().unwrap();
    let mut file = std::fs::File::from(fd.try_clone().unwrap());
    assert_eq!(crate::eventfd::count(fd.as_fd()), 0);
    (0..17).for_each(|_| file.write_all(&1u64.to_ne_bytes()).unwrap());
    assert_eq!((crate::eventfd::count(fd.as_fd()), crate::eventfd::count(fd.as_fd())), (17, 17));
}

#[test]
fn the_map_before_is_unmapped_without_the_locks() {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use vmlan_ram::{Map, Mapping, Region};
    let file = sealed_memfd(c"t", 4096).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, 4096).unwrap());
    let region = Region::new(0, 4096, 0, 0, Arc::clone(&mapping)).unwrap();
    let port = super::VhostUserPort::new(Arc::new(crate::waker::Waker::new().unwrap()), 2).unwrap();
    let map = Arc::new(Map::new(vec![region], None).unwrap());
    let _ = port.both().set_map(&map);
    drop(map);
    let old = port.both().set_map(&Arc::default());
    assert_eq!((Arc::strong_count(&old), Arc::strong_count(&mapping)), (1, 2), "only ours now");
    drop(old);
    assert_eq!(Arc::strong_count(&mapping), 1);
}

/// It may be kept from running for long: it has the lowest weight when it uses much.
#[test]
fn a_worker_does_not_wait_for_the_ports_own_thread() {
    let waker = crate::waker::Waker::new().unwrap();
    let port = super::port::VhostUserPort::new(std::sync::Arc::new(waker), 2).unwrap();
    let both = port.both();
    let asked = std::thread::scope(|s| {
        let worker = s.spawn(|| {
            let pushed = port.push(&Batch::new(), &mut [0]);
            let asked = (port.arm(0), port.is_up() || port.want_room(), port.is_being_changed());
            (pushed, port.room(), asked)
        });
        let end = Instant::now() + Duration::from_secs(60);
        while !worker.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let finished = worker.is_finished();
        drop(both);
        assert!(finished, "it waits");
        worker.join().unwrap()
    });
    assert_eq!(asked, (0, 0, (true, true, true)), "it looks again, by its timer");
    assert!(port.take_touched() && !port.is_being_changed(), "and is woken");
    assert_eq!(port.push(&Batch::new(), &mut [0]), 1, "and counts what nobody is there for");
}

/// A port with memory of its own, in which each pair of queues has its rings.
mod laned {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use vmlan_frame::{Batch, Offload, Port, Sink, flow_hash, place_of};
    use vmlan_nic::virtio::{Fault, Rings, feature};
    use vmlan_ram::{Map, Mapping, Region, Slice, Window};

    use super::super::VhostUserPort;
    use super::super::sides::PortFault;
    use crate::memory::sealed_memfd;

    const SIZE: u16 = 8;
    const RING: u64 = 0x4000;
    const PAIRS: u64 = 4;

    fn rings(at: u64) -> Rings {
        let (desc, avail, used) = (at, at + 0x100, at + 0x200);
        Rings { size: SIZE, desc, avail, used, log: None, base: 0 }
    }

    /// The guest's half of a ring, with descriptors and entries for all its buffers.
    struct Ring {
        avail: Window,
        used: Window,
    }

    impl Ring {
        fn new(map: &Arc<Map>, number: u64, flags: u64) -> Self {
            let at = rings(number * RING);
            let window = |at, len| map.window(at, len, 2).unwrap();
            let desc = window(at.desc, 16 * usize::from(SIZE));
            let avail = window(at.avail, 4 + 2 * usize::from(SIZE));
            for slot in 0..SIZE {
                let (entry, n) = (16 * usize::from(slot), u64::from(slot));
                desc.set_u64(entry, at.desc + 0x1000 + n * 0x100, Ordering::Relaxed);
                desc.set_u64(entry + 8, 72 | (flags << 32), Ordering::Relaxed);
                avail.set_u16(4 + entry / 8, slot, Ordering::Relaxed);
            }
            Self { avail, used: window(at.used, 4) }
        }

        fn post(&self, n: u16) {
            self.avail.set_u16(2, n, Ordering::Release);
        }

        fn used(&self) -> u16 {
            self.used.u16(2, Ordering::Acquire)
        }
    }

    /// A port with so many lanes of which some pairs are started, and the rings of all: transmit
    /// and receive.
    fn port(lanes: u16, started: &[u16]) -> (VhostUserPort, Vec<[Ring; 2]>) {
        let size = 2 * PAIRS * RING;
        let file = sealed_memfd(c"t", size).unwrap();
        let mapping = Arc::new(Mapping::new(file.as_fd(), 0, size).unwrap());
        let region = Region::new(0, size, 0, 0, mapping).unwrap();
        let map = Arc::new(Map::new(vec![region], None).unwrap());
        let waker = Arc::new(crate::waker::Waker::new().unwrap());
        let port = VhostUserPort::new(waker, lanes).unwrap();
        let pair = |n| [Ring::new(&map, 2 * n, 0), Ring::new(&map, 2 * n + 1, 2)];
        let all = (0..PAIRS).map(pair).collect();
        let mut both = port.both();
        let _ = both.set_map(&map);
        both.set_features(feature::VERSION_1);
        for pair in started {
            let (lane, queue) = both.lane_of(*pair);
            lane.tx.net.start(queue, rings(u64::from(2 * pair) * RING)).unwrap();
            lane.rx.net.start(queue, rings(u64::from(2 * pair + 1) * RING)).unwrap();
            lane.tx.net.enable(queue, true).unwrap();
            lane.rx.net.enable(queue, true).unwrap();
        }
        drop(both);
        (port, all)
    }

    /// UDP to and from a port.
    fn flow(port: u8) -> [u8; 60] {
        let mut f = [0; 60];
        f[12..14].copy_from_slice(&[8, 0]);
        f[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        (f[35], f[37], f[39]) = (port, 9, 26);
        f
    }

    fn add<'m>(batch: &mut Batch<'m>, frames: impl Iterator<Item = &'m [u8; 60]>) {
        let mut add = |f| batch.add(&[Slice::from_bytes(f)], Offload::NONE).unwrap();
        frames.for_each(|f| add(f));
    }

    /// What a full lane has no room for comes last, and room elsewhere does not make up for it.
    #[test]
    fn a_full_lane_holds_only_its_own_frames() {
        let (port, rings) = port(3, &[0, 2]);
        let lane = |n| (0..=255).map(flow).find(|f| place_of(flow_hash(f, 60), 2) == n).unwrap();
        let (two, mut batch) = ([lane(0), lane(1)], Batch::new());
        add(&mut batch, two.iter().cycle().take(8));
        rings[0][1].post(1);
        rings[2][1].post(SIZE);
        let mut list = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(port.push(&batch, &mut list), 5);
        assert_eq!(list, [0, 1, 3, 5, 7, 2, 4, 6]);
        assert!(!port.want_room(), "lane 2 has room, but lane 0 had too little");
        rings[0][1].post(2);
        assert!(port.want_room());
        assert_eq!(port.push(&batch, &mut [2, 4, 6]), 1);
        let (_, output) = port.counters().snapshot();
        assert_eq!((output.frames, output.bytes), (6, 360));
    }

    /// It is asked for by itself, and those behind it hold nobody else up.
    #[test]
    fn each_lane_has_its_own_room() {
        let (port, rings) = port(3, &[0, 2]);
        rings[2][1].post(SIZE);
        let flows: Vec<_> = (0..=255).map(flow).collect();
        let mut batch = Batch::new();
        add(&mut batch, flows.iter());
        let goes = |i: usize| [0, 2][place_of(flow_hash(&flows[i], 60), 2)];
        assert!((0..batch.len()).all(|i| port.lane_for(&batch, i) == goes(i)));
        assert_eq!((port.room_in(0, 1), port.room_in(2, 1), port.room()), (0, 8, 0));
        assert!(!port.want_room(), "lane 0 had too little");
        rings[0][1].post(1);
        assert!(port.want_room());
        assert_eq!((port.room_in(0, 1), port.room()), (1, 1));
        port.steer_by_source();
        batch.set_source(7);
        assert_eq!(port.lane_for(&batch, 0), 2);
    }

    /// A front end that uses more pairs than there are lanes: flows are spread over all of them.
    #[test]
    fn flows_reach_each_queue_of_lanes_that_share_some() {
        let (port, rings) = port(2, &[0, 1, 2, 3]);
        let (flows, mut batch) = ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(flow), Batch::new());
        add(&mut batch, flows.iter());
        rings.iter().for_each(|[_, rx]| rx.post(SIZE));
        assert_eq!(port.push(&batch, &mut [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 10);
        let used: Vec<_> = rings.iter().map(|[_, rx]| rx.used()).collect();
        assert!(used.iter().all(|n| *n > 0) && used.iter().sum::<u16>() == 10, "{used:?}");
    }

    /// Buffers that cost much cost one budget in a push by several lanes, not one for each; and the
    /// lanes take turns with it.
    #[test]
    fn lanes_share_the_budget_of_a_push() {
        const INDIRECT: u64 = 4;
        let (port, rings) = port(2, &[0, 1]);
        let map = {
            let mut both = port.both();
            both.set_features(feature::VERSION_1 | feature::INDIRECT_DESC);
            both.map()
        };
        // Lane 0 offers a table of buffers without room: each look at it takes 257 of the 4,096
        // descriptors, and the frame is dropped.
        let (table, entries) = (7 * RING, 300u64);
        let words = map.window(table, 16 * 300, 16).unwrap();
        for (entry, n) in (0..).step_by(16).zip(1..=entries) {
            let flags = if n < entries { 3 } else { 2 };
            words.set_u64(entry, table, Ordering::Relaxed);
            words.set_u64(entry + 8, (flags << 32) | (n << 48), Ordering::Relaxed);
        }
        let desc = map.window(RING, 16, 16).unwrap();
        desc.set_u64(0, table, Ordering::Relaxed);
        desc.set_u64(8, (16 * entries) | (INDIRECT << 32), Ordering::Relaxed);
        rings[0][1].post(1);
        rings[1][1].post(SIZE);
        let lane = |n| (0..=255).map(flow).find(|f| place_of(flow_hash(f, 60), 2) == n).unwrap();
        let (costly, usual) = (lane(0), lane(1));
        let mut batch = Batch::new();
        add(&mut batch, std::iter::repeat_n(&costly, 30).chain([&usual; 4]));
        let mut list: Vec<u16> = (0..34).collect();
        assert_eq!(port.push(&batch, &mut list), 16, "nothing is left for lane 1");
        assert_eq!((rings[0][1].used(), rings[1][1].used()), (0, 0));
        assert!(port.want_room(), "there is some");
        assert_eq!(port.push(&batch, &mut list[16..]), 4 + 14, "lane 1 goes first");
        assert_eq!((rings[0][1].used(), rings[1][1].used()), (0, 4));
    }

    /// What floods a guest fills the ring of its port, and room elsewhere is none for it.
    #[test]
    fn by_source_a_flood_fills_one_ring() {
        let (port, rings) = port(2, &[0, 1]);
        port.steer_by_source();
        rings.iter().for_each(|[_, rx]| rx.post(4));
        let flows = [0, 1, 2, 3, 4, 5].map(flow);
        let push = |source| {
            let mut batch = Batch::new();
            batch.set_source(source);
            add(&mut batch, flows.iter());
            port.push(&batch, &mut [0, 1, 2, 3, 4, 5])
        };
        assert_eq!(push(7), 4, "ports with odd numbers share a ring");
        assert_eq!((rings[0][1].used(), rings[1][1].used()), (0, 4));
        assert!(!port.want_room(), "what is posted in the other ring is not for this sender");
        assert_eq!(push(2), 4);
        assert_eq!((rings[0][1].used(), rings[1][1].used()), (4, 4));
        rings[1][1].post(5);
        assert!(port.want_room());
    }

    /// Takes what it is lent, and looks whether another lane can be pulled from meanwhile.
    struct Meanwhile<'p>(&'p VhostUserPort, Vec<usize>);

    impl Sink for Meanwhile<'_> {
        fn deliver(&mut self, batch: &mut Batch<'_>) {
            self.1.push(batch.len());
            if self.1.len() == 1 {
                let mut spare = Batch::new();
                assert_eq!(self.0.pull(0, &mut spare, 256, self), 0, "this lane is locked");
                assert_eq!(self.0.pull(2, &mut spare, 256, self), 3);
            }
        }
    }

    #[test]
    fn lanes_are_pulled_from_at_the_same_time() {
        let (port, rings) = port(3, &[0, 2]);
        rings[0][0].post(2);
        rings[2][0].post(3);
        let mut seen = Meanwhile(&port, Vec::new());
        assert_eq!(port.pull(0, &mut Batch::new(), 256, &mut seen), 2);
        assert_eq!(seen.1, [2, 3]);
        assert_eq!(port.pull(1, &mut Batch::new(), 256, &mut seen), 0, "it has no virtqueue");
        assert_eq!(port.pull(3, &mut Batch::new(), 256, &mut seen), 0, "there is none");
        let (input, _) = port.counters().snapshot();
        assert_eq!((input.frames, input.batches), (5, 2));
        assert!(!port.arm(0) && !port.arm(2) && !port.arm(3));
    }

    /// The lane numbers its queues by itself; people know them by the port's numbers.
    #[test]
    fn a_fault_names_the_queue_by_the_ports_number() {
        let (port, rings) = port(2, &[0, 3]);
        rings[3][0].post(SIZE + 1);
        assert_eq!(port.pull(1, &mut Batch::new(), 256, &mut Meanwhile(&port, vec![0])), 0);
        let fault = Fault::AvailJump { avail: SIZE + 1, next: 0 };
        assert_eq!(port.both().fault(), Some(PortFault::Virtqueue { queue: 3, fault }));
        assert!(!port.is_up() && !port.arm(0), "all of it stands still");
    }
}
