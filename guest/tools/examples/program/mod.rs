//! What the packet programs beside this folder have in common: their command line, Ctrl-C, and a
//! look into frames.
#![allow(dead_code)] // Each of them uses a part.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs `work` with the arguments, `least` of them at least, and a flag that Ctrl-C (or SIGTERM)
/// sets. With too few, or with `--help`, prints the usage.
pub fn run(
    usage: &str,
    least: usize,
    work: impl FnOnce(&[String], &AtomicBool) -> Result<(), Box<dyn Error>>,
) -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{usage}");
        return ExitCode::SUCCESS;
    }
    if args.len() < least {
        eprintln!("{usage}");
        return ExitCode::from(2);
    }
    match stop_flag().and_then(|stop| work(&args, &stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn stop_flag() -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// The protocol of a frame, and TCP's or UDP's ports (source, destination) where the frame has
/// them: later fragments do not.
pub fn parse(frame: &[u8]) -> (&'static str, Option<[u16; 2]>) {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut at = 12;
    // 802.1Q and 802.1ad tags.
    while let Some(0x8100 | 0x88a8) = word(at) {
        at += 4;
    }
    let ports = |at: usize| Some([word(at)?, word(at + 2)?]);
    let (protocol, payload) = match word(at) {
        Some(0x0806) => return ("arp", None),
        Some(0x0800) => {
            let whole = word(at + 8).is_some_and(|fragment| fragment & 0x1fff == 0);
            let header = frame.get(at + 2).map_or(0, |byte| usize::from(byte & 15) * 4);
            (frame.get(at + 11), whole.then_some(at + 2 + header))
        }
        Some(0x86dd) => (frame.get(at + 8), Some(at + 42)),
        _ => return ("other", None),
    };
    match protocol {
        Some(1 | 58) => ("icmp", None),
        Some(6) => ("tcp", payload.and_then(ports)),
        Some(17) => ("udp", payload.and_then(ports)),
        _ => ("ip", None),
    }
}
