//! Packets that are longer than the link behind a port carries: dropped, and their senders told.
//!
//! A sender is told a hundred times a second at most, whatever it sends.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::headers::{Headers, TOO_BIG, too_big};
use vmlan_frame::{Batch, Gso, Offload, Reason};
use vmlan_ram::Slice;

use super::{Pass, Way, batch_frame};
use crate::{MAX_PORTS, PortId};

/// Nanoseconds between two answers to one port.
const PAUSE_NS: u64 = 10_000_000;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// When each port may be told again.
#[derive(Debug)]
pub(crate) struct Told(Box<[AtomicU64]>);

impl Default for Told {
    fn default() -> Self {
        Self((0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Told {
    /// True if `port` may be told at `now`.
    pub(crate) fn may(&self, port: PortId, now: u64) -> bool {
        self.0.get(port.index()).is_some_and(|next| next.load(Ordering::Relaxed) <= now)
    }

    fn tell(&self, port: PortId, now: u64) {
        if let Some(next) = self.0.get(port.index()) {
            next.store(now.saturating_add(PAUSE_NS), Ordering::Relaxed);
        }
    }
}

/// True if the packet in frame `i`, or a segment that it is still to be cut to, is longer than
/// `mtu`.
pub(crate) fn exceeds(mtu: u16, batch: &Batch<'_>, i: usize) -> bool {
    let (mtu, len) = (usize::from(mtu), batch.frame_len(i));
    if len <= ETHERNET + mtu {
        return false;
    }
    let offload = batch.offload(i);
    let most = match offload.gso {
        Gso::None => len,
        _ => len.min(usize::from(offload.hdr_len) + usize::from(offload.gso_size)),
    };
    most.saturating_sub(Headers::parse(batch.head(i), len).l3) > mtu
}

impl Pass<'_> {
    /// Takes frames from `list` that are too long for `to`.
    #[cold]
    pub(super) fn drop_too_long(&mut self, batch: &mut Batch<'_>, to: PortId, list: &mut Vec<u16>) {
        let Some(entry) = self.table.get(to).filter(|e| e.port.is_up()) else { return };
        let Some(mtu) = entry.policy.mtu else { return };
        list.retain(|i| {
            let i = usize::from(*i);
            let long = exceeds(mtu, batch, i);
            if long {
                // Counted first: whoever has the answer may ask.
                entry.port.counters().output.drop(Reason::TooLong, 1);
                // Only on its one way: a flood may reach the one it is for elsewhere.
                if self.state.ways.get(i) == Some(&Way::To(to)) {
                    self.answer(batch, i, mtu);
                }
                batch.set_dropped(i, Reason::TooLong);
            }
            !long
        });
    }

    /// Makes what the sender of frame `i` is told.
    fn answer(&mut self, batch: &Batch<'_>, i: usize, mtu: u16) {
        let (head, len) = batch_frame(batch, i);
        let mut frame = [0; TOO_BIG];
        let told = &self.switch.told;
        if !self.entry.port.is_up() || !told.may(self.source, self.now) {
            return;
        }
        let Some(size) = too_big(head, len, mtu, &mut frame) else { return };
        told.tell(self.source, self.now);
        self.state.told = Some((size, frame));
    }

    /// Tells the source. Its transmit side is locked, its receive side is a leaf. No receiver's
    /// memory is touched meanwhile.
    #[inline]
    pub(super) fn tell_source(&mut self) {
        if let Some((size, frame)) = self.state.told.take() {
            self.tell(size, &frame);
        }
    }

    #[cold]
    fn tell(&mut self, size: usize, frame: &[u8]) {
        let spare = &mut self.state.answer;
        let mut answer = Batch::take(spare);
        let bytes = frame.get(..size).unwrap_or_default();
        if answer.add(&[Slice::from_bytes(bytes)], Offload::NONE).is_ok() {
            // Without room it is lost, as any answer may be.
            let _ = self.entry.port.push(&answer, &mut [0]);
        }
        answer.give_back(spare);
    }
}
