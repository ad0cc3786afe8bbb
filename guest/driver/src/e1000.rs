//! A driver of the Intel 82540EM after the 8254x software developer's manual (SDM), with the plain behaviour of a kernel's
//! driver: one doorbell for each frame, RS on each, one interrupt for each completion unless the chip moderates them, and a
//! receiver that polls from an interrupt on until the ring is dry.
//!
//! It reaches the chip by a [`Bus`]: over vfio-user ([`crate::vfio_user::bus::VfioBus`]), or in the same process for tests.
//! Register accesses are counted by name, for each is a trip out of the guest. Once the bus fails, registers read as all ones
//! and [`E1000::wait`] answers [`Wake::Disconnected`]; [`E1000::restart`] goes on with another chip.

mod address;
mod bus;
mod descriptor;
mod interrupt;
pub mod registers;
mod rx;
mod start;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::sync::Arc;

use crate::mem::{Pool, Ram};
use crate::net::QueueStats;
pub use crate::nic::{Interest, Prepared, Wake};
pub use address::{Address, Doorbell, Unmask};
pub use bus::{Access, Bus, BusError, Irq, Registers, Watched};
pub use descriptor::{Offload, Segmentation, rx as rx_bits};
use registers::Register;
use rx::RxRing;
pub use rx::{Batch, Frame};
use tx::TxRing;

/// When the chip may interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// Always but while the driver polls: what a kernel's driver does.
    Always,
    /// Only while the driver sleeps: what a driver that owns a core does.
    Idle,
}

/// How the chip is driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Descriptors of each ring: a multiple of 8, from 8 to 4096.
    pub size: u16,
    /// Bytes of a receive buffer: 256, 512, 1024 ... 16384.
    pub buffer: u16,
    /// Bytes of a transmit buffer: the largest frame.
    pub room: usize,
    /// Most bytes of one transmit descriptor.
    pub segment: u16,
    /// From 1501 on, long packets are received.
    pub mtu: u16,
    /// How the chip interrupts.
    pub irq: Irq,
    /// Reset through the I/O window, as Linux does with this chip.
    pub reset_by_io: bool,
    /// When it may interrupt.
    pub interrupts: Interrupts,
    /// Most frames of one poll.
    pub budget: u16,
    /// Receive buffers returned with one write of RDT; 0: all that a poll took.
    pub refill: u16,
    /// ITR, in units of 256 ns.
    pub itr: u16,
    /// TIDV, in units of 1.024 us; 0: no frame asks for a delay.
    pub tidv: u16,
    /// TADV, in units of 1.024 us.
    pub tadv: u16,
    /// RDTR, in units of 1.024 us.
    pub rdtr: u16,
    /// RADV, in units of 1.024 us.
    pub radv: u16,
    /// One write of TDT for a burst, instead of one for each frame.
    pub batch: bool,
    /// Read STATUS after the mask was changed, so that the write has arrived: what Linux does.
    pub flush: bool,
    /// Take all frames, whatever their address.
    pub promisc: bool,
    /// The chip strips the CRC.
    pub strip_crc: bool,
    /// The chip reports received checksums, and completes sent ones on request.
    pub checksum: bool,
    /// Frames may ask to be cut into segments.
    pub segmentation: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: 256,
            buffer: 2048,
            room: 2048,
            segment: 4096,
            mtu: 1500,
            irq: Irq::Intx,
            reset_by_io: true,
            interrupts: Interrupts::Always,
            budget: 64,
            refill: 16,
            itr: 0,
            tidv: 0,
            tadv: 0,
            rdtr: 0,
            radv: 0,
            batch: false,
            flush: true,
            promisc: false,
            strip_crc: false,
            checksum: false,
            segmentation: false,
        }
    }
}

impl Options {
    /// RAM for both rings and their buffers.
    ///
    /// # Errors
    /// Whatever making the memfd reports.
    pub fn make_ram(&self) -> io::Result<Arc<Ram>> {
        let (low, high) = self.ram_bytes();
        Ram::new(low, high)
    }

    /// The bytes it takes, for rings and for buffers.
    #[must_use]
    pub fn ram_bytes(&self) -> (usize, usize) {
        let rings = 2 * (16 * usize::from(self.size) + 128);
        (rings, TxRing::buffer_bytes(self) + RxRing::buffer_bytes(self))
    }
}

