use super::super::sequence::{Faults, Sequences};

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];

fn faults(numbers: impl IntoIterator<Item = u64>) -> Faults {
    let mut sequences = Sequences::default();
    numbers.into_iter().for_each(|number| assert!(sequences.note(A, 0, number, 0)));
    Faults { seen: 0, ..sequences.faults() }
}

fn wrong(lost: u64, duplicated: u64, reordered: u64) -> Faults {
    Faults { lost, duplicated, reordered, ..Faults::default() }
}

#[test]
fn lost_duplicated_and_reordered_are_told_apart() {
    assert_eq!(faults(0..200_000), wrong(0, 0, 0));
    assert_eq!(faults([0, 1, 5, 6]), wrong(3, 0, 0));
    assert_eq!(faults([0, 1, 1, 2, 0]), wrong(0, 2, 0));
    assert_eq!(faults([0, 3, 2, 1, 4]), wrong(0, 0, 2));
    assert_eq!(faults([0, 3, 1, 1, 4]), wrong(1, 1, 1));
    assert_eq!(faults([5]), wrong(5, 0, 0));
    // Over the edge of the window, in order and late.
    let late = (0..65_535).chain([65_536, 65_537, 65_535, 65_536]);
    assert_eq!(faults(late), wrong(0, 1, 1));
    let gap = [0, 200_000, 199_999, 200_000];
    assert_eq!(faults(gap), wrong(199_998, 1, 1));
}

#[test]
fn a_sender_that_begins_anew_is_another_run() {
    let again = (0..100_000).chain(0..100_000);
    assert_eq!(faults(again), Faults { restarts: 1, ..Faults::default() });
    assert_eq!(faults([u64::MAX, 0]), Faults { lost: u64::MAX, restarts: 1, ..Faults::default() });
    // A short one hides nothing.
    let short = (0..2000).chain([0, 1, 5]);
    assert_eq!(faults(short), Faults { lost: 3, restarts: 1, ..Faults::default() });
    // Number 0 itself may be late, when a lane of ours is slow.
    assert_eq!(faults((1..2000).chain([0, 2000])), wrong(0, 0, 1));
}

#[test]
fn a_stream_may_run_already() {
    let faults = |numbers: &[u64]| {
        let mut sequences = Sequences::of_running_streams();
        numbers.iter().for_each(|number| assert!(sequences.note(A, 0, *number, 0)));
        Faults { seen: 0, ..sequences.faults() }
    };
    assert_eq!(faults(&[70, 71, 73, 72]), wrong(0, 0, 1));
    assert_eq!(faults(&[70, 72, 69]), wrong(1, 1, 0));
    // These are no numbers.
    let jumps = [1 << 40, 1 << 60, 1 << 50, u64::MAX];
    assert_eq!(faults(&jumps), Faults { restarts: 1, ..Faults::default() });
}

#[test]
fn queues_and_senders_are_kept_apart_and_their_number_is_bounded() {
    let mut sequences = Sequences::default();
    for n in 0..50 {
        assert!(
            [(A, 0), (A, 1), ([2; 6], 0)]
                .iter()
                .all(|(mac, queue)| sequences.note(*mac, *queue, n, 0))
        );
    }
    assert_eq!(sequences.faults(), Faults { seen: 150, ..Faults::default() });
    let known = (0..10_000_u32).filter(|n| {
        let [a, b, c, d] = n.to_be_bytes();
        sequences.note([a, b, c, d, 1, 1], 0, 0, 0)
    });
    assert_eq!(known.count(), 253);
    assert!(sequences.note(A, 0, 50, 0));
}

#[test]
fn a_sink_forgets_who_is_silent_for_new_senders_and_nobody_else() {
    let sender = |n: u32| {
        let [a, b, c, d] = n.to_be_bytes();
        [a, b, c, d, 1, 1]
    };
    let mut sequences = Sequences::of_running_streams();
    // One run after the other; each loses one.
    for run in 0..1000 {
        for number in (0..50).chain(51..101) {
            assert!(sequences.note(sender(run), 0, number, 0), "run {run}");
        }
    }
    assert_eq!(Faults { seen: 0, ..sequences.faults() }, wrong(1000, 0, 0));
    // 300 at a time: some are not followed, and those that are stay.
    let mut sequences = Sequences::of_running_streams();
    for number in (0..50).chain(51..101) {
        let followed = (0..300).filter(|n| sequences.note(sender(*n), 0, number, 0));
        assert_eq!(followed.count(), 256);
    }
    assert_eq!(Faults { seen: 0, ..sequences.faults() }, wrong(256, 0, 0));
}

#[test]
fn order_is_judged_within_a_lane_of_ours() {
    let mut sequences = Sequences::default();
    // Each lane in order, but one is looked at later; then 3 comes after 7 on the same.
    for (number, lane) in [(1, 1), (4, 1), (5, 1), (0, 0), (2, 0), (7, 0), (3, 0), (6, 1)] {
        sequences.note(A, 0, number, lane);
    }
    assert_eq!(Faults { seen: 0, ..sequences.faults() }, wrong(0, 0, 1));
}
