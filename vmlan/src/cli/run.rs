//! `vmlan run`: a VM with a NIC on the LAN, for as long as it runs.
//!
//! This process becomes the VMM, and leaves it the connection on which it asked for the port. So
//! the terminal, signals and the exit code are the VMM's, and whatever ends it, the kernel closes
//! the connection, and the switch removes the port.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Uid;

use super::port::port_name;
use super::vm_args::{qemu_version, version_in};
use super::{ApiArgs, named_failure};
use crate::exit::Failure;
use crate::output::program;
use vmlan_config::address::{Address, NamedAddress, PortName};
use vmlan_config::nearest_word::hint;
use vmlan_config::vm_args::command::{CommandError, VmCommand, vmm_of};
use vmlan_config::vm_args::{QemuVersion, VmArgsError, Vmm};

mod port;

pub(super) const EXAMPLE: &str = "Example:\n  vmlan run -- qemu-system-x86_64 -m 2G disk.qcow2\n  \
    vmlan run --name web --key ip=10.77.0.20 -- cloud-hypervisor --kernel vmlinux --disk \
    path=a.raw\n\n\
    QEMU (qemu-system-*, kvm) is tried. The options of Cloud Hypervisor, crosvm (`crosvm run`) and \
    krunkit (libkrun) are those of their documentation, and were not tried.";

/// Arguments of `vmlan run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// The LAN: the name of a nat: port of the running switch, whose VLAN the VM joins. For a
    /// switch that is started: the name of its nat: port, or its address [default:
    /// nat:10.77.0.0/24]
    #[arg(long)]
    net: Option<String>,
    /// The port's name [default: the first of vm1, vm2, ... that is free]
    #[arg(long)]
    name: Option<String>,
    /// The VM's NIC: virtio, or one that the switch emulates: e1000, e1000e, r8169,
    /// rtl8139, vmxnet3
    #[arg(long, value_name = "MODEL", default_value = "virtio")]
    nic: String,
    /// A key of the port's address, like ip=10.77.0.20 or from_rate=100Mbit (see `vmlan switch
    /// --help`); may be given several times
    #[arg(long = "key", value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// Start a switch for this VM, though one may be running
    #[arg(long)]
    new: bool,
    /// Whose options the command takes: qemu, cloud-hypervisor, crosvm or krunkit [default: by the
    /// program's name]
    #[arg(long)]
    vmm: Option<String>,
    /// The VMM and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What is to run, and where it is to plug in.
struct Vm<'a> {
    command: VmCommand<'a>,
    name: Option<PortName>,
    /// The kind of the port, and what its address says behind the place.
    kind: &'static str,
    keys: String,
    net: Option<&'a str>,
    /// The API's socket.
    api: PathBuf,
    /// The log of a switch that is started: one for all that have an API of their own.
    log: PathBuf,
}

/// A port that lasts as long as copies of its descriptor.
struct Held {
    name: PortName,
    address: Address,
    /// What the guest is to be told.
    mtu: Option<u16>,
    hold: OwnedFd,
}

/// Becomes the VMM.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let api = match (args.new, &args.api.api) {
        (true, None) => {
            let own = format!("vmlan-{}.sock", std::process::id());
            args.api.path()?.with_file_name(own)
        }
        _ => args.api.path()?,
    };
    let api = std::path::absolute(&api).unwrap_or(api);
    let vm = Vm::new(args, api)?;
    // What is wrong with the command is said before there is a switch, or a port.
    let name = vm.name.clone().unwrap_or(vm.first_name()?);
    vm.words(&name, &vm.address(&name, "")?, None)?;
    let held = if args.new { vm.start()? } else { vm.join_or_start()? };
    let words = vm.words(&held.name, &held.address, held.mtu)?;
    let (name, address) = (&held.name, &held.address);
    let is_usual = args.api.path().is_ok_and(|usual| usual == vm.api);
    let vmlan = program((!is_usual || args.api.api.is_some()).then_some(vm.api.as_path()));
    eprintln!("vmlan: port {name} is at {address}: see `{vmlan} port list`");
    let failed = |e: &dyn std::fmt::Display| {
        Failure::Failed(format!("cannot run {}: {e}", words[0].to_string_lossy()))
    };
    fcntl_setfd(&held.hold, FdFlags::empty()).map_err(|e| failed(&e))?;
    Err(failed(&Command::new(&words[0]).args(&words[1..]).exec()))
}

