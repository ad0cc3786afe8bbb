//! The thread of one port: takes a connection, serves it, takes the next.

mod adopt;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use vmlan_frame::{Changed, Details, Port, error_chain};
use vmlan_keeper::{Keeper, KeeperError};

use super::Config;
use super::port::VhostUserPort;
use super::refusal::RequestRefusal;
use super::session::Session;
use super::sides::PortFault;
use super::wire::{Frames, Message};
use crate::budget::{Budget, Takes};
use crate::connection::{Connection, ConnectionError};
use crate::cpu_budget;
use crate::death::point;
use crate::held::keep::{FoundClient, Keeping};
use crate::held::standing::Standing;
use crate::journal::Journal;
use crate::memory::{Files, UNSHARED};
use crate::poll::{Wait, poll};
use crate::port_log::PortLog;
use crate::socket::dial;
use crate::thread::{ACCEPT_PAUSE, AcceptPause, PENALTY, frames};
use crate::waker::Waker;

/// First and longest pause between two attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Shortest time between two wake-ups of the workers, however often a front end changes something;
/// so many times as long as ports are busy.
const NOTIFY_PAUSE: Duration = Duration::from_millis(1);

/// Time between two looks at a message that is not whole, where polling would not tell.
const HALF: Duration = Duration::from_millis(10);

pub struct Served {
    /// Dropped before the connection is shut down: when the front end hears of that, nobody is at
    /// work in its memory any more.
    session: Session,
    connection: Connection<Frames>,
    /// Messages whose effects the holder knows.
    controls: u64,
    /// Switches that it has outlived, and those that died of it, perhaps.
    adopted: u32,
    deaths: u32,
}

/// How front ends are found.
enum Door {
    Listen,
    /// The path, and how long to wait after the next failure.
    Connect(PathBuf, Duration),
}

pub struct Server {
    door: Door,
    /// Who has the sockets too. Dropped after them.
    keeper: Keeper,
    pause: AcceptPause,
    /// Of messages. It outlives connections: a new one is no new start.
    budget: Budget,
    takes: Takes,
    served: Option<Served>,
    port: Arc<VhostUserPort>,
    waker: Arc<Waker>,
    queues: u16,
    /// The guest's MTU, as the user wants it.
    mtu: Option<u16>,
    files: Files,
    changed: Changed,
    details: Arc<Mutex<Details>>,
    log: PortLog,
    fault: Option<PortFault>,
    /// When workers were last told to look.
    notified: Instant,
    /// They are to look again, but not yet.
    notify_later: bool,
    /// What was written down is not true any more.
    stale: bool,
    /// The latest front end put virtqueues into memory that it does not share.
    unshared: bool,
    /// What log lines call the port.
    name: String,
    /// Who has all this for the next switch.
    keeping: Option<Keeping>,
    standing: Arc<Standing>,
    /// A front end whose switch has died.
    found: Option<FoundClient>,
    /// When the front end that we went on with has not killed us.
    proven: Option<Instant>,
}

impl Server {
    /// A server for front ends that knock at the listener of `keeper`, or whom it connects to, as
    /// `config` says. How things stand is written into `details`.
    #[allow(clippy::too_many_arguments, reason = "each is another thing")]
    pub fn new(
        config: &Config,
        port: Arc<VhostUserPort>,
        keeper: Keeper,
        details: Arc<Mutex<Details>>,
        waker: Arc<Waker>,
        changed: Changed,
        (keeping, standing): (Option<Keeping>, Arc<Standing>),
        found: Option<FoundClient>,
    ) -> Self {
        let door = match config.connect {
            true => Door::Connect(config.path.clone(), RETRY.0),
            false => Door::Listen,
        };
        Self {
            door,
            keeper,
            pause: AcceptPause::default(),
            budget: Budget::MESSAGES,
            takes: Takes::new(Instant::now()),
            served: None,
            port,
            waker,
            queues: config.queues,
            mtu: config.mtu,
            files: config.memory,
            changed,
            details,
            log: PortLog::new(config.port_name(), Instant::now()),
            fault: None,
            notified: Instant::now(),
            notify_later: false,
            stale: false,
            unshared: false,
            name: config.port_name(),
            keeping,
            standing,
            found,
            proven: None,
        }
    }

