//! The exact options to give a VMM so that a VM plugs into a port.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::json;
use vmlan_frame::Mac;

use crate::address::{Address, Kind, Model, PortName, Spec};
use crate::nearest_word::hint;

pub mod command;
mod mac;
mod text;
mod version;
pub(crate) use mac::hash;
pub use mac::{mac_of, nic_mac_of};
pub use text::shell_word;
use text::{commas, libvirt_commandline, libvirt_without_msix, shell, words, xml};
pub use version::QemuVersion;

/// In libvirt's domain: memory that another process may map.
const LIBVIRT_MEMORY: &str = "<!-- in <domain> -->\n<memoryBacking>\n  <source type='memfd'/>\n  \
    <access mode='shared'/>\n</memoryBacking>\n";

/// Descriptors of a ring. QEMU takes 1,024 in both directions only with vhost-user; more
/// descriptors mean longer batches.
const RING: u16 = 1024;

/// A program that runs VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Vmm {
    Qemu,
    CloudHypervisor,
    Libvirt,
    Crosvm,
    Krunkit,
}

impl Vmm {
    /// Its words.
    pub const NAMES: [&'static str; 5] =
        ["qemu", "cloud-hypervisor", "libvirt", "crosvm", "krunkit"];

    /// What the program is called.
    const fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU",
            Self::CloudHypervisor => "Cloud Hypervisor",
            Self::Libvirt => "libvirt",
            Self::Crosvm => "crosvm",
            Self::Krunkit => "krunkit",
        }
    }
}

impl FromStr for Vmm {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "qemu" => Ok(Self::Qemu),
            "cloud-hypervisor" => Ok(Self::CloudHypervisor),
            "libvirt" => Ok(Self::Libvirt),
            "crosvm" => Ok(Self::Crosvm),
            "krunkit" => Ok(Self::Krunkit),
            _ => Err(format!("'{s}' is not a VMM that vmlan knows: {}", hint(s, &Self::NAMES))),
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// For which VMM.
    pub vmm: Vmm,
    /// The VM's memory, as the VMM writes it.
    pub memory: String,
    /// Which QEMU: its options changed over time.
    pub qemu: QemuVersion,
    /// Bytes of the longest packet that the LAN carries, for a guest whose port has no `mtu`;
    /// `None`: the guest is told nothing. Emulated NICs, crosvm and krunkit cannot tell it.
    pub mtu: Option<u16>,
}

/// The options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct VmArgs {
    pub name: String,
    pub vmm: Vmm,
    /// Arguments of the command line; empty for libvirt.
    pub args: Vec<String>,
    /// The same, to copy and paste: shell words, or XML.
    pub text: String,
}

impl VmArgs {
    /// The same for a QEMU that emulates the CPU: no MSI-X, on which a vhost-user device of old
    /// versions crashes without KVM. libvirt says by itself which accelerator it is.
    #[must_use]
    pub fn for_tcg(self) -> Self {
        if self.vmm == Vmm::Libvirt {
            return Self { text: libvirt_without_msix(&self.name, &self.text), ..self };
        }
        let mut made = self.without_msix();
        made.args.splice(0..0, ["-accel", "tcg"].map(str::to_owned));
        made.text = shell(&made.args);
        made
    }

    fn without_msix(mut self) -> Self {
        for word in self.args.iter_mut().filter(|w| w.starts_with("virtio-net-pci,")) {
            let kept: Vec<_> = word.split(',').filter(|w| !w.starts_with("vectors=")).collect();
            *word = kept.join(",") + ",vectors=0";
        }
        self
    }

    /// As words for `qemu $(vmlan vm-args vm1)`: a shell splits them at white space and keeps
    /// quotes as they are.
    pub fn substituted(&self) -> Option<String> {
        let plain = |w: &String| !w.contains(|c: char| c.is_whitespace() || "*?[\\".contains(c));
        let usable = !self.args.is_empty() && self.args.iter().all(plain);
        usable.then(|| self.args.join(" ") + "\n")
    }

    /// What a user of this QEMU should know.
    pub fn note(&self, qemu: QemuVersion) -> Option<String> {
        let vhost_user = self.args.iter().any(|w| w.starts_with("vhost-user,"));
        (vhost_user && qemu < QemuVersion::TCG_MSIX).then(|| {
            format!(
                "without KVM (TCG), QEMU {qemu} crashes with MSI-X vhost-user: \
                 add ,vectors=0 to the device, or ask with --tcg"
            )
        })
    }
}

