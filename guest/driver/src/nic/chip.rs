//! A chip with registers, on any bus.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Connected, Info, NicError, Receive, Registers, Transmit, Wait};
use crate::chip::{
    self, Access, Bus, Chip, ChipDriver, ChipError, Interest, Model, Offload, Options, Prepared,
    RxSide, Wake,
};
use crate::e1000::{Intel, Intel82574};
use crate::realtek::{Gigabit, Plus, Rings};
use crate::rtl8139::Classic;
use crate::stats::QueueStats;
use crate::vmxnet3::Vmware;
use vmlan_transport::Mac;
use vmlan_transport::address::{Pci, VfioUser};
use vmlan_transport::memory::Ram;
use vmlan_transport::pci::{PciBus, PciError};
use vmlan_transport::vfio_user::VfioBus;

/// RAM for the driver of a chip: both rings, their buffers, and the CSB.
pub fn make_ram(options: &Options) -> io::Result<Arc<Ram>> {
    let (low, high) = ram_bytes(options);
    Ram::new(low, high)
}

/// The bytes that the driver of a chip takes, for rings and for buffers.
fn ram_bytes(options: &Options) -> (usize, usize) {
    match options.model {
        Model::E1000 => chip::ram_bytes::<Intel>(options),
        Model::E1000e => chip::ram_bytes::<Intel82574>(options),
        Model::R8169 => chip::ram_bytes::<Rings<Gigabit>>(options),
        Model::Rtl8139Plus => chip::ram_bytes::<Rings<Plus>>(options),
        Model::Rtl8139Classic => chip::ram_bytes::<Classic>(options),
        Model::Vmxnet3 => chip::ram_bytes::<Vmware>(options),
    }
}

/// An address, and the bus that it leads to.
pub trait BusAddress: Clone + Send {
    /// The bus.
    type Bus: Bus + Send;

    /// How the chip is driven.
    fn driver(&self) -> &Options;

    /// Reaches the chip, and makes the memory that it can reach.
    fn connect(&self, patience: Duration) -> Result<(Self::Bus, Arc<Ram>), NicError>;

    /// Reaches the chip of an address that was reached before, with the same memory.
    fn connect_again(&self, ram: &Arc<Ram>, patience: Duration) -> Result<Self::Bus, NicError>;

    /// What was found.
    fn connected(&self, mac: Mac, bus: &Self::Bus) -> Connected;
}

impl BusAddress for VfioUser {
    type Bus = VfioBus;

    fn driver(&self) -> &Options {
        &self.driver
    }

    fn connect(&self, patience: Duration) -> Result<(VfioBus, Arc<Ram>), NicError> {
        let ram = make_ram(&self.driver).map_err(ChipError::Ram)?;
        let bus = VfioBus::connect(self, &ram, patience).map_err(ChipError::from)?;
        Ok((bus, ram))
    }

    fn connect_again(&self, ram: &Arc<Ram>, patience: Duration) -> Result<VfioBus, NicError> {
        Ok(VfioBus::connect(self, ram, patience).map_err(ChipError::from)?)
    }

    fn connected(&self, mac: Mac, bus: &VfioBus) -> Connected {
        let (model, csb) = (self.driver.model, self.driver.csb);
        Connected::Chip { model, mac, mapped: bus.is_mapped(), posted: self.posted, csb }
    }
}

impl BusAddress for Pci {
    type Bus = PciBus;

    fn driver(&self) -> &Options {
        &self.driver
    }

    fn connect(&self, _patience: Duration) -> Result<(PciBus, Arc<Ram>), NicError> {
        let bus = PciBus::open(self)?;
        let (low, high) = ram_bytes(&self.driver);
        let ram = bus.make_ram(low, high)?;
        Ok((bus, ram))
    }

    fn connect_again(&self, _ram: &Arc<Ram>, _patience: Duration) -> Result<PciBus, NicError> {
        Err(PciError::Gone(self.bdf).into())
    }

