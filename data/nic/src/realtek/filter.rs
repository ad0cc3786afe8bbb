//! Which frames are received: the accept bits of RCR, the station's address, and the multicast hash
//! (RTL8139C+ and RTL8169 datasheets: RCR, IDR, MAR). It is the same in both chips.
//!
//! A digest of the registers, taken again whenever one of them is written.

/// Bits of RCR (44h), the same in both chips. AR (4) and AER (5) accept runts and broken frames, of
/// which there are none here: short frames are padded on the wire.
pub mod rcr {
    pub const AAP: u32 = 1; // Accept All Physical: unicast to any station.
    pub const APM: u32 = 1 << 1; // Accept Physical Match: unicast to IDR.
    pub const AM: u32 = 1 << 2; // Accept Multicast: as the hash table says.
    pub const AB: u32 = 1 << 3; // Accept Broadcast.
}

/// How a frame was found to be for this station: what the receive descriptor says about it (BAR,
/// PAM, MAR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Unicast to IDR.
    Physical,
    /// Unicast to another (AAP).
    Other,
    /// Multicast, in the hash table.
    Multicast,
    /// Broadcast.
    Broadcast,
}

/// The registers that decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// RCR.
    pub rcr: u32,
    /// IDR0 to IDR5.
    pub own: [u8; 6],
    /// MAR0 to MAR7, the first byte lowest.
    pub mar: u64,
}

impl Rules {
    /// From IDR and MAR as pairs of doublewords.
    pub fn new(rcr: u32, idr: (u32, u32), mar: (u32, u32)) -> Self {
        let ([a, b, c, d], [e, f, ..]) = (idr.0.to_le_bytes(), idr.1.to_le_bytes());
        Self { rcr, own: [a, b, c, d, e, f], mar: u64::from(mar.0) | u64::from(mar.1) << 32 }
    }

    /// How the frame that begins with `head` is for this station; `None`: it is not.
    #[inline]
    pub fn accepts(&self, head: &[u8]) -> Option<Match> {
        let to = head.first_chunk::<6>()?;
        let (found, bits) = match to {
            to if *to == self.own && to[0] & 1 == 0 => (Match::Physical, rcr::APM | rcr::AAP),
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => (Match::Broadcast, rcr::AB),
            [first, ..] if first & 1 == 0 => (Match::Other, rcr::AAP),
            to if self.mar >> hash(*to) & 1 != 0 => (Match::Multicast, rcr::AM),
            _ => return None,
        };
        (self.rcr & bits != 0).then_some(found)
    }
}

/// The bit of MAR that stands for an address: the upper 6 bits of its CRC, sent highest bit first.
pub fn hash(address: [u8; 6]) -> u32 {
    let mut crc = u32::MAX;
    for byte in address {
        for bit in 0..8 {
            let carry = crc >> 31 ^ u32::from(byte >> bit & 1);
            crc = crc << 1 ^ if carry != 0 { 0x04c1_1db7 } else { 0 };
        }
    }
    crc >> 26
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];
    const OTHER: [u8; 6] = [0x52, 0x54, 0, 1, 2, 4];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

    /// The FCS is the complement of the CRC, bit-reversed: an independent way to the same sum.
    fn slow(address: [u8; 6]) -> u32 {
        let mut crc = u32::MAX;
        for byte in address {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
            }
        }
        crc.reverse_bits() >> 26
    }

    #[test]
    fn the_hash_is_the_crc() {
        assert_eq!(hash(GROUP), slow(GROUP));
        for n in 0..=255u8 {
            let address = [n | 1, n.rotate_left(3), 0x5e, n ^ 0x5a, 7, n.wrapping_mul(13)];
            assert_eq!(hash(address), slow(address));
        }
    }

    #[test]
    fn each_bit_lets_its_frames_in_and_no_others() {
        let idr = (0x0100_5452, 0x0302);
        let bit = hash(GROUP);
        let mar = if bit < 32 { (1 << bit, 0) } else { (0, 1 << (bit - 32)) };
        let frames = [OWN, OTHER, GROUP, [0xff; 6], [1, 0, 0x5e, 0, 0, 2]];
        let accepted = |rcr: u32| frames.map(|to| Rules::new(rcr, idr, mar).accepts(&to));
        let (own, other) = (Some(Match::Physical), Some(Match::Other));
        assert_eq!(accepted(0), [None; 5]);
        assert_eq!(accepted(rcr::APM), [own, None, None, None, None]);
        assert_eq!(accepted(rcr::AAP), [own, other, None, None, None]);
        assert_eq!(accepted(rcr::AM), [None, None, Some(Match::Multicast), None, None]);
        assert_eq!(accepted(rcr::AB), [None, None, None, Some(Match::Broadcast), None]);
        assert_eq!(accepted(0x30), [None; 5]);
        assert_eq!(Rules::new(0x3f, idr, (u32::MAX, u32::MAX)).accepts(&OWN[..5]), None);
    }
}
