//! A chip *inside a VM* (or in a real machine), driven past the kernel: `pci:0000:00:03.0`,
//! `pci:0000:00:04.0,model=r8169`.
//!
//! - VFIO: the BAR's region is mapped, the IOMMU translates addresses of any memory, an eventfd
//!   tells of INTx or MSI. It needs an IOMMU and `vfio-pci`.
//! - VFIO without IOMMU: the same, with physically contiguous memory. It needs `vfio-pci` and
//!   `enable_unsafe_noiommu_mode`.
//! - UIO: `resourceN` is mapped, memory is physically contiguous, `/dev/uioN` tells of INTx. It
//!   needs `uio_pci_generic`.
//! - sysfs: `resourceN` is mapped, memory is physically contiguous, and there are no interrupts:
//!   the driver polls. It needs nothing.
//!
//! The first that is there is taken, unless the address says `via=`. All of them need root. Where
//! no IOMMU translates, the rings and buffers lie in one run of physical memory ([`memory`]): a
//! single huge page suffices for the default ring sizes.
//!
//! The kernel's own driver is unbound first ([`claim`]) and bound back when the [`PciBus`] is
//! dropped: after an error, a panic or Ctrl-C just as at the end. A process that dies of SIGKILL
//! leaves that to the next run. With VFIO and UIO the kernel then stops the chip's DMA itself; with
//! plain sysfs nobody does, so there the chip may write into memory that is somebody else's by
//! then.
//!
//! Every access of a register is a load or store that the hypervisor traps, so nothing here is
//! "mapped" in the sense of [`crate::Bus::mapped`]: that is memory shared with the switch.

mod bus;
mod claim;
mod error;
mod interface;
mod memory;
mod stop;
mod sys;
mod sysfs;
mod vfio;
mod way;

pub use bus::PciBus;
pub use error::PciError;
pub use way::Way;
