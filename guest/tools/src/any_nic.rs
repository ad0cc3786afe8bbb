//! A NIC of any kind, for programs that learn only at run time which one they get. Each call costs
//! one comparison more than with [`vmlan_driver::nic::open`], which compiles the program once for
//! each kind.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use vmlan_driver::nic::{
    ChipNic, Connected, E1000Nic, E1000eNic, Info, NicError, R8169Nic, Receive, Registers,
    Rtl8139ClassicNic, Rtl8139Nic, Transmit, Vmxnet3Nic, Wait, sized,
};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::virtio::{VirtioNet, queues};
use vmlan_driver::wait::{Interest, Prepared, Wake};
use vmlan_transport::Address;
use vmlan_transport::Mac;
use vmlan_transport::Model;
use vmlan_transport::address::Pci;

/// A device of any kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There are few, and they stay where they are.
#[allow(missing_docs, reason = "the names say it")]
pub enum AnyNic {
    Virtio(VirtioNet),
    /// An e1000 behind vfio-user.
    E1000(E1000Nic),
    /// An 82574L behind vfio-user.
    E1000e(E1000eNic),
    /// An RTL8169 behind vfio-user.
    R8169(R8169Nic),
    /// An RTL8139C+ behind vfio-user.
    Rtl8139(Rtl8139Nic),
    Classic(Rtl8139ClassicNic),
    Vmxnet3(Vmxnet3Nic),
    PciE1000(E1000Nic<Pci>),
    PciE1000e(E1000eNic<Pci>),
    PciR8169(R8169Nic<Pci>),
    PciRtl8139(Rtl8139Nic<Pci>),
    PciClassic(Rtl8139ClassicNic<Pci>),
    PciVmxnet3(Vmxnet3Nic<Pci>),
}

/// Received frames of a device of any kind.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum AnyBatch {
    Virtio(queues::RxBatch),
    E1000(BatchOf<E1000Nic>),
    E1000e(BatchOf<E1000eNic>),
    R8169(BatchOf<R8169Nic>),
    Rtl8139(BatchOf<Rtl8139Nic>),
    Classic(BatchOf<Rtl8139ClassicNic>),
    Vmxnet3(BatchOf<Vmxnet3Nic>),
}

type BatchOf<N> = <N as Receive>::Batch;

impl AnyNic {
    /// Reaches the device at `place`, trying for `patience`. With `largest`, slots for frames of so
    /// many bytes.
    pub fn open(
        place: &Address,
        largest: Option<usize>,
        patience: Duration,
    ) -> Result<Self, NicError> {
        Ok(match sized(place, largest) {
            Address::VhostUser(address) => Self::Virtio(VirtioNet::connect(&address, patience)?),
            Address::VfioUser(address) => match address.driver.model {
                Model::E1000 => Self::E1000(ChipNic::connect(&address, patience)?),
                Model::E1000e => Self::E1000e(ChipNic::connect(&address, patience)?),
                Model::R8169 => Self::R8169(ChipNic::connect(&address, patience)?),
                Model::Rtl8139Plus => Self::Rtl8139(ChipNic::connect(&address, patience)?),
                Model::Rtl8139Classic => Self::Classic(ChipNic::connect(&address, patience)?),
                Model::Vmxnet3 => Self::Vmxnet3(ChipNic::connect(&address, patience)?),
            },
            Address::Pci(address) => match address.driver.model {
                Model::E1000 => Self::PciE1000(ChipNic::connect(&address, patience)?),
                Model::E1000e => Self::PciE1000e(ChipNic::connect(&address, patience)?),
                Model::R8169 => Self::PciR8169(ChipNic::connect(&address, patience)?),
                Model::Rtl8139Plus => Self::PciRtl8139(ChipNic::connect(&address, patience)?),
                Model::Rtl8139Classic => Self::PciClassic(ChipNic::connect(&address, patience)?),
                Model::Vmxnet3 => Self::PciVmxnet3(ChipNic::connect(&address, patience)?),
            },
        })
    }
}

