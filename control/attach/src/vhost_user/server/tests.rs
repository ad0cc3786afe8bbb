//! A switch that dies at every point of serving a front end's messages: the next goes on, each
//! message has its effect once, and is answered once.

mod ends;

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};

use vmlan_frame::{Batch, Offload};
use vmlan_keeper::hold::{Held, Hold, HoldError};

use super::super::wire::{Request, protocol};
use super::*;
use crate::death::lives;
use crate::eventfd;
use crate::held::keep::{FoundPort, ask_keepers, find};
use crate::held::record::Record;
use crate::memory::sealed_memfd;
use crate::send_recv::send;
use crate::socket::{Place, SocketFile, listen};

/// A holder without a process.
#[derive(Debug, Default)]
struct Memo(Mutex<Option<Held>>);

impl Memo {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.0.lock().unwrap()
    }

    fn held(&self) -> Held {
        let held = self.lock();
        let Held { name, fds, bytes } = held.as_ref().unwrap();
        let fds = fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        Held { name: name.clone(), fds, bytes: bytes.clone() }
    }
}

impl Hold for Memo {
    fn put(&self, name: &str, fds: &[BorrowedFd<'_>], bytes: &[u8]) -> Result<(), HoldError> {
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        *self.lock() = Some(Held { name: name.to_owned(), fds, bytes: bytes.to_owned() });
        Ok(())
    }

    fn forget(&self, _name: &str) -> Result<(), HoldError> {
        *self.lock() = None;
        Ok(())
    }

    fn all(&self) -> Result<Vec<Held>, HoldError> {
        Ok(vec![self.held()])
    }

    fn end(&self) {}
}

/// A port, and what its switches leave each other.
struct World {
    config: Config,
    hold: Arc<Memo>,
    waker: Arc<Waker>,
    server: Server,
    front: UnixStream,
    /// Where the port connects to.
    listener: Option<UnixListener>,
    _file: Option<SocketFile>,
    _dir: tempfile::TempDir,
}

fn server(
    config: &Config,
    hold: &Arc<Memo>,
    waker: &Arc<Waker>,
    keeper: Keeper,
    (file, found): (Option<&SocketFile>, Option<FoundClient>),
) -> Server {
    let port = Arc::new(VhostUserPort::new(Arc::clone(waker), 2).unwrap());
    let keeping = Keeping::new(hold.clone(), "port".to_owned(), config.nic(), file);
    let (standing, details) = (Arc::default(), Arc::default());
    let changed: Changed = Arc::new(|| {});
    let kept = (Some(keeping), standing);
    Server::new(config, port, keeper, details, Arc::clone(waker), changed, kept, found)
}

impl World {
    fn new(connect: bool) -> Self {
        let mut world = Self::waiting(connect);
        world.meet();
        world
    }

    /// Nobody is connected.
    fn waiting(connect: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let config = Config { path: path.clone(), queues: 1, connect, ..Config::default() };
        let listener = connect.then(|| UnixListener::bind(&path).unwrap());
        let (keeper, file) = match &listener {
            Some(_) => (Keeper::new(None).unwrap(), None),
            None => {
                let place = Place { path: &path, mode: None, group: None };
                let (keeper, file) = listen(place).unwrap();
                (keeper, Some(file))
            }
        };
        let (hold, waker) = (Arc::<Memo>::default(), Arc::new(Waker::new().unwrap()));
        let server = server(&config, &hold, &waker, keeper, (file.as_ref(), None));
        server.keep();
        let (front, _) = UnixStream::pair().unwrap();
        Self { config, hold, waker, server, front, listener, _file: file, _dir: dir }
    }

    /// Somebody connects, or is connected to.
    fn meet(&mut self) {
        if self.listener.is_none() {
            self.front = UnixStream::connect(&self.config.path).unwrap();
        }
        while self.server.served.is_none() {
            self.turn();
        }
        if let Some(listener) = &self.listener {
            self.front = listener.accept().unwrap().0;
        }
        self.front.set_nonblocking(true).unwrap();
    }

    fn turn(&mut self) {
        self.waker.wake();
        assert!(self.server.turn(None));
    }

