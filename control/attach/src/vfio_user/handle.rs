//! The handle of a vfio-user port: what its owner calls, and what it shares with the port's thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;

use vmlan_frame::{Changed, Counter, Details, Port};
use vmlan_keeper::hold::Held;
use vmlan_keeper::{Asked, Keeper};
use vmlan_nic::chip::held::HELD;
use vmlan_nic::chip::{self, Nic};
use vmlan_nic::e1000::E1000;
use vmlan_nic::e1000e::E1000e;
use vmlan_nic::r8169::R8169;
use vmlan_nic::rtl8139::Rtl8139;
use vmlan_nic::vmxnet3::Vmxnet3;
use vmlan_ram::Window;

#[cfg(any(test, feature = "fuzz"))]
use super::area::Area;
use super::area::Areas;
use super::fault::PortFault;
use super::nic_host::{Mode, NicHost};
use super::port::VfioUserPort;
use super::server::Server;
use super::session::MemorySummary;
use super::{Config, Doorbell, Model};
use crate::AttachError;
use crate::held::keep::{FoundPort, Keeping, Silencer, open};
use crate::held::standing::Standing;
use crate::interrupt_cost::STUCK_INTERRUPT;
use crate::memory::UNSHARED;
use crate::socket::{SocketFile, listen};
use crate::sys::SharedPages;
use crate::thread::PortThread;
use crate::waker::Waker;

/// Memory without a descriptor that is worth mentioning: less are ROMs.
pub const MUCH: u64 = 1 << 20;

pub struct Shared {
    pub port: Arc<VfioUserPort>,
    memory: Mutex<MemorySummary>,
    /// The cable is to be plugged in.
    pub link: AtomicBool,
    /// The limit of interrupts per second that is to hold.
    pub irq_rate_max: AtomicU32,
    /// Register accesses, and what else was as much work. The port's thread adds to it.
    pub accesses: Counter,
    /// For the next switch.
    pub standing: Standing,
}

impl Shared {
    /// What the client's memory looks like.
    pub fn memory(&self) -> MutexGuard<'_, MemorySummary> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the port stands still, and what to do if that is known.
    pub fn fault(&self) -> Option<PortFault> {
        if self.port.host().is_stuck() {
            let text = STUCK_INTERRUPT.to_owned();
            return Some(PortFault { text, address: None, stops: true, fatal: true });
        }
        let mut fault = PortFault::from(self.port.nic().fault()?);
        let hidden = |at: u64| self.memory().unshared.iter().any(|run| run.contains(at));
        if fault.address.is_some_and(hidden) {
            UNSHARED.clone_into(&mut fault.text);
        }
        Some(fault)
    }

    fn state(&self) -> String {
        if !self.port.is_connected() {
            return "waiting for a VMM".to_owned();
        }
        match self.fault() {
            Some(fault) if fault.stops => format!("stopped: {}", fault.text),
            fault => {
                let state = if self.port.is_up() { "up" } else { "connected" };
                fault.map_or_else(|| state.to_owned(), |f| format!("{state}, but {}", f.text))
            }
        }
    }
}

/// A port that a VM plugs into. Dropping it removes the port's socket and ends its thread.
pub struct VfioUser {
    shared: Arc<Shared>,
    thread: PortThread,
    keeper: Keeper,
    file: Option<SocketFile>,
    waker: Arc<Waker>,
    silencer: Option<Silencer>,
    /// Told once it has gone on with a client that was held.
    adoption: Option<Mutex<mpsc::Receiver<()>>>,
    config: Config,
}

