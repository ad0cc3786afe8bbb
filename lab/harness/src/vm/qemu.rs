//! Which QEMU a guest runs in: the machine's own, or one that speaks vfio-user.

use crate::{HarnessError, Result, SETUP, find_program, output_of, vm::image::cache};
use std::{path::PathBuf, sync::OnceLock};

/// The QEMU that Debian installs, 7.2 or later.
pub fn installed() -> Result<PathBuf> {
    find_program("qemu-system-x86_64")
}

/// A QEMU with a sound vfio-user client, 10.1.1 or later: the installed one if it will do, else
/// what `scripts/setup.sh test` unpacked.
pub fn with_vfio_user() -> Result<PathBuf> {
    if let (Ok(path), true) = (installed(), own_version() >= [10, 1, 1]) {
        return Ok(path);
    }
    let dir = cache().join("qemu");
    if dir.join("ready").exists() {
        return Ok(dir.join("qemu-system-x86_64"));
    }
    let what = "there is no QEMU that speaks vfio-user (10.1.1 or later)";
    Err(HarnessError::missing(what, SETUP))
}

/// Debian 12's QEMU 7.2 without KVM dies of SIGSEGV in `msix_set_vector_notifiers` when a
/// vhost-user device is started, with any back end (seen with DPDK's too,
/// `tests/without_vmlan.rs`). INTx instead of MSI-X avoids it; newer versions do not need that.
pub fn msix_crashes() -> bool {
    own_version() < [8, 0, 0]
}

/// The installed one's version; 0 if there is none or it does not say.
fn own_version() -> [u32; 3] {
    static VERSION: OnceLock<[u32; 3]> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let said = output_of("qemu-system-x86_64", &["--version"]).unwrap_or_default();
        version(&said).unwrap_or([0; 3])
    })
}

/// `QEMU emulator version 7.2.22 (Debian ...)`; a part that is missing is 0.
fn version(said: &str) -> Option<[u32; 3]> {
    let word = said.split("version ").nth(1)?.split_whitespace().next()?;
    let mut parts = word.split('.').map(|part| part.parse().unwrap_or(0));
    Some([parts.next()?, parts.next().unwrap_or(0), parts.next().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_compare_by_number() {
        let said = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright";
        assert_eq!(version(said), Some([7, 2, 22]));
        assert!(version("QEMU emulator version 11.1.0").unwrap() >= [10, 1, 1]);
        assert!(version("QEMU emulator version 10.1.0").unwrap() < [10, 1, 1]);
        assert_eq!(version("QEMU emulator version 10.1"), Some([10, 1, 0]));
        assert_eq!(version("no such program"), None);
    }
}
