//! The front end of vhost-user: what a VMM sends (QEMU `docs/interop/vhost-user.rst`).
//!
//! All integers on the wire are in host order. Requests whose success matters ask for a reply when
//! REPLY_ACK was negotiated. Every wait is bounded by
//! [`REPLY_TIMEOUT`](crate::socket::REPLY_TIMEOUT).

pub mod feature;
#[cfg(test)]
mod tests;
mod wire;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::memory::Region;
use crate::numbers::narrow32;
use crate::socket::{Reply, bound_waits};
use crate::sys;

pub use wire::{F_PROTOCOL_FEATURES, Inflight, ProtocolError, Request, VringAddr, protocol};
use wire::{
    FLAG_NEED_REPLY, FLAG_REPLY, FLAG_VERSION, HEADER, MAX_BODY, inflight_body, region_u64s, u32s,
    u64s,
};

/// Queue pairs a NIC can have here: one wait watches them all.
pub const MAX_PAIRS: u16 = 16;

/// One connection to a back end.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    /// Protocol features in force.
    acked: u64,
    disabled: bool,
}

impl FrontEnd {
    /// Speaks over `socket`, which must be connected.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        bound_waits(&socket)?;
        Ok(Self { socket, acked: 0, disabled: false })
    }

    /// Was this protocol feature negotiated?
    pub fn has(&self, feature: u64) -> bool {
        self.acked & feature != 0
    }

    /// Do rings wait for SET_VRING_ENABLE? Only when the protocol features were acknowledged.
    pub fn rings_start_disabled(&self) -> bool {
        self.disabled
    }

    fn send(
        &self,
        request: Request,
        flags: u32,
        body: &[u8],
        fds: &[RawFd],
    ) -> Result<(), ProtocolError> {
        let size = narrow32(body.len() as u64);
        let mut message = u32s(&[request as u32, FLAG_VERSION | flags, size]);
        message.extend_from_slice(body);
        sys::send_all(self.socket.as_fd(), &message, fds)
            .map_err(|source| ProtocolError::Socket { request, source })
    }

    fn receive(&self, request: Request) -> Result<Reply, ProtocolError> {
        let mut header = [0; HEADER];
        let mut fds = Vec::new();
        self.fill(request, &mut header, &mut fds)?;
        let half = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let bad = |what| ProtocolError::BadReply { request, what };
        if half(0) != request as u32 {
            return Err(bad("the reply is to another request"));
        }
        if half(4) & FLAG_REPLY == 0 {
            return Err(bad("the answer is not marked as a reply"));
        }
        let size = half(8) as usize;
        if size > MAX_BODY {
            return Err(bad("the reply is too long"));
        }
        let mut body = vec![0; size];
        self.fill(request, &mut body, &mut fds)?;
        Ok(Reply { body, fds })
    }

    fn fill(
        &self,
        request: Request,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ProtocolError> {
        sys::recv_all(self.socket.as_fd(), bytes, fds)
            .map_err(|source| ProtocolError::Socket { request, source })
    }

    /// A request with no answer of its own: with REPLY_ACK its success is asked for.
    fn set(&self, request: Request, body: &[u8], fds: &[RawFd]) -> Result<(), ProtocolError> {
        let acked = self.has(protocol::REPLY_ACK);
        self.send(request, if acked { FLAG_NEED_REPLY } else { 0 }, body, fds)?;
        if !acked {
            return Ok(());
        }
        match self.u64_of(request, &self.receive(request)?)? {
            0 => Ok(()),
            code => Err(ProtocolError::Refused { request, code }),
        }
    }

    fn u64_of(&self, request: Request, reply: &Reply) -> Result<u64, ProtocolError> {
        let bytes = <[u8; 8]>::try_from(reply.body.as_slice());
        bytes
            .map(u64::from_ne_bytes)
            .or(Err(ProtocolError::BadReply { request, what: "the reply is not 8 bytes long" }))
    }

    fn get(&self, request: Request) -> Result<u64, ProtocolError> {
        self.send(request, 0, &[], &[])?;
        self.u64_of(request, &self.receive(request)?)
    }

    /// GET_FEATURES: all virtio features the device has.
    pub fn features(&self) -> Result<u64, ProtocolError> {
        self.get(Request::GetFeatures)
    }

    /// SET_FEATURES.
    pub fn set_features(&mut self, features: u64) -> Result<(), ProtocolError> {
        self.disabled = features & F_PROTOCOL_FEATURES != 0;
        self.set(Request::SetFeatures, &u64s(&[features]), &[])
    }

    /// GET_PROTOCOL_FEATURES and SET_PROTOCOL_FEATURES with what is in `wanted` too; returns what
    /// is in force.
    pub fn negotiate_protocol(&mut self, wanted: u64) -> Result<u64, ProtocolError> {
        let common = self.get(Request::GetProtocolFeatures)? & wanted;
        self.send(Request::SetProtocolFeatures, 0, &u64s(&[common]), &[])?;
        self.acked = common;
        Ok(common)
    }

    /// GET_QUEUE_NUM: most queues (for virtio-net, back ends count pairs or rings; both are meant
    /// as an upper bound).
    pub fn queue_num(&self) -> Result<u64, ProtocolError> {
        self.get(Request::GetQueueNum)
    }

    /// SET_OWNER: this connection owns the device.
    pub fn set_owner(&self) -> Result<(), ProtocolError> {
        self.set(Request::SetOwner, &[], &[])
    }

    /// Hands over the guest's RAM: by ADD_MEM_REG for each region when CONFIGURE_MEM_SLOTS was
    /// negotiated, else by SET_MEM_TABLE.
    pub fn set_memory(&self, regions: &[Region], fd: RawFd) -> Result<(), ProtocolError> {
        if self.has(protocol::CONFIGURE_MEM_SLOTS) {
            return regions.iter().try_for_each(|region| self.add_region(region, fd));
        }
        let count = narrow32(regions.len() as u64);
        let mut body = u32s(&[count, 0]);
        for region in regions {
            body.extend(u64s(&region_u64s(region)));
        }
        self.set(Request::SetMemTable, &body, &vec![fd; regions.len()])
    }

    /// ADD_MEM_REG.
    pub fn add_region(&self, region: &Region, fd: RawFd) -> Result<(), ProtocolError> {
        let [a, b, c, d] = region_u64s(region);
        self.set(Request::AddMemReg, &u64s(&[0, a, b, c, d]), &[fd])
    }

    /// REM_MEM_REG: after the answer the back end must not touch the region.
    pub fn remove_region(&self, region: &Region) -> Result<(), ProtocolError> {
        let [a, b, c, d] = region_u64s(region);
        self.set(Request::RemMemReg, &u64s(&[0, a, b, c, d]), &[])
    }

    fn set_vring_state(&self, request: Request, index: u32, num: u32) -> Result<(), ProtocolError> {
        self.set(request, &u32s(&[index, num]), &[])
    }

    /// SET_VRING_NUM: descriptors of a ring.
    pub fn set_vring_num(&self, index: u32, num: u16) -> Result<(), ProtocolError> {
        self.set_vring_state(Request::SetVringNum, index, num.into())
    }

    /// SET_VRING_BASE: the avail index to go on from.
    pub fn set_vring_base(&self, index: u32, base: u32) -> Result<(), ProtocolError> {
        self.set_vring_state(Request::SetVringBase, index, base)
    }

    /// SET_VRING_ENABLE.
    pub fn set_vring_enable(&self, index: u32, enable: bool) -> Result<(), ProtocolError> {
        self.set_vring_state(Request::SetVringEnable, index, enable.into())
    }

    /// GET_VRING_BASE: stops the ring; the answer is the avail index the back end would go on from.
    pub fn get_vring_base(&self, index: u32) -> Result<u32, ProtocolError> {
        let request = Request::GetVringBase;
        self.send(request, 0, &u32s(&[index, 0]), &[])?;
        let [a, b, c, d, base @ ..] = self.u64_of(request, &self.receive(request)?)?.to_ne_bytes();
        if u32::from_ne_bytes([a, b, c, d]) != index {
            return Err(ProtocolError::BadReply { request, what: "the reply is for another ring" });
        }
        Ok(u32::from_ne_bytes(base))
    }

    /// SET_VRING_ADDR.
    pub fn set_vring_addr(&self, index: u32, addr: VringAddr) -> Result<(), ProtocolError> {
        let mut body = u32s(&[index, addr.log.is_some().into()]);
        body.extend(u64s(&[addr.desc, addr.used, addr.avail, addr.log.unwrap_or(0)]));
        self.set(Request::SetVringAddr, &body, &[])
    }

    /// SET_VRING_KICK: the eventfd that is our doorbell.
    pub fn set_vring_kick(&self, index: u32, fd: BorrowedFd<'_>) -> Result<(), ProtocolError> {
        self.set(Request::SetVringKick, &u64s(&[index.into()]), &[fd.as_raw_fd()])
    }

    /// SET_VRING_CALL: the eventfd that is the device's interrupt.
    pub fn set_vring_call(&self, index: u32, fd: BorrowedFd<'_>) -> Result<(), ProtocolError> {
        self.set(Request::SetVringCall, &u64s(&[index.into()]), &[fd.as_raw_fd()])
    }

    /// GET_INFLIGHT_FD for `queues` rings of `size` descriptors.
    pub fn get_inflight(&self, queues: u16, size: u16) -> Result<Inflight, ProtocolError> {
        let request = Request::GetInflightFd;
        self.send(request, 0, &inflight_body(0, 0, queues, size), &[])?;
        let mut reply = self.receive(request)?;
        let word = |at: usize| reply.body.get(at..at + 8).and_then(|part| part.try_into().ok());
        let (Some(bytes), Some(offset), Some(fd)) = (word(0), word(8), reply.fds.pop()) else {
            return Err(ProtocolError::BadReply { request, what: "no file, or no size" });
        };
        let (size, offset) = (u64::from_ne_bytes(bytes), u64::from_ne_bytes(offset));
        Ok(Inflight { size, offset, file: fd.into() })
    }

    /// SET_INFLIGHT_FD with what [`Self::get_inflight`] gave, perhaps on an earlier connection.
    pub fn set_inflight(
        &self,
        inflight: &Inflight,
        queues: u16,
        size: u16,
    ) -> Result<(), ProtocolError> {
        let body = inflight_body(inflight.size, inflight.offset, queues, size);
        self.set(Request::SetInflightFd, &body, &[inflight.file.as_raw_fd()])
    }

    /// SET_LOG_BASE with a shared file of `size` bytes: one bit for each 4 KiB of guest-physical
    /// memory.
    pub fn set_log_base(&self, size: u64, file: &File) -> Result<(), ProtocolError> {
        // The back end always answers this one (its body differs between back ends), REPLY_ACK or
        // not.
        self.send(Request::SetLogBase, 0, &u64s(&[size, 0]), &[file.as_raw_fd()])?;
        self.receive(Request::SetLogBase).map(drop)
    }

    /// SET_STATUS: the virtio device status (2.1).
    pub fn set_status(&self, status: u8) -> Result<(), ProtocolError> {
        self.set(Request::SetStatus, &u64s(&[status.into()]), &[])
    }

    /// GET_STATUS.
    pub fn status(&self) -> Result<u64, ProtocolError> {
        self.get(Request::GetStatus)
    }

    /// NET_SET_MTU, in bytes.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), ProtocolError> {
        self.set(Request::NetSetMtu, &u64s(&[mtu.into()]), &[])
    }

    /// SEND_RARP: asks the back end to announce this MAC address for the guest.
    pub fn send_rarp(&self, mac: [u8; 6]) -> Result<(), ProtocolError> {
        let mut body = [0; 8];
        body[..6].copy_from_slice(&mac);
        self.set(Request::SendRarp, &body, &[])
    }

    /// RESET_DEVICE.
    pub fn reset_device(&self) -> Result<(), ProtocolError> {
        self.set(Request::ResetDevice, &[], &[])
    }
}

impl AsFd for FrontEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
