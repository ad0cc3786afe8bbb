//! Driver, our vhost-user port, switch, port, driver: all in one process, over real sockets and
//! shared memory. Every frame is compared byte for byte with what was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlan_driver::virtio::queues::{HDR_F_NEEDS_CSUM, NetHeader};
use vmlan_tests::exchange::{exchange, exchange_few};
use vmlan_tests::gso::{self, KINDS, Kind};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, Sizes, frame, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::memory::{Ram, Region};

/// Every legal length without offloads; UDP only where several queues spread flows.
const ALL: Sizes = Sizes { least: 14, most: 1514 };
const UDP: Sizes = Sizes { least: 50, most: 1514 };

/// What a guest may negotiate, as keys of the driver's address.
fn feature_sets() -> Vec<String> {
    let mut sets = Vec::new();
    for version in [
        "version_1=on",
        "version_1=off,any_layout=on",
        "version_1=off,any_layout=off",
        "version_1=on,packed=on",
    ] {
        for bits in 0..16_usize {
            let on = |bit: usize| if bits >> bit & 1 == 1 { "on" } else { "off" };
            // Chains of 4 where they are indirect, of 2 or 1 where not.
            let segments = [1, 2, 4][bits % 3];
            sets.push(format!(
                ",size=64,{version},event_idx={},indirect={},mrg={},in_order={},\
                 segments={segments}",
                on(0),
                on(1),
                on(2),
                on(3)
            ));
        }
    }
    sets
}

#[test]
fn every_feature_set_carries_every_length() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    let sets = feature_sets();
    for (n, of_a) in sets.iter().enumerate() {
        // Each set meets another one, so that what one end negotiates cannot hide behind the
        // other's.
        let of_b = &sets[(n * 7 + 5) % sets.len()];
        let mut a = VirtioGuest::connect(&at_a, 1, of_a);
        let mut b = VirtioGuest::connect(&at_b, 2, of_b);
        exchange(&mut a, &mut b, ALL.all(), ALL);
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

#[test]
fn several_queues_keep_each_flow_in_order() {
    let mut lan = Lan::new(2, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 4), lan.add("b", 4));
    for (of_a, of_b) in [(1, 2), (2, 1), (2, 2), (4, 4), (1, 4), (4, 2)] {
        for more in ["on", "off", "on,packed=on", "off,packed=on"] {
            let keys = |queues| format!(",queues={queues},size=128,event_idx={more}");
            let mut a = VirtioGuest::connect(&at_a, 1, &keys(of_a));
            let mut b = VirtioGuest::connect(&at_b, 2, &keys(of_b));
            exchange(&mut a, &mut b, 2 * UDP.all(), UDP);
            let used = b.nic.pairs.iter().filter(|pair| pair.rx.stats().frames > 0).count();
            assert!(of_a.min(of_b) < 4 || used > 1, "4 flows in {used} of {of_b} receive queues");
        }
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

#[test]
fn jumbo_frames_arrive_in_one_buffer_or_many() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    let sizes = Sizes { least: 9000, most: 9230 };
    for keys in ["mrg=off", "mrg=on,buffer=9300", "mrg=off,version_1=off"] {
        let mut a =
            VirtioGuest::connect(&at_a, 1, &format!(",size=64,mtu=9216,buffer=9300,{keys}"));
        let mut b = VirtioGuest::connect(&at_b, 2, ",size=64,mtu=9216,buffer=9300");
        exchange(&mut a, &mut b, 3 * sizes.all(), sizes);
    }
    let mut a = VirtioGuest::connect(&at_a, 1, ",size=256,mtu=9216,buffer=9300");
    let mut b = VirtioGuest::connect(&at_b, 2, ",size=256,mtu=9216,buffer=512");
    one_way(&mut a, &mut b, 3 * sizes.all(), sizes);
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

/// `a` sends `count` frames, `b` receives them all.
fn one_way(a: &mut VirtioGuest, b: &mut VirtioGuest, count: u64, sizes: Sizes) {
    b.introduce();
    let (mut got, mut progress) = (0, Progress::default());
    while got < count {
        let sent = a.send_next(b.id, count, sizes);
        a.receive(|_, _| {});
        let now = b.receive_next(b.id, sizes);
        got += now;
        progress.note(sent + now, || format!("received {got} of {count}"));
    }
    a.assert_sound();
    b.assert_sound();
}

/// The frames with their headers that `b` gets until `bytes` bytes of payload came.
fn collect(b: &mut VirtioGuest, kind: Kind, bytes: usize) -> Vec<(NetHeader, Vec<u8>)> {
    let (mut all, mut sum, mut progress) = (Vec::new(), 0, Progress::default());
    while sum < bytes {
        let now = b.receive(|header, frame| {
            sum += frame.len() - kind.header_len();
            all.push((header, frame.to_vec()));
        });
        progress.note(now, || format!("{sum} of {bytes} bytes"));
    }
    all
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n * 31 % 251).unwrap()).collect()
}

