//! Batches of frames of several ports.
use vmlan_ram::Slice;

use crate::{BATCH, Batch, JOINT, Offload, Offloads, Verdict};

fn batch(bytes: &[u8], frames: usize) -> Batch<'_> {
    let mut batch = Batch::new();
    (0..frames).for_each(|_| batch.add_plain(Slice::from_bytes(bytes)).unwrap());
    batch
}

fn whole(batch: &Batch<'_>, i: usize) -> Vec<u8> {
    let frame = batch.frame(i).unwrap();
    let mut bytes = vec![0; frame.len];
    assert_eq!(frame.copy_to(&mut bytes), frame.len);
    bytes
}

#[test]
fn frames_of_several_ports_follow_each_other() {
    let [long, short, middle] = [(1, 1500), (2, 60), (3, 200)].map(|(n, len)| vec![n; len]);
    let mut first = batch(&long, 2);
    first.hold(0);
    let mut joint = Batch::joint();
    assert!(joint.append(&first) && joint.append(&batch(&short, 3)));
    assert!(joint.append(&batch(&middle, 1)));
    assert_eq!((joint.len(), joint.bytes()), (6, 2 * 1500 + 3 * 60 + 200));
    for (i, bytes) in [(0, &long), (1, &long), (2, &short), (4, &short), (5, &middle)] {
        assert_eq!((&whole(&joint, i), joint.verdict(i)), (bytes, Verdict::Done));
    }
    let from_third: Vec<_> = joint.all_macs(3..6).map(|(dst, _)| dst.octets()[0]).collect();
    assert_eq!((joint.any_held(), from_third), (false, vec![2, 2, 3]));
    let sum = Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    let mut unfinished = Batch::new();
    unfinished.add_parts(&short, [], sum).unwrap();
    assert!(joint.needs() == Offloads::NONE && joint.append(&unfinished));
    assert_eq!((joint.needs(), joint.offload(6)), (sum.needs(), sum));
    assert!(first.is_plain() && !unfinished.is_plain());
}

#[test]
fn what_became_of_frames_outlives_their_bytes() {
    let mut joint = Batch::joint();
    let bytes = vec![0; 300];
    assert!(joint.append(&batch(&bytes, 4)));
    joint.hold(2);
    let joint: Batch<'static> = joint.without_pieces();
    drop(bytes);
    let held: Vec<_> = (0..4).map(|i| joint.verdict(i) == Verdict::Held).collect();
    assert_eq!((held, joint.frame_len(3)), (vec![false, false, true, false], 300));
    assert!(joint.frame(0).is_none(), "its bytes are gone");
}

#[test]
fn a_batch_that_does_not_fit_leaves_all_as_it_was() {
    let bytes = [7; 60];
    let mut joint = Batch::joint();
    for _ in 1..JOINT / BATCH {
        assert!(joint.append(&batch(&bytes, BATCH)));
    }
    assert!(joint.append(&batch(&bytes, BATCH - 1)));
    assert!(!joint.append(&batch(&bytes, 2)));
    assert_eq!((joint.len(), joint.bytes()), (JOINT - 1, 60 * (JOINT as u64 - 1)));
    assert!(joint.append(&batch(&bytes, 1)) && !joint.append(&batch(&bytes, 1)));
    assert!(!Batch::new().append(&joint), "one of a port is smaller");
    // Frames in many pieces.
    let bytes = [7; 6000];
    let pieces: Vec<_> = bytes.chunks(10).map(Slice::from_bytes).collect();
    let mut many = Batch::new();
    (0..6).for_each(|_| many.add(&pieces, Offload::NONE).unwrap());
    assert!(!many.is_plain());
    let mut joint = Batch::joint();
    assert!(joint.append(&many) && !joint.append(&many));
    assert_eq!((joint.len(), whole(&joint, 5)), (6, bytes.to_vec()));
}
