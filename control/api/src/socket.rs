//! The API's socket file.
//!
//! It is bound under a temporary name beside its place, gets its permissions there, and is renamed
//! into place when the switch is ready: whoever can connect finds a working switch, and there is no
//! moment at which the socket has the wrong permissions.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use vmlan_config::address::SOCKET_PATH;
use vmlan_engine::socket_mode;

/// Why the API cannot listen.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SocketError {
    #[error("api {}: another switch listens there: stop it, or choose another place with \
        --api", .0.display())]
    Taken(PathBuf),
    #[error("api {}: a file that is not a socket is in the way: remove it, or choose another place \
        with --api", .0.display())]
    InTheWay(PathBuf),
    #[error("api {}: longer than the 107 bytes a socket's path can have: choose a shorter one with \
        --api", .0.display())]
    TooLong(PathBuf),
    #[error("api {}: cannot {what}: {source}: choose another place with --api", path.display())]
    Io { path: PathBuf, what: &'static str, source: io::Error },
    #[error("api {}: the service manager listens at {}: give --api the same path as \
        ListenStream=", place.display(), path.display())]
    Elsewhere { place: PathBuf, path: PathBuf },
}

/// A socket that listens. One of our making is not yet in its place, and removed when dropped.
#[derive(Debug)]
pub struct Claim {
    listener: UnixListener,
    place: PathBuf,
    file: Option<SocketFile>,
}

/// A socket file of ours. Removed when dropped, unless somebody else's has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Claim {
    /// Makes a socket for `place` with the permission bits `mode`.
    ///
    /// # Errors
    /// [`SocketError`], if somebody listens there already, something else is in the way, or the
    /// socket cannot be made.
    pub fn new(place: &Path, mode: u32) -> Result<Self, SocketError> {
        if place.as_os_str().len() > SOCKET_PATH {
            return Err(SocketError::TooLong(place.into()));
        }
        make_run_directory(place)?;
        check_free(place)?;
        let draft = place.with_file_name(format!(".vmlan-{}", std::process::id()));
        let fail = |what| move |source| SocketError::Io { path: place.into(), what, source };
        // A switch that was killed in the middle may have had our process id.
        let _ = fs::remove_file(&draft);
        let socket = bind(&draft).map_err(fail("make the socket"))?;
        let file = SocketFile::of(&draft).map_err(fail("listen"))?;
        socket_mode::set(&draft, mode).map_err(fail("set its mode"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(|e| fail("listen")(e.into()))?;
        Ok(Self { listener: socket.into(), place: place.into(), file: Some(file) })
    }

    /// A socket at `place` that the service manager has made and listens at (sd_listen_fds(3)): its
    /// file stays when we end, and so do requests that wait.
    ///
    /// # Errors
    /// [`SocketError::Elsewhere`], if it has another path.
    pub fn inherited(listener: UnixListener, place: &Path) -> Result<Self, SocketError> {
        let address = listener.local_addr().ok();
        let path = address.as_ref().and_then(|address| address.as_pathname());
        let path = path.unwrap_or(Path::new("no path"));
        if path != place {
            return Err(SocketError::Elsewhere { place: place.into(), path: path.into() });
        }
        let _ = socket_mode::refuse_descriptors(listener.as_fd());
        Ok(Self { listener, place: place.into(), file: None })
    }

    /// Puts the socket in its place.
    ///
    /// # Errors
    /// As [`Claim::new`]: somebody may have taken the place meanwhile.
    pub fn publish(mut self) -> Result<(UnixListener, Option<SocketFile>), SocketError> {
        let Some(file) = &mut self.file else { return Ok((self.listener, None)) };
        check_free(&self.place)?;
        fs::rename(&file.path, &self.place).map_err(|source| SocketError::Io {
            path: self.place.clone(),
            what: "put the socket there",
            source,
        })?;
        file.path.clone_from(&self.place);
        Ok((self.listener, self.file))
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket with the file `draft`, which nobody can connect to yet: until its permissions are set,
/// it has those that the umask leaves.
fn bind(draft: &Path) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // Whoever reads a request would drop the descriptors that came with it, and may be parked by
    // that. An older kernel cannot refuse them: users of this socket are trusted.
    let _ = socket_mode::refuse_descriptors(socket.as_fd());
    rustix::net::bind(&socket, &SocketAddrUnix::new(draft)?)?;
    Ok(socket)
}

/// Only for the default place of root: /run is empty after each boot.
fn make_run_directory(place: &Path) -> Result<(), SocketError> {
    let dir = Path::new("/run/vmlan");
    if place.parent() != Some(dir) {
        return Ok(());
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(dir);
    made.map_err(|source| SocketError::Io {
        path: place.into(),
        what: "make its directory",
        source,
    })
}

/// Nothing is there, or a socket that nobody listens on any more.
fn check_free(place: &Path) -> Result<(), SocketError> {
    let there = match fs::symlink_metadata(place) {
        Ok(there) => there,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(SocketError::Io { path: place.into(), what: "look there", source });
        }
    };
    if !there.file_type().is_socket() {
        return Err(SocketError::InTheWay(place.into()));
    }
    match knock(place) {
        Err(e)
            if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
        {
            Ok(())
        }
        Ok(()) => Err(SocketError::Taken(place.into())),
        // Not ours to connect to, or its backlog is full: somebody has it.
        Err(source) => {
            Err(SocketError::Io { path: place.into(), what: "replace the socket there", source })
        }
    }
}

/// Connects to see whether anybody listens, without waiting. Whoever accepts can send nothing: this
/// process would have to close it.
fn knock(place: &Path) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::shutdown(&socket, Shutdown::Read)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(place)?)?)
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let made = fs::symlink_metadata(path)?;
        Ok(Self { path: path.into(), inode: (made.dev(), made.ino()) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.inode);
        if ours && let Err(e) = fs::remove_file(&self.path) {
            log::warn!("api {}: cannot remove the socket: {e}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nobody_can_connect_before_the_permissions_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let [draft, place] = ["draft", "place"].map(|name| dir.path().join(name));
        let _socket = bind(&draft).unwrap();
        let refused = UnixStream::connect(&draft).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let (_listener, file) = Claim::new(&place, 0o600).unwrap().publish().unwrap();
        let file = file.unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().mode() & 0o777, 0o600);
        UnixStream::connect(&place).unwrap();
    }

    /// From the kernel's version on that can refuse them (Linux 6.16).
    #[test]
    fn descriptors_are_refused_where_the_kernel_can() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("api");
        let (listener, _file) = Claim::new(&place, 0o600).unwrap().publish().unwrap();
        let can = socket_mode::refuse_descriptors(listener.as_fd()).is_ok();
        // One that waits to be accepted, and one that is.
        let early = UnixStream::connect(&place).unwrap();
        let _accepted = listener.accept().unwrap();
        let late = UnixStream::connect(&place).unwrap();
        for client in [early, late] {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = [listener.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [std::io::IoSlice::new(b"GET")];
            let sent = rustix::net::sendmsg(&client, &bytes, &mut control, SendFlags::empty());
            assert_eq!(sent.is_err(), can, "{sent:?}");
        }
    }

    /// Who has the place may wait for a chance to park whoever looks who it is.
    #[test]
    fn who_listens_at_the_place_can_send_us_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("api");
        let listener = UnixListener::bind(&place).unwrap();
        let sent = std::thread::scope(|s| {
            let other = s.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                std::io::Write::write(&mut peer, b"with a descriptor, perhaps")
            });
            assert!(matches!(check_free(&place), Err(SocketError::Taken(_))));
            other.join().unwrap()
        });
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
