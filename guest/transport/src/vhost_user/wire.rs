//! What goes over the socket: numbers, layouts, and what can be wrong with an answer.

use std::fs::File;
use std::io;

use crate::memory::Region;

/// VHOST_USER_F_PROTOCOL_FEATURES: the feature bit that says protocol features exist.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Bits of the protocol features that this front end can use.
#[allow(missing_docs, reason = "a comment beside each says it")]
pub mod protocol {
    pub const MQ: u64 = 1 << 0; // Several queue pairs.
    pub const LOG_SHMFD: u64 = 1 << 1; // The dirty log is a shared file.
    pub const RARP: u64 = 1 << 2; // SEND_RARP.
    pub const REPLY_ACK: u64 = 1 << 3; // Requests can ask for a reply.
    pub const NET_MTU: u64 = 1 << 4; // NET_SET_MTU.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12; // GET_INFLIGHT_FD and SET_INFLIGHT_FD.
    pub const RESET_DEVICE: u64 = 1 << 13; // RESET_DEVICE.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15; // GET_MAX_MEM_SLOTS, ADD_MEM_REG, REM_MEM_REG.
    pub const STATUS: u64 = 1 << 16; // SET_STATUS and GET_STATUS.
    /// All of these.
    pub const ALL: u64 = MQ
        | LOG_SHMFD
        | RARP
        | REPLY_ACK
        | NET_MTU
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

/// Request numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // Named as in the specification, which says what each does.
pub enum Request {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    SetMemTable = 5,
    SetLogBase = 6,
    SetLogFd = 7,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SendRarp = 19,
    NetSetMtu = 20,
    GetInflightFd = 31,
    SetInflightFd = 32,
    ResetDevice = 34,
    GetMaxMemSlots = 36,
    AddMemReg = 37,
    RemMemReg = 38,
    SetStatus = 39,
    GetStatus = 40,
}

pub(super) const FLAG_VERSION: u32 = 1;
pub(super) const FLAG_REPLY: u32 = 1 << 2;
pub(super) const FLAG_NEED_REPLY: u32 = 1 << 3;
pub(super) const HEADER: usize = 12;
pub(super) const MAX_BODY: usize = 4096;

/// What can go wrong between the front end and the back end.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ProtocolError {
    #[error("vhost-user {request:?}: the back end cannot be reached")]
    Socket { request: Request, source: io::Error },
    #[error("vhost-user {request:?} was refused with {code}")]
    Refused { request: Request, code: u64 },
    #[error("vhost-user {request:?}: {what}")]
    BadReply { request: Request, what: &'static str },
}

/// Addresses of a ring for SET_VRING_ADDR: user addresses, except the log's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddr {
    /// Descriptor table.
    pub desc: u64,
    /// Used ring.
    pub used: u64,
    /// Avail ring.
    pub avail: u64,
    /// Guest-physical address of the used ring when its writes are to be logged
    /// (VHOST_VRING_F_LOG).
    pub log: Option<u64>,
}

/// The shared file in which a back end keeps what is in flight.
#[derive(Debug)]
pub struct Inflight {
    /// Bytes to map.
    pub size: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file.
    pub file: File,
}

pub(super) fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub(super) fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub(super) fn region_u64s(region: &Region) -> [u64; 4] {
    [region.guest_phys, region.size, region.user_addr, region.offset]
}

pub(super) fn inflight_body(size: u64, offset: u64, queues: u16, ring: u16) -> Vec<u8> {
    let mut body = u64s(&[size, offset]);
    body.extend(queues.to_ne_bytes());
    body.extend(ring.to_ne_bytes());
    // What QEMU sends is the C struct with its padding, and back ends check the size.
    body.extend([0; 4]);
    body
}
