//! Counters, by queue: what GET_STATS writes into the descriptors of queues, and what the host
//! shows. Bytes are those of frames without FCS, of at least 60 each.

use std::sync::atomic::{AtomicU32, Ordering};

use vmlan_frame::Counter;

use super::shared::{RECEIVE, TRANSMIT};
use crate::chip::frame_totals::{FCS, SideStats};
use crate::chip::state::Fields;

/// Counters of a queue, as its descriptor has them: packets that were segmented (of receive queues:
/// handed over whole), their bytes; packets and bytes to one station, to groups, to all; transmit
/// queues: errors, discards; receive queues: out of buffers, errors.
pub type Figures = [u64; 10];

/// Names of the sums over all queues.
const SENT: [&str; 10] = [
    "TSO pkts tx",
    "TSO bytes tx",
    "ucast pkts tx",
    "ucast bytes tx",
    "mcast pkts tx",
    "mcast bytes tx",
    "bcast pkts tx",
    "bcast bytes tx",
    "pkts tx err",
    "pkts tx discard",
];
const RECEIVED: [&str; 10] = [
    "LRO pkts rx",
    "LRO byte rx",
    "ucast pkts rx",
    "ucast bytes rx",
    "mcast pkts rx",
    "mcast bytes rx",
    "bcast pkts rx",
    "bcast bytes rx",
    "pkts rx OOB",
    "pkts rx err",
];

/// What is counted for each queue. Totals only ever grow.
#[derive(Debug, Default)]
pub struct QueueStats {
    transmit: [SideStats; TRANSMIT],
    receive: [SideStats; RECEIVE],
}

impl QueueStats {
    /// Those of a transmit queue.
    #[inline]
    pub fn transmit(&self, number: usize) -> &SideStats {
        let [first, ..] = &self.transmit;
        self.transmit.get(number).unwrap_or(first)
    }

    /// Those of a receive queue.
    #[inline]
    pub fn receive(&self, number: usize) -> &SideStats {
        let [first, ..] = &self.receive;
        self.receive.get(number).unwrap_or(first)
    }

    /// Passes those of all queues.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { transmit, receive } = self;
        transmit.iter().chain(receive).for_each(|queue| queue.fields(io));
    }

    /// Of all queues, those for transmission first. `missed` frames were lost for want of buffers,
    /// in whichever queue: the first says so. Drivers show them as lost, so those that only had to
    /// wait are not among them.
    pub fn figures(&self, missed: u64) -> impl Iterator<Item = Figures> {
        let sent = self.transmit.iter().map(|side| figures(side, [side.failed.get(), 0]));
        let missed = std::iter::once(missed).chain(std::iter::repeat(0));
        let received = self.receive.iter().zip(missed);
        sent.chain(received.map(|(side, missed)| figures(side, [missed, side.failed.get()])))
    }

    /// Sums over all queues, by name.
    pub fn totals(&self, missed: u64) -> Vec<(&'static str, u64)> {
        let mut sums = [[0; 10]; 2];
        for (n, queue) in self.figures(missed).enumerate() {
            let [sent, received] = &mut sums;
            let sum = if n < TRANSMIT { sent } else { received };
            sum.iter_mut().zip(queue).for_each(|(sum, n)| *sum += n);
        }
        let [sent, received] = sums;
        SENT.into_iter().zip(sent).chain(RECEIVED.into_iter().zip(received)).collect()
    }
}

fn figures(side: &SideStats, [first, second]: [u64; 2]) -> Figures {
    let (groups, all) = (side.multicast.get(), side.broadcast.get());
    let fcs = |frames: u64, bytes: u64| bytes.saturating_sub(FCS as u64 * frames);
    let group_bytes = fcs(groups, side.multicast_bytes.get());
    let all_bytes = fcs(all, side.broadcast_bytes.get());
    let bytes = fcs(side.frames.get(), side.bytes.get());
    [
        side.cut.get(),
        side.cut_bytes.get(),
        side.frames.get().saturating_sub(groups + all),
        bytes.saturating_sub(group_bytes + all_bytes),
        groups,
        group_bytes,
        all,
        all_bytes,
        first,
        second,
    ]
}

/// What the thresholds are good for.
#[derive(Debug, Default)]
pub struct Economy {
    /// Transmit queues whose driver is asked not to ring, as bits.
    pub quiet: AtomicU32,
    /// Frames found in them. Under the transmit side's lock.
    pub unrung: Counter,
    /// Doorbells that were rung all the same.
    pub unasked: Counter,
    /// Frames that only the third look found.
    pub found_later: Counter,
}

impl Economy {
    /// A doorbell of a transmit queue.
    #[inline]
    pub fn rang(&self, queue: u32) {
        if self.quiet.load(Ordering::Relaxed) >> (queue & 31) & 1 != 0 {
            self.unasked.add_shared(1);
        }
    }

    /// Passes it.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { quiet, unrung, unasked, found_later } = self;
        io.atomic(quiet);
        [unrung, unasked, found_later].into_iter().for_each(|count| io.counter(count));
    }

    /// By name. A doorbell is saved by a frame that was found without.
    pub fn totals(&self) -> [(&'static str, u64); 3] {
        let unasked = self.unasked.get();
        [
            ("doorbells saved", self.unrung.get().saturating_sub(unasked)),
            ("doorbells unasked", unasked),
            ("found by the third look", self.found_later.get()),
        ]
    }
}
