//! The thread that has a gateway started, hears what it says, and has the next one started when it
//! ends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use vmlan_config::address::PortName;
use vmlan_config::gateway::{FromGateway, Lease, MAX_MESSAGE, Setup, ToGateway};

use vmlan_frame::Changed;

/// First and longest pause before the next gateway is started.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A gateway that lived this long had no fault from its start.
const LIVED: Duration = Duration::from_secs(10);
/// Messages that wait for the control thread, then the gateway waits; and for one that begins.
const WAITING: usize = 1024;
/// Leases told at once: far less than a message carries, however long their texts.
pub(super) const LEASES: usize = 256;

struct State {
    setup: Setup,
    leases: Vec<Lease>,
    line: Option<Arc<OwnedFd>>,
    /// What the gateway at `line` is told when it has heard how it begins.
    late: Option<Vec<ToGateway>>,
    news: VecDeque<FromGateway>,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Messages were taken, or it is time to end.
    changed: Condvar,
}

impl Shared {
    fn new(setup: Setup, leases: Vec<Lease>) -> Self {
        let news = VecDeque::new();
        let state = State { setup, leases, line: None, late: None, news, closing: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gateway, as far as it can be talked to.
pub(super) struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Has gateways started that do what `setup` says, and know `leases`. `news` is called when one
    /// has said something.
    pub(super) fn start(
        name: &PortName,
        setup: Setup,
        leases: Vec<Lease>,
        news: Changed,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(setup, leases));
        let (own, label) = (shared.clone(), format!("port {name}"));
        let body = move || {
            vmlan_sandbox::enter(vmlan_sandbox::Thread::Port);
            run(&own, &label, &news);
        };
        let thread = std::thread::Builder::new().name(format!("nat {name}")).spawn(body)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What was said since the last call.
    pub(super) fn news(&self) -> Vec<FromGateway> {
        let news = self.shared.lock().news.drain(..).collect();
        self.shared.changed.notify_all();
        news
    }

    /// Tells the gateway that is there. One that comes later is told all in its setup; one that is
    /// being told that hears it afterwards.
    pub(super) fn tell(&self, message: &ToGateway) {
        let mut state = self.shared.lock();
        let hangs = match &mut state.late {
            Some(late) if late.len() < WAITING => return late.push(message.clone()),
            late => late.is_some(),
        };
        let line = state.line.clone();
        drop(state);
        if let Some(line) = line
            && (hangs || send(&line, message).is_err())
        {
            // It does not read: the next one will.
            let _ = rustix::net::shutdown(&*line, Shutdown::Both);
        }
    }

    /// The next gateway begins with these.
    pub(super) fn keep(&self, leases: Vec<Lease>) {
        self.shared.lock().leases = leases;
    }

    /// This one goes on like this, and the next one begins so.
    pub(super) fn set(&self, setup: &Setup) {
        self.shared.lock().setup = setup.clone();
        self.tell(&ToGateway::Setup(Box::new(setup.clone())));
    }

    /// Ends the gateway, and the thread.
    pub(super) fn close(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Begins to do so.
    pub(super) fn stop(&self) {
        let mut state = self.shared.lock();
        state.closing = true;
        if let Some(line) = &state.line {
            let _ = rustix::net::shutdown(&**line, Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

fn send(line: &OwnedFd, message: &ToGateway) -> Result<(), Errno> {
    send_with(line, message, SendFlags::DONTWAIT)
}

fn send_with(line: &OwnedFd, message: &ToGateway, flags: SendFlags) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    rustix::net::send(line.as_fd(), &bytes, SendFlags::NOSIGNAL | flags).map(drop)
}

/// The thread.
fn run(shared: &Shared, label: &str, news: &Changed) {
    let mut pause = RETRY.0;
    loop {
        let began = Instant::now();
        let why = match begin(shared, vmlan_keeper::start_program) {
            Ok(None) => return,
            Ok(Some(line)) => hear(shared, &line, news),
            Err(e) => format!("cannot be started: {e}"),
        };
        let mut state = shared.lock();
        (state.line, state.late) = (None, None);
        if state.closing {
            return;
        }
        drop(state);
        if began.elapsed() >= LIVED {
            pause = RETRY.0;
        }
        log::warn!("{label}: the gateway {why}; the next one is started in {pause:?}");
        let state = shared.lock();
        let wait = shared.changed.wait_timeout_while(state, pause, |state| !state.closing);
        let closing = wait.map_or(true, |(state, _)| state.closing);
        if closing {
            return;
        }
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Starts a gateway and tells it what to do. None: it is time to end.
fn begin(
    shared: &Shared,
    start: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<Option<Arc<OwnedFd>>> {
    let line = Arc::new(start()?);
    // The table of leases may be long.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&*line, 2 * MAX_MESSAGE);
    let mut state = shared.lock();
    if state.closing {
        return Ok(None);
    }
    state.setup.now = super::now();
    let setup = ToGateway::Setup(Box::new(state.setup.clone()));
    let leases = state.leases.clone();
    (state.line, state.late) = (Some(line.clone()), Some(Vec::new()));
    drop(state);
    // First, so that the gateway knows all of them before it begins. It waits until the gateway has
    // read the others, or the line is shut down.
    for some in leases.chunks(LEASES) {
        send_with(&line, &ToGateway::Leases(some.to_vec()), SendFlags::empty())?;
    }
    send_with(&line, &setup, SendFlags::empty())?;
    // Not before: what it was told later would be undone by what it was to begin with.
    loop {
        let mut state = shared.lock();
        let late = state.late.replace(Vec::new()).unwrap_or_default();
        if late.is_empty() {
            state.late = None;
            return Ok(Some(line));
        }
        drop(state);
        for message in late {
            send_with(&line, &message, SendFlags::empty())?;
        }
    }
}

/// Hears a gateway until it ends; why it did.
fn hear(shared: &Shared, line: &OwnedFd, news: &Changed) -> String {
    let mut room = vec![0; MAX_MESSAGE];
    loop {
        let got = rustix::io::retry_on_intr(|| {
            rustix::net::recv(line.as_fd(), &mut room[..], RecvFlags::empty())
        });
        let len = match got {
            Ok((_, 0)) | Err(Errno::CONNRESET | Errno::PIPE) => return "has ended".to_owned(),
            Ok((_, len)) => len,
            Err(e) => return format!("is not heard: {e}"),
        };
        let Some(Ok(said)) = room.get(..len).map(serde_json::from_slice) else {
            return "says what cannot be understood".to_owned();
        };
        let state = shared.lock();
        let full = |state: &mut State| state.news.len() >= WAITING && !state.closing;
        let Ok(mut state) = shared.changed.wait_while(state, full) else { return String::new() };
        state.news.push_back(said);
        drop(state);
        news();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The switch is not to be held up by a gateway that is slow to begin, nor is what it says
    /// meanwhile to be undone.
    #[test]
    fn what_changes_while_a_gateway_is_told_how_it_begins_is_told_afterwards() {
        let kind = rustix::net::SocketType::SEQPACKET;
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap();
        let lease = |n: u32| Lease {
            ip: std::net::Ipv4Addr::from_bits(0x0a4d_0000 + n).into(),
            mac: "52:54:00:00:00:01".into(),
            port: "vm1".into(),
            hostname: Some("h".repeat(63)),
            expires: 1 << 40,
        };
        // Far more than the line carries before somebody reads.
        let leases: Vec<_> = (2..16_000).map(lease).collect();
        let shared = Arc::new(Shared::new(Setup::default(), leases.clone()));
        let link = Link { shared: shared.clone(), thread: None };
        let told = std::thread::scope(|scope| {
            let begins = scope.spawn(|| begin(&shared, || Ok(ours)).unwrap());
            while shared.lock().line.is_none() {
                std::thread::yield_now();
            }
            let newer = Setup { mtu: 1400, ..Setup::default() };
            link.set(&newer);
            let gone = leases.last().unwrap().ip;
            link.tell(&ToGateway::Forget(gone));
            let (mut has, mut setup) = (Vec::new(), None);
            let mut room = vec![0; MAX_MESSAGE];
            while setup.as_ref() != Some(&newer) || has.iter().any(|l: &Lease| l.ip == gone) {
                let (_, len) =
                    rustix::net::recv(&theirs, &mut room[..], RecvFlags::empty()).unwrap();
                match serde_json::from_slice(&room[..len]).unwrap() {
                    ToGateway::Leases(some) => has.extend(some),
                    ToGateway::Forget(ip) => has.retain(|lease| lease.ip != ip),
                    ToGateway::Setup(said) => setup = Some(*said),
                    other @ ToGateway::Whose { .. } => panic!("{other:?}"),
                }
            }
            begins.join().unwrap();
            has.len()
        });
        assert_eq!(told, leases.len() - 1);
        assert!(shared.lock().late.is_none());
        link.tell(&ToGateway::Forget([10, 77, 0, 9].into()));
        let mut room = vec![0; MAX_MESSAGE];
        let (_, len) = rustix::net::recv(&theirs, &mut room[..], RecvFlags::DONTWAIT).unwrap();
        let said: ToGateway = serde_json::from_slice(&room[..len]).unwrap();
        assert_eq!(said, ToGateway::Forget([10, 77, 0, 9].into()), "at once");
    }
}
