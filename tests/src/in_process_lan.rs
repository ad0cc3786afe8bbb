//! A switch inside the test process: the program's own workers and ports, without command line and
//! API.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tempfile::TempDir;
use vmlan_attach::vfio_user::{self, Doorbell, VfioUser};
use vmlan_attach::vhost_user::{Config, VhostUser, attach};
use vmlan_engine::worker::Workers;
use vmlan_frame::{Counters, Mac, NicCounters, Port};
use vmlan_switch::policy::Policy;
use vmlan_switch::{Options, PortId, Switch};
use vmlan_transport::Model;

use crate::numbered::settles;

/// How long a sender may wait for a full receiver, where no frame may be lost: longer than any test
/// runs, for a receiver that waits for a core uses it up and earns little of it back.
pub const FULL_WAIT: Duration = Duration::from_secs(3600);

/// Where a VM is plugged in.
enum Door {
    Virtio(VhostUser),
    ChipGuest(VfioUser),
    /// Somebody else's.
    Joined,
}

impl Door {
    fn close(&mut self) {
        match self {
            Self::Virtio(door) => door.close(),
            Self::ChipGuest(door) => door.close(),
            Self::Joined => {}
        }
    }
}

struct Entry {
    id: PortId,
    port: Arc<dyn Port>,
    door: Door,
}

/// A switch with workers. Everything is taken down on drop: ports first, then workers.
pub struct Lan {
    ports: BTreeMap<String, Entry>,
    workers: Workers,
    dir: TempDir,
}

impl Lan {
    /// A switch with `workers` threads, whose senders wait for `full_wait`.
    pub fn new(workers: usize, full_wait: Duration) -> Self {
        vmlan_ram::sigbus::install().expect("SIGBUS handler");
        let switch = Switch::new(Options { full_wait, ..Options::default() });
        let workers = Workers::start(workers, Duration::from_micros(20), switch).expect("workers");
        Self { ports: BTreeMap::new(), workers, dir: tempfile::tempdir().expect("directory") }
    }

    /// Adds a vhost-user port with `queues` pairs and returns its socket.
    pub fn add(&mut self, name: &str, queues: u16) -> PathBuf {
        let path = self.dir.path().join(format!("{name}.sock"));
        let config = Config { path: path.clone(), queues, ..Config::default() };
        let door = attach(config, self.workers.changed()).expect("port");
        self.enter(name, door.port(), Door::Virtio(door));
        path
    }

