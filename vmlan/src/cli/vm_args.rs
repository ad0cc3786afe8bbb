//! `vmlan vm-args`: how to attach a VM to a port.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::process::{Command, Stdio};

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::shell::port_names;
use super::{ApiArgs, named_failure};
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_config::address::{NamedAddress, PortName};
use vmlan_config::vm_args::{QemuVersion, VmArgs, Vmm, Wanted, vm_args};

/// Arguments of `vmlan vm-args`.
#[derive(Debug, Args)]
pub(super) struct VmArgsArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// A port of the running switch, or any port with its address
    #[arg(value_name = "NAME[=ADDRESS]", add = ArgValueCompleter::new(port_names))]
    port: String,
    /// The program that will run the VM: qemu, cloud-hypervisor, libvirt, or by their documentation
    /// crosvm and krunkit (libkrun)
    #[arg(long, default_value = "qemu")]
    vmm: String,
    /// The VM's memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: String,
    /// Write options for this version of QEMU [default: the installed one]
    #[arg(long, value_name = "X.Y")]
    qemu_version: Option<String>,
    /// For a QEMU without KVM: adds vectors=0 to the device, and -accel tcg (libvirt: domain type
    /// qemu)
    #[arg(long)]
    tcg: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &VmArgsArgs) -> Result<(), Failure> {
    let vmm: Vmm = args.vmm.parse().map_err(Failure::Usage)?;
    let qemu = match &args.qemu_version {
        Some(version) => version.parse().map_err(Failure::Usage)?,
        None => installed_qemu(),
    };
    if args.tcg && !matches!(vmm, Vmm::Qemu | Vmm::Libvirt) {
        return Err(Failure::Usage("--tcg is for QEMU and libvirt only: leave it out".into()));
    }
    let wanted = Wanted { vmm, memory: args.memory.clone(), qemu, mtu: None };
    let made = if args.port.contains('=') {
        let named: NamedAddress = args.port.parse().map_err(|e| named_failure(&args.port, &e))?;
        vm_args(&named.name, &named.address, &wanted)?
    } else {
        ask(args, &wanted)?
    };
    let made = if args.tcg { made.for_tcg() } else { made };
    if let Some(note) = made.note(wanted.qemu).filter(|_| !args.tcg) {
        // To standard error: $(vmlan vm-args vm1) takes the rest.
        eprintln!("vmlan: {note}");
    }
    if args.json { print_json(&made) } else { print(&text(&made)) }
}

/// On a terminal to copy and paste; else on one line, so that `qemu $(vmlan vm-args vm1)` works.
fn text(made: &VmArgs) -> String {
    if made.args.is_empty() || std::io::stdout().is_terminal() {
        return made.text.clone();
    }
    made.substituted().unwrap_or_else(|| made.text.replace(" \\\n", " "))
}

fn ask(args: &VmArgsArgs, wanted: &Wanted) -> Result<VmArgs, Failure> {
    let name: PortName = args.port.parse()?;
    // All values are plain words; a size is checked by the switch.
    let path = format!(
        "/v1/vm-args/{name}?vmm={}&memory={}&qemu={}",
        args.vmm,
        percent_encode(&wanted.memory),
        wanted.qemu
    );
    Ok(args.api.client()?.get(&path)?)
}

fn percent_encode(text: &str) -> String {
    let byte = |b: u8| match b {
        b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The version of the QEMU that a user of this machine would start; if there is none, that of a
/// recent one.
fn installed_qemu() -> QemuVersion {
    let program = format!("qemu-system-{}", std::env::consts::ARCH);
    let said = qemu_version(program.as_ref()).ok();
    said.and_then(|said| version_in(&said)).unwrap_or(QemuVersion::RECENT)
}

/// What a QEMU says of its version.
pub(super) fn qemu_version(program: &OsStr) -> io::Result<String> {
    let asked = Command::new(program).arg("--version").stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&asked.stdout).into_owned())
}

/// "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"
pub(super) fn version_in(said: &str) -> Option<QemuVersion> {
    said.split("version ").nth(1)?.split_whitespace().next()?.parse().ok()
}
