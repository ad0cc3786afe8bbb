//! The handle of a vhost-user port: what its owner calls.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;

use super::Config;
use super::port::VhostUserPort;
use super::server::Server;
use vmlan_frame::{Changed, Details};
use vmlan_keeper::hold::Held;
use vmlan_keeper::{Asked, Keeper};

use crate::AttachError;
use crate::held::keep::{FoundPort, Keeping, Silencer, open};
use crate::held::standing::Standing;
use crate::socket::{SocketFile, listen};
use crate::thread::PortThread;
use crate::waker::Waker;

/// A port that a VM plugs into. Dropping it removes the port's socket and ends its thread.
pub struct VhostUser {
    port: Arc<VhostUserPort>,
    thread: PortThread,
    keeper: Keeper,
    /// `None`: front ends listen.
    file: Option<SocketFile>,
    details: Arc<Mutex<Details>>,
    standing: Arc<Standing>,
    silencer: Option<Silencer>,
    /// Told once it has gone on with a client that was held.
    adoption: Option<Mutex<mpsc::Receiver<()>>>,
    config: Config,
}

impl VhostUser {
    pub(super) fn start(
        config: Config,
        held: Option<(Held, Asked)>,
        changed: Changed,
    ) -> Result<Self, AttachError> {
        let waker = Arc::new(Waker::new().map_err(AttachError::Thread)?);
        let port =
            VhostUserPort::new(Arc::clone(&waker), config.queues).map_err(AttachError::Thread)?;
        port.limit().set(config.irq_rate_max);
        if config.steer_by_source {
            port.steer_by_source();
        }
        let port = Arc::new(port);
        let (details, standing) = (Arc::new(Mutex::new(Details::new())), Arc::default());
        let anew = || match config.connect {
            true => Keeper::new(None).map(|keeper| (keeper, None)).map_err(AttachError::Keeper),
            false => Ok(listen(config.place()).map(|(keeper, file)| (keeper, Some(file)))?),
        };
        let (name, what) = (config.port_name(), config.nic());
        let hold = config.hold.as_ref();
        let FoundPort { keeper, file, client } =
            open(held, hold, &config.path, &name, &what, anew)?;
        let keeping = hold.map(|hold| Keeping::new(Arc::clone(hold), name, what, file.as_ref()));
        let silencer = keeping.as_ref().map(Keeping::silencer);
        let (adopted, (tell, told)) = (client.is_some(), mpsc::sync_channel(1));
        let server = Server::new(
            &config,
            Arc::clone(&port),
            keeper.clone(),
            Arc::clone(&details),
            Arc::clone(&waker),
            changed,
            (keeping, Arc::clone(&standing)),
            client,
        );
        let thread = PortThread::spawn("vhost-user", waker, move || server.run(&tell));
        let thread = thread.map_err(AttachError::Thread)?;
        let adoption = adopted.then(|| Mutex::new(told));
        Ok(Self { port, thread, keeper, file, details, standing, silencer, adoption, config })
    }

    /// The port with its own type.
    pub fn vhost_port(&self) -> Arc<VhostUserPort> {
        Arc::clone(&self.port)
    }

    /// Limits the interrupts per second, whatever the guest asks for; 0: no limit. It takes effect
    /// at once.
    pub fn set_irq_rate_max(&self, rate_max: u32) {
        self.port.limit().set(rate_max);
    }

    /// For `port list`: what the port is and how its connection stands.
    pub fn details(&self) -> Details {
        let role = if self.config.connect { "connect" } else { "listen" };
        let mut list = vec![
            ("kind", "vhost-user".to_owned()),
            ("path", self.config.path.display().to_string()),
            ("role", role.to_owned()),
        ];
        list.extend(self.config.mac.map(|mac| ("mac", mac.to_string())));
        list.extend(self.details.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        list.extend(self.standing.text().map(|held| ("held", held)));
        list
    }

    /// Waits until it has gone on with the client that was held, if there was one; not for longer
    /// than until `end`.
    pub fn wait_for_adoption(&mut self, end: Instant) {
        if let Some(told) = self.adoption.take() {
            let told = told.into_inner().unwrap_or_else(PoisonError::into_inner);
            let _ = told.recv_timeout(end.saturating_duration_since(Instant::now()));
        }
    }

    /// It is held for the next switch.
    pub fn is_held(&self) -> bool {
        self.config.hold.is_some()
    }

    /// The holder has what the next switch needs of it.
    pub fn outlives(&self) -> bool {
        self.standing.outlives()
    }

    /// Begins to leave the front end to the next switch, if it is held, and waits for nothing: for
    /// several ports that are left together. No worker may be in the port, and
    /// [`Self::hand_over`] has to follow.
    pub fn leave(&mut self) {
        if self.is_held() {
            self.standing.leave();
            self.thread.stop();
        }
    }

    /// Leaves the front end to the next switch, if it is held: no worker may be in the port. What
    /// is called of this handle afterwards does nothing.
    pub fn hand_over(&mut self) {
        if !self.is_held() {
            return;
        }
        self.leave();
        self.thread.close(&self.config.port_name());
        // Its file stays.
        std::mem::forget(self.file.take());
    }

    /// Begins to close, and waits for nothing: for several ports that are closed together.
    pub fn stop(&mut self) {
        if self.standing.is_leaving() {
            return;
        }
        self.keeper.close();
        self.thread.stop();
    }

    /// Hangs up, ends the thread, removes the socket file. Also done on drop.
    pub fn close(&mut self) {
        self.stop();
        if !self.thread.close(&self.config.port_name()) {
            self.silencer.iter().for_each(Silencer::silence);
        }
        self.file = None;
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.close();
    }
}
