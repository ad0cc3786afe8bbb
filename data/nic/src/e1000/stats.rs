//! Statistics registers (SDM 13.7). Totals only ever grow; what the guest reads is their distance
//! from its last read.
//!
//! MPC, packets missed for want of receive buffers, is what the switch dropped after its time of
//! waiting for this receiver was over; RNBC counts how often a push ran out of buffers, whether or
//! not the frames were waited for.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Counters, Reason};

use crate::chip::frame_totals;
use crate::chip::state::Fields;

const START: u32 = 0x4000; // First register.
const END: u32 = 0x4100; // One past the last.
const WORDS: usize = ((END - START) / 4) as usize;

/// The statistics registers.
#[derive(Debug)]
pub struct Stats {
    /// For each register (the low one of a pair), the total at the last read. Written by the VMM's
    /// thread.
    read: [AtomicU64; WORDS],
    /// For the low register of a pair, the total at which it was read: the high one, read next,
    /// belongs to it.
    latched: [AtomicU64; WORDS],
}

impl Default for Stats {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { read: zeros(), latched: zeros() }
    }
}

/// What a register shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    /// 32 bits, that stop at the top.
    Word,
    /// The low half of 64 bits.
    Low,
    /// Their high half: reading it clears both.
    High,
}

type Total = fn(&frame_totals::Stats, &Counters) -> u64;
const NONE: Total = |_, _| 0;

/// The registers by address (table 13-2). Those of errors that this wire does not make are always
/// 0.
static TABLE: &[(u32, &str, Width, Total)] = &[
    (0x4000, "CRCERRS", Width::Word, NONE),
    (0x4004, "ALGNERRC", Width::Word, NONE),
    (0x4008, "SYMERRS", Width::Word, NONE),
    (0x400c, "RXERRC", Width::Word, NONE),
    (0x4010, "MPC", Width::Word, |_, c| c.output.dropped(Reason::ReceiverFull)),
    (0x4014, "SCC", Width::Word, NONE),
    (0x4018, "ECOL", Width::Word, NONE),
    (0x401c, "MCC", Width::Word, NONE),
    (0x4020, "LATECOL", Width::Word, NONE),
    (0x4028, "COLC", Width::Word, NONE),
    (0x4030, "DC", Width::Word, NONE),
    (0x4034, "TNCRS", Width::Word, NONE),
    (0x4038, "SEC", Width::Word, NONE),
    (0x403c, "CEXTERR", Width::Word, NONE),
    (0x4040, "RLEC", Width::Word, NONE),
    (0x4048, "XONRXC", Width::Word, NONE),
    (0x404c, "XONTXC", Width::Word, NONE),
    (0x4050, "XOFFRXC", Width::Word, NONE),
    (0x4054, "XOFFTXC", Width::Word, NONE),
    (0x4058, "FCRUC", Width::Word, NONE),
    (0x405c, "PRC64", Width::Word, |s, _| s.rx.sizes[0].get()),
    (0x4060, "PRC127", Width::Word, |s, _| s.rx.sizes[1].get()),
    (0x4064, "PRC255", Width::Word, |s, _| s.rx.sizes[2].get()),
    (0x4068, "PRC511", Width::Word, |s, _| s.rx.sizes[3].get()),
    (0x406c, "PRC1023", Width::Word, |s, _| s.rx.sizes[4].get()),
    (0x4070, "PRC1522", Width::Word, |s, _| s.rx.sizes[5].get()),
    (0x4074, "GPRC", Width::Word, |s, _| s.rx.frames.get()),
    (0x4078, "BPRC", Width::Word, |s, _| s.rx.broadcast.get()),
    (0x407c, "MPRC", Width::Word, |s, _| s.rx.multicast.get()),
    (0x4080, "GPTC", Width::Word, |s, _| s.tx.frames.get()),
    (0x4088, "GORC", Width::Low, |s, _| s.rx.bytes.get()),
    (0x408c, "GORC", Width::High, |s, _| s.rx.bytes.get()),
    (0x4090, "GOTC", Width::Low, |s, _| s.tx.bytes.get()),
    (0x4094, "GOTC", Width::High, |s, _| s.tx.bytes.get()),
    (0x40a0, "RNBC", Width::Word, |s, _| s.rx.special.get()),
    (0x40a4, "RUC", Width::Word, NONE),
    (0x40a8, "RFC", Width::Word, NONE),
    (0x40ac, "ROC", Width::Word, |s, _| s.rx.failed.get()),
    (0x40b0, "RJC", Width::Word, NONE),
    (0x40b4, "MGTPRC", Width::Word, NONE),
    (0x40b8, "MGTPDC", Width::Word, NONE),
    (0x40bc, "MGTPTC", Width::Word, NONE),
    (0x40c0, "TOR", Width::Low, |s, _| s.rx.all_bytes.get()),
    (0x40c4, "TOR", Width::High, |s, _| s.rx.all_bytes.get()),
    (0x40c8, "TOT", Width::Low, |s, _| s.tx.all_bytes.get()),
    (0x40cc, "TOT", Width::High, |s, _| s.tx.all_bytes.get()),
    (0x40d0, "TPR", Width::Word, |s, _| s.rx.all_frames.get()),
    (0x40d4, "TPT", Width::Word, |s, _| s.tx.all_frames.get()),
    (0x40d8, "PTC64", Width::Word, |s, _| s.tx.sizes[0].get()),
    (0x40dc, "PTC127", Width::Word, |s, _| s.tx.sizes[1].get()),
    (0x40e0, "PTC255", Width::Word, |s, _| s.tx.sizes[2].get()),
    (0x40e4, "PTC511", Width::Word, |s, _| s.tx.sizes[3].get()),
    (0x40e8, "PTC1023", Width::Word, |s, _| s.tx.sizes[4].get()),
    (0x40ec, "PTC1522", Width::Word, |s, _| s.tx.sizes[5].get()),
    (0x40f0, "MPTC", Width::Word, |s, _| s.tx.multicast.get()),
    (0x40f4, "BPTC", Width::Word, |s, _| s.tx.broadcast.get()),
    (0x40f8, "TSCTC", Width::Word, |s, _| s.tx.special.get()),
    (0x40fc, "TSCTFC", Width::Word, |s, _| s.tx.failed.get()),
];

