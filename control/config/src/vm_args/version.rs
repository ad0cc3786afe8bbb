//! Versions of QEMU, whose options changed over time.

use std::fmt;
use std::str::FromStr;

/// The version of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    major: u16,
    minor: u16,
    micro: u16,
}

impl QemuVersion {
    const fn new(major: u16, minor: u16, micro: u16) -> Self {
        Self { major, minor, micro }
    }

    /// The first whose vhost-user devices survive MSI-X without KVM: 7.2 ends with a segmentation
    /// fault when it starts the device.
    pub const TCG_MSIX: Self = Self::new(8, 0, 0);
    /// The first with `-netdev stream`.
    pub const STREAM: Self = Self::new(7, 2, 0);
    /// The first whose `-netdev stream` keeps trying to connect.
    pub const STREAM_RECONNECT: Self = Self::new(8, 0, 0);
    /// The first that says `reconnect-ms` for `reconnect`.
    pub const RECONNECT_MS: Self = Self::new(9, 2, 0);

    /// The first with a usable vfio-user client: 10.1.0 introduced it, 10.1.1 fixed it.
    pub const VFIO_USER: Self = Self::new(10, 1, 1);
    /// A recent one, to which all of the above apply.
    pub const RECENT: Self = Self::VFIO_USER;
}

impl FromStr for QemuVersion {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || format!("'{s}' is not a version of QEMU: write numbers like 9.2 or 10.1.1");
        let parts: Result<Vec<u16>, _> = s.split('.').map(str::parse).collect();
        match *parts.map_err(|_| wrong())? {
            [major] => Ok(Self::new(major, 0, 0)),
            [major, minor] => Ok(Self::new(major, minor, 0)),
            [major, minor, micro, ..] => Ok(Self::new(major, minor, micro)),
            [] => Err(wrong()),
        }
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.micro > 0 { write!(f, ".{}", self.micro) } else { Ok(()) }
    }
}
