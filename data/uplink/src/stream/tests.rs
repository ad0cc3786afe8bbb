//! A peer at the other end of the socket.

mod hostile;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use vmlan_frame::{Direction, MAX_FRAME, Offload, Reason};
use vmlan_ram::Slice;

use super::read::{ABSURD, Look, PATIENCE, Reader};
use super::*;
use crate::tests::{Keep, counted, frame, pull, push, wait};

fn config(dir: &tempfile::TempDir, connect: bool) -> Config {
    Config { connect, ..Config::new(dir.path().join("s.sock")) }
}

/// A listening port with a peer.
fn connected() -> (tempfile::TempDir, Stream, UnixStream) {
    let dir = tempfile::tempdir().unwrap();
    let stream = open(config(&dir, false), counted().1).unwrap();
    let peer = UnixStream::connect(dir.path().join("s.sock")).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    wait("up", || stream.port().is_up());
    (dir, stream, peer)
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

fn read_frame(peer: &mut UnixStream) -> Vec<u8> {
    let mut len = [0; 4];
    peer.read_exact(&mut len).unwrap();
    let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
    peer.read_exact(&mut bytes).unwrap();
    bytes
}

/// Who sends byte by byte is read from less often; who sends a frame at a time, or a long one in
/// segments of a network, is not.
#[test]
fn few_bytes_at_a_time_are_left_to_gather() {
    let (peer, mut end) = UnixStream::pair().unwrap();
    let (mut reader, input) = (Reader::new(), Direction::default());
    let mut thin = |bytes: &[u8], size: usize| {
        reader.reset();
        let chunks = bytes.chunks(size).map(|chunk| {
            end.write_all(chunk).unwrap();
            reader.read(peer.as_fd(), false, &input);
            reader.is_thin()
        });
        chunks.filter(|thin| *thin).count()
    };
    let (long, short) = (framed(&frame(1, 60_000)), framed(&frame(1, 60)));
    assert_eq!(thin(&long, 1448), 0);
    assert_eq!(thin(&short.repeat(2000), 32), 0, "each frame in two parts");
    assert!(thin(&long, 1) > long.len() - 100);
    assert!(thin(&long, 100) > long.len() / 100 - 120);
}

#[test]
fn frames_pass_both_ways_in_batches() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let frames: Vec<_> = (0..100u8).map(|i| frame(i, 14 + usize::from(i) * 15)).collect();
    let wire: Vec<u8> = frames.iter().flat_map(|f| framed(f)).collect();
    peer.write_all(&wire).unwrap();
    let got: Vec<_> = pull(&*port, 100).into_iter().map(|f| f.0).collect();
    assert_eq!(got, frames);
    assert!(port.counters().snapshot().0.batches < 10, "many frames for each read");

    let list: Vec<_> = frames.iter().map(|f| (&f[..], Offload::NONE)).collect();
    assert_eq!(push(&*port, &list), 100);
    for f in &frames {
        assert_eq!(read_frame(&mut peer), *f);
    }
    let (input, output) = port.counters().snapshot();
    assert_eq!((input.frames, output.frames), (100, 100));
    assert_eq!(input.bytes, output.bytes);
    assert_eq!(port.counters().drops().count(), 0);
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let (peer, mut end) = UnixStream::pair().unwrap();
    let (mut reader, input) = (Reader::new(), Direction::default());
    let f = frame(1, 60);
    for b in framed(&f).iter().chain(&framed(&f)) {
        end.write_all(&[*b]).unwrap();
        assert_eq!(reader.read(peer.as_fd(), true, &input), Look::Drained);
    }
    assert_eq!(reader.inbox.len(), 2);
    let mut keep = Keep::default();
    reader.inbox.lend(&mut Batch::new(), 256, &mut keep, &input);
    assert!(keep.frames.iter().all(|(bytes, _)| *bytes == f));
}

#[test]
fn refused_lengths_cost_only_their_frame() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    for len in [0, 1, 13, MAX_FRAME + 1, ABSURD] {
        let bytes = vec![7; len];
        let good = frame(9, 64);
        let mut wire = framed(&bytes);
        wire.extend(framed(&good));
        let mut writer = peer.try_clone().unwrap();
        let thread = std::thread::spawn(move || writer.write_all(&wire).unwrap());
        assert_eq!(pull(&*port, 1)[0].0, good, "after a frame of {len}");
        thread.join().unwrap();
    }
    let input = &port.counters().input;
    assert_eq!((input.dropped(Reason::Runt), input.dropped(Reason::TooLong)), (3, 2));
    assert_eq!(port.counters().faults.get(), 0);
    peer.write_all(&framed(&frame(3, 20))).unwrap();
    assert_eq!(pull(&*port, 1).len(), 1);
}

