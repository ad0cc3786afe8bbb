//! A chip *inside a VM* (or in a real machine), driven past the kernel: `pci:0000:00:03.0`, `pci:0000:00:04.0,model=r8169`.
//!
//! | way | registers | memory | interrupts | needs |
//! | --- | --- | --- | --- | --- |
//! | VFIO | the BAR's region, mapped | any; the IOMMU translates | eventfd: INTx or MSI | an IOMMU, `vfio-pci` |
//! | VFIO without IOMMU | the same | physically contiguous | the same | `vfio-pci`, `enable_unsafe_noiommu_mode` |
//! | UIO | `resourceN`, mapped | physically contiguous | `/dev/uioN`: INTx | `uio_pci_generic` |
//! | sysfs | `resourceN`, mapped | physically contiguous | none: poll | nothing |
//!
//! The first that is there is taken, unless the address says `via=`. All of them need root. Where no IOMMU translates, the rings
//! and buffers lie in one run of physical memory ([`memory`]): a single huge page suffices for the default ring sizes.
//!
//! The kernel's own driver is unbound first ([`claim`]) and bound back when the [`PciBus`] is dropped: after an error, a panic or
//! Ctrl-C just as at the end. A process that dies of SIGKILL leaves that to the next run. With VFIO and UIO the kernel then stops
//! the chip's DMA itself; with plain sysfs nobody does, so there the chip may write into memory that is somebody else's by then.
//!
//! Every access of a register is a load or store that the hypervisor traps, so nothing here is "mapped" in the sense of
//! [`crate::Bus::mapped`]: that is memory shared with the switch.

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
pub use way::{Via, Way};
