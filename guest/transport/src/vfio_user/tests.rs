//! The bytes on the wire, compared with what the specification's structures say; a thread plays the
//! server.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;
use crate::Wake;
use crate::address::VfioUser;
use crate::memory::Ram;
use crate::sys::EventFd;
use crate::{Bus, BusError, Irq};

/// A command as it arrived: header, body, descriptors.
#[derive(Debug)]
struct Arrived {
    header: Header,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// What the server answers: error number and body, with a file; None: nothing.
type Answer = Option<(u32, Vec<u8>, Option<RawFd>)>;

fn read_command(socket: &UnixStream) -> Option<Arrived> {
    let (mut bytes, mut fds) = ([0; 16], Vec::new());
    let mut fill = |bytes: &mut [u8]| {
        let mut done = 0;
        while done < bytes.len() {
            let (got, more) = sys::recv_with_fds(socket.as_fd(), &mut bytes[done..]).ok()?;
            fds.extend(more);
            done = if got == 0 { return None } else { done + got };
        }
        Some(())
    };
    fill(&mut bytes)?;
    let header = Header::decode(bytes);
    let mut body = vec![0; header.size as usize - 16];
    fill(&mut body)?;
    Some(Arrived { header, body, fds })
}

fn serve(socket: &UnixStream, mut answer: impl FnMut(&Arrived) -> Answer) -> Vec<Arrived> {
    let mut all = Vec::new();
    while let Some(command) = read_command(socket) {
        if let Some((error, body, fd)) = answer(&command) {
            let flags = if error == 0 { 1 } else { 0x21 };
            let size = u32::try_from(16 + body.len()).unwrap();
            let header = Header { size, flags, error, ..command.header };
            let bytes = [&header.encode(), body.as_slice()].concat();
            // The client may have hung up over what it got before.
            let _ = sys::send_with_fds(socket.as_fd(), &bytes, fd.as_slice());
        }
        all.push(command);
    }
    all
}

fn pair(
    answer: impl FnMut(&Arrived) -> Answer + Send + 'static,
) -> (Client, JoinHandle<Vec<Arrived>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Client::new(ours).unwrap(), std::thread::spawn(move || serve(&theirs, answer)))
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Answers with `body` whatever comes.
fn always(body: Vec<u8>) -> impl FnMut(&Arrived) -> Answer + Send {
    move |_| Some((0, body.clone(), None))
}

#[test]
fn version_is_a_pair_of_numbers_and_json() {
    let reply = [words(&[0]), b"{\"capabilities\":{}}\0".to_vec()].concat();
    let (client, server) = pair(always(reply));
    let version = client.version().unwrap();
    assert_eq!(
        (version.major, version.minor, version.json.as_str()),
        (0, 0, "{\"capabilities\":{}}")
    );
    drop(client);
    let all = server.join().unwrap();
    let first = &all[0];
    assert_eq!((first.header.command, first.header.flags, first.header.error), (1, 0, 0));
    assert_eq!(first.body[..4], [0, 0, 1, 0]);
    let json: serde_json::Value =
        serde_json::from_slice(first.body[4..].strip_suffix(&[0]).unwrap()).unwrap();
    assert_eq!(json["capabilities"]["max_msg_fds"], 8);
    for other in [1, 2 << 16] {
        let (client, _server) = pair(always(words(&[other])));
        assert!(matches!(client.version(), Err(ProtocolError::BadReply { .. })), "{other:#x}");
    }
}

#[test]
fn commands_have_the_layout_of_the_specification() {
    let (client, server) =
        pair(|command| (command.header.flags & 0x10 == 0).then(|| (0, Vec::new(), None)));
    let region = Region { guest_phys: 1 << 32, size: 0x2000, user_addr: 7, offset: 0x1000 };
    let event = EventFd::new().unwrap();
    client.dma_map(&region, Some(event.as_fd().as_raw_fd())).unwrap();
    client.dma_unmap(1 << 32, 0x2000).unwrap();
    client.set_irq(irq::INTX, 0x24, Some(event.as_fd())).unwrap();
    client.set_irq(irq::INTX, irq::DATA_NONE | irq::ACTION_UNMASK, None).unwrap();
    client.region_write(0, 0x3818, &5_u32.to_ne_bytes(), false).unwrap();
    client.region_write(7, 4, &[6, 1], true).unwrap();
    client.reset().unwrap();
    client.region_write_multi(0, &[(0xd0, 5), (0x3818, 6)], true).unwrap();
    drop(client);
    let all = server.join().unwrap();
    let expected: [(u16, u32, Vec<u8>, usize); 8] = [
        (2, 0, words(&[32, 3, 0x1000, 0, 0, 1, 0x2000, 0]), 1),
        (3, 0, words(&[24, 0, 0, 1, 0x2000, 0]), 0),
        (8, 0, words(&[20, 0x24, 0, 0, 1]), 1),
        (8, 0, words(&[20, 0x11, 0, 0, 1]), 0),
        (10, 0, words(&[0x3818, 0, 0, 4, 5]), 0),
        (10, 0x10, [words(&[4, 0, 7, 2]), vec![6, 1]].concat(), 0),
        (13, 0, Vec::new(), 0),
        (15, 0x10, words(&[2, 0, 0xd0, 0, 0, 4, 5, 0, 0x3818, 0, 0, 4, 6, 0]), 0),
    ];
    assert_eq!(all.len(), expected.len());
    for (n, (got, (command, flags, body, fds))) in all.iter().zip(expected).enumerate() {
        assert_eq!((got.header.command, got.header.flags), (command, flags), "message {n}");
        assert_eq!((&got.body, got.fds.len()), (&body, fds), "message {n}");
        assert_eq!((got.header.id as usize, got.header.size as usize), (n, 16 + body.len()));
    }
}

#[test]
fn a_posted_write_is_not_waited_for_and_a_read_comes_after_it() {
    let mut value = 0;
    let (client, server) = pair(move |command| {
        if command.header.flags & 0x10 != 0 {
            value = command.body[16];
            return None;
        }
        Some((0, [command.body.clone(), vec![value; 4]].concat(), None))
    });
    for n in 1..=100 {
        client.region_write(0, 0, &[n, 0, 0, 0], true).unwrap();
    }
    let mut bytes = [0; 4];
    client.region_read(0, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [100; 4]);
    drop(client);
    assert_eq!(server.join().unwrap().len(), 101);
}

#[test]
fn infos_are_read() {
    let (client, _server) = pair(|command| {
        Some((
            0,
            words(if command.header.command == 4 { &[16, 3, 9, 5] } else { &[16, 7, 0, 1] }),
            None,
        ))
    });
    assert_eq!(client.device_info().unwrap(), DeviceInfo { flags: 3, regions: 9, irqs: 5 });
    assert_eq!(client.irq_info(0).unwrap(), IrqInfo { flags: 7, count: 1 });
}

/// A region with another capability in front of the sparse one, and two areas.
fn sparse() -> Vec<u8> {
    let info = [104, 0xf, 0, 32, 0x2_0000, 0, 0, 0];
    let other = [9 | 1 << 16, 48, 0, 0];
    let areas = [1 | 1 << 16, 0, 2, 0, 0x2000, 0, 0x1000, 0, 0x3000, 0, 0x1000, 0];
    let mut body = words(&info);
    body.extend(words(&other));
    body.extend(words(&areas));
    body
}

/// As a server has to: no capabilities unless there is room for them.
fn region_answer(command: &Arrived, full: &[u8], fd: RawFd) -> Answer {
    let room = u32::from_ne_bytes(command.body[..4].try_into().unwrap()) as usize;
    let body = if room >= full.len() { full } else { &full[..32] };
    Some((0, body.to_vec(), Some(fd)))
}

#[test]
fn sparse_areas_are_asked_for_again_with_room() {
    let file = sys::sealed_memfd(0x4000).unwrap();
    let fd = file.as_raw_fd();
    let (client, server) = pair(move |command| region_answer(command, &sparse(), fd));
    let info = client.region_info(0).unwrap();
    let area = |offset| Area { offset, size: 0x1000 };
    assert_eq!(info.areas, [area(0x2000), area(0x3000)]);
    assert_eq!((info.flags, info.size, info.offset, info.fds.len()), (15, 0x2_0000, 0, 1));
    drop(client);
    assert_eq!(server.join().unwrap().len(), 2);
}

#[test]
fn chains_of_capabilities_that_lead_nowhere_are_errors() {
    let mut circle = sparse();
    circle[36..40].copy_from_slice(&32_u32.to_ne_bytes());
    let mut beyond = sparse();
    beyond[36..40].copy_from_slice(&5000_u32.to_ne_bytes());
    let mut many = sparse();
    many[56..60].copy_from_slice(&u32::MAX.to_ne_bytes());
    for body in [circle, beyond, many] {
        let (client, _server) = pair(always(body));
        assert!(matches!(client.region_info(0), Err(ProtocolError::BadReply { .. })));
    }
}

#[test]
fn refusals_and_nonsense_are_errors_not_panics() {
    let (client, _server) = pair(|command| {
        let error = if command.header.id == 0 { 22 } else { 0 };
        Some((error, words(&[1, 2, 3, 4]), None))
    });
    let error = client.irq_info(3).unwrap_err();
    assert!(matches!(error, ProtocolError::Refused { errno: 22, .. }), "{error}");
    assert!(error.to_string().contains("Invalid argument"), "{error}");
    assert!(client.irq_info(0).is_ok(), "the stream is still in step");
    let good = Header { id: 0, command: 7, size: 32, flags: 1, error: 0 };
    for (what, header) in [
        ("not marked", Header { flags: 0, ..good }),
        ("another", Header { id: 1, ..good }),
        ("another", Header { command: 4, ..good }),
        ("shorter", Header { size: 15, ..good }),
        ("too long", Header { size: u32::MAX, ..good }),
        ("too short", Header { size: 20, ..good }),
    ] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[&header.encode(), [0; 16].as_slice()].concat()).unwrap();
        let error = Client::new(ours).unwrap().irq_info(0).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = Client::new(ours).unwrap().reset().unwrap_err();
    assert!(matches!(error, ProtocolError::Socket { .. }), "{error}");
}

