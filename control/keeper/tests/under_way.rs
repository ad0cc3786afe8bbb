//! Too many descriptors of this user are under way, and the kernel passes none on. A process of its
//! own: its limit is lowered.

mod common;

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use common::{connected, memfd, send, try_send};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vmlan_harness::Family;
use vmlan_keeper::{Descriptor, KeeperError};

/// Open files, and descriptors under way. Other processes of this user have less.
const LIMIT: u16 = 1000;

#[test]
fn a_keeper_lives_that_cannot_pass_descriptors_on() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT.into()), ..limit }).unwrap();
    let (dir, keeper, kept, mut peer) = connected();
    let connect = || UnixStream::connect(dir.path().join("s")).unwrap();
    let family = Family::of(std::process::id()).unwrap();
    let keepers = family.named("keeper");
    send(&peer, b"x", &[memfd().as_fd()], SendFlags::empty());
    let (full, taken) = UnixStream::pair().unwrap();
    for _ in 0..LIMIT / 32 + 2 {
        // Beyond the limit it is refused to whoever is not root.
        let _ = try_send(&full, b"x", &[memfd().as_fd(); 32], SendFlags::DONTWAIT);
    }
    let refused = |e: KeeperError| assert!(matches!(e, KeeperError::Io(Errno::TOOMANYREFS)), "{e}");
    refused(kept.take(&mut [0; 9], &mut Vec::new()).unwrap_err());
    let mut second = connect();
    refused(keeper.accept().unwrap_err());
    assert_eq!(second.read(&mut [0; 1]).unwrap(), 0, "it is hung up on");
    drop((full, taken));
    // Tests of other processes may have some under way.
    let (third, accepted) = loop {
        let third = connect();
        match keeper.accept() {
            Ok(accepted) => break (third, accepted),
            Err(e) => refused(e),
        }
    };
    for (peer, kept) in [(&third, accepted), (&peer, kept)] {
        send(peer, b"y", &[memfd().as_fd()], SendFlags::empty());
        let mut fds = Vec::new();
        kept.take(&mut [0; 9], &mut fds).unwrap();
        assert!(matches!(fds[..], [Descriptor::Memory(_)]));
    }
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "kept is dropped");
    assert_eq!(family.named("keeper"), keepers, "it is the same process");
}
