//! Addresses of devices inside a VM: `pci:0000:00:03.0[,key=value...]`.

use std::fmt;
use std::str::FromStr;

use super::{AddressError, VfioUser};
use crate::{Irq, Options, Reception};

/// Domain, bus, device and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bdf {
    domain: u16,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for Bdf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(out, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl Bdf {
    /// `0000:00:03.0`, or `00:03.0` in domain 0.
    fn parse(text: &str) -> Option<Self> {
        let (rest, function) = text.split_once('.')?;
        let parts: Vec<_> = rest.split(':').collect();
        let (domain, bus, device) = match *parts.as_slice() {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => ("0", bus, device),
            _ => return None,
        };
        let hex =
            |text: &str| u16::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
        let byte = |text, most| hex(text).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= most);
        Some(Self {
            domain: hex(domain)?,
            bus: byte(bus, 0xff)?,
            device: byte(device, 0x1f)?,
            function: byte(function, 7)?,
        })
    }
}

/// Which way to the device the address asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// The first way that is there.
    #[default]
    Auto,
    /// VFIO, with or without an IOMMU.
    Vfio,
    /// sysfs, with the interrupts of `uio_pci_generic`.
    Uio,
    /// sysfs alone.
    Sysfs,
}

/// Which device, and how to drive it.
///
/// In words: `pci:BDF[,key=value...]` with `via=auto|vfio|uio|sysfs` (see [`crate::pci`]) and the
/// keys of a `vfio-user:` address ([`VfioUser`]), without those that say how the VMM treats
/// registers: `writes`, `doorbell`, `unmask`, `mmap_timeout`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pci {
    /// Where it is.
    pub bdf: Bdf,
    /// How to reach it.
    pub via: Via,
    /// The driver.
    pub driver: Options,
}

impl Pci {
    /// Can the driver do without interrupts?
    pub(crate) fn polls(&self) -> bool {
        self.driver.receive == Reception::Poll
    }

    /// MSI or MSI-X is wanted.
    pub(crate) fn wants_messages(&self) -> bool {
        self.driver.irq != Irq::Intx
    }
}

/// Keys of a `vfio-user:` address that mean nothing here.
const OF_THE_VMM: &[&str] = &["writes", "doorbell", "unmask", "mmap_timeout"];

impl FromStr for Pci {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix("pci:").ok_or_else(|| AddressError::Kind(text.into()))?;
        let (place, keys) = rest.split_once(',').unwrap_or((rest, ""));
        let bdf = Bdf::parse(place).ok_or_else(|| AddressError::Bdf(place.into()))?;
        // The hypervisor may post writes.
        let (mut via, mut others) = (Via::Auto, String::from("vfio-user:-,flush"));
        for part in keys.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, "on"));
            match (key, value) {
                ("via", "auto") => via = Via::Auto,
                ("via", "vfio") => via = Via::Vfio,
                ("via", "uio") => via = Via::Uio,
                ("via", "sysfs") => via = Via::Sysfs,
                ("via", _) => {
                    let (key, value) = (key.into(), value.into());
                    let wanted = "auto, vfio, uio or sysfs";
                    return Err(AddressError::Value { key, value, wanted });
                }
                _ if OF_THE_VMM.contains(&key) => return Err(AddressError::PciKey(key.into())),
                _ => others.extend([",", part]),
            }
        }
        let driver = match others.parse::<VfioUser>() {
            Ok(address) => address.driver,
            Err(AddressError::VfioKey(key)) => return Err(AddressError::PciKey(key)),
            Err(error) => return Err(error),
        };
        Ok(Self { bdf, via, driver })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    #[test]
    fn an_address_says_everything() {
        let address: Pci = "pci:0000:00:1f.7,via=sysfs,irq=msi,size=64,batch".parse().unwrap();
        assert_eq!(address.bdf.to_string(), "0000:00:1f.7");
        assert_eq!(address.via, Via::Sysfs);
        let driver = &address.driver;
        assert_eq!((driver.size, driver.irq, driver.batch), (64, Irq::Msi, true));
        let other: Pci = "pci:4:05.0,model=r8169,csb".parse().unwrap();
        assert_eq!((other.driver.model, other.driver.flush), (Model::R8169, true));
        let short: Pci = "pci:3:02.1".parse().unwrap();
        assert_eq!((short.bdf.to_string().as_str(), short.via), ("0000:03:02.1", Via::Auto));
    }

    #[test]
    fn a_wrong_address_says_what_to_do() {
        for (text, word) in [
            ("vhost-user:/a", "pci:"),
            ("pci:", "0000:00:03.0"),
            ("pci:eth0", "0000:00:03.0"),
            ("pci:0000:00:20.0", "0000:00:03.0"),
            ("pci:0000:00:03.8", "0000:00:03.0"),
            ("pci:0:0:0:0.0", "0000:00:03.0"),
            ("pci:00:03.0,via=magic", "auto, vfio, uio or sysfs"),
            ("pci:00:03.0,colour=red", "colour"),
            ("pci:00:03.0,writes=posted", "writes"),
            ("pci:00:03.0,doorbell=mapped", "doorbell"),
            ("pci:00:03.0,size=100", "multiple of 8"),
        ] {
            let error = text.parse::<Pci>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
