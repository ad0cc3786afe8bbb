//! Frames that no check can tell apart.
//!
//! Most frames of a batch are of one flow. What [`Vlan::enter`](super::Vlan::enter) and
//! [`SourceCheck::check`](super::SourceCheck::check) say of an IPv4 packet of TCP, UDP or ICMP
//! without options rests on a few fields. A frame that has the same in all of them is not parsed
//! again.

/// Bytes looked at: Ethernet, IPv4 without options, TCP up to its data offset.
const SHORT: usize = 48;

/// The fields that count, from byte 12 on in words of eight: EtherType, version, IHL, total length,
/// fragment, TTL, protocol, addresses, ports, the length of UDP (of TCP: half the sequence number,
/// which changes seldom), TCP's data offset. Not identification and checksums.
const COUNTS: [[u8; 8]; 5] = [
    [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    [0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff],
    [0xff; 8],
    [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
    // From byte 40 on: the words overlap.
    [0, 0, 0, 0, 0, 0, 0xff, 0],
];

/// Where each word begins.
const AT: [usize; 5] = [12, 20, 28, 36, 40];

/// The fields of a frame by which it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alike([u64; 5]);

impl Alike {
    /// The fields of an untagged IPv4 packet of TCP, UDP or ICMP that has no options and is not a
    /// fragment. `None` for others: they are judged by more than these fields.
    #[inline]
    pub(crate) fn of(head: &[u8]) -> Option<Self> {
        let short = head.first_chunk::<SHORT>()?;
        let plain = short[12..15] == [0x08, 0x00, 0x45]
            && short[20] & 0x3f == 0
            && short[21] == 0
            && matches!(short[23], 1 | 6 | 17);
        plain.then(|| Self::fields(short))
    }

    /// True if the frame has the same ones.
    #[inline]
    pub(crate) fn is(&self, head: &[u8]) -> bool {
        head.first_chunk().is_some_and(|short| Self::fields(short) == *self)
    }

    #[inline]
    fn fields(short: &[u8; SHORT]) -> Self {
        let word = |at: usize| short.get(at..).and_then(|w| w.first_chunk());
        let mut fields = [0; 5];
        for ((field, at), mask) in fields.iter_mut().zip(AT).zip(COUNTS) {
            *field = word(at).map_or(0, |w| u64::from_ne_bytes(*w)) & u64::from_ne_bytes(mask);
        }
        Self(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Prefix, SourceCheck, Vlan};
    use super::*;
    use proptest::prelude::*;

    /// UDP from 10.0.0.1, 60 bytes.
    fn frame() -> Vec<u8> {
        let mut f = vec![0; 60];
        f[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        f[16..24].copy_from_slice(&[0, 46, 1, 2, 0, 0, 64, 17]);
        f[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        f[34..40].copy_from_slice(&[0, 68, 0, 67, 0, 26]);
        f
    }

    fn judge(head: &[u8]) -> (bool, bool) {
        let ips = [Prefix { address: [10, 0, 0, 0].into(), bits: 30 }];
        let source_check = SourceCheck {
            ips: Some(ips.into()),
            dhcp_guard: true,
            ra_guard: true,
            ..SourceCheck::default()
        };
        (Vlan::Access(7).enter(head).is_ok(), source_check.check(head, 60).is_ok())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn what_is_alike_is_judged_alike(
            base in proptest::collection::vec((12usize..60, any::<u8>()), 0..3),
            change in proptest::collection::vec((12usize..60, any::<u8>()), 0..4),
            tcp in any::<bool>(),
        ) {
            let mut a = frame();
            if tcp {
                (a[23], a[46]) = (6, 0x50);
            }
            base.iter().for_each(|(at, to)| a[*at] = *to);
            let mut b = a.clone();
            change.iter().for_each(|(at, to)| b[*at] = *to);
            if Alike::of(&a).is_some_and(|fields| fields.is(&b)) {
                prop_assert_eq!(judge(&a), judge(&b));
            }
        }
    }

    #[test]
    fn identification_and_checksums_do_not_count_and_the_rest_does() {
        let fields = Alike::of(&frame()).unwrap();
        for at in 12..SHORT {
            let mut other = frame();
            other[at] ^= 0x11;
            let ignored = matches!(at, 18 | 19 | 24 | 25 | 40..=45 | 47);
            assert_eq!(fields.is(&other), ignored, "byte {at}");
        }
        for (at, odd) in [(12, 0x86), (14, 0x46), (20, 0x20), (21, 1), (23, 58)] {
            let mut other = frame();
            other[at] = odd;
            assert!(Alike::of(&other).is_none(), "byte {at}");
        }
        assert!(Alike::of(&frame()[..47]).is_none() && !fields.is(&frame()[..47]));
    }
}
