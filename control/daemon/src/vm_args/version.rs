//! Which QEMU: its options for reconnecting changed over time.

use std::fmt;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Major and minor version of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    major: u16,
    minor: u16,
}

impl QemuVersion {
    /// The first whose vhost-user devices survive MSI-X without KVM: 7.2 ends with a segmentation fault when it
    /// starts the device.
    pub const TCG_MSIX: Self = Self { major: 8, minor: 0 };
    /// The first with `-netdev stream`.
    pub const STREAM: Self = Self { major: 7, minor: 2 };
    /// The first whose `-netdev stream` keeps trying to connect.
    pub const STREAM_RECONNECT: Self = Self { major: 8, minor: 0 };
    /// The first that says `reconnect-ms` for `reconnect`.
    pub const RECONNECT_MS: Self = Self { major: 9, minor: 2 };

    /// The version of the QEMU that a user of this machine would start; if there is none, that of a
    /// recent one.
    #[must_use]
    pub fn installed() -> Self {
        let program = format!("qemu-system-{}", std::env::consts::ARCH);
        let asked = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        let text = asked.ok().and_then(|out| String::from_utf8(out.stdout).ok());
        // "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"
        let word =
            text.as_deref().and_then(|t| t.split("version ").nth(1)?.split_whitespace().next());
        word.and_then(|w| w.parse().ok()).unwrap_or(Self::RECONNECT_MS)
    }
}

impl FromStr for QemuVersion {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut parts = s.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self { major, minor }),
            (Some(Ok(major)), None) => Ok(Self { major, minor: 0 }),
            _ => Err(format!("'{s}' is no version of QEMU: write two numbers like 9.2")),
        }
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
