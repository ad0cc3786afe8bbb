//! Frames from the guest.

use vmlan_frame::Gso;

use super::guest::*;

/// Each completion names the frame's last descriptor, in order, round the ring and round again.
#[test]
fn frames_are_lent_and_completed_in_order() {
    let mut guest = Guest::new();
    let mut next = 0;
    for n in 0..300usize {
        let parts = 1 + n % 3;
        let bytes = frame([2, 0, 0, 0, 0, 1], 60 + n * 3);
        let at = guest.fill(0, &bytes);
        let each = bytes.len() / parts;
        let descriptors: Vec<_> = (0..parts)
            .map(|i| match i + 1 == parts {
                true => (at + (i * each) as u64, (bytes.len() - i * each) as u32, EOP | CQ),
                false => (at + (i * each) as u64, each as u32, 0),
            })
            .collect();
        guest.give(&descriptors);
        let frames = guest.pull();
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].bytes, bytes);
        next = (next + parts as u32) % SIZE;
        assert_eq!(guest.sent(), Some((next + SIZE - 1) % SIZE));
        assert_eq!(guest.sent(), None);
    }
}

#[test]
fn a_completion_is_written_for_frames_that_want_one() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame(MAC, 60));
    guest.give(&[(at, 60, EOP), (at, 60, EOP), (at, 60, EOP | CQ)]);
    assert_eq!(guest.pull().len(), 3);
    assert_eq!((guest.sent(), guest.sent()), (Some(2), None));
    guest.mask(0, false);
    guest.give(&[(at, 60, EOP)]);
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.messages(0), 1, "nothing was reported");
}

#[test]
fn short_frames_are_padded_and_tags_inserted() {
    let mut guest = Guest::new();
    let bytes = frame(MAC, 42);
    let at = guest.fill(0, &bytes);
    guest.give(&[(at, 42, EOP | CQ)]);
    guest.give(&[(at, 42, EOP | CQ | 1 << 15 | 0xa005 << 16)]);
    let frames = guest.pull();
    assert_eq!((frames[0].bytes.len(), &frames[0].bytes[..42]), (60, &bytes[..]));
    let tagged = [&bytes[..12], &[0x81, 0, 0xa0, 5], &bytes[12..]].concat();
    assert_eq!(frames[1].bytes[..46], tagged);
}

#[test]
fn held_frames_are_lent_again_before_they_are_completed() {
    let mut guest = Guest::new();
    for n in 0..3 {
        guest.send(n, &frame(MAC, 60 + n as usize));
    }
    let mut take = Take { hold: vec![1], ..Take::default() };
    guest.pull_to(&mut take);
    assert_eq!((guest.sent(), guest.sent()), (Some(0), None));
    let again = guest.pull();
    assert_eq!(again[0].bytes.len(), 61);
    assert_eq!((guest.sent(), guest.sent(), guest.sent()), (Some(1), Some(2), None));
}

/// iPXE writes the generation before EOP, and a frame's other descriptors may be valid before its
/// first: neither is looked at before it is whole.
#[test]
fn half_a_frame_is_not_there_yet() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame(MAC, 100));
    guest.give(&[(at, 60, 0)]);
    assert_eq!(guest.pull().len(), 0);
    assert!(!guest.chip.arm(), "nothing to do");
    guest.put(TX_RING + 12, EOP | CQ);
    guest.ring(0);
    assert_eq!(guest.pull()[0].bytes.len(), 60);
    assert_eq!(guest.sent(), Some(0));
    // The second of two first, and then taken back.
    guest.put(TX_RING + 16 * 2 + 8, 40 | 1 << 14);
    guest.put(TX_RING + 16 * 2 + 12, EOP | CQ);
    assert_eq!(guest.pull().len(), 0);
    guest.put(TX_RING + 16 * 2 + 8, 40);
    guest.give(&[(at, 64, EOP | CQ)]);
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.sent(), Some(1));
}

