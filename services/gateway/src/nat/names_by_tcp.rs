//! Questions about names by TCP (RFC 7766): a connection of a guest that ends here, and for names
//! outside one to a server, for one question at a time.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};

use super::names::first;
use super::sockets;
use super::stack::{Sizes, Stack, Wire};
use crate::services::dns::{self, Code, Names, Question};

/// How long a connection may be silent, and how long a server has (RFC 7766, 6.2.3).
const IDLE: Duration = Duration::from_secs(10);
/// Servers that are asked, one after the other.
const TRIES: usize = 2;
/// Bytes that wait in the guest's connection, from it and to it. Longer messages pass in parts.
const WAITING: Sizes = Sizes { from_guest: 2048, to_guest: 16 << 10 };
const _: () = assert!(WAITING.is_told_rightly());
/// Longest question. None of a guest's is as long.
const LONGEST: usize = 4096;
/// Bytes of a message's length before it.
const PREFIX: usize = 2;

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// Nobody watches the socket yet.
    pub(crate) new_socket: bool,
    /// The connection has ended.
    pub(crate) over: bool,
}

/// What happened that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub(crate) answered: u64,
    pub(crate) forwarded: u64,
    pub(crate) malformed: u64,
    pub(crate) foreign: u64,
    pub(crate) unanswered: u64,
    pub(crate) limited: u64,
}

/// A question that a server was asked.
#[derive(Debug)]
struct Pending {
    socket: OwnedFd,
    query: Vec<u8>,
    question: Question,
    id: u16,
    /// What is left to be sent.
    unsent: Vec<u8>,
    got: Vec<u8>,
    tries: usize,
    /// Which server is asked next.
    next: usize,
    until: Instant,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct NamesByTcp {
    stack: Box<Stack>,
    /// The beginning of a question.
    question: Vec<u8>,
    /// The rest of an answer.
    answer: Vec<u8>,
    pending: Option<Pending>,
    last: Instant,
}

fn prefixed(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], message.get(..len.into()).unwrap_or_default()].concat()
}

/// The message that stands behind its length, once it is whole.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = bytes.split_first_chunk::<PREFIX>()?;
    rest.get(..u16::from_be_bytes(*len).into())
}

fn ask(
    query: Vec<u8>,
    question: Question,
    id: u16,
    servers: &[SocketAddr],
    (tries, next): (usize, usize),
    now: Instant,
) -> Result<Pending, (Vec<u8>, Question)> {
    let Some((socket, next)) = first(servers, next, sockets::tcp) else {
        return Err((query, question));
    };
    let unsent = prefixed(&dns::renumbered(&query, id));
    let (got, tries, until) = (Vec::new(), tries + 1, now + IDLE);
    Ok(Pending { socket, query, question, id, unsent, got, tries, next, until })
}

