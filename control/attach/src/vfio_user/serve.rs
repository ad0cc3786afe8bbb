//! The thread of one port: takes a connection, serves it, takes the next.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmlan_frame::Port;
use vmlan_nic::chip::{self, Nic};
use vmlan_nic::e1000::E1000;
use vmlan_nic::r8169::R8169;
use vmlan_nic::rtl8139::Rtl8139;

use super::nic::Trouble;
use super::pace::Pace;
use super::port::VfioUserPort;
use super::session::{Facts, Session};
use super::wire::{Frames, Replies};
use super::wires::{Mode, Wires};
use super::{Config, Doorbell, Error, Model};
use crate::complain::{Complaints, chain, is_due};
use crate::memory::UNSHARED;
use crate::socket::Listener;
use crate::stream::{Error as StreamError, Stream};
use crate::sys::{self, SharedPages, Wait};
use crate::thread::{ACCEPT_PAUSE, PENALTY, PortThread};
use crate::waker::Waker;

/// Rounds of messages until the other things to wait for are looked at.
const ROUNDS: u32 = 16;

/// Register accesses served before everything else gets its turn: the timer, unmasking, the owner's
/// wishes. One message may exceed it.
const WORK: usize = 256;

/// Shortest time between two wake-ups of the workers: a guest brings its NIC up and down with one register write.
const TELL: Duration = Duration::from_millis(1);

/// Replies that are gathered before they are sent.
const GATHER: usize = 16 << 10;

/// Memory without a descriptor that is worth a warning: less are ROMs.
const MUCH: u64 = 1 << 20;

