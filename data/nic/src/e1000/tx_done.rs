//! Transmit, the end: what became of the frames that were lent, and their descriptors' write-back.

use vmlan_frame::{Batch, Gso, Offloads, Verdict};

use super::E1000;
use super::desc::{SIZE, split, tx, upper};
use super::irq::cause;
use super::regs::Registers;
use super::ring::{Look, Ring, add, distance};
use super::stats::Sums;
use super::tx::State;

/// Descriptors that are read together.
const CHUNK: u32 = 32;

/// Writes back all descriptors before `to`, and publishes the head (3.3.3.1: STA). Returns interrupt causes, and whether
/// every descriptor that reported its status had IDE set.
#[inline]
pub fn complete(ring: &mut Ring, regs: &Registers, look: Look, to: u32) -> (u32, bool) {
    let (mut at, mut left) = (look.head, distance(look.head, to, look.size));
    if left == 0 {
        return (0, false);
    }
    let (mut reported, mut delayed) = (false, true);
    let mut words = [[0; SIZE]; CHUNK as usize];
    while left > 0 {
        let n = left.min(CHUNK).min(look.size - at);
        let chunk = words.get_mut(..n as usize).unwrap_or_default();
        ring.copy(at, chunk);
        for (index, desc) in (at..).zip(chunk) {
            let (_, word) = split(desc);
            if word & (tx::RS | tx::RPS) != 0 {
                ring.write_status(index, upper(word) & !tx::STA | tx::DD);
                reported = true;
                delayed &= word & tx::IDE != 0;
            }
        }
        at = add(at, n, look.size);
        left -= n;
    }
    ring.publish(regs, to);
    let written = if reported { cause::TXDW } else { 0 };
    let empty = if to == look.tail { cause::TXQE } else { 0 };
    (written | empty, reported && delayed)
}

/// Notes what is held. Returns the first descriptor that is not to be written back yet.
#[inline]
pub fn settle(state: &mut State, batch: &Batch<'_>) -> u32 {
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

/// Counts the frames that are finished with; returns how many.
#[inline]
pub fn count(chip: &E1000, batch: &Batch<'_>) -> usize {
    let mut sums = Sums::default();
    let (mut frames, mut bytes) = (batch.len(), batch.bytes());
    if batch.any_held() || !Offloads::CSUM.covers(batch.needs()) {
        (frames, bytes) = count_mixed(chip, batch, &mut sums);
    } else {
        for i in 0..batch.len() {
            sums.add(batch.macs(i).0, batch.frame_len(i));
        }
    }
    chip.counters.input.count(frames, bytes);
    chip.stats.tx.count(sums);
    frames
}

/// As [`count`], where frames may be held or segmented. Returns frames and bytes.
#[inline(never)]
fn count_mixed(chip: &E1000, batch: &Batch<'_>, sums: &mut Sums) -> (usize, u64) {
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
        // The wire sees the segments (13.7: GPTC, TSCTC).
        let size = usize::from(frame.offload.gso_size).max(1);
        let headers = usize::from(frame.offload.hdr_len);
        let payload = frame.len.saturating_sub(headers);
        sums.add_many(destination, headers + size, (payload / size) as u64);
        if !payload.is_multiple_of(size) {
            sums.add(destination, headers + payload % size);
        }
        chip.stats.tx.special.add(1);
    }
    (frames, bytes)
}
