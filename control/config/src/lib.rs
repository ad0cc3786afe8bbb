//! What a user writes, as types: addresses of ports and their keys, the configuration file, and the
//! options that a VMM is to be given for a port.
//!
//! Nothing is opened, read or started here.

pub mod address;
pub mod address_change;
pub mod api_path;
pub mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod gateway;
pub mod human_text;
pub mod nearest_word;
pub mod refusal;
pub mod settings;
pub mod vm_args;