impl Stats {
    /// Reads the register at `offset` as the guest does, which clears it. `None`: there is no such
    /// register.
    pub fn read(
        &self,
        offset: u32,
        sums: &frame_totals::Stats,
        counters: &Counters,
    ) -> Option<u32> {
        let (_, _, width, total) = TABLE.iter().find(|(at, ..)| *at == offset)?;
        let high = u32::from(*width == Width::High) * 4;
        let place = usize::try_from((offset - high).checked_sub(START)? / 4).ok()?;
        let (read, latched) = (self.read.get(place)?, self.latched.get(place)?);
        let (now, before) = (total(sums, counters), read.load(Ordering::Relaxed));
        Some(match width {
            Width::Word => {
                read.store(now, Ordering::Relaxed);
                // Counters stick at their largest value (SDM 13.7).
                u32::try_from(now.wrapping_sub(before)).unwrap_or(u32::MAX)
            }
            Width::Low => {
                latched.store(now, Ordering::Relaxed);
                low(now.wrapping_sub(before))
            }
            Width::High => {
                // What arrived since the low half was read is left for the next pair.
                let now = match latched.swap(0, Ordering::Relaxed) {
                    0 => now,
                    latched => latched,
                };
                read.store(now, Ordering::Relaxed);
                low(now.wrapping_sub(before) >> 32)
            }
        })
    }

    /// All registers become 0.
    pub fn clear(&self, sums: &frame_totals::Stats, counters: &Counters) {
        for (offset, _, _, total) in TABLE.iter().filter(|r| r.2 != Width::High) {
            let place = ((offset - START) / 4) as usize;
            if let (Some(read), Some(latched)) = (self.read.get(place), self.latched.get(place)) {
                read.store(total(sums, counters), Ordering::Relaxed);
                latched.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Names and totals since the chip was made, those that can be other than 0. Pairs are one
    /// number.
    pub fn totals(sums: &frame_totals::Stats, counters: &Counters) -> Vec<(&'static str, u64)> {
        let shown = TABLE.iter().filter(|(_, _, width, total)| {
            *width != Width::High && !std::ptr::fn_addr_eq(*total, NONE)
        });
        shown.map(|(_, name, _, total)| (*name, total(sums, counters))).collect()
    }
}

impl Stats {
    /// Passes what was read of them.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { read, latched } = self;
        read.iter().chain(latched).for_each(|total| io.atomic_u64(total));
    }
}

fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlan_frame::Mac;

    #[test]
    fn reading_clears_and_pairs_belong_together() {
        let (stats, counted, counters) = <(Stats, frame_totals::Stats, Counters)>::default();
        let sums = || {
            let mut sums = frame_totals::BatchTotals::default();
            sums.add_many(Mac::default(), 1514, 3_000_000);
            sums.add(Mac::BROADCAST, 42);
            sums
        };
        counted.rx.count(sums());
        let want = 1518 * 3_000_000 + 64u64;
        assert_eq!(stats.read(0x4074, &counted, &counters), Some(3_000_001));
        assert_eq!(stats.read(0x4074, &counted, &counters), Some(0));
        assert_eq!(stats.read(0x4078, &counted, &counters), Some(1));
        let low = stats.read(0x4088, &counted, &counters).unwrap();
        counted.rx.count(sums());
        let high = stats.read(0x408c, &counted, &counters).unwrap();
        assert_eq!(u64::from(high) << 32 | u64::from(low), want);
        let low = stats.read(0x4088, &counted, &counters).unwrap();
        assert_eq!(
            u64::from(stats.read(0x408c, &counted, &counters).unwrap()) << 32 | u64::from(low),
            want
        );
        stats.clear(&counted, &counters);
        assert_eq!(stats.read(0x405c, &counted, &counters), Some(0));
        assert_eq!(stats.read(0x4024, &counted, &counters), None);
        let totals = Stats::totals(&counted, &counters);
        assert!(totals.contains(&("GORC", 2 * want)) && totals.contains(&("BPRC", 2)));
    }
}