    /// Serves until nothing is left to be served.
    fn serve(&mut self) {
        for _ in 0..10_000 {
            self.turn();
            let Some(served) = &self.server.served else { return };
            if rustix::io::ioctl_fionread(served.connection.fd()).unwrap() == 0 {
                return;
            }
        }
        unreachable!("it does not end");
    }

    /// The switch has died: there is another.
    fn next(&mut self) {
        let held = self.hold.held();
        let FoundPort { keeper, file, client } =
            find(&held, ask_keepers([&held]), &self.config.path, &self.config.nic()).unwrap();
        let next = server(&self.config, &self.hold, &self.waker, keeper, (file.as_ref(), client));
        // The file is removed once.
        std::mem::forget(file);
        let mut dead = std::mem::replace(&mut self.server, next);
        if let Some(served) = dead.served.take() {
            // It is not shut down.
            std::mem::forget(served.connection);
        }
    }

    fn go_on(&mut self) {
        if let Some(found) = self.server.found.take() {
            self.server.adopt(found);
            // However slow the machine is.
            self.server.proven = None;
        }
        if self.server.served.is_some() {
            self.serve();
        }
    }

    /// All replies so far, and whether it has hung up.
    fn replies(&mut self) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        let end = self.front.read_to_end(&mut all).map_err(|e| e.kind());
        (all, end != Err(std::io::ErrorKind::WouldBlock))
    }

    /// What the next switch would find, but for numbers of descriptors.
    fn state(&self) -> Vec<(u32, Vec<u8>, bool)> {
        let record = Record::decode(&self.hold.held()).unwrap();
        record.setup.into_iter().map(|s| (s.number, s.body, s.fd.is_some())).collect()
    }
}

impl Drop for World {
    /// Its keeper ends, though some of what died here is there still.
    fn drop(&mut self) {
        let line = self.server.keeper.line();
        line.iter().for_each(|line| _ = rustix::net::shutdown(line, rustix::net::Shutdown::Both));
    }
}

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

type Said = (Request, Vec<u8>, Option<OwnedFd>);

const SIZE: u64 = 0x10000;

/// What a front end has.
struct Guest {
    ram: File,
    log: File,
    inflight: File,
}

fn file(len: u64) -> File {
    sealed_memfd(c"guest", len).unwrap().into()
}

impl Guest {
    fn new() -> Self {
        Self { ram: file(2 * SIZE), log: file(4096), inflight: file(4096) }
    }

    /// What it says if it is honest, of one queue pair, and takes back in part. `migrates`: its
    /// guest is being migrated, and what a back end works on is noted.
    fn script(&self, migrates: bool) -> Vec<Said> {
        let clone = |file: &File| Some(file.try_clone().unwrap().into());
        let ram = || clone(&self.ram);
        let event = || Some(eventfd::new().unwrap());
        let pair = |ring: u64, value: u64| words(&[ring | value << 32]);
        let log_all = 1 << 26;
        let features = super::super::FEATURES & !(log_all | 1 << 34);
        let addr = |ring: u64, log: u64| {
            let at = 0x4000 * ring;
            words(&[ring | log << 32, at, at + 0x2000, at + 0x1000, log * (at + 0x2000)])
        };
        let mut list: Vec<Said> = vec![
            (Request::GetFeatures, Vec::new(), None),
            (Request::SetProtocolFeatures, words(&[protocol::OFFERED]), None),
            (Request::SetOwner, Vec::new(), None),
            (Request::SetFeatures, words(&[features]), None),
            (Request::AddMemReg, words(&[0, 0, SIZE, 0, 0]), ram()),
            (Request::AddMemReg, words(&[0, 1 << 30, SIZE, 1 << 30, SIZE]), ram()),
            // It overlaps, and is refused.
            (Request::AddMemReg, words(&[0, SIZE / 2, SIZE, SIZE / 2, 0]), ram()),
            (Request::NetSetMtu, words(&[1500]), None),
        ];
        if migrates {
            // Two virtqueues of 16.
            let body = words(&[4096, 0, 2 | 16 << 16]);
            list.push((Request::SetInflightFd, body, clone(&self.inflight)));
        }
        for ring in 0..2 {
            list.push((Request::SetVringNum, pair(ring, 16), None));
            list.push((Request::SetVringBase, pair(ring, 0), None));
            list.push((Request::SetVringAddr, addr(ring, 0), None));
            list.push((Request::SetVringCall, words(&[ring]), event()));
            list.push((Request::SetVringKick, words(&[ring]), event()));
            list.push((Request::SetVringEnable, pair(ring, 1), None));
        }
        if migrates {
            list.push((Request::SetLogBase, words(&[4096, 0]), clone(&self.log)));
            list.push((Request::SetFeatures, words(&[features | log_all]), None));
            list.extend((0..2).map(|ring| (Request::SetVringAddr, addr(ring, 1), None)));
        }
        list.extend([
            (Request::RemMemReg, words(&[0, 1 << 30, SIZE, 1 << 30, SIZE]), None),
            (Request::SetStatus, words(&[15]), None),
            (Request::GetVringBase, pair(1, 0), None),
            (Request::GetStatus, Vec::new(), None),
        ]);
        list
    }

