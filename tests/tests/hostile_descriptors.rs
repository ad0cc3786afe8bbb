//! Peers whose descriptors park whoever looks at them, closes them, or drops the socket in which
//! they are queued. The switch must live, do what its operator says, and die when it is told to.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;
use vmlan_harness::{Family, SilentFile, kill9, lingering_socket};
use vmlan_tests::vmlan_program;
use vmlan_transport::sys::send_with_fds;

/// Long for a loaded machine. What hangs, hangs for longer.
const LONG: Duration = Duration::from_secs(60);

/// For a port that may answer or not.
const SHORT: Duration = Duration::from_secs(2);

/// vhost-user's GET_FEATURES. To vfio-user it is the beginning of some message.
const HELLO: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// Held by whoever starts a process, and by [`crowd`] for as long as this one has lingering
/// sockets: a child that inherits one may be the last to close it, and lingers.
fn forks() -> MutexGuard<'static, ()> {
    static FORKS: Mutex<()> = Mutex::new(());
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes `near`. `None`: nobody else had it, and it was to linger. Its `far` end stops that.
fn close(near: TcpStream, far: TcpStream) -> Option<TcpStream> {
    let closing = std::thread::spawn(move || drop(near));
    let end = Instant::now() + SHORT / 4;
    while !closing.is_finished() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let far = closing.is_finished().then_some(far);
    closing.join().unwrap();
    far
}

/// A switch, killed on drop.
struct Switch {
    dir: TempDir,
    process: Child,
}

impl Switch {
    fn start(ports: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = Self::spawn(&dir, ports);
        Self { dir, process }
    }

