//! MAC addresses.

use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address in the low bits, first byte on the wire most significant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(u64);

impl Mac {
    /// ff:ff:ff:ff:ff:ff
    pub const BROADCAST: Self = Self(0xffff_ffff_ffff);

    /// From its six bytes in wire order.
    #[inline]
    pub const fn new(b: [u8; 6]) -> Self {
        Self(u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]]))
    }

    /// From the low 48 bits of a number.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & 0xffff_ffff_ffff)
    }

    /// As a number below 2^48.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Its six bytes in wire order.
    pub const fn octets(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Reserved for the protocols of bridges and their ports (LACP, STP, LLDP, pause):
    /// 01:80:c2:00:00:00 to 0f, which no bridge passes on (IEEE 802.1Q-2018 table 8-1).
    #[inline]
    pub const fn is_reserved(self) -> bool {
        self.0 >> 4 == 0x0180_c200_0000 >> 4
    }

    /// Broadcast or multicast: the group bit (IEEE 802.3 section 3.2.3) is set.
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0 & 0x0100_0000_0000 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.octets();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a MAC address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address: write six bytes like 52:54:00:12:34:56")]
pub struct ParseMacError(String);

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0u8; 6];
        let mut parts = s.split([':', '-']);
        for b in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2);
            let byte = part.and_then(|p| u8::from_str_radix(p, 16).ok());
            *b = byte.ok_or_else(|| ParseMacError(s.to_owned()))?;
        }
        if parts.next().is_some() {
            return Err(ParseMacError(s.to_owned()));
        }
        Ok(Self::new(bytes))
    }
}
