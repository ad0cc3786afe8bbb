//! Hugepages for DPDK: raised for the run, restored afterwards.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use vmlan_harness::{HarnessError, Result};

/// Looks for more after the first.
const ATTEMPTS: u32 = 5;

const NR: &str = "/proc/sys/vm/nr_hugepages";

/// Puts the old number back when dropped.
#[derive(Debug)]
pub(super) struct Hugepages {
    before: Option<u64>,
    /// Until then nobody else takes a raised number for the old one.
    _lock: File,
}

impl Hugepages {
    /// Sees to it that `mib` MiB of hugepages are free.
    ///
    /// No hugetlbfs mount is made: every DPDK process is started with `--in-memory`, which takes
    /// its pages by memfd.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] when the kernel cannot find so much contiguous memory, or while
    /// another program like this holds some.
    pub(super) fn reserve(mib: u64) -> Result<Self> {
        // Are there any at all?
        Info::read()?;
        let lock = lock(Path::new(NR))?;
        let info = Info::read()?;
        let need = (mib * 1024).div_ceil(info.page_kib);
        if info.free >= need {
            return Ok(Self { before: None, _lock: lock });
        }
        write_nr(info.total + need - info.free)?;
        let guard = Self { before: Some(info.total), _lock: lock };
        for _ in 0..ATTEMPTS {
            if Info::read()?.free >= need {
                break;
            }
            // Memory is in pieces, or holds files. If the kernel cannot, what follows says so.
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            write_nr(info.total + need - info.free)?;
        }
        let free = Info::read()?.free;
        if free < need {
            return Err(HarnessError::missing(
                format!("only {free} of {need} hugepages of {} KiB could be had", info.page_kib),
                "free some memory, or boot with hugepages=N on the kernel's command line",
            ));
        }
        Ok(guard)
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.before.map(write_nr) {
            eprintln!("peers: {}", error.chain());
        }
    }
}

/// Held by the one that may change the number. Only programs like this one ask for it.
fn lock(path: &Path) -> Result<File> {
    let what = || format!("lock {}", path.display());
    let file = File::open(path).map_err(HarnessError::io(what()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(HarnessError::missing("another `vmlan bench peers` is running", "wait for its end"))
        }
        Err(TryLockError::Error(e)) => Err(HarnessError::io(what())(e)),
    }
}

fn write_nr(pages: u64) -> Result<()> {
    fs::write(NR, pages.to_string()).map_err(HarnessError::io(format!("write {pages} to {NR}")))
}

#[derive(Debug, PartialEq, Eq)]
struct Info {
    total: u64,
    free: u64,
    page_kib: u64,
}

impl Info {
    fn read() -> Result<Self> {
        let text =
            fs::read_to_string("/proc/meminfo").map_err(HarnessError::io("read /proc/meminfo"))?;
        Self::parse(&text).ok_or_else(|| {
            HarnessError::missing("this kernel has no hugepages", "use one with CONFIG_HUGETLBFS")
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let page_kib = field("Hugepagesize").filter(|&kib| kib > 0)?;
        Some(Self { total: field("HugePages_Total")?, free: field("HugePages_Free")?, page_kib })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_at_a_time_changes_the_number() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = lock(file.path()).unwrap();
        let why = lock(file.path()).unwrap_err().chain();
        assert!(why.contains("another") && why.contains("wait"), "{why}");
        drop(first);
        lock(file.path()).unwrap();
    }

    #[test]
    fn meminfo_is_understood() {
        let text = "MemTotal: 1 kB\nHugePages_Total:    1536\nHugePages_Free:     1024\n\
                    Hugepagesize:       2048 kB\n";
        assert_eq!(Info::parse(text), Some(Info { total: 1536, free: 1024, page_kib: 2048 }));
    }

    #[test]
    fn a_kernel_without_hugepages_is_told_apart() {
        assert_eq!(Info::parse("MemTotal: 1 kB\n"), None);
    }
}
