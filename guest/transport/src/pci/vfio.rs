//! VFIO (`linux/vfio.h`): container, group, device.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::claim::Claim;
use super::sys::{self, Request};
use super::{PciError, Way};
use crate::memory::Ram;
use crate::sys::EventFd;
use crate::vfio_user::irq;
use crate::{Irq, Model};

const TYPE1V2_IOMMU: u32 = 3;
const NOIOMMU_IOMMU: u32 = 8;
const GROUP_VIABLE: u32 = 1; // Every device of the group belongs to VFIO or to no driver.
const CAN_MAP: u32 = 1 << 2; // `VFIO_REGION_INFO_FLAG_MMAP`.

/// What has to stay open.
#[derive(Debug)]
pub(super) struct Vfio {
    pub device: File,
    _group: File,
    container: File,
}

/// A region of the device's file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub mappable: bool,
    pub size: u64,
    pub offset: u64,
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

impl Vfio {
    /// Opens a device that is bound to `vfio-pci`.
    ///
    /// # Errors
    /// [`PciError::InUse`], [`PciError::Group`], [`PciError::Permission`] and others.
    pub fn open(claim: &Claim, way: Way) -> Result<Self, PciError> {
        let bdf = claim.sysfs().bdf;
        let group_name = claim.sysfs().group().ok_or(PciError::NoIommu)?;
        let container =
            open(Path::new("/dev/vfio/vfio")).map_err(PciError::system("open /dev/vfio/vfio"))?;
        let (kind, prefix) = match way {
            Way::VfioNoIommu => (NOIOMMU_IOMMU, "noiommu-"),
            _ => (TYPE1V2_IOMMU, ""),
        };
        if !sys::vfio(&container, Request::CheckExtension(kind)).is_ok_and(|yes| yes > 0) {
            return Err(PciError::NoModule("vfio_iommu_type1"));
        }
        let path = Path::new("/dev/vfio").join(format!("{prefix}{group_name}"));
        let group = open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::ResourceBusy => PciError::InUse(bdf),
            _ => PciError::system("open the device's group in /dev/vfio")(source),
        })?;
        let mut status = [0; 2];
        sys::vfio(&group, Request::GroupStatus(&mut status))
            .map_err(PciError::system("ask for the state of the IOMMU group"))?;
        if status[1] & GROUP_VIABLE == 0 {
            return Err(PciError::Group { group: group_name });
        }
        sys::vfio(&group, Request::SetContainer(&container))
            .map_err(PciError::system("use the device's IOMMU group"))?;
        sys::vfio(&container, Request::SetIommu(kind))
            .map_err(PciError::system("use the IOMMU"))?;
        let name = CString::new(bdf.to_string()).map_err(io::Error::other);
        let device = name
            .and_then(|name| sys::vfio_device(&group, &name))
            .map_err(PciError::system("open the device by VFIO"))?;
        Ok(Self { device, _group: group, container })
    }

    /// Shows the RAM to the device, at the addresses where the RAM says it is.
    pub fn map(&self, ram: &Ram) -> Result<(), PciError> {
        let (middle, size) = (ram.buffers(), ram.size());
        let in_one = ram.guest_phys(middle) == ram.guest_phys(0) + middle as u64;
        let whole: &[_] = &[(0, size)];
        let parts = if in_one { whole } else { &[(0, middle), (middle, size - middle)] };
        for part in parts {
            sys::vfio_map(&self.container, ram, *part, ram.guest_phys(part.0))
                .map_err(PciError::system("let the IOMMU map the RAM"))?;
        }
        Ok(())
    }

    /// Where a region lies in the device's file.
    pub fn region(&self, index: u32) -> Result<Region, PciError> {
        let mut words = [0, 0, index, 0, 0, 0, 0, 0];
        sys::vfio(&self.device, Request::RegionInfo(&mut words))
            .map_err(PciError::system("ask where the device's registers are"))?;
        let [_, flags, _, _, size_low, size_high, low, high] = words.map(u64::from);
        let wide = |low: u64, high: u64| low | high << 32;
        let mappable = flags & u64::from(CAN_MAP) != 0;
        Ok(Region { mappable, size: wide(size_low, size_high), offset: wide(low, high) })
    }

    /// Lets the chip's (first) interrupt signal an eventfd; INTx masks itself each time.
    pub fn signal(&self, kind: Irq, model: Model, event: &EventFd) -> io::Result<()> {
        use std::os::fd::AsFd;
        const NOBODY: u32 = u32::MAX;
        let (index, count) = irq::of(kind, model);
        let flags = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
        let fd = u32::try_from(event.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        self.set_irqs([20 + 4 * count, flags, index, 0, count, fd, NOBODY])
    }

    /// INTx may fire again.
    pub fn unmask(&self) -> io::Result<()> {
        let flags = irq::DATA_NONE | irq::ACTION_UNMASK;
        self.set_irqs([20, flags, irq::INTX, 0, 1, 0, 0])
    }

    /// What lies beyond the length, the first word, is not looked at.
    fn set_irqs(&self, words: [u32; 7]) -> io::Result<()> {
        sys::vfio(&self.device, Request::SetIrqs(&words)).map(drop)
    }
}
