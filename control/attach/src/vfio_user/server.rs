//! The thread of one port: takes a connection, serves it, takes the next.

mod adopt;
mod flap;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use vmlan_frame::{Changed, Port, error_chain};
use vmlan_keeper::{Keeper, KeeperError};

use self::flap::Flap;
use super::Config;
use super::area::{Area, Areas};
use super::busy_wait::BusyWait;
use super::fault::PortFault;
use super::handle::{MUCH, Shared};
use super::nic_host::Mode;
use super::port::VfioUserPort;
use super::session::{MemorySummary, Session};
use super::wire::{Frames, Replies};
use crate::Files;
use crate::budget::{Budget, Takes};
use crate::connection::{Connection, ConnectionError};
use crate::cpu_budget::{self, Moved};
use crate::held::keep::{FoundClient, Keeping};
use crate::journal::{ENOUGH, Journal};
use crate::memory::UNSHARED;
use crate::poll::{Wait, poll};
use crate::port_log::PortLog;
use crate::sys::SharedPages;
use crate::thread::{ACCEPT_PAUSE, AcceptPause, PENALTY, frames};
use crate::timer::monotonic;
use crate::waker::Waker;

/// Rounds of messages until the other things to wait for are looked at.
const ROUNDS: u32 = 16;

/// Register accesses served before everything else gets its turn: the timer, unmasking, the owner's
/// wishes. One message may exceed it.
const WORK: usize = 256;

/// Shortest time between two wake-ups of the workers: a guest brings its NIC up and down with one
/// register write.
const NOTIFY_PAUSE: Duration = Duration::from_millis(1);

/// Replies that are gathered before they are sent.
const GATHER: usize = 16 << 10;

/// How often a switch leaves a sign that it is at work: what was not answered is no older.
const SIGN: Duration = Duration::from_secs(1);

/// Time between two looks at a message that is not whole, where polling would not tell.
const HALF: Duration = Duration::from_millis(10);

pub struct Served {
    /// Dropped before the connection is shut down: when the client hears of that, nobody is at work
    /// in its memory any more.
    pub session: Session,
    pub connection: Connection<Frames>,
    /// What of its chip outlives us.
    pub state: Option<OwnedFd>,
    replies: Replies,
    /// Control messages whose effects the holder knows.
    pub controls: u64,
    /// Switches that it has outlived, and those that died of it, perhaps.
    pub adopted: u32,
    pub deaths: u32,
}

/// Notes what the next switch has to know of a message, before it is answered.
fn note((connection, session): (&Connection<Frames>, &Session), configured: bool, lost: bool) {
    connection.journal().into_iter().for_each(|to| session.note(to, configured, lost));
    connection.note_done();
}

pub struct Server {
    /// Who has the sockets too. Dropped after them.
    keeper: Keeper,
    pause: AcceptPause,
    /// Of messages that are no register accesses. It outlives connections.
    budget: Budget,
    takes: Takes,
    served: Option<Served>,
    /// What clients may map.
    areas: Areas,
    /// What of the chip outlives us, in a file for each client.
    state: Option<SharedPages>,
    /// The cable, as the NIC knows it.
    link: bool,
    /// The limit of interrupts, as the NIC knows it.
    irq_rate_max: u32,
    files: Files,
    /// The port was up when workers were last notified.
    up: bool,
    /// When that was.
    notified: Instant,
    /// They are to be notified of a change, but not yet.
    notify_later: bool,
    /// Messages were left over when it was others' turn.
    backlog: bool,
    busy_wait: BusyWait,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    changed: Changed,
    log: PortLog,
    fault: Option<PortFault>,
    /// This connection's unshared memory was logged.
    warned_of_unshared: bool,
    /// What log lines call the port.
    name: String,
    /// Who has all this for the next switch.
    keeping: Option<Keeping>,
    /// A client whose switch has died.
    found: Option<FoundClient>,
    /// The cable is out or in for a moment only.
    flap: Option<Flap>,
    /// When the client that we went on with has not killed us.
    proven: Option<Instant>,
}