type Changed = Arc<dyn Fn() + Send + Sync>;
type Details = Vec<(&'static str, String)>;

/// What the handle and the thread both know.
struct Shared {
    port: Arc<VfioUserPort>,
    facts: Mutex<Facts>,
    /// The cable, as it is wanted.
    link: AtomicBool,
    /// The limit of interrupts, as it is wanted.
    irq_rate_max: AtomicU32,
}

impl Shared {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the port stands still, in words that tell the mend where there is one.
    fn trouble(&self) -> Option<Trouble> {
        if self.port.wires().is_stuck() {
            let text = "an interrupt's eventfd hung, failed or is slow: its VMM tampers with it";
            return Some(Trouble {
                text: text.to_owned(),
                address: None,
                stops: true,
                fatal: true,
            });
        }
        let mut trouble = Trouble::from(self.port.nic().fault()?);
        let hidden = |at: u64| self.facts().unshared.iter().any(|run| run.contains(at));
        if trouble.address.is_some_and(hidden) {
            UNSHARED.clone_into(&mut trouble.text);
        }
        Some(trouble)
    }

    fn state(&self) -> String {
        if !self.port.is_connected() {
            return "waiting for a VMM".to_owned();
        }
        match self.trouble() {
            Some(trouble) if trouble.stops => format!("stopped: {}", trouble.text),
            trouble => {
                let state = if self.port.is_up() { "up" } else { "connected" };
                trouble.map_or_else(|| state.to_owned(), |t| format!("{state}, but {}", t.text))
            }
        }
    }
}

/// A port that a VM plugs into. Dropping it removes the port's socket and ends its thread.
pub struct VfioUser {
    shared: Arc<Shared>,
    thread: PortThread,
    listener: Arc<Listener>,
    waker: Arc<Waker>,
    config: Config,
}

impl VfioUser {
    pub(super) fn start(config: Config, changed: Changed) -> Result<Self, Error> {
        config.check()?;
        let waker = Arc::new(Waker::new().map_err(Error::Thread)?);
        let wires = Arc::new(Wires::new(Arc::clone(&waker)).map_err(Error::Thread)?);
        let (nic, pages) = make(&config, &wires)?;
        nic.set_link(config.link);
        let mapped = config.doorbell == Doorbell::Mapped;
        let poll_idle = mapped.then_some(config.poll_idle);
        let port = VfioUserPort::new(nic, wires, Arc::clone(&waker), poll_idle);
        let shared = Arc::new(Shared {
            port: Arc::new(port),
            facts: Mutex::default(),
            link: AtomicBool::new(config.link),
            irq_rate_max: AtomicU32::new(config.irq_rate_max),
        });
        let listener = Arc::new(Listener::new(config.place())?);
        let server = Server {
            listener: Arc::clone(&listener),
            pause: None,
            served: None,
            pages: pages.filter(|_| mapped),
            link: config.link,
            irq_rate_max: config.irq_rate_max,
            up: false,
            told: Instant::now(),
            untold: false,
            backlog: false,
            pace: Pace::default(),
            shared: Arc::clone(&shared),
            waker: Arc::clone(&waker),
            changed,
            complaints: Complaints::new(config.who(), Instant::now()),
            trouble: None,
            said: Said::default(),
        };
        let thread = PortThread::spawn("vfio-user", Arc::clone(&waker), move || server.run());
        Ok(Self { shared, thread: thread.map_err(Error::Thread)?, listener, waker, config })
    }

    /// The port with its own type.
    #[must_use]
    pub fn vfio_port(&self) -> Arc<VfioUserPort> {
        Arc::clone(&self.shared.port)
    }

    /// Plugs the cable in, or pulls it out. It takes effect soon after.
    pub fn set_link(&self, up: bool) {
        self.shared.link.store(up, Ordering::Release);
        self.waker.wake();
    }

    /// At most so many interrupts a second, whatever the guest asks for; 0: as the guest asks. It takes effect soon after:
    /// what was held back is delivered by the port's thread.
    pub fn set_irq_rate_max(&self, rate_max: u32) {
        self.shared.irq_rate_max.store(rate_max, Ordering::Release);
        self.waker.wake();
    }

    /// For `port list`: what the port is and how its connection stands.
    #[must_use]
    pub fn details(&self) -> Details {
        let (port, config) = (&self.shared.port, &self.config);
        let doorbell = match config.doorbell {
            Doorbell::Trapped => "trapped".to_owned(),
            Doorbell::Mapped => format!("mapped, looked at every {:?}", config.poll_idle),
        };
        let interrupts = match port.wires().mode() {
            Mode::None => "none",
            Mode::Intx => "INTx",
            Mode::Msi => "MSI",
        };
        let link = if self.shared.link.load(Ordering::Acquire) { "up" } else { "down" };
        let csb = match port.nic().device().csb {
            None => "not offered",
            Some(csb) if csb.on => "on",
            Some(_) => "off",
        };
        let facts = self.shared.facts().clone();
        let regions = if facts.regions == 1 { "region" } else { "regions" };
        let amount = match facts.bytes.0 {
            few @ 1..0x10_0000 => format!("{} KiB", few.div_ceil(1024)),
            bytes => format!("{} MiB", bytes >> 20),
        };
        let mut memory = format!("{amount} in {} {regions}", facts.regions);
        if facts.bytes.1 >= MUCH {
            memory.push_str(&format!(", {} MiB more not shared", facts.bytes.1 >> 20));
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
            ("interrupt-writes", port.wires().raised().to_string()),
        ];
        if port.is_connected() {
            list.push(("memory", memory));
        }
        list
    }

    /// Hangs up, ends the thread, removes the socket file. Also done on drop.
    pub fn close(&mut self) {
        self.thread.close(&self.config.who());
        self.listener.close();
    }
}

impl Drop for VfioUser {
    fn drop(&mut self) {
        self.close();
    }
}

/// A NIC, and the memory that some of its registers are in, at the offsets they have in BAR 0.
type Made = (Arc<dyn Nic>, Option<SharedPages>);

fn make(config: &Config, wires: &Arc<Wires>) -> Result<Made, Error> {
    let Config { mac, irq_rate_max, csb, .. } = *config;
    let chip = chip::Config { mac, irq_rate_max, csb };
    let host = Arc::clone(wires);
    Ok(match config.model {
        Model::E1000 => {
            let range = E1000::LAYOUT.pages.clone();
            let (pages, _) = SharedPages::new(range.end).map_err(Error::Pages)?;
            let window = pages.window(range.start, range.len());
            let window = window.ok_or_else(|| Error::Pages(io::ErrorKind::OutOfMemory.into()))?;
            (Arc::new(E1000::new(chip, window, host)), Some(pages))
        }
        Model::R8169 => (Arc::new(R8169::new(chip, host)), None),
        Model::Rtl8139 { plus } => (Arc::new(Rtl8139::new(chip, plus, host)), None),
    })
}

/// A port without a thread, and the file behind the registers that its clients may map, if there are such.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn new_port(model: Model) -> Result<(Arc<VfioUserPort>, Option<std::fs::File>), Error> {
    let waker = Arc::new(Waker::new().map_err(Error::Thread)?);
    let wires = Arc::new(Wires::new(Arc::clone(&waker)).map_err(Error::Thread)?);
    let plain = Config::new(std::path::PathBuf::new(), vmlan_frame::Mac::default());
    let (nic, pages) = make(&Config { model, ..plain }, &wires)?;
    nic.set_link(true);
    let file =
        pages.map(|pages| pages.renew().map(Into::into)).transpose().map_err(Error::Pages)?;
    Ok((Arc::new(VfioUserPort::new(nic, wires, waker, None)), file))
}

