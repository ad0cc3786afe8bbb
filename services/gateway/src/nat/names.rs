//! A question about names that the host's servers are asked for a guest.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smoltcp::time::{Duration, Instant};

use super::sockets;
use crate::services::dns::{self, Code, Question};

/// How long a server has.
const PATIENCE: Duration = Duration::from_secs(3);
/// Servers that are asked, one after the other, the same one again if there is only one.
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

fn ask(query: &[u8], id: u16, servers: &[SocketAddr], tries: usize) -> Result<OwnedFd, Errno> {
    let to = servers.get(tries % servers.len().max(1)).ok_or(Errno::DESTADDRREQ)?;
    let socket = sockets::udp(*to)?;
    sockets::send(&socket, &dns::renumbered(query, id))?;
    Ok(socket)
}

impl Asked {
    /// Asks the first of `servers`.
    pub(crate) fn new(
        query: &[u8],
        question: Question,
        id: u16,
        servers: &[SocketAddr],
        now: Instant,
    ) -> Result<Self, Errno> {
        let socket = ask(query, id, servers, 0)?;
        Ok(Self { query: query.to_vec(), question, id, socket, tries: 1, until: now + PATIENCE })
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
        let Ok(socket) = ask(&self.query, self.id, servers, self.tries) else { return false };
        self.socket = socket;
        self.tries += 1;
        self.until = now + PATIENCE;
        true
    }

    /// What the guest is told when nobody knows.
    pub(crate) fn failure(&self) -> Vec<u8> {
        self.question.empty(&self.query, Code::ServerFailure)
    }
}
