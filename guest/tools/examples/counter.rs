//! Counts the frames that reach a port, by protocol.
mod program;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use vmlan_tools::netmap::{Interest, Port};

const USAGE: &str = "usage: counter ADDRESS
Counts received frames by protocol: a line each second, and the sum at Ctrl-C.
An e1000 has to take frames for everybody: counter vfio-user:/run/vm1.sock,promisc";

fn main() -> ExitCode {
    program::run(USAGE, 1, count)
}

fn count(args: &[String], stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let mut port = Port::open(&args[0])?;
    println!("counting");
    let mut counts = BTreeMap::<_, [u64; 2]>::new(); // In this second, and in all.
    let mut next = Instant::now() + Duration::from_secs(1);
    while !stop.load(Relaxed) {
        let left = next.saturating_duration_since(Instant::now());
        port.poll(Interest { rx: true, tx: false }, left)?;
        let (mut rx, mut header) = (port.rx(0), [0; 64]);
        while !rx.is_empty() {
            let len = rx.slot(rx.head()).read(&mut header); // The headers are enough.
            counts
                .entry(program::parse(&header[..len]).0)
                .or_default()
                .iter_mut()
                .for_each(|n| *n += 1);
            rx.set_head(rx.next(rx.head()));
        }
        if left.is_zero() {
            println!("{}", line(&counts, 0));
            counts.values_mut().for_each(|count| count[0] = 0);
            next += Duration::from_secs(1);
        }
    }
    println!("all: {}", line(&counts, 1));
    Ok(())
}

fn line(counts: &BTreeMap<&str, [u64; 2]>, which: usize) -> String {
    let words: Vec<_> = counts.iter().map(|(name, n)| format!("{name} {}", n[which])).collect();
    words.join(", ")
}
