//! Request and response, one at a time.

use std::net::SocketAddrV4;
use std::time::Duration;

use smoltcp::iface::SocketHandle;

use super::super::StackError;
use super::super::options::Options;
use super::super::smoltcp_host::{Host, endpoint};
use super::stream::Connecting;
use super::{Passed, Step, Work};
use crate::pktgen::Latency;
use crate::workload::{Requests, Tally, Unanswered};
use vmlan_driver::nic::Nic;

/// Bytes of a TCP connection's buffers.
pub(super) const BUFFER: usize = 16 << 10;

/// How requests go and answers come.
pub(super) trait Path<N: Nic> {
    /// Can requests be sent?
    fn is_up(&mut self, host: &mut Host<'_, N>, now: u64) -> Result<bool, StackError>;
    /// Sends a request.
    fn ask(&mut self, host: &mut Host<'_, N>, request: &[u8]);
    /// Is the answer to `request` complete?
    fn is_answered(&mut self, host: &mut Host<'_, N>, request: &[u8]) -> bool;
    /// Can a request, or its answer, be lost?
    fn loses(&self) -> bool;
    /// Says goodbye; is everything said?
    fn close(&mut self, host: &mut Host<'_, N>) -> bool;
}

/// The client.
pub(super) struct Rr<P> {
    path: P,
    to: SocketAddrV4,
    requests: Requests,
}

impl<P> Rr<P> {
    pub(super) fn new(options: &Options, path: P) -> Self {
        Self { path, to: options.task.peer(), requests: Requests::new(&options.task) }
    }
}

impl<N: Nic, P: Path<N>> Work<N> for Rr<P> {
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed {
        if !self.path.is_up(host, now)? {
            return Ok(Step::Idle);
        }
        if self.requests.is_under_way() {
            if self.path.is_answered(host, self.requests.last()) {
                self.requests.answered(tally, host.now());
                if tally.is_complete() {
                    return Ok(Step::Moved);
                }
            } else {
                match self.requests.unanswered(tally, now, self.path.loses()) {
                    Unanswered::Wait => return Ok(Step::Idle),
                    Unanswered::Lost => {}
                    Unanswered::NoAnswer => return Err(StackError::NoAnswer(self.to)),
                }
            }
        }
        if !self.requests.is_due(now) {
            return Ok(Step::Idle);
        }
        let request = self.requests.begin(host.now());
        self.path.ask(host, request);
        Ok(Step::Moved)
    }

    fn pause(&self, now: u64) -> Option<Duration> {
        self.requests.pause(now)
    }

    fn warm(&mut self) {
        self.requests.warm();
    }

    fn latency(&self) -> Option<Latency> {
        self.requests.latency()
    }

    fn close(&mut self, host: &mut Host<'_, N>) -> bool {
        self.path.close(host)
    }
}

/// Over UDP.
pub(super) struct Udp {
    socket: SocketHandle,
    to: SocketAddrV4,
}

impl Udp {
    pub(super) fn new<N: Nic>(options: &Options, host: &mut Host<'_, N>) -> Self {
        let port = host.ephemeral();
        Self { socket: host.udp(port), to: options.task.peer() }
    }
}

impl<N: Nic> Path<N> for Udp {
    fn is_up(&mut self, _host: &mut Host<'_, N>, _now: u64) -> Result<bool, StackError> {
        Ok(true)
    }

    fn ask(&mut self, host: &mut Host<'_, N>, request: &[u8]) {
        // A datagram that finds no room is lost like one on the way.
        let _ = host.udp_socket(self.socket).send_slice(request, endpoint(self.to));
    }

    fn is_answered(&mut self, host: &mut Host<'_, N>, request: &[u8]) -> bool {
        let socket = host.udp_socket(self.socket);
        // Answers to requests that were given up come late.
        while let Ok((bytes, _)) = socket.recv() {
            if bytes == request {
                return true;
            }
        }
        false
    }

    fn loses(&self) -> bool {
        true
    }

    fn close(&mut self, _host: &mut Host<'_, N>) -> bool {
        true
    }
}

/// Over a TCP connection.
pub(super) struct Tcp {
    socket: SocketHandle,
    call: Connecting,
    /// Bytes of the answer that came.
    answered: usize,
}

impl Tcp {
    pub(super) fn new<N: Nic>(options: &Options, host: &mut Host<'_, N>) -> Self {
        let socket = host.tcp(BUFFER, BUFFER);
        host.tcp_socket(socket).set_nagle_enabled(false);
        Self { socket, call: Connecting::new(host, socket, options), answered: 0 }
    }
}

impl<N: Nic> Path<N> for Tcp {
    fn is_up(&mut self, host: &mut Host<'_, N>, now: u64) -> Result<bool, StackError> {
        self.call.is_up(host, now)
    }

    fn ask(&mut self, host: &mut Host<'_, N>, request: &[u8]) {
        self.answered = 0;
        // The buffer is empty: what was asked before is answered.
        let _ = host.tcp_socket(self.socket).send_slice(request);
    }

    fn is_answered(&mut self, host: &mut Host<'_, N>, request: &[u8]) -> bool {
        let socket = host.tcp_socket(self.socket);
        while socket.can_recv() {
            let Ok(len) = socket.recv(|bytes| (bytes.len(), bytes.len())) else { break };
            self.answered += len;
        }
        self.answered >= request.len()
    }

    fn loses(&self) -> bool {
        false
    }

    fn close(&mut self, host: &mut Host<'_, N>) -> bool {
        self.call.close(host)
    }
}