impl VfioUser {
    pub(super) fn start(
        config: Config,
        held: Option<(Held, Asked)>,
        changed: Changed,
    ) -> Result<Self, AttachError> {
        config.check()?;
        let waker = Arc::new(Waker::new().map_err(AttachError::Thread)?);
        let host = Arc::new(NicHost::new(Arc::clone(&waker)).map_err(AttachError::Thread)?);
        let (nic, pages) = make(&config, &host)?;
        nic.set_link(config.link);
        let mapped = config.doorbell == Doorbell::Mapped;
        let areas = Areas::new(nic.layout(), pages.filter(|_| mapped));
        let state = config.hold.as_ref().map(|_| hold(&*nic)).transpose()?.flatten();
        let poll_idle = mapped.then_some(config.poll_idle);
        let port = VfioUserPort::new(nic, host, Arc::clone(&waker), poll_idle);
        let shared = Arc::new(Shared {
            port: Arc::new(port),
            memory: Mutex::default(),
            link: AtomicBool::new(config.link),
            irq_rate_max: AtomicU32::new(config.irq_rate_max),
            accesses: Counter::default(),
            standing: Standing::default(),
        });
        let (name, what) = (config.port_name(), config.nic());
        let anew = || Ok(listen(config.place()).map(|(keeper, file)| (keeper, Some(file)))?);
        let hold = config.hold.as_ref();
        let FoundPort { keeper, file, client } =
            open(held, hold, &config.path, &name, &what, anew)?;
        let (adopted, wait) = (client.is_some(), mpsc::sync_channel(1));
        let keeping = hold.map(|hold| Keeping::new(Arc::clone(hold), name, what, file.as_ref()));
        let silencer = keeping.as_ref().map(Keeping::silencer);
        let server = Server::new(
            &config,
            Arc::clone(&shared),
            keeper.clone(),
            areas,
            state,
            Arc::clone(&waker),
            changed,
            keeping,
            client,
        );
        let (tell, told) = wait;
        let thread = PortThread::spawn("vfio-user", Arc::clone(&waker), move || server.run(&tell));
        let thread = thread.map_err(AttachError::Thread)?;
        let adoption = adopted.then(|| Mutex::new(told));
        Ok(Self { shared, thread, keeper, file, waker, silencer, adoption, config })
    }

    /// The port with its own type.
    pub fn vfio_port(&self) -> Arc<VfioUserPort> {
        Arc::clone(&self.shared.port)
    }

    /// Plugs the cable in, or pulls it out. It takes effect soon after.
    pub fn set_link(&self, up: bool) {
        self.shared.link.store(up, Ordering::Release);
        self.waker.wake();
    }

    /// Limits the interrupts per second, whatever the guest asks for; 0: no limit. It takes effect
    /// soon after; the port's thread delivers what was held back.
    pub fn set_irq_rate_max(&self, rate_max: u32) {
        self.shared.irq_rate_max.store(rate_max, Ordering::Release);
        self.waker.wake();
    }

    /// For `port list`: what the port is and how its connection stands.
    pub fn details(&self) -> Details {
        let (port, config) = (&self.shared.port, &self.config);
        let doorbell = match config.doorbell {
            Doorbell::Trapped => "trapped".to_owned(),
            Doorbell::Mapped => format!("mapped, looked at every {:?}", config.poll_idle),
        };
        let interrupts = match port.host().mode() {
            Mode::None => "none",
            Mode::Intx => "INTx",
            Mode::Msi => "MSI",
            Mode::Msix => "MSI-X",
        };
        let link = if self.shared.link.load(Ordering::Acquire) { "up" } else { "down" };
        let csb = match port.nic().device().csb {
            None => "not offered",
            Some(csb) if csb.on => "on",
            Some(_) => "off",
        };
        let summary = self.shared.memory().clone();
        let regions = if summary.regions == 1 { "region" } else { "regions" };
        let amount = match summary.bytes.0 {
            few @ 1..0x10_0000 => format!("{} KiB", few.div_ceil(1024)),
            bytes => format!("{} MiB", bytes >> 20),
        };
        let mut memory = format!("{amount} in {} {regions}", summary.regions);
        if summary.bytes.1 >= MUCH {
            memory.push_str(&format!(", {} MiB more not shared", summary.bytes.1 >> 20));
        }
        let mut list = vec![
            ("kind", "vfio-user".to_owned()),
            ("path", config.path.display().to_string()),
            ("state", self.shared.state()),
            ("model", config.model.name().to_owned()),
            ("mac", config.mac.to_string()),
            ("doorbell", doorbell),
            ("csb", csb.to_owned()),
            ("link", link.to_owned()),
            ("interrupts", interrupts.to_owned()),
            ("interrupt-writes", port.host().raised().to_string()),
        ];
        if port.is_connected() {
            list.push(("memory", memory));
        }
        list.extend(self.shared.standing.text().map(|held| ("held", held)));
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
        self.shared.standing.outlives()
    }

