//! `make bench-kvm`: the KVM analysis' figures 5 to 11 with Linux guests.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vmlan_lab::bench::linux_tcp_window::{Args, run};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvm-tcp-window: {error}");
            ExitCode::FAILURE
        }
    }
}
