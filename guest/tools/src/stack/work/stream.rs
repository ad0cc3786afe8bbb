//! Senders: datagrams, and writes to a TCP connection.

use std::net::SocketAddrV4;
use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::State;

use super::super::StackError;
use super::super::frame::Template;
use super::super::options::Options;
use super::super::smoltcp_host::{Host, endpoint};
use super::{Passed, Step, Work};
use crate::pktgen::RateLimiter;
use crate::workload::{Pattern, Tally};
use vmlan_driver::nic::Nic;
use vmlan_transport::numbers::{nanos, narrow32};

const CHUNK: u32 = 64; // Most datagrams of one pass.
/// How often smoltcp sends an empty datagram of its own, so that it asks for the peer's address
/// again before anybody forgets ours.
const REFRESH_NS: u64 = 30_000_000_000;

pub(super) struct UdpStream {
    socket: SocketHandle,
    to: SocketAddrV4,
    size: usize,
    mtu: usize,
    burst: u32,
    pace: RateLimiter,
    template: Option<Template>,
    number: u64,
    /// When smoltcp sends again.
    refresh: u64,
    patience: u64,
}

impl UdpStream {
    pub(super) fn new<N: Nic>(options: &Options, host: &mut Host<'_, N>) -> Self {
        let port = host.ephemeral();
        Self {
            socket: host.udp(port),
            to: options.task.peer(),
            size: options.task.size() as usize,
            mtu: options.mtu.into(),
            burst: options.task.burst,
            pace: RateLimiter::new(options.task.rate, options.task.burst),
            template: None,
            number: 0,
            refresh: 0,
            patience: nanos(options.task.patience),
        }
    }

    /// An empty datagram, for which smoltcp finds the way. Sinks do not count it.
    fn hello<N: Nic>(&mut self, host: &mut Host<'_, N>, now: u64) -> Result<(), StackError> {
        if now >= self.refresh {
            self.refresh = now + REFRESH_NS;
            host.flow = None;
            // There is room for one in thirty seconds.
            let _ = host.udp_socket(self.socket).send_slice(&[], endpoint(self.to));
        }
        if let Some(flow) = host.flow.take() {
            let template = Template::new(&flow, self.size, self.mtu);
            let (slots, frames) = (host.driver.nic().device.slots(0), template.count());
            if frames > slots.into() {
                return Err(StackError::Slots { slots, frames });
            }
            self.template = Some(template);
        }
        Ok(())
    }
}

impl<N: Nic> Work<N> for UdpStream {
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed {
        self.hello(host, now)?;
        let Some(template) = &mut self.template else {
            return if now < self.patience {
                Ok(Step::Idle)
            } else {
                Err(StackError::NoAnswer(self.to))
            };
        };
        let wanted = CHUNK.max(self.burst).min(tally.left());
        let wanted = self.pace.allow(now, wanted);
        if wanted == 0 {
            return Ok(Step::Idle);
        }
        let sent = host.driver.send(template, self.number, wanted, self.burst);
        self.number += u64::from(sent);
        self.pace.spend(sent);
        if sent == 0 {
            return Ok(Step::Blocked);
        }
        tally.add(now, sent.into(), u64::from(sent) * self.size as u64);
        Ok(Step::Moved)
    }

    fn pause(&self, now: u64) -> Option<Duration> {
        let pause = self.template.as_ref().map(|_| self.pace.until(now))?;
        (!pause.is_zero()).then_some(pause)
    }
}

pub(super) struct TcpStream {
    socket: SocketHandle,
    call: Connecting,
    size: usize,
    pattern: Pattern,
    /// Bytes written so far.
    place: u64,
}

impl TcpStream {
    pub(super) fn new<N: Nic>(options: &Options, host: &mut Host<'_, N>) -> Self {
        let size = options.task.size() as usize;
        // Unless asked otherwise, a whole write fits.
        let least = if options.task.window == 0 { size } else { 0 };
        let socket = host.tcp(4096, options.window().max(least));
        let call = Connecting::new(host, socket, options);
        Self { socket, call, size, pattern: Pattern::new(size), place: 0 }
    }
}

impl<N: Nic> Work<N> for TcpStream {
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed {
        if !self.call.is_up(host, now)? {
            return Ok(Step::Idle);
        }
        let size = self.size as u64;
        let socket = host.tcp_socket(self.socket);
        // What a write that blocks has still to hand over.
        let written = narrow32(self.place % size) as usize;
        let rest = self.pattern.at(self.place, self.size - written);
        let count = socket.send_slice(rest).map_err(|_| StackError::Closed(self.call.to))? as u64;
        if count == 0 {
            return Ok(Step::Idle);
        }
        let before = self.place / size;
        self.place += count;
        tally.add(now, self.place / size - before, count);
        Ok(Step::Moved)
    }

    fn close(&mut self, host: &mut Host<'_, N>) -> bool {
        self.call.close(host)
    }
}

/// A connection that is being made.
pub(super) struct Connecting {
    socket: SocketHandle,
    pub(super) to: SocketAddrV4,
    patience: u64,
}

impl Connecting {
    /// Calls the peer of `options`.
    pub(super) fn new<N: Nic>(
        host: &mut Host<'_, N>,
        socket: SocketHandle,
        options: &Options,
    ) -> Self {
        let to = options.task.peer();
        host.connect(socket, to);
        Self { socket, to, patience: nanos(options.task.patience) }
    }

    /// Is the connection there?
    pub(super) fn is_up<N: Nic>(
        &self,
        host: &mut Host<'_, N>,
        now: u64,
    ) -> Result<bool, StackError> {
        let socket = host.tcp_socket(self.socket);
        match socket.state() {
            State::Established => Ok(true),
            State::SynSent if now < self.patience => Ok(false),
            State::SynSent => Err(StackError::NoAnswer(self.to)),
            _ => Err(StackError::Closed(self.to)),
        }
    }

    /// Closes the connection; has the other end received all that was sent?
    pub(super) fn close<N: Nic>(&self, host: &mut Host<'_, N>) -> bool {
        let socket = host.tcp_socket(self.socket);
        socket.close();
        // Then our FIN is acknowledged.
        matches!(socket.state(), State::Closed | State::FinWait2 | State::TimeWait)
    }
}
