//! Descriptors: layouts and bits (SDM 3.2.3 receive, 3.3.3 transmit legacy, 3.3.6 context, 3.3.7
//! data), and the bits of the registers that the data path looks at.

use crate::bits::low32;
use crate::chip::state::{Fields, Stateful};

/// Bits of a transmit descriptor's second quadword. The command byte lies at the same place in all
/// kinds.
pub mod tx {
    pub const EOP: u64 = 1 << 24; // End Of Packet. Meaningless in context descriptors.
    pub const IFCS: u64 = 1 << 25; // Insert FCS: without it the frame brings its own.
    pub const IC: u64 = 1 << 26; // Legacy: Insert Checksum at CSO over CSS to the end.
    pub const TSE: u64 = 1 << 26; // Data and context: TCP Segmentation Enable.
    pub const RS: u64 = 1 << 27; // Report Status.
    pub const RPS: u64 = 1 << 28; // Report Packet Sent; here the same as RS.
    pub const DEXT: u64 = 1 << 29; // Descriptor Extension: context or data.
    pub const VLE: u64 = 1 << 30; // VLAN Packet Enable.
    pub const IDE: u64 = 1 << 31; // Interrupt Delay Enable.
    pub const DTYP: u64 = 0xf << 20; // DTYP of extended descriptors.
    pub const DTYP_DATA: u64 = 1 << 20; // DTYP of a data descriptor; 0 is a context descriptor.
    pub const IXSM: u64 = 1 << 40; // Data: Insert IP Checksum (POPTS).
    pub const TXSM: u64 = 2 << 40; // Data: Insert TCP/UDP Checksum (POPTS).
    pub const DD: u32 = 1; // Status: Descriptor Done, in the upper doubleword.
    pub const STA: u32 = 0xf; // Status bits in the upper doubleword.
    pub const MARK: u32 = 8; // The one of them that is reserved, as our mark (`chip/held.rs`).
}

/// What a transmit descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 3.3.3.
    Legacy,
    /// 3.3.6.
    Context,
    /// 3.3.7.
    Data,
    /// A DTYP that does not exist.
    Unknown,
}

/// The kind of the descriptor whose second quadword is `word`.
#[inline]
pub fn kind(word: u64) -> Kind {
    match (word & tx::DEXT, word & tx::DTYP) {
        (0, _) => Kind::Legacy,
        (_, 0) => Kind::Context,
        (_, tx::DTYP_DATA) => Kind::Data,
        _ => Kind::Unknown,
    }
}

/// Bytes that the descriptor names: 16 bits in a legacy descriptor, 20 in a data descriptor.
#[inline]
pub fn data_len(word: u64) -> u32 {
    low32(word) & if word & tx::DEXT == 0 { 0xffff } else { 0xf_ffff }
}

/// The upper doubleword, which a write-back replaces.
#[inline]
pub fn upper(word: u64) -> u32 {
    low32(word >> 32)
}

/// The special field: the tag control information of a VLAN tag.
#[inline]
pub fn special(word: u64) -> u16 {
    let [.., a, b] = word.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Legacy: CSS and CSO.
#[inline]
pub fn legacy_sum(word: u64) -> (u8, u8) {
    let [_, _, cso, _, _, css, ..] = word.to_le_bytes();
    (css, cso)
}

/// A TCP/IP context (3.3.6). The chip keeps two: one for segmentation, one for checksums only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Where the IP checksum's range starts.
    pub ipcss: u8,
    /// Where it is stored.
    pub ipcso: u8,
    /// Its last byte; 0: the frame's end.
    pub ipcse: u16,
    /// Where the TCP/UDP checksum's range starts.
    pub tucss: u8,
    /// Where it is stored.
    pub tucso: u8,
    /// Its last byte; 0: the frame's end.
    pub tucse: u16,
    /// Payload bytes behind the headers.
    pub paylen: u32,
    /// Bytes of headers, repeated in each segment.
    pub hdrlen: u8,
    /// Payload bytes of a segment.
    pub mss: u16,
    /// TUCMD.TCP; else UDP.
    pub tcp: bool,
    /// TUCMD.IP; else IPv6.
    pub ipv4: bool,
}

