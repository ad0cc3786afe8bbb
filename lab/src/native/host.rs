//! The host as a peer: this program in a network of its own, behind a `tap:` port, with plain
//! sockets.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::sys;
use vmlan_config::human_text::to_f64;
use vmlan_harness::Pin;

/// The switch's port to it.
pub(crate) const PORT: &str = "host=tap:vmlanbench0";
const INTERFACE: &str = "vmlanbench0";
/// Two that are bridged, each in a VLAN of its own at the switch.
pub(crate) const TWO_PORTS: [&str; 2] = ["t0=tap:vmlanbench0,vlan=1", "t1=tap:vmlanbench1,vlan=2"];
const INTERFACES: [&str; 2] = [INTERFACE, "vmlanbench1"];
const BRIDGE: &str = "vmlanbridge0";
const TUN: &str = "/dev/net/tun";
/// Where it is.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Ports that `vmlan stack` talks to unless told otherwise.
const ECHO: u16 = 7007;
const SINK: u16 = 7009;
/// Longest wait in a system call, so that the end is seen.
const NAP: Duration = Duration::from_millis(50);

/// Puts this program into a network of its own: nothing of the machine's is touched. Before it has
/// a second thread.
///
/// # Errors
/// Why that cannot be, with the fix.
pub(crate) fn enter() -> Result<(), String> {
    has_taps(TUN)?;
    let user = rustix::process::geteuid();
    let fix = "run it as root, or allow user namespaces: sysctl -w \
        kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000";
    sys::own_network().map_err(|e| format!("no network of our own ({e}): {fix}"))?;
    if !user.is_root() {
        // Root in there, or the programs we start would lose their rights.
        let write = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
        write("uid_map", format!("0 {} 1", user.as_raw()))
            .map_err(|e| format!("no root of our own ({e}): {fix}"))?;
    }
    let found = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.map_err(|e| format!("ip cannot be run ({e}): apt-get install iproute2"))?;
    Ok(())
}

/// A network alone is not enough.
fn has_taps(tun: &str) -> Result<(), String> {
    let fix = "load it (modprobe tun), and let this user open it";
    let opened = File::options().read(true).write(true).open(tun);
    opened.map(drop).map_err(|e| format!("no TAP devices ({tun}: {e}): {fix}"))
}

/// Gives the interface of [`PORT`] its address.
pub(crate) fn plug_in() -> Result<(), Failure> {
    ip(&format!("address add {ADDRESS}/24 dev {INTERFACE}"))?;
    ip(&format!("link set dev {INTERFACE} up"))
}

/// Puts the interfaces of [`TWO_PORTS`] on one bridge.
pub(crate) fn bridge() -> Result<(), Failure> {
    // It stays when its interfaces go.
    if !std::path::Path::new("/sys/class/net").join(BRIDGE).exists() {
        // /sys may be that of the machine's network: then it is there already, which is as well.
        let _ = ip(&format!("link add {BRIDGE} type bridge mcast_snooping 0"));
    }
    ip(&format!("link set dev {BRIDGE} up"))?;
    INTERFACES.iter().try_for_each(|name| ip(&format!("link set dev {name} master {BRIDGE} up")))
}

fn ip(words: &str) -> Result<(), Failure> {
    let out = Command::new("ip").args(words.split(' ')).stdin(Stdio::null()).output();
    let out = out.map_err(|e| Failure::Failed(format!("ip: {e}: apt-get install iproute2")))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(Failure::Failed(format!("ip {words}: {said}")))
}

/// What the host's side has moved so far.
#[derive(Debug, Default)]
struct Moved {
    messages: AtomicU64,
    bytes: AtomicU64,
    over: AtomicBool,
}

impl Moved {
    fn add(&self, bytes: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Threads that serve, or send; they end when this is dropped.
pub(crate) struct Peer {
    moved: Arc<Moved>,
    threads: Vec<JoinHandle<()>>,
    marks: Vec<(Instant, u64, u64)>,
    pin: Pin,
}

/// For each second between the first and the last mark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// Datagrams, or reads.
    pub(crate) messages: f64,
    /// Of payload.
    pub(crate) mbit: f64,
}

impl Peer {
    fn new(pin: Pin) -> Self {
        Self { moved: Arc::default(), threads: Vec::new(), marks: Vec::new(), pin }
    }

    fn run(&mut self, work: impl FnOnce(&Moved) + Send + 'static) {
        let (moved, pin) = (self.moved.clone(), self.pin);
        self.threads.push(spawn(move || {
            if let Err(e) = pin.this_thread() {
                eprintln!("a thread of the host runs on any core: {e}");
            }
            work(&moved);
        }));
    }

    /// A sink for datagrams and streams, and an echo for requests.
    pub(crate) fn server(pin: Pin) -> Result<Self, Failure> {
        let fail = |e| Failure::Failed(format!("the host's sockets at {ADDRESS}: {e}"));
        let mut peer = Self::new(pin);
        let datagrams = UdpSocket::bind((ADDRESS, SINK)).map_err(fail)?;
        datagrams.set_read_timeout(Some(NAP)).map_err(fail)?;
        peer.run(move |moved| {
            let mut buffer = vec![0; 1 << 16];
            while !moved.is_over() {
                if let Ok(bytes) = datagrams.recv(&mut buffer) {
                    moved.add(bytes);
                }
            }
        });
        let requests = UdpSocket::bind((ADDRESS, ECHO)).map_err(fail)?;
        requests.set_read_timeout(Some(NAP)).map_err(fail)?;
        peer.run(move |moved| {
            let mut buffer = vec![0; 1 << 16];
            while !moved.is_over() {
                if let Ok((bytes, from)) = requests.recv_from(&mut buffer) {
                    // Lost as on a wire; whoever asks asks again.
                    let _ = requests.send_to(&buffer[..bytes], from);
                }
            }
        });
        for (port, serve) in [(SINK, swallow as fn(TcpStream, &Moved)), (ECHO, echo)] {
            let listener = TcpListener::bind((ADDRESS, port)).map_err(fail)?;
            listener.set_nonblocking(true).map_err(fail)?;
            peer.run(move |moved| accept(&listener, moved, serve));
        }
        Ok(peer)
    }

