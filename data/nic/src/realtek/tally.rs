//! The statistics that both chips keep, and dump into the guest's memory when DTCCR (10h) is
//! written (RTL8139C+ datasheet, "Dump Tally Counter Command"; in the RTL8169 they are the same).
//!
//! They count from power-on: neither a software reset nor a dump clears them.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Counters, Reason};
use vmlan_ram::Map;

use crate::chip::frame_totals::Stats;
use crate::chip::state::Fields;

pub const LEN: usize = 64; // Bytes of a dump.
pub const DUMP: u32 = 1 << 3; // DTCCR, low half: dump now. Clears itself when that is done.
pub const ADDRESS: u64 = !0x3f; // DTCCR: the lowest six bits are not part of the address.

/// What a counter shows.
type Total = fn(&Stats, &Counters) -> u64;

const NONE: Total = |_, _| 0;

/// Name, bytes, total; in the order of the dump.
#[rustfmt::skip]
const TABLE: [(&str, usize, Total); 13] = [
    ("TxOk", 8, |s, _| s.tx.frames.get()),
    ("RxOk", 8, |s, _| s.rx.frames.get()),
    ("TxEr", 8, NONE),
    ("RxEr", 4, NONE),
    ("MissPkt", 2, missed),
    // Frame Alignment Errors.
    ("FAE", 2, NONE),
    ("Tx1Col", 4, NONE),
    ("TxMCol", 4, NONE),
    ("RxOkPhy", 8, |s, _| {
        s.rx.frames.get().saturating_sub(s.rx.broadcast.get() + s.rx.multicast.get())
    }),
    ("RxOkBrd", 8, |s, _| s.rx.broadcast.get()),
    ("RxOkMul", 4, |s, _| s.rx.multicast.get()),
    ("TxAbt", 2, NONE),
    ("TxUndrn", 2, NONE),
];

/// Frames for which there was no buffer.
pub fn missed(_: &Stats, counters: &Counters) -> u64 {
    counters.output.dropped(Reason::ReceiverFull)
}

/// The counters as they were at power-on.
#[derive(Debug, Default)]
pub struct Tally {
    base: [AtomicU64; TABLE.len()],
}

impl Tally {
    /// As after power-on: all are 0.
    pub fn clear(&self, stats: &Stats, counters: &Counters) {
        for (base, (_, _, total)) in self.base.iter().zip(&TABLE) {
            base.store(total(stats, counters), Ordering::Relaxed);
        }
    }

    /// Passes them.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { base } = self;
        base.iter().for_each(|total| io.atomic_u64(total));
    }

    /// What a dump holds. Counters wrap.
    pub fn bytes(&self, stats: &Stats, counters: &Counters) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let mut rest = bytes.as_mut_slice();
        for (base, (_, len, total)) in self.base.iter().zip(&TABLE) {
            let value = total(stats, counters).wrapping_sub(base.load(Ordering::Relaxed));
            let (now, later) = rest.split_at_mut((*len).min(rest.len()));
            now.iter_mut().zip(value.to_le_bytes()).for_each(|(byte, value)| *byte = value);
            rest = later;
        }
        bytes
    }

    /// Writes a dump to `address`. False: that is not in the guest's memory.
    #[must_use]
    pub fn dump(&self, stats: &Stats, counters: &Counters, map: &Map, address: u64) -> bool {
        let place = map.slice_mut(address & ADDRESS, LEN);
        place.is_some_and(|mut place| place.write(0, &self.bytes(stats, counters)) == LEN)
    }
}

/// Names and totals since the chip was made, those that can be other than 0.
pub fn totals(stats: &Stats, counters: &Counters) -> Vec<(&'static str, u64)> {
    let shown = TABLE.iter().filter(|(_, _, total)| !std::ptr::fn_addr_eq(*total, NONE));
    shown.map(|(name, _, total)| (*name, total(stats, counters))).collect()
}

#[cfg(test)]
mod tests {
    use vmlan_frame::Mac;

    use super::*;
    use crate::chip::frame_totals::BatchTotals;

    #[test]
    fn a_dump_has_all_counters_in_their_places() {
        assert_eq!(TABLE.iter().map(|row| row.1).sum::<usize>(), LEN);
        let (tally, stats, counters) = (Tally::default(), Stats::default(), Counters::default());
        let count = |n| {
            let mut sums = BatchTotals::default();
            sums.add_many(Mac::default(), 1514, n);
            sums.add_many(Mac::BROADCAST, 60, 2);
            sums.add_many(Mac::new([1, 0, 0x5e, 0, 0, 1]), 60, 3);
            stats.rx.count(sums);
        };
        count(100);
        counters.output.drop(Reason::ReceiverFull, 0x1_0007);
        let field = |at: usize, len: usize| {
            let bytes = tally.bytes(&stats, &counters);
            let mut value = [0; 8];
            value[..len].copy_from_slice(&bytes[at..at + len]);
            u64::from_le_bytes(value)
        };
        assert_eq!((field(0, 8), field(8, 8), field(28, 2)), (0, 105, 7), "MissPkt wraps");
        assert_eq!((field(40, 8), field(48, 8), field(56, 4)), (100, 2, 3));
        tally.clear(&stats, &counters);
        assert_eq!(tally.bytes(&stats, &counters), [0; LEN]);
        count(1);
        assert_eq!(field(8, 8), 6);
        assert!(totals(&stats, &counters).contains(&("RxOk", 111)));
    }
}