/// A whole server at a socket: BAR0 with sparse areas in `file`, registers that read as their
/// offset; reading ICS interrupts.
fn device(listener: &UnixListener, file: &File, mappable: bool) -> Vec<Arrived> {
    let (socket, _) = listener.accept().unwrap();
    let mut trigger = None;
    serve(&socket, |command| {
        if command.header.command == 8 && command.body[4] == 0x24 {
            trigger = command.fds[0].try_clone().ok().map(EventFd::from);
        }
        if command.body.starts_with(&[0xc8, 0]) {
            trigger.as_ref().unwrap().signal();
        }
        let body = match command.header.command {
            1 => [words(&[1 << 16]), b"{}\0".to_vec()].concat(),
            4 => words(&[16, 3, 9, 2]),
            5 if command.body[8..12] == [0; 4] && mappable => {
                return region_answer(command, &sparse(), file.as_raw_fd());
            }
            5 => words(&[32, 3, 0, 0, 256, 0, 0, 0]),
            7 => words(&[16, 7, 0, 1]),
            9 => [&command.body[..16], &command.body[..4]].concat(),
            10 if command.header.flags & 0x10 != 0 => return None,
            10 => command.body[..16].to_vec(),
            _ => Vec::new(),
        };
        Some((0, body, None))
    })
}

