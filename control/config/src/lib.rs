//! What a user writes, as types: addresses of ports and their keys, the configuration file, and the
//! options that a VMM is to be given for a port.
//!
//! Nothing is opened, read or started here.

pub mod address;
pub mod api_path;
pub mod change;
pub mod file;
pub mod hint;
pub mod refusal;
pub mod settings;
pub mod text;
pub mod vm_args;