/// Payload lengths around what matters: one segment, an odd rest, the largest packet.
const LOADS: [usize; 7] = [1449, 2896, 2897, 9001, 30_011, 65_000, 65_483];

#[test]
fn unsegmented_frames_arrive_whole_where_they_are_wanted() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    let send = ",size=64,buffer=65600,tso=on,uso=on,guest_tso=on,guest_uso=on";
    for mrg in ["on,buffer=2048,size=256", "off,size=64", "on,buffer=65600,size=64"] {
        let mut a = VirtioGuest::connect(&at_a, 1, send);
        let mut b =
            VirtioGuest::connect(&at_b, 2, &format!(",tso=on,guest_tso=on,guest_uso=on,mrg={mrg}"));
        b.introduce();
        a.receive(|_, _| {});
        for kind in KINDS {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (header, bytes) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &load, 1448);
                assert!(a.send(0, header, &bytes));
                a.flush();
                let got = collect(&mut b, kind, load.len());
                assert_eq!(got.len(), 1, "{kind:?} of {} bytes", load.len());
                let (h, frame) = &got[0];
                let said = (h.gso_type, h.gso_size, h.csum_start, h.csum_offset, h.hdr_len);
                let meant =
                    (kind.gso(), 1448, header.csum_start, header.csum_offset, header.hdr_len);
                assert_eq!((said, h.flags & HDR_F_NEEDS_CSUM), (meant, HDR_F_NEEDS_CSUM));
                assert!(*frame == bytes, "{kind:?} of {} bytes was changed", load.len());
            }
        }
        b.assert_sound();
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

#[test]
fn unsegmented_frames_arrive_in_segments_where_not() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    // Nothing; checksums only (segments may then leave theirs open, but need not); legacy without
    // merging.
    for keys in ["", ",guest_csum=on", ",version_1=off,mrg=off,in_order=off"] {
        let mut a = VirtioGuest::connect(&at_a, 1, ",size=64,buffer=65600,tso=on,uso=on");
        let mut b = VirtioGuest::connect(&at_b, 2, &format!(",size=256{keys}"));
        b.introduce();
        a.receive(|_, _| {});
        for (kind, size) in KINDS.into_iter().zip([1448, 1428, 1472, 1001]) {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (header, bytes) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &load, size);
                assert!(a.send(0, header, &bytes));
                a.flush();
                let got = collect(&mut b, kind, load.len());
                check_segments(kind, &load, size.into(), &got, keys.contains("guest_csum"));
            }
        }
        b.assert_sound();
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

fn check_segments(
    kind: Kind,
    load: &[u8],
    size: usize,
    got: &[(NetHeader, Vec<u8>)],
    may_be_open: bool,
) {
    assert_eq!(got.len(), load.len().div_ceil(size), "{kind:?}: segments of {} bytes", load.len());
    let mut at = 0;
    for (n, (header, frame)) in got.iter().enumerate() {
        assert_eq!(header.gso_type, 0, "{kind:?} segment {n}");
        let open = header.flags & HDR_F_NEEDS_CSUM != 0;
        assert!(!open || may_be_open, "{kind:?} segment {n}: the receiver cannot complete it");
        let segment = if open {
            gso::judge(kind, &gso::complete(header, frame))
        } else {
            gso::judge(kind, frame)
        };
        let last = n + 1 == got.len();
        assert_eq!(segment.payload, load[at..(at + size).min(load.len())], "{kind:?} segment {n}");
        if matches!(kind, Kind::Tcp4 | Kind::Tcp6) {
            assert_eq!(segment.seq, gso::SEQ.wrapping_add(u32::try_from(at).unwrap()));
            assert_eq!(segment.psh, last, "{kind:?} segment {n}: PSH belongs to the last");
        }
        assert_eq!(frame[..12], got[0].1[..12], "addresses");
        at += segment.payload.len();
    }
    assert_eq!(at, load.len());
}

