//! The program around the data path: command line, configuration, API, life of ports.
//!
//! ```text
//!  command line ┐                    API thread            control thread               workers
//!  TOML file    ├─► Settings ─► [ api: HTTP/JSON ] ─Action─► [ apply ] ─► [ ports ] ─► [ worker ]
//!  other `vmlan` commands ─────────► UNIX socket            one at a time   open, close   move frames
//! ```
//!
//! A library only so that tests and fuzz targets reach its parsers; the program is `main.rs`.

pub mod address;
pub mod api;
mod apply;
mod bench;
pub mod cli;
pub mod config;
pub mod control;
mod demo;
pub mod exit;
pub mod explain;
mod lab;
mod log_format;
mod notify;
mod pktgen;
mod ports;
mod probe;
mod process;
mod serve;
mod settings;
mod socket_mode;
mod stack;
pub mod stats;
mod sys;
pub mod vm_args;
mod words;
pub mod worker;

/// The commit this was built from.
pub const COMMIT: &str = env!("VMLAN_COMMIT");