    fn script_of(migrates: bool) -> (Self, Vec<Said>) {
        let guest = Self::new();
        let script = guest.script(migrates);
        (guest, script)
    }

    /// A frame to it: its buffer and its used ring are logged, and the used index is noted.
    fn assert_migrates(&self, port: &VhostUserPort) {
        let write = |file: &File, at: u64, bytes: &[u8]| file.write_all_at(bytes, at).unwrap();
        write(&self.log, 0, &[0; 4096]);
        // Address, length, WRITE; then avail.idx and its entry.
        write(&self.ram, 0, &words(&[0x9000, 2048 | 2 << 32]));
        write(&self.ram, 0x1002, &[1, 0, 0, 0]);
        let (mut batch, frame) = (Batch::new(), [0; 60]);
        batch.add_parts(&frame, [], Offload::NONE).unwrap();
        let budget = &mut vmlan_nic::virtio::Budget::default();
        let mut both = port.both();
        let net = &mut both.lane_of(0).0.rx.net;
        assert_eq!(net.push(&batch, &[0], port.counters(), budget), 1);
        drop(both);
        let read = |file: &File, at| {
            let mut word = [0; 2];
            file.read_exact_at(&mut word, at).unwrap();
            u16::from_ne_bytes(word)
        };
        assert_eq!(read(&self.ram, 0x2002), 1, "used");
        assert_eq!(read(&self.log, 0), 1 << 9 | 1 << 2, "the buffer's page and the ring's");
        assert_eq!(read(&self.inflight, 14), 1, "noted");
    }
}

/// Every second one asks for a reply, the two that are not to be done twice among them.
fn say(world: &World, said: Said, n: usize) {
    let (request, body, fd) = said;
    let asks = n.is_multiple_of(2) || request.is_once();
    let flags = if asks { 1 | 1 << 3 } else { 1 };
    let size = u32::try_from(body.len()).unwrap();
    let head = [request.number(), flags, size].into_iter().flat_map(u32::to_ne_bytes);
    let bytes: Vec<u8> = head.chain(body).collect();
    send(world.front.as_fd(), &bytes, fd.as_ref().map(AsFd::as_fd)).unwrap();
}

/// Dies at the so-manieth point of all, and the next at the so-manieth of its own; 0: it lives.
/// What is left, and whether the first has lived.
fn run(connect: bool, list: Vec<Said>, points: [u32; 2]) -> (World, bool) {
    let mut world = World::new(connect);
    for (n, said) in list.into_iter().enumerate() {
        say(&world, said, n);
    }
    let over = lives(points[0], || world.go_on());
    if !over {
        world.next();
        if !lives(points[1], || world.go_on()) {
            world.next();
        }
        world.go_on();
    }
    (world, over)
}

/// What has died keeps its sockets.
fn raise_the_limit_of_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// With so many requests in the record at last.
fn dies_everywhere(connect: bool, migrates: bool, requests: usize) {
    raise_the_limit_of_descriptors();
    let runs = |points| {
        let (guest, script) = Guest::script_of(migrates);
        let (mut world, over) = run(connect, script, points);
        let found = (world.replies(), world.state());
        if migrates {
            guest.assert_migrates(&world.server.port);
        }
        (found, over)
    };
    let (good, _) = runs([0, 0]);
    let ((replies, hung_up), state) = &good;
    assert!(!hung_up && replies.len() > 10 * 20, "{replies:?}");
    assert_eq!(state.len(), requests, "{state:?}");
    let mut count = 0;
    for first in 1.. {
        let (found, over) = runs([first, 0]);
        assert_eq!(found, good, "died at {first}");
        if over {
            break;
        }
        count += 1;
        // The next one dies in the midst of what it has to finish.
        if first % 23 == 0 {
            for second in 1..12 {
                assert_eq!(runs([first, second]).0, good, "died at {first} and {second}");
            }
        }
    }
    assert!(count > 150, "{count}");
}

