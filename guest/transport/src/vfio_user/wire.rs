//! The bytes of vfio-user messages.

use std::io;

use super::Area;
use crate::numbers::narrow32;

pub(super) const REGION_HAS_CAPABILITIES: u32 = 1 << 3; // `VFIO_REGION_INFO_FLAG_CAPS`.
const SPARSE_MMAP: u16 = 1; // `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
const HEADER: usize = 16;
/// Longest body a reply may have: nothing is asked for that needs more.
const MAX_BODY: usize = 1 << 16;

/// Command numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs)] // Named as in the specification, which says what each does.
pub enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    GetInfo = 4,
    GetRegionInfo = 5,
    GetIrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    Reset = 13,
    RegionWriteMulti = 15,
}

/// What can go wrong between client and server.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ProtocolError {
    #[error("vfio-user {command:?}: the server cannot be reached")]
    Socket { command: Command, source: io::Error },
    #[error(
        "vfio-user {command:?} was refused: {}",
        io::Error::from_raw_os_error((*errno).cast_signed())
    )]
    Refused {
        command: Command,
        /// The reply's error number (`errno(3)`); 0 when the server gave none.
        errno: u32,
    },
    #[error("vfio-user {command:?}: {what}")]
    BadReply { command: Command, what: &'static str },
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) error: u32,
}

impl Header {
    pub(super) fn command(id: u16, command: Command, body: usize, no_reply: bool) -> Self {
        let size = narrow32((HEADER + body) as u64);
        let flags = if no_reply { NO_REPLY } else { 0 };
        Self { id, command: command as u16, size, flags, error: 0 }
    }

    pub(super) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.error.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; HEADER]) -> Self {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self { id: half(0), command: half(2), size: word(4), flags: word(8), error: word(12) }
    }

    pub(super) fn is_error(self) -> bool {
        self.flags & ERROR != 0
    }

    /// Checks that this is the reply to a command; the length of its body.
    pub(super) fn reply_to(self, command: Command, id: u16) -> Result<usize, ProtocolError> {
        let bad = |what| Err(ProtocolError::BadReply { command, what });
        if self.flags & TYPE != REPLY {
            return bad("the answer is not marked as a reply");
        }
        if (self.id, self.command) != (id, command as u16) {
            return bad("the reply is to another command");
        }
        match (self.size as usize).checked_sub(HEADER) {
            None => bad("the reply is shorter than its header"),
            Some(MAX_BODY..) => bad("the reply is too long"),
            Some(body) => Ok(body),
        }
    }
}

/// What REGION_READ and REGION_WRITE start with.
pub(super) fn access(region: u32, offset: u64, count: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&offset.to_ne_bytes());
    bytes[8..12].copy_from_slice(&region.to_ne_bytes());
    bytes[12..].copy_from_slice(&narrow32(count as u64).to_ne_bytes());
    bytes
}

/// A body put together word by word.
pub(super) struct BodyWriter(pub(super) Vec<u8>);

impl BodyWriter {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(48))
    }

    pub(super) fn u32s(mut self, values: &[u32]) -> Self {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_ne_bytes()));
        self
    }

    pub(super) fn u64s(mut self, values: &[u64]) -> Self {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_ne_bytes()));
        self
    }
}

/// A body taken apart word by word.
pub(super) struct BodyReader<'a> {
    command: Command,
    bytes: &'a [u8],
}

impl<'a> BodyReader<'a> {
    pub(super) fn new(command: Command, bytes: &'a [u8]) -> Self {
        Self { command, bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (first, rest) = self.bytes.split_first_chunk::<N>().ok_or(ProtocolError::BadReply {
            command: self.command,
            what: "the answer is too short",
        })?;
        self.bytes = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, ProtocolError> {
        Ok(u16::from_ne_bytes(self.take()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, ProtocolError> {
        Ok(u32::from_ne_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, ProtocolError> {
        Ok(u64::from_ne_bytes(self.take()?))
    }
}

/// The areas of the sparse mmap capability, which may lie anywhere in the chain of capabilities.
pub(super) fn sparse_areas(body: &[u8], first: u32) -> Result<Vec<Area>, ProtocolError> {
    const MOST: usize = 16; // A chain that is longer runs in a circle.
    let command = Command::GetRegionInfo;
    let mut at = first as usize;
    for _ in 0..MOST {
        if at == 0 {
            return Ok(Vec::new());
        }
        let mut words = BodyReader::new(command, body.get(at..).unwrap_or_default());
        let (id, _version, next) = (words.u16()?, words.u16()?, words.u32()?);
        if id == SPARSE_MMAP {
            let (count, _reserved) = (words.u32()?, words.u32()?);
            // A count beyond the body ends at its first missing word.
            return (0..count)
                .map(|_| Ok(Area { offset: words.u64()?, size: words.u64()? }))
                .collect();
        }
        at = next as usize;
    }
    Err(ProtocolError::BadReply { command, what: "the chain of capabilities has no end" })
}
