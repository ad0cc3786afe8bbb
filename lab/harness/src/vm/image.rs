//! The guests' kernel and initramfs: Debian's kernel, busybox, iperf3, ethtool, the NIC modules,
//! and an agent on ttyS1.

use crate::{HarnessError, Result, SETUP, find_program, output_of, program, vm::cpio::Archive};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

/// The NIC drivers a guest may need, a device without a NIC, and what they find their device by;
/// dependencies are added from the modules' own words.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "e1000",
    "e1000e",
    "8139too",
    "8139cp",
    "realtek",
    "r8169",
    "vmxnet3",
    "8021q",
    "pktgen",
    "dummy",
];

/// Dynamically linked tools, looked up in the host's PATH.
const TOOLS: &[&str] = &["iperf3", "ethtool", "ip"];

/// Loads the modules in order and starts the agent. Not as process 1: that gets SIGCHLD for every
/// orphan, and ash's `read` then forgets the part of the line it has.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /tmp /www
while read -r module; do insmod "/lib/m/$module"; done < /lib/m/order
ip link set lo up
sh /agent < /dev/ttyS1 > /dev/ttyS1
echo the agent lost its line
poweroff -f
"#;

/// Serves commands from ttyS1: `ID SECONDS BASE64`, answered by `ID CODE BASE64`. Base64 both ways,
/// so that nothing a command prints can be taken for the protocol.
const AGENT: &str = r#"
stty raw -echo
echo agent ready
while read -r id seconds command; do
  echo "$command" | base64 -d > /tmp/command
  timeout -s KILL "$seconds" sh /tmp/command < /dev/null > /tmp/said 2>&1
  echo "$id $? $(base64 /tmp/said | tr -d '\n')"
done
"#;

/// A kernel and an initramfs, ready to boot. Many guests share one.
pub struct Image {
    /// The kernel, packed, as firmware loads it.
    pub packed_kernel: PathBuf,
    /// The kernel that QEMU boots: unpacked if there is one, which saves most of a boot under TCG.
    pub kernel: PathBuf,
    /// The initramfs, uncompressed: under TCG loading is cheaper than unpacking.
    pub initramfs: PathBuf,
}

/// What a guest needs beside what every guest has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Programs, with the libraries they are linked with; each is in `/bin`.
    pub programs: &'a [&'a Path],
    /// Modules that are there but not loaded: `insmod /lib/m/NAME`, for each of those in
    /// `/lib/m/NAME.order` in turn.
    pub modules: &'a [&'a str],
    /// Other files: where they are in the guest, and here.
    pub files: &'a [(&'a str, &'a Path)],
}

impl Image {
    /// Finds the kernel that `scripts/setup.sh test` unpacked, or that `VMLAN_KERNEL` names within
    /// the cache (`kernels/trixie`), and writes the initramfs into `dir`.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] with the fix if kernel, busybox or a tool is not there.
    pub fn build(dir: &Path) -> Result<Image> {
        Image::build_with(dir, Extras::default())
    }

    /// The same with more in it.
    pub fn build_with(dir: &Path, extras: Extras<'_>) -> Result<Image> {
        let root = cache().join(named("VMLAN_KERNEL").unwrap_or("kernel".into()));
        let missing = || {
            let what = format!("there is no guest kernel in {}", root.display());
            HarnessError::missing(what, SETUP)
        };
        let boot = fs::read_dir(root.join("boot")).map_err(|_| missing())?;
        let packed_kernel = boot
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().contains("/vmlinuz-"))
            .ok_or_else(missing)?;
        let unpacked = root.join("boot/vmlinux");
        let kernel = if unpacked.exists() { unpacked } else { packed_kernel.clone() };
        let mut archive = Archive::default();
        for directory in ["proc", "sys", "dev", "bin", "sbin", "usr/bin", "usr/sbin"] {
            archive.directory(directory);
        }
        archive.file("init", INIT.as_bytes());
        archive.file("agent", AGENT.as_bytes());
        add_tools(&mut archive)?;
        for program in extras.programs {
            add_program(&mut archive, program)?;
        }
        add_modules(&mut archive, &root, extras.modules)?;
        for (name, path) in extras.files {
            archive.file(name, &fs::read(path).map_err(HarnessError::file(path))?);
        }
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, archive.finish()).map_err(HarnessError::file(&initramfs))?;
        Ok(Image { packed_kernel, kernel, initramfs })
    }
}

/// Where modules for the guests' kernel can be built, if `scripts/setup.sh test` unpacked that.
#[must_use]
pub fn kernel_headers() -> Option<PathBuf> {
    let headers = cache().join("headers");
    let built = fs::read_link(headers.join("build")).ok()?;
    headers.join("ready").exists().then(|| headers.join(built))
}

