//! A guest for `vde_switch`: two ports on its datagram sockets, every frame bounced.
//!
//! The protocol (`struct request_v3` of libvdeplug): a stream connection to `ctl` carries one
//! request that names our datagram socket; the answer is the address of the switch's. The port
//! lives as long as the stream connection.

use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use vmlan_harness::{HarnessError, Pin, Result, Stop};

use super::guest::{Guest, GuestCounters};

const MAGIC: u32 = 0xfeed_face;
const VERSION: u32 = 3;
const ADDRESS_BYTES: usize = 110;
const AF_UNIX: u16 = 1;

/// Frames kept on the way in each direction: a UNIX datagram socket holds
/// `net.unix.max_dgram_qlen`, 10 by default.
const WINDOW: u64 = 8;

/// No frame for so long means that the switch dropped some; the window is then filled again.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

#[derive(Debug, Default)]
struct Counters {
    rx_frames: AtomicU64,
    rx_bytes: AtomicU64,
    tx_frames: AtomicU64,
    going: AtomicBool,
    over: AtomicBool,
    /// Of each frame.
    bytes: AtomicU32,
}

impl Counters {
    fn goes_on(&self) -> bool {
        self.going.load(Relaxed) && !self.over.load(Relaxed)
    }
}

/// The running loop; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct VdeLoop {
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl VdeLoop {
    /// Plugs two ports into the switch behind `control`; our own sockets go to `dir`.
    ///
    /// # Errors
    /// When the switch refuses.
    pub(super) fn connect(control: &Path, dir: &Path, core: usize) -> Result<Self> {
        let ports = [Port::plug(control, &dir.join("p0"))?, Port::plug(control, &dir.join("p1"))?];
        let counters = Arc::<Counters>::default();
        let shared = Arc::clone(&counters);
        let thread = thread::spawn(move || bounce(&ports, core, &shared));
        Ok(Self { counters, thread: Some(thread) })
    }
}

impl Guest for VdeLoop {
    fn start(&mut self, _: &Stop, bytes: u32) -> Result<()> {
        self.counters.bytes.store(bytes, Relaxed);
        self.counters.going.store(true, Relaxed);
        Ok(())
    }

    fn pause(&mut self, stop: &Stop) -> Result<()> {
        self.counters.going.store(false, Relaxed);
        // By then it has seen that, and the switch is silent.
        stop.sleep(Duration::from_millis(10))
    }

    fn seen(&mut self, _: &Stop) -> Result<GuestCounters> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(HarnessError::NoFigure("vde_switch closed a port".into()));
        }
        let (at, rx_frames) = (Instant::now(), self.counters.rx_frames.load(Relaxed));
        Ok(GuestCounters {
            at,
            rx_frames,
            rx_bytes: self.counters.rx_bytes.load(Relaxed),
            tx_frames: self.counters.tx_frames.load(Relaxed),
        })
    }
}

impl Drop for VdeLoop {
    fn drop(&mut self) {
        self.counters.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been printed, and shows as a port that was closed.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Port {
    data: UnixDatagram,
    _control: UnixStream,
}

impl Port {
    fn plug(control: &Path, own: &Path) -> Result<Self> {
        let plug = || -> std::io::Result<Self> {
            let mut stream = UnixStream::connect(control)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let data = UnixDatagram::bind(own)?;
            stream.write_all(&request(own))?;
            let mut answer = [0; ADDRESS_BYTES];
            let length = stream.read(&mut answer)?;
            data.connect(path_in(&answer[..length]))?;
            data.set_nonblocking(true)?;
            Ok(Self { data, _control: stream })
        };
        plug().map_err(HarnessError::io(format!("plug into vde_switch at {}", control.display())))
    }
}

// magic, version, kind (0: a new port), sockaddr_un, description: packed, host byte order.
fn request(own: &Path) -> Vec<u8> {
    let mut request = Vec::new();
    for word in [MAGIC, VERSION, 0] {
        request.extend(word.to_ne_bytes());
    }
    request.extend(AF_UNIX.to_ne_bytes());
    request.extend(own.as_os_str().as_bytes());
    request.resize(12 + ADDRESS_BYTES, 0);
    request.extend(b"vmlan peers");
    request
}

fn path_in(address: &[u8]) -> PathBuf {
    let path = address.get(2..).unwrap_or_default();
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    PathBuf::from(std::ffi::OsStr::from_bytes(&path[..end]))
}

// From port `from` to the other one, with an EtherType that nothing interprets (IEEE 802 local
// experimental 1).
fn frame(from: u8, bytes: u32) -> Vec<u8> {
    let mut frame = vec![0; bytes as usize];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1 - from, 2, 0, 0, 0, 0, from, 0x88, 0xb5]);
    frame
}

fn bounce(ports: &[Port; 2], core: usize, counters: &Counters) {
    // Not pinned is slower, not wrong.
    let _ = Pin::Core(core).this_thread();
    while !counters.over.load(Relaxed) {
        if !counters.goes_on() {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        drain(ports);
        let frames = [0, 1].map(|from| frame(from, counters.bytes.load(Relaxed)));
        for (port, frame) in ports.iter().zip(&frames) {
            for _ in 0..WINDOW {
                send(port, frame, counters);
            }
        }
        while pass(ports, counters) {}
    }
}

/// What is left of an earlier time.
fn drain(ports: &[Port; 2]) {
    for port in ports {
        while port.data.recv(&mut [0; 2048]).is_ok() {}
    }
}

/// Bounces what there is; false when nothing came for [`QUIET`] or the loop is over.
fn pass(ports: &[Port; 2], counters: &Counters) -> bool {
    let mut moved = false;
    for (from, to) in [(0, 1), (1, 0)] {
        let mut buffer = [0; 2048];
        for _ in 0..WINDOW {
            let Ok(length) = ports[from].data.recv(&mut buffer) else { break };
            counters.rx_frames.fetch_add(1, Relaxed);
            counters.rx_bytes.fetch_add(length as u64, Relaxed);
            send(&ports[to], &buffer[..length], counters);
            moved = true;
        }
    }
    if moved {
        return counters.goes_on();
    }
    let mut fds = ports.each_ref().map(|port| PollFd::new(&port.data, PollFlags::IN));
    counters.goes_on() && matches!(poll(&mut fds, Some(&QUIET)), Ok(1..))
}

fn send(port: &Port, frame: &[u8], counters: &Counters) {
    // A full socket is a drop, as on a wire; it is not counted as sent.
    if port.data.send(frame).is_ok() {
        counters.tx_frames.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_laid_out_as_libvdeplug_does() {
        let request = request(Path::new("/tmp/x"));
        assert_eq!(request[..12], [MAGIC.to_ne_bytes(), 3u32.to_ne_bytes(), [0; 4]].concat());
        assert_eq!(&request[14..21], b"/tmp/x\0");
        assert_eq!(&request[122..], b"vmlan peers");
    }

    #[test]
    fn path_ends_at_the_first_zero() {
        assert_eq!(path_in(b"\x01\x00/run/s\0rest"), Path::new("/run/s"));
        assert_eq!(path_in(b""), Path::new(""));
    }

    #[test]
    fn frames_go_to_the_other_port() {
        let frame = frame(1, 60);
        assert_eq!(frame.len(), 60);
        assert_eq!(&frame[..12], &[2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1]);
    }
}
