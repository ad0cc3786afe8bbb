//! The bodies of the fuzz targets `vhost_user` and `vfio_user`: a VMM and its guest against one
//! connection's state, without a socket. Kept inputs are replayed as plain tests.
//!
//! An input of `vhost_user` is a sequence of steps, each a byte and what follows it:
//!
//! | | meaning |
//! | --- | --- |
//! | 0 to 0x7f | a request of this number: a byte of descriptors, a byte of length, the body |
//! | 0x80 + n | an honest set-up, up to step n |
//! | 0x90 to 0x9f | pull, hold some |
//! | 0xa0 to 0xaf | push |
//! | 0xb0 to 0xbf | the rest of what workers do |
//! | 0xc0 to 0xff | the guest writes: two bytes of address, a byte of length, the bytes |
//!
//! The byte of descriptors says how many (low nibble) and which (high nibble).
//!
//! An input of `vfio_user`:
//!
//! | | meaning |
//! | --- | --- |
//! | 0 to 0x1f | a command of this number, with the rest as above |
//! | 0x20 to 0x3f | an honest set-up, up to step n: version, memory, interrupts, link, rings |
//! | 0x40 to 0x4f | the guest writes a register: two bytes of offset in words, four of value |
//! | 0x50 to 0x5f | the same in shared memory |
//! | 0x60 to 0x7f | the guest reads one |
//! | 0x80 to 0x8f | the unmask eventfd and the timer speak, the cable moves |
//! | 0x90 to 0xff | as above |
//!
//! A high nibble of 0xf in the byte of descriptors stands for NO_REPLY.
//!
//! Guest memory is 64 KiB at address 0, for the guest and for the VMM, so that small numbers mean
//! something.
#![allow(clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vmlan_frame::{Batch, Offload, Port, Sink};
use vmlan_keeper::Descriptor;

use crate::Files;
use vmlan_ram::Slice;

use crate::bytes::length;
use crate::eventfd;
use crate::memory::sealed_memfd;
use crate::vhost_user::fuzzing::Waker;
use crate::vhost_user::wire::{HEADER, Header, Message, Request, protocol};
use crate::vhost_user::{FEATURES, Session, VhostUserPort};

mod peer;
pub use peer::{Driver, LONGEST, Peer};

const MEMORY: u64 = 0x1_0000;
const NEED_REPLY: u32 = 1 << 3;

/// Holds each frame whose number is a multiple of this.
struct Holding(usize);

impl Sink for Holding {
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
    let mut world = World::new();
    let mut input = Input(data);
    while let [step] = *input.take(1) {
        world.step(step, &mut input);
    }
    world.session = None;
    let left = world.port.is_up() || world.port.is_connected();
    assert!(!left && world.port.kicks().len() == 0, "left behind");
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

/// What workers do with a port.
fn work(port: &dyn Port, batch: &mut Batch<'static>, step: u8) {
    let n = usize::from(step & 15);
    match step {
        0x90..=0x9f => {
            port.pull(n % 2, batch, 32, &mut Holding(n + 1));
        }
        0xa0..=0xaf => push(port, n),
        _ => {
            port.arm(n % 2);
            port.want_room();
            port.room();
            port.disarm(n % 2);
        }
    }
}

fn push(port: &dyn Port, n: usize) {
    let bytes = [0x55; 1500];
    let mut batch = Batch::new();
    let mut list = Vec::new();
    for i in 0..n {
        let frame = Slice::from_bytes(&bytes).sub(0, 14 + i * 100);
        batch.add(&[frame], Offload::NONE).expect("a good frame");
        list.extend(u16::try_from(i));
    }
    port.push(&batch, &mut list);
}

/// Two bytes of address, a byte of length, the bytes.
fn guest_writes(ram: &File, input: &mut Input<'_>) {
    let at = u64::from(input.byte()) << 8 | u64::from(input.byte());
    let len = usize::from(input.byte()).min(usize::try_from(MEMORY - at).unwrap_or(0));
    ram.write_all_at(input.take(len), at).expect("inside the memory");
}

/// Guest memory, and the descriptors that a peer may send: it, an eventfd, and another one.
fn memory() -> (File, [OwnedFd; 3]) {
    let ram = File::from(sealed_memfd(c"fuzz", MEMORY).expect("a memfd"));
    let fds = [
        ram.as_fd().try_clone_to_owned().expect("a descriptor"),
        eventfd::new().expect("an eventfd"),
        File::open("/dev/null").expect("/dev/null").into(),
    ];
    (ram, fds)
}

impl World {
    fn new() -> Self {
        let waker = Arc::new(Waker::new().expect("an eventfd"));
        let port = Arc::new(VhostUserPort::new(waker, 2).expect("a timer"));
        let (ram, fds) = memory();
        Self { port, session: None, ram, fds, batch: Batch::new() }
    }

    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        match step {
            0..=0x7f => {
                let (fds, len) = (input.byte(), usize::from(input.byte()));
                let mut body = input.take(len).to_vec();
                body.resize(len, 0);
                self.request(u32::from(step), body, fds);
            }
            0x80..=0x8f => self.set_up(step & 15),
            0x90..=0xbf => work(&*self.port, &mut self.batch, step),
            _ => guest_writes(&self.ram, input),
        }
    }