/// The same call for any kind of NIC; the second form takes a device and a batch of its kind.
macro_rules! each {
    ($any:expr, $nic:ident => $call:expr) => {
        match $any {
            AnyNic::Virtio($nic) => $call,
            AnyNic::E1000($nic) => $call,
            AnyNic::E1000e($nic) => $call,
            AnyNic::R8169($nic) => $call,
            AnyNic::Rtl8139($nic) => $call,
            AnyNic::Classic($nic) => $call,
            AnyNic::Vmxnet3($nic) => $call,
            AnyNic::PciE1000($nic) => $call,
            AnyNic::PciE1000e($nic) => $call,
            AnyNic::PciR8169($nic) => $call,
            AnyNic::PciRtl8139($nic) => $call,
            AnyNic::PciClassic($nic) => $call,
            AnyNic::PciVmxnet3($nic) => $call,
        }
    };
    ($any:expr, $batch:expr, $nic:ident, $its:ident => $call:expr) => {
        match ($any, $batch) {
            (AnyNic::Virtio($nic), AnyBatch::Virtio($its)) => $call,
            (AnyNic::E1000($nic), AnyBatch::E1000($its)) => $call,
            (AnyNic::E1000e($nic), AnyBatch::E1000e($its)) => $call,
            (AnyNic::R8169($nic), AnyBatch::R8169($its)) => $call,
            (AnyNic::Rtl8139($nic), AnyBatch::Rtl8139($its)) => $call,
            (AnyNic::Classic($nic), AnyBatch::Classic($its)) => $call,
            (AnyNic::Vmxnet3($nic), AnyBatch::Vmxnet3($its)) => $call,
            (AnyNic::PciE1000($nic), AnyBatch::E1000($its)) => $call,
            (AnyNic::PciE1000e($nic), AnyBatch::E1000e($its)) => $call,
            (AnyNic::PciR8169($nic), AnyBatch::R8169($its)) => $call,
            (AnyNic::PciRtl8139($nic), AnyBatch::Rtl8139($its)) => $call,
            (AnyNic::PciClassic($nic), AnyBatch::Classic($its)) => $call,
            (AnyNic::PciVmxnet3($nic), AnyBatch::Vmxnet3($its)) => $call,
            _ => unreachable!("a batch of another kind of device"),
        }
    };
}

impl Info for AnyNic {
    fn lanes(&self) -> usize {
        each!(self, nic => nic.lanes())
    }

    fn connected(&self) -> Connected {
        each!(self, nic => nic.connected())
    }

    fn settle_mac(&mut self, chosen: Option<Mac>) -> Option<Mac> {
        each!(self, nic => nic.settle_mac(chosen))
    }

    fn can_checksum(&self) -> bool {
        each!(self, nic => nic.can_checksum())
    }

    fn is_connected(&self) -> bool {
        each!(self, nic => Info::is_connected(nic))
    }

    fn reconnects(&self) -> u64 {
        each!(self, nic => Info::reconnects(nic))
    }

    fn stats(&self) -> QueueStats {
        each!(self, nic => Info::stats(nic))
    }

    fn is_sound(&self) -> bool {
        each!(self, nic => Info::is_sound(nic))
    }

    fn registers(&self) -> Option<Registers> {
        each!(self, nic => Info::registers(nic))
    }
}

impl Transmit for AnyNic {
    fn slots(&self, lane: usize) -> u16 {
        each!(self, nic => nic.slots(lane))
    }

    fn room(&self, lane: usize) -> usize {
        each!(self, nic => nic.room(lane))
    }

    #[inline]
    fn free_slots(&self, lane: usize) -> u16 {
        each!(self, nic => nic.free_slots(lane))
    }

    fn under_way(&self, lane: usize) -> u16 {
        each!(self, nic => nic.under_way(lane))
    }

    #[inline]
    fn reap(&mut self, lane: usize) -> u16 {
        each!(self, nic => nic.reap(lane))
    }

    #[inline]
    fn next(&mut self, lane: usize) -> Option<u16> {
        each!(self, nic => Transmit::next(nic, lane))
    }

    #[inline]
    fn slot_ahead(&self, lane: usize, ahead: u16) -> u16 {
        each!(self, nic => nic.slot_ahead(lane, ahead))
    }

    #[inline]
    fn write(&self, lane: usize, slot: u16, at: usize, bytes: &[u8]) {
        each!(self, nic => nic.write(lane, slot, at, bytes));
    }

    fn offload_checksum(&mut self, lane: usize, slot: u16, on: bool) {
        each!(self, nic => nic.offload_checksum(lane, slot, on));
    }

    #[inline]
    fn send(&mut self, lane: usize, slot: u16, len: u32) {
        each!(self, nic => nic.send(lane, slot, len));
    }

    #[inline]
    fn send_filled(&mut self, lane: usize, count: u32, len: u32) -> u32 {
        each!(self, nic => nic.send_filled(lane, count, len))
    }

    #[inline]
    fn flush(&mut self, lane: usize) {
        each!(self, nic => nic.flush(lane));
    }

    fn count_full(&mut self, lane: usize) {
        each!(self, nic => nic.count_full(lane));
    }
}

impl Receive for AnyNic {
    type Batch = AnyBatch;