/// What was logged, and when, so that it is not logged too often.
#[derive(Default)]
struct Said {
    goodbye: Option<Instant>,
    welcome: Option<Instant>,
    /// In this connection.
    welcomed: bool,
    /// In this connection.
    unshared: bool,
}

struct Served {
    stream: Stream<Frames>,
    session: Session,
    replies: Replies,
}

struct Server {
    listener: Arc<Listener>,
    /// No new connection is looked for before this time.
    pause: Option<Instant>,
    served: Option<Served>,
    /// The registers that clients may map.
    pages: Option<SharedPages>,
    /// The cable, as the NIC knows it.
    link: bool,
    /// The limit of interrupts, as the NIC knows it.
    irq_rate_max: u32,
    /// The port was up when workers were last told.
    up: bool,
    /// When that was.
    told: Instant,
    /// They are to be told of a change, but not yet.
    untold: bool,
    /// Messages were left over when it was others' turn.
    backlog: bool,
    pace: Pace,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    changed: Changed,
    complaints: Complaints,
    trouble: Option<Trouble>,
    said: Said,
}

impl Server {
    fn run(mut self) {
        while self.turn() {}
        self.hang_up();
    }

    fn port(&self) -> &VfioUserPort {
        &self.shared.port
    }

    /// Sleeps until something happens, and deals with it. False: the end.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        if self.pause.is_some_and(|until| until <= now) {
            self.pause = None;
        }
        let served = self.served.as_ref();
        let wait = [
            Some((self.waker.fd(), Wait::Read)),
            self.pause.is_none().then(|| (self.listener.fd(), Wait::Read)),
            served.map(|s| (s.stream.fd(), Wait::Read)),
            Some((self.port().wires().timer_fd(), Wait::Read)),
            served.and_then(|s| s.session.unmask_fd()).map(|fd| (fd, Wait::Read)),
        ];
        match sys::poll(wait, self.timeout(now)) {
            Ok([woken, knocked, said, due, unmasked]) => {
                if woken && !self.woken() {
                    return false;
                }
                if due {
                    self.port().wires().take_timer();
                    self.port().nic().timer();
                    self.tell();
                }
                if let (true, Some(served)) = (unmasked, &self.served) {
                    served.session.unmasked();
                }
                if knocked && self.pause.is_none() {
                    self.open();
                }
                self.listen_to(said || self.backlog);
                if self.untold {
                    self.tell();
                }
                true
            }
            Err(e) => {
                // Only for lack of kernel memory.
                self.complain(&format!("poll failed: {e}"));
                std::thread::sleep(Duration::from_millis(100));
                true
            }
        }
    }

    /// `None`: nothing but events can matter.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        if self.backlog {
            return Some(Duration::ZERO);
        }
        let tell = self.untold.then(|| (self.told + TELL).saturating_duration_since(now));
        let message = self.served.as_ref().and_then(|s| s.stream.time_left(now));
        let pause = self.pause.map(|until| until.saturating_duration_since(now));
        message.into_iter().chain(pause).chain(tell).min()
    }

    /// A worker found trouble, the owner wants something, or it is time to go (false).
    fn woken(&mut self) -> bool {
        if self.waker.is_stopped() {
            return false;
        }
        let link = self.shared.link.load(Ordering::Acquire);
        if link != self.link {
            self.link = link;
            self.port().nic().set_link(link);
        }
        let rate_max = self.shared.irq_rate_max.load(Ordering::Acquire);
        if rate_max != self.irq_rate_max {
            self.irq_rate_max = rate_max;
            self.port().nic().set_irq_rate_max(rate_max);
        }
        let trouble = self.shared.trouble();
        if let (Some(trouble), true) = (&trouble, trouble != self.trouble) {
            self.complaints.say(Instant::now(), &trouble.text);
        }
        if trouble.as_ref().is_some_and(|t| t.fatal) {
            self.port().counters().faults.add_shared(1);
            self.hang_up();
        }
        // Also if whoever did it has gone: going first must not pay.
        if self.port().wires().account().take_broken() {
            self.pause = Some(Instant::now() + PENALTY);
        }
        self.trouble = trouble;
        self.tell();
        true
    }

    fn open(&mut self) {
        match self.listener.accept() {
            Ok(sock) if self.served.is_none() => {
                let pages = self.pages.as_ref().map(SharedPages::renew).transpose();
                match pages {
                    Ok(pages) => self.welcome(Stream::new(sock), pages),
                    Err(e) => {
                        self.pause = Some(Instant::now() + ACCEPT_PAUSE);
                        self.complain(&format!("cannot make memory for registers: {e}"));
                    }
                }
            }
            // Closed at once: one client at a time.
            Ok(_) => self.complain(&"a second VMM was turned away while the first is connected"),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                self.pause = Some(Instant::now() + ACCEPT_PAUSE);
                self.complain(&format!("cannot accept: {e}"));
            }
        }
    }

    fn welcome(&mut self, stream: Stream<Frames>, pages: Option<OwnedFd>) {
        let session = Session::new(Arc::clone(&self.shared.port), pages);
        *self.shared.facts() = session.facts();
        self.served = Some(Served { stream, session, replies: Replies::default() });
        self.trouble = None;
        self.said.welcomed = false;
        self.said.unshared = false;
        (self.changed)();
    }

    /// Serves the messages that are there, and those that come soon after: a bounded number, for the others want
    /// attention too.
    fn listen_to(&mut self, said: bool) {
        let now = Instant::now();
        let due = |s: &Served| said || s.stream.time_left(now).is_some_and(|left| left.is_zero());
        if !self.served.as_ref().is_some_and(due) {
            return;
        }
        let patience = self.pace.patience();
        let mut last = now;
        let mut rounds = 0;
        while rounds < ROUNDS && !self.port().wires().is_stuck() {
            let now = Instant::now();
            match self.serve(now) {
                Ok(true) => {
                    rounds += 1;
                    if rounds > 1 {
                        self.pace.hit();
                    }
                    if patience.is_zero() || self.backlog {
                        break;
                    }
                    last = Instant::now();
                }
                Ok(false) if now.saturating_duration_since(last) < patience => {
                    std::hint::spin_loop();
                }
                Ok(false) => {
                    if !patience.is_zero() {
                        self.pace.miss();
                    }
                    break;
                }
                Err(error) => return self.lost(&error),
            }
        }
    }

    /// Serves what one read brings, a bounded amount of work. False: nothing.
    fn serve(&mut self, now: Instant) -> Result<bool, StreamError> {
        let mut any = false;
        let mut left = WORK;
        self.backlog = false;
        let mut hang_up = false;
        let mut drained = false;
        while !hang_up && !drained {
            let Some(Served { stream, session, replies }) = &mut self.served else { break };
            let Some(message) = stream.read(now)? else { break };
            any = true;
            let before = replies.bytes().len();
            let outcome = session.handle(message, replies);
            if outcome.changed {
                *self.shared.facts() = session.facts();
            }
            if let Some(fd) = &outcome.fd {
                let (earlier, with) = replies.bytes().split_at_checked(before).unwrap_or_default();
                stream.write(earlier, None, &self.waker)?;
                stream.write(with, Some(fd.as_fd()), &self.waker)?;
                replies.clear();
            } else if replies.bytes().len() > GATHER {
                stream.write(replies.bytes(), None, &self.waker)?;
                replies.clear();
            }
            hang_up = outcome.hang_up;
            left = left.saturating_sub(outcome.work);
            drained = stream.is_drained() || left == 0;
            self.backlog = left == 0 && !stream.is_drained();
            if let Some(refusal) = &outcome.refusal {
                self.complaints.say(now, &chain(refusal));
            }
            if outcome.settled {
                self.warn_of_unshared();
            }
        }
        if let Some(Served { stream, replies, .. }) = &mut self.served {
            stream.write(replies.bytes(), None, &self.waker)?;
            replies.clear();
        }
        if any {
            self.tell();
        }
        if hang_up {
            self.hang_up();
        }
        Ok(any)
    }

    /// Tells workers if the port has come up or gone down.
    fn tell(&mut self) {
        let up = self.port().is_up();
        self.untold = up != self.up;
        if !self.untold {
            return;
        }
        let now = Instant::now();
        if now.saturating_duration_since(self.told) >= TELL {
            (self.up, self.told, self.untold) = (up, now, false);
            self.say_welcome();
            (self.changed)();
        }
    }

    /// Most of the guest's memory is out of reach: said once for each client, when it sets up its interrupts.
    fn warn_of_unshared(&mut self) {
        let (shared, unshared) = self.shared.facts().bytes;
        let much = unshared >= MUCH && unshared > shared;
        if much && !self.said.unshared && self.port().wires().mode() != Mode::None {
            self.said.unshared = true;
            self.complain(&UNSHARED);
        }
    }

    /// The connection failed, or ended.
    fn lost(&mut self, error: &StreamError) {
        if !error.is_goodbye() {
            self.port().counters().faults.add_shared(1);
            self.complain(&chain(error));
        } else if is_due(&mut self.said.goodbye) {
            log::info!("{}: the VMM closed the connection", self.complaints.who());
        }
        self.hang_up();
    }

    /// One line for each connection, when the guest's driver is ready for the first time.
    fn say_welcome(&mut self) {
        if self.up && !self.said.welcomed && is_due(&mut self.said.welcome) {
            self.said.welcomed = true;
            log::info!("{}: a VMM has connected and its driver is ready", self.complaints.who());
        }
    }

    /// Ends the connection: interrupts disconnected, memory unmapped, descriptors closed, the NIC reset.
    fn hang_up(&mut self) {
        if self.served.take().is_none() {
            return;
        }
        *self.shared.facts() = Facts::default();
        (self.up, self.untold, self.backlog) = (false, false, false);
        (self.changed)();
    }

    fn complain(&mut self, what: &dyn std::fmt::Display) {
        self.complaints.say(Instant::now(), what);
    }
}
