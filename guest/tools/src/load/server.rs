//! Receivers: sinks and echoes, any number of them by one poll(2).

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::{LoadError, Run, Work};
use crate::workload::{ECHO_PORT, Gaps, Pattern, SINK_PORT, Task, Workload, number};

/// Reads of one socket before it is another one's turn.
const BUDGET: u32 = 64;
const ROLES: usize = 64; // Sockets at once. Connections beyond it are closed.
const SCRATCH: usize = 128 << 10;

/// What serves.
enum Role {
    DatagramSink(UdpSocket),
    DatagramEcho(UdpSocket),
    /// Its connections are sinks, or echoes.
    Listener(TcpListener, bool),
    StreamSink(TcpStream, u64),
    StreamEcho(TcpStream),
}

/// What became of a socket in its turn.
enum Turn {
    Goes,
    Opened(Role),
    Ended,
}

pub(super) struct Server {
    roles: Vec<Role>,
    app: Duration,
    gaps: Gaps,
    /// To compare with.
    pattern: Option<Pattern>,
    scratch: Box<[u8]>,
}

impl Server {
    pub(super) fn new(task: &Task) -> Result<Self, LoadError> {
        let port = task.served(SINK_PORT);
        let mut roles = Vec::new();
        if task.workload != Workload::TcpSink {
            roles.push(Role::DatagramSink(datagrams(port)?));
        }
        if task.workload != Workload::UdpSink {
            roles.push(Role::Listener(listen(port, task.window as usize)?, false));
        }
        if task.workload == Workload::Responder {
            roles.push(Role::DatagramEcho(datagrams(ECHO_PORT)?));
            roles.push(Role::Listener(listen(ECHO_PORT, 0)?, true));
        }
        Ok(Self {
            roles,
            app: Duration::from_nanos(task.app_ns),
            gaps: Gaps::new(),
            pattern: task.verify.then(|| Pattern::new(SCRATCH)),
            scratch: vec![0; SCRATCH].into(),
        })
    }

    fn turn(&mut self, role: &mut Role, run: &mut Run<'_>) -> Turn {
        match role {
            Role::DatagramSink(socket) => self.sink(socket, run),
            Role::DatagramEcho(socket) => self.echo(socket, run),
            Role::Listener(listener, echoes) => return accept(listener, *echoes),
            Role::StreamSink(socket, place) => return self.read(socket, place, run),
            Role::StreamEcho(socket) => return self.answer(socket, run),
        }
        Turn::Goes
    }

    fn sink(&mut self, socket: &UdpSocket, run: &mut Run<'_>) {
        for _ in 0..BUDGET.min(run.tally.left()) {
            let Ok((len, from)) = socket.recv_from(&mut self.scratch) else { break };
            // An empty one only says hello.
            if len > 0 {
                run.tally.add(run.now(), 1, len as u64);
                if let Some(number) = number(&self.scratch[..len]) {
                    self.gaps.note(from, number, &mut run.tally);
                }
                let start = Instant::now();
                while start.elapsed() < self.app {
                    std::hint::spin_loop();
                }
            }
        }
    }

    fn echo(&mut self, socket: &UdpSocket, run: &mut Run<'_>) {
        for _ in 0..BUDGET {
            let Ok((len, from)) = socket.recv_from(&mut self.scratch) else { break };
            // One that finds no room is lost like one on the way.
            let _ = socket.send_to(&self.scratch[..len], from);
            run.tally.add(run.now(), 1, len as u64);
        }
    }

    fn read(&mut self, socket: &mut TcpStream, place: &mut u64, run: &mut Run<'_>) -> Turn {
        for _ in 0..BUDGET {
            match socket.read(&mut self.scratch) {
                Ok(0) => return Turn::Ended,
                Ok(len) => {
                    if let Some(pattern) = &self.pattern {
                        let pairs = self.scratch[..len].iter().zip(pattern.at(*place, len));
                        run.tally.corrupt += pairs.filter(|(a, b)| a != b).count() as u64;
                    }
                    *place += len as u64;
                    run.tally.add(run.now(), 1, len as u64);
                }
                Err(error) => return kept(&error),
            }
        }
        Turn::Goes
    }

    fn answer(&mut self, socket: &mut TcpStream, run: &mut Run<'_>) -> Turn {
        match socket.read(&mut self.scratch) {
            Ok(0) => Turn::Ended,
            Ok(len) => {
                run.tally.add(run.now(), 1, len as u64);
                // Whoever does not read its answers is not served on.
                let sent = socket.write_all(&self.scratch[..len]);
                if sent.is_ok() { Turn::Goes } else { Turn::Ended }
            }
            Err(error) => kept(&error),
        }
    }
}

fn datagrams(port: u16) -> Result<UdpSocket, LoadError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    let ready = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    ready.map_err(LoadError::socket("serve the UDP port: is it in use (--port)?"))
}

/// Connections have the listener's buffer.
fn listen(port: u16, window: usize) -> Result<TcpListener, LoadError> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let ready = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        if window > 0 {
            set_socket_recv_buffer_size(&listener, window)?;
        }
        Ok(listener)
    });
    ready.map_err(LoadError::socket("serve the TCP port: is it in use (--port)?"))
}

fn accept(listener: &TcpListener, echoes: bool) -> Turn {
    let Ok((socket, _)) = listener.accept() else { return Turn::Goes };
    let settled = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
    if settled.is_err() {
        return Turn::Goes;
    }
    Turn::Opened(if echoes { Role::StreamEcho(socket) } else { Role::StreamSink(socket, 0) })
}

fn kept(error: &io::Error) -> Turn {
    let goes = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
    if goes { Turn::Goes } else { Turn::Ended }
}

impl Role {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::DatagramSink(socket) | Self::DatagramEcho(socket) => socket.as_fd(),
            Self::Listener(listener, _) => listener.as_fd(),
            Self::StreamSink(socket, _) | Self::StreamEcho(socket) => socket.as_fd(),
        }
    }
}

impl Work for Server {
    fn pass(&mut self, run: &mut Run<'_>) -> Result<(), LoadError> {
        let mut fds: Vec<_> = self
            .roles
            .iter()
            .map(|role| PollFd::from_borrowed_fd(role.fd(), PollFlags::IN))
            .collect();
        // A signal, or a machine out of memory: the next pass looks again.
        let _ = poll(&mut fds, Timespec::try_from(run.nap).ok().as_ref());
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (mut kept, mut opened) = (Vec::with_capacity(self.roles.len()), Vec::new());
        for (mut role, ready) in std::mem::take(&mut self.roles).into_iter().zip(ready) {
            let turn = if ready { self.turn(&mut role, run) } else { Turn::Goes };
            match turn {
                Turn::Goes => kept.push(role),
                Turn::Opened(more) => {
                    kept.push(role);
                    opened.push(more);
                }
                Turn::Ended => {}
            }
        }
        // The newest are closed. A listener is older than all its connections.
        opened.truncate(ROLES.saturating_sub(kept.len()));
        run.tally.connections += opened.len() as u64;
        kept.append(&mut opened);
        self.roles = kept;
        Ok(())
    }
}
