//! Transmit, the end: what became of the frames that were lent.

use vmlan_frame::{Batch, Gso, Offloads, Verdict};

use super::transmit::{State, Transmit};
use crate::chip::frame_totals::{BatchTotals, SideStats};
use crate::chip::{Chip, ChipCore};

/// Notes what is held. Returns the first descriptor that is not to be written back yet.
#[inline]
pub fn settle<T: Transmit>(state: &mut State<T>, batch: &Batch<'_>) -> u32 {
    if batch.any_held() {
        for (i, flight) in state.lent.iter().enumerate() {
            if batch.verdict(i) == Verdict::Held
                && let Some(flight) = state.flights.get_mut(usize::from(*flight))
            {
                flight.held = true;
            }
        }
    }
    let Some(first) = state.flights.iter().position(|f| f.held) else {
        state.flights.clear();
        return state.next;
    };
    state.flights.drain(..first);
    state.flights.first().map_or(state.next, |f| f.at)
}

/// Counts the frames that are finished with, in `stats` and for the port; returns how many.
#[inline]
pub fn count<C: Chip>(core: &ChipCore<C>, stats: &SideStats, batch: &Batch<'_>) -> usize {
    let mut sums = BatchTotals::default();
    let (mut frames, mut bytes) = (batch.len(), batch.bytes());
    if batch.any_held() || !Offloads::CSUM.covers(batch.needs()) {
        (frames, bytes) = count_mixed(stats, batch, &mut sums);
    } else {
        for i in 0..batch.len() {
            sums.add(batch.macs(i).0, batch.frame_len(i));
        }
    }
    core.counters.input.count(frames, bytes);
    stats.count(sums);
    frames
}

/// As [`count`], for batches with held or segmented frames. Returns frames and bytes.
#[inline(never)]
fn count_mixed(stats: &SideStats, batch: &Batch<'_>, sums: &mut BatchTotals) -> (usize, u64) {
    let (mut frames, mut bytes) = (0, 0);
    for i in (0..batch.len()).filter(|i| batch.verdict(*i) == Verdict::Done) {
        let Some(frame) = batch.frame(i) else { break };
        frames += 1;
        bytes += frame.len as u64;
        let destination = batch.macs(i).0;
        if frame.offload.gso == Gso::None {
            sums.add(destination, frame.len);
            continue;
        }
        // The wire sees the segments (SDM 13.7: GPTC, TSCTC).
        let size = usize::from(frame.offload.gso_size).max(1);
        let headers = usize::from(frame.offload.hdr_len);
        let payload = frame.len.saturating_sub(headers);
        sums.add_many(destination, headers + size, payload / size);
        if !payload.is_multiple_of(size) {
            sums.add(destination, headers + payload % size);
        }
        stats.special.add(1);
        stats.cut.add(payload.div_ceil(size) as u64);
        stats.cut_bytes.add((frame.len + headers * (payload.div_ceil(size).max(1) - 1)) as u64);
    }
    (frames, bytes)
}