#[test]
fn each_message_is_done_and_answered_once_wherever_switches_die() {
    dies_everywhere(false, false, 14);
}

/// The port connects to its front end. No page that is written from then on is lost, and the
/// inflight region is where it was.
#[test]
fn a_guest_that_is_migrated_goes_on_being_so() {
    dies_everywhere(true, true, 16);
}

/// Nobody can note that a reply with a descriptor was sent and send it at once. Who has it goes on,
/// and who says nothing has not.
#[test]
fn a_reply_with_a_descriptor_comes_once() {
    const INFLIGHT: usize = 12 + 24;
    for point in 1.. {
        let (_guest, script) = Guest::script_of(false);
        let mut world = World::new(false);
        for (n, said) in script.into_iter().take(4).enumerate() {
            say(&world, said, n);
        }
        world.go_on();
        world.replies();
        let body = words(&[4096, 0, 2 | 16 << 16]);
        say(&world, (Request::GetInflightFd, body, None), 1);
        let over = lives(point, || world.go_on());
        let (first, hung_up) = world.replies();
        assert!(!hung_up && [0, INFLIGHT].contains(&first.len()), "died at {point}: {first:?}");
        if !first.is_empty() {
            say(&world, (Request::GetFeatures, Vec::new(), None), 0);
        }
        if !over {
            world.next();
        }
        world.go_on();
        let (then, hung_up) = world.replies();
        let missing = if first.is_empty() { INFLIGHT } else { 20 };
        assert!(!hung_up && then.len() == missing, "died at {point}: {first:?} {then:?}");
        if over {
            assert!(point > 5);
            break;
        }
    }
}

/// Wherever the switch dies that connects: somebody is connected in the end, and stays so.
#[test]
fn a_port_that_connects_is_connected() {
    for point in 1.. {
        let mut world = World::waiting(true);
        let listener = world.listener.as_ref().unwrap().try_clone().unwrap();
        listener.set_nonblocking(true).unwrap();
        let turns = |world: &mut World| {
            while world.server.served.is_none() {
                assert!(world.server.turn(None));
            }
        };
        let over = lives(point, || turns(&mut world));
        let mut calls = Vec::from_iter(listener.accept());
        let held = Record::decode(&world.hold.held()).unwrap().client.is_some();
        for _ in 0..2 {
            world.next();
            world.go_on();
            turns(&mut world);
            calls.extend(listener.accept());
        }
        assert_eq!(calls.len(), if held { 1 } else { 2 }, "died at {point}");
        if over {
            assert!(held && point > 2);
            break;
        }
    }
}

/// It has gone while nobody served: another one is called.
#[test]
fn a_front_end_that_has_gone_meanwhile_is_called_again() {
    let mut world = World::new(true);
    let gone = std::mem::replace(&mut world.front, UnixStream::pair().unwrap().0);
    drop(gone);
    world.next();
    world.go_on();
    while world.server.served.is_some() {
        assert!(world.server.turn(None));
    }
    assert!(Record::decode(&world.hold.held()).unwrap().client.is_none());
    world.meet();
    assert!(Record::decode(&world.hold.held()).unwrap().client.is_some());
}

/// Replies to so many ADD_MEM_REG that were done.
fn acks(count: usize) -> Vec<u8> {
    let ack = [Request::AddMemReg.number(), 5, 8, 0, 0].map(u32::to_ne_bytes).concat();
    ack.repeat(count)
}

