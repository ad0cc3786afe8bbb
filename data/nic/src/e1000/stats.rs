//! Statistics registers (SDM 13.7). Totals only ever grow; what the guest reads is their distance from its last read.
//!
//! Bytes count from the destination address through the FCS, and frames shorter than 64 bytes count as the 64 they
//! are on the wire.
//!
//! MPC, packets missed for want of receive buffers, is what the switch dropped after its time of waiting for this
//! receiver was over; RNBC counts how often a push ran out of buffers, whether or not the frames were waited for.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Counter, Counters, Mac, Reason};

/// First register.
const START: u32 = 0x4000;
/// One past the last.
const END: u32 = 0x4100;
const WORDS: usize = ((END - START) / 4) as usize;

/// Bytes of the frame check sequence.
pub const FCS: usize = 4;
/// Shortest frame on the wire, without FCS.
pub const SHORTEST: usize = 60;

/// What one side counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Side {
    /// Good frames.
    frames: Counter,
    bytes: Counter,
    broadcast: Counter,
    multicast: Counter,
    /// By length: 64, to 127, 255, 511, 1023, and longer.
    sizes: [Counter; 6],
    /// All frames that came by (TPR, TOR): with those not meant for this station.
    all_frames: Counter,
    all_bytes: Counter,
    /// RNBC; TSCTC.
    pub special: Counter,
    /// ROC; TSCTFC.
    pub failed: Counter,
}

/// The sums of one batch. Frames alike that follow each other are counted together.
#[derive(Debug, Default)]
pub struct Sums {
    frames: u64,
    bytes: u64,
    /// Of the frames alone, without padding and FCS.
    payload: u64,
    broadcast: u64,
    multicast: u64,
    sizes: [u64; 6],
    other_frames: u64,
    other_bytes: u64,
    /// Frames like the last one that are not added yet.
    same: u64,
    destination: Mac,
    len: usize,
}

/// Bytes on the wire of a frame of `len`.
#[inline]
fn wire(len: usize) -> usize {
    len.max(SHORTEST) + FCS
}

impl Sums {
    /// Counts a frame of `len` bytes.
    #[inline]
    pub fn add(&mut self, destination: Mac, len: usize) {
        if len != self.len || destination != self.destination {
            self.settle();
            (self.len, self.destination) = (len, destination);
        }
        self.same += 1;
    }

    /// Counts `n` such frames.
    pub fn add_many(&mut self, destination: Mac, len: usize, n: u64) {
        self.settle();
        (self.same, self.len, self.destination) = (n, len, destination);
    }

    /// Counts a frame that is not meant for this station.
    pub fn pass_by(&mut self, len: usize) {
        self.other_frames += 1;
        self.other_bytes += wire(len) as u64;
    }

    /// Frames counted so far, and their bytes without padding and FCS.
    pub fn frames(&mut self) -> (usize, u64) {
        self.settle();
        (usize::try_from(self.frames).unwrap_or(usize::MAX), self.payload)
    }

    fn settle(&mut self) {
        let n = std::mem::take(&mut self.same);
        let bytes = wire(self.len);
        self.frames += n;
        self.bytes += bytes as u64 * n;
        self.payload += self.len as u64 * n;
        if let Some(count) = self.sizes.get_mut(class(bytes)) {
            *count += n;
        }
        match self.destination {
            mac if !mac.is_group() => {}
            Mac::BROADCAST => self.broadcast += n,
            _ => self.multicast += n,
        }
    }
}

/// Which of the counters by length counts a frame of `n` bytes.
#[inline]
fn class(n: usize) -> usize {
    match n {
        ..65 => 0,
        65..128 => 1,
        128..256 => 2,
        256..512 => 3,
        512..1024 => 4,
        _ => 5,
    }
}

