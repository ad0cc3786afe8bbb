//! Messages as bytes: header, requests, and what each request may carry.
//!
//! From QEMU's `docs/interop/vhost-user.rst`, which names every item here. All integers are in host
//! order. The sizes and descriptor counts in [`Request::limits`] are checked before a request is
//! handled: no handler meets a body that is too short or a descriptor that it does not expect.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use vmlan_keeper::Descriptor;

pub use crate::bytes::Body;
use crate::bytes::{length, widen};
pub use crate::connection::Malformed;
use crate::connection::{self, Framing};
pub use crate::memory::RegionDesc;

/// Bytes of a header: request, flags, size.
pub const HEADER: usize = 12;
/// Longest body taken. The longest valid one (SET_MEM_TABLE with 8 regions) has 264 bytes.
pub const MAX_BODY: usize = 4096;
/// Regions of one SET_MEM_TABLE ("Memory regions description": at most 8).
pub const MAX_TABLE: usize = 8;

const VERSION_MASK: u32 = 3; // Bits 0 and 1 of the flags: the protocol's version.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3; // The sender wants a reply (with REPLY_ACK).

/// Bit of SET_VRING_KICK, CALL, ERR that says no descriptor comes along; the low 8 bits are the
/// virtqueue.
pub const NO_FD: u64 = 1 << 8;

pub mod protocol {
    #![allow(missing_docs)] // Named as in the specification.
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const NET_MTU: u64 = 1 << 4;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;

    /// What we offer. Constant: a restarted switch must offer what the one before it did.
    pub const OFFERED: u64 = MQ
        | LOG_SHMFD
        | RARP
        | REPLY_ACK
        | NET_MTU
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

macro_rules! requests {
    ($($name:ident = $number:literal $text:literal body $body:expr, fds $fds:expr;)*) => {
        /// A request we know.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // Named as in the specification.
        pub enum Request { $($name,)* }

        impl Request {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// From its number on the wire.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Its number on the wire.
            pub fn number(self) -> u32 {
                match self { $(Self::$name => $number,)* }
            }

            /// Its name in the specification.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bytes its body may have, and descriptors that may come along.
            pub fn limits(self) -> (RangeInclusive<usize>, RangeInclusive<usize>) {
                match self { $(Self::$name => ($body, $fds),)* }
            }
        }
    };
}

requests! {
    GetFeatures = 1 "GET_FEATURES" body 0..=0, fds 0..=0;
    SetFeatures = 2 "SET_FEATURES" body 8..=8, fds 0..=0;
    SetOwner = 3 "SET_OWNER" body 0..=0, fds 0..=0;
    ResetOwner = 4 "RESET_OWNER" body 0..=0, fds 0..=0;
    SetMemTable = 5 "SET_MEM_TABLE" body 8..=8 + 32 * MAX_TABLE, fds 0..=MAX_TABLE;
    SetLogBase = 6 "SET_LOG_BASE" body 16..=16, fds 1..=1;
    SetLogFd = 7 "SET_LOG_FD" body 0..=8, fds 0..=1;
    SetVringNum = 8 "SET_VRING_NUM" body 8..=8, fds 0..=0;
    SetVringAddr = 9 "SET_VRING_ADDR" body 40..=40, fds 0..=0;
    SetVringBase = 10 "SET_VRING_BASE" body 8..=8, fds 0..=0;
    GetVringBase = 11 "GET_VRING_BASE" body 8..=8, fds 0..=0;
    SetVringKick = 12 "SET_VRING_KICK" body 8..=8, fds 0..=1;
    SetVringCall = 13 "SET_VRING_CALL" body 8..=8, fds 0..=1;
    SetVringErr = 14 "SET_VRING_ERR" body 8..=8, fds 0..=1;
    GetProtocolFeatures = 15 "GET_PROTOCOL_FEATURES" body 0..=0, fds 0..=0;
    SetProtocolFeatures = 16 "SET_PROTOCOL_FEATURES" body 8..=8, fds 0..=0;
    GetQueueNum = 17 "GET_QUEUE_NUM" body 0..=0, fds 0..=0;
    SetVringEnable = 18 "SET_VRING_ENABLE" body 8..=8, fds 0..=0;
    SendRarp = 19 "SEND_RARP" body 8..=8, fds 0..=0;
    NetSetMtu = 20 "NET_SET_MTU" body 8..=8, fds 0..=0;
    // 20 bytes in the specification; C front ends send their struct, padded to 24.
    GetInflightFd = 31 "GET_INFLIGHT_FD" body 20..=24, fds 0..=0;
    SetInflightFd = 32 "SET_INFLIGHT_FD" body 20..=24, fds 1..=1;
    ResetDevice = 34 "RESET_DEVICE" body 0..=0, fds 0..=0;
    GetMaxMemSlots = 36 "GET_MAX_MEM_SLOTS" body 0..=0, fds 0..=0;
    AddMemReg = 37 "ADD_MEM_REG" body 40..=40, fds 1..=1;
    // "Back-ends should accept a descriptor here, and close it."
    RemMemReg = 38 "REM_MEM_REG" body 40..=40, fds 0..=1;
    SetStatus = 39 "SET_STATUS" body 8..=8, fds 0..=0;
    GetStatus = 40 "GET_STATUS" body 0..=0, fds 0..=0;
}

impl Request {
    /// The protocol features that must be negotiated for it.
    pub fn needs(self) -> u64 {
        match self {
            Self::GetQueueNum => protocol::MQ,
            Self::SendRarp => protocol::RARP,
            Self::NetSetMtu => protocol::NET_MTU,
            Self::SetLogBase => protocol::LOG_SHMFD,
            Self::GetInflightFd | Self::SetInflightFd => protocol::INFLIGHT_SHMFD,
            Self::ResetDevice => protocol::RESET_DEVICE,
            Self::GetMaxMemSlots | Self::AddMemReg | Self::RemMemReg => {
                protocol::CONFIGURE_MEM_SLOTS
            }
            Self::SetStatus | Self::GetStatus => protocol::STATUS,
            _ => 0,
        }
    }