/// Why there are none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum VmArgsError {
    #[error(
        "port {name}: a {kind} port is not for VMs: ask for a vhost-user, vfio-user or stream port"
    )]
    NotForVms { name: String, kind: Kind },
    #[error("port {name}: {vmm} has no NIC for {kind} ports: use a {} port", instead.name())]
    NoSuchNic { name: String, vmm: &'static str, kind: Kind, instead: Kind },
    #[error(
        "port {name}: QEMU {version} cannot do stream: use QEMU 7.2 or later, or a vhost-user port"
    )]
    OldQemu { name: String, version: QemuVersion },
    #[error(
        "port {name}: QEMU {version} cannot do vfio-user well enough: use QEMU {least} or later \
            (name yours with --qemu-version), or {instead}"
    )]
    NoVfioUser { name: String, version: QemuVersion, least: QemuVersion, instead: &'static str },
    #[error("memory={0}: write a size like 512M or 4G")]
    Memory(String),
    #[error(
        "port {name}: the place '{place}' is relative and the working directory is gone: give a \
            path from /"
    )]
    Place { name: String, place: String },
}

/// What the options are made of.
struct Plug<'a> {
    name: &'a str,
    path: String,
    /// The switch connects, so the VMM listens.
    vmm_listens: bool,
    queues: u16,
    mac: Mac,
    /// Told to the guest (VIRTIO_NET_F_MTU).
    mtu: Option<u16>,
    /// What any QEMU can do in place of an emulated NIC of ours.
    instead: &'static str,
    wanted: &'a Wanted,
}

/// QEMU has an e1000, an e1000e, an rtl8139 with C+ and a vmxnet3 of its own.
const fn instead(model: Model) -> &'static str {
    match model {
        Model::E1000 => "a stream port with -device e1000",
        Model::E1000e => "a stream port with -device e1000e",
        Model::R8169 => "a stream port with -device e1000, for QEMU has no r8169",
        Model::Rtl8139 { plus: true } => "a stream port with -device rtl8139",
        Model::Rtl8139 { plus: false } => "a stream port with -device rtl8139, which is a C+ one",
        Model::Vmxnet3 => "a stream port with -device vmxnet3",
    }
}

/// The options for the port `name` at `address`.
///
/// # Errors
/// [`VmArgsError`], if a VM cannot plug in there.
pub fn vm_args(name: &PortName, address: &Address, wanted: &Wanted) -> Result<VmArgs, VmArgsError> {
    if !is_size(&wanted.memory) {
        return Err(VmArgsError::Memory(wanted.memory.clone()));
    }
    let path = std::path::absolute(PathBuf::from(address.place()));
    let path = path.map_err(|_| VmArgsError::Place {
        name: name.to_string(),
        place: address.place().to_owned(),
    })?;
    let (vmm_listens, queues, mac, mtu, model) = match address.spec() {
        Spec::VhostUser(spec) => (spec.connect, spec.queues, spec.mac, spec.mtu, Model::E1000),
        Spec::Stream(spec) => (spec.connect, 1, spec.mac, spec.mtu, Model::E1000),
        Spec::VfioUser(spec) => (false, 1, spec.mac, None, spec.model),
        Spec::Tap(_) | Spec::Packet(_) | Spec::Xdp(_) | Spec::Pcap(_) | Spec::Nat(_) => {
            let (name, kind) = (name.to_string(), address.kind());
            return Err(VmArgsError::NotForVms { name, kind });
        }
    };
    let plug = Plug {
        name: name.as_str(),
        path: path.to_string_lossy().into_owned(),
        vmm_listens,
        queues,
        mac: mac.unwrap_or_else(|| mac_of(name)),
        mtu: mtu.or(wanted.mtu),
        instead: instead(model),
        wanted,
    };
    let done = |args: Vec<String>, text: Option<String>| VmArgs {
        name: name.to_string(),
        vmm: wanted.vmm,
        text: text.unwrap_or_else(|| shell(&args)),
        args,
    };
    let no_nic = |kind, instead| {
        let (name, vmm) = (name.to_string(), wanted.vmm.name());
        Err(VmArgsError::NoSuchNic { name, vmm, kind, instead })
    };
    match (address.kind(), wanted.vmm) {
        (Kind::VhostUser, Vmm::Qemu) => Ok(done(plug.qemu_vhost_user(), None)),
        (Kind::VhostUser, Vmm::CloudHypervisor) => Ok(done(plug.cloud_hypervisor(), None)),
        (Kind::VhostUser, Vmm::Libvirt) => Ok(done(Vec::new(), Some(plug.libvirt_vhost_user()))),
        (Kind::Stream, Vmm::Qemu) => Ok(done(plug.qemu_stream()?, None)),
        (Kind::Stream, Vmm::Libvirt) => {
            Ok(done(Vec::new(), Some(libvirt_commandline(&plug.qemu_stream()?))))
        }
        (Kind::VhostUser, Vmm::Crosvm) => Ok(done(plug.crosvm(), None)),
        (Kind::Stream, Vmm::Krunkit) => Ok(done(plug.krunkit(), None)),
        (Kind::VfioUser, Vmm::Qemu) => Ok(done(plug.qemu_vfio_user()?, None)),
        (Kind::VfioUser, Vmm::CloudHypervisor) => Ok(done(plug.cloud_hypervisor_vfio_user(), None)),
        (Kind::VfioUser, Vmm::Libvirt) => Ok(done(Vec::new(), Some(plug.libvirt_vfio_user()?))),
        (kind @ Kind::Stream, Vmm::CloudHypervisor)
        | (kind @ (Kind::Stream | Kind::VfioUser), Vmm::Crosvm) => no_nic(kind, Kind::VhostUser),
        (kind @ (Kind::VhostUser | Kind::VfioUser), Vmm::Krunkit) => no_nic(kind, Kind::Stream),
        (kind @ (Kind::Tap | Kind::Packet | Kind::Xdp | Kind::Pcap | Kind::Nat), _) => {
            Err(VmArgsError::NotForVms { name: name.to_string(), kind })
        }
    }
}