impl Server {
    /// A server for clients that knock at the listener of `keeper`. They may map `areas`.
    #[allow(clippy::too_many_arguments, reason = "each is another thing")]
    pub fn new(
        config: &Config,
        shared: Arc<Shared>,
        keeper: Keeper,
        areas: Areas,
        state: Option<SharedPages>,
        waker: Arc<Waker>,
        changed: Changed,
        keeping: Option<Keeping>,
        found: Option<FoundClient>,
    ) -> Self {
        let now = Instant::now();
        Self {
            keeper,
            pause: AcceptPause::default(),
            budget: Budget::MESSAGES,
            takes: Takes::new(now),
            served: None,
            areas,
            state,
            link: config.link,
            irq_rate_max: config.irq_rate_max,
            files: config.memory,
            up: false,
            notified: now,
            notify_later: false,
            backlog: false,
            busy_wait: BusyWait::default(),
            shared,
            waker,
            changed,
            log: PortLog::new(config.port_name(), now),
            fault: None,
            warned_of_unshared: false,
            name: config.port_name(),
            keeping,
            found,
            flap: None,
            proven: None,
        }
    }

    /// Serves until the waker says stop.
    /// A client whose switch has died is gone on with first, which `tell` is told of.
    pub fn run(mut self, tell: &SyncSender<()>) {
        match self.found.take() {
            Some(found) => self.adopt(found),
            None => self.keep(),
        }
        let _ = tell.try_send(());
        let (waker, shared) = (Arc::clone(&self.waker), Arc::clone(&self.shared));
        let moved =
            || Moved { accesses: shared.accesses.get(), frames: frames(shared.port.counters()) };
        cpu_budget::run_registers(&waker, moved, |longest| self.turn(longest));
        if self.is_leaving() {
            return self.leave();
        }
        self.hang_up();
        if let Some(keeping) = &self.keeping {
            let _ = keeping.forget();
        }
    }

    fn port(&self) -> &VfioUserPort {
        &self.shared.port
    }

