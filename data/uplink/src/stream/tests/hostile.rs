//! Peers that mean harm.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use super::*;
use crate::keep::Unkept;
use crate::stream::conversation::Conversation;
use crate::stream::keeping::Keeping;

/// Sends `bytes` with a descriptor.
fn send_descriptor(peer: &UnixStream, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    let fds = [peer.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(peer, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Whoever receives a descriptor closes it, and the peer decides how long that takes.
#[test]
fn a_descriptor_among_the_bytes_is_refused_or_ends_the_connection() {
    for flags in [SendFlags::empty(), SendFlags::OOB] {
        let (_dir, stream, peer) = connected();
        let port = stream.port();
        match send_descriptor(&peer, &framed(&frame(1, 60)), flags) {
            // Since Linux 6.16.
            Err(e) => assert_eq!(e, Errno::PERM),
            // Where a byte out of band is refused otherwise, the keeper's SO_OOBINLINE does it.
            Ok(_) if flags == SendFlags::OOB => {}
            Ok(_) => wait("the end", || !port.is_up() && port.counters().faults.get() == 1),
        }
        assert_eq!(port.counters().input.frames.get(), 0);
    }
}

/// The same on a kernel that cannot refuse them: they are seen, and stay where they are.
#[test]
fn a_descriptor_that_the_kernel_lets_through_is_not_received() {
    let (ours, peer) = UnixStream::pair().unwrap();
    let held = ours.try_clone().unwrap();
    let port = StreamPort::new(Config::new("pair"), counted().1).unwrap();
    let (mut reader, mut keeping) = (Reader::new(), Keeping::new(Unkept.keeper(None).unwrap()));
    let kept = keeping.keep.hold(ours.into()).unwrap();
    (&peer).write_all(&framed(&frame(1, 60))).unwrap();
    assert_eq!(reader.read(kept.as_fd(), true, &port.counters.input), Look::Drained);
    assert_eq!(reader.inbox.len(), 1, "what came before is a frame");
    send_descriptor(&peer, b"x", SendFlags::empty()).unwrap();
    let end = Conversation::new(&port, &mut reader, &mut keeping, (kept, true)).run();
    assert_eq!(end, Some(Look::Descriptor));

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut room = [std::io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(&held, &mut room, &mut control, RecvFlags::empty()).unwrap();
    assert_eq!(control.drain().count(), 1, "it lies there still");
}

/// Neither a descriptor in its socket, nor a crowd of watches on its end, nor a full buffer: a
/// worker's calls are the same with no socket and no thread at all.
#[test]
fn workers_do_not_touch_the_peers_socket() {
    let port = StreamPort::new(Config::new("nobody"), counted().1).unwrap();
    lock(&port.outbox).set_connected(true);
    let f = frame(1, 1514);
    let list = [(&f[..], Offload::NONE); 100];
    let mut pushed = 0;
    while port.room() >= 45 {
        pushed += push(&port, &list[..1]);
    }
    assert!(port.room_in(0, 45) > 0 && !port.want_room(), "some, but too little: it sleeps");
    loop {
        let n = push(&port, &list);
        pushed += n;
        if n < list.len() {
            break;
        }
    }
    assert_eq!(pushed, 8 * (131_122 / 1518), "what the chunks hold");
    assert_eq!((push(&port, &list), port.room(), port.want_room()), (0, 0, false));
    assert_eq!(port.counters().drops().count(), 0);

    let (mut reader, input) = (Reader::new(), &port.counters.input);
    let (ours, mut peer) = UnixStream::pair().unwrap();
    peer.write_all(&framed(&f)).unwrap();
    reader.read(ours.as_fd(), false, input);
    assert!(port.handover.give(&mut reader) && port.arm(0));
    drop((ours, peer));
    assert_eq!(pull(&port, 1)[0].0, f);
    let bells = port.doorbells(0);
    assert_eq!(bells.len(), 1);
    assert_eq!((*bells[0]).as_fd().as_raw_fd(), port.bell.as_raw_fd(), "our own eventfd");
}

/// What is segmented has to find room as a whole, however full the port is.
#[test]
fn room_that_was_promised_is_there() {
    let mut outbox = Outbox::new();
    outbox.set_connected(true);
    let output = Direction::default();
    let mut random = crate::tests::Random(3);
    let mut promised = 0;
    for _ in 0..20_000 {
        let (len, count) = match random.below(3) {
            0 => (1514, 1 + random.below(46)),
            1 => (9014, 1 + random.below(7)),
            _ => (15 + random.below(300), 1 + random.below(128)),
        };
        let bytes = frame(1, len);
        let mut batch = Batch::new();
        (0..count).for_each(|_| {
            batch
                .add_parts(&bytes[..14], [Slice::from_bytes(&bytes[14..])], Offload::NONE)
                .unwrap();
        });
        let list: Vec<u16> = (0..u16::try_from(count).unwrap()).collect();
        if outbox.room() >= count {
            promised += 1;
            assert_eq!(outbox.push(&batch, &list, &output).0, count, "{len} bytes");
        } else if let Some(chunk) = outbox.take() {
            outbox.give_back(chunk);
        }
    }
    assert!(promised > 1000);
}

/// A packet of many segments finds some room, but too little, at a peer that hardly reads: its
/// worker is not to spin until a chunk was sent, nor to miss it.
#[test]
fn who_finds_too_little_room_sleeps_until_there_is_more() {
    let (bytes, output) = (frame(1, 1514), Direction::default());
    let mut batch = Batch::new();
    batch.add_parts(&bytes[..14], [Slice::from_bytes(&bytes[14..])], Offload::NONE).unwrap();
    let fill = |outbox: &mut Outbox| {
        while outbox.room() >= 45 {
            assert_eq!(outbox.push(&batch, &[0], &output).0, 1);
        }
        assert!(outbox.room() > 0);
    };
    let mut outbox = Outbox::new();
    outbox.set_connected(true);
    assert!(outbox.room_in(128) >= 128, "with all chunks here there is room for any packet");
    fill(&mut outbox);
    let room = outbox.room();
    assert_eq!((outbox.room_in(room), outbox.want_room()), (room, true), "enough");

    assert_eq!((outbox.room_in(45), outbox.want_room()), (room, false));
    assert_eq!((outbox.room_in(1), outbox.want_room()), (room, false), "others take nothing back");
    let chunk = outbox.take().unwrap();
    assert!(outbox.give_back(chunk), "somebody is to be rung for");
    assert!(outbox.room_in(45) >= 45 && outbox.want_room());

    // Between the two calls.
    fill(&mut outbox);
    let chunk = outbox.take().unwrap();
    assert!(outbox.room_in(45) < 45);
    assert!(!outbox.give_back(chunk), "nobody sleeps yet");
    assert!(outbox.want_room(), "so that one looks again");

    // Its peer goes, or another one comes.
    for connected in [false, true] {
        outbox.set_connected(true);
        fill(&mut outbox);
        assert!(outbox.room_in(45) < 45);
        outbox.set_connected(connected);
        assert!(outbox.want_room());
    }
}

#[test]
fn empty_frames_are_charged_and_do_not_reach_the_worker_one_by_one() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    peer.write_all(&[0; 4 * PATIENCE]).unwrap();
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    wait("all", || {
        port.pull(0, &mut batch, 256, &mut keep);
        keep.skipped == (PATIENCE, 4 * PATIENCE as u64)
    });
    assert_eq!(port.counters().input.dropped(Reason::Runt), PATIENCE as u64);
    assert!(!port.arm(0) && port.is_up(), "nothing more");
}

/// Each of them costs the port's thread a look: a peer that sends nothing else, or hardly anything
/// else, is hung up on, and waits before it is welcome again.
#[test]
fn a_flood_of_empty_frames_ends_the_connection() {
    for good in [vec![], framed(&frame(1, 60))] {
        let (_dir, stream, mut peer) = connected();
        let port = stream.port();
        let unit = [good, vec![0; 100]].concat();
        let flood = unit.repeat(1 + 8 * PATIENCE / 25);
        let thread = std::thread::spawn(move || peer.write_all(&flood));
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        wait("the end", || {
            port.pull(0, &mut batch, 256, &mut keep);
            port.counters().faults.get() == 1
        });
        // It has gone on until its socket was closed.
        let _ = thread.join().unwrap();
        let refused = port.counters().input.dropped(Reason::Runt);
        assert_eq!(refused, keep.skipped.0 as u64);
        assert_eq!(refused, (PATIENCE + keep.frames.len().saturating_sub(1)) as u64);
    }
}

/// Limits of a port hold back its peer, whatever it sends.
#[test]
fn a_peer_whose_frames_are_not_taken_is_not_read_from() {
    let good = framed(&frame(1, 60));
    let wires = [framed(&frame(1, 1000)), [good, vec![0; 4]].concat(), framed(&vec![7; ABSURD])];
    for wire in wires {
        let (_dir, stream, mut peer) = connected();
        peer.set_nonblocking(true).unwrap();
        let (mut sent, mut full) = (0, 0);
        // Until the socket stays full.
        while full < 100 {
            match peer.write(&wire[sent % wire.len()..]) {
                Ok(n) => (sent, full) = (sent + n, 0),
                Err(_) => {
                    full += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            assert!(sent < 4 << 20, "read without end");
        }
        let port = stream.port();
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        wait("it goes on when they are", || {
            port.pull(0, &mut batch, 256, &mut keep);
            peer.write(&wire[sent % wire.len()..]).is_ok()
        });
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let mut random = crate::tests::Random(5);
    let dir = tempfile::tempdir().unwrap();
    let (changes, changed) = counted();
    let stream = open(config(&dir, false), changed).unwrap();
    let port = stream.port();
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    for round in 1..=40 {
        let mut peer = UnixStream::connect(dir.path().join("s.sock")).unwrap();
        let mut bytes = vec![0; random.below(50_000)];
        random.fill(&mut bytes);
        // Now and then a plausible length.
        for at in (0..bytes.len().saturating_sub(4)).step_by(97) {
            bytes[at..at + 2].fill(0);
        }
        peer.write_all(&bytes).unwrap();
        drop(peer);
        wait("come and gone", || {
            port.pull(0, &mut batch, 256, &mut keep);
            changes.load(Ordering::SeqCst) == 2 * round
        });
    }
    let mut good = UnixStream::connect(dir.path().join("s.sock")).unwrap();
    good.write_all(&framed(&frame(0xaa, 77))).unwrap();
    wait("the good one", || {
        port.pull(0, &mut batch, 256, &mut keep);
        keep.frames.last().is_some_and(|(f, _)| *f == frame(0xaa, 77))
    });
}

/// A VMM cuts off the file behind a payload while it is lent: the frame is garbage, the peer stays.
#[test]
fn a_senders_memory_that_vanishes_costs_its_frame_and_not_the_peer() {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use vmlan_ram::{Map, Mapping, Region};

    vmlan_ram::sigbus::install().unwrap();
    let (_dir, stream, mut peer) = connected();
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, 8192).unwrap());
    let region = Region::new(0, 8192, 0, 0, mapping).unwrap();
    let map = Map::new(vec![region], None).unwrap();
    let port = stream.port();
    let (good, long) = (frame(1, 60), frame(2, 1000));
    let mut batch = Batch::new();
    batch.add(&[Slice::from_bytes(&good)], Offload::NONE).unwrap();
    batch
        .add(&[Slice::from_bytes(&long[..200]), map.slice(4096, 800).unwrap()], Offload::NONE)
        .unwrap();
    batch.add(&[Slice::from_bytes(&good)], Offload::NONE).unwrap();
    file.set_len(4096).unwrap();
    let mut done = 0;
    while done < 3 {
        done += port.push(&batch, &mut [0, 1, 2][done..]);
    }
    assert_eq!(read_frame(&mut peer), good);
    let got = read_frame(&mut peer);
    assert_eq!((&got[..200], &got[200..]), (&long[..200], &[0; 800][..]));
    assert_eq!(read_frame(&mut peer), good);
    assert!(port.is_up() && map.poisoned());
}

#[test]
fn nonsense_disconnects_and_the_next_peer_is_welcome() {
    let (dir, stream, mut peer) = connected();
    let port = stream.port();
    peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    wait("down", || {
        port.pull(0, &mut batch, 256, &mut keep);
        port.counters().faults.get() == 1
    });
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "hung up");
    let mut second = UnixStream::connect(dir.path().join("s.sock")).unwrap();
    second.write_all(&framed(&frame(5, 60))).unwrap();
    assert_eq!(pull(&*port, 1)[0].0, frame(5, 60));
}

/// The switch is told of every byte it was made to read, so that limits and weights hold for them.
#[test]
fn frames_that_are_too_long_are_reported_byte_by_byte() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let wire = framed(&vec![7; ABSURD]);
    let sent = wire.len() as u64;
    let thread = std::thread::spawn(move || peer.write_all(&wire).map(|()| peer).unwrap());
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    wait("all", || {
        let before = keep.skipped;
        let finished = port.pull(0, &mut batch, 256, &mut keep);
        assert_eq!(finished, keep.skipped.0 - before.0, "work is never reported as none");
        assert_eq!(finished > 0, keep.skipped.1 > before.1);
        keep.skipped.1 == sent
    });
    thread.join().unwrap();
    assert!(keep.frames.is_empty());
}
