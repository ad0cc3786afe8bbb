//! `make bench-e1000`: what an unmodified e1000 costs, plain, moderated and with mapped doorbells.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vmlan_bench::e1000::{Args, run};

fn main() -> ExitCode {
    match run::run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e1000: {}", error.chain());
            error.exit_code()
        }
    }
}