impl Pending {
    /// Sends and receives what can be: the answer, once it is whole.
    fn turn(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        while !self.unsent.is_empty() {
            match sockets::send(&self.socket, &self.unsent) {
                Ok(sent) => _ = self.unsent.drain(..sent.min(self.unsent.len())),
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let mut room = [0; 4096];
        loop {
            if let Some(answer) = whole(&self.got) {
                return Ok(Some(answer.to_vec()));
            }
            match sockets::receive(&self.socket, &mut room) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(len) => self.got.extend(room.get(..len).unwrap_or_default()),
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}

impl NamesByTcp {
    /// A guest's connection to `own`; `syn` is its first segment.
    pub(crate) fn new<'a>(
        own: SocketAddr,
        seed: u64,
        syn: &'a [u8],
        wire: &mut Wire<'a>,
        now: Instant,
    ) -> Self {
        let mut stack = Stack::answer(own, WAITING, seed, wire, now);
        stack.input(syn, wire, now);
        let (question, answer) = (Vec::new(), Vec::new());
        Self { stack: Box::new(stack), question, answer, pending: None, last: now }
    }

    /// A packet of the guest's.
    pub(crate) fn packet<'a>(&mut self, packet: &'a [u8], wire: &mut Wire<'a>, now: Instant) {
        self.stack.input(packet, wire, now);
    }

    /// The server's socket, if one is being asked.
    pub(crate) fn socket(&self) -> Option<&OwnedFd> {
        self.pending.as_ref().map(|pending| &pending.socket)
    }

    /// Is it over but for waiting?
    pub(crate) fn may_be_replaced(&mut self) -> bool {
        matches!(self.stack.socket().state(), State::Closed | State::TimeWait)
    }

    /// Reads a question, has it answered, sends the answer: as far as it goes. `number` gives one
    /// to a question for a server; none: this guest has asked enough.
    pub(crate) fn turn(
        &mut self,
        (names, domain, servers): (&dyn Names, &str, &[SocketAddr]),
        wire: &mut Wire<'_>,
        now: Instant,
        mut number: impl FnMut() -> Option<u16>,
    ) -> (Served, Events) {
        let (mut events, mut new_socket) = (Events::default(), false);
        let end = |kept: &mut Self, wire: &mut Wire<'_>| {
            kept.stack.socket().abort();
            kept.stack.output(wire, now);
            Served { new_socket: false, over: true }
        };
        loop {
            new_socket |= self.hear_server(servers, now, &mut events);
            self.speak(now);
            if self.pending.is_none() && self.answer.is_empty() {
                self.listen(now);
                if let Some(query) = whole(&self.question).map(<[u8]>::to_vec) {
                    self.question.drain(..PREFIX + query.len());
                    self.last = now;
                    let Some(question) = dns::question(&query).filter(Question::is_query) else {
                        events.malformed += 1;
                        return (end(self, wire), events);
                    };
                    if let Some(answer) = dns::answer(&question, &query, domain, names) {
                        events.answered += 1;
                        self.answer = prefixed(&answer);
                    } else {
                        let id = number();
                        events.limited += u64::from(id.is_none());
                        let asked = match id {
                            Some(id) => ask(query, question, id, servers, (0, 0), now),
                            None => Err((query, question)),
                        };
                        new_socket |= self.wait_for(asked, &mut events);
                    }
                    continue;
                }
                if self.question.len() >= LONGEST {
                    events.malformed += 1;
                    return (end(self, wire), events);
                }
            }
            // Who does not read its answer is silent as well.
            if self.pending.is_none() && now >= self.last + IDLE {
                return (end(self, wire), events);
            }
            self.stack.output(wire, now);
            let socket = self.stack.socket();
            let said_all = !socket.may_recv() && socket.state() != State::SynReceived;
            if said_all && self.pending.is_none() && self.answer.is_empty() {
                socket.close();
                self.stack.output(wire, now);
            }
            let over = matches!(
                self.stack.socket().state(),
                State::Closed | State::TimeWait | State::Listen
            );
            return (Served { new_socket, over }, events);
        }
    }

    /// Takes bytes of a question, no more than it may have.
    fn listen(&mut self, now: Instant) {
        let socket = self.stack.socket();
        while whole(&self.question).is_none() && self.question.len() < LONGEST && socket.can_recv()
        {
            let question = &mut self.question;
            let took = socket.recv(|bytes| {
                let len = bytes.len().min(LONGEST - question.len());
                question.extend(bytes.get(..len).unwrap_or_default());
                (len, ())
            });
            if took.is_err() {
                return;
            }
            self.last = now;
        }
    }

    /// Sends more of an answer.
    fn speak(&mut self, now: Instant) {
        let socket = self.stack.socket();
        if !self.answer.is_empty() {
            match socket.send_slice(&self.answer) {
                Ok(0) => {}
                Ok(sent) => {
                    self.answer.drain(..sent);
                    self.last = now;
                }
                // The guest has gone: nobody waits for it.
                Err(_) => self.answer.clear(),
            }
        }
    }

    /// What the server has said by now. True if another is asked.
    fn hear_server(&mut self, servers: &[SocketAddr], now: Instant, events: &mut Events) -> bool {
        let Some(mut pending) = self.pending.take() else { return false };
        let heard = pending.turn();
        if matches!(heard, Ok(None)) && now < pending.until {
            self.pending = Some(pending);
            return false;
        }
        self.last = now;
        if let Ok(Some(answer)) = &heard {
            let same = dns::question(answer).is_some_and(|other| {
                !other.is_query()
                    && other.id == pending.id
                    && other.asks_the_same(&pending.question)
            });
            if same {
                events.forwarded += 1;
                self.answer = prefixed(&dns::renumbered(answer, pending.question.id));
                return false;
            }
            events.foreign += 1;
        }
        let Pending { query, question, id, tries, next, .. } = pending;
        let again = if tries < TRIES {
            ask(query, question, id, servers, (tries, next), now)
        } else {
            Err((query, question))
        };
        self.wait_for(again, events)
    }

    /// Waits for a server, if there is one: true. If there is none, the guest is told so.
    fn wait_for(
        &mut self,
        asked: Result<Pending, (Vec<u8>, Question)>,
        events: &mut Events,
    ) -> bool {
        match asked {
            Ok(pending) => self.pending = Some(pending),
            Err((query, question)) => {
                events.unanswered += 1;
                self.answer = prefixed(&question.empty(&query, Code::ServerFailure));
            }
        }
        self.pending.is_some()
    }

    /// When it wants a turn though nothing comes.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        let waits = self.pending.as_ref().map_or(self.last + IDLE, |pending| pending.until);
        self.stack.due(now).into_iter().chain([waits]).min()
    }
}
