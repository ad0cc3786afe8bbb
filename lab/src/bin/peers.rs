//! `make bench-peers`: vmlan beside OVS-DPDK and others, with DPDK testpmd as the guest.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vmlan_lab::bench::peers::{Args, run};

fn main() -> ExitCode {
    match run::run(&Args::parse()) {
        Ok(run::Outcome::Measured) => ExitCode::SUCCESS,
        Ok(run::Outcome::SomeFailed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("peers: {}", error.chain());
            error.exit_code()
        }
    }
}