    fn spawn(dir: &TempDir, ports: &[&str]) -> Child {
        let place = dir.path().to_str().unwrap();
        let mut command = Command::new(vmlan_program());
        command.args(["switch", "--api", &format!("{place}/api.sock")]);
        command.args(ports.iter().map(|port| port.replace('@', place)));
        let log = File::options().create(true).append(true).open(dir.path().join("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        let mut process = {
            let _one = forks();
            command.spawn().unwrap()
        };
        // Whatever a predecessor left is replaced: its own API listens, and nobody else's.
        let end = Instant::now() + LONG;
        while UnixStream::connect(dir.path().join("api.sock")).is_err() {
            let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
            assert!(process.try_wait().unwrap().is_none(), "it ended: {}", log());
            assert!(Instant::now() < end, "it does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Another command. It must end while whoever is silent still is.
    fn command(&self, words: &[&str]) -> Output {
        let api = self.path("api.sock");
        let seconds = LONG.as_secs().to_string();
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &seconds]).arg(vmlan_program()).args(words);
        command.arg("--api").arg(api).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = {
            let _one = forks();
            command.spawn().unwrap()
        };
        process.wait_with_output().unwrap()
    }

    /// One that succeeds.
    fn ask(&self, words: &[&str]) {
        let out = self.command(words);
        let log = std::fs::read_to_string(self.path("log")).unwrap();
        assert!(out.status.success(), "vmlan {words:?}: {out:?}\n{log}");
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.process.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// It ends, though somebody is silent.
    fn ends(&mut self) {
        let end = Instant::now() + LONG;
        while self.process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Somebody who is let in, whatever pause the port makes, and answered.
    fn answers(&self, name: &str) {
        self.answered_within(name, LONG).expect("an honest front end is answered");
    }

    fn answered_within(&self, name: &str, time: Duration) -> std::io::Result<()> {
        let mut peer = UnixStream::connect(self.path(name))?;
        peer.set_read_timeout(Some(time))?;
        peer.write_all(&HELLO)?;
        peer.read_exact(&mut [0; 20])
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn send(peer: &UnixStream, fd: BorrowedFd<'_>) {
    send_with_fds(peer.as_fd(), &HELLO, &[fd.as_raw_fd()]).unwrap();
}

/// Sends a silent file to the port `name`, until `calls` wait for its daemon. A keeper that is
/// starved of CPU time is replaced before it looks, and its peer disconnected: it comes again.
fn attack(switch: &Switch, name: &str, silent: &SilentFile, calls: usize) -> UnixStream {
    for _ in 0..100 {
        let mut peer = UnixStream::connect(switch.path(name)).unwrap();
        send(&peer, silent.fd());
        peer.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let connected = |peer: &mut UnixStream| match peer.read(&mut [0]) {
            Ok(n) => n > 0,
            Err(e) => e.kind() == ErrorKind::WouldBlock,
        };
        while silent.parked() < calls && connected(&mut peer) {}
        if silent.parked() >= calls {
            return peer;
        }
    }
    panic!("{} calls wait for the daemon, not {calls}", silent.parked());
}

/// A descriptor that comes with a message, to either kind of port: the others go on, the port can
/// be removed, and the switch ends when it is asked to.
#[test]
fn a_silent_file_on_receipt() {
    let Some(silent) = SilentFile::new() else { return };
    let ports = ["a=vhost-user:@/a", "b=vfio-user:@/b", "c=vhost-user:@/c"];
    let mut switch = Switch::start(&ports);
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        let _peer = attack(&switch, name, &silent, n + 1);
        switch.answers("c");
        switch.ask(&["stats"]);
        switch.ask(&["port", "del", name]);
    }
    // The same path again, and again somebody in the way of its end.
    switch.ask(&["port", "add", &format!("a=vhost-user:{}", switch.path("a").display())]);
    let _peer = attack(&switch, "a", &silent, 3);
    switch.signal(rustix::process::Signal::TERM);
    switch.ends();
    assert!(!switch.path("a").exists(), "it cleaned up");
}

/// Killed while peers have parked whatever they could, and started again at the same places.
#[test]
fn kill_9_and_a_new_start() {
    let Some(silent) = SilentFile::new() else { return };
    let ports = ["a=vhost-user:@/a", "b=vfio-user:@/b"];
    let mut switch = Switch::start(&ports);
    let peers = [("a", 1), ("b", 2)].map(|(name, calls)| attack(&switch, name, &silent, calls));
    switch.signal(rustix::process::Signal::KILL);
    switch.ends();
    switch.process = Switch::spawn(&switch.dir, &ports);
    switch.answers("a");
    drop(peers);
}

/// All at once, on twenty ports.
#[test]
fn twenty_peers() {
    let Some(silent) = SilentFile::new() else { return };
    let ports: Vec<_> = (0..20).map(|n| format!("p{n}=vhost-user:@/p{n}")).collect();
    let ports: Vec<_> = ports.iter().map(String::as_str).chain(["c=vhost-user:@/c"]).collect();
    let mut switch = Switch::start(&ports);
    let peers: Vec<_> =
        (0..20).map(|n| attack(&switch, &format!("p{n}"), &silent, n + 1)).collect();
    switch.answers("c");
    switch.ask(&["stats"]);
    switch.ask(&["port", "del", "p7"]);
    switch.signal(rustix::process::Signal::TERM);
    switch.ends();
    drop(peers);
}

/// Ports of each kind, and who is served by none of them.
const ALL: [&str; 4] = ["a=vhost-user:@/a", "b=vfio-user:@/b", "s=stream:@/s", "c=vhost-user:@/c"];

/// A peer that waits to be accepted. `None`: the backlog is full.
fn queued(switch: &Switch, name: &str) -> Option<UnixStream> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap();
    let place = SocketAddrUnix::new(switch.path(name)).unwrap();
    match rustix::net::connect(&socket, &place) {
        Err(rustix::io::Errno::AGAIN) => None,
        done => done.map(|()| Some(socket.into())).unwrap(),
    }
}

/// Fills the backlog of the port `name`. Each peer has a descriptor in its socket: a silent file or
/// a lingering socket. Whoever is accepted parks the keeper.
fn crowd(switch: &Switch, name: &str, silent: &SilentFile) -> Vec<(UnixStream, Option<TcpStream>)> {
    let _one = forks();
    let (end, mut all) = (Instant::now() + LONG, Vec::new());
    while Instant::now() < end {
        let Some(peer) = queued(switch, name) else { return all };
        // For longer than we wait: whoever closes one is found out.
        let lingering = (all.len() % 2 == 1).then(|| lingering_socket(LONG * 10).unwrap());
        let fd = lingering.as_ref().map_or(silent.fd(), |(near, _)| near.as_fd());
        if let Err(e) = send_with_fds(peer.as_fd(), &HELLO, &[fd.as_raw_fd()]) {
            // Linux 6.16: refused for all who connect to a stream port.
            let refused = e.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error());
            let turned_away =
                [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&e.kind());
            assert!(turned_away || refused && name == "s", "{name}: {e}");
        }
        // The far end stays.
        all.push((peer, lingering.and_then(|(near, far)| close(near, far))));
    }
    panic!("{name}: the backlog is not full after {} peers", all.len());
}

/// The port goes with its backlog.
#[test]
fn a_full_backlog_and_port_del() {
    let Some(silent) = SilentFile::new() else { return };
    let switch = Switch::start(&ALL);
    for name in ["a", "b", "s"] {
        let peers = crowd(&switch, name, &silent);
        switch.ask(&["port", "del", name]);
        assert!(!switch.path(name).exists(), "{name}");
        switch.answers("c");
        drop(peers);
    }
}

/// So does the switch.
#[test]
fn a_full_backlog_and_sigterm() {
    let Some(silent) = SilentFile::new() else { return };
    let mut switch = Switch::start(&ALL);
    let peers = ["a", "b", "s"].map(|name| crowd(&switch, name, &silent));
    switch.signal(rustix::process::Signal::TERM);
    switch.ends();
    assert!(!switch.path("a").exists() && !switch.path("s").exists(), "it cleaned up");
    drop(peers);
}

/// And another one takes its places, though nobody can ask who listens there.
#[test]
fn a_full_backlog_kill_9_and_a_new_start() {
    let Some(silent) = SilentFile::new() else { return };
    let ports = ["a=vhost-user:@/a", "b=vfio-user:@/b", "c=vhost-user:@/c"];
    let mut switch = Switch::start(&ports);
    let peers = ["a", "b"].map(|name| {
        let parked = attack(&switch, name, &silent, silent.parked() + 1);
        (parked, crowd(&switch, name, &silent))
    });
    switch.signal(rustix::process::Signal::KILL);
    switch.ends();
    switch.process = Switch::spawn(&switch.dir, &ports);
    switch.answers("a");
    switch.answers("c");
    drop(peers);
}

/// Nobody is left to fork keepers: the ports that there are go on, and a new one is refused.
#[test]
fn both_spawners_killed() {
    let mut switch = Switch::start(&["a=vhost-user:@/a", "b=vfio-user:@/b", "c=vhost-user:@/c"]);
    let family = Family::of(switch.process.id()).unwrap();
    assert_eq!((family.named("spawner").len(), family.named("keeper").len()), (2, 3));
    kill9(&family.named("spawner"));
    for _ in 0..2 {
        let path = switch.path("d");
        let out = switch.command(&["port", "add", &format!("d=vhost-user:{}", path.display())]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("port d: ") && said.contains("restart the switch"), "{said}");
        assert!(!path.exists(), "nothing of it stays");
        switch.answers("a");
    }
    switch.ask(&["port", "del", "b"]);
    switch.answers("c");
    // A keeper that ends now has no successor, and that is its own port's trouble.
    kill9(&family.named("keeper")[..1]);
    switch.ask(&["stats"]);
    let end = Instant::now() + LONG;
    while !["a", "c"].iter().any(|name| switch.answered_within(name, SHORT).is_ok()) {
        assert!(Instant::now() < end, "one port has its keeper still");
    }
    switch.signal(rustix::process::Signal::TERM);
    switch.ends();
    assert!(!switch.path("a").exists() && !switch.path("c").exists(), "it cleaned up");
}