/// Where `scripts/setup.sh` keeps what it unpacks; the two must agree.
pub(crate) fn cache() -> PathBuf {
    named("VMLAN_CACHE").unwrap_or_else(|| {
        named("XDG_CACHE_HOME")
            .unwrap_or_else(|| named("HOME").unwrap_or("/var/tmp".into()).join(".cache"))
            .join("vmlan")
    })
}

/// A path that the environment has.
fn named(key: &str) -> Option<PathBuf> {
    env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn add_tools(archive: &mut Archive) -> Result<()> {
    let busybox = find_program("busybox")?;
    archive.file("bin/busybox", &fs::read(&busybox).map_err(HarnessError::file(&busybox))?);
    for name in TOOLS {
        add_program(archive, &find_program(name)?)?;
    }
    Ok(())
}

/// A program and the libraries it is linked with, if it is.
fn add_program(archive: &mut Archive, tool: &Path) -> Result<()> {
    let name = tool.file_name().unwrap_or_default().to_string_lossy();
    // Half of the guest's memory holds its files. Our program's line tables would fill it.
    let stripped = tempfile::NamedTempFile::new().map_err(HarnessError::file(tool))?;
    let place = stripped.path().to_string_lossy();
    output_of("strip", &["--strip-debug", "-o", &place, &tool.to_string_lossy()])?;
    let content = fs::read(stripped.path()).map_err(HarnessError::file(stripped.path()))?;
    archive.file(&format!("bin/{name}"), &content);
    let libraries = output_of("ldd", &[&tool.to_string_lossy()])?;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        archive.file(library, &fs::read(library).map_err(HarnessError::file(library))?);
        // glibc loads this one by name when a thread is cancelled, as iperf3 does; ldd does not
        // know.
        let unwinder = Path::new(library).with_file_name("libgcc_s.so.1");
        if let Ok(content) = fs::read(&unwinder) {
            archive.file(&unwinder.to_string_lossy(), &content);
        }
    }
    Ok(())
}

fn add_modules(archive: &mut Archive, root: &Path, extra: &[&str]) -> Result<()> {
    let mut found = BTreeMap::new();
    for place in ["lib/modules", "usr/lib/modules"] {
        find_modules(&root.join(place), &mut found);
    }
    let mut order = Vec::new();
    for module in MODULES {
        add_module(archive, &found, module, &mut order)?;
    }
    archive.file("lib/m/order", (order.join("\n") + "\n").as_bytes());
    for module in extra {
        let loaded = order.len();
        add_module(archive, &found, module, &mut order)?;
        let more = order[loaded..].join("\n") + "\n";
        archive.file(&format!("lib/m/{module}.order"), more.as_bytes());
    }
    Ok(())
}

/// Maps a module's name (with underscores, as the kernel has it) to its file.
fn find_modules(dir: &Path, found: &mut BTreeMap<String, PathBuf>) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            find_modules(&path, found);
        } else if let Some((stem, "" | ".xz")) = name.split_once(".ko") {
            found.insert(stem.replace('-', "_"), path);
        }
    }
}

/// Adds a module after all it depends on. A name that has no file is built into the kernel.
fn add_module(
    archive: &mut Archive,
    found: &BTreeMap<String, PathBuf>,
    name: &str,
    order: &mut Vec<String>,
) -> Result<()> {
    let name = name.replace('-', "_");
    let Some(path) = found.get(&name) else { return Ok(()) };
    if order.contains(&name) {
        return Ok(());
    }
    let content = read_module(path)?;
    for needed in depends(&content) {
        add_module(archive, found, &needed, order)?;
    }
    archive.file(&format!("lib/m/{name}"), &content);
    order.push(name);
    Ok(())
}

/// A module's plain bytes: Debian 12 ships `.ko`, Debian 13 `.ko.xz`, which busybox's insmod cannot
/// read.
fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(path).map_err(HarnessError::file(path));
    }
    let out = std::process::Command::new("busybox")
        .args(["unxz", "-c"])
        .arg(path)
        .output()
        .map_err(|_| program::missing("busybox"))?;
    if out.status.success() {
        Ok(out.stdout)
    } else {
        Err(HarnessError::file(path)(std::io::ErrorKind::InvalidData.into()))
    }
}

/// The `depends=` line of a module's `.modinfo` section: `modules.dep` exists only after depmod
/// ran.
fn depends(module: &[u8]) -> Vec<String> {
    module
        .split(|&byte| byte == 0)
        .find_map(|text| text.strip_prefix(b"depends="))
        .map(|names| String::from_utf8_lossy(names).into_owned())
        .unwrap_or_default()
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn dependencies_come_from_modinfo() {
        assert_eq!(
            depends(b"\x7fELF\0license=GPL\0depends=virtio,net_failover\0x"),
            ["virtio", "net_failover"]
        );
        assert!(depends(b"license=GPL\0depends=\0").is_empty());
        assert!(depends(b"").is_empty());
    }
}
