//! Peers whose descriptors park whoever looks at them, closes them, or drops the socket in which
//! they are queued. The switch must live, do what its operator says, and die when it is told to.

#[path = "../../control/keeper/tests/silent/mod.rs"]
mod silent;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use silent::SilentFile;
use tempfile::TempDir;
use vmlan_tests::vmlan_program;
use vmlan_transport::sys::send_with_fds;

/// Long for a loaded machine. What hangs, hangs for longer.
const LONG: Duration = Duration::from_secs(60);

/// vhost-user's GET_FEATURES. To vfio-user it is the beginning of some message.
const HELLO: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

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
        let mut process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
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
    fn ask(&self, words: &[&str]) {
        let api = self.path("api.sock");
        let seconds = LONG.as_secs().to_string();
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &seconds]).arg(vmlan_program()).args(words);
        let out = command.arg("--api").arg(api).output().unwrap();
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
        let mut peer = UnixStream::connect(self.path(name)).unwrap();
        peer.set_read_timeout(Some(LONG)).unwrap();
        peer.write_all(&HELLO).unwrap();
        peer.read_exact(&mut [0; 20]).expect("an honest front end is answered");
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
            Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
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
