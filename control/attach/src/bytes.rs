//! Integers in messages, in host order.

/// A 32-bit number of a message as a size or an index: it fits, for there are no 16-bit hosts.
#[inline]
pub const fn widen(n: u32) -> usize {
    const { assert!(usize::BITS >= u32::BITS) };
    n as usize
}

/// The length of a message of ours, which is far below 4 GiB.
#[inline]
pub fn length(len: usize) -> u32 {
    debug_assert!(u32::try_from(len).is_ok());
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A body, read by offset. What lies outside reads as 0: lengths were checked before.
#[derive(Clone, Copy)]
pub struct Body<'a>(pub &'a [u8]);

impl Body<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0; N])
    }

    /// 16 bits.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    /// 32 bits.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    /// 64 bits.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    /// Six bytes as they are.
    pub fn mac(&self, at: usize) -> [u8; 6] {
        self.array(at)
    }
}
