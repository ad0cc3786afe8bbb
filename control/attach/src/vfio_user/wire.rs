//! Messages as bytes: header, commands, and what each command may carry.
//!
//! From QEMU's `docs/interop/vfio-user.rst`, which names every item here. All integers are in host
//! order. Sizes and descriptor counts are checked before a command is handled: no handler meets a
//! body that is too short or a descriptor that it does not expect.

use std::ops::RangeInclusive;

use vmlan_keeper::MAX_FDS;

use crate::bytes::{Body, length, widen};
use crate::connection::{Framing, Malformed};

/// Bytes of a header: message ID, command, size, flags, error.
pub const HEADER: usize = 16;
/// Most bytes of one REGION_READ or REGION_WRITE. QEMU reads configuration space whole, 256 bytes.
pub const MAX_DATA: usize = 4096;
/// Bytes of a region access before its data: offset, region, count.
pub const ACCESS: usize = 16;
/// Bytes of one write of REGION_WRITE_MULTI: offset, region, count, data.
pub const ONE_WRITE: usize = 24;
/// Most writes of one REGION_WRITE_MULTI. QEMU merges as many posted writes as that while the
/// server is behind (`VFIO_USER_MULTI_MAX` in its `hw/vfio-user/protocol.h`).
pub const MAX_WRITES: usize = 200;
/// Longest REGION_WRITE: as much data as [`MAX_DATA`] allows.
const MAX_WRITE: usize = ACCESS + MAX_DATA;
/// Longest REGION_WRITE_MULTI: the number of writes, then the writes.
const MAX_MULTI: usize = 8 + MAX_WRITES * ONE_WRITE;
/// Longest body of any command.
pub const MAX_BODY: usize = if MAX_WRITE > MAX_MULTI { MAX_WRITE } else { MAX_MULTI };

/// Bits 0 to 3 of the flags: 0 is a command.
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Regions by number (`linux/vfio.h`): six BARs, the ROM, configuration space, VGA.
pub mod region {
    pub const CONFIG: u32 = 7;
    pub const COUNT: u32 = 9;
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 1 << 1;
    pub const MMAP: u32 = 1 << 2; // The client may map parts.
    pub const CAPS: u32 = 1 << 3; // There are capabilities behind the description.
    pub const SPARSE_MMAP: u16 = 1; // The capability that names the parts that may be mapped.
}

/// Interrupts by number (`linux/vfio.h`): INTx, MSI, MSI-X.
pub mod irq {
    pub const INTX: u32 = 0;
    pub const MSI: u32 = 1;
    pub const MSIX: u32 = 2;
    /// All that QEMU insists on. It asks for errors (3) and requests (4) as well, and takes no for
    /// an answer; an answer that there are 0 makes it warn its user.
    pub const COUNT: u32 = 3;
    pub const EVENTFD: u32 = 1;
    pub const MASKABLE: u32 = 1 << 1;
    /// It masks itself when it is delivered.
    pub const AUTOMASKED: u32 = 1 << 2;
    pub const NORESIZE: u32 = 1 << 3;
}

pub mod set_irqs {
    #![allow(missing_docs)] // Named as in the specification.
    pub const DATA_NONE: u32 = 1;
    pub const DATA_BOOL: u32 = 1 << 1;
    pub const DATA_EVENTFD: u32 = 1 << 2;
    pub const ACTION_MASK: u32 = 1 << 3;
    pub const ACTION_UNMASK: u32 = 1 << 4;
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}

