//! vhost-user, back end: a VMM's virtio-net device, served from here (QEMU's
//! `docs/interop/vhost-user.rst`).
//!
//! ```text
//!  VMM ── socket ──► server ─► connection ─► session ─► virtqueues, memory, inflight
//!                    thread    messages      state        │ both locks
//!                                                          ▼
//!  workers ──────────── pull, push, arm ─────────────────► port (NetTx, NetRx)
//! ```
//!
//! [`attach`] starts one thread for each port. It sleeps in `poll` unless the front end says
//! something. One front end is served at a time; when it goes, its virtqueues are stopped, its
//! memory unmapped, its descriptors closed, and the port waits for the next. Virtqueues start at
//! the used index in guest memory: after a restart of this process a guest goes on, and notices no
//! more than lost frames.

mod feature_names;
mod handle;
mod inflight;
mod kick;
mod lanes;
mod port;
mod queue_index;
mod refusal;
mod server;
mod session;
mod sides;
#[cfg(test)]
mod tests;
mod virtqueue_error;
mod virtqueues;
pub mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use vmlan_frame::{Changed, Mac, Port};
use vmlan_keeper::Asked;
use vmlan_keeper::hold::{Held, Hold};

pub use crate::AttachError;
use crate::Files;
use crate::socket::{Place, port_name};

pub use handle::VhostUser;
pub use port::VhostUserPort;
pub use refusal::RequestRefusal;
pub use session::{FEATURES, Outcome, Session};

/// What the fuzz target needs beyond the public parts.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzzing {
    pub(crate) use crate::waker::Waker;
}

/// Queue pairs a port can be configured for.
pub const MAX_PAIRS: u16 = vmlan_nic::virtio::MAX_QUEUES / 2;

/// How to attach a VM.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The port's name, for log lines. Without one they name the path.
    pub name: Option<String>,
    /// The socket.
    pub path: PathBuf,
    /// Connect to a front end that listens there; otherwise listen.
    pub connect: bool,
    /// Permission bits of the socket file. Default: what the umask leaves, or 0660 with a group.
    pub mode: Option<u32>,
    /// Group of the socket file, by name or number.
    pub group: Option<String>,
    /// Queue pairs offered, 1 to [`MAX_PAIRS`]; 0 means 1.
    pub queues: u16,
    /// The guest's MAC address, if it is known. The front end gives it to the guest; shown only.
    pub mac: Option<Mac>,
    /// The MTU that the guest is to have. Only the front end can tell it the guest: if it says
    /// that it tells another (NET_SET_MTU), that is logged.
    pub mtu: Option<u16>,
    /// Limit of interrupts per second, of all virtqueues together, whatever the guest asks for; 0:
    /// no limit.
    pub irq_rate_max: u32,
    /// The files that a VM's memory may be in.
    pub memory: Files,
    /// Each port's frames go to one receive queue, rather than each flow's.
    pub steer_by_source: bool,
    /// Who has the front end's descriptors for the next switch.
    pub hold: Option<Arc<dyn Hold>>,
}

impl Config {
    /// What a front end knows of the port: a switch that is to offer something else cannot go on
    /// with it.
    fn nic(&self) -> String {
        let role = if self.connect { ",connect" } else { "" };
        format!("virtio-net,queues={}{role}", self.queues.clamp(1, MAX_PAIRS))
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
/// thread whenever the port may have come up or gone down, or its doorbells may have changed.
pub fn attach(config: Config, changed: Changed) -> Result<VhostUser, AttachError> {
    open(config, None, changed)
}

/// As [`attach`], with what [`Config::hold`] has held of this port since another switch ended or
/// died. Its keeper was `asked`. Where that is of no use, the log says why, and the port begins
/// anew.
pub fn adopt(
    config: Config,
    held: Held,
    asked: Asked,
    changed: Changed,
) -> Result<VhostUser, AttachError> {
    open(config, Some((held, asked)), changed)
}

fn open(
    config: Config,
    held: Option<(Held, Asked)>,
    changed: Changed,
) -> Result<VhostUser, AttachError> {
    if config.queues > MAX_PAIRS {
        return Err(AttachError::Queues(config.queues));
    }
    VhostUser::start(config, held, changed)
}

impl VhostUser {
    /// The port, for the switch.
    pub fn port(&self) -> Arc<dyn Port> {
        self.vhost_port()
    }
}
