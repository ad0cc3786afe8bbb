//! A client of vfio-user: what a VMM sends (QEMU `docs/interop/vfio-user.rst`).
//!
//! [`Client`] speaks the messages; [`VfioBus`] plays the VMM for one PCI device: it shares the
//! guest's RAM, maps what may be mapped, and hands register accesses and interrupts to and fro.
//! Integers on the wire are in host order. Every wait is bounded by
//! [`REPLY_TIMEOUT`](crate::socket::REPLY_TIMEOUT).

mod bus;
mod device;
#[cfg(test)]
mod tests;
mod wire;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::memory::Region;
use crate::socket::{Reply, bound_waits};
use crate::sys;
pub use bus::{ConnectError, VfioBus};
pub use device::{Area, DeviceInfo, IrqInfo, RegionInfo, Version, irq, region};
use wire::{BodyReader, BodyWriter, Header};
pub use wire::{Command, ProtocolError};

/// What we say about ourselves in VERSION, as QEMU does.
const CAPABILITIES: &str = concat!(
    r#"{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576,"#,
    r#""max_dma_maps":65535,"pgsizes":4096,"write_multiple":false}}"#
);

/// One connection to a server.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    next_id: Cell<u16>,
}

impl Client {
    /// Speaks over `socket`, which must be connected.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        bound_waits(&socket)?;
        Ok(Self { socket, next_id: Cell::new(0) })
    }

    /// Sends a command; returns its number.
    fn send(
        &self,
        command: Command,
        no_reply: bool,
        body: &[u8],
        fds: &[RawFd],
    ) -> Result<u16, ProtocolError> {
        /// Register accesses, all but a few of the messages, are put together without allocating.
        const SHORT: usize = 64;
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        let header = Header::command(id, command, body.len(), no_reply).encode();
        let len = header.len() + body.len();
        let mut short = [0; SHORT];
        let long;
        let message = if len <= SHORT {
            short[..header.len()].copy_from_slice(&header);
            short[header.len()..len].copy_from_slice(body);
            &short[..len]
        } else {
            long = [&header, body].concat();
            &long
        };
        sys::send_all(self.socket.as_fd(), message, fds)
            .map_err(|source| ProtocolError::Socket { command, source })?;
        Ok(id)
    }

    fn fill(
        &self,
        command: Command,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ProtocolError> {
        sys::recv_all(self.socket.as_fd(), bytes, fds)
            .map_err(|source| ProtocolError::Socket { command, source })
    }

    /// The header of the reply to message `id`, checked; what a server refuses has no body.
    fn check(&self, command: Command, id: u16, bytes: [u8; 16]) -> Result<usize, ProtocolError> {
        let header = Header::decode(bytes);
        let body = header.reply_to(command, id)?;
        if header.is_error() {
            // The body is not wanted, but the next reply starts behind it.
            self.fill(command, &mut vec![0; body], &mut Vec::new())?;
            return Err(ProtocolError::Refused { command, errno: header.error });
        }
        Ok(body)
    }

    fn receive(&self, command: Command, id: u16) -> Result<Reply, ProtocolError> {
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        self.fill(command, &mut bytes, &mut fds)?;
        let mut body = vec![0; self.check(command, id, bytes)?];
        self.fill(command, &mut body, &mut fds)?;
        Ok(Reply { body, fds })
    }

    fn call(&self, command: Command, body: &[u8], fds: &[RawFd]) -> Result<Reply, ProtocolError> {
        let id = self.send(command, false, body, fds)?;
        self.receive(command, id)
    }

    /// VERSION: 0.1 with our capabilities.
    ///
    /// # Errors
    /// See [`ProtocolError`], here and below; `BadReply` for another major version.
    pub fn version(&self) -> Result<Version, ProtocolError> {
        let (major, minor) = (0_u16, 1_u16);
        let command = Command::Version;
        let mut body = [major.to_ne_bytes(), minor.to_ne_bytes()].concat();
        body.extend_from_slice(CAPABILITIES.as_bytes());
        body.push(0);
        let reply = self.call(command, &body, &[])?;
        let bad = |what| ProtocolError::BadReply { command, what };
        let [a, b, c, d, text @ ..] = reply.body.as_slice() else {
            return Err(bad("the answer has no version in it"));
        };
        let version = Version {
            major: u16::from_ne_bytes([*a, *b]),
            minor: u16::from_ne_bytes([*c, *d]),
            json: String::from_utf8_lossy(text).trim_end_matches('\0').into(),
        };
        if version.major != major || version.minor > minor {
            return Err(bad("the server speaks another version"));
        }
        Ok(version)
    }

    /// DEVICE_GET_INFO.
    pub fn device_info(&self) -> Result<DeviceInfo, ProtocolError> {
        let command = Command::GetInfo;
        let reply = self.call(command, &BodyWriter::new().u32s(&[16, 0, 0, 0]).0, &[])?;
        let mut words = BodyReader::new(command, &reply.body);
        let _argsz = words.u32()?;
        Ok(DeviceInfo { flags: words.u32()?, regions: words.u32()?, irqs: words.u32()? })
    }

    /// DEVICE_GET_REGION_INFO; asked again with more room when the answer has capabilities.
    pub fn region_info(&self, index: u32) -> Result<RegionInfo, ProtocolError> {
        const PLAIN: u32 = 32;
        const MOST: u32 = 4096;
        let first = self.region_info_once(index, PLAIN)?;
        let more = first.0.clamp(PLAIN, MOST);
        if more > PLAIN { Ok(self.region_info_once(index, more)?.1) } else { Ok(first.1) }
    }

    fn region_info_once(&self, index: u32, argsz: u32) -> Result<(u32, RegionInfo), ProtocolError> {
        let command = Command::GetRegionInfo;
        let ask = BodyWriter::new().u32s(&[argsz, 0, index, 0]).u64s(&[0, 0]);
        let reply = self.call(command, &ask.0, &[])?;
        let mut words = BodyReader::new(command, &reply.body);
        let (argsz, flags, _index, capabilities) =
            (words.u32()?, words.u32()?, words.u32()?, words.u32()?);
        let (size, offset) = (words.u64()?, words.u64()?);
        let has = flags & wire::REGION_HAS_CAPABILITIES != 0 && reply.body.len() > 32;
        let areas = if has { wire::sparse_areas(&reply.body, capabilities)? } else { Vec::new() };
        Ok((argsz, RegionInfo { flags, size, offset, areas, fds: reply.fds }))
    }

    /// DEVICE_GET_IRQ_INFO.
    pub fn irq_info(&self, index: u32) -> Result<IrqInfo, ProtocolError> {
        let command = Command::GetIrqInfo;
        let reply = self.call(command, &BodyWriter::new().u32s(&[16, 0, index, 0]).0, &[])?;
        let mut words = BodyReader::new(command, &reply.body);
        let _argsz = words.u32()?;
        let flags = words.u32()?;
        let _index = words.u32()?;
        Ok(IrqInfo { flags, count: words.u32()? })
    }

    /// DEVICE_SET_IRQS for the first interrupt of kind `index`: `flags` are a DATA and an ACTION of
    /// [`irq`]; `fd` comes with DATA_EVENTFD (none: take the eventfd away).
    pub fn set_irq(
        &self,
        index: u32,
        flags: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ProtocolError> {
        let fds = fd.map(|fd| fd.as_raw_fd());
        self.set_irqs([20, flags, index, 0, 1], &[], fds.as_slice())
    }

    /// DEVICE_SET_IRQS with any content: argsz, flags, index, start, count, then `data`.
    pub fn set_irqs(
        &self,
        words: [u32; 5],
        data: &[u8],
        fds: &[RawFd],
    ) -> Result<(), ProtocolError> {
        let mut body = BodyWriter::new().u32s(&words).0;
        body.extend_from_slice(data);
        self.call(Command::SetIrqs, &body, fds).map(|_| ())
    }

    /// DMA_MAP of one region of the guest's RAM, readable and writable; without `fd` the server has
    /// to ask for its bytes.
    pub fn dma_map(&self, region: &Region, fd: Option<RawFd>) -> Result<(), ProtocolError> {
        const READ_WRITE: u32 = 3;
        let body = BodyWriter::new().u32s(&[32, READ_WRITE]).u64s(&[
            region.offset,
            region.guest_phys,
            region.size,
        ]);
        self.call(Command::DmaMap, &body.0, fd.as_slice()).map(|_| ())
    }

    /// DMA_UNMAP of a range of guest-physical addresses: answered when the server no longer touches
    /// it.
    pub fn dma_unmap(&self, guest_phys: u64, size: u64) -> Result<(), ProtocolError> {
        let body = BodyWriter::new().u32s(&[24, 0]).u64s(&[guest_phys, size]);
        self.call(Command::DmaUnmap, &body.0, &[]).map(|_| ())
    }

    /// DEVICE_RESET.
    pub fn reset(&self) -> Result<(), ProtocolError> {
        self.call(Command::Reset, &[], &[]).map(|_| ())
    }

    /// REGION_READ of `bytes.len()` bytes.
    pub fn region_read(
        &self,
        region: u32,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), ProtocolError> {
        let command = Command::RegionRead;
        let access = wire::access(region, offset, bytes.len());
        let id = self.send(command, false, &access, &[])?;
        let (mut header, mut head, mut fds) = ([0; 16], [0; 16], Vec::new());
        self.fill(command, &mut header, &mut fds)?;
        if self.check(command, id, header)? != head.len() + bytes.len() {
            return Err(ProtocolError::BadReply { command, what: "the answer has a wrong length" });
        }
        self.fill(command, &mut head, &mut fds)?;
        self.fill(command, bytes, &mut fds)
    }

    /// REGION_WRITE; `posted`: no reply is asked for.
    pub fn region_write(
        &self,
        region: u32,
        offset: u64,
        bytes: &[u8],
        posted: bool,
    ) -> Result<(), ProtocolError> {
        let command = Command::RegionWrite;
        let access = wire::access(region, offset, bytes.len());
        const SHORT: usize = 4; // Registers are not longer.
        let id = if bytes.len() <= SHORT {
            let mut body = [0; 16 + SHORT];
            body[..16].copy_from_slice(&access);
            let len = 16 + bytes.len();
            body[16..len].copy_from_slice(bytes);
            self.send(command, posted, &body[..len], &[])?
        } else {
            self.send(command, posted, &[&access, bytes].concat(), &[])?
        };
        if !posted {
            self.receive(command, id)?;
        }
        Ok(())
    }

    /// REGION_WRITE_MULTI of 32-bit values, each to an offset of a region: what QEMU 11 merges
    /// posted writes into while the server lags behind. Up to 200 in one message.
    pub fn region_write_multi(
        &self,
        region: u32,
        writes: &[(u64, u32)],
        posted: bool,
    ) -> Result<(), ProtocolError> {
        let command = Command::RegionWriteMulti;
        let mut body = BodyWriter::new().u64s(&[writes.len() as u64]);
        for (offset, value) in writes {
            body = body.u64s(&[*offset]).u32s(&[region, 4, *value, 0]);
        }
        let id = self.send(command, posted, &body.0, &[])?;
        if !posted {
            self.receive(command, id)?;
        }
        Ok(())
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
