//! A veth pair: `near` is a port's interface, `far` is what a cable would lead to.
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::netdevice;
use vmlan_frame::{BATCH, Batch, Port};

use super::{Keep, frame, ip, run, wait};
use crate::sys;

/// Makes the pair; without IPv6, both ends are silent.
pub(crate) fn pair() {
    for name in ["all", "default"] {
        // A kernel without IPv6 has no such file.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    ip("link add near type veth peer name far");
    // XDP is refused otherwise.
    run("ethtool", "-K near rxvlan off");
    ip("link set near up");
    ip("link set far up");
}

/// A socket on `far` that sends bytes as they are.
pub(crate) fn far() -> OwnedFd {
    let socket = sys::packet_socket().unwrap();
    sys::packet_bind(socket.as_fd(), netdevice::name_to_index(&socket, "far").unwrap()).unwrap();
    socket
}

pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) {
    assert_eq!(rustix::io::write(socket, bytes).unwrap(), bytes.len());
}

/// A frame of a protocol that no stack answers.
pub(crate) fn foreign(first: u8, len: usize) -> Vec<u8> {
    let mut f = frame(first, len);
    f[12..14].copy_from_slice(&[0x88, 0xb5]);
    f
}

pub(crate) fn tagged(f: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&f[..12], &tag, &f[12..]].concat()
}

/// Frames to the port at `near` ring its doorbell once it has been looked at in vain, and nothing
/// else does.
pub(crate) fn rings(port: &dyn Port) {
    let far = far();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    let bell = port.doorbells(0).remove(0);
    epoll::add(&epoll, bell.as_fd(), epoll::EventData::new_u64(0), flags).unwrap();
    let rings = || {
        let mut events = Vec::with_capacity(4);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&at_once)).unwrap()
    };
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    for _ in 0..100 {
        // The port's thread may have its lock for a moment.
        wait("sleep", || port.pull(0, &mut batch, BATCH, &mut keep) == 0 && !port.arm(0));
        rings();
        assert_eq!(rings(), 0, "silence costs nothing");
        send(&far, &foreign(2, 60));
        wait("a ring", || rings() > 0);
    }
    assert_eq!(keep.frames.len(), 99);
}

/// A worker sleeps while the switch holds as many of its frames as it asks for, also if more wait.
pub(crate) fn sleeps_while_frames_are_held(port: &dyn Port) {
    const LIMIT: usize = 8;
    let far = far();
    (0..LIMIT + 1).for_each(|_| send(&far, &foreign(2, 60)));
    let (mut batch, mut keep) = (Batch::new(), Keep { hold: Some(2), ..Keep::default() });
    wait("frames to hold", || {
        port.pull(0, &mut batch, LIMIT, &mut keep);
        !port.arm(0) && keep.most == LIMIT
    });
    keep.hold = None;
    wait("them, and the one behind", || {
        port.pull(0, &mut batch, LIMIT, &mut keep);
        keep.frames.len() > LIMIT
    });
    assert_eq!(keep.frames.len(), LIMIT + 1);
}
