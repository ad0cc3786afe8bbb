//! Descriptors and completions: 16 bytes each, little-endian. Words here are their second
//! quadwords, words 2 and 3; the first of a descriptor is the address of its buffer.
//!
//! Whose a descriptor is, its generation bit tells: both sides begin with 1 at index 0, and flip it
//! whenever they come round. The same holds for completions.

/// Transmit descriptors.
pub mod tx {
    pub const LEN: u64 = 0x3fff; // Bytes of the buffer; 0: 16384.
    pub const GENERATION: u64 = 1 << 14;
    pub const TYPE: u64 = 1 << 16; // 0: the one that there is.
    pub const PLACE_SHIFT: u32 = 18; // msscof: MSS, or where the checksum goes.
    pub const PLACE: u64 = 0x3fff; // Its 14 bits.
    pub const HEADERS_SHIFT: u32 = 32; // hlen: bytes of all headers, or where the sum begins.
    pub const HEADERS: u64 = 0x3ff; // Its 10 bits.
    pub const MODE: u64 = 3 << 42; // om: what is to be done.
    pub const SUM: u64 = 2 << 42; // A checksum.
    pub const SEGMENTS: u64 = 3 << 42; // Segments of TCP.
    pub const EOP: u64 = 1 << 44; // The frame's last.
    pub const REPORT: u64 = 1 << 45; // CQ: a completion is wanted.
    pub const TAG: u64 = 1 << 47; // ti: insert the tag.
    pub const TAG_SHIFT: u32 = 48; // tci.
}

/// Receive descriptors.
pub mod rx {
    pub const LEN: u64 = 0x3fff; // Bytes of the buffer.
    pub const BODY: u64 = 1 << 14; // It continues frames; else it is a head, where they begin.
    pub const GENERATION: u64 = 1 << 31;
}

/// Receive completions; those of transmission have only an index, a generation, and type 0.
pub mod done {
    // First quadword.
    pub const EOP: u64 = 1 << 14;
    pub const SOP: u64 = 1 << 15;
    pub const QUEUE_SHIFT: u32 = 16; // rqID: the queue, and which of its rings.
    pub const HASH_TYPE_SHIFT: u32 = 26; // rssType: of what the hash is.
    pub const NO_SUMS: u64 = 1 << 30; // cnc: checksums were not looked at.
    pub const HASH_SHIFT: u32 = 32; // RSS hash.
    pub const SEGMENTS_SHIFT: u32 = 32; // In its place: segments that a packet stands for.
    // Second quadword.
    pub const TAGGED: u64 = 1 << 15; // ts: a tag was taken out.
    pub const TAG_SHIFT: u32 = 16; // tci.
    pub const SIZE_SHIFT: u32 = 32; // Of a packet that stands for several: payload of each.
    pub const UPPER: u64 = 1 << 48; // tuc: the upper layer's checksum is right.
    pub const UDP: u64 = 1 << 49;
    pub const TCP: u64 = 1 << 50;
    pub const IP: u64 = 1 << 51; // ipc: the IP header's checksum is right.
    pub const IPV6: u64 = 1 << 52;
    pub const IPV4: u64 = 1 << 53;
    pub const TYPE: u64 = 3 << 56; // A received frame.
    pub const TYPE_UNCUT: u64 = 4 << 56; // LRO: of a packet that stands for several, with SOP.
    pub const GENERATION: u64 = 1 << 63;
}
