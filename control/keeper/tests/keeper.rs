//! A keeper and its port, with peers that mean harm.

mod common;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags};

use common::{connected, listen, memfd, send};
use vmlan_harness::SilentFile;
use vmlan_keeper::{Descriptor, KeeperError, MAX_FDS};

/// Long for a loaded machine, and short of for ever.
const LONG: Duration = Duration::from_secs(120);

/// Bytes that a peek without a control buffer shows, and whether it tells of descriptors.
fn peek(sock: &impl AsFd) -> (Vec<u8>, bool) {
    let mut buf = [0; 100];
    let iov = &mut [std::io::IoSliceMut::new(&mut buf)];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let got = rustix::net::recvmsg(sock, iov, &mut RecvAncillaryBuffer::default(), flags).unwrap();
    (buf[..got.bytes].to_vec(), got.flags.contains(ReturnFlags::CTRUNC))
}

fn read(sock: &impl AsFd, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let (_, n) = rustix::net::recv(sock, &mut buf[..], RecvFlags::DONTWAIT).unwrap();
    buf.truncate(n);
    buf
}

/// A silent file, made after the processes that fork keepers: one that is forked later has a copy
/// of the file, closes it first of all, and is parked.
fn silent(make: impl FnOnce() -> Option<SilentFile>) -> Option<SilentFile> {
    vmlan_keeper::start(true).unwrap();
    make()
}

/// What the kernel promises, and all of this is built on.
#[test]
fn a_peek_tells_of_descriptors_up_to_the_last_byte_it_shows() {
    let (_dir, _keeper, kept, mut peer) = connected();
    peer.write_all(b"plain").unwrap();
    send(&peer, b"with", &[memfd().as_fd()], SendFlags::empty());
    peer.write_all(b"after").unwrap();
    assert_eq!(peek(&kept), (b"plainwith".to_vec(), true));
    // Again: a peek takes nothing. What is in front may be read without them.
    assert_eq!(peek(&kept), (b"plainwith".to_vec(), true));
    assert_eq!(read(&kept, 5), b"plain");
    assert_eq!(peek(&kept), (b"with".to_vec(), true));
    read(&kept, 4);
    assert_eq!(peek(&kept), (b"after".to_vec(), false));
}

/// Without SO_OOBINLINE a reader of "after" throws the byte away that was sent out of band, with
/// its descriptors, though the peek at "after" told of none.
#[test]
fn a_byte_out_of_band_hides_no_descriptor() {
    let (_dir, _keeper, kept, mut peer) = connected();
    send(&peer, b"o", &[memfd().as_fd()], SendFlags::OOB);
    peer.write_all(b"after").unwrap();
    assert_eq!(peek(&kept), (b"o".to_vec(), true));
    let (mut buf, mut fds) = ([0; 100], Vec::new());
    assert_eq!(kept.take(&mut buf, &mut fds).unwrap().bytes, 1);
    assert!(matches!(fds[..], [Descriptor::Memory(_)]), "{fds:?}");
    assert_eq!(peek(&kept), (b"after".to_vec(), false));
}

/// Nor on a socket that connects, whose peer may be faster than the keeper.
#[test]
fn a_socket_that_connects_has_bytes_out_of_band_inline_at_once() {
    let (_dir, keeper, _kept, _peer) = connected();
    let (sock, _other) = UnixStream::pair().unwrap();
    let held = keeper.hold(sock.into()).unwrap();
    assert!(rustix::net::sockopt::socket_oobinline(&held).unwrap());
}

