//! A guest, its NIC, and a TAP of the host at the other end.

use std::path::Path;

use vmlan_tests::{Boot, Fault, Guest, Image, NetNs, Station, Switch, usage};

/// The TAP's name in the host's namespace.
pub const TAP: &str = "tap0";

/// Whose e1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// QEMU's own, on the TAP itself.
    Qemu,
    /// Ours, each register access a message.
    Trapped,
    /// The same, at most 8,000 interrupts per second.
    Moderated,
    /// Ours, with the ring registers in shared memory.
    Mapped,
}

impl Model {
    /// In the order of the table.
    pub const ALL: [Self; 4] = [Self::Qemu, Self::Trapped, Self::Moderated, Self::Mapped];

    /// In tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU e1000 on TAP",
            Self::Trapped => "vmlan, trapped",
            Self::Moderated => "vmlan, irq_rate_max=8000",
            Self::Mapped => "vmlan, mapped",
        }
    }

    /// A word for files.
    pub const fn socket(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Trapped => "trapped",
            Self::Moderated => "moderated",
            Self::Mapped => "mapped",
        }
    }

    const fn keys(self) -> &'static str {
        match self {
            Self::Qemu | Self::Trapped => "",
            Self::Moderated => ",irq_rate_max=8000",
            Self::Mapped => ",doorbell=mapped",
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

/// What the host's side has counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host {
    /// Frames that arrived at the TAP.
    pub frames: u64,
    /// CPU seconds of QEMU (its thread that runs the guest included: with TCG that is most).
    pub cpu_qemu: f64,
    /// CPU seconds of the switch.
    pub cpu_switch: f64,
    /// Register accesses that were messages.
    pub accesses: u64,
}

impl Lab {
    /// Boots it.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn start(image: &Image, dir: &Path, model: Model) -> Result<Self, Fault> {
        let mut host = NetNs::new(dir, "host", 1)?;
        let socket = dir.join("e1000.sock");
        let (boot, switch) = if model == Model::Qemu {
            host.sh(&format!("ip tuntap add {TAP} mode tap"))?;
            (Boot::new("vm", 2).newer().tap(&host, TAP, "e1000"), None)
        } else {
            let nic = format!(
                "vm=vfio-user:{},model=e1000,mac={}{}",
                socket.display(),
                Boot::mac(2),
                model.keys()
            );
            let switch = Switch::start(dir, Some(&host), &[nic, format!("host=tap:{TAP}")])?;
            (Boot::new("vm", 2).vfio_user(&socket), Some(switch))
        };
        host.adopt(TAP)?;
        let [guest] = Guest::boot(image, dir, [boot])?;
        let mut lab = Self { guest, switch, host };
        lab.host.background("iperf3 -s")?;
        let ip = lab.host.ip().to_owned();
        vmlan_tests::check::reaches(&mut lab.guest, &ip)?;
        Ok(lab)
    }

    /// The counters as they are now.
    ///
    /// # Errors
    /// When the switch does not answer.
    pub fn look(&mut self) -> Result<Host, Fault> {
        let link = link(&mut self.host)?;
        let seconds = |pid| usage::cpu(pid).nanos as f64 / 1e9;
        let mut seen = Host {
            frames: link["stats64"]["rx"]["packets"].as_u64().unwrap_or_default(),
            cpu_qemu: seconds(self.guest.pid()),
            ..Host::default()
        };
        if let Some(switch) = &self.switch {
            seen.cpu_switch = seconds(switch.pid());
            let registers = &switch.port("vm")?["device"]["registers"];
            let both = |r: &serde_json::Value| {
                r["reads"].as_u64().unwrap_or(0) + r["writes"].as_u64().unwrap_or(0)
            };
            seen.accesses = registers.as_object().into_iter().flatten().map(|(_, r)| both(r)).sum();
        }
        Ok(seen)
    }
}

/// The TAP as `ip` describes it: /sys shows the interfaces of another namespace.
///
/// # Errors
/// When `ip` fails or says something else.
pub fn link(host: &mut NetNs) -> Result<serde_json::Value, Fault> {
    let text = host.sh(&format!("ip -s -j link show dev {TAP}"))?;
    serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|list| list.get(0).cloned())
        .ok_or(Fault::Garbled { what: "ip".into(), heard: text })
}