/// What can go wrong with an e1000.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The chip cannot be reached.
    #[error("the NIC cannot be reached")]
    Bus(#[from] BusError),
    /// Another device.
    #[error("there is PCI device {found:#010x} (device, vendor), and no 82540EM (0x100e8086)")]
    NotFound {
        /// The first word of configuration space.
        found: u32,
    },
    /// The BAR of the registers has another size.
    #[error("BAR0 is {0:#x} bytes long, and the registers take 0x20000")]
    Bar(u64),
    /// MSI is wanted and there is none.
    #[error("the chip has no MSI capability: use irq=intx")]
    NoMsi,
    /// The chip does not finish something.
    #[error("the chip does not finish {0}")]
    Stuck(&'static str),
    /// The EEPROM's words do not add up.
    #[error("the EEPROM's checksum is {0:#06x}, and 0xbaba is right")]
    Eeprom(u16),
    /// No link.
    #[error("the link is down: see `vmlan port set PORT link=up`")]
    NoLink,
    /// The socket or the RAM.
    #[error(transparent)]
    Nic(#[from] crate::nic::Error),
    /// The server hangs up while the device is set up.
    #[error("{path}: the server hangs up: has the port another VM (see `vmlan port list`)?")]
    TurnedAway {
        /// The UNIX socket.
        path: std::path::PathBuf,
        /// How that was noticed.
        #[source]
        source: BusError,
    },
    /// `doorbell=mapped` and the server has no page to map.
    #[error(
        "the server offers no doorbell page: add doorbell=mapped to the switch's port, or use doorbell=trapped here"
    )]
    NoDoorbell,
}

/// Counters of the interrupt path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptStats {
    /// Interrupts the chip sent.
    pub sent: u64,
    /// Of these, those whose cause register had nothing we wait for.
    pub spurious: u64,
    /// Times a frame lay in the ring for 100 ms, enabled, and no interrupt came.
    pub missed: u64,
}

/// An 82540EM and its rings.
#[derive(Debug)]
pub struct E1000<B> {
    options: Options,
    registers: Registers<B>,
    tx: TxRing,
    rx: RxRing,
    /// Causes that may interrupt; 0 while the driver polls.
    enabled: u32,
    mac: [u8; 6],
    interrupts: InterruptStats,
}

impl<B: Bus> E1000<B> {
    /// Finds the chip on the bus, resets it and starts it, with rings and buffers in `ram` (see [`Options::make_ram`]), which the
    /// device must be able to reach.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Panics
    /// When `ram` is too small.
    pub fn new(options: Options, ram: &Arc<Ram>, bus: B) -> Result<Self, Error> {
        let mut low = Pool::new(0, ram.buffers());
        let mut high = Pool::new(ram.buffers(), ram.size());
        let mut nic = Self {
            registers: Registers::new(bus),
            tx: TxRing::new(ram, &mut low, &mut high, &options),
            rx: RxRing::new(ram, &mut low, &mut high, &options),
            enabled: 0,
            mac: [0; 6],
            interrupts: InterruptStats::default(),
            options,
        };
        nic.start()?;
        Ok(nic)
    }

    /// Goes on with another chip: both rings are empty again, what is in the transmit buffers stays, and so does the address.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn restart(&mut self, bus: B) -> Result<(), Error> {
        let mac = self.mac;
        self.registers.replace(bus);
        self.tx.reset();
        self.rx.reset();
        self.start()?;
        self.set_mac(mac);
        Ok(())
    }

    /// What the driver was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The address in force: the EEPROM's, unless [`Self::set_mac`] gave another.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Receives frames for another address (SDM 13.5.2).
    pub fn set_mac(&mut self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.registers.write(Register::RAL, u32::from_le_bytes([a, b, c, d]));
        let high = u32::from_le_bytes([e, f, 0, 0]) | registers::RAH_AV;
        self.registers.write(Register::RAH, high);
        self.mac = mac;
    }

    /// The registers, their counts and the bus.
    #[must_use]
    pub fn registers(&self) -> &Registers<B> {
        &self.registers
    }

    /// The same, to touch registers beside the driver.
    pub fn registers_mut(&mut self) -> &mut Registers<B> {
        &mut self.registers
    }

    /// Counters of the interrupt path.
    #[must_use]
    pub fn interrupt_stats(&self) -> InterruptStats {
        self.interrupts
    }

    /// Counters of the transmit side; interrupts are counted on the receive side.
    #[must_use]
    pub fn tx_stats(&self) -> QueueStats {
        self.tx.stats
    }

    /// Counters of the receive side.
    #[must_use]
    pub fn rx_stats(&self) -> QueueStats {
        QueueStats { interrupts: self.interrupts.sent, ..self.rx.stats }
    }

    /// Were all descriptors written back in order, and all frames of a form that the manual allows?
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.tx.out_of_order() == 0 && self.rx.out_of_order() == 0 && self.rx.stats.malformed == 0
    }

    /// Is the device there?
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.registers.failure().is_none() && self.registers.bus().is_connected()
    }
}

