//! What the driver needs of whoever embeds it: the way to a chip, over a socket or in the same process.

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::registers::Register;
use crate::nic::Wake;
use crate::notify::{Intact, registers::publish};
use crate::sys;
use crate::vfio_user::ProtocolError;

/// How the chip interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irq {
    /// INTA#, a level: masked by the VMM when it fires, until [`Bus::unmask`].
    Intx,
    /// A message.
    Msi,
}

/// Why a chip cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The conversation with the server failed.
    #[error("the device's server does not go along")]
    Protocol(#[from] ProtocolError),
    /// Something on the way.
    #[error("cannot {what}")]
    Other {
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl BusError {
    /// Has the server gone away? (Otherwise it is there and refuses.)
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Protocol(ProtocolError::Socket { .. }))
    }
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
    ///
    /// # Errors
    /// See [`BusError`], here and below.
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError>;

    /// Writes configuration space.
    ///
    /// # Errors
    /// See [`BusError`].
    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError>;

    /// Reads a register of BAR0: a trip to the device.
    ///
    /// # Errors
    /// See [`BusError`].
    fn read32(&mut self, offset: u32) -> Result<u32, BusError>;

    /// Writes a register of BAR0: a trip to the device, or at least a message.
    ///
    /// # Errors
    /// See [`BusError`].
    fn write32(&mut self, offset: u32, value: u32) -> Result<(), BusError>;

    /// Writes 32 bits to BAR1, the I/O window (SDM 13.3).
    ///
    /// # Errors
    /// See [`BusError`].
    fn write_io(&mut self, offset: u32, value: u32) -> Result<(), BusError>;

    /// The register's word, when it lies in a page that is shared with the device.
    #[inline]
    fn mapped(&self, _offset: u32) -> Option<&AtomicU32> {
        None
    }

    /// Lets the chip interrupt in this way from now on.
    ///
    /// # Errors
    /// See [`BusError`].
    fn use_interrupt(&mut self, irq: Irq) -> Result<(), BusError>;

    /// Interrupts that came since the last call.
    fn take_interrupts(&mut self) -> u64;

    /// The end of an interrupt: the level may interrupt again.
    ///
    /// # Errors
    /// See [`BusError`].
    fn unmask(&mut self) -> Result<(), BusError>;

    /// Sleeps until an interrupt comes (which [`Self::take_interrupts`] then counts), the device goes away, or the time is up.
    ///
    /// # Errors
    /// See [`BusError`].
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

    /// Firmware and a kernel have given the chip its addresses and its interrupt: the driver must leave both alone.
    fn is_set_up(&self) -> bool {
        false
    }
}

/// Accesses of one register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Access {
    /// The datasheet's name.
    pub register: &'static str,
    /// Reads: each a trip to the device and back.
    pub reads: u64,
    /// Writes that went as messages.
    pub writes: u64,
    /// Loads and stores in a shared page.
    pub mapped: u64,
}

/// The registers of BAR0, counted. After the bus has failed they behave as on a PCI bus whose device is gone: reads are all
/// ones, writes are lost; [`Self::failure`] tells why.
#[derive(Debug)]
pub struct Registers<B> {
    bus: B,
    counts: [Access; Register::ALL.len()],
    slowest: Duration,
    failure: Option<BusError>,
}

impl<B: Bus> Registers<B> {
    pub(super) fn new(bus: B) -> Self {
        let mut counts = [Access::default(); Register::ALL.len()];
        for (count, register) in counts.iter_mut().zip(Register::ALL) {
            count.register = register.name();
        }
        Self { bus, counts, slowest: Duration::ZERO, failure: None }
    }

    /// Reads a register.
    pub fn read(&mut self, register: Register) -> u32 {
        if let Some(word) = self.bus.mapped(register.offset()) {
            self.counts[register as usize].mapped += 1;
            return u32::from_le(word.load(Acquire));
        }
        if self.failure.is_some() {
            return u32::MAX;
        }
        self.counts[register as usize].reads += 1;
        let start = Instant::now();
        let result = self.bus.read32(register.offset());
        self.slowest = self.slowest.max(start.elapsed());
        match result {
            Ok(value) => value,
            Err(error) => {
                self.failure = Some(error);
                u32::MAX
            }
        }
    }

    /// Writes a register: what was stored in the guest's RAM before is visible to whoever sees this write. True when the write
    /// was a trip to the device, false when it was a store in a shared page.
    #[inline]
    pub fn write(&mut self, register: Register, value: u32) -> bool {
        self.write_at(register, 0, value)
    }

    /// Writes the `n`th word behind a register.
    #[inline]
    pub fn write_at(&mut self, register: Register, n: u32, value: u32) -> bool {
        let offset = register.offset() + 4 * n;
        if let Some(word) = self.bus.mapped(offset) {
            self.counts[register as usize].mapped += 1;
            publish(&Intact, || word.store(value.to_le(), Relaxed));
            return false;
        }
        publish(&Intact, || self.trap(register, offset, value));
        true
    }

    fn trap(&mut self, register: Register, offset: u32, value: u32) {
        if self.failure.is_some() {
            return;
        }
        self.counts[register as usize].writes += 1;
        let start = Instant::now();
        let result = self.bus.write32(offset, value);
        self.slowest = self.slowest.max(start.elapsed());
        if let Err(error) = result {
            self.failure = Some(error);
        }
    }

    /// Does something else with the bus; its failure is kept like any other.
    pub(super) fn with<T: Default>(
        &mut self,
        work: impl FnOnce(&mut B) -> Result<T, BusError>,
    ) -> T {
        if self.failure.is_some() {
            return T::default();
        }
        work(&mut self.bus).unwrap_or_else(|error| {
            self.failure = Some(error);
            T::default()
        })
    }

    /// Why the device is no longer reached; taken, so that the next one can be.
    pub(super) fn take_failure(&mut self) -> Option<BusError> {
        self.failure.take()
    }

    /// Why the device is no longer reached.
    #[must_use]
    pub fn failure(&self) -> Option<&BusError> {
        self.failure.as_ref()
    }

    /// The accesses so far, by register in the order of their offsets.
    #[must_use]
    pub fn counts(&self) -> &[Access] {
        &self.counts
    }

    /// The longest that a read or write took since this was last asked: a guest's processor stands still for so long.
    pub fn take_slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }

    /// The longest that a read or write took.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        self.slowest
    }

    /// The bus.
    #[must_use]
    pub fn bus(&self) -> &B {
        &self.bus
    }

    /// The bus, to do with it what the driver does not.
    pub fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Another bus, with the counts kept.
    pub(super) fn replace(&mut self, bus: B) {
        self.bus = bus;
        self.failure = None;
    }
}
