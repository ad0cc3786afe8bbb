//! Descriptors of C+ mode, which the RTL8169 also has (RTL8139C+ datasheet 5.5 and 5.6; RTL8169
//! datasheet 9.1 and 9.2, numbered from memory): 16 bytes, little-endian.
//!
//! ```text
//!   0  opts1   OWN EOR FS LS  command or status, length
//!   4  opts2   VLAN
//!   8  address of the buffer, 64 bits
//! ```
//!
//! OWN says who owns the descriptor: the chip takes it while OWN is set, and clears OWN last of
//! all. EOR ends the ring; it stays where it is when the chip writes back. The bits of a receive
//! status lie one place lower in the 8139C+: [`Status`].

/// Bytes of a descriptor.
pub const SIZE: usize = 16;

pub const OWN: u32 = 1 << 31; // opts1: the chip owns the descriptor.
pub const EOR: u32 = 1 << 30; // opts1: End Of Ring.
pub const FS: u32 = 1 << 29; // opts1: First Segment of a frame.
pub const LS: u32 = 1 << 28; // opts1: Last Segment of a frame.

/// A transmit command.
pub mod tx {
    pub const LGSEN: u32 = 1 << 27; // Large send: the frame is to be cut into segments of MSS.
    pub const MSS_SHIFT: u32 = 16; // Where MSS lies, with LGSEN.
    pub const MSS: u32 = 0x7ff; // Its 11 bits.
    pub const IPCS: u32 = 1 << 18; // Without LGSEN: insert the IP checksum.
    pub const UDPCS: u32 = 1 << 17; // Without LGSEN: insert UDP's.
    pub const TCPCS: u32 = 1 << 16; // Without LGSEN: insert TCP's.
    pub const LEN: u32 = 0xffff; // Bytes of the buffer.
    pub const TAGC: u32 = 1 << 17; // opts2: insert the tag.
}

/// opts2: our mark (`chip/held.rs`), a bit that means nothing in either ring.
pub const MARK: u32 = 1 << 31;

/// opts2 of a receive descriptor: a tag was taken out of the frame (TAVA).
pub const TAVA: u32 = 1 << 16;

/// The tag of opts2. Its two bytes stand in the order of the wire: VIDL in bits 15:8, then PRIO,
/// CFI and VIDH.
pub fn tag(opts2: u32) -> u16 {
    let [high, low, ..] = opts2.to_le_bytes();
    u16::from_be_bytes([high, low])
}

/// A tag as opts2 has it.
pub fn opts2(tci: u16) -> u32 {
    let [high, low] = tci.to_be_bytes();
    u32::from_le_bytes([high, low, 0, 0])
}

/// The doublewords opts1 and opts2 of a descriptor's first quadword.
#[inline]
pub fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// A descriptor's first quadword.
#[inline]
pub fn join(opts1: u32, opts2: u32) -> u64 {
    u64::from(opts1) | u64::from(opts2) << 32
}

/// Where the bits of a receive status lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bits of the lengths: the buffer's as the guest gives it, the frame's as the chip returns it,
    /// FCS included.
    pub len: u32,
    /// Multicast.
    pub mar: u32,
    /// To this station.
    pub pam: u32,
    /// Broadcast.
    pub bar: u32,
    /// The sum of RWT, RUNT, CRC and the like: something is wrong (RES).
    pub res: u32,
    /// Protocol: UDP/IP.
    pub udp: u32,
    /// Protocol: TCP/IP. Both: IP.
    pub tcp: u32,
    /// The IP checksum is wrong.
    pub ipf: u32,
    /// UDP's is.
    pub udpf: u32,
    /// TCP's is.
    pub tcpf: u32,
}

const fn status(len: u32) -> Status {
    Status {
        len: (1 << len) - 1,
        mar: 1 << (len + 13),
        pam: 1 << (len + 12),
        bar: 1 << (len + 11),
        res: 1 << (len + 7),
        udp: 1 << (len + 4),
        tcp: 1 << (len + 3),
        ipf: 1 << (len + 2),
        udpf: 1 << (len + 1),
        tcpf: 1 << len,
    }
}

pub const RTL8169: Status = status(14); // Of the RTL8169: lengths of 14 bits.
pub const RTL8139: Status = status(13); // Of the RTL8139C+: of 13 bits.

#[cfg(test)]
mod tests {
    use super::*;

    /// Both datasheets' tables, bit by bit (as the drivers r8169 and 8139cp know them).
    #[test]
    fn status_bits() {
        let s = RTL8169;
        assert_eq!((s.len, s.mar, s.pam, s.bar), (0x3fff, 1 << 27, 1 << 26, 1 << 25));
        assert_eq!((s.res, s.udp, s.tcp), (1 << 21, 1 << 18, 1 << 17));
        assert_eq!((s.ipf, s.udpf, s.tcpf), (1 << 16, 1 << 15, 1 << 14));
        let s = RTL8139;
        assert_eq!((s.len, s.mar, s.pam, s.bar), (0x1fff, 1 << 26, 1 << 25, 1 << 24));
        assert_eq!((s.res, s.udp, s.tcp), (1 << 20, 1 << 17, 1 << 16));
        assert_eq!((s.ipf, s.udpf, s.tcpf), (1 << 15, 1 << 14, 1 << 13));
    }

    #[test]
    fn tags_stand_in_the_order_of_the_wire() {
        // Priority 5, VLAN 123h: A1 23 on the wire.
        assert_eq!((opts2(0xa123), tag(0x000f_23a1)), (0x23a1, 0xa123));
        assert_eq!(split(join(1, 2)), (1, 2));
    }
}
