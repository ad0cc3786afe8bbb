//! Receivers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::State;

use super::super::frame::{self, Udp};
use super::super::options::Options;
use super::super::report::Schedule;
use super::super::smoltcp_host::Host;
use super::{Passed, Step, Work};
use crate::workload::{Gaps, Pattern, Tally, number};
use vmlan_driver::nic::Nic;

/// Longest stretch of an application's work that no interrupt cuts short.
const SLICE: Duration = Duration::from_micros(2);
const CONNECTIONS: usize = 4; // Connections that are served at once.

/// The datagram that is being put together: fragments come in order, or not at all.
#[derive(Clone, Copy, Debug, Default)]
struct Pieces {
    ident: u16,
    length: usize,
    sum: u64,
    name: Option<Name>,
}

/// The sender of a datagram, and the datagram's number.
type Name = (SocketAddr, u64);

/// What a frame was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// A datagram with so many bytes.
    Good(usize, Option<Name>),
    /// Not all of it yet.
    Part,
    Corrupt,
}

impl Pieces {
    fn judge(&mut self, frame: &[u8]) -> Verdict {
        let Some(udp) = Udp::parse(frame) else { return Verdict::Corrupt };
        let name = |payload| Some((udp.from(frame)?.into(), number(payload)?));
        if !udp.is_fragment() {
            return udp
                .payload(frame)
                .map_or(Verdict::Corrupt, |payload| Verdict::Good(payload.len(), name(payload)));
        }
        let Some(piece) = udp.piece(frame) else { return Verdict::Corrupt };
        if udp.offset == 0 {
            let name = piece.get(frame::UDP..).and_then(name);
            *self = Self { ident: udp.ident, length: 0, sum: 0, name };
        } else if (udp.ident, udp.offset) != (self.ident, self.length) {
            // A fragment before it was lost. The missing number will show that the datagram never
            // came.
            return Verdict::Part;
        }
        self.length += piece.len();
        self.sum += frame::sum(piece);
        if udp.more {
            return Verdict::Part;
        }
        let length = std::mem::take(&mut self.length);
        if frame::is_whole(&frame[26..34], self.sum, length) {
            Verdict::Good(length - frame::UDP.min(length), self.name)
        } else {
            Verdict::Corrupt
        }
    }
}

/// Takes datagrams from the socket queue.
pub(super) struct UdpSink {
    schedule: Schedule,
    app: Duration,
    budget: u16,
    pieces: Pieces,
    gaps: Gaps,
    /// What is left of the application's work on a datagram.
    left: Duration,
}

impl UdpSink {
    pub(super) fn new(options: &Options, schedule: Schedule) -> Self {
        Self {
            schedule,
            app: Duration::from_nanos(options.task.app_ns),
            budget: options.budget,
            pieces: Pieces::default(),
            gaps: Gaps::new(),
            left: Duration::ZERO,
        }
    }

    /// Takes one datagram; false when there is none.
    fn take<N: Nic>(&mut self, host: &Host<'_, N>, tally: &mut Tally, now: u64) -> bool {
        let verdict = host.driver.socket.take(|frame| self.pieces.judge(frame));
        match verdict {
            None => return false,
            Some(Verdict::Corrupt) => tally.corrupt += 1,
            // An empty one only says hello.
            Some(Verdict::Part | Verdict::Good(0, _)) => {}
            Some(Verdict::Good(len, name)) => {
                self.left = self.app;
                tally.add(now, 1, len as u64);
                if let Some((from, number)) = name {
                    self.gaps.note(from, number, tally);
                }
            }
        }
        true
    }

    /// The application's work on a datagram, or a slice of it when interrupts must be looked at.
    fn work(&mut self) {
        if self.left.is_zero() {
            return;
        }
        let slice = match self.schedule {
            Schedule::InterruptsFirst => self.left.min(SLICE),
            _ => self.left,
        };
        let start = Instant::now();
        while start.elapsed() < slice {
            std::hint::spin_loop();
        }
        self.left -= slice;
    }
}

impl<N: Nic> Work<N> for UdpSink {
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed {
        // Where interrupts come first, each datagram gives them a chance.
        let most = if self.schedule == Schedule::InterruptsFirst { 1 } else { self.budget };
        let mut any = false;
        for _ in 0..u32::from(most).min(tally.left()) {
            if self.left.is_zero() && !self.take(host, tally, now) {
                break;
            }
            self.work();
            any = true;
        }
        Ok(Step::moved(any))
    }
}

/// Reads TCP connections.
pub(super) struct TcpSink {
    sockets: Vec<Reader>,
    port: u16,
    /// To compare with.
    pattern: Option<Pattern>,
    scratch: Box<[u8]>,
}

struct Reader {
    handle: SocketHandle,
    place: u64,
    was_up: bool,
}

impl TcpSink {
    pub(super) fn new<N: Nic>(options: &Options, host: &mut Host<'_, N>, port: u16) -> Self {
        let window = options.window();
        let mut open = || Reader { handle: host.tcp(window, 4096), place: 0, was_up: false };
        Self {
            sockets: (0..CONNECTIONS).map(|_| open()).collect(),
            port,
            pattern: options.task.verify.then(|| Pattern::new(window)),
            scratch: vec![0; window].into(),
        }
    }

    fn serve<N: Nic>(
        &mut self,
        at: usize,
        host: &mut Host<'_, N>,
        tally: &mut Tally,
        now: u64,
    ) -> bool {
        let reader = &mut self.sockets[at];
        let socket = host.tcp_socket(reader.handle);
        if !socket.is_open() {
            *reader = Reader { place: 0, was_up: false, ..*reader };
            // The port is not zero and the socket is closed.
            let _ = socket.listen(self.port);
        }
        if socket.may_send() && !std::mem::replace(&mut reader.was_up, true) {
            tally.connections += 1;
        }
        let mut any = false;
        while socket.can_recv() {
            let Ok(len) = socket.recv_slice(&mut self.scratch) else { break };
            if let Some(pattern) = &self.pattern {
                let good = pattern.at(reader.place, len);
                let wrong = self.scratch[..len].iter().zip(good).filter(|(a, b)| a != b).count();
                tally.corrupt += wrong as u64;
            }
            reader.place += len as u64;
            tally.add(now, 1, len as u64);
            any = true;
        }
        if socket.state() == State::CloseWait && !socket.can_recv() {
            socket.close();
        }
        any
    }
}

impl<N: Nic> Work<N> for TcpSink {
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed {
        let mut any = false;
        for at in 0..self.sockets.len() {
            any |= self.serve(at, host, tally, now);
        }
        Ok(Step::moved(any))
    }

    fn close(&mut self, host: &mut Host<'_, N>) -> bool {
        for reader in &self.sockets {
            host.tcp_socket(reader.handle).abort();
        }
        true
    }
}