macro_rules! commands {
    ($($name:ident = $number:literal $text:literal body $body:expr, fds $fds:expr;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // Named as in the specification.
        pub enum Command { $($name,)* }

        impl Command {
            #[inline]
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bytes its body may have, and descriptors that may come along.
            #[inline]
            pub fn limits(self) -> (RangeInclusive<usize>, RangeInclusive<usize>) {
                match self { $(Self::$name => ($body, $fds),)* }
            }
        }
    };
}

commands! {
    Version = 1 "VERSION" body 4..=MAX_WRITE, fds 0..=0;
    DmaMap = 2 "DMA_MAP" body 32..=32, fds 0..=1;
    // 16 bytes more if a dirty bitmap is asked for, which we do not have.
    DmaUnmap = 3 "DMA_UNMAP" body 24..=40, fds 0..=0;
    // The kernel's structure, which this is, has grown since.
    GetInfo = 4 "DEVICE_GET_INFO" body 16..=64, fds 0..=0;
    GetRegionInfo = 5 "DEVICE_GET_REGION_INFO" body 32..=128, fds 0..=0;
    GetRegionIoFds = 6 "DEVICE_GET_REGION_IO_FDS" body 16..=16, fds 0..=0;
    GetIrqInfo = 7 "DEVICE_GET_IRQ_INFO" body 16..=16, fds 0..=0;
    // With a number for each descriptor, or where there is none.
    SetIrqs = 8 "DEVICE_SET_IRQS" body 20..=20 + 4 * MAX_FDS, fds 0..=MAX_FDS;
    RegionRead = 9 "REGION_READ" body ACCESS..=ACCESS, fds 0..=0;
    RegionWrite = 10 "REGION_WRITE" body ACCESS..=MAX_WRITE, fds 0..=0;
    Reset = 13 "DEVICE_RESET" body 0..=0, fds 0..=0;
    WriteMulti = 15 "REGION_WRITE_MULTI" body 8..=MAX_MULTI, fds 0..=0;
}

impl Command {
    /// An access to a region: frequent, and changes nothing of the connection.
    #[inline]
    pub fn is_access(self) -> bool {
        matches!(self, Self::RegionRead | Self::RegionWrite | Self::WriteMulti)
    }

    /// It wants to know something, and changes nothing or takes what it reads.
    pub fn only_asks(self) -> bool {
        use Command::{GetInfo, GetIrqInfo, GetRegionInfo, GetRegionIoFds, RegionRead};
        matches!(self, RegionRead | GetInfo | GetIrqInfo | GetRegionInfo | GetRegionIoFds)
    }

    /// It changes what the next switch has to know.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Version | Self::DmaMap | Self::DmaUnmap | Self::SetIrqs)
    }

    /// An upper bound of what a command with this body costs, in accesses to single registers. What
    /// is bounded by [`MAX_DATA`] and [`MAX_WRITES`] is counted as at most that much.
    #[inline]
    pub fn work(self, body: &[u8]) -> usize {
        /// Bytes that one access reads or writes, at most.
        const REGISTER: usize = 4;
        let registers = match self {
            Self::RegionRead => MAX_DATA.min(widen(Body(body).u32(12))) / REGISTER,
            Self::RegionWrite => body.len().saturating_sub(ACCESS) / REGISTER,
            Self::WriteMulti => body.len() / ONE_WRITE,
            Self::SetIrqs => MAX_FDS.min(widen(Body(body).u32(16))),
            _ => 1,
        };
        registers.max(1)
    }
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's number for this message, which its reply bears.
    pub id: u16,
    /// The command, known to us or not.
    pub command: u16,
    /// The sender wants no reply, not even of an error.
    pub no_reply: bool,
}

/// How messages are cut out of the stream. Register writes that need no reply come many at a time.
#[derive(Debug)]
pub struct Frames;

impl Framing for Frames {
    type Header = Header;
    const HEADER: usize = HEADER;
    const BUFFER: usize = 2 * (HEADER + MAX_BODY);
    const AHEAD: bool = true;

    fn is_control(header: &Header) -> bool {
        Command::from_number(header.command).is_none_or(|command| !command.is_access())
    }

    fn is_once(header: &Header) -> bool {
        Command::from_number(header.command) == Some(Command::WriteMulti)
    }

    #[inline]
    fn parse(bytes: &[u8]) -> Result<(Header, usize), Malformed> {
        let body = Body(bytes);
        let (id, command, size, flags) = (body.u16(0), body.u16(2), body.u32(4), body.u32(8));
        if flags & TYPE != 0 {
            return Err(Malformed::Flags(flags));
        }
        let Some(body) = widen(size).checked_sub(HEADER) else {
            return Err(Malformed::Undersize(size));
        };
        if body > MAX_BODY {
            return Err(Malformed::Oversize(size));
        }
        Ok((Header { id, command, no_reply: flags & NO_REPLY != 0 }, body))
    }
}

/// Replies on their way out, one behind the other.
#[derive(Debug, Default)]
pub struct Replies(Vec<u8>);

impl Replies {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Forgets what was sent.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes back what was added last.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Leaves the header of the reply that begins at `start`, if there is one.
    pub fn shorten(&mut self, start: usize) {
        self.0.truncate(start + HEADER);
        if let Some(size) = self.0.get_mut(start + 4..start + 8) {
            size.copy_from_slice(&length(HEADER).to_ne_bytes());
        }
    }

    fn head(&mut self, to: Header, flags: u32, body: usize, error: u32) {
        let size = length(HEADER + body);
        let mut head = [0; HEADER];
        let halves = to.id.to_ne_bytes().into_iter().chain(to.command.to_ne_bytes());
        let words = [size, REPLY | flags, error].into_iter().flat_map(u32::to_ne_bytes);
        head.iter_mut().zip(halves.chain(words)).for_each(|(to, from)| *to = from);
        self.0.extend_from_slice(&head);
    }

    /// The reply to `to`: `fixed`, then `more` bytes that `fill` writes.
    #[inline]
    pub fn reply(&mut self, to: Header, fixed: &[u8], more: usize, fill: impl FnOnce(&mut [u8])) {
        self.head(to, 0, fixed.len() + more, 0);
        self.0.extend_from_slice(fixed);
        let at = self.0.len();
        self.0.resize(at + more, 0);
        fill(self.0.get_mut(at..).unwrap_or_default());
    }

    /// The reply that `to` failed: a header alone.
    pub fn error(&mut self, to: Header, errno: i32) {
        self.head(to, ERROR, 0, errno.unsigned_abs());
    }
}

/// Words of 32 bits as bytes.
pub fn words(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