#[test]
fn only_what_is_harmless_is_passed_on() {
    let (_dir, _keeper, kept, peer) = connected();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let all = [memfd(), socket.into(), event, null.into()];
    send(&peer, b"four", &all.each_ref().map(AsFd::as_fd), SendFlags::empty());
    let (mut buf, mut fds) = ([0; 100], Vec::new());
    let taken = kept.take(&mut buf, &mut fds).unwrap();
    assert_eq!((&buf[..taken.bytes], taken.truncated), (&b"four"[..], false));
    let [memory, socket, event, null] = &fds[..] else { panic!("{fds:?}") };
    assert!(matches!(memory, Descriptor::Memory(_)));
    assert!(matches!(socket, Descriptor::Other(text) if text.starts_with("socket:[")));
    assert!(matches!(event, Descriptor::Event(_)));
    assert!(matches!(null, Descriptor::Other(text) if text == "/dev/null"));
    // Too many: all are closed.
    fds.clear();
    let many: Vec<_> = (0..=MAX_FDS).map(|_| memfd()).collect();
    let many: Vec<_> = many.iter().map(AsFd::as_fd).collect();
    send(&peer, b"x", &many, SendFlags::empty());
    assert!(kept.take(&mut buf, &mut fds).unwrap().truncated && fds.is_empty());
}

/// A peer whose descriptor does not answer loses its connection; the port goes on.
#[test]
fn a_parked_keeper_is_replaced() {
    let Some(silent) = silent(SilentFile::new) else { return };
    let (dir, keeper, kept, peer) = connected();
    let (mut buf, mut fds) = ([0; 100], Vec::new());
    send(&peer, b"x", &[silent.fd()], SendFlags::empty());
    let parked = kept.take(&mut buf, &mut fds);
    assert!(matches!(parked, Err(KeeperError::Parked)), "{parked:?}");
    drop(kept);
    assert!(silent.parked() > 0);
    assert_eq!(keeper.due(Instant::now()), Some(Duration::ZERO));
    keeper.look().unwrap();
    let next = UnixStream::connect(dir.path().join("s")).unwrap();
    let kept = keeper.accept().unwrap();
    send(&next, b"y", &[memfd().as_fd()], SendFlags::empty());
    kept.take(&mut buf, &mut fds).unwrap();
    assert!(matches!(fds[..], [Descriptor::Memory(_)]));
}

/// The descriptor is in the queue when the connection ends: the keeper closes it, and hangs.
#[test]
fn what_is_queued_is_closed_by_the_keeper() {
    let Some(mut silent) = silent(SilentFile::talking) else { return };
    let (dir, keeper, kept, peer) = connected();
    let second = UnixStream::connect(dir.path().join("s")).unwrap();
    let innocent = keeper.accept().unwrap();
    send(&peer, b"x", &[silent.fd()], SendFlags::empty());
    silent.give_away();
    drop(kept);
    silent.wait_parked(1);
    // Somebody else's request waits for the first keeper, and is done by the second.
    send(&second, b"y", &[memfd().as_fd()], SendFlags::empty());
    let (mut buf, mut fds) = ([0; 100], Vec::new());
    innocent.take(&mut buf, &mut fds).unwrap();
    assert!(matches!(fds[..], [Descriptor::Memory(_)]));
    assert!(matches!(keeper.look(), Err(KeeperError::Parked)));
    keeper.look().unwrap();
}

/// No more than four processes hang for one port, and those that wake up go.
#[test]
fn few_keepers_hang() {
    let Some(silent) = silent(SilentFile::new) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let keeper = listen(&path);
    let mut hung = 0;
    loop {
        let peer = UnixStream::connect(&path).unwrap();
        let Ok(kept) = keeper.accept() else { break };
        send(&peer, b"x", &[silent.fd()], SendFlags::empty());
        let parked = kept.take(&mut [0; 9], &mut Vec::new());
        assert!(matches!(parked, Err(KeeperError::Parked)), "{parked:?}");
        hung += 1;
    }
    assert_eq!(hung, 5);
    let gone = keeper.look();
    assert!(matches!(gone, Err(KeeperError::Gone(_))), "{gone:?}");
    drop(silent);
    let end = Instant::now() + LONG;
    while keeper.look().is_err() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(keeper.accept().is_ok(), "nobody hangs any more");
}
