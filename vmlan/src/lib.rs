//! The program: command line, output, exit codes, and the start and end of a switch.
//!
//! ```text
//!  command line ┐               API thread              control thread             workers
//!  TOML file    ├─► Settings ─► [ api ] ─Action─► [ engine: apply ─► ports ] ─► [ worker ]
//!  other commands ─────► UNIX socket               one at a time, open, close    move frames
//! ```
//!
//! A library only so that tests reach it; the program is `main.rs`.

pub mod cli;
pub mod exit;
mod load;
mod log_format;
mod output;
mod pktgen;
mod process;
mod serve;
mod stack;
mod successor;
mod supervise;
mod switch_log;
mod systemd;
mod tables;
mod task;
mod top;
