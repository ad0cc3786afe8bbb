//! A switch inside the test process: the program's own workers and vhost-user ports, without command line and API.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use vmlan::worker::Workers;
use vmlan_attach::vhost_user::{Config, VhostUser, attach};
use vmlan_frame::{Counters, Port};
use vmlan_switch::{Options, PortId, Switch};

/// How long a sender may wait for a full receiver, where no frame may be lost.
pub const PATIENT: Duration = Duration::from_secs(10);

/// A switch with workers. Everything is taken down on drop: ports first, then workers.
pub struct Lan {
    ports: BTreeMap<String, (PortId, VhostUser)>,
    workers: Workers,
    dir: TempDir,
}

impl Lan {
    /// A switch with `workers` threads, whose senders wait for `full_wait`.
    #[must_use]
    pub fn new(workers: usize, full_wait: Duration) -> Self {
        vmlan_ram::fault::install().expect("SIGBUS handler");
        let switch = Switch::new(Options { full_wait, ..Options::default() });
        let workers = Workers::start(workers, Duration::from_micros(20), switch).expect("workers");
        Self { ports: BTreeMap::new(), workers, dir: tempfile::tempdir().expect("directory") }
    }

    /// Adds a vhost-user port with `queues` pairs and returns its socket.
    pub fn add(&mut self, name: &str, queues: u16) -> PathBuf {
        let path = self.dir.path().join(format!("{name}.sock"));
        let config = Config { path: path.clone(), queues, ..Config::default() };
        let door = attach(config, self.workers.changed()).expect("port");
        let id = self.join(name, door.port());
        self.ports.insert(name.into(), (id, door));
        path
    }

    /// Adds a port that somebody else made and keeps.
    pub fn join(&self, name: &str, port: Arc<dyn Port>) -> PortId {
        self.workers.add(name, port).expect("fewer than 1024 ports")
    }

    /// Takes a port made by [`Lan::join`] away.
    pub fn part(&self, id: PortId) {
        self.workers.remove(id);
    }

    /// Removes a port made by [`Lan::add`].
    pub fn remove(&mut self, name: &str) {
        let (id, mut door) = self.ports.remove(name).expect("a port of that name");
        self.workers.remove(id);
        door.close();
    }

    /// To be called when a port's doorbells change.
    #[must_use]
    pub fn changed(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.workers.changed()
    }

    /// Looks at a port's counters.
    pub fn counters<T>(&self, name: &str, look: impl FnOnce(&Counters) -> T) -> T {
        look(self.ports[name].1.port().counters())
    }

    /// Frames dropped at a port, for whatever reason.
    #[must_use]
    pub fn drops(&self, name: &str) -> u64 {
        self.counters(name, |c| c.drops().map(|(_, n)| n).sum())
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        while let Some((name, _)) = self.ports.first_key_value() {
            self.remove(&name.clone());
        }
        self.workers.stop();
    }
}
