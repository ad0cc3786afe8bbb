//! What is said to a holder. Both ends may be of different releases: numbers have fixed widths, and
//! [`VERSION`] is compared first.

use rustix::io::Errno;

/// Of this conversation. A holder may be older than the switch that it meets.
pub const VERSION: u8 = 1;

/// Longest name of what is held.
pub const MAX_NAME: usize = 64;
/// Most bytes that are held under one name.
pub const MAX_BYTES: usize = 32 << 10;
/// In place of a name: all of them. No switch holds anything under it.
pub const ALL: &[u8] = b"";
/// Most names that are held.
pub const MAX_NAMES: usize = 1024;
/// Most descriptors that are held under one name: the kernel passes on no more at once.
pub const MAX_HELD: usize = 253;

/// Bytes that each packet begins with: what it is, the length of the name, the number of
/// descriptors, a number. Name and bytes follow.
const HEAD: usize = 8;

/// Longest packet.
pub const MAX_PACKET: usize = HEAD + MAX_NAME + MAX_BYTES;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A switch introduces itself; its number is how many seconds it wants things to be held. Its
    /// pidfd comes along, and one byte: [`VERSION`].
    Hello = 1,
    /// Hold descriptors and bytes under a name, in place of what is held there.
    Put = 2,
    /// Hold nothing under a name any more.
    Forget = 3,
    /// What is held at a place; its number is the place.
    Get = 4,
    /// Hold nothing any more, and end.
    End = 5,
    /// The answer that it was done; its number is how many names there are.
    Done = 6,
    /// The answer that it was not; its number is that of an error. Nothing has changed.
    Refused = 7,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Packet<'p> {
    pub kind: Kind,
    pub number: u32,
    /// Descriptors that were sent along. Fewer arrive where a process has too many open.
    pub fds: u16,
    pub name: &'p [u8],
    pub bytes: &'p [u8],
}

impl<'p> Packet<'p> {
    /// One without name, bytes and descriptors.
    pub fn plain(kind: Kind, number: u32) -> Self {
        Self { kind, number, fds: 0, name: &[], bytes: &[] }
    }

    /// The answer that `errno` stands in the way.
    pub fn refused(errno: Errno) -> Self {
        Self::plain(Kind::Refused, errno.raw_os_error().unsigned_abs())
    }

    /// Appends it to `to`.
    ///
    /// # Errors
    /// `NAMETOOLONG` or `TOOBIG`.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<(), Errno> {
        let name = u8::try_from(self.name.len()).ok().filter(|n| usize::from(*n) <= MAX_NAME);
        let name = name.ok_or(Errno::NAMETOOLONG)?;
        if self.bytes.len() > MAX_BYTES || usize::from(self.fds) > MAX_HELD {
            return Err(Errno::TOOBIG);
        }
        to.extend([self.kind as u8, name]);
        to.extend(self.fds.to_le_bytes());
        to.extend(self.number.to_le_bytes());
        to.extend(self.name);
        to.extend(self.bytes);
        Ok(())
    }

    /// The packet that `bytes` are, if they are one.
    pub fn decode(bytes: &'p [u8]) -> Option<Self> {
        let (&[kind, name, low, high, a, b, c, d], rest) = bytes.split_first_chunk::<HEAD>()?;
        let kinds = [Kind::Hello, Kind::Put, Kind::Forget, Kind::Get, Kind::End, Kind::Done];
        let mut kinds = kinds.into_iter().chain([Kind::Refused]);
        let kind = kinds.find(|known| *known as u8 == kind)?;
        let (name, bytes) = rest.split_at_checked(name.into())?;
        let (fds, number) = (u16::from_le_bytes([low, high]), u32::from_le_bytes([a, b, c, d]));
        (name.len() <= MAX_NAME).then_some(Self { kind, number, fds, name, bytes })
    }
}