#[test]
fn a_vmm_shares_its_memory_maps_the_doorbells_and_takes_interrupts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let file = sys::sealed_memfd(0x4000).unwrap();
    let shared = file.try_clone().unwrap();
    let server = std::thread::spawn(move || device(&listener, &shared, true));
    let ram = Ram::new(4096, 8192).unwrap();
    let address: VfioUser = format!("vfio-user:{},writes=posted", path.display()).parse().unwrap();
    let mut bus = VfioBus::connect(&address, &ram, Duration::from_secs(5)).unwrap();
    assert!(bus.is_mapped());
    // TDT and RDT in the file, at their offsets in the BAR; ICR beside them is not mapped.
    bus.mapped(0x3818).unwrap().store(9, SeqCst);
    bus.mapped(0x2818).unwrap().store(8, SeqCst);
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 0x3818).unwrap();
    assert_eq!(bytes, [9, 0, 0, 0]);
    file.read_exact_at(&mut bytes, 0x2818).unwrap();
    assert_eq!(bytes, [8, 0, 0, 0]);
    for outside in [0, 0xc0, 0x1ffc, 0x4000, 0x5400] {
        assert!(bus.mapped(outside).is_none(), "{outside:#x}");
    }
    assert_eq!(bus.read32(0xc0).unwrap(), 0xc0);
    bus.write32(0xd0, 0x85).unwrap();
    bus.use_interrupt(Irq::Intx).unwrap();
    assert_eq!(bus.wait(Duration::ZERO).unwrap(), Wake::Timeout);
    assert_eq!(bus.take_interrupts(), 0);
    bus.read32(0xc8).unwrap();
    assert_eq!(bus.wait(Duration::ZERO).unwrap(), Wake::Ready);
    assert_eq!((bus.take_interrupts(), bus.take_interrupts()), (1, 0));
    bus.unmask().unwrap();
    bus.unmap();
    assert!(bus.mapped(0x3818).is_none() && bus.is_connected());
    drop(bus);
    let all = server.join().unwrap();
    let maps: Vec<_> = all.iter().filter(|command| command.header.command == 2).collect();
    assert_eq!(maps.len(), 2);
    assert!(maps.iter().all(|command| command.fds.len() == 1));
    assert_eq!(maps[1].body, words(&[32, 3, 4096, 0, 0, 1, 8192, 0]), "4 GiB and up");
    let irqs: Vec<_> = all.iter().filter(|command| command.header.command == 8).collect();
    assert_eq!(irqs[0].body, words(&[20, 0x24, 0, 0, 1]), "trigger by eventfd");
    assert_eq!(irqs[1].body, words(&[20, 0x14, 0, 0, 1]), "unmask by eventfd");
    let write = all.iter().find(|command| command.header.command == 10).unwrap();
    assert_eq!((write.header.flags, &write.body), (0x10, &words(&[0xd0, 0, 0, 4, 0x85])));
    assert_eq!(EventFd::from(irqs[1].fds[0].try_clone().unwrap()).take(), 1, "unmasked once");
}

