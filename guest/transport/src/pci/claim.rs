//! Taking a device from its kernel driver, and giving it back.
//!
//! What was there before is kept in a file below `/run` (or `/tmp`, where there is no such place)
//! meanwhile, so that a run after one that was killed still knows it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::interface::Interface;
use super::sysfs::Sysfs;
use super::{PciError, Way, sys};

/// A driver that does not exist, so that no module loaded meanwhile gets the device.
const NOBODY: &str = "vmlan";
const OVERRIDE: &str = "driver_override";

/// Is it one of the drivers that take only devices assigned to them?
fn is_chosen(driver: &str) -> bool {
    [Way::Vfio, Way::Uio].iter().any(|way| way.driver() == Some(driver))
}

/// A device that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    sysfs: Sysfs,
    /// Nobody else may take it at the same time.
    _lock: File,
    /// The driver it had.
    driver: Option<String>,
    interfaces: Vec<Interface>,
    /// It was taken from that driver.
    moved: bool,
}

impl Claim {
    /// Locks the device and remembers who has it.
    ///
    /// # Errors
    /// [`PciError::InUse`], [`PciError::Permission`].
    pub fn new(sysfs: Sysfs) -> Result<Self, PciError> {
        let lock =
            sysfs.open("config").map_err(PciError::system("open the device's configuration"))?;
        if !sys::try_lock(&lock).map_err(PciError::system("lock the device"))? {
            return Err(PciError::InUse(sysfs.bdf));
        }
        let mut claim = Self {
            _lock: lock,
            driver: sysfs.driver(),
            interfaces: Vec::new(),
            moved: false,
            sysfs,
        };
        match claim.remembered() {
            Some((driver, interfaces)) if !claim.has_own_driver() => {
                (claim.driver, claim.interfaces, claim.moved) = (Some(driver), interfaces, true);
            }
            _ => {
                claim.interfaces =
                    claim.sysfs.interfaces().iter().map(|n| Interface::of(n)).collect()
            }
        }
        Ok(claim)
    }

    /// Has the device a driver that takes it by itself?
    fn has_own_driver(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| !is_chosen(driver))
    }

    fn memory(&self) -> PathBuf {
        let run = Path::new("/run");
        let dir = if run.is_dir() { run } else { Path::new("/tmp") };
        dir.join(format!("vmlan-{}", self.sysfs.bdf))
    }

    /// What a run that was killed has left.
    fn remembered(&self) -> Option<(String, Vec<Interface>)> {
        let path = self.memory();
        // Root's own: what is in it is done.
        let about = fs::symlink_metadata(&path).ok()?;
        let text =
            (about.is_file() && about.uid() == 0).then(|| fs::read_to_string(path).ok())??;
        let mut lines = text.lines();
        let driver = lines.next()?.to_owned();
        Some((driver, lines.filter_map(Interface::parse).collect()))
    }

    fn remember(&self, driver: &str) {
        let mut text = format!("{driver}\n");
        for interface in &self.interfaces {
            text.push_str(&interface.to_line());
            text.push('\n');
        }
        // Only the run after a killed one needs it. The file is created, never opened, so that no
        // link in its place is followed.
        let path = self.memory();
        let _ = fs::remove_file(&path);
        let made = File::options().write(true).create_new(true).open(path);
        let _ = made.and_then(|mut file| file.write_all(text.as_bytes()));
    }

    /// The device.
    pub fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    /// Binds the device to the driver that `way` needs, or to none.
    ///
    /// # Errors
    /// [`PciError::NotBound`], [`PciError::Permission`]. Everything is as before then.
    pub fn take(&mut self, way: Way) -> Result<(), PciError> {
        if self.sysfs.driver().as_deref() == way.driver() {
            return Ok(());
        }
        if let Some(driver) = self.driver.clone() {
            self.remember(&driver);
        }
        self.moved = true;
        let wanted = way.driver().unwrap_or(NOBODY);
        self.sysfs.set(OVERRIDE, wanted).map_err(PciError::system("choose the device's driver"))?;
        self.sysfs.unbind().map_err(PciError::system("unbind the kernel's driver"))?;
        let Some(driver) = way.driver() else { return Ok(()) };
        let probed = self.sysfs.probe();
        if self.sysfs.driver().as_deref() == Some(driver) {
            return Ok(());
        }
        probed.map_err(PciError::system("bind the device to the driver"))?;
        Err(PciError::NotBound { bdf: self.sysfs.bdf, driver })
    }

    fn give_back(&self) -> std::io::Result<()> {
        self.sysfs.unbind()?;
        let chosen = self.driver.as_deref().filter(|driver| is_chosen(driver));
        self.sysfs.set(OVERRIDE, chosen.unwrap_or("\n"))?;
        if self.driver.is_some() {
            self.sysfs.probe()?;
        }
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.moved {
            return;
        }
        let back = self.give_back();
        let driver = self.driver.as_deref().unwrap_or("no driver");
        if back.is_err() || self.sysfs.driver() != self.driver {
            let why = back.err().map_or_else(|| "see dmesg".into(), |error| error.to_string());
            eprintln!("{}: cannot give it back to {driver}: {why}", self.sysfs.bdf);
            return;
        }
        let _ = fs::remove_file(self.memory());
        for interface in &self.interfaces {
            if let Err(error) = interface.restore(&self.sysfs) {
                eprintln!("{}: {}: {error}", self.sysfs.bdf, interface.name());
            }
        }
    }
}
