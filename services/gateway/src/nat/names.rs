//! A question about names that the host's servers are asked for a guest.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smoltcp::time::{Duration, Instant};

use super::sockets;
use crate::services::dns::{self, Code, Question};

/// How long a server has.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a server is asked, one after the other, the same one again if there is only one.
const TRIES: usize = 3;

/// A question under way.
#[derive(Debug)]
pub(crate) struct Asked {
    query: Vec<u8>,
    question: Question,
    /// The number under which it is asked: not the guest's, whom a liar may watch.
    id: u16,
    socket: OwnedFd,
    tries: usize,
    /// Which server is asked next.
    next: usize,
    until: Instant,
}

/// What came from a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// For the guest.
    Yes(Vec<u8>),
    /// Somebody lies: it is ignored.
    Foreign,
}

/// What `ask` makes of the first server from the `next`th on that it can ask, and which one is
/// next. The host may know no way to some of them.
pub(super) fn first<T>(
    servers: &[SocketAddr],
    next: usize,
    ask: impl Fn(SocketAddr) -> Result<T, Errno>,
) -> Option<(T, usize)> {
    let from = next % servers.len().max(1);
    let mut all = servers.iter().enumerate().cycle().skip(from).take(servers.len());
    all.find_map(|(n, server)| Some((ask(*server).ok()?, n + 1)))
}

fn ask(query: &[u8], id: u16, server: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = sockets::udp(server)?;
    sockets::send(&socket, &dns::renumbered(query, id))?;
    Ok(socket)
}

impl Asked {
    /// Asks the first of `servers` that can be asked. If there is none, the question comes back.
    pub(crate) fn new(
        query: &[u8],
        question: Question,
        id: u16,
        servers: &[SocketAddr],
        now: Instant,
    ) -> Result<Self, Question> {
        let asked = first(servers, 0, |server| ask(query, id, server));
        let Some((socket, next)) = asked else { return Err(question) };
        let (query, until) = (query.to_vec(), now + PATIENCE);
        Ok(Self { query, question, id, socket, tries: 1, next, until })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Reads an answer. With `most`, longer ones are cut short.
    pub(crate) fn receive(&self, room: &mut [u8], most: usize) -> Result<Answered, Errno> {
        let len = sockets::receive(&self.socket, room)?;
        let answer = room.get(..len).unwrap_or_default();
        let same = dns::question(answer).filter(|other| {
            !other.is_query() && other.id == self.id && other.asks_the_same(&self.question)
        });
        Ok(match same {
            None => Answered::Foreign,
            Some(_) if len > most => Answered::Yes(self.question.truncated(&self.query)),
            Some(_) => Answered::Yes(dns::renumbered(answer, self.question.id)),
        })
    }

    pub(crate) fn end(&self) -> Instant {
        self.until
    }

    /// No answer came in time: asks the next server. False: that was the last.
    pub(crate) fn again(&mut self, servers: &[SocketAddr], now: Instant) -> bool {
        if self.tries >= TRIES {
            return false;
        }
        let asked = first(servers, self.next, |server| ask(&self.query, self.id, server));
        let Some((socket, next)) = asked else { return false };
        (self.socket, self.next) = (socket, next);
        self.tries += 1;
        self.until = now + PATIENCE;
        true
    }

    /// What the guest is told when nobody knows.
    pub(crate) fn failure(&self) -> Vec<u8> {
        self.question.empty(&self.query, Code::ServerFailure)
    }
}