    fn batch(&self, lane: usize) -> AnyBatch {
        match self {
            Self::Virtio(nic) => AnyBatch::Virtio(nic.batch(lane)),
            Self::E1000(nic) => AnyBatch::E1000(nic.batch(lane)),
            Self::E1000e(nic) => AnyBatch::E1000e(nic.batch(lane)),
            Self::R8169(nic) => AnyBatch::R8169(nic.batch(lane)),
            Self::Rtl8139(nic) => AnyBatch::Rtl8139(nic.batch(lane)),
            Self::Classic(nic) => AnyBatch::Classic(nic.batch(lane)),
            Self::Vmxnet3(nic) => AnyBatch::Vmxnet3(nic.batch(lane)),
            Self::PciE1000(nic) => AnyBatch::E1000(nic.batch(lane)),
            Self::PciE1000e(nic) => AnyBatch::E1000e(nic.batch(lane)),
            Self::PciR8169(nic) => AnyBatch::R8169(nic.batch(lane)),
            Self::PciRtl8139(nic) => AnyBatch::Rtl8139(nic.batch(lane)),
            Self::PciClassic(nic) => AnyBatch::Classic(nic.batch(lane)),
            Self::PciVmxnet3(nic) => AnyBatch::Vmxnet3(nic.batch(lane)),
        }
    }

    #[inline]
    fn ready(&mut self, lane: usize) -> bool {
        each!(self, nic => nic.ready(lane))
    }

    #[inline]
    fn poll(&mut self, lane: usize, batch: &mut AnyBatch, most: usize) -> usize {
        each!(self, batch, nic, its => nic.poll(lane, its, most))
    }

    fn bytes(batch: &AnyBatch) -> u64 {
        match batch {
            AnyBatch::Virtio(batch) => VirtioNet::bytes(batch),
            AnyBatch::E1000(batch) => <E1000Nic>::bytes(batch),
            AnyBatch::E1000e(batch) => <E1000eNic>::bytes(batch),
            AnyBatch::R8169(batch) => <R8169Nic>::bytes(batch),
            AnyBatch::Rtl8139(batch) => <Rtl8139Nic>::bytes(batch),
            AnyBatch::Classic(batch) => <Rtl8139ClassicNic>::bytes(batch),
            AnyBatch::Vmxnet3(batch) => <Vmxnet3Nic>::bytes(batch),
        }
    }

    #[inline]
    fn frame_len(batch: &AnyBatch, at: usize) -> usize {
        match batch {
            AnyBatch::Virtio(batch) => VirtioNet::frame_len(batch, at),
            AnyBatch::E1000(batch) => <E1000Nic>::frame_len(batch, at),
            AnyBatch::E1000e(batch) => <E1000eNic>::frame_len(batch, at),
            AnyBatch::R8169(batch) => <R8169Nic>::frame_len(batch, at),
            AnyBatch::Rtl8139(batch) => <Rtl8139Nic>::frame_len(batch, at),
            AnyBatch::Classic(batch) => <Rtl8139ClassicNic>::frame_len(batch, at),
            AnyBatch::Vmxnet3(batch) => <Vmxnet3Nic>::frame_len(batch, at),
        }
    }

    #[inline]
    fn read(&self, lane: usize, batch: &AnyBatch, at: usize, bytes: &mut [u8]) -> usize {
        each!(self, batch, nic, its => nic.read(lane, its, at, bytes))
    }

    fn checksum_pending(&self, lane: usize, batch: &AnyBatch, at: usize) -> bool {
        each!(self, batch, nic, its => nic.checksum_pending(lane, its, at))
    }

    #[inline]
    fn release(&mut self, lane: usize, batch: &mut AnyBatch) {
        each!(self, batch, nic, its => nic.release(lane, its));
    }

    #[inline]
    fn release_first(&mut self, lane: usize, batch: &mut AnyBatch, count: usize) {
        each!(self, batch, nic, its => nic.release_first(lane, its, count));
    }

    fn posted(&self, lane: usize) -> u16 {
        each!(self, nic => nic.posted(lane))
    }
}

impl Wait for AnyNic {
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, NicError> {
        each!(self, nic => Wait::wait(nic, interest, timeout))
    }

    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError> {
        each!(self, nic => Wait::prepare_wait(nic, interest))
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        each!(self, nic => Wait::watched(nic))
    }

    fn watched_for_end(&self) -> u64 {
        each!(self, nic => Wait::watched_for_end(nic))
    }

    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError> {
        each!(self, nic => Wait::finish_wait(nic, ready))
    }

    fn reconnect(&mut self, patience: Duration) -> Result<(), NicError> {
        each!(self, nic => Wait::reconnect(nic, patience))
    }
}