    /// Sleeps until something happens, and deals with it. False: the end.
    fn turn(&mut self, longest: Option<Duration>) -> bool {
        let now = Instant::now();
        self.pause.end_if_due(now);
        self.takes.look(now);
        self.meet_deadlines(now);
        let served = self.served.as_ref();
        let half = served.is_some_and(|s| s.connection.is_half());
        let reads = !half && self.takes.left(now).is_none();
        let listen = self.keeper.listener().filter(|_| !self.pause.is_on());
        let line = self.keeper.watch();
        let wait = [
            Some((self.waker.fd(), Wait::Read)),
            listen.map(|fd| (fd, Wait::Read)),
            line.as_ref().map(|fd| (fd.as_fd(), Wait::Read)),
            served.filter(|_| reads).map(|s| (s.connection.fd(), Wait::Read)),
            Some((self.port().host().timer_fd(), Wait::Read)),
            served.and_then(|s| s.session.unmask_fd()).map(|fd| (fd, Wait::Read)),
        ];
        match poll(wait, self.timeout(now).into_iter().chain(longest).min()) {
            Ok([woken, knocked, answered, said, due, unmasked]) => {
                if woken && !self.woken() {
                    return false;
                }
                if due {
                    self.port().host().take_timer();
                    self.port().nic().timer();
                    self.notify();
                }
                if let (true, Some(served)) = (unmasked, &self.served) {
                    served.session.unmasked();
                }
                if answered || self.keeper.is_due() {
                    self.look_after_keeper();
                }
                if knocked && !self.pause.is_on() {
                    self.open();
                }
                self.listen_to(said || half || self.backlog);
                if self.notify_later {
                    self.notify();
                }
                true
            }
            Err(e) => {
                // Only for lack of kernel memory.
                self.warn(&format!("poll failed: {e}"));
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
        let notify = self
            .notify_later
            .then(|| (self.notified + NOTIFY_PAUSE).saturating_duration_since(now));
        let message = self.served.as_ref().and_then(|s| s.connection.time_left(now));
        let pause = self.pause.left(now);
        let keeper = self.keeper.due(now);
        let half = self.served.as_ref().filter(|s| s.connection.is_half()).map(|_| HALF);
        let journal = self.served.as_ref().and_then(|s| s.connection.journal());
        let half = half.into_iter().chain(journal.map(|_| SIGN));
        let deadlines = [self.flap.as_ref().map(Flap::until), self.proven];
        let deadlines = deadlines.into_iter().flatten();
        let deadlines = deadlines.map(|at| at.saturating_duration_since(now));
        let others = pause.into_iter().chain(notify).chain(keeper).chain(half).chain(deadlines);
        let others = others.chain(self.takes.due(now));
        message.into_iter().chain(others).min()
    }

    fn look_after_keeper(&mut self) {
        if let Err(e) = self.keeper.look() {
            self.pause.begin_after(&e);
            self.warn(&error_chain(&e));
            // There is another one, perhaps.
            self.keep();
        }
    }

    /// The cable is plugged in again; a client has proven harmless.
    fn meet_deadlines(&mut self, now: Instant) {
        if let Some(journal) = self.served.as_ref().and_then(|s| s.connection.journal()) {
            journal.note_alive(monotonic());
        }
        self.go_on_with_flap(now);
        if self.proven.is_some_and(|at| at <= now) {
            self.proven = None;
            self.served.iter_mut().for_each(|served| served.deaths = 0);
            self.keep();
        }
    }

    /// A worker found a fault, the owner wants something, or it is time to go (false).
    fn woken(&mut self) -> bool {
        if self.waker.is_stopped() {
            return false;
        }
        let link = self.shared.link.load(Ordering::Acquire);
        if link != self.link {
            self.link = link;
            let out = self.flap.as_ref().is_some_and(Flap::is_out);
            self.port().nic().set_link(link && !out);
        }
        let rate_max = self.shared.irq_rate_max.load(Ordering::Acquire);
        if rate_max != self.irq_rate_max {
            self.irq_rate_max = rate_max;
            self.port().nic().set_irq_rate_max(rate_max);
        }
        let fault = self.shared.fault();
        if let (Some(fault), true) = (&fault, fault != self.fault) {
            self.log.warn(Instant::now(), &fault.text);
        }
        if fault.as_ref().is_some_and(|f| f.fatal) {
            self.port().counters().faults.add_shared(1);
            self.hang_up();
        }
        // Also if the client that did it has gone: hanging up first must not pay.
        if self.port().host().cost().take_broken() {
            self.pause.begin(PENALTY);
        }
        self.fault = fault;
        self.notify();
        true
    }

    fn open(&mut self) {
        let found = self.keeper.accept();
        if found.is_ok() {
            self.pause.found(frames(self.port().counters()));
        }
        match found {
            Ok(sock) if self.served.is_none() => match self.prepare() {
                Ok((area, journal, state)) => {
                    self.welcome(Connection::new(sock, journal), area, state);
                }
                Err(e) => {
                    self.pause.begin(ACCEPT_PAUSE);
                    self.warn(&format!("cannot make memory for registers: {e}"));
                }
            },
            // Closed at once: one client at a time.
            Ok(_) => self.warn(&"a second VMM was turned away while the first is connected"),
            Err(KeeperError::Closing | KeeperError::Io(Errno::AGAIN)) => {}
            Err(e) => {
                self.pause.begin_after(&e);
                self.warn(&format!("cannot accept: {}", error_chain(&e)));
            }
        }
    }

    /// What a client needs of its own.
    fn prepare(&self) -> io::Result<(Option<Area>, Option<Journal>, Option<OwnedFd>)> {
        let journal = self.keeping.as_ref().map(|_| Journal::new()).transpose()?;
        Ok((self.areas.renew()?, journal, self.renew_state()?))
    }

    /// Another file for what of the chip outlives us. The chip is to be renewed then.
    fn renew_state(&self) -> io::Result<Option<OwnedFd>> {
        self.state.as_ref().map(SharedPages::renew).transpose()
    }

    fn welcome(
        &mut self,
        connection: Connection<Frames>,
        area: Option<Area>,
        state: Option<OwnedFd>,
    ) {
        let held = self.keeping.is_some();
        let session = Session::new(Arc::clone(&self.shared.port), area, self.files, held);
        *self.shared.memory() = session.memory();
        let (replies, controls, adopted, deaths) = (Replies::default(), 0, 0, 0);
        connection.journal().into_iter().for_each(|to| session.note(to, true, false));
        session.begin();
        self.served =
            Some(Served { connection, session, state, replies, controls, adopted, deaths });
        // Before anything is answered.
        self.keep();
        self.fault = None;
        self.log.connected();
        self.warned_of_unshared = false;
        (self.changed)();
    }

    /// Serves the messages that are there, and those that come soon after. Their number is bounded:
    /// the waker, the timer and the listener need attention too.
    fn listen_to(&mut self, said: bool) {
        let now = Instant::now();
        let due =
            |s: &Served| said || s.connection.time_left(now).is_some_and(|left| left.is_zero());
        if !self.served.as_ref().is_some_and(due) {
            return;
        }
        let patience = self.busy_wait.patience();
        let mut last = now;
        let mut rounds = 0;
        while rounds < ROUNDS && !self.port().host().is_stuck() {
            let now = Instant::now();
            match self.serve(now) {
                Ok(true) => {
                    rounds += 1;
                    if rounds > 1 {
                        self.busy_wait.hit();
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
                        self.busy_wait.miss();
                    }
                    break;
                }
                Err(error) => return self.lost(&error),
            }
        }
    }

    /// Serves what one read brings, a bounded amount of work. False: nothing.
    fn serve(&mut self, now: Instant) -> Result<bool, ConnectionError> {
        let mut any = false;
        let mut work = 0;
        self.backlog = false;
        let (mut hang_up, mut drained, mut pause) = (false, false, Duration::ZERO);
        while !hang_up && !drained {
            let Some(Served { connection, session, replies, .. }) = &mut self.served else { break };
            let Some(message) = connection.read(now, &mut self.takes)? else { break };
            any = true;
            let before = replies.bytes().len();
            let had = session.hold_on(&message.header);
            let outcome = session.handle(message, replies);
            note((connection, session), outcome.configured, self.flap.is_some());
            if outcome.held {
                self.keep_next();
            }
            drop(had);
            let Some(Served { connection, session, replies, .. }) = &mut self.served else { break };
            if outcome.changed {
                self.budget.spend(now);
                *self.shared.memory() = session.memory();
            }
            if let Some(fd) = &outcome.fd {
                let (earlier, with) = replies.bytes().split_at_checked(before).unwrap_or_default();
                if !earlier.is_empty() {
                    connection.write(earlier, None, &self.waker)?;
                }
                connection.finish(with, Some(fd.as_fd()), &self.waker)?;
                replies.clear();
            } else if replies.bytes().len() > connection.journal().map_or(GATHER, |_| ENOUGH) {
                connection.finish(replies.bytes(), None, &self.waker)?;
                replies.clear();
            }
            hang_up = outcome.hang_up;
            pause += outcome.pause;
            work += outcome.work;
            drained = connection.is_drained() || work >= WORK;
            self.backlog = work >= WORK && !connection.is_drained();
            if let Some(refusal) = &outcome.refusal {
                self.log.warn(now, &error_chain(refusal));
            }
            if outcome.settled {
                self.warn_of_unshared();
            }
        }
        if let Some(Served { connection, replies, .. }) = &mut self.served {
            connection.finish(replies.bytes(), None, &self.waker)?;
            replies.clear();
        }
        if any {
            self.shared.accesses.add(work as u64);
            self.notify();
        }
        if hang_up {
            self.hang_up();
        }
        let pause = pause.max(self.budget.left(now).unwrap_or_default());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        Ok(any)
    }

    /// Notifies the workers if the port has come up or gone down.
    fn notify(&mut self) {
        let up = self.port().is_up();
        self.notify_later = up != self.up;
        if !self.notify_later {
            return;
        }
        let now = Instant::now();
        if now.saturating_duration_since(self.notified) >= NOTIFY_PAUSE {
            (self.up, self.notified, self.notify_later) = (up, now, false);
            if up {
                self.log.ready("a VMM");
            }
            (self.changed)();
        }
    }

    /// Warns if most of the guest's memory is out of reach, once for each client, when it sets up
    /// its interrupts.
    fn warn_of_unshared(&mut self) {
        let (shared, unshared) = self.shared.memory().bytes;
        let much = unshared >= MUCH && unshared > shared;
        if much && !self.warned_of_unshared && self.port().host().mode() != Mode::None {
            self.warned_of_unshared = true;
            self.warn(&UNSHARED);
        }
    }

    /// The connection failed, or ended.
    fn lost(&mut self, error: &ConnectionError) {
        if matches!(error, ConnectionError::Stopping) && self.is_leaving() {
            return;
        }
        if !error.is_goodbye() {
            self.port().counters().faults.add_shared(1);
            self.warn(&error_chain(error));
        } else {
            self.log.goodbye("the VMM");
        }
        self.hang_up();
        if error.has_parked() {
            self.pause.begin(PENALTY);
        }
    }

    /// Ends the connection: interrupts disconnected, memory unmapped, descriptors closed, the NIC
    /// reset.
    fn hang_up(&mut self) {
        let Some(served) = self.served.take() else { return };
        // The holder must not be the last that has the client's descriptors.
        self.keep();
        drop(served);
        (self.flap, self.proven) = (None, None);
        self.port().nic().set_link(self.link);
        *self.shared.memory() = MemorySummary::default();
        (self.up, self.notify_later, self.backlog) = (false, false, false);
        (self.changed)();
    }

    fn warn(&mut self, what: &dyn std::fmt::Display) {
        self.log.warn(Instant::now(), what);
    }
}
