//! A VMM's command as a user wrote it, and the same with a NIC on a port.
//!
//! What the user wrote stays where it is. Memory that the VM has by it is used if the switch may
//! map it, and refused else.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{QemuVersion, VmArgsError, Vmm, Wanted, vm_args};
use crate::address::{Address, PortName};

mod cloud_hypervisor;
mod keys;
mod qemu;
#[cfg(test)]
mod tests;

/// A command: the program and its words.
#[derive(Clone, Copy, Debug)]
pub struct VmCommand<'a> {
    /// The program first.
    pub words: &'a [OsString],
    /// Whose options it takes.
    pub vmm: Vmm,
    /// Which QEMU it is.
    pub qemu: QemuVersion,
    /// KVM can be used here, if the command asks for it.
    pub kvm: bool,
    /// As in [`Wanted::mtu`].
    pub mtu: Option<u16>,
}

/// Why a command cannot have a NIC on a port.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CommandError {
    #[error(transparent)]
    VmArgs(#[from] VmArgsError),
    #[error("the command has {0} already: leave it out, or give the port another --name")]
    Taken(String),
    #[error("the VM's memory '{id}' is not shared, so the switch cannot reach it: {fix}")]
    NotShared { id: String, fix: &'static str },
    #[error(
        "-mem-path: such memory is not shared: write -object memory-backend-file,id=mem,size=SIZE,\
            mem-path=PATH,share=on -machine memory-backend=mem"
    )]
    MemPath,
    #[error("-m {0}: write a size like 512M or 4G")]
    Size(String),
    #[error("crosvm starts a VM by its command 'run': write crosvm run ...")]
    NoRun,
}

/// Whose options the program takes, by the name of its file.
pub fn vmm_of(program: &OsStr) -> Option<Vmm> {
    let name = Path::new(program).file_name()?.to_string_lossy();
    match &*name {
        "kvm" | "qemu-kvm" => Some(Vmm::Qemu),
        "crosvm" => Some(Vmm::Crosvm),
        "krunkit" => Some(Vmm::Krunkit),
        name if name.starts_with("qemu-system-") => Some(Vmm::Qemu),
        name if name.starts_with("cloud-hypervisor") => Some(Vmm::CloudHypervisor),
        _ => None,
    }
}

impl VmCommand<'_> {
    /// The words with those for a NIC on the port `name` at `address`.
    ///
    /// # Errors
    /// [`CommandError`], if such a VMM has no such NIC, or the command contradicts it.
    pub fn plugged_in(
        &self,
        name: &PortName,
        address: &Address,
    ) -> Result<Vec<OsString>, CommandError> {
        let memory = match self.vmm {
            Vmm::Qemu => qemu::memory(self.words)?,
            _ => None,
        };
        let ours = memory.is_some();
        let memory = memory.unwrap_or_else(|| "1G".into());
        let wanted = Wanted { vmm: self.vmm, memory, qemu: self.qemu, mtu: self.mtu };
        let mut made = vm_args(name, address, &wanted)?;
        if self.vmm == Vmm::Qemu && self.qemu < QemuVersion::TCG_MSIX && !self.uses_kvm() {
            made = made.without_msix();
        }
        match self.vmm {
            Vmm::Qemu => qemu::plugged_in(self.words, &made.args, ours),
            Vmm::CloudHypervisor => cloud_hypervisor::plugged_in(self.words, &made.args),
            Vmm::Crosvm => {
                let run = self.words.iter().position(|w| w == "run").ok_or(CommandError::NoRun)?;
                Ok(with(self.words, run + 1, &made.args))
            }
            Vmm::Krunkit | Vmm::Libvirt => Ok(with(self.words, self.words.len(), &made.args)),
        }
    }

    fn uses_kvm(&self) -> bool {
        self.kvm && qemu::asks_for_kvm(self.words)
    }
}

/// `words` with `more` at `at`.
fn with(words: &[OsString], at: usize, more: &[String]) -> Vec<OsString> {
    let mut all = words.to_vec();
    all.splice(at..at, more.iter().map(OsString::from));
    all
}