/// passt's interfaces have an MTU of 65,520 unless it is told otherwise.
#[test]
fn frames_of_passts_default_mtu_pass_both_ways() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let long = frame(1, 65_520 + 14);
    let wire = framed(&long);
    let mut writer = peer.try_clone().unwrap();
    let thread = std::thread::spawn(move || writer.write_all(&wire).unwrap());
    assert_eq!(pull(&*port, 1)[0].0, long);
    thread.join().unwrap();
    let reader = std::thread::spawn(move || read_frame(&mut peer));
    assert_eq!(push(&*port, &[(&long, Offload::NONE)]), 1);
    assert_eq!(reader.join().unwrap(), long);
    assert_eq!(port.counters().drops().count(), 0);
}

#[test]
fn what_a_peer_sent_before_it_closed_still_arrives() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let wire: Vec<u8> = (0..50).flat_map(|i| framed(&frame(i, 100))).collect();
    peer.write_all(&wire).unwrap();
    drop(peer);
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    wait("the end", || {
        port.pull(0, &mut batch, 7, &mut keep);
        !port.is_up()
    });
    assert_eq!(keep.frames.len(), 50);
}

#[test]
fn held_frames_stay_in_order_and_do_not_keep_the_worker_awake() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let (mut batch, mut keep) = (Batch::new(), Keep { hold: Some(1), ..Keep::default() });
    for i in 0..4000u32 {
        let mut f = frame(u8::from(i % 8 == 0), 1514);
        f[4..8].copy_from_slice(&i.to_be_bytes());
        peer.write_all(&framed(&f)).unwrap();
        if i % 64 == 0 {
            port.pull(0, &mut batch, 256, &mut keep);
        }
        if i == 1200 {
            break;
        }
    }
    wait("those that are not held", || {
        port.pull(0, &mut batch, 256, &mut keep);
        keep.frames.len() == 1050
    });
    assert!(
        port.pull(0, &mut batch, 256, &mut keep) == 0 && !port.arm(0),
        "spins over held frames"
    );
    keep.hold = None;
    keep.frames.clear();
    wait("the held ones", || {
        port.pull(0, &mut batch, 64, &mut keep);
        keep.frames.len() == 151
    });
    let order: Vec<u32> = keep.frames.iter().map(|(f, _)| number(f)).collect();
    assert_eq!(order, (0..=1200).step_by(8).collect::<Vec<_>>());
    assert!(keep.frames.iter().all(|(f, _)| f[8..] == frame(1, 1514)[8..]), "moved intact");
}

fn number(f: &[u8]) -> u32 {
    u32::from_be_bytes([f[4], f[5], f[6], f[7]])
}

#[test]
fn a_peer_that_never_reads_is_bounded_and_resumes_without_loss() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let mut sent = 0u32;
    let mut push_ten = || {
        let frames: Vec<_> = (sent..sent + 10).map(|i| numbered(i, 1514)).collect();
        let list: Vec<_> = frames.iter().map(|f| (&f[..], Offload::NONE)).collect();
        sent += u32::try_from(push(&*port, &list)).unwrap();
        sent
    };
    // The socket fills up, then our chunks.
    let (mut full, mut last) = (0, 0);
    while full < 100 {
        let now = push_ten();
        full = if now == last { full + 1 } else { 0 };
        last = now;
        std::thread::sleep(Duration::from_millis(u64::from(full > 0)));
        assert!(now < 2000, "not bounded");
    }
    assert_eq!(port.room(), 0);
    assert!(!port.want_room(), "so a doorbell was asked for");

    let bell = port.doorbells(0).pop().unwrap();
    let mut next = 0;
    while !rang(&bell) {
        assert_eq!(read_frame(&mut peer), numbered(next, 1514));
        next += 1;
    }
    assert!(port.want_room() && port.room() > 0);
    assert!(push_ten() > last);
    let sent = push_ten();
    while next < sent {
        assert_eq!(read_frame(&mut peer), numbered(next, 1514), "nothing lost or torn");
        next += 1;
    }
    assert_eq!(port.counters().snapshot().1.frames, u64::from(sent));
    assert_eq!(port.counters().drops().count(), 0);
}

fn numbered(i: u32, len: usize) -> Vec<u8> {
    let mut f = frame(0, len);
    f[4..8].copy_from_slice(&i.to_be_bytes());
    f
}

fn rang(bell: &Doorbell) -> bool {
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    sys::poll(&mut fds, Some(Duration::from_millis(1)));
    !fds[0].revents().is_empty()
}