/// Transmit: [`E1000::next`] → [`E1000::write`] → [`E1000::send`] ... [`E1000::flush`].
impl<B: Bus> E1000<B> {
    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.tx.slots()
    }

    /// Longest frame that fits a slot, in bytes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.tx.room()
    }

    /// Slots that can be sent now.
    #[inline]
    #[must_use]
    pub fn free_slots(&self) -> u16 {
        self.tx.free_slots()
    }

    /// Slots under way.
    #[must_use]
    pub fn under_way(&self) -> u16 {
        self.tx.under_way()
    }

    /// Takes sent slots back; returns how many are free now.
    #[inline]
    pub fn reap(&mut self) -> u16 {
        self.tx.reap()
    }

    /// The next slot to fill; None when all are under way (counted as `full`). Slots are used in turn.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<u16> {
        self.tx.next()
    }

    /// The slot that [`Self::next`] gives after `ahead` others, of which there are fewer than [`Self::free_slots`].
    #[inline]
    #[must_use]
    pub fn slot_ahead(&self, ahead: u16) -> u16 {
        self.tx.slot_ahead(ahead)
    }

    /// Writes `bytes` of the frame from byte `at` on into the buffer of a slot.
    ///
    /// # Panics
    /// When they do not fit [`Self::room`].
    #[inline]
    pub fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        self.tx.write(slot, at, bytes);
    }

    /// What the device shall do with the frames sent from this slot from now on.
    pub fn set_offload(&mut self, slot: u16, offload: Offload) {
        self.tx.set_offload(slot, offload);
    }

    /// Describes the frame of `len` bytes in the next slot, and rings the doorbell unless bursts have one.
    ///
    /// # Panics
    /// When `len` exceeds [`Self::room`] or `slot` is not [`Self::next`].
    #[inline]
    pub fn send(&mut self, slot: u16, len: u32) {
        self.tx.send(slot, len);
        if !self.options.batch {
            self.ring();
        }
    }

    /// Sends up to `count` free slots whose buffers were filled before, all with `len` bytes; returns how many.
    #[inline]
    pub fn send_filled(&mut self, count: u32, len: u32) -> u32 {
        let count = count.min(self.tx.free_slots().into());
        for _ in 0..count {
            let Some(slot) = self.tx.next() else { break };
            self.send(slot, len);
        }
        count
    }

    /// The doorbell: TDT (SDM 13.4.40).
    #[inline]
    fn ring(&mut self) {
        self.tx.stats.doorbells += 1;
        if self.registers.write(Register::TDT, self.tx.tail.into()) {
            self.look_for_interrupt();
        }
    }

    /// Ends a burst; returns its frames.
    pub fn flush(&mut self) -> u32 {
        let count = std::mem::take(&mut self.tx.pending);
        if count > 0 {
            self.tx.stats.batches += 1;
            if self.options.batch {
                self.ring();
            }
            self.look_for_interrupt();
        }
        count
    }

    /// Counts a moment in which the caller had frames and no slot.
    pub fn count_full(&mut self) {
        self.tx.stats.full += 1;
    }
}

/// Receive: [`E1000::poll`] → [`E1000::read`] ... → [`E1000::release`].
impl<B: Bus> E1000<B> {
    /// A batch with room for every descriptor.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch { frames: Vec::with_capacity(self.options.size.into()) }
    }

    /// Adds received frames, no more than the budget, to a batch until it holds `most`; returns how many it holds.
    /// With [`Interrupts::Always`] nothing is looked at before an interrupt came, and a dry ring ends the polling.
    pub fn poll(&mut self, batch: &mut Batch, most: usize) -> usize {
        let before = batch.frames.len();
        if !self.may_poll() {
            return before;
        }
        let most = most.min(before + usize::from(self.options.budget));
        if self.rx.poll(batch, most) == 0 && most > before {
            self.complete();
        }
        batch.frames.len()
    }

    /// Is there something to poll?
    #[inline]
    pub fn ready(&mut self) -> bool {
        if !self.may_poll() {
            return false;
        }
        let ready = self.rx.ready();
        if !ready {
            self.complete();
        }
        ready
    }

    /// Copies bytes of a frame, from byte `at` on, into `bytes`; returns how many there were.
    #[inline]
    pub fn read(&self, frame: Frame, at: usize, bytes: &mut [u8]) -> usize {
        self.rx.read(frame, at, bytes)
    }

    /// Gives the batch's buffers back to the device, with one write of RDT (SDM 13.4.29) for every so many, and empties it.
    pub fn release(&mut self, batch: &mut Batch) {
        self.release_first(batch, batch.frames.len());
    }

    /// The same for the first `count` frames only; the others move up.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn release_first(&mut self, batch: &mut Batch, count: usize) {
        let end = self.rx.start_of(&batch.frames[count..]);
        batch.frames.drain(..count);
        let most = if self.options.refill == 0 { u16::MAX } else { self.options.refill };
        while self.rx.refill(most, end) > 0 {
            self.rx.stats.doorbells += 1;
            self.registers.write(Register::RDT, self.rx.tail.into());
        }
    }

    /// Buffers the device has, as far as we know.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.rx.outstanding()
    }
}
