//! Which way to the device: chosen from what the kernel offers.

use std::fmt;

use super::PciError;
use crate::address::Via;

/// The way taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Way {
    /// VFIO behind an IOMMU.
    Vfio,
    /// VFIO in no-IOMMU mode.
    VfioNoIommu,
    Uio,
    Sysfs,
}

impl Way {
    /// The kernel driver that the device has to be bound to.
    pub(super) fn driver(self) -> Option<&'static str> {
        match self {
            Self::Vfio | Self::VfioNoIommu => Some("vfio-pci"),
            Self::Uio => Some("uio_pci_generic"),
            Self::Sysfs => None,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Vfio => "VFIO with an IOMMU",
            Self::VfioNoIommu => "VFIO without an IOMMU",
            Self::Uio => "sysfs with UIO's interrupts",
            Self::Sysfs => "sysfs, without interrupts",
        })
    }
}

/// What the kernel has for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offers {
    /// `vfio-pci` is loaded.
    pub vfio: bool,
    /// `enable_unsafe_noiommu_mode`; `None`: the kernel has no such mode.
    pub no_iommu: Option<bool>,
    /// `uio_pci_generic` is loaded.
    pub uio: bool,
    /// The kind of the device's IOMMU domain (`identity`, `DMA`, `DMA-FQ`); `None`: no IOMMU.
    pub domain: Option<String>,
    /// The driver can do without interrupts.
    pub polls: bool,
    /// The kernel does not trust the device to mask INTx: it has a list of such
    /// (`quirk_broken_intx_masking`).
    pub unmaskable: bool,
}

/// # Errors
/// What the wanted way lacks, with what to do.
pub(super) fn choose(via: Via, offers: &Offers) -> Result<Way, PciError> {
    match via {
        Via::Vfio => vfio(offers),
        Via::Uio => uio(offers),
        Via::Sysfs => sysfs(offers),
        // Behind an IOMMU that translates there is only VFIO, so its error is the one to tell.
        Via::Auto if is_translated(offers) => vfio(offers),
        Via::Auto => vfio(offers).or_else(|_| {
            let last = |error| if offers.uio { error } else { PciError::NoInterrupts };
            uio(offers).or_else(|error| sysfs(offers).map_err(|_| last(error)))
        }),
    }
}

fn is_translated(offers: &Offers) -> bool {
    offers.domain.as_ref().is_some_and(|domain| domain != "identity")
}

fn vfio(offers: &Offers) -> Result<Way, PciError> {
    match (offers.vfio, &offers.domain, offers.no_iommu) {
        (false, ..) => Err(PciError::NoModule("vfio-pci")),
        (true, Some(_), _) => Ok(Way::Vfio),
        (true, None, Some(true)) => Ok(Way::VfioNoIommu),
        (true, None, Some(false)) => Err(PciError::NoIommuModeOff),
        (true, None, None) => Err(PciError::NoIommu),
    }
}

fn untranslated(offers: &Offers, way: Way) -> Result<Way, PciError> {
    if is_translated(offers) { Err(PciError::Translated) } else { Ok(way) }
}

fn uio(offers: &Offers) -> Result<Way, PciError> {
    if !offers.uio {
        return Err(PciError::NoModule("uio_pci_generic"));
    }
    if offers.unmaskable {
        return Err(PciError::Unmaskable);
    }
    untranslated(offers, Way::Uio)
}

fn sysfs(offers: &Offers) -> Result<Way, PciError> {
    if !offers.polls {
        return Err(PciError::NoInterrupts);
    }
    untranslated(offers, Way::Sysfs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(words: &str) -> Offers {
        let has = |word: &str| words.split(' ').any(|w| w == word);
        let domain = ["identity", "DMA"].into_iter().find(|word| has(word)).map(str::to_owned);
        let no_iommu =
            [("off", false), ("on", true)].iter().find(|row| has(row.0)).map(|row| row.1);
        let (vfio, uio, polls) = (has("vfio"), has("uio"), has("polls"));
        Offers { vfio, no_iommu, uio, domain, polls, unmaskable: has("unmaskable") }
    }

    #[test]
    fn the_first_way_that_is_there_is_taken() {
        for (there, taken) in [
            ("vfio DMA uio polls", Way::Vfio),
            ("vfio identity uio polls", Way::Vfio),
            ("vfio on uio polls", Way::VfioNoIommu),
            ("vfio off uio polls", Way::Uio),
            ("vfio uio", Way::Uio),
            ("uio identity", Way::Uio),
            ("vfio polls", Way::Sysfs),
            ("polls", Way::Sysfs),
            ("uio polls unmaskable", Way::Sysfs),
            ("vfio identity uio unmaskable", Way::Vfio),
        ] {
            assert_eq!(choose(Via::Auto, &offers(there)).unwrap(), taken, "{there}");
        }
        assert_eq!(choose(Via::Sysfs, &offers("vfio identity polls")).unwrap(), Way::Sysfs);
    }

    #[test]
    fn what_a_way_lacks_is_named_with_what_to_do() {
        for (via, there, words) in [
            (Via::Vfio, "uio", "modprobe vfio-pci"),
            (Via::Vfio, "vfio off", "enable_unsafe_noiommu_mode"),
            (Via::Vfio, "vfio", "CONFIG_VFIO_NOIOMMU"),
            (Via::Uio, "vfio", "modprobe uio_pci_generic"),
            (Via::Uio, "uio DMA", "via=vfio"),
            (Via::Sysfs, "polls DMA", "via=vfio"),
            (Via::Sysfs, "uio", "receive=poll"),
            (Via::Auto, "vfio off", "modprobe uio_pci_generic"),
            (Via::Auto, "uio polls DMA", "modprobe vfio-pci"),
            (Via::Uio, "uio unmaskable", "irq=msi"),
            (Via::Auto, "uio unmaskable", "via=sysfs,receive=poll"),
        ] {
            let error = choose(via, &offers(there)).unwrap_err().to_string();
            assert!(error.contains(words), "{via:?}, {there}: {error}");
        }
    }
}
