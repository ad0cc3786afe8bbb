//! A chip with vectors of MSI-X and an idle page (vmxnet3), and whoever says what he likes about
//! them.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use vmlan_keeper::Descriptor;
use vmlan_nic::chip::Host;

use crate::Files;
use crate::eventfd;
use crate::vfio_user::Model;
use crate::vfio_user::handle::new_port;
use crate::vfio_user::nic_host::Mode;
use crate::vfio_user::port::VfioUserPort;
use crate::vfio_user::session::{Message, Session};
use crate::vfio_user::wire::{Header, Replies, irq, set_irqs::*, words};

struct Client {
    port: Arc<VfioUserPort>,
    session: Session,
    lines: Vec<File>,
}

impl Client {
    fn new() -> Self {
        Self::of(Model::Vmxnet3)
    }

    fn of(model: Model) -> Self {
        let (port, area) = new_port(model).unwrap();
        let session = Session::new(Arc::clone(&port), area, Files::Ram, false);
        session.begin();
        let lines = (0..40).map(|_| eventfd::new().unwrap().into()).collect();
        let mut client = Self { port, session, lines };
        assert_eq!(client.ask(1, &[0; 4], Vec::new()).0, 0, "VERSION");
        client
    }

    /// The error number, the body of the reply, and the descriptor that comes with it.
    fn ask(
        &mut self,
        command: u16,
        body: &[u8],
        fds: Vec<Descriptor>,
    ) -> (u8, Vec<u8>, Option<Arc<OwnedFd>>) {
        let header = Header { id: 1, command, no_reply: false };
        let mut replies = Replies::default();
        let outcome = self.session.handle(Message { header, body, fds }, &mut replies);
        let bytes = replies.bytes();
        (bytes[12], bytes[16..].to_vec(), outcome.fd)
    }

    /// Eventfds by number.
    fn fds(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<Descriptor> {
        let fd = |n: usize| self.lines[n].as_fd().try_clone_to_owned().unwrap();
        numbers.into_iter().map(|n| Descriptor::of(fd(n))).collect()
    }

    fn set(&mut self, flags: u32, start: u32, count: u32, more: &[u8], fds: Vec<Descriptor>) -> u8 {
        let mut body = words(&[20, flags, irq::MSIX, start, count]);
        body.extend(more);
        self.ask(8, &body, fds).0
    }

    /// Connects `count` vectors from `start` on to the eventfds of the same numbers.
    fn connect(&mut self, start: u32, count: u32) -> u8 {
        let fds = self.fds(start as usize..(start + count) as usize);
        self.set(DATA_EVENTFD | ACTION_TRIGGER, start, count, &[], fds)
    }

    /// Which of the eventfds were written to, once, when all vectors and some more sent.
    fn sent(&mut self) -> Vec<usize> {
        (0..40).chain([u16::MAX]).for_each(|vector| self.port.host().send(vector));
        let mut found = Vec::new();
        for (n, line) in self.lines.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            if line.read_exact(&mut bytes).is_ok() {
                assert_eq!(u64::from_ne_bytes(bytes), 1);
                found.push(n);
            }
        }
        found
    }
}

const CONNECT: u32 = DATA_EVENTFD | ACTION_TRIGGER;
const EINVAL: u8 = 22;

/// Who exchanges a vector's eventfd waits, for a second at most, until nobody else has it.
#[test]
fn what_is_held_on_to_delays_no_exchange() {
    let (port, area) = new_port(Model::Vmxnet3).unwrap();
    let session = Session::new(Arc::clone(&port), area, Files::Ram, true);
    let line = (Mode::Msix, 0);
    port.host().set(line, Some(eventfd::new().unwrap()), &**port.nic());
    let set_irqs = Header { id: 1, command: 8, no_reply: false };
    let had = session.hold_on(&set_irqs);
    assert!(had.is_some());
    let [(found, event)] = port.host().connected().try_into().unwrap();
    assert_eq!((found, Arc::strong_count(&event)), (line, 2), "its line's and this one");
}

#[test]
fn a_client_is_told_how_many_vectors_there_are() {
    let mut client = Client::new();
    let mut info = |index| client.ask(7, &words(&[16, 0, index, 0]), Vec::new());
    assert_eq!(info(irq::MSIX).1, words(&[16, 1, 2, 25]), "EVENTFD, and they come one by one");
    assert_eq!(info(irq::MSI).1, words(&[16, 9, 1, 1]));
    assert_eq!(info(irq::COUNT).0, EINVAL);
}

/// As QEMU does: first vector 0 without an eventfd, which turns MSI-X on; then each as its guest
/// unmasks it.
#[test]
fn vectors_come_and_go_one_by_one() {
    let mut client = Client::new();
    assert_eq!(client.set(CONNECT, 0, 1, &[], Vec::new()), 0);
    assert_eq!((client.sent(), client.port.host().mode()), (vec![], Mode::None));
    for vector in [7, 24, 0, 3] {
        assert_eq!(client.connect(vector, 1), 0);
    }
    assert_eq!((client.sent(), client.port.host().mode()), (vec![0, 3, 7, 24], Mode::Msix));
    assert_eq!(client.set(CONNECT, 3, 1, &[], Vec::new()), 0, "taken away");
    let other = client.fds([30]);
    assert_eq!(client.set(CONNECT, 7, 1, &[], other), 0, "exchanged");
    assert_eq!(client.sent(), [0, 24, 30]);
    assert_eq!(client.port.host().raised(), 7);
    assert_eq!(client.set(DATA_NONE | ACTION_TRIGGER, 0, 0, &[], Vec::new()), 0);
    assert_eq!((client.sent(), client.port.host().mode()), (vec![], Mode::None));
}

