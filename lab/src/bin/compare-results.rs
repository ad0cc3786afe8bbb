//! `make bench-compare`: whether two runs' ratios agree within their quartiles.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vmlan_lab::bench::compare::{Args, run};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compare-results: {error}");
            ExitCode::FAILURE
        }
    }
}
