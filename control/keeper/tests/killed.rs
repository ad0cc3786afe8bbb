//! Keepers and spawners that are killed by hand. One test: all of them are this process's.

mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use common::{connected, memfd, send};
use rustix::net::SendFlags;
use vmlan_harness::{Family, kill9};
use vmlan_keeper::{Asked, Descriptor, Keeper, KeeperError, Kept};

fn passes_memory_on(kept: &Kept, peer: &UnixStream) {
    send(peer, b"x", &[memfd().as_fd()], SendFlags::empty());
    let mut fds = Vec::new();
    kept.take(&mut [0; 9], &mut fds).unwrap();
    assert!(matches!(fds[..], [Descriptor::Memory(_)]));
}

#[test]
fn whoever_is_killed_is_replaced() {
    let (dir, keeper, kept, peer) = connected();
    let family = Family::of(std::process::id()).unwrap();
    assert_eq!(family.named("spawner").len(), 2);
    kill9(&family.named("keeper"));
    passes_memory_on(&kept, &peer);
    let _second = UnixStream::connect(dir.path().join("s")).unwrap();
    assert!(keeper.accept().is_ok());
    // One spawner after the other: at the end none is left of the first two.
    for _ in 0..3 {
        kill9(&family.named("spawner")[..1]);
        drop(Keeper::new(None).unwrap());
        assert_eq!(family.named("spawner").len(), 2);
    }
    // Both at once: what is there goes on, and nothing new can be.
    kill9(&family.named("spawner"));
    passes_memory_on(&kept, &peer);
    let refused = Keeper::new(None).unwrap_err().to_string();
    assert!(refused.contains("were killed: restart the switch"), "{refused}");
    let line = keeper.line().unwrap().try_clone().unwrap();
    kill9(&family.named("keeper"));
    send(&peer, b"x", &[memfd().as_fd()], SendFlags::empty());
    let lost = kept.take(&mut [0; 9], &mut Vec::new()).unwrap_err();
    let why = std::error::Error::source(&lost).map(ToString::to_string).unwrap_or_default();
    assert!(why.contains("restart the switch"), "{lost}: {why}");
    // A next switch could not go on with it either, and says so.
    let sock = Some((kept.slot(), kept.as_fd().try_clone_to_owned().unwrap()));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        tell.send(Keeper::adopt(line, None, sock, Asked::all([])).map(drop))
    });
    let adopted = told.recv_timeout(Duration::from_secs(120)).expect("it waits for nobody");
    assert!(matches!(adopted, Err(KeeperError::Gone(_))), "{adopted:?}");
}
