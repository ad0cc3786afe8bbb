//! Permissions of a listening port's socket file, changed while it is in use.

use std::io;
use std::path::Path;

use crate::socket_mode;
use vmlan_config::address::Address;

/// Sets the mode that `address` asks for.
///
/// # Errors
/// If the file is gone, or somebody put something else in its place.
pub(super) fn set_mode(address: &Address) -> io::Result<()> {
    let Some(mode) = address.number("mode").filter(|_| !address.is_on("connect")) else {
        return Ok(());
    };
    socket_mode::set(Path::new(address.place()), mode)
}
