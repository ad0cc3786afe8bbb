//! How many cache lines change hands for frames of 60 bytes: the model of `data/nic/PERF.md`,
//! "A frame in cache lines".

/// How frames are handed over. Rings are so large that no two batches share a line, and both sides
/// are awake: nobody writes wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Split virtqueues.
    Split,
    /// Packed ones.
    Packed,
    /// An e1000's rings, its tails in shared memory.
    E1000,
    /// The same with the shared status block.
    Csb,
}

impl Ring {
    pub(crate) const ALL: [Self; 4] = [Self::Split, Self::Packed, Self::E1000, Self::Csb];

    /// For programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Packed => "packed",
            Self::E1000 => "e1000",
            Self::Csb => "csb",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Split => "split virtqueues",
            Self::Packed => "packed virtqueues",
            Self::E1000 => "e1000, mapped doorbells",
            Self::Csb => "e1000 with CSB",
        }
    }

    fn is_virtio(self) -> bool {
        matches!(self, Self::Split | Self::Packed)
    }
}

/// What guests do with their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guest {
    /// They write each frame that they send, and read each one that they receive.
    Plain,
    /// `vmlan pkt-gen`: it writes a buffer once and sends it again and again, and of a received
    /// frame it reads the header alone, where there is one (`num_buffers`).
    PktGen,
    /// DPDK's testpmd, which sends on what it has received: only the switch writes frames and
    /// headers. It writes each descriptor of a split ring anew, and, in order, does not read what
    /// was used of its transmit ring.
    Testpmd,
}

/// Lines of one batch that travel from guest to guest through the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Of both rings: written by a guest, read by the switch.
    pub(super) to_switch: usize,
    /// Written by the switch, read by a guest.
    pub(super) to_guest: usize,
    /// Written by both in turn.
    pub(super) both: usize,
    /// Of each frame: written by the sender, read by the switch.
    pub(super) sent: usize,
    /// Written by the switch, read by the receiver.
    pub(super) received: usize,
}

impl Lines {
    /// Of a batch of `n` frames.
    pub(crate) fn of(ring: Ring, guest: Guest, n: usize) -> Self {
        // Descriptors have 16 bytes, used entries 8. In both rings each side tells of a batch once.
        let (descriptors, used) = (n.div_ceil(4), n.div_ceil(8));
        let (to_switch, to_guest, both) = match (ring, guest) {
            // Descriptors and heads stay as they are.
            (Ring::Split, Guest::Plain | Guest::PktGen) => (2, 2 + 2 * used, 0),
            (Ring::Split, Guest::Testpmd) => (2 + 2 * descriptors, 2 + used, 0),
            // A descriptor tells by itself.
            (Ring::Packed, _) => (0, 0, 2 * descriptors),
            // The chip sets DD in each descriptor; head and tail lie in one line.
            (Ring::E1000, _) => (0, 0, 2 * descriptors + 2),
            // Sent frames are told by the head alone. The receiver clears DD.
            (Ring::Csb, _) => (2 + descriptors, 2, descriptors),
        };
        // A header of 12 bytes and 60 of the frame reach into a second line.
        let frame = if ring.is_virtio() { 2 } else { 1 };
        let (sent, received) = match guest {
            Guest::Plain => (frame, frame),
            Guest::PktGen => (0, frame - 1),
            Guest::Testpmd => (0, frame),
        };
        Self { to_switch, to_guest, both, sent, received }
    }

    /// How often a core waits for a line that the other has, for what is in it.
    #[cfg(test)]
    fn transfers(self, n: usize) -> usize {
        self.to_switch + self.to_guest + 2 * self.both + n * (self.sent + self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quarters of a line for each frame, of a batch so large that what is told once is nothing.
    fn quarters(ring: Ring, guest: Guest) -> usize {
        let n = 1 << 20;
        Lines::of(ring, guest, n).transfers(n) * 4 / n
    }

    #[test]
    fn a_frame_costs_so_many_lines() {
        let of = |guest| Ring::ALL.map(|ring| quarters(ring, guest));
        // split: 4 + 1/4; packed: 4 + 1; e1000: 2 + 1; CSB: 2 + 3/4.
        assert_eq!(of(Guest::Plain), [17, 20, 12, 11]);
        assert_eq!(of(Guest::PktGen), [5, 8, 4, 3]);
        // 2 + 1/2 + 1/8.
        assert_eq!(quarters(Ring::Split, Guest::Testpmd), 10);
    }

    #[test]
    fn what_is_told_once_weighs_in_small_batches() {
        let of = |n| Ring::ALL.map(|ring| Lines::of(ring, Guest::Plain, n).transfers(n));
        assert_eq!(of(1), [4 + 2 + 4, 4 + 4, 2 + 8, 2 + 4 + 3]);
        assert_eq!(of(8), [32 + 2 + 4, 32 + 8, 16 + 12, 16 + 4 + 6]);
        assert_eq!(of(32), [128 + 8 + 4, 128 + 32, 64 + 36, 64 + 4 + 24]);
        assert_eq!(of(256), [1024 + 64 + 4, 1024 + 256, 512 + 260, 512 + 4 + 192]);
    }

    /// `data/nic/src/virtio/tests/packed/lines.rs` counts what our driver and our device write.
    #[test]
    fn each_side_writes_what_the_device_s_own_tests_count() {
        let split = Lines::of(Ring::Split, Guest::Plain, 128);
        assert_eq!((split.to_switch, split.to_guest), (2, 2 * (128 / 8 + 1)));
        assert_eq!(Lines::of(Ring::Packed, Guest::Plain, 128).both, 2 * 128 / 4);
    }
}