#[test]
fn open_checksums_are_finished_unless_the_receiver_takes_them() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    for takes in [false, true] {
        let mut a = VirtioGuest::connect(&at_a, 1, ",size=64,csum=on");
        let keys = if takes { ",size=64,guest_csum=on" } else { ",size=64" };
        let mut b = VirtioGuest::connect(&at_b, 2, keys);
        b.introduce();
        a.receive(|_, _| {});
        for kind in KINDS {
            // 74: all within the header snapshot; 55 to 76: the snapshot's end; odd lengths.
            for len in (1..120).chain([1000, 1399, 1440]) {
                let load = payload(len);
                let (header, bytes) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &load, 0);
                assert!(a.send(0, header, &bytes));
                a.flush();
                let got = collect(&mut b, kind, len);
                let open = got[0].0.flags & HDR_F_NEEDS_CSUM != 0;
                if takes {
                    assert!(open && got[0].1 == bytes, "{kind:?} {len}: as it was sent");
                } else {
                    assert!(!open, "{kind:?} {len}: the receiver cannot complete a checksum");
                    assert_eq!(gso::judge(kind, &got[0].1).payload, load);
                }
            }
        }
    }
}

#[test]
fn a_flood_reaches_everybody_once() {
    let mut lan = Lan::new(2, FULL_WAIT);
    let at: Vec<_> = (0..9).map(|n| lan.add(&format!("p{n}"), 1)).collect();
    let mut guests: Vec<_> =
        at.iter().zip(0..).map(|(p, n)| VirtioGuest::connect(p, n, "")).collect();
    let (sender, receivers) = guests.split_first_mut().unwrap();
    // Floods do not wait for a full receiver, so no more are under way than all have buffers for.
    let (count, window) = (3 * ALL.all(), 200);
    let (mut got, mut progress) = (0, Progress::default());
    let (mut sent, mut each) = (0, [0; 8]);
    while got < count * 8 {
        // By the slowest: a frame may be with some of them and not with the others yet.
        while sent < count && sent < each.iter().min().unwrap() + window {
            let bytes = frame([0xff; 6], mac(0, 0), sent, ALL.of(sent));
            if !sender.send(0, NetHeader::default(), &bytes) {
                break;
            }
            sent += 1;
        }
        sender.flush();
        receivers.iter_mut().zip(&mut each).for_each(|(r, n)| *n += r.receive_next(0xff, ALL));
        let now = each.iter().sum::<u64>() - got;
        got += now;
        progress.note(now, || format!("{got} of {} copies", count * 8));
    }
    assert_eq!(sender.receive(|_, _| {}), 0, "nothing comes back to the sender");
    guests.iter().for_each(VirtioGuest::assert_sound);
}