impl Side {
    /// Adds the sums of a batch. One thread at a time: whoever holds the side's lock.
    pub fn count(&self, mut sums: Sums) {
        sums.settle();
        if sums.frames > 0 {
            self.frames.add(sums.frames);
            self.bytes.add(sums.bytes);
            for (counter, n) in self.sizes.iter().zip(sums.sizes) {
                if n > 0 {
                    counter.add(n);
                }
            }
        }
        if sums.broadcast | sums.multicast > 0 {
            self.broadcast.add(sums.broadcast);
            self.multicast.add(sums.multicast);
        }
        if sums.frames | sums.other_frames > 0 {
            self.all_frames.add(sums.frames + sums.other_frames);
            self.all_bytes.add(sums.bytes + sums.other_bytes);
        }
    }
}

/// The statistics registers of a chip.
#[derive(Debug)]
pub struct Stats {
    /// Written under the transmit side's lock.
    pub tx: Side,
    /// Written under the receive side's lock.
    pub rx: Side,
    /// For each register (the low one of a pair), the total at the last read. Written by the VMM's thread.
    read: [AtomicU64; WORDS],
    /// For the low register of a pair, the total at which it was read: the high one, read next, belongs to it.
    latched: [AtomicU64; WORDS],
}

impl Default for Stats {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { tx: Side::default(), rx: Side::default(), read: zeros(), latched: zeros() }
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

type Total = fn(&Stats, &Counters) -> u64;
const NONE: Total = |_, _| 0;

/// The registers by address (table 13-2). Those of errors that this wire does not make are always 0.
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
    /// Reads the register at `offset` as the guest does, which clears it. `None`: there is no such register.
    pub fn read(&self, offset: u32, counters: &Counters) -> Option<u32> {
        let (_, _, width, total) = TABLE.iter().find(|(at, ..)| *at == offset)?;
        let high = u32::from(*width == Width::High) * 4;
        let place = usize::try_from((offset - high).checked_sub(START)? / 4).ok()?;
        let (read, latched) = (self.read.get(place)?, self.latched.get(place)?);
        let (now, before) = (total(self, counters), read.load(Ordering::Relaxed));
        Some(match width {
            Width::Word => {
                read.store(now, Ordering::Relaxed);
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
    pub fn clear(&self, counters: &Counters) {
        for (offset, _, _, total) in TABLE.iter().filter(|r| r.2 != Width::High) {
            let place = ((offset - START) / 4) as usize;
            if let (Some(read), Some(latched)) = (self.read.get(place), self.latched.get(place)) {
                read.store(total(self, counters), Ordering::Relaxed);
                latched.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Names and totals since the chip was made, those that can be other than 0. Pairs are one number.
    pub fn totals(&self, counters: &Counters) -> Vec<(&'static str, u64)> {
        let shown = TABLE.iter().filter(|(_, _, width, total)| {
            *width != Width::High && !std::ptr::fn_addr_eq(*total, NONE)
        });
        shown.map(|(_, name, _, total)| (*name, total(self, counters))).collect()
    }
}

fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_clears_and_pairs_belong_together() {
        let (stats, counters) = (Stats::default(), Counters::default());
        let sums = || {
            let mut sums = Sums::default();
            sums.add_many(Mac::default(), 1514, 3_000_000);
            sums.add(Mac::BROADCAST, 42);
            sums
        };
        stats.rx.count(sums());
        let want = 1518 * 3_000_000 + 64u64;
        assert_eq!(stats.read(0x4074, &counters), Some(3_000_001));
        assert_eq!(stats.read(0x4074, &counters), Some(0));
        assert_eq!(stats.read(0x4078, &counters), Some(1));
        let low = stats.read(0x4088, &counters).unwrap();
        stats.rx.count(sums());
        let high = stats.read(0x408c, &counters).unwrap();
        assert_eq!(u64::from(high) << 32 | u64::from(low), want);
        let low = stats.read(0x4088, &counters).unwrap();
        assert_eq!(u64::from(stats.read(0x408c, &counters).unwrap()) << 32 | u64::from(low), want);
        stats.clear(&counters);
        assert_eq!(stats.read(0x405c, &counters), Some(0));
        assert_eq!(stats.read(0x4024, &counters), None);
        let totals = stats.totals(&counters);
        assert!(totals.contains(&("GORC", 2 * want)) && totals.contains(&("BPRC", 2)));
    }
}