#[test]
fn a_frame_in_very_many_pieces_arrives_whole() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let f = frame(4, 1000);
    let mut batch = Batch::new();
    let pieces = f[14..].chunks(1).map(Slice::from_bytes);
    batch.add_parts(&f[..14], pieces, Offload::NONE).unwrap();
    batch.add_parts(&f[..14], [Slice::from_bytes(&f[14..])], Offload::NONE).unwrap();
    assert_eq!(port.push(&batch, &mut [0, 1, 0]), 3);
    for _ in 0..3 {
        assert_eq!(read_frame(&mut peer), f);
    }
}

#[test]
fn a_peer_gone_while_we_send_takes_the_port_down_only() {
    let (_dir, stream, peer) = connected();
    let port = stream.port();
    drop(peer);
    assert_eq!(push(&*port, &[(&frame(1, 60), Offload::NONE)]), 1);
    wait("down", || !port.is_up());
    let lost = || port.counters().output.dropped(Reason::LinkDown);
    let before = lost();
    assert_eq!(push(&*port, &[(&frame(1, 60), Offload::NONE)]), 1);
    assert_eq!(lost(), before + 1);
}

#[test]
fn frames_for_a_peer_that_is_gone_do_not_keep_the_next_one_out() {
    let (dir, stream, peer) = connected();
    let port = stream.port();
    drop(peer);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                push(&*port, &[(&frame(1, 60), Offload::NONE)]);
            }
        });
        wait("down", || !port.is_up());
        let next = UnixStream::connect(dir.path().join("s.sock"));
        let came = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            port.is_up()
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(next);
        assert!(came, "the next peer is never taken");
    });
}

#[test]
fn a_connecting_port_waits_for_its_server_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (changes, changed) = counted();
    let stream = open(config(&dir, true), changed).unwrap();
    let port = stream.port();
    assert!(!port.is_up());
    let server = UnixListener::bind(dir.path().join("s.sock")).unwrap();
    for round in 1..=2 {
        let (mut peer, _) = server.accept().unwrap();
        wait("up", || port.is_up());
        peer.write_all(&framed(&frame(2, 60))).unwrap();
        assert_eq!(pull(&*port, 1)[0].0, frame(2, 60));
        drop(peer);
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        wait("down", || {
            port.pull(0, &mut batch, 256, &mut keep);
            !port.is_up()
        });
        assert!(changes.load(Ordering::SeqCst) >= 2 * round);
    }
}

#[test]
fn the_socket_file_is_private_and_goes_with_the_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let mut stream = open(config(&dir, false), counted().1).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(open(config(&dir, false), counted().1), Err(StreamError::InUse(_))));
    assert!(path.exists(), "the refused one removed nothing");
    stream.close();
    assert!(!path.exists());

    let open_to_all = Config { mode: Some(0o666), ..config(&dir, false) };
    let _stream = open(open_to_all, counted().1).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
}

#[test]
fn only_stale_sockets_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    drop(UnixListener::bind(&path).unwrap());
    let stream = open(config(&dir, false), counted().1).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    drop(stream);
    assert_eq!(fs::read(&path).unwrap(), b"precious", "not ours any more");
    assert!(matches!(open(config(&dir, false), counted().1), Err(StreamError::NotSocket(_))));
    let long = Config { path: dir.path().join("x".repeat(120)), ..config(&dir, false) };
    assert!(matches!(open(long, counted().1), Err(StreamError::Io(..))));
}

#[test]
fn random_streams_held_and_limited_at_random_arrive_in_order_and_whole() {
    let (_dir, stream, mut peer) = connected();
    let port = stream.port();
    let mut random = crate::tests::Random(11);
    let frames: Vec<Vec<u8>> = (0..3000u32)
        .map(|i| {
            let most = if i % 40 == 0 { 9216 } else { 1500 };
            let mut f = numbered(i, 14 + random.below(most));
            f[0] = u8::from(random.below(10) == 0);
            f
        })
        .collect();
    let wire: Vec<u8> = frames.iter().flat_map(|f| framed(f)).collect();
    let cuts: Vec<usize> = (0..2000).map(|_| 1 + random.below(5000)).collect();
    let writer = std::thread::spawn(move || {
        let mut rest = &wire[..];
        for n in cuts.into_iter().cycle() {
            let n = n.min(rest.len());
            peer.write_all(&rest[..n]).unwrap();
            rest = &rest[n..];
            if rest.is_empty() {
                return peer;
            }
        }
        peer
    });
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    wait("all", || {
        keep.hold = (random.below(4) > 0).then_some(1);
        port.pull(0, &mut batch, 1 + random.below(256), &mut keep);
        keep.frames.len() == frames.len()
    });
    writer.join().unwrap();
    for kind in [0, 1] {
        let sent = frames.iter().filter(|f| f[0] == kind);
        let got = keep.frames.iter().map(|(f, _)| f).filter(|f| f[0] == kind);
        assert!(sent.eq(got), "kind {kind}");
    }
}