/// Two guests exchange frames in a thread of their own until told to stop; returns how many went
/// each way.
fn in_background(
    mut a: VirtioGuest,
    mut b: VirtioGuest,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<u64> {
    // They know each other before there is anybody else, so nothing of theirs is flooded.
    exchange(&mut a, &mut b, 10, ALL);
    std::thread::spawn(move || {
        let mut total = 0;
        while !stop.load(Ordering::Relaxed) || total == 0 {
            exchange(&mut a, &mut b, 500, ALL);
            total += 500;
        }
        total
    })
}

#[test]
fn ports_come_and_go_while_others_talk() {
    for workers in [1, 2] {
        let mut lan = Lan::new(workers, FULL_WAIT);
        let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
        let (a, b) =
            (VirtioGuest::connect(&at_a, 1, ""), VirtioGuest::connect(&at_b, 2, ",event_idx=off"));
        let stop = Arc::new(AtomicBool::new(false));
        let talk = in_background(a, b, stop.clone());
        for round in 0..30 {
            let at: Vec<_> = (0..4).map(|n| lan.add(&format!("c{n}"), 1)).collect();
            let mut c = VirtioGuest::connect(&at[0], 3, ",size=64");
            let mut d = VirtioGuest::connect(&at[1], 4, ",size=64");
            exchange_few(&mut c, &mut d, 10, ALL);
            // Removed with guests connected, with nobody connected, and with frames under way.
            c.send_next(4, 150, ALL);
            for n in 0..4 {
                lan.remove(&format!("c{}", (n + round) % 4));
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(talk.join().unwrap() > 0);
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
}

#[test]
fn rings_stop_and_start_again_under_traffic() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 2), lan.add("b", 1));
    for keys in [
        ",size=64",
        ",size=64,event_idx=off,in_order=off,indirect=on,segments=2",
        ",size=64,packed=on",
        ",size=64,packed=on,event_idx=off,in_order=off,segments=4",
    ] {
        let mut a = VirtioGuest::connect(&at_a, 1, &format!("{keys},queues=2"));
        let mut b = VirtioGuest::connect(&at_b, 2, keys);
        b.introduce();
        a.receive(|_, _| {});
        let (count, mut got, mut progress) = (4000, 0, Progress::default());
        let mut round = 0_u64;
        while got < 2 * count {
            let sent = a.send_next(2, count, UDP);
            round += 1;
            if round.is_multiple_of(7) {
                // In the middle of whatever the switch is doing with these rings.
                let bases = a.nic.stop().unwrap();
                a.assert_sound();
                for (ring, base) in bases.iter().enumerate() {
                    if keys.contains("packed") {
                        assert_eq!(base & 0xffff, base >> 16, "nothing is used out of order");
                        assert!(base & 0x7fff < 64, "a descriptor, and its wrap counter");
                    } else {
                        assert_eq!(*base, used_index(&a, ring), "ring {ring} stands there");
                    }
                }
                a.nic.start_rings().unwrap();
                a.nic.pairs.iter_mut().for_each(|pair| pair.tx.ring_doorbell());
            }
            let now = b.receive_next(2, UDP);
            got += now;
            progress.note(sent + now, || format!("received {got} of {}", 2 * count));
        }
        a.assert_sound();
        b.assert_sound();
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

/// What the device says in the used ring's index field.
fn used_index(guest: &VirtioGuest, ring: usize) -> u32 {
    let pair = &guest.nic.pairs[ring / 2];
    let places =
        if ring.is_multiple_of(2) { pair.rx.ring().places() } else { pair.tx.ring().places() };
    let mut bytes = [0; 2];
    guest.nic.ram().read(places.used + 2, &mut bytes);
    u16::from_le_bytes(bytes).into()
}

#[test]
fn a_receiver_that_restarts_loses_frames_but_no_descriptor() {
    let mut lan = Lan::new(1, Duration::from_millis(10));
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    let mut a = VirtioGuest::connect(&at_a, 1, ",size=256");
    let mut b = VirtioGuest::connect(&at_b, 2, ",size=64");
    b.introduce();
    let mut last = 0;
    for round in 1..200_u64 {
        a.send_next(2, round * 200, ALL);
        b.nic.stop().unwrap();
        b.assert_sound();
        let mut check = |_: NetHeader, bytes: &[u8]| {
            // Some numbers are missing; those that came are in order and whole.
            let ahead = (last..last + 100_000).find(|n| {
                bytes.len() == ALL.of(*n) && bytes == frame(mac(2, 0), mac(1, 0), *n, bytes.len())
            });
            last = ahead.expect("a whole frame, later than those before") + 1;
        };
        b.receive(&mut check);
        b.nic.start_rings().unwrap();
        b.nic.pairs[0].rx.ring_doorbell();
        b.receive(&mut check);
        a.assert_sound();
    }
    // Now that nothing stops it any more, something comes.
    let mut progress = Progress::default();
    while last == 0 {
        a.send_next(2, u64::MAX, ALL);
        b.receive(|_, _| last = 1);
        progress.note(0, || "nothing comes".into());
    }
    a.nic.pairs[0].tx.reap();
}

#[test]
fn memory_is_replaced_under_traffic() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    // SET_MEM_TABLE: the same memory at the same places, in a table of its own each time.
    let mut a = VirtioGuest::connect(&at_a, 1, ",mem_slots=off");
    let mut b = VirtioGuest::connect(&at_b, 2, ",mem_slots=off,event_idx=off");
    with_changes(&mut a, &mut b, |guest, _| {
        let (regions, fd) = (guest.nic.ram().regions(), guest.nic.ram().raw_fd());
        guest.nic.front_end().unwrap().set_memory(&regions, fd).unwrap();
    });
    drop((a, b));
    // ADD_MEM_REG and REM_MEM_REG: memory hot-plugged and pulled out beside that in use.
    let mut a = VirtioGuest::connect(&at_a, 1, "");
    let mut b = VirtioGuest::connect(&at_b, 2, "");
    let more = Ram::new(1 << 20, 4096).unwrap();
    let low = more.regions()[0];
    with_changes(&mut a, &mut b, |guest, round| {
        let region = Region { guest_phys: (8 << 30) + (u64::from(guest.id) << 24), ..low };
        let front = guest.nic.front_end().unwrap();
        if round % 2 == 0 {
            front.add_region(&region, more.raw_fd()).unwrap();
        } else {
            front.remove_region(&region).unwrap();
        }
    });
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

fn with_changes(a: &mut VirtioGuest, b: &mut VirtioGuest, change: impl Fn(&VirtioGuest, u32)) {
    b.introduce();
    a.introduce();
    a.receive(|_, _| {});
    b.receive(|_, _| {});
    let (count, mut got, mut progress, mut round) = (20_000, 0, Progress::default(), 0);
    while got < 2 * count {
        let sent = a.send_next(2, count, ALL) + b.send_next(1, count, ALL);
        change(a, round);
        change(b, round);
        round += 1;
        let now = a.receive_next(1, ALL) + b.receive_next(2, ALL);
        got += now;
        progress.note(sent + now, || format!("received {got} of {}", 2 * count));
    }
    a.assert_sound();
    b.assert_sound();
}
