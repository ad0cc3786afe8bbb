//! What the driver needs from the program that embeds it: the way to a chip, over a socket or in
//! the same process.

use std::error::Error;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::sys;
use crate::vfio_user::ProtocolError;

/// Bytes of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // What the names say.
pub enum Width {
    One = 1,
    Two = 2,
    Four = 4,
}

/// Why a wait came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A queue has something, or was interrupted.
    Ready,
    /// The time is up.
    Timeout,
    /// The device is gone: its process closed the socket.
    Disconnected,
}

/// How the chip interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irq {
    /// INTA#, a level: masked by the VMM when it fires, until [`Bus::unmask`].
    Intx,
    /// A message.
    Msi,
    /// A message for each of the chip's vectors ([`crate::Model::vectors`]). Only the first
    /// interrupts the driver; it looks at the others' causes then.
    Msix,
}

/// Why a chip cannot be reached.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BusError {
    #[error("cannot talk to the device's server")]
    Protocol(#[from] ProtocolError),
    #[error("cannot {what}")]
    Other { what: &'static str, source: Box<dyn Error + Send + Sync> },
}

impl BusError {
    /// Cannot do `what`, because of what the closure is given.
    pub fn other(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Other { what, source: source.into() }
    }

    /// Has the server gone away? (Otherwise it is there and refuses.)
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Protocol(ProtocolError::Socket { .. }))
    }
}

/// The chip has no I/O window, or nobody reaches it.
pub(crate) fn no_window() -> BusError {
    BusError::other("write to the I/O window")(io::ErrorKind::Unsupported.into())
}

/// What to sleep on until an interrupt comes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched<'a> {
    /// Can be read when an interrupt has come, until [`Bus::take_interrupts`].
    pub interrupt: Option<BorrowedFd<'a>>,
    /// Can be read when the device has gone away.
    pub gone: Option<BorrowedFd<'a>>,
}

/// A PCI bus with one chip on it, and the wire of its interrupt.
pub trait Bus {
    /// Reads configuration space.
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError>;

    /// Writes configuration space.
    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError>;

    /// Reads a register: a trip to the device. The chip decides which BARs the registers are in
    /// ([`crate::Bars`]).
    fn read(&mut self, offset: u32, width: Width) -> Result<u32, BusError>;

    /// Writes a register: a trip to the device, or at least a message.
    fn write(&mut self, offset: u32, width: Width, value: u32) -> Result<(), BusError>;

    /// Reads a register of 32 bits.
    #[inline]
    fn read32(&mut self, offset: u32) -> Result<u32, BusError> {
        self.read(offset, Width::Four)
    }

    /// Writes a register of 32 bits.
    #[inline]
    fn write32(&mut self, offset: u32, value: u32) -> Result<(), BusError> {
        self.write(offset, Width::Four, value)
    }

    /// Writes 32 bits to an 82540EM's I/O window (SDM 13.3). A bus of other chips need not
    /// implement it.
    fn write_io(&mut self, _offset: u32, _value: u32) -> Result<(), BusError> {
        Err(no_window())
    }

    /// The register's word, when it lies in a page that is shared with the device.
    #[inline]
    fn mapped(&self, _offset: u32) -> Option<&AtomicU32> {
        None
    }

    /// Lets the chip interrupt in this way from now on.
    fn use_interrupt(&mut self, irq: Irq) -> Result<(), BusError>;

    /// Interrupts that came since the last call.
    fn take_interrupts(&mut self) -> u64;

    /// The end of an interrupt: the level may interrupt again.
    fn unmask(&mut self) -> Result<(), BusError>;

    /// Sleeps until an interrupt comes (which [`Self::take_interrupts`] then counts), the device
    /// goes away, or the time is up.
    fn wait(&mut self, timeout: Duration) -> Result<Wake, BusError>;

    /// The descriptors that [`Self::wait`] sleeps on, for those who sleep on others as well.
    fn watched(&self) -> Watched<'_>;

    /// Is the device there?
    fn is_connected(&self) -> bool {
        true
    }

    /// Monotonic time, from any start.
    fn now(&self) -> Duration {
        sys::monotonic()
    }

    /// Firmware and a kernel have given the chip its addresses and its interrupt: the driver must
    /// leave both alone.
    fn is_set_up(&self) -> bool {
        false
    }
}