/// With a unit: without one, QEMU's `-m` means MiB and its memory backend bytes.
fn is_size(text: &str) -> bool {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    text.len() - digits.len() == 1
        && !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
}

impl Plug<'_> {
    /// The role and, if QEMU connects, how it keeps trying.
    fn reconnect(&self) -> String {
        match (self.vmm_listens, self.wanted.qemu) {
            (true, _) => ",server=on".into(),
            (false, v) if v >= QemuVersion::RECONNECT_MS => ",reconnect-ms=1000".into(),
            (false, _) => ",reconnect=1".into(),
        }
    }

    fn qemu_vhost_user(&self) -> Vec<String> {
        let Self { name, queues, mac, .. } = self;
        let id = format!("net-{name}");
        let mut device = format!(
            "virtio-net-pci,netdev={id},mac={mac}{},rx_queue_size={RING},tx_queue_size={RING}",
            self.key("host_mtu"),
        );
        let mut netdev = format!("vhost-user,id={id},chardev=chr-{name}");
        if *queues > 1 {
            // Two vectors for each queue pair, one for configuration changes, one for the control
            // queue.
            let _ = write!(device, ",mq=on,vectors={}", 2 * queues + 2);
            let _ = write!(netdev, ",queues={queues}");
        }
        let chardev =
            format!("socket,id=chr-{name},path={}{}", commas(&self.path), self.reconnect());
        let net = [("-chardev", chardev), ("-netdev", netdev), ("-device", device)];
        [self.qemu_memory(), words(&net)].concat()
    }

    /// The MTU, as a further key of the NIC.
    fn key(&self, name: &str) -> String {
        self.mtu.map(|mtu| format!(",{name}={mtu}")).unwrap_or_default()
    }

    /// Memory that the switch may map.
    fn qemu_memory(&self) -> Vec<String> {
        let memory = &self.wanted.memory;
        words(&[
            ("-object", format!("memory-backend-memfd,id=vmlan-mem,size={memory},share=on")),
            ("-m", memory.clone()),
            ("-machine", "memory-backend=vmlan-mem".into()),
        ])
    }

    /// `-nic none`: without any `-netdev` or `-nic` QEMU adds a NIC of its own, which becomes the
    /// guest's first. libvirt starts QEMU without default devices.
    fn qemu_vfio_user(&self) -> Result<Vec<String>, VmArgsError> {
        let no_default = words(&[("-nic", "none".to_owned())]);
        Ok([self.qemu_memory(), no_default, self.qemu_vfio_user_device()?].concat())
    }

    /// The socket is a structure, which only the JSON form of `-device` can say.
    fn qemu_vfio_user_device(&self) -> Result<Vec<String>, VmArgsError> {
        let (version, least) = (self.wanted.qemu, QemuVersion::VFIO_USER);
        if version < least {
            let (name, instead) = (self.name.to_owned(), self.instead);
            return Err(VmArgsError::NoVfioUser { name, version, least, instead });
        }
        let socket = json!({ "type": "unix", "path": self.path });
        let id = format!("net-{}", self.name);
        let device = json!({ "driver": "vfio-user-pci", "id": id, "socket": socket });
        Ok(words(&[("-device", device.to_string())]))
    }

    fn cloud_hypervisor_vfio_user(&self) -> Vec<String> {
        let device = format!("socket={}", self.quoted_path());
        words(&[self.cloud_hypervisor_memory(), ("--user-device", device)])
    }

    fn libvirt_vfio_user(&self) -> Result<String, VmArgsError> {
        Ok(LIBVIRT_MEMORY.to_owned() + &libvirt_commandline(&self.qemu_vfio_user_device()?))
    }

    fn cloud_hypervisor_memory(&self) -> (&'static str, String) {
        ("--memory", format!("size={},shared=on", self.wanted.memory))
    }

    /// Cloud Hypervisor keeps commas that stand in quotes.
    fn quoted_path(&self) -> String {
        if self.path.contains(',') { format!("\"{}\"", self.path) } else { self.path.clone() }
    }

    fn qemu_stream(&self) -> Result<Vec<String>, VmArgsError> {
        let Self { name, mac, wanted, .. } = self;
        let reconnect = match (self.vmm_listens, wanted.qemu) {
            (_, version) if version < QemuVersion::STREAM => {
                return Err(VmArgsError::OldQemu { name: name.to_string(), version });
            }
            (true, _) => "server=on".into(),
            (false, version) if version < QemuVersion::STREAM_RECONNECT => "server=off".into(),
            (false, _) => format!("server=off{}", self.reconnect()),
        };
        let path = commas(&self.path);
        Ok(words(&[
            (
                "-netdev",
                format!("stream,id=net-{name},addr.type=unix,addr.path={path},{reconnect}"),
            ),
            (
                "-device",
                format!("virtio-net-pci,netdev=net-{name},mac={mac}{}", self.key("host_mtu")),
            ),
        ]))
    }

    fn cloud_hypervisor(&self) -> Vec<String> {
        let mode = if self.vmm_listens { "server" } else { "client" };
        // Cloud Hypervisor counts single queues.
        let path = self.quoted_path();
        let net = format!(
            "vhost_user=true,socket={path},vhost_mode={mode},\
             num_queues={},queue_size={RING},mac={}{}",
            2 * self.queues,
            self.mac,
            self.key("mtu")
        );
        words(&[self.cloud_hypervisor_memory(), ("--net", net)])
    }

    /// Its memory is always shared. Its documentation shows this for another device.
    fn crosvm(&self) -> Vec<String> {
        words(&[("--vhost-user", format!("net,socket={}", self.quoted_path()))])
    }

    /// By its documentation.
    fn krunkit(&self) -> Vec<String> {
        let Self { path, mac, .. } = self;
        words(&[("--device", format!("virtio-net,type=unixstream,path={path},mac={mac}"))])
    }

    fn libvirt_vhost_user(&self) -> String {
        let path = xml(&self.path);
        let source = if self.vmm_listens {
            format!("    <source type='unix' path='{path}' mode='server'/>\n")
        } else {
            format!(
                "    <source type='unix' path='{path}' mode='client'>\n      \
                 <reconnect enabled='yes' timeout='1'/>\n    </source>\n"
            )
        };
        let queues =
            if self.queues > 1 { format!(" queues='{}'", self.queues) } else { String::new() };
        let mtu = self.mtu.map(|mtu| format!("    <mtu size='{mtu}'/>\n")).unwrap_or_default();
        format!(
            "{LIBVIRT_MEMORY}<!-- in <devices> -->\n<interface type='vhostuser'>\n    \
             <mac address='{mac}'/>\n{source}    <model type='virtio'/>\n{mtu}    \
             <driver{queues} rx_queue_size='{RING}' tx_queue_size='{RING}'/>\n</interface>\n",
            mac = self.mac,
        )
    }
}

#[cfg(test)]
mod tests;