    /// Serves until the waker says stop. A front end whose switch has died is gone on with first,
    /// which `tell` is told of.
    pub fn run(mut self, tell: &SyncSender<()>) {
        self.note();
        match self.found.take() {
            Some(found) => self.adopt(found),
            None => self.keep(),
        }
        let _ = tell.try_send(());
        cpu_budget::run(|longest| self.turn(longest));
        if self.is_leaving() {
            return self.leave();
        }
        self.hang_up();
        (self.changed)();
        if let Some(keeping) = &self.keeping {
            let _ = keeping.forget();
        }
    }

    /// Sleeps until something happens, and deals with it. False: the end.
    fn turn(&mut self, longest: Option<Duration>) -> bool {
        let now = Instant::now();
        self.pause.end_if_due(now);
        self.takes.look(now);
        self.end_trial(now);
        let listen = self.keeper.listener().filter(|_| !self.pause.is_on());
        let listen = listen.map(|fd| (fd, Wait::Read));
        let line = self.keeper.watch();
        let line = line.as_ref().map(|fd| (fd.as_fd(), Wait::Read));
        let waits = self.budget.left(now).max(self.takes.left(now)).is_some();
        let served = self.served.as_ref().filter(|_| !waits);
        let half = served.is_some_and(|s| s.connection.is_half());
        let served = served.filter(|_| !half).map(|s| (s.connection.fd(), Wait::Read));
        let limit = Some((self.port.limit().fd(), Wait::Read));
        let wait = [Some((self.waker.fd(), Wait::Read)), limit, line, listen, served];
        match poll(wait, self.timeout(now).into_iter().chain(longest).min()) {
            Ok([woken, due, answered, knocked, said]) => {
                if woken && !self.woken() {
                    return false;
                }
                if due {
                    self.deliver_due();
                }
                if answered || self.keeper.is_due() {
                    self.look_after_keeper();
                }
                self.open(knocked);
                self.listen_to(said || half);
                self.punish();
                if self.notify_later {
                    self.notify();
                }
                true
            }
            Err(e) => {
                // Only for lack of kernel memory.
                self.warn(&format!("poll failed: {e}"));
                std::thread::sleep(RETRY.0);
                true
            }
        }
    }