    /// It may change what a front end has set up, so that the next switch has to know of it.
    pub fn changes(self) -> bool {
        match self {
            Self::GetVringBase | Self::SetLogBase => true,
            Self::SetOwner | Self::ResetOwner | Self::SetLogFd | Self::SendRarp => false,
            other => !other.has_reply(),
        }
    }

    /// Not to be done twice.
    pub fn is_once(self) -> bool {
        matches!(self, Self::AddMemReg | Self::RemMemReg)
    }

    /// The front end waits for an answer of the request's own kind, asked for or not.
    pub fn has_reply(self) -> bool {
        matches!(
            self,
            Self::GetFeatures
                | Self::SetLogBase
                | Self::GetVringBase
                | Self::GetProtocolFeatures
                | Self::GetQueueNum
                | Self::GetInflightFd
                | Self::GetMaxMemSlots
                | Self::GetStatus
        )
    }
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request's number, known to us or not.
    pub number: u32,
    /// Bytes that follow; at most [`MAX_BODY`].
    pub size: usize,
    /// The front end asks for an answer.
    pub need_reply: bool,
}

impl Header {
    /// Parses the 12 bytes a message starts with.
    ///
    /// # Errors
    /// [`Malformed`]: the connection cannot go on.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let body = Body(bytes);
        let (number, flags, size) = (body.u32(0), body.u32(4), body.u32(8));
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(Malformed::Flags(flags));
        }
        if widen(size) > MAX_BODY {
            return Err(Malformed::Oversize(size));
        }
        Ok(Self { number, size: widen(size), need_reply: flags & NEED_REPLY != 0 })
    }
}

/// One whole message from a front end.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Message {
    pub header: Header,
    pub body: Vec<u8>,
    /// The descriptors that came along. They are closed with the message, unless a handler takes
    /// them.
    pub fds: Vec<Descriptor>,
}