    fn connected(&self, mac: Mac, bus: &PciBus) -> Connected {
        let (model, csb) = (self.driver.model, self.driver.csb);
        Connected::Pci { model, mac, way: bus.way(), csb }
    }
}

/// The NIC, and what reconnecting it needs. A VMM cannot do that today. For a tool it only means
/// starting over.
#[derive(Debug)]
pub struct ChipNic<C: Chip, L: BusAddress = VfioUser> {
    nic: ChipDriver<C, L::Bus>,
    address: L,
    ram: Arc<Ram>,
    reconnects: u64,
}

/// A port of an Intel 82540EM.
pub type E1000Nic<L = VfioUser> = ChipNic<Intel, L>;
/// A port of an Intel 82574L.
pub type E1000eNic<L = VfioUser> = ChipNic<Intel82574, L>;
/// A port of an RTL8169.
pub type R8169Nic<L = VfioUser> = ChipNic<Rings<Gigabit>, L>;
/// A port of an RTL8139C+.
pub type Rtl8139Nic<L = VfioUser> = ChipNic<Rings<Plus>, L>;
/// A port of an RTL8139 in classic mode.
pub type Rtl8139ClassicNic<L = VfioUser> = ChipNic<Classic, L>;
/// A port of a vmxnet3.
pub type Vmxnet3Nic<L = VfioUser> = ChipNic<Vmware, L>;

/// Received frames of a chip.
type Batch<C> = chip::Batch<<<C as Chip>::Rx as RxSide<<C as Chip>::Register>>::Format>;

impl<C: Chip, L: BusAddress> ChipNic<C, L> {
    /// Reaches the chip at `address` and starts it.
    pub fn connect(address: &L, patience: Duration) -> Result<Self, NicError> {
        let (bus, ram) = address.connect(patience)?;
        let mut nic = ChipDriver::new(address.driver().clone(), &ram, bus)?;
        // Setting up does not count as part of the run.
        nic.registers_mut().take_slowest();
        Ok(Self { nic, address: address.clone(), ram, reconnects: 0 })
    }
}

impl<C: Chip, L: BusAddress> Info for ChipNic<C, L> {
    fn lanes(&self) -> usize {
        1
    }

    fn connected(&self) -> Connected {
        self.address.connected(Mac(self.nic.mac()), self.nic.registers().bus())
    }

    fn settle_mac(&mut self, chosen: Option<Mac>) -> Option<Mac> {
        if let Some(mac) = chosen {
            self.nic.set_mac(mac.0);
        }
        Some(Mac(self.nic.mac()))
    }

    fn can_checksum(&self) -> bool {
        self.address.driver().checksum
    }

    fn is_connected(&self) -> bool {
        self.nic.is_connected()
    }

    fn reconnects(&self) -> u64 {
        self.reconnects
    }

    fn stats(&self) -> QueueStats {
        let (tx, rx) = (self.nic.tx_stats(), self.nic.rx_stats());
        QueueStats {
            doorbells: tx.doorbells + rx.doorbells,
            interrupts: rx.interrupts,
            full: tx.full,
            malformed: rx.malformed,
            ..QueueStats::default()
        }
    }

    fn is_sound(&self) -> bool {
        self.nic.is_sound() && self.nic.interrupt_stats().missed == 0
    }

    fn registers(&self) -> Option<Registers> {
        let counts = self.nic.registers().counts();
        let used = |access: &&Access| access.reads > 0 || access.writes > 0 || access.mapped > 0;
        let slowest = self.nic.registers().slowest();
        Some(Registers::new(counts.iter().filter(used).copied().collect(), slowest))
    }
}

impl<C: Chip, L: BusAddress> Transmit for ChipNic<C, L> {
    fn slots(&self, _lane: usize) -> u16 {
        self.nic.slots()
    }

    fn room(&self, _lane: usize) -> usize {
        self.nic.room()
    }

    #[inline]
    fn free_slots(&self, _lane: usize) -> u16 {
        self.nic.free_slots()
    }

