//! A guest, its NIC, and a TAP of the host at the other end.

use std::path::Path;

use vmlan_harness::{Boot, Guest, HarnessError, Image, LanHost, NetNs, Switch};

/// The TAP's name in the host's namespace.
pub const TAP: &str = "tap0";

/// A NIC for the guest.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// In tables.
    pub name: &'static str,
    /// A word for files.
    pub file: &'static str,
    /// Who emulates it.
    pub from: From,
}

/// Where a NIC comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// QEMU's own of this name, on the TAP itself.
    Qemu(&'static str),
    /// Ours over vfio-user, with these keys.
    Ours(&'static str),
    /// virtio-net over vhost-user.
    Virtio,
}

impl From {
    /// The port it is on, and the guest's side of that.
    fn plug(self, dir: &Path, host: &NetNs) -> (Option<String>, Boot) {
        let socket = dir.join("nic.sock");
        let (path, mac) = (socket.display(), Boot::mac(2));
        let boot = Boot::new("vm", 2).newer();
        match self {
            Self::Qemu(model) => (None, boot.tap(host, TAP, model)),
            Self::Ours(keys) => {
                (Some(format!("vm=vfio-user:{path},{keys},mac={mac}")), boot.vfio_user(&socket))
            }
            Self::Virtio => (Some(format!("vm=vhost-user:{path}")), boot.vhost_user(&socket)),
        }
    }
}

/// All that runs. The guest first: it goes before its switch and its namespace.
pub struct Lab {
    /// The Linux guest.
    pub guest: Guest,
    switch: Option<Switch>,
    /// The host's end.
    pub host: NetNs,
}

impl Lab {
    /// Boots it.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn start(image: &Image, dir: &Path, model: Model) -> Result<Self, HarnessError> {
        let mut host = NetNs::new(dir, "host", 1)?;
        let (port, boot) = model.from.plug(dir, &host);
        let switch = match port {
            Some(port) => {
                Some(Switch::start(dir, Some(&host), &[port, format!("host=tap:{TAP}")])?)
            }
            None => host.sh(&format!("ip tuntap add {TAP} mode tap")).map(|_| None)?,
        };
        host.adopt(TAP)?;
        let [guest] = Guest::boot(image, dir, [boot])?;
        let mut lab = Self { guest, switch, host };
        lab.host.background("iperf3 -s")?;
        let ip = lab.host.ip().to_owned();
        vmlan_harness::connectivity::reaches(&mut lab.guest, &ip)?;
        Ok(lab)
    }

    /// What the switch counts at the guest's port, if the guest is on a switch of ours.
    ///
    /// # Errors
    /// When the switch does not answer.
    pub fn port(&self) -> Result<Option<serde_json::Value>, HarnessError> {
        self.switch.as_ref().map(|switch| switch.port("vm")).transpose()
    }
}
