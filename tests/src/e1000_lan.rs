//! The smallest LAN on which an emulated NIC meets everybody: a guest with it, a guest with
//! virtio-net, and the host.

use crate::{
    Boot, Extras, Guest, Image, NetNs, Result, Switch, linux_nic, linux_nic_suite::LinuxNicSuite,
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How the guest `e1` comes by its e1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum E1000 {
    /// The switch's, each register access trapped.
    Trapped,
    /// The switch's, ring registers in shared memory.
    Mapped,
    /// The switch's, with a CSB, for the module of `guest/linux`. Workers stay awake as long as
    /// they would on a machine where guests are fast.
    Module,
    /// QEMU's own, on a stream port: the control experiment.
    Qemu,
}

impl E1000 {
    fn address(self, dir: &Path) -> String {
        let place = dir.join("e1");
        let (place, mac) = (place.display(), Boot::mac(1));
        match self {
            E1000::Trapped => format!("e1=vfio-user:{place},model=e1000,mac={mac}"),
            E1000::Mapped => format!("e1=vfio-user:{place},model=e1000,mac={mac},doorbell=mapped"),
            E1000::Module => format!("e1=vfio-user:{place},model=e1000,mac={mac},csb=on"),
            E1000::Qemu => format!("e1=stream:{place}"),
        }
    }

    /// The guest, not booted yet. It may reboot.
    #[must_use]
    pub fn boot(self, dir: &Path) -> Boot {
        let boot = Boot::new("e1", 1).newer().reboots();
        match self {
            E1000::Qemu => boot.stream(&dir.join("e1"), "e1000"),
            E1000::Trapped | E1000::Mapped | E1000::Module => boot.vfio_user(&dir.join("e1")),
        }
    }
}

/// 10.77.0.1, 10.77.0.2 and 10.77.0.101, on ports `e1`, `vm2` and `host`. All of it ends when this
/// is dropped.
pub struct E1000Lan {
    /// The guest with the e1000.
    pub e1000: Guest,
    /// The guest with virtio-net over vhost-user.
    pub virtio: Guest,
    /// The switch; it lives in the host's namespace.
    pub switch: Switch,
    /// The host, with the interface `vmlan0`.
    pub host: NetNs,
    /// What the guests booted from.
    pub image: Image,
    /// How the guest comes by its e1000.
    pub kind: E1000,
    dir: TempDir,
}

impl E1000Lan {
    /// Starts all of it.
    ///
    /// # Panics
    /// Without a temporary directory.
    pub fn start(kind: E1000) -> Result<E1000Lan> {
        E1000Lan::start_with(kind, Extras::default())
    }

    /// The same, with more in the guests.
    ///
    /// # Errors
    /// As [`E1000Lan::start`].
    ///
    /// # Panics
    /// As [`E1000Lan::start`].
    pub fn start_with(kind: E1000, extras: Extras<'_>) -> Result<E1000Lan> {
        let temporary = tempfile::Builder::new().prefix("vmlan-e1000.").tempdir();
        let temporary = temporary.expect("a temporary directory");
        let dir = temporary.path();
        let image = Image::build_with(dir, extras)?;
        let mut host = NetNs::new(dir, "host", 101)?;
        let mut ports = vec![
            kind.address(dir),
            format!("vm2=vhost-user:{}", dir.join("vm2").display()),
            "host=tap:vmlan0".into(),
        ];
        if kind == E1000::Module {
            ports.push("--spin=10000".into());
        }
        let switch = Switch::start(dir, Some(&host), &ports)?;
        host.adopt("vmlan0")?;
        let other = Boot::new("vm2", 2).newer().vhost_user(&dir.join("vm2"));
        let [e1000, virtio] = Guest::boot(&image, dir, [kind.boot(dir), other])?;
        Ok(E1000Lan { e1000, virtio, switch, host, image, kind, dir: temporary })
    }

    /// Everybody, for the chapters.
    pub fn scene(&mut self) -> LinuxNicSuite<'_> {
        LinuxNicSuite {
            card: match self.kind {
                E1000::Qemu => &linux_nic::QEMU_E1000,
                E1000::Module => &linux_nic::MODULE,
                E1000::Trapped | E1000::Mapped => &linux_nic::E1000,
            },
            guest: &mut self.e1000,
            virtio: &mut self.virtio,
            host: &mut self.host,
            e1000: None,
            switch: &self.switch,
        }
    }

    /// Where sockets, serial logs and the switch's log lie.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().into()
    }

    /// The last words of everybody, for whoever has to find out why.
    pub fn last_lines(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.dir.path().join(name));
        ["e1.serial", "e1.qemu", "switch.log"]
            .map(|name| {
                format!(
                    "--- {name}\n{}\n",
                    vmlan_harness::last_lines(&read(name).unwrap_or_default())
                )
            })
            .concat()
    }
}
