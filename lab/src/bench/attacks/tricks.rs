//! What attackers do: each is done again and again by each peer, over its own port's socket.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use vmlan_harness::SilentFile;
use vmlan_transport::sys::send_with_fds;

use super::guest::{Guest, MEMORY};

/// Longest wait of a peer for anything, and how long it keeps what it has set up.
pub(super) const WHILE: Duration = Duration::from_millis(200);

/// What a peer has at hand.
pub(super) struct Peer<'a> {
    pub(super) path: &'a Path,
    pub(super) silent: Option<&'a SilentFile>,
    /// How many do the same: they share this machine's memory.
    pub(super) peers: usize,
}

/// GET_FEATURES of vhost-user, which is answered. To vfio-user the beginning of some message.
const HELLO: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

impl Peer<'_> {
    fn connect(&self) -> io::Result<UnixStream> {
        let socket = UnixStream::connect(self.path)?;
        socket.set_read_timeout(Some(WHILE))?;
        socket.set_write_timeout(Some(WHILE))?;
        Ok(socket)
    }

    fn silent(&self) -> io::Result<RawFd> {
        let none = || io::Error::other("a FUSE file takes root");
        self.silent.map(|file| file.fd().as_raw_fd()).ok_or_else(none)
    }

    fn guest(&self) -> io::Result<Guest> {
        Guest::connect(self.path, Guest::memfd(MEMORY)?)
    }
}

/// Until the back end hangs up, or for a while.
fn hold(mut socket: &UnixStream) {
    let end = Instant::now() + WHILE;
    let mut bytes = [0; 256];
    while Instant::now() < end && !matches!(socket.read(&mut bytes), Ok(0)) {}
}

/// A file of a FUSE daemon that never answers comes with a message.
pub(super) fn silent_file(peer: &Peer<'_>) -> io::Result<()> {
    let socket = peer.connect()?;
    send_with_fds(socket.as_fd(), &HELLO, &[peer.silent()?])?;
    hold(&socket);
    Ok(())
}

/// The same, by as many as the backlog holds: most are never accepted.
pub(super) fn queued_files(peer: &Peer<'_>) -> io::Result<()> {
    let silent = peer.silent()?;
    let crowd: Vec<_> = (0..9).map_while(|_| peer.connect().ok()).collect();
    for socket in &crowd {
        let _ = send_with_fds(socket.as_fd(), &HELLO, &[silent]);
    }
    crowd.iter().take(1).for_each(hold);
    Ok(())
}

/// TCP sockets with bytes that nobody takes: whoever closes one lingers for a second.
pub(super) fn lingering_socket(peer: &Peer<'_>) -> io::Result<()> {
    let (lingering, _far) = vmlan_harness::lingering_socket(Duration::from_secs(1))?;
    let socket = peer.connect()?;
    send_with_fds(socket.as_fd(), &HELLO, &[lingering.as_raw_fd()])?;
    drop(lingering);
    hold(&socket);
    Ok(())
}

/// Messages with sixteen descriptors each, as fast as they are taken.
pub(super) fn descriptor_flood(peer: &Peer<'_>) -> io::Result<()> {
    let file = Guest::memfd(4096)?;
    let socket = peer.connect()?;
    // A request that nobody knows is refused, and the connection goes on.
    let message = [[99, 0, 0, 0], [1, 0, 0, 0], [0; 4]].concat();
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        send_with_fds(socket.as_fd(), &message, &[file.as_raw_fd(); 16])?;
    }
    Ok(())
}

/// The length of a file of huge pages changes while it is mapped, and the rings are in it.
pub(super) fn shrinking_memory(peer: &Peer<'_>) -> io::Result<()> {
    const HUGE: u64 = 2 << 20;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = File::from(rustix::fs::memfd_create("shrinks", flags)?);
    file.set_len(HUGE)?;
    let toggled = file.try_clone()?;
    // Its thread ends with the process: what threads demand is only seen of those that go on.
    std::thread::spawn(move || {
        loop {
            let _ = toggled.set_len(0).and_then(|()| toggled.set_len(HUGE));
        }
    });
    loop {
        // Refused while it is short.
        let _ = Guest::connect(peer.path, file.try_clone()?).and_then(|guest| {
            guest.start()?;
            guest.kick();
            Ok(())
        });
    }
}

/// Memory on a disk.
pub(super) fn disk_memory(peer: &Peer<'_>) -> io::Result<()> {
    let file = tempfile::tempfile_in("/var/tmp")?;
    file.set_len(MEMORY)?;
    let guest = Guest::connect(peer.path, file)?;
    guest.start()?;
    sleep(Duration::from_millis(1));
    Ok(())
}

/// Tables of memory, one after the other: each is mapped, and the one before unmapped.
pub(super) fn memory_tables(peer: &Peer<'_>) -> io::Result<()> {
    let guest = peer.guest()?;
    flood(|| guest.set_memory())
}

