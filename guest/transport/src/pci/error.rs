//! What can be wrong with a device, in one line each, with what to do.

use std::io;

use crate::Model;
use crate::address::Bdf;

/// Why a device on a PCI bus cannot be driven.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PciError {
    #[error("there is no PCI device {0}: see ls /sys/bus/pci/devices (or lspci -D)")]
    NoDevice(Bdf),
    #[error(
        "{bdf} is {found}, not {model} ({:04x}:{:04x}): should the address have another model=?",
        .model.pci_id() & 0xffff,
        .model.pci_id() >> 16
    )]
    OtherDevice {
        bdf: Bdf,
        model: Model,
        /// Vendor and device, in hexadecimal.
        found: String,
    },
    #[error("{0} is in use by another process, and only one can drive it: end that one first")]
    InUse(Bdf),
    #[error(
        "cannot {what}: run it as root (CAP_SYS_ADMIN, CAP_SYS_RAWIO and CAP_NET_ADMIN are needed)"
    )]
    Permission { what: &'static str },
    #[error("the kernel module {0} is not loaded: modprobe {0}")]
    NoModule(&'static str),
    #[error(
        "uio_pci_generic does not take an r8169, whose INTx Linux does not trust: use vfio-pci \
         with irq=msi, or via=sysfs,receive=poll"
    )]
    Unmaskable,
    #[error(
        "there is no IOMMU, and this kernel has no VFIO without one (CONFIG_VFIO_NOIOMMU; Debian's \
         lacks it): give the VM an IOMMU, or use via=uio or via=sysfs"
    )]
    NoIommu,
    #[error(
        "there is no IOMMU, and VFIO's no-IOMMU mode is off: echo 1 > \
         /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
    )]
    NoIommuModeOff,
    #[error("an IOMMU translates the device's addresses, so it can only be driven with via=vfio")]
    Translated,
    #[error(
        "other devices of the IOMMU group {group} have drivers: unbind those too (see \
         /sys/kernel/iommu_groups/{group}/devices)"
    )]
    Group { group: String },
    #[error(
        "no interrupt of the device reaches a program through sysfs alone: add receive=poll, or \
         modprobe uio_pci_generic (via=uio)"
    )]
    NoInterrupts,
    #[error("irq=msi and irq=msix need via=vfio: UIO has only irq=intx")]
    NoMsi,
    #[error(
        "no {wanted} bytes of physically contiguous memory: reserve 2 MiB huge pages (echo {pages} \
         > /proc/sys/vm/nr_hugepages; {free} are free, {run} of them in a row), or ask for less \
         (size=, buffer=)"
    )]
    NoMemory {
        wanted: usize,
        /// Huge pages that would do if they lie in a row: twice as many as are needed.
        pages: usize,
        free: usize,
        /// The longest row of them.
        run: usize,
    },
    #[error("the kernel did not bind {bdf} to {driver}: see dmesg")]
    NotBound { bdf: Bdf, driver: &'static str },
    /// The device of a run does not come back.
    #[error("{0} is gone")]
    Gone(Bdf),
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
}

impl PciError {
    /// For `map_err`: tells missing permission from other errors.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { what },
            _ => Self::System { what, source },
        }
    }
}
