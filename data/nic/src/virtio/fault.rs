//! How a guest can break the rules of a ring.

/// A broken rule. The queue has stopped; its port must be reset. Per-frame trouble (a bad header, a
/// frame too long) is not a fault: the frame is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Fault {
    /// The ring's size is not a power of two up to 32768 (virtio 1.2 section 2.7).
    #[error("queue size {0} is not a power of two from 1 to 32768")]
    BadSize(u16),
    /// A packed ring of no descriptors, or of more than 32768 (virtio 1.2 section 2.8.10).
    #[error("packed queue size {0} is not from 1 to 32768")]
    BadPackedSize(u16),
    /// A packed ring whose descriptors do not say where it begins, and whose base is beyond it.
    #[error("the base {0:#x} is beyond the packed ring")]
    Base(u16),
    #[error("no ring memory at guest address {0:#x}")]
    BadRing(u64),
    #[error("there is no queue {0}")]
    NoSuchQueue(u16),
    #[error("the avail index jumped to {avail} with {next} next")]
    AvailJump { avail: u16, next: u16 },
    #[error("descriptor {0} is outside the table")]
    OutOfTable(u32),
    /// Packed rings: the id of a buffer is not below the ring's size.
    #[error("the buffer id {0} is outside the ring")]
    BufferId(u16),
    #[error("the buffer id {0} is in use already")]
    BufferIdTwice(u16),
    #[error("an event at descriptor {0}, beyond the ring")]
    EventOffset(u16),
    /// A chain has more descriptors than its table: it must be a circle.
    #[error("a descriptor chain does not end")]
    Endless,
    /// An indirect descriptor that was not negotiated, is nested, or goes on with NEXT.
    #[error("an indirect descriptor where none is allowed")]
    Indirect,
    /// An indirect table that is empty, not a multiple of 16 bytes, or above 32768 entries.
    #[error("an indirect table of {0} bytes")]
    IndirectSize(u32),
    /// A transmit buffer that the device should write, or a receive buffer that it should read.
    #[error("a buffer of the wrong direction")]
    Direction,
    #[error("no guest memory for {len} bytes at {addr:#x}")]
    BadAddress { addr: u64, len: u32 },
    #[error("a receive buffer of no bytes")]
    Empty,
}
