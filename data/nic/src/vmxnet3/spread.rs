//! RSS: which receive queue a frame goes to, by the Toeplitz hash of its addresses and ports with
//! the guest's key, and the guest's table. (Microsoft, *RSS hashing types*.)

use vmlan_frame::headers::TCP;
use vmlan_frame::{Headers, Network};
use vmlan_ram::Map;

use super::shared::{Words, copy};
use crate::chip::state::{Fields, Stateful};

const KEY: usize = 40; // Bytes of the key.
const TABLE: usize = 128; // Entries of the table, at most.
const CONF: usize = 8 + KEY + TABLE; // Bytes of what the guest says about it.
const TOEPLITZ: u16 = 1; // The hash function.
const INPUT: usize = 36; // Bytes of the longest input: two addresses of IPv6, two ports.

/// Bits of the types that are asked for.
mod kind {
    pub const IPV4: u16 = 1;
    pub const TCP4: u16 = 2;
    pub const IPV6: u16 = 4;
    pub const TCP6: u16 = 8;
}

/// A hash, and of what it is, as a completion says it: 0: there is none; 1: IPv4, 2: TCP on that,
/// 3 and 4: the same of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    pub value: u32,
    pub kind: u8,
}

/// What the guest says about it.
#[derive(Clone, Debug)]
pub struct Spread {
    kinds: u16,
    key: [u8; KEY],
    /// For each half of a byte of the input, what each value adds.
    parts: Box<[[u32; 16]; 2 * INPUT]>,
    table: [u8; TABLE],
    /// Entries that are used; at least one.
    size: usize,
}

impl Spread {
    /// Reads it at `address`. `None`: it is not in memory, or says what cannot be.
    pub fn read(map: &Map, address: u64) -> Option<Self> {
        let bytes: [u8; CONF] = copy(map, address)?;
        let words = Words(&bytes);
        let size = usize::from(words.u16(6));
        if words.u16(2) != TOEPLITZ || size == 0 || size > TABLE {
            return None;
        }
        let key = *bytes.get(8..8 + KEY)?.first_chunk()?;
        let table = *bytes.get(8 + KEY..)?.first_chunk()?;
        Some(Self { kinds: words.u16(0), key, parts: parts(&key), table, size })
    }

    /// The hash of a frame of `len` bytes that begins with `head`.
    pub fn hash(&self, head: &[u8], len: usize) -> Hash {
        let h = Headers::parse(head, len);
        let Some((from, to)) = h.addresses(head) else { return Hash::default() };
        let (ip, tcp, kind) = match h.network {
            Network::Ipv4 => (kind::IPV4, kind::TCP4, 1),
            _ => (kind::IPV6, kind::TCP6, 3),
        };
        let whole = h.header_len > 0 && !h.fragment && h.protocol == TCP;
        let ports = head.get(h.l4..h.l4 + 4).filter(|_| whole && self.kinds & tcp != 0);
        let kind = match ports {
            Some(_) => kind + 1,
            None if self.kinds & ip != 0 => kind,
            None => return Hash::default(),
        };
        let input = from.iter().chain(to).chain(ports.unwrap_or_default());
        let halves = input.flat_map(|byte| [byte >> 4, byte & 15]);
        let part = |(row, half): (&[u32; 16], u8)| row.get(usize::from(half)).copied();
        let value = self.parts.iter().zip(halves).filter_map(part).fold(0, |sum, n| sum ^ n);
        Hash { value, kind }
    }

    /// The queue that the table names.
    pub fn queue(&self, hash: Hash) -> usize {
        if hash.kind == 0 {
            return 0;
        }
        self.table.get(hash.value as usize % self.size).map_or(0, |queue| usize::from(*queue))
    }
}

impl Default for Spread {
    /// All to the first queue.
    fn default() -> Self {
        let key = [0; KEY];
        Self { kinds: 0, key, parts: parts(&key), table: [0; TABLE], size: 1 }
    }
}

impl Stateful for Spread {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { kinds, key, parts: sums, table, size } = self;
        io.u16(kinds);
        io.bytes(key);
        io.bytes(table);
        io.count(size, TABLE);
        io.check(*size > 0);
        if io.restores() {
            *sums = parts(key);
        }
    }
}

/// A bit of the input adds the 32 bits of the key that begin at its place.
fn parts(key: &[u8; KEY]) -> Box<[[u32; 16]; 2 * INPUT]> {
    let mut parts = Box::new([[0; 16]; 2 * INPUT]);
    for (half, row) in parts.iter_mut().enumerate() {
        let from = |bit: usize| {
            let at = (half * 4 + bit) / 8;
            let bytes = key.get(at..at + 5).unwrap_or_default();
            let word = bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            crate::bits::low32(word >> (8 - (half * 4 + bit) % 8))
        };
        for (value, sum) in row.iter_mut().enumerate() {
            let bits = (0..4).filter(|bit| value >> (3 - bit) & 1 != 0);
            *sum = bits.fold(0, |sum, bit| sum ^ from(bit));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the cases of Microsoft's "Verifying the RSS hash calculation".
    const VERIFIED: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn spread(kinds: u16) -> Spread {
        Spread { kinds, key: VERIFIED, parts: parts(&VERIFIED), table: [0; TABLE], size: TABLE }
    }

    fn tcp4(from: [u8; 4], to: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(from.iter().chain(&to));
        frame.extend(ports.0.to_be_bytes());
        frame.extend(ports.1.to_be_bytes());
        frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn the_hash_is_that_of_the_specification() {
        for (from, to, ports, ip, tcp) in [
            ([66, 9, 149, 187], [161, 142, 100, 80], (2794, 1766), 0x323e_8fc2u32, 0x51cc_c178u32),
            ([199, 92, 111, 2], [65, 69, 140, 83], (14230, 4739), 0xd718_262a, 0xc626_b0ea),
            ([24, 19, 198, 95], [12, 22, 207, 184], (12898, 38024), 0xd2d0_a5de, 0x5c2b_394a),
        ] {
            let frame = tcp4(from, to, ports);
            let hash = |kinds| spread(kinds).hash(&frame, frame.len());
            assert_eq!(hash(3), Hash { value: tcp, kind: 2 });
            assert_eq!(hash(1), Hash { value: ip, kind: 1 });
            assert_eq!(hash(0xc), Hash::default());
        }
        let other = [0; 60];
        assert_eq!(spread(15).hash(&other, 60), Hash::default());
    }

    /// Bit by bit, over the longest input.
    #[test]
    fn every_bit_adds_its_part_of_the_key() {
        let parts = parts(&VERIFIED);
        let bit = |n: usize| VERIFIED[n / 8] >> (7 - n % 8) & 1;
        for n in 0..8 * INPUT {
            let wanted = (n..n + 32).fold(0, |sum, n| sum << 1 | u32::from(bit(n)));
            assert_eq!(parts[n / 4][8 >> (n % 4)], wanted, "bit {n}");
        }
    }

    #[test]
    fn the_table_names_the_queue() {
        let mut spread = spread(3);
        spread.size = 3;
        spread.table[..3].copy_from_slice(&[5, 6, 200]);
        let queue = |value| spread.queue(Hash { value, kind: 2 });
        assert_eq!([0, 1, 2, 3, u32::MAX].map(queue), [5, 6, 200, 5, 5]);
        assert_eq!(spread.queue(Hash { value: 1, kind: 0 }), 0);
    }
}