#[test]
fn checksums_are_left_to_the_receiver_or_filled_in() {
    let mut guest = Guest::new();
    for tcp in [true, false] {
        let good = packet(tcp, 300);
        let mut bytes = good.clone();
        let place = if tcp { 50 } else { 40 };
        // As Linux: the pseudo-header's sum.
        let mut pseudo = good[26..34].to_vec();
        pseudo.extend([0, good[23]]);
        pseudo.extend(((good.len() - 34) as u16).to_be_bytes());
        bytes[place..place + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        let at = guest.fill(0, &bytes);
        let word2 = bytes.len() as u32 | (place as u32) << 18;
        guest.give(&[(at, word2, EOP | CQ | 34 | 2 << 10)]);
        guest.give(&[(at, word2, EOP | CQ | 34 | 2 << 10 | 1 << 15 | 5 << 16)]);
        let frames = guest.pull();
        assert!(frames[0].offload.needs_csum);
        assert_eq!(finish(&frames[0])[0], good);
        let tagged = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
        assert_eq!(finish(&frames[1]), [tagged]);
    }
}

#[test]
fn tcp_is_segmented() {
    let mut guest = Guest::new();
    let whole = packet(true, 4000);
    let bytes = unfinished(&whole);
    let at = guest.fill(0, &bytes);
    guest.give(&[
        (at, 66 | 1000 << 18, 66 | 3 << 10),
        (at + 66, (bytes.len() - 66) as u32, EOP | CQ),
    ]);
    let frames = guest.pull();
    assert_eq!((frames[0].offload.gso, frames[0].offload.gso_size), (Gso::Tcp4, 1000));
    let segments = finish(&frames[0]);
    assert_eq!(segments.len(), 4);
    for (n, segment) in segments.iter().enumerate() {
        assert_eq!(segment.len(), 1066);
        assert_eq!((sum(&segment[14..34]), upper_sum(segment)), (0xffff, 0xffff));
        assert_eq!(segment[66..], whole[66 + 1000 * n..66 + 1000 * (n + 1)]);
    }
    assert_eq!(guest.statistic("TSO pkts tx"), 4);
    assert_eq!(guest.statistic("TSO bytes tx"), 4264);
    assert_eq!(guest.statistic("ucast pkts tx"), 4);
    assert_eq!(guest.sent(), Some(1));
}

/// While the worker is awake the driver is asked not to ring; before it sleeps it says otherwise,
/// and looks again, now and later.
#[test]
fn thresholds_follow_the_worker() {
    let mut guest = Guest::new();
    assert_eq!(guest.threshold(0), 1);
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    assert_eq!(guest.threshold(0), u32::MAX);
    guest.send(0, &frame(MAC, 60));
    assert!(guest.chip.arm(), "there is something");
    assert_eq!(guest.threshold(0), 1);
    guest.pull();
    assert_eq!(guest.threshold(0), u32::MAX);
    assert!(!guest.chip.arm());
    assert_eq!(guest.threshold(0), 1);
    // A driver that had read the threshold before.
    guest.send(0, &frame(MAC, 60));
    let rings = guest.host.rings();
    guest.sleep(50_000);
    assert_eq!(guest.host.rings(), rings + 1, "the third look");
    guest.chip.disarm();
    assert_eq!(guest.pull().len(), 1);
    assert!(!guest.chip.arm());
    guest.sleep(50_000);
    assert_eq!(guest.host.rings(), rings + 1);
    // Armed again without a frame between: no look is due.
    let timers = guest.host.timers_set.load(std::sync::atomic::Ordering::Relaxed);
    guest.chip.disarm();
    guest.pull();
    assert!(!guest.chip.arm());
    assert_eq!(guest.host.timers_set.load(std::sync::atomic::Ordering::Relaxed), timers);
    assert_eq!(guest.statistic("found by the third look"), 1);
    guest.ring(0);
    assert_eq!(guest.host.rings(), rings + 2);
    assert_eq!(guest.statistic("doorbells unasked"), 0);
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    guest.send(0, &frame(MAC, 60));
    guest.ring(0);
    guest.pull();
    assert_eq!(guest.statistic("doorbells unasked"), 1);
}