/// A descriptor comes with the first byte, and the rest of its message later, or with the next.
#[test]
fn a_message_in_pieces_is_one() {
    let mut list = Guest::new().script(false).into_iter();
    let mut world = World::new(false);
    for (n, said) in list.by_ref().take(4).enumerate() {
        say(&world, said, n);
    }
    world.serve();
    let (_, body, fd) = list.next().unwrap();
    let head = [Request::AddMemReg.number(), 1 | 1 << 3, 40].into_iter();
    let bytes: Vec<u8> = head.flat_map(u32::to_ne_bytes).chain(body).collect();
    let pieces = [&bytes[..1], &bytes[1..12], &bytes[12..30], &bytes[30..]];
    let mut fd = fd.as_ref().map(AsFd::as_fd);
    world.replies();
    for (n, piece) in pieces.into_iter().enumerate() {
        send(world.front.as_fd(), piece, fd.take()).unwrap();
        if n == 3 {
            // The next one's descriptor is not this one's.
            say(&world, list.next().unwrap(), 0);
        }
        for _ in 0..3 {
            world.turn();
        }
        let good = if n == 3 { acks(2) } else { Vec::new() };
        assert_eq!(world.replies(), (good, false), "{n}");
    }
    let regions = world.state().into_iter().filter(|(n, ..)| *n == Request::AddMemReg.number());
    assert_eq!(regions.count(), 2);
}

/// A record may say anything: what would be refused of a front end is refused of it, and nothing
/// else happens.
#[test]
fn what_is_held_is_checked_like_messages() {
    let (world, _) = run(false, Guest::new().script(false), [0, 0]);
    let honest = world.hold.held();
    let mut served = 0;
    let bits = (0..8 * honest.bytes.len()).step_by(7);
    for bit in bits {
        let mut held = world.hold.held();
        held.bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(record) = Record::decode(&held) else { continue };
        let port = Arc::new(VhostUserPort::new(Arc::clone(&world.waker), 2).unwrap());
        let session = Session::adopt(Arc::clone(&port), 1, Files::Ram, record.setup, false);
        served += u32::from(session.is_ok());
        drop(session);
        assert!(!port.is_up() && !port.is_connected() && port.kicks().len() == 0, "{bit}");
    }
    assert!(served > 0);
    let lies: [(Request, Vec<u8>); 5] = [
        (Request::SetFeatures, words(&[u64::MAX])),
        (Request::SetVringNum, words(&[200 | 16 << 32])),
        (Request::SetVringKick, words(&[0])),
        (Request::AddMemReg, words(&[0, 0, SIZE, 0, 0])),
        (Request::SetProtocolFeatures, words(&[1 << 63])),
    ];
    for (request, body) in lies {
        let mut record = Record::decode(&world.hold.held()).unwrap();
        let fd = None;
        record.setup.push(crate::held::record::Setup { number: request.number(), body, fd });
        let port = Arc::new(VhostUserPort::new(Arc::clone(&world.waker), 2).unwrap());
        let session = Session::adopt(port, 1, Files::Ram, record.setup, false);
        assert!(session.is_err(), "{request:?}");
    }
}

/// Queues that nobody has used since the layout was another one, as of firmware after an operating
/// system.
#[test]
fn what_another_layout_has_left_is_no_reason_to_hang_up() {
    let features = |bits: u64| words(&[super::super::FEATURES & !(1 << 26) & !bits]);
    let list = vec![
        (Request::SetProtocolFeatures, words(&[protocol::OFFERED]), None),
        (Request::SetFeatures, features(0), None),
        (Request::SetVringNum, words(&[100 << 32]), None),
        (Request::SetVringBase, words(&[0x8001_8001 << 32]), None),
        (Request::SetFeatures, features(1 << 34), None),
    ];
    let (mut world, _) = run(false, list, [0, 0]);
    world.next();
    world.go_on();
    assert!(world.server.served.is_some() && !world.replies().1);
}

/// Switches that die one after the other of a front end: the fourth hangs up on it.
#[test]
fn a_front_end_that_switches_die_of_is_dropped() {
    let (mut world, _) = run(false, Guest::new().script(false), [0, 0]);
    for _ in 0..4 {
        world.next();
        world.go_on();
        assert!(world.server.served.is_some());
    }
    // One that has made way has not died.
    if let Some(served) = &mut world.server.served {
        served.deaths -= 1;
    }
    world.server.keep();
    world.next();
    world.go_on();
    assert!(world.server.served.is_some());
    world.next();
    world.go_on();
    assert!(world.server.served.is_none() && world.replies().1);
}
