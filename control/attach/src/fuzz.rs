//! The body of the fuzz target `vhost_user`: a front end and its guest against one connection's state, without a
//! socket. Kept inputs are replayed as a plain test.
//!
//! An input is a sequence of steps, each a byte and what follows it:
//!
//! | | meaning |
//! | --- | --- |
//! | 0 to 0x7f | a request of this number: a byte of descriptors (low nibble: how many; high: which), a byte of length, the body |
//! | 0x80 + n | an honest set-up, up to step n |
//! | 0x90 to 0x9f | pull, hold some; 0xa0 to 0xaf: push; 0xb0 to 0xbf: the rest of what workers do |
//! | 0xc0 to 0xff | the guest writes: two bytes of address, a byte of length, the bytes |
//!
//! Guest memory is 64 KiB at address 0, for the guest and for the VMM, so that small numbers mean something.
#![allow(clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vmlan_frame::{Batch, Offload, Port, Sink};
use vmlan_ram::Slice;

use crate::sys;
use crate::vhost_user::fuzzing::Waker;
use crate::vhost_user::wire::{HEADER, Header, Message, Request, protocol};
use crate::vhost_user::{FEATURES, Session, VhostUserPort};

const MEMORY: u64 = 0x1_0000;
const NEED_REPLY: u32 = 1 << 3;

/// Holds each frame whose number is a multiple of this.
struct Some(usize);

impl Sink for Some {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        (0..batch.len()).filter(|i| i % self.0 == 0).for_each(|i| batch.hold(i));
    }
}

struct World {
    port: Arc<VhostUserPort>,
    session: Option<Session>,
    ram: File,
    fds: [OwnedFd; 3],
    batch: Batch<'static>,
}

/// Runs one input. Panics if the state machine breaks a promise.
pub fn vhost_user(data: &[u8]) {
    let waker = Arc::new(Waker::new().expect("an eventfd"));
    let ram = File::from(sys::sealed_memfd(c"fuzz", MEMORY).expect("a memfd"));
    let fds = [
        ram.as_fd().try_clone_to_owned().expect("a descriptor"),
        sys::eventfd().expect("an eventfd"),
        File::open("/dev/null").expect("/dev/null").into(),
    ];
    let port = Arc::new(VhostUserPort::new(waker));
    let mut world = World { port, session: None, ram, fds, batch: Batch::new() };
    let mut input = Input(data);
    while let [step] = *input.take(1) {
        world.step(step, &mut input);
    }
    world.session = None;
    assert!(!world.port.is_up() && world.port.doorbells().is_empty(), "left behind");
}

struct Input<'d>(&'d [u8]);

impl<'d> Input<'d> {
    fn take(&mut self, n: usize) -> &'d [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
}

impl World {
    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        match step {
            0..=0x7f => {
                let (fds, len) = (input.byte(), usize::from(input.byte()));
                let mut body = input.take(len).to_vec();
                body.resize(len, 0);
                self.request(u32::from(step), body, fds);
            }
            0x80..=0x8f => self.set_up(step & 15),
            0x90..=0x9f => {
                let mut sink = Some(usize::from(step & 15) + 1);
                self.port.pull(&mut self.batch, 32, &mut sink);
            }
            0xa0..=0xaf => self.push(usize::from(step & 15)),
            0xb0..=0xbf => {
                self.port.arm();
                self.port.want_room();
                self.port.room();
                self.port.disarm();
            }
            _ => {
                let at = u64::from(input.byte()) << 8 | u64::from(input.byte());
                let len = usize::from(input.byte()).min(usize::try_from(MEMORY - at).unwrap_or(0));
                self.ram.write_all_at(input.take(len), at).expect("inside the memory");
            }
        }
    }

    fn push(&self, n: usize) {
        let bytes = [0x55; 1500];
        let mut batch = Batch::new();
        let mut list = Vec::new();
        for i in 0..n {
            let frame = Slice::from_bytes(&bytes).sub(0, 14 + i * 100);
            batch.add(&[frame], Offload::NONE).expect("a good frame");
            list.extend(u16::try_from(i));
        }
        self.port.push(&batch, &list);
    }

    fn request(&mut self, number: u32, body: Vec<u8>, fds: u8) {
        let flags = 1 | NEED_REPLY;
        let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut head = [0; HEADER];
        let bytes = [number, flags, size].into_iter().flat_map(u32::to_ne_bytes);
        head.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        let Ok(header) = Header::parse(&head) else { return };
        let first = usize::from(fds >> 4);
        let pick = |i: usize| self.fds.get((first + i) % 3).map(|fd| fd.try_clone());
        let fds = (0..usize::from(fds & 15)).filter_map(pick).flatten().collect();
        self.handle(Message { header, body, fds });
    }

    fn handle(&mut self, message: Message) {
        let number = message.header.number;
        let port = &self.port;
        let session = self.session.get_or_insert_with(|| Session::new(Arc::clone(port), 2));
        let outcome = session.handle(message);
        let has_reply = Request::from_number(number).is_some_and(Request::has_reply);
        let answered = outcome.reply.is_some() || outcome.hang_up;
        assert!(answered || !has_reply, "request {number} waits for ever");
        assert!(!session.details().is_empty());
        if outcome.hang_up {
            self.session = None;
        }
    }

    /// What an honest front end says, in order; the first `steps` of it.
    fn set_up(&mut self, steps: u8) {
        let words = |list: &[u64]| list.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        let pair = |ring: u64, value: u64| words(&[ring | value << 32]);
        let mut list = vec![
            (16, words(&[protocol::OFFERED]), 0),
            (2, words(&[FEATURES & !(1 << 26)]), 0),
            (37, words(&[0, 0, MEMORY, 0, 0]), 1),
        ];
        for ring in 0..2u64 {
            let at = 0x4000 * ring;
            list.push((8, pair(ring, 16), 0));
            list.push((9, words(&[ring, at, at + 0x2000, at + 0x1000, 0]), 0));
            list.push((13, words(&[ring]), 0x11));
            list.push((12, words(&[ring]), 0x11));
            list.push((18, pair(ring, 1), 0));
        }
        for (number, body, fds) in list.into_iter().take(usize::from(steps)) {
            self.request(number, body, fds);
        }
    }
}
