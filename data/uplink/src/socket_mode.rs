//! Permissions of a socket file, and what its socket takes.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub use crate::refuse_descriptors;

/// Sets the permission bits of the socket at `path`.
///
/// Users who may write to the directory can put a link to one of our files in the socket's place at
/// any moment. So the file that was looked at is changed, by its descriptor, and links are not
/// followed.
///
/// # Errors
/// If the file is gone, or is not a socket any more.
pub fn set(path: &Path, mode: u32) -> io::Result<()> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    let file = options.open(path)?;
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other(format!("'{}' is not a socket any more", path.display())));
    }
    let seen = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(seen, Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_sockets_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, secret) = (dir.path().join("s"), dir.path().join("secret"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        set(&socket, 0o640).unwrap();
        assert_eq!(mode(&socket), 0o640);
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(&socket).unwrap();
        std::os::unix::fs::symlink(&secret, &socket).unwrap();
        assert!(set(&socket, 0o666).is_err());
        assert_eq!(mode(&secret), 0o600);
    }
}
