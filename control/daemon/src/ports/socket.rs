//! Permissions of a listening port's socket file, changed while it is in use.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use crate::address::Address;

/// Sets the mode that `address` asks for.
///
/// # Errors
/// If the file is gone, or somebody put something else in its place.
pub(super) fn set_mode(address: &Address) -> io::Result<()> {
    let Some(mode) = address.number("mode").filter(|_| !address.is_on("connect")) else {
        return Ok(());
    };
    if !fs::symlink_metadata(address.place())?.file_type().is_socket() {
        return Err(io::Error::other(format!("'{}' is no socket any more", address.place())));
    }
    fs::set_permissions(address.place(), fs::Permissions::from_mode(mode))
}