#[test]
fn a_vmm_without_kvm_unmasks_after_an_access_and_takes_the_mapping_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let file = sys::sealed_memfd(0x4000).unwrap();
    let server = std::thread::spawn(move || device(&listener, &file, true));
    let ram = Ram::new(4096, 4096).unwrap();
    let text = format!("vfio-user:{},unmask=access,mmap_timeout=500", path.display());
    let address: VfioUser = text.parse().unwrap();
    let mut bus = VfioBus::connect(&address, &ram, Duration::from_secs(5)).unwrap();
    bus.use_interrupt(Irq::Intx).unwrap();
    assert!(bus.mapped(0x3818).is_some());
    bus.read32(0xc8).unwrap();
    let fired = std::time::Instant::now();
    assert_eq!(bus.take_interrupts(), 1);
    assert!(bus.mapped(0x3818).is_none(), "taken away");
    bus.read32(0xc0).unwrap();
    bus.read32(0xc0).unwrap();
    bus.unmask().unwrap();
    while bus.mapped(0x3818).is_none() {
        bus.wait(Duration::from_millis(1)).unwrap();
    }
    assert!(fired.elapsed() >= Duration::from_millis(500));
    drop(bus);
    let all = server.join().unwrap();
    let unmask = words(&[20, 0x11, 0, 0, 1]);
    let at = all.iter().position(|command| command.body == unmask).unwrap();
    assert_eq!(all[at - 1].header.command, 9, "after the access");
    assert_eq!(all.iter().filter(|command| command.body == unmask).count(), 1);
}

#[test]
fn what_cannot_be_mapped_or_reached_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let ram = Ram::new(4096, 4096).unwrap();
    let connect = |keys: &str| {
        let address: VfioUser = format!("vfio-user:{}{keys}", path.display()).parse().unwrap();
        VfioBus::connect(&address, &ram, Duration::from_millis(50)).unwrap_err()
    };
    let error = connect("");
    assert!(error.to_string().contains("nobody listens"), "{error}");
    let listener = UnixListener::bind(&path).unwrap();
    let file = sys::sealed_memfd(0x4000).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let server = std::thread::spawn(move || {
        device(&listener, &file, false);
        // The next clients are turned away.
        listener.set_nonblocking(true).unwrap();
        while !stopped.load(SeqCst) {
            let _ = listener.accept();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let error = connect(",doorbell=mapped");
    assert!(matches!(error, ConnectError::NoDoorbell), "{error}");
    let error = connect("");
    stop.store(true, SeqCst);
    assert!(
        matches!(&error, ConnectError::TurnedAway { source: BusError::Protocol(_), .. }),
        "{error}"
    );
    server.join().unwrap();
}