    fn request(&mut self, number: u32, body: Vec<u8>, fds: u8) {
        let flags = 1 | NEED_REPLY;
        let size = length(body.len());
        let mut head = [0; HEADER];
        let bytes = [number, flags, size].into_iter().flat_map(u32::to_ne_bytes);
        head.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        let Ok(header) = Header::parse(&head) else { return };
        let first = usize::from(fds >> 4);
        let pick = |i: usize| self.fds.get((first + i) % 3).map(|fd| fd.try_clone());
        let fds = (0..usize::from(fds & 15)).filter_map(pick).flatten();
        let fds = fds.map(Descriptor::of).collect();
        self.handle(Message { header, body, fds });
    }

    fn handle(&mut self, message: Message) {
        let number = message.header.number;
        let port = &self.port;
        let session =
            self.session.get_or_insert_with(|| Session::new(Arc::clone(port), 2, Files::Ram, true));
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
            (2, words(&[FEATURES & !(1 << 26 | 1 << 34)]), 0),
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

mod vfio {
    //! See the table above.

    use super::*;
    use crate::connection;
    use crate::vfio_user::Model;
    use crate::vfio_user::fuzzing::{Area, Header, Replies, Session, VfioUserPort, new_port};

    pub(super) struct World {
        pub(super) port: Arc<VfioUserPort>,
        pub(super) session: Option<Session>,
        /// What clients may map, and its file.
        area: Area,
        pages: File,
        pub(super) ram: File,
        fds: [OwnedFd; 3],
        batch: Batch<'static>,
        replies: Replies,
    }

    /// Runs one input. Panics if the state machine breaks a promise.
    pub fn vfio_user(data: &[u8]) {
        let mut world = World::new();
        let mut input = Input(data);
        while let [step] = *input.take(1) {
            world.step(step, &mut input);
        }
        world.session = None;
        assert!(!world.port.is_up() && !world.port.is_connected(), "left behind");
    }

    /// The honest set-up is one: the port is up, and a frame comes out of it.
    #[test]
    fn an_honest_set_up_brings_the_port_up_and_a_frame_out() {
        let mut world = World::new();
        let descriptor = [0, 0x30, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0x0b, 0, 0, 0, 0];
        world.ram.write_all_at(&descriptor, 0x1000).expect("inside the memory");
        for n in 0..16u64 {
            let buffer = (0x4000 + n * 0x800).to_le_bytes();
            world.ram.write_all_at(&buffer, 0x2000 + n * 16).expect("inside the memory");
        }
        world.set_up(31);
        assert!(world.port.is_up());
        struct All;
        impl Sink for All {
            fn deliver(&mut self, _: &mut Batch<'_>) {}
        }
        while world.port.pull(0, &mut world.batch, 32, &mut All) > 0 {}
        push(&*world.port, 3);
        let (input, output) = world.port.counters().snapshot();
        assert!(input.frames > 0 && output.frames > 0, "{input:?} {output:?}");
    }

    impl World {
        pub(super) fn new() -> Self {
            let (ram, fds) = memory();
            let (port, area) = new_port(Model::E1000).expect("a port");
            let area = area.expect("shared registers");
            let pages = area.file.try_clone().expect("a descriptor").into();
            let (batch, replies) = (Batch::new(), Replies::default());
            World { port, session: None, area, pages, ram, fds, batch, replies }
        }

        pub(super) fn step(&mut self, step: u8, input: &mut Input<'_>) {
            match step {
                0..=0x1f => {
                    let (fds, len) = (input.byte(), usize::from(input.byte()));
                    let mut body = input.take(len).to_vec();
                    body.resize(len, 0);
                    self.command(step.into(), &body, fds);
                }
                0x20..=0x3f => self.set_up(step & 31),
                0x40..=0x7f => {
                    let at = (u64::from(input.byte()) << 8 | u64::from(input.byte())) * 4;
                    match step {
                        0x40..=0x4f => self.write(at, input.take(4)),
                        0x50..=0x5f => {
                            let at = 0x2000 + at % 0x2000;
                            self.pages.write_all_at(input.take(4), at).expect("a page");
                        }
                        _ => self.access(9, at, &[]),
                    }
                }
                0x80..=0x8f => {
                    if let Some(session) = &self.session {
                        session.unmasked();
                    }
                    self.port.nic().timer();
                    self.port.nic().set_link(step & 1 != 0);
                }
                0x90..=0xbf => work(&*self.port, &mut self.batch, step),
                _ => guest_writes(&self.ram, input),
            }
        }

        /// One access to BAR 0.
        fn access(&mut self, command: u16, at: u64, data: &[u8]) {
            let mut body = at.to_ne_bytes().to_vec();
            let count = if command == 9 { 4 } else { length(data.len()) };
            body.extend([0, count].into_iter().flat_map(u32::to_ne_bytes));
            body.extend(data);
            self.command(command, &body, 0);
        }

        pub(super) fn write(&mut self, at: u64, data: &[u8]) {
            self.access(10, at, data);
        }

        fn command(&mut self, command: u16, body: &[u8], fds: u8) {
            let first = usize::from(fds >> 4);
            let pick = |i: usize| self.fds.get((first + i) % 3).map(|fd| fd.try_clone());
            let fds = (0..usize::from(fds & 15)).filter_map(pick).flatten();
            let fds = fds.map(Descriptor::of).collect();
            let header = Header { id: 1, command, no_reply: first == 15 };
            let port = &self.port;
            let session = self.session.get_or_insert_with(|| {
                let area = Some(self.area.clone());
                let session = Session::new(Arc::clone(port), area, Files::Ram, false);
                session.begin();
                session
            });
            let outcome =
                session.handle(connection::Message { header, body, fds }, &mut self.replies);
            let answer = self.replies.bytes();
            assert_eq!(answer.is_empty(), header.no_reply, "command {command}");
            if let Some(size) = answer.get(4..8) {
                assert_eq!(size, length(answer.len()).to_ne_bytes());
            }
            self.replies.clear();
            let _ = session.memory();
            if outcome.hang_up {
                self.session = None;
            }
        }

        /// What an honest client and its driver do, in order; the first `steps` of it.
        pub(super) fn set_up(&mut self, steps: u8) {
            let halves = |l: &[u32]| l.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
            let map = [halves(&[32, 3, 0, 0, 0, 0]), MEMORY.to_ne_bytes().to_vec()].concat();
            // EVENTFD and TRIGGER of INTx, then bus master and memory.
            let irqs = halves(&[20, 0x24, 0, 0, 1]);
            let command = [halves(&[4, 0, 7, 2]), vec![6, 0]].concat();
            let messages = [(1, vec![0; 4], 0), (2, map, 1), (8, irqs, 0x11), (10, command, 0)];
            // CTRL.SLU; then rings of 16 descriptors, all transmit descriptors and no receive
            // descriptor ours; IMS.
            let registers = [
                (0, 0x40),
                (0x3800, 0x1000),
                (0x3808, 256),
                (0x2800, 0x2000),
                (0x2808, 256),
                (0x2818, 15),
                (0x400, 0x10_000a),
                (0x100, 0x801a),
                (0xd0, 0xffff_ffff),
                (0x3818, 15),
            ];
            let steps = usize::from(steps);
            for (number, body, fds) in messages.into_iter().take(steps) {
                self.command(number, &body, fds);
            }
            for (at, value) in registers.into_iter().take(steps.saturating_sub(4)) {
                self.write(at, &u32::to_ne_bytes(value));
            }
        }
    }
}

pub use vfio::vfio_user;
