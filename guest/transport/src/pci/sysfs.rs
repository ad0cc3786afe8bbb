//! A device's directory in sysfs.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::PciError;
use super::way::Offers;
use crate::Model;
use crate::address::Bdf;

const BUS: &str = "/sys/bus/pci";

/// One device.
#[derive(Clone, Debug)]
pub(super) struct Sysfs {
    pub bdf: Bdf,
    dir: PathBuf,
}

/// A name in a directory that a symbolic link leads to.
fn target_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn word(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

impl Sysfs {
    /// # Errors
    /// [`PciError::NoDevice`] and [`PciError::OtherDevice`].
    pub fn find(bdf: Bdf, model: Model) -> Result<Self, PciError> {
        let dir = Path::new(BUS).join("devices").join(bdf.to_string());
        if !dir.is_dir() {
            return Err(PciError::NoDevice(bdf));
        }
        let id =
            |name| word(&dir.join(name)).unwrap_or_default().trim_start_matches("0x").to_owned();
        let found = format!("{}:{}", id("vendor"), id("device"));
        let wanted = model.pci_id();
        if found != format!("{:04x}:{:04x}", wanted & 0xffff, wanted >> 16) {
            return Err(PciError::OtherDevice { bdf, model, found });
        }
        Ok(Self { bdf, dir })
    }

    /// Bytes between the beginning of its page and that of a BAR.
    pub fn skew(&self, bar: u16) -> io::Result<usize> {
        let all = fs::read_to_string(self.dir.join("resource"))?;
        let line = all.lines().nth(bar.into()).and_then(|line| line.split(' ').next());
        let start = line.and_then(|hex| u64::from_str_radix(hex.trim_start_matches("0x"), 16).ok());
        let start = start.ok_or_else(|| io::Error::other("there is no such BAR"))?;
        usize::try_from(start % 4096).map_err(io::Error::other)
    }

    /// What the kernel has for it; `polls` is for the caller to say.
    pub fn offers(&self) -> Offers {
        let driver = |name: &str| Path::new(BUS).join("drivers").join(name).is_dir();
        let no_iommu = word(Path::new("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"));
        // In no-IOMMU mode a device bound to vfio-pci has a group that is not a real one.
        let pretended =
            word(&self.dir.join("iommu_group/name")).is_some_and(|n| n == "vfio-noiommu");
        Offers {
            vfio: driver("vfio-pci") && Path::new("/dev/vfio/vfio").exists(),
            no_iommu: no_iommu.map(|value| value == "Y"),
            uio: driver("uio_pci_generic"),
            domain: word(&self.dir.join("iommu_group/type")).filter(|_| !pretended),
            polls: false,
            unmaskable: false,
        }
    }

    pub fn driver(&self) -> Option<String> {
        target_name(&self.dir.join("driver"))
    }

    pub fn group(&self) -> Option<String> {
        target_name(&self.dir.join("iommu_group"))
    }

    pub fn interfaces(&self) -> Vec<String> {
        self.list("net")
    }

    /// Its device file of UIO.
    pub fn uio(&self) -> Option<PathBuf> {
        self.list("uio").first().map(|name| Path::new("/dev").join(name))
    }

    fn list(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(below)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Opens one of its files, for reading and writing.
    pub fn open(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).open(self.dir.join(name))
    }

    /// Sets one of its attributes.
    pub fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.dir.join(name), value)
    }

    /// Takes it from whatever driver has it.
    pub fn unbind(&self) -> io::Result<()> {
        match self.driver() {
            None => Ok(()),
            Some(_) => self.set("driver/unbind", &self.bdf.to_string()),
        }
    }

    /// Lets the kernel look for a driver: the overriding one, if there is one.
    pub fn probe(&self) -> io::Result<()> {
        fs::write(Path::new(BUS).join("drivers_probe"), self.bdf.to_string())
    }
}