    /// `None`: nothing but events can matter.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let message = self.served.as_ref().and_then(|s| s.connection.time_left(now));
        let half = self.served.as_ref().filter(|s| s.connection.is_half()).map(|_| HALF);
        let connects = matches!(self.door, Door::Connect(..)) && self.served.is_none();
        let pause = match self.door {
            Door::Listen => self.pause.left(now),
            Door::Connect(..) => connects.then(|| self.pause.left(now).unwrap_or_default()),
        };
        let notify = self
            .notify_later
            .then(|| (self.notified + notify_pause()).saturating_duration_since(now));
        let budget = self.served.as_ref().and_then(|_| self.budget.left(now));
        let keeper = self.keeper.due(now);
        let proven = self.proven.map(|at| at.saturating_duration_since(now));
        let takes = self.takes.due(now);
        [message, half, pause, notify, keeper, budget, takes, proven].into_iter().flatten().min()
    }

    fn look_after_keeper(&mut self) {
        if let Err(e) = self.keeper.look() {
            self.pause.begin_after(&e);
            self.warn(&error_chain(&e));
            // There is another one, perhaps.
            self.keep();
        }
    }

    /// Interrupts that were held back may be due.
    fn deliver_due(&self) {
        match &self.served {
            Some(served) => served.session.deliver_due(),
            None => drop(self.port.limit().due()),
        }
    }

    /// A worker found a fault, or it is time to go (false).
    fn woken(&mut self) -> bool {
        if self.waker.is_stopped() {
            return false;
        }
        if self.port.counts_only(self.fault.is_some()) {
            return true;
        }
        self.look_for_fault();
        self.note();
        self.notify_later = true;
        true
    }

    /// Tells of a fault that was not there before.
    fn look_for_fault(&mut self) {
        let fault = self.port.both().fault();
        if let (Some(fault), true) = (fault, fault != self.fault) {
            self.warn(&fault);
            self.served.iter().for_each(|served| served.session.raise_err());
            // Memory that is gone cannot be served; an honest front end connects again with new
            // memory.
            if fault == PortFault::Truncated {
                self.port.counters().faults.add_shared(1);
                self.hang_up();
            }
        }
        self.fault = fault;
    }

    /// An interrupt broke: whoever found it, and whether or not who did it has hung up first.
    fn punish(&mut self) {
        if self.port.cost().take_broken() {
            if self.fault != Some(PortFault::StuckCall) {
                self.warn(&PortFault::StuckCall);
            }
            self.port.counters().faults.add_shared(1);
            self.hang_up();
            self.pause.begin(PENALTY);
        }
    }

    fn open(&mut self, knocked: bool) {
        let found = match &self.door {
            Door::Listen if knocked && !self.pause.is_on() => self.keeper.accept(),
            Door::Connect(path, _) if self.served.is_none() && !self.pause.is_on() => {
                dial(path, &self.keeper)
            }
            _ => return,
        };
        if found.is_ok() {
            self.pause.found(frames(self.port.counters()));
        }
        match found {
            Ok(sock) if self.served.is_none() => {
                match self.keeping.as_ref().map(|_| Journal::new()).transpose() {
                    Ok(journal) => self.welcome(Connection::new(sock, journal)),
                    Err(e) => {
                        self.pause.begin(ACCEPT_PAUSE);
                        self.warn(&format!("cannot make a journal: {e}"));
                    }
                }
            }
            // Closed at once: one front end at a time.
            Ok(_) => self.warn(&"a second front end was turned away while the first is connected"),
            Err(e) => self.not_found(&e),
        }
    }

    fn welcome(&mut self, connection: Connection<Frames>) {
        let held = self.keeping.is_some();
        let session = Session::new(Arc::clone(&self.port), self.queues, self.files, held);
        let (controls, adopted, deaths) = (0, 0, 0);
        self.served = Some(Served { connection, session, controls, adopted, deaths });
        // Before anything is answered.
        point();
        self.keep();
        point();
        self.fault = None;
        self.log.connected();
        self.note();
    }

    fn not_found(&mut self, error: &KeeperError) {
        match (&mut self.door, error) {
            (_, KeeperError::Closing | KeeperError::Io(Errno::AGAIN)) => {}
            (Door::Connect(_, wait), KeeperError::Gone(_)) => self.pause.begin(back_off(wait)),
            (_, error) => {
                self.pause.begin_after(error);
                self.warn(&format!("cannot accept: {}", error_chain(error)));
            }
        }
    }

    /// Serves the messages that are there, a bounded number: the waker and the listener want
    /// attention too.
    fn listen_to(&mut self, said: bool) {
        let now = Instant::now();
        let due =
            |s: &Served| said || s.connection.time_left(now).is_some_and(|left| left.is_zero());
        if !self.served.as_ref().is_some_and(due) {
            return;
        }
        for _ in 0..16 {
            if self.budget.left(now).is_some() {
                break;
            }
            let Some(served) = &mut self.served else { return };
            match served.connection.read(now, &mut self.takes) {
                Ok(None) => break,
                Ok(Some(message)) => {
                    let message = message.into();
                    self.budget.spend(now);
                    self.serve(message);
                    if self.port.cost().is_broken() {
                        break;
                    }
                }
                Err(e) => return self.lost(&e),
            }
        }
        self.notify();
    }

    /// Has the workers look again if a message has changed something, but not all the time: it
    /// wakes every worker of the switch.
    fn notify(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.note();
        }
        self.notify_later |= self.port.take_touched();
        let now = Instant::now();
        let due = now.saturating_duration_since(self.notified) >= notify_pause();
        if self.notify_later && due {
            (self.notified, self.notify_later) = (now, false);
            (self.changed)();
        }
    }

    fn serve(&mut self, message: Message) {
        let before = self.hold_on(&message);
        let Some(Served { session, .. }) = &mut self.served else { return };
        let number = message.header.number;
        let told = session.mtu();
        let outcome = session.handle(message);
        let told = session.mtu().filter(|mtu| Some(*mtu) != told);
        point();
        self.keep_next(number, outcome.refusal.is_none());
        point();
        drop(before);
        if self.fault.is_some() {
            // Forgiven, perhaps.
            self.look_for_fault();
        }
        self.unshared |= outcome.refusal.as_ref().is_some_and(RequestRefusal::is_unshared);
        self.unshared &= !self.port.is_up();
        // Before the reply: whoever has it may look. It costs more than most messages.
        self.stale = outcome.reply.is_none();
        if !self.stale {
            self.note();
        }
        if self.port.is_up() {
            self.log.ready("a front end");
        }
        let Some(Served { connection, .. }) = &mut self.served else { return };
        let bytes = outcome.reply.as_ref().map(|reply| reply.encode(number)).unwrap_or_default();
        let fd = outcome.reply.as_ref().and_then(|reply| reply.fd.as_ref()).map(AsFd::as_fd);
        let sent = connection.finish(&bytes, fd, &self.waker);
        if let Door::Connect(_, wait) = &mut self.door {
            *wait = RETRY.0;
        }
        if let Some(refusal) = &outcome.refusal {
            self.warn(&error_chain(refusal));
        }
        self.compare_mtu(told);
        match sent {
            Err(e) => self.lost(&e),
            Ok(()) if outcome.hang_up => self.hang_up(),
            Ok(()) => {}
        }
    }

    /// The front end has told its guest an MTU, which nobody else can.
    fn compare_mtu(&mut self, told: Option<u64>) {
        if let (Some(told), Some(own)) = (told, self.mtu)
            && told != u64::from(own)
        {
            self.warn(&format!(
                "the VMM tells its guest an MTU of {told}, and the port's mtu is {own}: give both \
                 the same"
            ));
        }
    }

    /// The connection failed, or ended.
    fn lost(&mut self, error: &ConnectionError) {
        if matches!(error, ConnectionError::Stopping) && self.is_leaving() {
            return;
        }
        if matches!(error, ConnectionError::Closed) {
            self.log.goodbye("the front end");
        } else if !error.is_goodbye() {
            self.port.counters().faults.add_shared(1);
            self.warn(&error_chain(error));
        }
        self.hang_up();
        if error.has_parked() {
            self.pause.begin(PENALTY);
        }
    }

    /// Ends the connection: virtqueues stopped, memory unmapped, descriptors closed, in this order.
    fn hang_up(&mut self) {
        let Some(served) = self.served.take() else { return };
        // The holder must not be the last that has the front end's descriptors.
        self.keep();
        drop(served);
        self.proven = None;
        if let Door::Connect(_, wait) = &mut self.door {
            self.pause.begin(back_off(wait));
        }
        self.note();
        self.notify_later = true;
    }

    fn warn(&mut self, what: &dyn std::fmt::Display) {
        self.log.warn(Instant::now(), what);
    }

    /// Writes down how things stand, for [`VhostUser::details`].
    fn note(&self) {
        let mut list = Details::new();
        let state = match (&self.served, self.fault) {
            (None, _) if self.unshared => {
                format!("waiting for a front end; the last one failed: {UNSHARED}")
            }
            (None, _) => "waiting for a front end".to_owned(),
            (Some(_), _) if self.unshared => format!("stopped: {UNSHARED}"),
            (Some(_), Some(fault)) => format!("stopped: {fault}"),
            (Some(_), None) if self.port.is_up() => "up".to_owned(),
            (Some(_), None) => "connected".to_owned(),
        };
        list.push(("state", state));
        list.extend(self.served.iter().flat_map(|served| served.session.details()));
        *self.details.lock().unwrap_or_else(PoisonError::into_inner) = list;
    }
}

/// All busy ports together wake the workers as often as one.
fn notify_pause() -> Duration {
    NOTIFY_PAUSE * cpu_budget::PORTS.busy()
}

/// The pause to make now; the next is twice as long, up to a bound.
fn back_off(wait: &mut Duration) -> Duration {
    let now = *wait;
    *wait = (now * 2).min(RETRY.1);
    now
}
