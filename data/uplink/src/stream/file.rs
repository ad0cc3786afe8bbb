//! The socket file of a listening port.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::Shutdown;

use super::StreamError;
use crate::{has_directory, sys};

/// The file of a listening socket, which is removed on drop if it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

/// Gives `socket` the name `path`; its file's permission bits become `mode`. A socket file on which
/// nobody listens is replaced; anything else that is there stays.
pub(super) fn bind(
    socket: OwnedFd,
    path: &Path,
    mode: u32,
) -> Result<(OwnedFd, SocketFile), StreamError> {
    make_way(path)?;
    let fail = |e| StreamError::Io(path.to_owned(), e);
    // `bind` takes the mode from the socket, less the umask (Linux, `unix_bind_bsd`): at no moment
    // may more people connect than asked for.
    let socket = File::from(socket);
    socket.set_permissions(Permissions::from_mode(mode)).map_err(fail)?;
    name(&socket, path).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) if !has_directory(path) => StreamError::NoDirectory(path.to_owned(), e),
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT) => {
            StreamError::NotWritable(path.to_owned(), e)
        }
        _ => fail(e),
    })?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path) };
    // What the umask took away; this only widens.
    widen(path, mode).map_err(fail)?;
    Ok((socket.into(), file))
}

fn name(socket: &File, path: &Path) -> io::Result<()> {
    Ok(rustix::net::bind(socket, &sys::unix_address(path)?)?)
}

/// Connects `socket` to `path`: at once, or not (`EAGAIN` when the backlog is full).
pub(super) fn connect(socket: impl AsFd, path: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &sys::unix_address(path)?)?)
}

/// Whoever owns the directory can put a link to a file of ours in the socket's place at any moment:
/// permissions are given to what was looked at, by its descriptor.
fn widen(path: &Path, mode: u32) -> io::Result<()> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    let file = options.open(path)?;
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let made = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(made, Permissions::from_mode(mode))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Nothing to do about a failure: the next start replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Removes a stale socket file.
fn make_way(path: &Path) -> Result<(), StreamError> {
    let fail = |e| StreamError::Io(path.to_owned(), e);
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail(e)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(StreamError::NotSocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let probe = sys::unix_socket().map_err(fail)?;
    // Whoever accepts can send nothing: this process would have to close it.
    rustix::net::shutdown(&probe, Shutdown::Read).map_err(|e| fail(e.into()))?;
    let is_stale = match connect(&probe, path) {
        Err(e) => e.kind() == io::ErrorKind::ConnectionRefused,
        Ok(()) => is_orphaned(&probe),
    };
    // A full backlog (EAGAIN) is somebody's too.
    if !is_stale {
        return Err(StreamError::InUse(path.to_owned()));
    }
    log::info!("{}: nobody listens, replaced", path.display());
    fs::remove_file(path).map_err(fail)
}

/// True if the process that listens at the far end of `sock` has ended. Its keeper, if that hangs
/// or has not heard of it yet, has its listener still.
fn is_orphaned(sock: &OwnedFd) -> bool {
    let pid = rustix::net::sockopt::socket_peercred(sock).map(|peer| peer.pid);
    matches!(pid.and_then(rustix::process::test_kill_process), Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_never_given_to_what_a_link_names() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, path] = ["victim", "s"].map(|n| dir.path().join(n));
        fs::write(&victim, "secret").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        widen(&path, 0o666).unwrap_err();
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Who has the place may wait for a chance to park whoever looks who it is.
    #[test]
    fn who_listens_at_the_place_can_send_us_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let sent = std::thread::scope(|s| {
            let other = s.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                std::io::Write::write(&mut peer, b"with a descriptor, perhaps")
            });
            assert!(matches!(make_way(&path), Err(StreamError::InUse(_))));
            other.join().unwrap()
        });
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