    /// Adds a vfio-user port with an e1000 and returns its socket; `change` may change what it is
    /// made with.
    pub fn add_e1000(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut vfio_user::Config),
    ) -> PathBuf {
        self.add_chip(name, Model::E1000, change)
    }

    /// Adds a vfio-user port with a chip and returns its socket; `change` may change what it is
    /// made with.
    pub fn add_chip(
        &mut self,
        name: &str,
        model: Model,
        change: impl FnOnce(&mut vfio_user::Config),
    ) -> PathBuf {
        let path = self.dir.path().join(format!("{name}.sock"));
        let mut config = vfio_user::Config::new(path.clone(), Mac::new([2, 0, 0, 0, 0, 1]));
        config.model = match model {
            Model::E1000 => vfio_user::Model::E1000,
            Model::E1000e => vfio_user::Model::E1000e,
            Model::R8169 => vfio_user::Model::R8169,
            Model::Rtl8139Plus => vfio_user::Model::Rtl8139 { plus: true },
            Model::Rtl8139Classic => vfio_user::Model::Rtl8139 { plus: false },
            Model::Vmxnet3 => vfio_user::Model::Vmxnet3,
        };
        change(&mut config);
        let door = vfio_user::attach(config, self.workers.changed()).expect("port");
        self.enter(name, door.port(), Door::ChipGuest(door));
        path
    }

    /// Adds a vfio-user port with an e1000, its doorbells trapped or mapped.
    pub fn add_e1000_with(&mut self, name: &str, doorbell: Doorbell) -> PathBuf {
        self.add_e1000(name, |config| config.doorbell = doorbell)
    }

    /// Adds a port that somebody else made, until [`Lan::remove`].
    pub fn add_port(&mut self, name: &str, port: Arc<dyn Port>) {
        self.enter(name, port, Door::Joined);
    }

    fn enter(&mut self, name: &str, port: Arc<dyn Port>, door: Door) {
        PORTS.with_borrow_mut(|all| all.push((name.into(), Arc::downgrade(&port))));
        let id = self.join(name, port.clone());
        self.ports.insert(name.into(), Entry { id, port, door });
    }

    /// Adds a port that somebody else made and keeps.
    pub fn join(&self, name: &str, port: Arc<dyn Port>) -> PortId {
        self.workers.add(name, port).expect("fewer than 1024 ports")
    }

    /// Takes a port made by [`Lan::join`] away.
    pub fn part(&self, id: PortId) {
        self.workers.remove(id);
    }

    /// Removes a port made by [`Lan::add`] and its like.
    pub fn remove(&mut self, name: &str) {
        let mut entry = self.ports.remove(name).expect("a port of that name");
        self.workers.remove(entry.id);
        entry.door.close();
    }

    /// Waits until the guest of such a port, which has no policy, is gone: then no frame of it is
    /// on its way any more.
    ///
    /// # Panics
    /// When it stays.
    pub fn wait_gone(&self, name: &str) {
        let port = &self.ports[name].port;
        assert!(settles(|| !port.is_connected()), "{name} is still there");
        // From now on nothing is pulled; a breath that had begun is over when all workers have
        // another table.
        self.set_policy(name, Policy::default());
    }

    /// Tells what a port made by [`Lan::add`] and its like may do.
    pub fn set_policy(&self, name: &str, policy: Policy) {
        self.workers.set_policies([(self.ports[name].id, Arc::new(policy))]);
    }

    /// The number of such a port, and itself.
    pub fn port(&self, name: &str) -> (PortId, Arc<dyn Port>) {
        let entry = &self.ports[name];
        (entry.id, entry.port.clone())
    }

    /// To be called when a port's doorbells change.
    pub fn changed(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.workers.changed()
    }

    /// Looks at a port's counters.
    pub fn counters<T>(&self, name: &str, look: impl FnOnce(&Counters) -> T) -> T {
        look(self.ports[name].port.counters())
    }

    /// What a chip counts beside frames.
    pub fn device(&self, name: &str) -> NicCounters {
        self.ports[name].port.device().expect("a chip")
    }

    /// Frames dropped at a port, by reason.
    pub fn dropped(&self, name: &str) -> Vec<(String, u64)> {
        let text = |(reason, n): (vmlan_frame::Reason, u64)| (format!("{reason:?}"), n);
        self.counters(name, |c| c.drops().map(text).collect())
    }

    /// Frames dropped at a port, for whatever reason.
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

thread_local! {
    /// The ports that this thread has added to any switch, for [`explain_ports`].
    static PORTS: RefCell<Vec<(String, Weak<dyn Port>)>> = const { RefCell::new(Vec::new()) };
}

/// What the ports say that this thread has added and that are still there, in a line each.
pub fn explain_ports() -> Vec<String> {
    let explain = |(name, port): &(String, Weak<dyn Port>)| {
        let port = port.upgrade()?;
        let side = |s: &vmlan_frame::Direction| {
            format!("{} frames, {} notifications", s.frames.get(), s.notifications.get())
        };
        let counters = port.counters();
        let chip = port.device().map_or_else(String::new, |d| {
            let statistics: Vec<_> = d.statistics.iter().filter(|(_, n)| *n > 0).collect();
            format!(
                "interrupts raised {} held {} delivered {}, {:?}, {statistics:?}",
                d.raised, d.held, d.delivered, d.csb
            )
        });
        let drops: Vec<_> = counters.drops().collect();
        Some(format!(
            "port {name}: up {}, from the guest {}, to it {}, drops {drops:?}, {chip}",
            port.is_up(),
            side(&counters.input),
            side(&counters.output)
        ))
    };
    PORTS.with_borrow(|all| all.iter().filter_map(explain).collect())
}
