//! Hugepages for DPDK: raised for the run, restored afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use vmlan_harness::{HarnessError, Result};

/// Looks for more after the first.
const ATTEMPTS: u32 = 5;

/// Of the whole machine: whoever changes the numbers of the nodes holds its lock.
const NR: &str = "/proc/sys/vm/nr_hugepages";

/// Puts the old numbers back when dropped.
#[derive(Debug)]
pub(super) struct Hugepages {
    before: Vec<(Pool, u64)>,
    /// Until then nobody else takes a raised number for the old one.
    _lock: File,
}

impl Hugepages {
    /// Sees to it that so many MiB of hugepages are free on these NUMA nodes: DPDK takes them from
    /// the node that it is told, or on which its thread runs, and from no other one.
    ///
    /// No hugetlbfs mount is made: every DPDK process is started with `--in-memory`, which takes
    /// its pages by memfd.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] when the kernel cannot find so much contiguous memory, or while
    /// another program like this holds some.
    pub(super) fn reserve(mib: &BTreeMap<usize, u64>) -> Result<Self> {
        let page_kib = page_kib()?;
        let mut pages = Self { before: Vec::new(), _lock: lock(Path::new(NR))? };
        for (node, mib) in mib {
            let need = (mib * 1024).div_ceil(page_kib);
            pages.raise(Pool::of(Path::new("/sys"), *node, page_kib), need)?;
        }
        Ok(pages)
    }

    fn raise(&mut self, pool: Pool, need: u64) -> Result<()> {
        let before = pool.read()?;
        let Some(total) = before.raised(need) else { return Ok(()) };
        self.before.push((pool.clone(), before.total));
        pool.write(total)?;
        for _ in 0..ATTEMPTS {
            if pool.read()?.free >= need {
                break;
            }
            // Memory is in pieces, or holds files. If the kernel cannot, what follows says so.
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            pool.write(total)?;
        }
        let free = pool.read()?.free;
        if free < need {
            return Err(HarnessError::missing(
                format!("only {free} of {need} hugepages could be had: {}", pool.0.display()),
                "free some memory, or boot with hugepages=N on the kernel's command line",
            ));
        }
        Ok(())
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        for (pool, total) in &self.before {
            if let Err(error) = pool.write(*total) {
                eprintln!("peers: {}", error.chain());
            }
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

/// The NUMA node of a core; the first one where the kernel knows of none.
pub(super) fn node(core: usize) -> usize {
    let of = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}"));
    let names = of.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    names.filter_map(number).next().unwrap_or(0)
}

/// The folder with the numbers of one node's pages.
#[derive(Clone, Debug)]
struct Pool(PathBuf);

impl Pool {
    /// Where the kernel knows of no nodes, that of the machine.
    fn of(sys: &Path, node: usize, page_kib: u64) -> Self {
        let size = format!("hugepages/hugepages-{page_kib}kB");
        let own = sys.join(format!("devices/system/node/node{node}")).join(&size);
        Self(if own.is_dir() { own } else { sys.join("kernel/mm").join(size) })
    }

    fn read(&self) -> Result<Pages> {
        let number = |name: &str| {
            let path = self.0.join(name);
            let text = fs::read_to_string(&path).map_err(HarnessError::file(&path))?;
            let number = text.trim().parse();
            number.map_err(|_| HarnessError::NoFigure(format!("{}: {text}", path.display())))
        };
        Ok(Pages { total: number("nr_hugepages")?, free: number("free_hugepages")? })
    }

    fn write(&self, total: u64) -> Result<()> {
        let path = self.0.join("nr_hugepages");
        fs::write(&path, total.to_string()).map_err(HarnessError::file(&path))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Pages {
    total: u64,
    free: u64,
}

impl Pages {
    /// How many there are to be in all for `need` to be free; `None`: they are.
    fn raised(&self, need: u64) -> Option<u64> {
        (self.free < need).then(|| self.total + need - self.free)
    }
}

fn page_kib() -> Result<u64> {
    let text =
        fs::read_to_string("/proc/meminfo").map_err(HarnessError::io("read /proc/meminfo"))?;
    parse_page_kib(&text).ok_or_else(|| {
        HarnessError::missing("this kernel has no hugepages", "use one with CONFIG_HUGETLBFS")
    })
}

/// Of the usual size.
fn parse_page_kib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    line.split_whitespace().next()?.parse().ok().filter(|kib| *kib > 0)
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
    fn pages_are_those_of_the_node_that_needs_them() {
        let sys = tempfile::tempdir().unwrap();
        let of = |folder: &str, total: &str, free: &str| {
            let dir = sys.path().join(folder).join("hugepages/hugepages-2048kB");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("nr_hugepages"), total).unwrap();
            fs::write(dir.join("free_hugepages"), free).unwrap();
        };
        of("devices/system/node/node0", "100\n", "90\n");
        of("devices/system/node/node1", "8\n", "2\n");
        of("kernel/mm", "108\n", "92\n");
        let pool = |node| Pool::of(sys.path(), node, 2048);
        let seen = [0, 1, 2].map(|node| pool(node).read().unwrap());
        // What is free elsewhere does not count.
        assert_eq!(seen.map(|pages| pages.raised(50)), [None, Some(56), None]);
        pool(1).write(56).unwrap();
        assert_eq!(pool(1).read().unwrap(), Pages { total: 56, free: 2 });
        assert_eq!(pool(0).read().unwrap(), Pages { total: 100, free: 90 });
        let why = Pool::of(sys.path(), 0, 1024).read().unwrap_err().chain();
        assert!(why.contains("kernel/mm/hugepages/hugepages-1024kB"), "{why}");
        assert_eq!(node(usize::MAX), 0);
    }

    #[test]
    fn meminfo_is_understood() {
        let text = "HugePages_Free:     1024\nHugepagesize:       2048 kB\n";
        assert_eq!(parse_page_kib(text), Some(2048));
        assert_eq!(parse_page_kib("MemTotal: 1 kB\n"), None, "a kernel without hugepages");
    }
}
