//! vfio-user, server: an emulated PCI NIC, for VMMs that can attach one by a socket (QEMU's
//! `docs/interop/vfio-user.rst`).
//!
//! ```text
//!  VMM ── socket ──► server ─► connection ─► session ─► dma, irqs
//!                    thread    messages      state       │
//!                      │                       ▼         ▼
//!                      │                      nic ◄─── host: INTx, MSI, timer, doorbell
//!  workers ── port ────┴── pull, push, arm ───┘
//! ```
//!
//! [`attach`] starts one thread for each port. Register accesses are messages, and the thread hands
//! them to the NIC ([`Nic`](vmlan_nic::chip::Nic)). While they come in quick succession, it polls
//! for the next one instead of sleeping.
//!
//! One client is served at a time. When it goes, its interrupts are disconnected, its memory
//! unmapped and the NIC is reset, ready for the next. Where registers are shared memory
//! ([`Doorbell::Mapped`]), each client gets a file of its own: one that has gone and kept its file
//! does not write to the registers of the next.

mod area;
mod busy_wait;
mod dma;
mod fault;
mod handle;
mod irqs;
mod nic_host;
mod port;
mod refusal;
mod server;
mod session;
#[cfg(test)]
mod tests;
pub(crate) mod version;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vmlan_frame::{Changed, Mac, Port};
use vmlan_keeper::Asked;
use vmlan_keeper::hold::{Held, Hold};

pub use crate::AttachError;
use crate::Files;
use crate::socket::{Place, port_name};
pub use fault::PortFault;
pub use handle::VfioUser;
pub use port::VfioUserPort;

/// What the fuzz target needs beyond the public parts.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzzing {
    pub(crate) use super::area::Area;
    pub(crate) use super::handle::new_port;
    pub(crate) use super::port::VfioUserPort;
    pub(crate) use super::session::Session;
    pub(crate) use super::wire::{Header, Replies};
}

/// Which NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// Intel 82540EM.
    #[default]
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Realtek RTL8169SB.
    R8169,
    /// Realtek RTL8139C+, or without `plus` a plain RTL8139.
    Rtl8139 {
        /// With the descriptor rings, offloads and other features of the C+.
        plus: bool,
    },
    /// VMware's vmxnet3.
    Vmxnet3,
}

impl Model {
    /// Its name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::R8169 => "r8169",
            Self::Rtl8139 { plus: true } => "rtl8139",
            Self::Rtl8139 { plus: false } => "rtl8139,plus=off",
            Self::Vmxnet3 => "vmxnet3",
        }
    }
}

/// How the guest's stores to the ring registers reach us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbell {
    /// As messages. QEMU does not wait for their replies.
    #[default]
    Trapped,
    /// As shared memory, which workers look at.
    Mapped,
}

/// How to attach a VM.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Config {
    /// The port's name, for log lines. Without one they name the path.
    pub name: Option<String>,
    /// The socket. VMMs connect to it.
    pub path: PathBuf,
    /// Permission bits of the socket file. Default: what the umask leaves, or 0660 with a group.
    pub mode: Option<u32>,
    /// Group of the socket file, by name or number.
    pub group: Option<String>,
    pub model: Model,
    pub mac: Mac,
    /// Limit of interrupts per second, whatever the guest asks for; 0: no limit.
    pub irq_rate_max: u32,
    /// How doorbells reach us. Mapped ones are for Intel's chips and vmxnet3 only.
    pub doorbell: Doorbell,
    /// The NIC offers a shared status block to drivers that know it. Not with [`Doorbell::Mapped`],
    /// nor an 82574L, a plain RTL8139 or a vmxnet3.
    pub csb: bool,
    /// How often a sleeping worker looks at mapped doorbells.
    pub poll_idle: Duration,
    /// The cable is plugged in.
    pub link: bool,
    /// The files that a VM's memory may be in.
    pub memory: Files,
    /// Who has the client's descriptors for the next switch.
    pub hold: Option<Arc<dyn Hold>>,
}

impl Config {
    /// A trapped e1000 at `path`, with the cable plugged in.
    pub fn new(path: PathBuf, mac: Mac) -> Self {
        Self {
            name: None,
            path,
            mode: None,
            group: None,
            model: Model::E1000,
            mac,
            irq_rate_max: 0,
            doorbell: Doorbell::Trapped,
            csb: false,
            poll_idle: Duration::from_millis(1),
            link: true,
            memory: Files::Ram,
            hold: None,
        }
    }

    /// What a guest knows of its NIC: a switch that is to make another one cannot go on with it.
    fn nic(&self) -> String {
        let word = |is, word| if is { word } else { "" };
        let mapped = word(self.doorbell == Doorbell::Mapped, ",doorbell=mapped");
        let csb = word(self.csb, ",csb=on");
        format!("model={},mac={}{mapped}{csb}", self.model.name(), self.mac)
    }

    /// Refuses settings that exclude each other.
    fn check(&self) -> Result<(), AttachError> {
        let mapped = self.doorbell == Doorbell::Mapped;
        let refused = |one, other: &str| Err(AttachError::Contradiction(one, other.to_owned()));
        match self.model {
            Model::E1000e | Model::Vmxnet3 if self.csb => {
                refused("csb=on", &format!("model={}", self.model.name()))
            }
            Model::E1000 if mapped && self.csb => refused("csb=on", "doorbell=mapped"),
            Model::E1000 | Model::E1000e | Model::Vmxnet3 => Ok(()),
            model if mapped => refused("doorbell=mapped", &format!("model={}", model.name())),
            Model::Rtl8139 { plus: false } if self.csb => refused("csb=on", "plus=off"),
            _ => Ok(()),
        }
    }

    fn place(&self) -> Place<'_> {
        Place { path: &self.path, mode: self.mode, group: self.group.as_deref() }
    }

    /// What log lines call the port.
    fn port_name(&self) -> String {
        port_name(self.name.as_deref(), &self.path)
    }
}

/// Opens the socket at `config.path` and starts the port's thread. `changed` is called by that
/// thread whenever the port may have come up or gone down.
pub fn attach(config: Config, changed: Changed) -> Result<VfioUser, AttachError> {
    VfioUser::start(config, None, changed)
}

/// As [`attach`], with what [`Config::hold`] has held of this port since another switch died. Its
/// keeper was `asked`. Where that is of no use, the log says why, and the port begins anew.
pub fn adopt(
    config: Config,
    held: Held,
    asked: Asked,
    changed: Changed,
) -> Result<VfioUser, AttachError> {
    VfioUser::start(config, Some((held, asked)), changed)
}

impl VfioUser {
    /// The port, for the switch.
    pub fn port(&self) -> Arc<dyn Port> {
        self.vfio_port()
    }
}