impl<'a> Vm<'a> {
    fn new(args: &'a RunArgs, api: PathBuf) -> Result<Self, Failure> {
        let words = args.command.as_slice();
        let vmm: Vmm = match &args.vmm {
            Some(vmm) => vmm.parse().map_err(Failure::Usage)?,
            None => vmm_of(&words[0]).ok_or_else(|| unknown(&words[0].to_string_lossy()))?,
        };
        if vmm == Vmm::Libvirt {
            let text = "--vmm libvirt: it starts VMs by itself: put what `vmlan vm-args NAME --vmm \
                libvirt` prints into the domain";
            return Err(Failure::Usage(text.into()));
        }
        let (kind, model) = match args.nic.as_str() {
            "virtio" if vmm == Vmm::Krunkit => ("stream", ""),
            "virtio" => ("vhost-user", ""),
            "e1000" => ("vfio-user", ",model=e1000"),
            "e1000e" => ("vfio-user", ",model=e1000e"),
            "r8169" => ("vfio-user", ",model=r8169"),
            "rtl8139" => ("vfio-user", ",model=rtl8139"),
            "vmxnet3" => ("vfio-user", ",model=vmxnet3"),
            other => {
                let hint =
                    hint(other, &["virtio", "e1000", "e1000e", "r8169", "rtl8139", "vmxnet3"]);
                return Err(Failure::Usage(format!("--nic {other}: there is no such NIC: {hint}")));
            }
        };
        let keys = args.keys.iter().map(|key| format!(",{key}"));
        Ok(Self {
            command: VmCommand { words, vmm, qemu: version(args, vmm)?, kvm: has_kvm(), mtu: None },
            name: args.name.as_deref().map(port_name).transpose()?,
            kind,
            keys: std::iter::once(model.to_owned()).chain(keys).collect(),
            net: args.net.as_deref(),
            log: match (args.new, &args.api.api) {
                (true, None) => api.with_file_name("vmlan-new.log"),
                _ => api.with_extension("log"),
            },
            api,
        })
    }

    /// Beside the API's socket, where the switch's sandbox lets it make sockets.
    fn address(&self, name: &PortName, more: &str) -> Result<Address, Failure> {
        let api = self.api.file_stem().unwrap_or_default().to_string_lossy();
        let place = self.api.with_file_name(format!("{api}-{name}.sock"));
        let place = place.to_string_lossy().replace(',', ",,");
        let group = self.group().map(|id| format!(",group={id}")).unwrap_or_default();
        let text = format!("{name}={}:{place}{}{group}{more}", self.kind, self.keys);
        let named: NamedAddress = text.parse().map_err(|e| named_failure(&text, &e))?;
        Ok(named.address)
    }

    /// The group whose members may use the API of a switch that is another user's: they may connect
    /// to the port, too.
    fn group(&self) -> Option<u32> {
        let api = std::fs::metadata(&self.api).ok()?;
        let given = ["group", "mode"].iter().any(|key| self.keys.contains(&format!(",{key}=")));
        // A stream: port has no such key.
        let takes = self.kind != "stream" && !given;
        let user = rustix::process::geteuid();
        takes.then(|| foreign_group(api.uid(), api.gid(), api.mode(), user)).flatten()
    }

    fn words(
        &self,
        name: &PortName,
        address: &Address,
        mtu: Option<u16>,
    ) -> Result<Vec<OsString>, Failure> {
        let command = VmCommand { mtu, ..self.command };
        command.plugged_in(name, address).map_err(|e| Failure::Usage(said(&e)))
    }

    fn first_name(&self) -> Result<PortName, Failure> {
        port_name("vm1")
    }
}

/// The group by which `user` may use a socket with these permissions.
fn foreign_group(owner: u32, group: u32, mode: u32, user: Uid) -> Option<u32> {
    let is_own = user.is_root() || user.as_raw() == owner;
    (!is_own && mode & 0o060 == 0o060).then_some(group)
}

fn unknown(program: &str) -> Failure {
    Failure::Usage(format!(
        "{program}: not a VMM that vmlan knows (qemu-system-*, cloud-hypervisor, crosvm, krunkit): \
         say whose options it takes with --vmm, or start it by hand: `vmlan port add --help`, \
         `vmlan vm-args --help`"
    ))
}

/// Words of this command, not of `vm-args`.
fn said(e: &CommandError) -> String {
    match e {
        CommandError::VmArgs(VmArgsError::NoVfioUser { version, least, instead, .. }) => format!(
            "--nic: QEMU {version} has no NICs that others emulate: use QEMU {least} or later, \
             --nic virtio, or {instead}"
        ),
        other => other.to_string(),
    }
}

/// The version of the program, if it is QEMU; a recent one if it does not say.
fn version(args: &RunArgs, vmm: Vmm) -> Result<QemuVersion, Failure> {
    if vmm != Vmm::Qemu {
        return Ok(QemuVersion::RECENT);
    }
    let program = &args.command[0];
    let said = qemu_version(program)
        .map_err(|e| Failure::Failed(format!("cannot run {}: {e}", program.to_string_lossy())))?;
    Ok(version_in(&said).unwrap_or(QemuVersion::RECENT))
}

/// True if this user may use KVM.
fn has_kvm() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_use_the_api_by_its_group_may_use_the_port() {
        let [root, owner, other] = [0, 900, 1000].map(Uid::from_raw);
        let group = |mode, user| foreign_group(900, 901, mode, user);
        assert_eq!(group(0o660, other), Some(901));
        for (mode, user) in [(0o660, owner), (0o660, root), (0o600, other), (0o606, other)] {
            assert_eq!(group(mode, user), None, "{mode:o} {user:?}");
        }
    }
}