    fn under_way(&self, _lane: usize) -> u16 {
        self.nic.under_way()
    }

    #[inline]
    fn reap(&mut self, _lane: usize) -> u16 {
        self.nic.reap()
    }

    #[inline]
    fn next(&mut self, _lane: usize) -> Option<u16> {
        self.nic.next()
    }

    #[inline]
    fn slot_ahead(&self, _lane: usize, ahead: u16) -> u16 {
        self.nic.slot_ahead(ahead)
    }

    #[inline]
    fn write(&self, _lane: usize, slot: u16, at: usize, bytes: &[u8]) {
        self.nic.write(slot, at, bytes);
    }

    fn offload_checksum(&mut self, _lane: usize, slot: u16, on: bool) {
        let checksum = on.then_some((34, 40));
        self.nic.set_offload(slot, Offload { checksum, ..Offload::default() });
    }

    #[inline]
    fn send(&mut self, _lane: usize, slot: u16, len: u32) {
        self.nic.send(slot, len);
    }

    #[inline]
    fn send_filled(&mut self, _lane: usize, count: u32, len: u32) -> u32 {
        self.nic.send_filled(count, len)
    }

    #[inline]
    fn flush(&mut self, _lane: usize) {
        self.nic.flush();
    }

    fn count_full(&mut self, _lane: usize) {
        self.nic.count_full();
    }
}

impl<C: Chip, L: BusAddress> Receive for ChipNic<C, L> {
    type Batch = Batch<C>;

    fn batch(&self, _lane: usize) -> Batch<C> {
        self.nic.batch()
    }

    #[inline]
    fn ready(&mut self, _lane: usize) -> bool {
        self.nic.ready()
    }

    #[inline]
    fn poll(&mut self, _lane: usize, batch: &mut Batch<C>, most: usize) -> usize {
        self.nic.poll(batch, most)
    }

    fn bytes(batch: &Batch<C>) -> u64 {
        batch.frames().iter().map(|frame| frame.len as u64).sum()
    }

    #[inline]
    fn frame_len(batch: &Batch<C>, at: usize) -> usize {
        batch.frames()[at].len
    }

    #[inline]
    fn read(&self, _lane: usize, batch: &Batch<C>, at: usize, bytes: &mut [u8]) -> usize {
        self.nic.read(batch.frames()[at], 0, bytes)
    }

    fn checksum_pending(&self, _lane: usize, _batch: &Batch<C>, _at: usize) -> bool {
        false
    }

    #[inline]
    fn release(&mut self, _lane: usize, batch: &mut Batch<C>) {
        self.nic.release(batch);
    }

    #[inline]
    fn release_first(&mut self, _lane: usize, batch: &mut Batch<C>, count: usize) {
        self.nic.release_first(batch, count);
    }

    fn posted(&self, _lane: usize) -> u16 {
        self.nic.outstanding()
    }
}

impl<C: Chip, L: BusAddress> Wait for ChipNic<C, L> {
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, NicError> {
        Ok(self.nic.wait(interest, timeout)?)
    }

    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError> {
        Ok(self.nic.prepare_wait(interest)?)
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        let watched = self.nic.registers().bus().watched();
        [watched.interrupt, watched.gone].into_iter().flatten().collect()
    }

    fn watched_for_end(&self) -> u64 {
        let watched = self.nic.registers().bus().watched();
        u64::from(watched.gone.is_some()) << u32::from(watched.interrupt.is_some())
    }

    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError> {
        let watched = self.nic.registers().bus().watched();
        let interrupt = u64::from(watched.interrupt.is_some());
        let interrupted = ready & interrupt != 0;
        Ok(self.nic.finish_wait(interrupted, ready & !interrupt != 0)?)
    }

    fn reconnect(&mut self, patience: Duration) -> Result<(), NicError> {
        let bus = self.address.connect_again(&self.ram, patience)?;
        self.nic.restart(bus)?;
        self.reconnects += 1;
        Ok(())
    }
}
