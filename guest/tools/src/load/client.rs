//! Senders: datagrams, and writes to a TCP connection.

use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream as Tcp, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};

use super::{LoadError, NAP, Options, Run, Work};
use crate::pktgen::RateLimiter;
use crate::workload::{Pattern, Task, byte};
use vmlan_transport::numbers::{narrow16, narrow32};
use vmlan_transport::sys;

/// Between two tries to reach a peer that is not there yet.
const AGAIN: Duration = Duration::from_millis(20);
/// Most datagrams of one `sendmmsg` (UIO_MAXIOV).
const MOST_AT_ONCE: usize = 1024;

/// A socket that sends to `to` and sleeps in the kernel for [`NAP`] at most.
pub(super) fn udp(to: SocketAddrV4) -> Result<UdpSocket, LoadError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let ready = socket.and_then(|socket| {
        socket.connect(to)?;
        socket.set_read_timeout(Some(NAP))?;
        socket.set_write_timeout(Some(NAP))?;
        Ok(socket)
    });
    ready.map_err(LoadError::socket("make a UDP socket for the peer"))
}

/// Did the call only not go on for now, as when the queue of the NIC is full?
pub(super) fn is_pause(error: &io::Error) -> bool {
    let full = error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error());
    full || matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A peer that refuses may not be there yet: then a nap, and nothing was sent.
pub(super) fn refused(run: &Run<'_>, error: io::Error) -> Result<(), LoadError> {
    let gone = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable];
    if !gone.contains(&error.kind()) {
        return Err(LoadError::Socket { what: "send to the peer", source: error });
    }
    if !run.is_patient(run.now()) {
        return Err(LoadError::Closed(run.task.peer()));
    }
    std::thread::sleep(AGAIN);
    Ok(())
}

pub(super) struct UdpStream {
    socket: UdpSocket,
    size: usize,
    burst: usize,
    segment: bool,
    pace: RateLimiter,
    /// The payloads of a burst, one behind the other.
    payload: Vec<u8>,
    number: u64,
}

impl UdpStream {
    pub(super) fn new(options: &Options) -> Result<Self, LoadError> {
        let task = &options.task;
        let (size, burst) = (task.size() as usize, (task.burst as usize).min(MOST_AT_ONCE));
        let socket = udp(task.peer())?;
        if options.segment {
            let cut = sys::udp_segment(socket.as_fd(), narrow16(size as u64));
            cut.map_err(LoadError::socket("have the kernel cut datagrams (UDP GSO, Linux 4.18)"))?;
        }
        let pace = RateLimiter::new(task.rate, task.burst);
        let payload = (0..burst).flat_map(|_| (0..size).map(byte)).collect();
        Ok(Self { socket, size, burst, segment: options.segment, pace, payload, number: 0 })
    }

    /// Sends up to `count` of a burst; how many went.
    fn send(&mut self, count: usize) -> io::Result<usize> {
        let payloads = self.payload.chunks_exact_mut(self.size).take(count);
        for (number, payload) in (self.number..).zip(payloads) {
            if let Some(head) = payload.first_chunk_mut() {
                *head = number.to_be_bytes();
            }
        }
        let bytes = &self.payload[..count * self.size];
        if count == 1 || self.segment {
            return self.socket.send(bytes).map(|sent| sent / self.size);
        }
        let slices: Vec<_> = bytes.chunks_exact(self.size).map(|one| [IoSlice::new(one)]).collect();
        let mut controls: Vec<_> = slices.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let each = slices.iter().zip(&mut controls);
        let mut messages: Vec<_> = each.map(|(one, none)| MMsgHdr::new(one, none)).collect();
        Ok(sendmmsg(&self.socket, &mut messages, SendFlags::empty())?)
    }
}

impl Work for UdpStream {
    fn pass(&mut self, run: &mut Run<'_>) -> Result<(), LoadError> {
        let now = run.now();
        let wanted = narrow32(self.burst as u64).min(run.tally.left());
        let wanted = self.pace.allow(now, wanted);
        if wanted == 0 {
            std::thread::sleep(self.pace.until(now).min(run.nap));
            return Ok(());
        }
        match self.send(wanted as usize) {
            Ok(sent) => {
                self.number += sent as u64;
                self.pace.spend(narrow32(sent as u64));
                run.tally.add(run.now(), sent as u64, (sent * self.size) as u64);
                Ok(())
            }
            Err(error) if is_pause(&error) => Ok(()),
            Err(error) => refused(run, error),
        }
    }
}

/// A connection to the peer, or not yet.
pub(super) struct Connection(Option<Tcp>);

impl Connection {
    pub(super) fn new() -> Self {
        Self(None)
    }

    /// The connection, if it is there; tries once.
    pub(super) fn up(
        &mut self,
        run: &Run<'_>,
        settle: impl Fn(&Tcp) -> io::Result<()>,
    ) -> Result<Option<&mut Tcp>, LoadError> {
        if self.0.is_none() {
            let to = run.task.peer();
            match Tcp::connect_timeout(&to.into(), run.nap.max(Duration::from_millis(1))) {
                Ok(socket) => {
                    let times = socket
                        .set_read_timeout(Some(NAP))
                        .and_then(|()| socket.set_write_timeout(Some(NAP)))
                        .and_then(|()| settle(&socket));
                    times.map_err(LoadError::socket("set up a TCP socket"))?;
                    self.0 = Some(socket);
                }
                Err(error) if run.is_patient(run.now()) => {
                    // A SYN without an answer has waited already.
                    if error.kind() != ErrorKind::TimedOut {
                        std::thread::sleep(AGAIN.min(run.nap));
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Err(LoadError::Closed(to));
                }
                Err(_) => return Err(LoadError::NoAnswer(to)),
            }
        }
        Ok(self.0.as_mut())
    }

    /// Ends it, and waits for a second at most until the peer has read everything.
    pub(super) fn close(&mut self) {
        let Some(socket) = &mut self.0 else { return };
        let end = Instant::now() + Duration::from_secs(1);
        if socket.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut scratch = [0; 1024];
        while Instant::now() < end {
            match socket.read(&mut scratch) {
                Ok(1..) => {}
                Err(error) if is_pause(&error) => {}
                _ => return,
            }
        }
    }
}

pub(super) struct TcpStream {
    call: Connection,
    size: usize,
    pattern: Pattern,
    /// Bytes written so far.
    place: u64,
}

impl TcpStream {
    pub(super) fn new(task: &Task) -> Self {
        let size = task.size() as usize;
        Self { call: Connection::new(), size, pattern: Pattern::new(size), place: 0 }
    }
}

impl Work for TcpStream {
    fn pass(&mut self, run: &mut Run<'_>) -> Result<(), LoadError> {
        let window = run.task.window as usize;
        let settle = |socket: &Tcp| match window {
            0 => Ok(()),
            bytes => Ok(set_socket_send_buffer_size(socket, bytes)?),
        };
        let Some(socket) = self.call.up(run, settle)? else { return Ok(()) };
        let size = self.size as u64;
        let written = narrow32(self.place % size) as usize;
        match socket.write(self.pattern.at(self.place, self.size - written)) {
            Ok(0) => Err(LoadError::Closed(run.task.peer())),
            Ok(count) => {
                let before = self.place / size;
                self.place += count as u64;
                run.tally.add(run.now(), self.place / size - before, count as u64);
                Ok(())
            }
            Err(error) if is_pause(&error) => Ok(()),
            Err(_) => Err(LoadError::Closed(run.task.peer())),
        }
    }

    fn close(&mut self) {
        self.call.close();
    }
}
