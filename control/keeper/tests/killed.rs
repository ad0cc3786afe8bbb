//! A keeper that is killed by hand.

mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{connected, memfd, send};
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal};
use vmlan_keeper::Descriptor;

fn children(of: u32) -> Vec<u32> {
    let dirs = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = dirs.filter_map(|dir| dir.file_name().to_str()?.parse().ok());
    let parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    pids.filter(|pid| parent(pid) == Some(of)).collect()
}

#[test]
fn a_killed_keeper_is_replaced() {
    let (dir, keeper, kept, peer) = connected();
    let spawner = children(std::process::id());
    let first = children(spawner[0]);
    for &pid in &first {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    while children(spawner[0]).iter().any(|pid| first.contains(pid)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    send(&peer, b"x", &[memfd().as_fd()], SendFlags::empty());
    let mut fds = Vec::new();
    kept.take(&mut [0; 9], &mut fds).unwrap();
    assert!(matches!(fds[..], [Descriptor::Memory(_)]));
    let _second = UnixStream::connect(dir.path().join("s")).unwrap();
    assert!(keeper.accept().is_ok());
}
