//! What is said on a line. Both ends are the same program, so numbers are in the machine's order.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::MAX_FDS;
use crate::descriptor::{Descriptor, Kind, MAX_TEXT};

/// Sockets that a keeper can have, its listener aside.
pub const SLOTS: usize = 8;

/// Most bytes that one [`Request::Take`] takes.
pub const MAX_TAKE: usize = 8 << 10;

/// Bytes of a request.
pub const REQUEST: usize = 8;

/// Bytes that a reply begins with; those that were taken follow, then a line for each descriptor.
pub const HEAD: usize = 12;

/// Longest reply.
pub const REPLY: usize = HEAD + MAX_TAKE + MAX_FDS * (2 + MAX_TEXT);

/// What a keeper is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Have the listener that comes along. No reply.
    Listen,
    /// Have the socket that comes along, in this slot. No reply.
    Hold(u8),
    /// Accept a connection into this slot, and send a second descriptor of it.
    Accept(u8),
    /// Receive at most so many bytes from this slot, and send them with what is harmless of the
    /// descriptors that came with them.
    Take(u8, u32),
    /// Close what is in this slot. The reply comes afterwards.
    LetGo(u8),
    /// As [`Request::Take`], of bytes that stay where they are.
    Peek(u8, u32),
    /// Answer with this mark, which no other reply has.
    Mark(u32),
}

/// Marks begin here: never are so many bytes taken.
pub const MARKS: u32 = 1 << 31;

impl Request {
    pub fn encode(self) -> [u8; REQUEST] {
        let (op, slot, len) = match self {
            Self::Listen => (0, 0, 0),
            Self::Hold(slot) => (1, slot, 0),
            Self::Accept(slot) => (2, slot, 0),
            Self::Take(slot, len) => (3, slot, len),
            Self::LetGo(slot) => (4, slot, 0),
            Self::Peek(slot, len) => (5, slot, len),
            Self::Mark(mark) => (6, 0, mark),
        };
        let [a, b, c, d] = len.to_ne_bytes();
        [op, slot, 0, 0, a, b, c, d]
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let &[op, slot, _, _, a, b, c, d] = bytes else { return None };
        Some(match op {
            0 => Self::Listen,
            1 => Self::Hold(slot),
            2 => Self::Accept(slot),
            3 => Self::Take(slot, u32::from_ne_bytes([a, b, c, d])),
            4 => Self::LetGo(slot),
            5 => Self::Peek(slot, u32::from_ne_bytes([a, b, c, d])),
            6 => Self::Mark(u32::from_ne_bytes([a, b, c, d])),
            _ => return None,
        })
    }
}

/// In the place of an error's number: there is no such error.
const FORBIDDEN: u32 = u32::MAX;

/// What a reply begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// 0: it was done.
    pub errno: u32,
    /// Bytes that were taken.
    pub bytes: u32,
    /// Descriptors were lost.
    pub truncated: bool,
    /// Descriptors that are described.
    pub count: u8,
}

impl Head {
    /// For an outcome without bytes.
    pub fn of(outcome: Result<(), Errno>) -> Self {
        let errno = outcome.err().map_or(0, |e| e.raw_os_error().unsigned_abs());
        Self { errno, ..Self::default() }
    }

    /// The last words of a process that made a call which none makes.
    pub fn forbidden(call: i32) -> Self {
        Self { errno: FORBIDDEN, bytes: call.cast_unsigned(), ..Self::default() }
    }

    /// The call, if `packet` is such last words.
    pub fn is_forbidden(packet: &[u8]) -> Option<i32> {
        let (head, _) = Self::decode(packet)?;
        (head.errno == FORBIDDEN).then_some(head.bytes.cast_signed())
    }

    pub fn encode(self) -> [u8; HEAD] {
        let [a, b, c, d] = self.errno.to_ne_bytes();
        let [e, f, g, h] = self.bytes.to_ne_bytes();
        [a, b, c, d, e, f, g, h, self.truncated.into(), self.count, 0, 0]
    }

    pub fn decode(reply: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = reply.split_first_chunk::<HEAD>()?;
        let [a, b, c, d, e, f, g, h, truncated, count, _, _] = *head;
        let head = Self {
            errno: u32::from_ne_bytes([a, b, c, d]),
            bytes: u32::from_ne_bytes([e, f, g, h]),
            truncated: truncated != 0,
            count,
        };
        Some((head, rest))
    }

    /// What the keeper was told by the system.
    pub fn outcome(self) -> Result<(), Errno> {
        match i32::try_from(self.errno) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(Errno::from_raw_os_error(errno)),
            Err(_) => Err(Errno::PROTO),
        }
    }
}

/// Writes a descriptor's line to `to`; returns its length.
pub fn encode_line(to: &mut [u8], kind: Kind, text: &[u8]) -> usize {
    let (Some((head, rest)), Ok(len)) = (to.split_first_chunk_mut(), u8::try_from(text.len()))
    else {
        return 0;
    };
    *head = [kind as u8, len];
    rest.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    2 + text.len()
}

/// The descriptors that `lines` describes. Those that were passed on come from `fds`, in order. The
/// list ends where one of them is missing: this process has too many open.
pub fn decode_lines(
    mut lines: &[u8],
    count: u8,
    mut fds: impl Iterator<Item = OwnedFd>,
) -> Option<Vec<Descriptor>> {
    let mut list = Vec::new();
    for _ in 0..count {
        let (&[kind, len], rest) = lines.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(len.into())?;
        let kinds = [Kind::Memory, Kind::Disk, Kind::Event, Kind::Other];
        let kind = kinds.into_iter().find(|k| *k as u8 == kind)?;
        match Descriptor::new(kind, text, || fds.next()) {
            Some(descriptor) => list.push(descriptor),
            None => break,
        }
        lines = rest;
    }
    Some(list)
}