/// As Cloud Hypervisor does.
#[test]
fn all_vectors_come_in_one_message() {
    let mut client = Client::new();
    assert_eq!(client.connect(0, 25), 0);
    assert_eq!(client.sent(), (0..25).collect::<Vec<_>>());
    assert_eq!(client.set(CONNECT, 5, 15, &[], Vec::new()), 0, "a range is taken away");
    assert_eq!(client.sent(), (0..5).chain(20..25).collect::<Vec<_>>());
    // With numbers, of which those that are -1 stand for no descriptor.
    let numbers = words(&[3, u32::MAX, 9, u32::MAX]);
    let fds = client.fds([26, 27]);
    assert_eq!(client.set(CONNECT, 20, 4, &numbers, fds), 0);
    assert_eq!(client.sent(), [0, 1, 2, 3, 4, 24, 26, 27]);
}

#[test]
fn vectors_are_tried_out_by_hand_and_masked_by_nobody() {
    let mut client = Client::new();
    assert_eq!(client.connect(0, 25), 0);
    assert_eq!(client.set(DATA_NONE | ACTION_TRIGGER, 2, 3, &[], Vec::new()), 0);
    assert_eq!(client.set(DATA_BOOL | ACTION_TRIGGER, 20, 3, &[1, 0, 9], Vec::new()), 0);
    assert_eq!(client.port.host().raised(), 5);
    for action in [ACTION_MASK, ACTION_UNMASK] {
        for data in [DATA_NONE, DATA_EVENTFD] {
            assert_eq!(client.set(data | action, 0, 1, &[], Vec::new()), EINVAL);
        }
    }
}

#[test]
fn ranges_that_do_not_fit_change_nothing() {
    let mut client = Client::new();
    assert_eq!(client.connect(0, 25), 0);
    for (start, count) in [
        (25, 1),
        (24, 2),
        (0, 26),
        (0, 1000),
        (1, u32::MAX),
        (u32::MAX, 1),
        (u32::MAX, u32::MAX),
        (0x1_0000, 1),
        (0, 0x1_0001),
        (3, 0),
    ] {
        for flags in [CONNECT, DATA_NONE | ACTION_TRIGGER] {
            let error = client.set(flags, start, count, &[], Vec::new());
            assert_eq!(error, EINVAL, "{start} {count}");
        }
        let fds = client.fds(0..32);
        assert_eq!(client.set(CONNECT, start, count, &[], fds), EINVAL, "{start} {count}");
    }
    // Fewer and more descriptors than vectors, also by their numbers.
    let numbers = words(&[1, u32::MAX, 3, 4]);
    for (fds, more) in
        [(1, &[][..]), (3, &[]), (5, &[]), (2, &numbers), (4, &numbers), (0, &[0; 12])]
    {
        let fds = client.fds(30..30 + fds);
        assert_eq!(client.set(CONNECT, 0, 4, more, fds), EINVAL);
    }
    // One of them is of no use.
    let mut fds = client.fds([30, 31]);
    fds.push(Descriptor::of(File::open("/dev/null").unwrap().into()));
    assert_eq!(client.set(CONNECT, 0, 3, &[], fds), EINVAL);
    assert_eq!(client.set(DATA_BOOL | ACTION_TRIGGER, 0, 3, &[1, 1], Vec::new()), EINVAL);
    assert_eq!(client.port.host().raised(), 0);
    assert_eq!(client.sent(), (0..25).collect::<Vec<_>>());
}

#[test]
fn a_chip_without_vectors_connects_none() {
    let mut client = Client::of(Model::R8169);
    assert_eq!(client.ask(7, &words(&[16, 0, irq::MSIX, 0]), Vec::new()).1, words(&[16, 0, 2, 0]));
    assert_eq!(client.connect(0, 1), EINVAL);
    assert_eq!(client.set(CONNECT, 0, 1, &[], Vec::new()), EINVAL);
    assert_eq!(client.set(DATA_NONE | ACTION_TRIGGER, 0, 0, &[], Vec::new()), 0, "none to disable");
    assert_eq!(client.sent(), Vec::<usize>::new());
}

/// The eventfds of one client are not the next one's.
#[test]
fn vectors_go_with_their_client() {
    let mut client = Client::new();
    assert_eq!(client.connect(0, 25), 0);
    client.port.host().disconnect();
    assert_eq!(client.sent(), Vec::<usize>::new());
    assert_eq!(client.connect(1, 1), 0);
    assert_eq!(client.sent(), [1]);
}

/// QEMU waits for register writes of devices that have anything to map.
#[test]
fn the_idle_page_can_be_mapped_and_nothing_else() {
    let mut client = Client::new();
    let mut info = |bar| client.ask(5, &words(&[64, 0, bar, 0, 0, 0, 0, 0]), Vec::new());
    let (error, body, file) = info(2);
    assert_eq!(error, 0);
    let size = words(&[64, 0xf, 2, 32, 16384, 0, 0, 0]);
    let area = words(&[0x1_0001, 0, 1, 0, 0x2000, 0, 0x1000, 0]);
    assert_eq!(body, [size, area].concat());
    let file = File::from(file.unwrap().try_clone().unwrap());
    assert!(file.metadata().unwrap().len() >= 0x3000);
    file.set_len(0).expect_err("sealed");
    for bar in [0, 1] {
        let (error, body, file) = info(bar);
        assert_eq!((error, body.len(), file.is_none()), (0, 32, true));
    }
}
