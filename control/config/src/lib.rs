//! What a user writes, as types: addresses of ports and their keys, and the configuration file. And
//! what others are to be given: VMMs options for a port, hosts a network between them.
//!
//! Nothing is opened, read or started here.

pub mod address;
pub mod address_change;
pub mod api_path;
pub mod cpu_list;
pub mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod gateway;
pub mod host_link;
pub mod human_text;
pub mod nearest_word;
pub mod refusal;
pub mod settings;
pub mod vm_args;