    /// Sends datagrams of `bytes` to the sink of the guest at `to`, as fast as the kernel lets it.
    pub(crate) fn sender(pin: Pin, to: Ipv4Addr, bytes: usize) -> Result<Self, Failure> {
        let fail = |e| Failure::Failed(format!("the host's socket at {ADDRESS}: {e}"));
        let socket = UdpSocket::bind((ADDRESS, 0)).map_err(fail)?;
        socket.set_write_timeout(Some(NAP)).map_err(fail)?;
        socket.connect(SocketAddr::from((to, SINK))).map_err(fail)?;
        let mut peer = Self::new(pin);
        peer.run(move |moved| {
            let payload = vec![0x5a; bytes];
            while !moved.is_over() {
                match socket.send(&payload) {
                    Ok(sent) => moved.add(sent),
                    // Nobody there yet, or no room: not the processor's fault.
                    Err(_) => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        });
        Ok(peer)
    }

    /// Writes `bytes` at a time to a connection to the sink of the guest at `to`.
    pub(crate) fn writer(pin: Pin, to: Ipv4Addr, bytes: usize) -> Self {
        let mut peer = Self::new(pin);
        peer.run(move |moved| {
            let payload = vec![0x5a; bytes];
            while !moved.is_over() {
                // Nobody there yet, or no more.
                let Ok(mut stream) = TcpStream::connect_timeout(&(to, SINK).into(), 4 * NAP) else {
                    continue;
                };
                ready(&stream);
                while !moved.is_over() && write(&mut stream, &payload, moved) {}
            }
        });
        peer
    }

    /// Notes the time and what has been moved.
    pub(crate) fn mark(&mut self) {
        let moved = &self.moved;
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        self.marks.push((Instant::now(), load(&moved.messages), load(&moved.bytes)));
    }

    /// Between the first and the last mark.
    pub(crate) fn rates(&self) -> Rates {
        let (Some(first), Some(last)) = (self.marks.first(), self.marks.last()) else {
            return Rates::default();
        };
        let seconds = (last.0 - first.0).as_secs_f64().max(1e-6);
        Rates {
            messages: to_f64(last.1 - first.1) / seconds,
            mbit: to_f64(last.2 - first.2) * 8e-6 / seconds,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.moved.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Serves one connection after the other.
fn accept(listener: &TcpListener, moved: &Moved, serve: fn(TcpStream, &Moved)) {
    while !moved.is_over() {
        match listener.accept() {
            Ok((stream, _)) => serve(stream, moved),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Reads until the end; false when there is no more to come.
fn read(stream: &mut TcpStream, buffer: &mut [u8], moved: &Moved) -> Option<usize> {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    while !moved.is_over() {
        match stream.read(buffer) {
            Ok(0) => return None,
            Ok(bytes) => return Some(bytes),
            Err(e) if matches!(e.kind(), Interrupted | TimedOut | WouldBlock) => {}
            Err(_) => return None,
        }
    }
    None
}

/// A part of it at least, unless the connection is gone.
fn write(stream: &mut TcpStream, payload: &[u8], moved: &Moved) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    match stream.write(payload) {
        Ok(bytes) => {
            moved.add(bytes);
            bytes > 0
        }
        Err(e) => matches!(e.kind(), Interrupted | TimedOut | WouldBlock),
    }
}

fn ready(stream: &TcpStream) {
    // Without these it still works, only slower.
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(NAP));
    let _ = stream.set_write_timeout(Some(NAP));
    let _ = stream.set_nodelay(true);
}

fn swallow(mut stream: TcpStream, moved: &Moved) {
    ready(&stream);
    let mut buffer = vec![0; 1 << 18];
    while let Some(bytes) = read(&mut stream, &mut buffer, moved) {
        moved.add(bytes);
    }
}

fn echo(mut stream: TcpStream, moved: &Moved) {
    ready(&stream);
    let mut buffer = vec![0; 1 << 16];
    while let Some(bytes) = read(&mut stream, &mut buffer, moved) {
        if stream.write_all(&buffer[..bytes]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_threads_are_pinned_as_a_guest_is() {
        let (tell, told) = std::sync::mpsc::channel();
        Peer::new(Pin::First).run(move |_| {
            tell.send(std::fs::read_to_string("/proc/thread-self/status").unwrap()).unwrap();
        });
        let status = told.recv().unwrap();
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert!(cores.unwrap().trim().parse::<usize>().is_ok(), "one core: {cores:?}");
    }

    #[test]
    fn without_the_device_there_is_no_host_to_talk_to() {
        let why = has_taps("/nonexistent/tun").unwrap_err();
        assert!(why.contains("/nonexistent/tun") && why.contains("modprobe"), "{why}");
        assert!(has_taps("/dev/null").is_ok(), "one that opens");
    }
}