    /// Begins to leave the client to the next switch, if it is held, and waits for nothing: for
    /// several ports that are left together. No worker may be in the port, and
    /// [`Self::hand_over`] has to follow.
    pub fn leave(&mut self) {
        if self.is_held() {
            self.shared.standing.leave();
            self.thread.stop();
        }
    }

    /// Leaves the client to the next switch, if it is held: no worker may be in the port. What
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
        if self.shared.standing.is_leaving() {
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

impl Drop for VfioUser {
    fn drop(&mut self) {
        self.close();
    }
}

/// A NIC, and the memory that some of its registers are in, at the offsets they have in BAR 0.
type Made = (Arc<dyn Nic>, Option<SharedPages>);

fn make(config: &Config, host: &Arc<NicHost>) -> Result<Made, AttachError> {
    let Config { mac, irq_rate_max, csb, .. } = *config;
    let chip = chip::Config { mac, irq_rate_max, csb };
    let host = Arc::clone(host);
    Ok(match config.model {
        Model::E1000 => {
            let (pages, window) = shared(E1000::LAYOUT)?;
            (Arc::new(E1000::new(chip, window, host)), Some(pages))
        }
        Model::E1000e => {
            let (pages, window) = shared(E1000e::LAYOUT)?;
            (Arc::new(E1000e::new(chip, window, host)), Some(pages))
        }
        Model::R8169 => (Arc::new(R8169::new(chip, host)), None),
        Model::Rtl8139 { plus } => (Arc::new(Rtl8139::new(chip, plus, host)), None),
        Model::Vmxnet3 if config.doorbell == Doorbell::Mapped => {
            let (pages, window) = shared(Vmxnet3::LAYOUT)?;
            (Arc::new(Vmxnet3::mapped(chip, window, host)), Some(pages))
        }
        Model::Vmxnet3 => (Arc::new(Vmxnet3::new(chip, host)), None),
    })
}

/// The memory that what of a chip outlives this process goes to, if anything does.
fn hold(nic: &dyn Nic) -> Result<Option<SharedPages>, AttachError> {
    let (pages, _) = SharedPages::new(HELD).map_err(AttachError::Pages)?;
    let window = pages.window(0, HELD);
    let window = window.ok_or_else(|| AttachError::Pages(io::ErrorKind::OutOfMemory.into()))?;
    Ok(nic.hold(window).then_some(pages))
}

/// The memory that some of a chip's registers are in, and the window with those.
fn shared(layout: &chip::Layout) -> Result<(SharedPages, Window), AttachError> {
    let range = layout.pages.clone();
    let (pages, _) = SharedPages::new(range.end).map_err(AttachError::Pages)?;
    let window = pages.window(range.start, range.len());
    let window = window.ok_or_else(|| AttachError::Pages(io::ErrorKind::OutOfMemory.into()))?;
    Ok((pages, window))
}

/// A port without a thread, and what its client may map.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn new_port(model: Model) -> Result<(Arc<VfioUserPort>, Option<Area>), AttachError> {
    let waker = Arc::new(Waker::new().map_err(AttachError::Thread)?);
    let host = Arc::new(NicHost::new(Arc::clone(&waker)).map_err(AttachError::Thread)?);
    let plain = Config::new(std::path::PathBuf::new(), vmlan_frame::Mac::default());
    let (nic, pages) = make(&Config { model, ..plain }, &host)?;
    nic.set_link(true);
    let area = Areas::new(nic.layout(), pages).renew().map_err(AttachError::Pages)?;
    Ok((Arc::new(VfioUserPort::new(nic, host, waker, None)), area))
}