impl Context {
    /// From the two quadwords of a context descriptor.
    pub fn from_words(first: u64, second: u64) -> Self {
        let [ipcss, ipcso, ie0, ie1, tucss, tucso, te0, te1] = first.to_le_bytes();
        let [_, _, _, tucmd, _, hdrlen, m0, m1] = second.to_le_bytes();
        Self {
            ipcss,
            ipcso,
            ipcse: u16::from_le_bytes([ie0, ie1]),
            tucss,
            tucso,
            tucse: u16::from_le_bytes([te0, te1]),
            paylen: low32(second) & 0xf_ffff,
            hdrlen,
            mss: u16::from_le_bytes([m0, m1]),
            tcp: tucmd & 1 != 0,
            ipv4: tucmd & 2 != 0,
        }
    }
}

/// Bits of a receive descriptor's second quadword: length, packet checksum, status, errors,
/// special.
pub mod rx {
    pub const DD: u64 = 1 << 32; // Descriptor Done.
    pub const EOP: u64 = 2 << 32; // End Of Packet.
    pub const IXSM: u64 = 4 << 32; // Ignore Checksum Indication.
    pub const VP: u64 = 8 << 32; // The packet was 802.1Q; its tag is in the special field.
    pub const TCPCS: u64 = 0x20 << 32; // TCP/UDP checksum calculated.
    pub const IPCS: u64 = 0x40 << 32; // IP checksum calculated.
    pub const IPE: u64 = 0x40 << 40; // IP checksum error.
    pub const RXE: u64 = 0x80 << 40; // Receive data error.
    pub const MARK: u32 = 0x80; // PIF, without DD: our mark (`chip/held.rs`).
    pub const SPECIAL_SHIFT: u32 = 48; // Where the special field begins.
}

/// TCTL (13.4.33).
pub mod tctl {
    /// Pad Short Packets.
    pub const PSP: u32 = 1 << 3;
}

/// RCTL (13.4.22).
pub mod rctl {
    pub const UPE: u32 = 1 << 3; // Unicast Promiscuous.
    pub const MPE: u32 = 1 << 4; // Multicast Promiscuous.
    pub const LPE: u32 = 1 << 5; // Long Packet Reception.
    pub const RDMTS_SHIFT: u32 = 8; // Where RDMTS begins.
    pub const MO_SHIFT: u32 = 12; // Where MO begins.
    pub const BAM: u32 = 1 << 15; // Broadcast Accept Mode.
    pub const BSIZE_SHIFT: u32 = 16; // Where BSIZE begins.
    pub const VFE: u32 = 1 << 18; // VLAN Filter Enable.
    pub const CFIEN: u32 = 1 << 19; // Canonical Form Indicator Enable.
    pub const CFI: u32 = 1 << 20; // Canonical Form Indicator.
    pub const BSEX: u32 = 1 << 25; // Buffer Size Extension.
    pub const SECRC: u32 = 1 << 26; // Strip Ethernet CRC.
    pub const FLXBUF_SHIFT: u32 = 27; // Where FLXBUF begins: buffers in KiB (82574L).
}

/// CTRL.VME (13.4.1): VLAN Mode Enable.
pub const CTRL_VME: u32 = 1 << 30;

/// RXCSUM (13.4.53).
pub mod rxcsum {
    pub const IPOFL: u32 = 1 << 8; // IP checksums are checked.
    pub const TUOFL: u32 = 1 << 9; // TCP and UDP checksums are checked.
    pub const PCSD: u32 = 1 << 13; // Descriptors have hashes, not packet checksums (82574L).
}

/// MRQC, of the 82574L.
pub mod mrqc {
    pub const QUEUES: u32 = 3; // How receive queues are used.
    pub const TWO_QUEUES: u32 = 1; // Two, by hash.
    pub const TCP4: u32 = 1 << 16; // What is hashed.
    pub const IPV4: u32 = 1 << 17;
    pub const IPV6: u32 = 3 << 19; // With or without extension headers.
    pub const TCP6: u32 = 1 << 18 | 1 << 21;
}

impl Stateful for Context {
    #[rustfmt::skip]
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self {
            ipcss, ipcso, ipcse, tucss, tucso, tucse, paylen, hdrlen, mss, tcp, ipv4,
        } = self;
        [ipcss, ipcso, tucss, tucso, hdrlen].into_iter().for_each(|n| io.u8(n));
        [ipcse, tucse, mss].into_iter().for_each(|n| io.u16(n));
        io.below(paylen, 1 << 20);
        [tcp, ipv4].into_iter().for_each(|flag| io.flag(flag));
    }
}
