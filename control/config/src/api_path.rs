//! Where the API's socket is, unless told otherwise.

use std::path::PathBuf;

/// The user has no directory for sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no place for the API's socket: set XDG_RUNTIME_DIR, or choose one with --api")]
pub struct NoApiPath;

/// Where the API listens unless told otherwise: /run/vmlan/api.sock for root, else
/// $XDG_RUNTIME_DIR/vmlan.sock.
///
/// # Errors
/// [`NoApiPath`] if the user has no directory for such things.
pub fn default_path() -> Result<PathBuf, NoApiPath> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/run/vmlan/api.sock"));
    }
    let dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty());
    dir.map(|d| PathBuf::from(d).join("vmlan.sock")).ok_or(NoApiPath)
}
