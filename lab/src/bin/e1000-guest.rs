//! `make bench-e1000`: a Linux guest with an unmodified e1000 driver, beside QEMU's own model.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vmlan_lab::bench::linux_e1000::{Args, run};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("e1000-guest: {error}");
            ExitCode::FAILURE
        }
    }
}