/// A virtqueue is switched off and on.
pub(super) fn ring_switching(peer: &Peer<'_>) -> io::Result<()> {
    let guest = peer.guest()?;
    guest.start()?;
    flood(|| guest.switch())
}

fn flood(mut once: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        once()?;
    }
    Ok(())
}

/// A crowd of epoll watches on a doorbell that is handed over again and again: adding, removing
/// and closing it take as long as the crowd is large.
pub(super) fn doorbell_crowd(peer: &Peer<'_>) -> io::Result<()> {
    let guest = peer.guest()?;
    guest.start()?;
    let _crowd = crowd(guest.kick_fd(), peer.peers)?;
    flood(|| guest.renew_kick())
}

/// Doorbells.
pub(super) fn doorbell_flood(peer: &Peer<'_>) -> io::Result<()> {
    let guest = peer.guest()?;
    guest.start()?;
    flood(|| {
        guest.kick();
        Ok(())
    })
}

/// A crowd on an interrupt, which the worker raises when the guest has sent.
pub(super) fn interrupt_crowd(peer: &Peer<'_>) -> io::Result<()> {
    let guest = peer.guest()?;
    guest.start()?;
    let _crowd = crowd(guest.call_fd(), peer.peers)?;
    flood(|| {
        guest.send_all()?;
        guest.is_served()
    })
}

/// Watches on one eventfd, 100,000 by all peers together.
fn crowd(fd: impl AsFd, peers: usize) -> io::Result<Vec<OwnedFd>> {
    use rustix::event::epoll;
    let each = 100_000 / peers.max(1);
    let same = 200.min(each);
    let mut all = Vec::new();
    for _ in 0..same {
        all.push(fd.as_fd().try_clone_to_owned()?);
    }
    for _ in 0..each / same {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in all.iter().take(same) {
            epoll::add(&watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        all.push(watch);
    }
    Ok(all)
}

/// Holes are punched into memory while the worker reads frames from it.
pub(super) fn hole_punching(peer: &Peer<'_>) -> io::Result<()> {
    let size = (256 << 20) / u64::try_from(peer.peers.min(4)).unwrap_or(1);
    let guest = Guest::connect(peer.path, Guest::memfd(size)?)?;
    guest.start()?;
    guest.lay_out(size)?;
    flood(|| {
        guest.fill(size)?;
        guest.send_all()?;
        guest.punch(size)?;
        guest.is_served()
    })
}

/// Connections come and go.
pub(super) fn reconnecting(peer: &Peer<'_>) -> io::Result<()> {
    let _ = peer.connect()?.write(&HELLO);
    Ok(())
}

/// A message arrives a byte at a time.
pub(super) fn slow_message(peer: &Peer<'_>) -> io::Result<()> {
    let mut socket = peer.connect()?;
    for byte in [HELLO, HELLO].concat() {
        socket.write_all(&[byte])?;
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A guest that does nothing.
pub(super) fn nothing(peer: &Peer<'_>) -> io::Result<()> {
    let guest = peer.guest()?;
    guest.start()?;
    loop {
        sleep(WHILE);
    }
}

/// Frames of a megabyte, which are passed over.
pub(super) fn giant_frames(peer: &Peer<'_>) -> io::Result<()> {
    const GIANT: u32 = 1 << 20;
    let mut socket = peer.connect()?;
    let bytes = [&GIANT.to_be_bytes()[..], &vec![0; GIANT as usize]].concat();
    flood(|| socket.write_all(&bytes))
}

/// 170 register writes in each message, and no answer wanted.
pub(super) fn many_writes(peer: &Peer<'_>) -> io::Result<()> {
    let one = [access(0xd0), vec![0; 8]].concat();
    let body = [170u64.to_ne_bytes().to_vec(), one.repeat(170)].concat();
    registers(peer, &vfio(15, NO_REPLY, &body))
}

/// Register writes, one a message, as a guest's driver does them.
pub(super) fn register_writes(peer: &Peer<'_>) -> io::Result<()> {
    let body = [access(0xd0), vec![0; 4]].concat();
    registers(peer, &vfio(10, NO_REPLY, &body).repeat(64))
}

fn registers(peer: &Peer<'_>, messages: &[u8]) -> io::Result<()> {
    let mut socket = peer.connect()?;
    let version = [&[0, 0, 1, 0][..], b"{\"capabilities\":{}}\0"].concat();
    socket.write_all(&vfio(1, 0, &version))?;
    let _ = socket.read(&mut [0; 4096])?;
    flood(|| socket.write_all(messages))
}

/// No answer is wanted.
const NO_REPLY: u32 = 1 << 4;

/// A vfio-user message.
fn vfio(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap_or(0);
    let mut message = [1u16.to_ne_bytes(), command.to_ne_bytes()].concat();
    [size, flags, 0].iter().for_each(|word| message.extend(word.to_ne_bytes()));
    message.extend(body);
    message
}

/// Four bytes at a place in BAR 0.
fn access(offset: u64) -> Vec<u8> {
    let mut bytes = offset.to_ne_bytes().to_vec();
    [0u32, 4].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}