impl From<connection::Message<'_, Header>> for Message {
    fn from(message: connection::Message<'_, Header>) -> Self {
        Self { header: message.header, body: message.body.to_vec(), fds: message.fds }
    }
}

/// How messages are cut out of the stream. One at a time: speed does not matter here.
#[derive(Debug)]
pub struct Frames;

impl Framing for Frames {
    type Header = Header;
    const HEADER: usize = HEADER;
    const BUFFER: usize = HEADER + MAX_BODY;
    const AHEAD: bool = false;

    fn is_control(_header: &Header) -> bool {
        true
    }

    fn parse(bytes: &[u8]) -> Result<(Header, usize), Malformed> {
        let header = Header::parse(bytes.first_chunk().unwrap_or(&[0; HEADER]))?;
        Ok((header, header.size))
    }
}

#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Reply {
    pub body: Vec<u8>,
    pub fd: Option<OwnedFd>,
}

impl Reply {
    /// A 64-bit answer.
    pub fn u64(value: u64) -> Self {
        Self { body: value.to_ne_bytes().to_vec(), fd: None }
    }

    /// The answer as it goes over the wire.
    pub fn encode(&self, number: u32) -> Vec<u8> {
        let size = length(self.body.len());
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        for word in [number, VERSION | REPLY, size] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.body);
        bytes
    }
}

impl RegionDesc {
    /// The 32 bytes at `at`.
    pub fn parse(body: Body<'_>, at: usize) -> Self {
        Self {
            gpa: body.u64(at),
            size: body.u64(at + 8),
            uva: body.u64(at + 16),
            offset: body.u64(at + 24),
        }
    }

    /// As the body of ADD_MEM_REG.
    pub fn encode(&self) -> Vec<u8> {
        let words = [0, self.gpa, self.size, self.uva, self.offset];
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

/// "Vring address description".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct VirtqueueAddr {
    /// Descriptor table, as a user address like the next two.
    pub desc: u64,
    pub used: u64,
    pub avail: u64,
    /// Guest address at which writes to the used ring are logged, if they are to be.
    pub log: Option<u64>,
}

impl VirtqueueAddr {
    /// `VHOST_VRING_F_LOG`
    const LOG: u32 = 1;

    /// As the body of SET_VRING_ADDR of virtqueue `index`.
    pub fn encode(&self, index: u32) -> Vec<u8> {
        let flags = if self.log.is_some() { Self::LOG } else { 0 };
        let places = [self.desc, self.used, self.avail, self.log.unwrap_or(0)];
        let words = [index, flags].into_iter().flat_map(u32::to_ne_bytes);
        words.chain(places.into_iter().flat_map(u64::to_ne_bytes)).collect()
    }

    /// Index, flags, then four addresses.
    pub fn parse(body: Body<'_>) -> (u32, Self) {
        let log = (body.u32(4) & Self::LOG != 0).then(|| body.u64(32));
        let (desc, used, avail) = (body.u64(8), body.u64(16), body.u64(24));
        (body.u32(0), Self { desc, used, avail, log })
    }
}

/// "Inflight description".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightDesc {
    /// Bytes to map.
    pub size: u64,
    /// From this offset of the file.
    pub offset: u64,
    /// Rings it covers.
    pub queues: u16,
    /// Descriptors of each.
    pub ring_size: u16,
}

impl InflightDesc {
    /// From a body of 20 or 24 bytes.
    pub fn parse(body: Body<'_>) -> Self {
        Self {
            size: body.u64(0),
            offset: body.u64(8),
            queues: body.u16(16),
            ring_size: body.u16(18),
        }
    }

    /// As a body of `len` bytes, like the request's.
    pub fn encode(&self, len: usize) -> Vec<u8> {
        let mut body = Vec::with_capacity(len);
        body.extend(self.size.to_ne_bytes());
        body.extend(self.offset.to_ne_bytes());
        body.extend(self.queues.to_ne_bytes());
        body.extend(self.ring_size.to_ne_bytes());
        body.resize(len, 0);
        body
    }
}
