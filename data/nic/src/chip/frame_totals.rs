//! What a chip counts about the frames that pass, for the registers that show it. Totals only ever
//! grow.
//!
//! Bytes count from the destination address through the FCS, and frames shorter than 64 bytes count
//! as the 64 they are on the wire.

use vmlan_frame::{Counter, Mac};

use super::state::Fields;

pub const FCS: usize = 4; // Bytes of the frame check sequence.
pub const SHORTEST: usize = 60; // Shortest frame on the wire, without FCS.

/// What one side counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SideStats {
    /// Good frames.
    pub frames: Counter,
    pub bytes: Counter,
    pub broadcast: Counter,
    pub multicast: Counter,
    /// Their bytes.
    pub broadcast_bytes: Counter,
    pub multicast_bytes: Counter,
    /// By length: 64, to 127, 255, 511, 1023, and longer.
    pub sizes: [Counter; 6],
    /// All frames that came by, including those for other stations.
    pub all_frames: Counter,
    pub all_bytes: Counter,
    /// Receiving: pushes that ran out of buffers. Transmitting: segmentations.
    pub special: Counter,
    /// Transmitting: segments cut, and their bytes. Receiving: packets that were handed over uncut.
    pub cut: Counter,
    /// See [`SideStats::cut`].
    pub cut_bytes: Counter,
    /// Receiving: frames that were too long. Transmitting: segmentations that were refused.
    pub failed: Counter,
}

/// The sums of one batch. Frames alike that follow each other are counted together.
#[derive(Debug, Default)]
pub struct BatchTotals {
    frames: usize,
    bytes: u64,
    /// Of the frames alone, without padding and FCS.
    payload: u64,
    broadcast: u64,
    multicast: u64,
    broadcast_bytes: u64,
    multicast_bytes: u64,
    sizes: [u64; 6],
    other_frames: u64,
    other_bytes: u64,
    /// Frames like the last one that are not added yet.
    same: usize,
    destination: Mac,
    len: usize,
}

/// Bytes on the wire of a frame of `len`.
#[inline]
fn wire(len: usize) -> usize {
    len.max(SHORTEST) + FCS
}

impl BatchTotals {
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
    pub fn add_many(&mut self, destination: Mac, len: usize, n: usize) {
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
        (self.frames, self.payload)
    }

    fn settle(&mut self) {
        let n = std::mem::take(&mut self.same);
        let bytes = wire(self.len);
        self.frames += n;
        let n = n as u64;
        let bytes_of_all = bytes as u64 * n;
        self.bytes += bytes_of_all;
        self.payload += self.len as u64 * n;
        if let Some(count) = self.sizes.get_mut(class(bytes)) {
            *count += n;
        }
        match self.destination {
            mac if !mac.is_group() => {}
            Mac::BROADCAST => {
                self.broadcast += n;
                self.broadcast_bytes += bytes_of_all;
            }
            _ => {
                self.multicast += n;
                self.multicast_bytes += bytes_of_all;
            }
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

impl SideStats {
    /// Adds the sums of a batch. One thread at a time: whoever holds the side's lock.
    pub fn count(&self, mut sums: BatchTotals) {
        sums.settle();
        if sums.frames > 0 {
            self.frames.add(sums.frames as u64);
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
            self.broadcast_bytes.add(sums.broadcast_bytes);
            self.multicast_bytes.add(sums.multicast_bytes);
        }
        if sums.frames > 0 || sums.other_frames > 0 {
            self.all_frames.add(sums.frames as u64 + sums.other_frames);
            self.all_bytes.add(sums.bytes + sums.other_bytes);
        }
    }
}

/// Both sides.
#[derive(Debug, Default)]
pub struct Stats {
    /// Written under the transmit side's lock.
    pub tx: SideStats,
    /// Written under the receive side's lock.
    pub rx: SideStats,
}

impl SideStats {
    /// Passes all counters.
    #[rustfmt::skip]
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self {
            frames, bytes, broadcast, multicast, broadcast_bytes, multicast_bytes, sizes,
            all_frames, all_bytes, special, cut, cut_bytes, failed,
        } = self;
        let first = [frames, bytes, broadcast, multicast, broadcast_bytes, multicast_bytes];
        let rest = [all_frames, all_bytes, special, cut, cut_bytes, failed];
        first.into_iter().chain(sizes).chain(rest).for_each(|counter| io.counter(counter));
    }
}

impl Stats {
    /// Passes those of both sides.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { tx, rx } = self;
        [tx, rx].into_iter().for_each(|side| side.fields(io));
    }
}
