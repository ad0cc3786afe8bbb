//! The port's thread with one peer: all input and output on its socket.
//!
//! The peer can make each system call here as slow as it likes. That costs this thread, and through
//! it the peer.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::StreamPort;
use super::keeping::Keeping;
use super::outbox::Chunk;
use super::read::{Look, Reader};
use crate::keep::Kept;
use crate::sys;
use crate::thread_control::lock;

/// How long the bytes of a peer that sends few at a time are left to gather.
const GATHER: Duration = Duration::from_millis(1);

pub(super) struct Conversation<'a> {
    port: &'a StreamPort,
    reader: &'a mut Reader,
    keeping: &'a mut Keeping,
    socket: Box<dyn Kept>,
    /// Descriptors may lie between the bytes.
    peeks: bool,
    /// What is being sent.
    chunk: Option<Chunk>,
    /// The socket took everything so far.
    writable: bool,
    /// The socket gave as much as there was room for.
    readable: bool,
    /// Nothing can be sent any more.
    deaf: bool,
    /// Why nothing is read any more.
    ended: Option<Look>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        port: &'a StreamPort,
        reader: &'a mut Reader,
        keeping: &'a mut Keeping,
        (socket, peeks): (Box<dyn Kept>, bool),
    ) -> Self {
        reader.reset();
        lock(&port.outbox).set_connected(true);
        port.set_up();
        let (chunk, ended) = (None, None);
        let (writable, readable, deaf) = (true, true, false);
        Self { port, reader, keeping, socket, peeks, chunk, writable, readable, deaf, ended }
    }

    /// Moves bytes until the peer is gone and the worker has finished what came, or the port is
    /// closed. Returns why it ended.
    pub(super) fn run(mut self) -> Option<Look> {
        while !self.port.wake.stopped() {
            // Each of them is one system call at most.
            let moved = self.send() | self.read() | self.give();
            if !moved && self.arm() {
                if self.is_over() {
                    break;
                }
                self.sleep();
            }
        }
        lock(&self.port.outbox).set_connected(false);
        self.put_back();
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        self.ended
    }

    fn send(&mut self) -> bool {
        if self.deaf || !self.writable {
            return false;
        }
        if self.chunk.is_none() {
            self.chunk = lock(&self.port.outbox).take();
        }
        let Some(chunk) = &mut self.chunk else { return false };
        let bytes = chunk.rest();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.socket, bytes, flags) {
            Ok(n) => {
                self.writable = n == bytes.len();
                chunk.sent(n);
                if self.writable {
                    self.put_back();
                }
            }
            Err(Errno::INTR) => {}
            // The last two pass, as a full socket does.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.writable = false,
            Err(_) => {
                (self.deaf, self.readable) = (true, true);
                lock(&self.port.outbox).set_connected(false);
                self.put_back();
            }
        }
        true
    }

    /// Gives the workers the chunk to fill again.
    fn put_back(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            let wanted = lock(&self.port.outbox).give_back(chunk);
            if wanted {
                sys::notify(self.port.bell.as_fd());
            }
        }
    }

    fn read(&mut self) -> bool {
        if !self.readable || !self.reads() {
            return false;
        }
        let look = self.reader.read(self.socket.as_fd(), self.peeks, &self.port.counters.input);
        self.note(look);
        if self.reader.is_thin() {
            self.port.wake.sleep(GATHER);
        }
        true
    }

    /// True if more may be read now.
    fn reads(&self) -> bool {
        self.ended.is_none() && !self.reader.is_ahead()
    }

    fn note(&mut self, look: Look) {
        match look {
            Look::More => {}
            // Whoever does not listen any more is heard to the end.
            Look::Drained if self.deaf => self.ended = Some(Look::Closed),
            Look::Drained => self.readable = false,
            _ => self.ended = Some(look),
        }
    }

    /// Gives the worker what was read.
    fn give(&mut self) -> bool {
        if !self.reader.has_news() || !self.port.handover.give(self.reader) {
            return false;
        }
        if self.port.handover.worker_sleeps() {
            sys::notify(self.port.bell.as_fd());
        }
        if self.reader.cut(&self.port.counters.input) == Look::Nonsense {
            self.ended = Some(Look::Nonsense);
        }
        true
    }

    /// Asks to be woken. False if there is something to do already.
    fn arm(&self) -> bool {
        let sends = !self.deaf && self.chunk.is_none();
        if sends && !lock(&self.port.outbox).arm() {
            return false;
        }
        !self.reader.has_news() || self.port.handover.arm_thread(false)
    }

    /// True if the worker has finished everything that the peer had sent.
    fn is_over(&self) -> bool {
        self.ended.is_some() && !self.reader.has_news() && !self.port.handover.arm_thread(true)
    }

    /// Sleeps until something can be done. A socket of which nothing is wanted is not watched: it
    /// would tell of its end again and again.
    fn sleep(&mut self) {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.reads());
        wanted.set(PollFlags::OUT, !self.deaf && self.chunk.is_some());
        let socket = (!wanted.is_empty()).then(|| (self.socket.as_fd(), wanted));
        let socket = self.keeping.sleep(&self.port.wake, socket);
        let trouble = socket.difference(PollFlags::IN | PollFlags::OUT);
        self.readable |= socket.contains(PollFlags::IN) || !trouble.is_empty();
        self.writable |= socket.contains(PollFlags::OUT) || !trouble.is_empty();
    }
}
