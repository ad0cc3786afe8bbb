//! The thread of one port: takes a connection, serves it, takes the next.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vmlan_frame::Port;

use super::port::{Trouble, VhostUserPort};
use super::session::{Refusal, Session};
use super::wire::{Frames, Message};
use super::{Config, Error};
use crate::complain::{Complaints, chain, is_due};
use crate::memory::UNSHARED;
use crate::socket::{Listener, dial};
use crate::stream::{Error as StreamError, Stream};
use crate::sys::{self, Wait};
use crate::thread::{ACCEPT_PAUSE, PENALTY, PortThread};
use crate::waker::Waker;

/// First and longest pause between two attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
type Changed = Arc<dyn Fn() + Send + Sync>;
type Details = Vec<(&'static str, String)>;

/// A port that a VM plugs into. Dropping it removes the port's socket and ends its thread.
pub struct VhostUser {
    port: Arc<VhostUserPort>,
    thread: PortThread,
    /// `None`: front ends listen.
    listener: Option<Arc<Listener>>,
    details: Arc<Mutex<Details>>,
    config: Config,
}

impl VhostUser {
    pub(super) fn start(config: Config, changed: Changed) -> Result<Self, Error> {
        let waker = Arc::new(Waker::new().map_err(Error::Thread)?);
        let port = VhostUserPort::new(Arc::clone(&waker)).map_err(Error::Thread)?;
        port.limit().set(config.irq_rate_max);
        let port = Arc::new(port);
        let details = Arc::new(Mutex::new(Details::new()));
        let listener = match config.connect {
            true => None,
            false => Some(Arc::new(Listener::new(config.place())?)),
        };
        let door = listener
            .clone()
            .map_or_else(|| Door::Connect(config.path.clone(), RETRY.0), Door::Listen);
        let server = Server {
            door,
            pause: None,
            served: None,
            port: Arc::clone(&port),
            waker: Arc::clone(&waker),
            queues: config.queues,
            changed,
            details: Arc::clone(&details),
            complaints: Complaints::new(config.who(), Instant::now()),
            trouble: None,
            unshared: false,
            goodbye: None,
            welcome: None,
            welcomed: false,
        };
        let thread = PortThread::spawn("vhost-user", waker, move || server.run());
        Ok(Self { port, thread: thread.map_err(Error::Thread)?, listener, details, config })
    }

    /// The port with its own type.
    #[must_use]
    pub fn vhost_port(&self) -> Arc<VhostUserPort> {
        Arc::clone(&self.port)
    }

    /// At most so many interrupts a second, whatever the guest asks for; 0: as the guest asks. At once.
    pub fn set_irq_rate_max(&self, rate_max: u32) {
        self.port.limit().set(rate_max);
    }

    /// For `port list`: what the port is and how its connection stands.
    #[must_use]
    pub fn details(&self) -> Details {
        let role = if self.config.connect { "connect" } else { "listen" };
        let mut list = vec![
            ("kind", "vhost-user".to_owned()),
            ("path", self.config.path.display().to_string()),
            ("role", role.to_owned()),
        ];
        list.extend(self.config.mac.map(|mac| ("mac", mac.to_string())));
        list.extend(self.details.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        list
    }

    /// Hangs up, ends the thread, removes the socket file. Also done on drop.
    pub fn close(&mut self) {
        self.thread.close(&self.config.who());
        if let Some(listener) = &self.listener {
            listener.close();
        }
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.close();
    }
}

/// How front ends are found.
enum Door {
    Listen(Arc<Listener>),
    /// The path, and how long to wait after the next failure.
    Connect(PathBuf, Duration),
}

struct Server {
    door: Door,
    /// No new connection is looked for before this time.
    pause: Option<Instant>,
    served: Option<(Stream<Frames>, Session)>,
    port: Arc<VhostUserPort>,
    waker: Arc<Waker>,
    queues: u16,
    changed: Changed,
    details: Arc<Mutex<Details>>,
    complaints: Complaints,
    trouble: Option<Trouble>,
    /// The latest front end put rings into memory that it does not share.
    unshared: bool,
    /// When the end of a connection was last logged.
    goodbye: Option<Instant>,
    /// When a ready driver was last logged.
    welcome: Option<Instant>,
    /// This connection's was: a guest can stop and start its rings as often as it likes.
    welcomed: bool,
}

impl Server {
    fn run(mut self) {
        self.note();
        while self.turn() {}
        self.hang_up();
    }

    /// Sleeps until something happens, and deals with it. False: the end.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        if self.pause.is_some_and(|until| until <= now) {
            self.pause = None;
        }
        let listen = match &self.door {
            Door::Listen(listener) if self.pause.is_none() => Some((listener.fd(), Wait::Read)),
            _ => None,
        };
        let served = self.served.as_ref().map(|(stream, _)| (stream.fd(), Wait::Read));
        let limit = Some((self.port.limit().fd(), Wait::Read));
        let wait = [Some((self.waker.fd(), Wait::Read)), limit, listen, served];
        match sys::poll(wait, self.timeout(now)) {
            Ok([woken, due, knocked, said]) => {
                if woken && !self.woken() {
                    return false;
                }
                if due {
                    self.deliver_due();
                }
                self.open(knocked);
                self.listen_to(said);
                self.punish();
                true
            }
            Err(e) => {
                // Only for lack of kernel memory.
                self.complain(&format!("poll failed: {e}"));
                std::thread::sleep(RETRY.0);
                true
            }
        }
    }

    /// `None`: nothing but events can matter.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let message = self.served.as_ref().and_then(|(stream, _)| stream.time_left(now));
        let connects = matches!(self.door, Door::Connect(..)) && self.served.is_none();
        let pause = match self.pause {
            Some(until) if connects || matches!(self.door, Door::Listen(_)) => {
                Some(until.saturating_duration_since(now))
            }
            None if connects => Some(Duration::ZERO),
            _ => None,
        };
        message.into_iter().chain(pause).min()
    }

    /// Interrupts that were held back may be due.
    fn deliver_due(&self) {
        match &self.served {
            Some((_, session)) => session.deliver_due(),
            None => drop(self.port.limit().due()),
        }
    }

    /// A worker found trouble, or it is time to go (false).
    fn woken(&mut self) -> bool {
        if self.waker.is_stopped() {
            return false;
        }
        let trouble = self.port.both().trouble();
        if let (Some(trouble), true) = (trouble, trouble != self.trouble) {
            self.complain(&trouble);
            if let Some((_, session)) = &self.served {
                session.raise_err();
            }
            // Memory that is gone cannot be served; an honest front end connects again with new memory.
            if trouble == Trouble::Truncated {
                self.port.counters().faults.add_shared(1);
                self.hang_up();
            }
        }
        self.trouble = trouble;
        self.note();
        (self.changed)();
        true
    }

    /// An interrupt broke: whoever found it, and whether or not who did it has hung up first.
    fn punish(&mut self) {
        if self.port.account().take_broken() {
            if self.trouble != Some(Trouble::StuckCall) {
                self.complain(&Trouble::StuckCall);
            }
            self.port.counters().faults.add_shared(1);
            self.hang_up();
            self.pause = Some(Instant::now() + PENALTY);
        }
    }

    fn open(&mut self, knocked: bool) {
        let found = match &self.door {
            Door::Listen(listener) if knocked => listener.accept(),
            Door::Connect(path, _) if self.served.is_none() && self.pause.is_none() => dial(path),
            _ => return,
        };
        match found {
            Ok(sock) if self.served.is_none() => {
                let session = Session::new(Arc::clone(&self.port), self.queues);
                self.served = Some((Stream::new(sock), session));
                self.trouble = None;
                self.welcomed = false;
                self.note();
            }
            // Closed at once: one front end at a time.
            Ok(_) => {
                self.complain(&"a second front end was turned away while the first is connected")
            }
            Err(e) => self.not_found(&e),
        }
    }

    fn not_found(&mut self, error: &io::Error) {
        let pause = match &mut self.door {
            Door::Listen(_) if error.kind() == io::ErrorKind::WouldBlock => return,
            Door::Listen(_) => ACCEPT_PAUSE,
            Door::Connect(_, wait) => back_off(wait),
        };
        self.pause = Some(Instant::now() + pause);
        if let Door::Listen(_) = self.door {
            self.complain(&format!("cannot accept: {error}"));
        }
    }

    /// Serves the messages that are there, a bounded number: the waker and the listener want attention too.
    fn listen_to(&mut self, said: bool) {
        let now = Instant::now();
        let due = |(stream, _): &(Stream<Frames>, Session)| {
            said || stream.time_left(now).is_some_and(|left| left.is_zero())
        };
        if !self.served.as_ref().is_some_and(due) {
            return;
        }
        for _ in 0..16 {
            let Some((stream, _)) = &mut self.served else { return };
            match stream.read(now) {
                Ok(None) => break,
                Ok(Some(message)) => {
                    let message = message.into();
                    self.serve(message);
                    if self.port.account().is_broken() {
                        break;
                    }
                }
                Err(e) => return self.lost(&e),
            }
        }
        // Once for all of them: it wakes every worker of the switch.
        (self.changed)();
    }

    fn serve(&mut self, message: Message) {
        let Some((_, session)) = &mut self.served else { return };
        let number = message.header.number;
        let outcome = session.handle(message);
        self.unshared |= outcome.refusal.as_ref().is_some_and(Refusal::is_unshared);
        self.unshared &= !self.port.is_up();
        // Before the reply: whoever has it may look.
        self.note();
        self.say_welcome();
        let Some((stream, _)) = &self.served else { return };
        let sent = outcome.reply.map_or(Ok(()), |reply| {
            let fd = reply.fd.as_ref().map(AsFd::as_fd);
            stream.write(&reply.encode(number), fd, &self.waker)
        });
        if let Door::Connect(_, wait) = &mut self.door {
            *wait = RETRY.0;
        }
        if let Some(refusal) = &outcome.refusal {
            self.complain(&chain(refusal));
        }
        match sent {
            Err(e) => self.lost(&e),
            Ok(()) if outcome.hang_up => self.hang_up(),
            Ok(()) => {}
        }
    }

    /// The connection failed, or ended.
    fn lost(&mut self, error: &StreamError) {
        if matches!(error, StreamError::Closed) {
            self.goodbye(error);
        } else if !error.is_goodbye() {
            self.port.counters().faults.add_shared(1);
            self.complain(&chain(error));
        }
        self.hang_up();
    }

    /// One line a second at most: a front end can come and go 40,000 times in it.
    fn goodbye(&mut self, error: &StreamError) {
        if is_due(&mut self.goodbye) {
            log::info!("{}: {error}", self.complaints.who());
        }
    }

    /// One line for each connection, when the guest's driver is ready for the first time.
    fn say_welcome(&mut self) {
        let ready = !self.welcomed && self.port.is_up();
        if ready && is_due(&mut self.welcome) {
            self.welcomed = true;
            log::info!(
                "{}: a front end has connected and its driver is ready",
                self.complaints.who()
            );
        }
    }

    /// Ends the connection: rings stopped, memory unmapped, descriptors closed, in this order.
    fn hang_up(&mut self) {
        if self.served.take().is_none() {
            return;
        }
        if let Door::Connect(_, wait) = &mut self.door {
            self.pause = Some(Instant::now() + back_off(wait));
        }
        self.note();
        (self.changed)();
    }

    fn complain(&mut self, what: &dyn std::fmt::Display) {
        self.complaints.say(Instant::now(), what);
    }

    /// Writes down how things stand, for [`VhostUser::details`].
    fn note(&self) {
        let mut list = Details::new();
        let state = match (&self.served, self.trouble) {
            (None, _) if self.unshared => {
                format!("waiting for a front end; the last one failed: {UNSHARED}")
            }
            (None, _) => "waiting for a front end".to_owned(),
            (Some(_), _) if self.unshared => format!("stopped: {UNSHARED}"),
            (Some(_), Some(trouble)) => format!("stopped: {trouble}"),
            (Some(_), None) if self.port.is_up() => "up".to_owned(),
            (Some(_), None) => "connected".to_owned(),
        };
        list.push(("state", state));
        if let Some((_, session)) = &self.served {
            list.extend(session.details());
        }
        *self.details.lock().unwrap_or_else(PoisonError::into_inner) = list;
    }
}

/// The pause to make now; the next is twice as long, up to a bound.
fn back_off(wait: &mut Duration) -> Duration {
    let now = *wait;
    *wait = (now * 2).min(RETRY.1);
    now
}
