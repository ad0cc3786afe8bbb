//! Passes every frame from each of two ports to the other.
mod program;

use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use vmlan_tools::netmap::{Interest, Port};
use vmlan_transport::sys::poll_readable;

const USAGE: &str = "usage: bridge ADDRESS ADDRESS
Passes every frame from each port to the other, until Ctrl-C.
The two ports are on different switches, or in a VM the NICs of different LANs: on one and the
same, frames would circle for ever.
An e1000 has to take frames for everybody (promisc):
    bridge vfio-user:/run/vm1.sock,promisc vhost-user:/run/vm2.sock";

fn main() -> ExitCode {
    program::run(USAGE, 2, bridge)
}

fn bridge(args: &[String], stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let (mut a, mut b) = (Port::open(&args[0])?, Port::open(&args[1])?);
    println!("bridging");
    let (mut there, mut back) = (0, 0);
    while !stop.load(Relaxed) {
        there += pass(&mut a, &mut b);
        back += pass(&mut b, &mut a);
        // Frames that are left wait for room in the other port's ring.
        let (more_a, more_b) = (!a.rx(0).is_empty(), !b.rx(0).is_empty());
        let a_sleeps = a.arm(Interest { rx: !more_a, tx: more_b })?;
        if b.arm(Interest { rx: !more_b, tx: more_a })? && a_sleeps {
            poll_readable(&[a.as_fd(), b.as_fd()], Some(Duration::from_secs(1)))?;
        }
    }
    println!("{there} frames there, {back} back");
    Ok(())
}

fn pass(from: &mut Port, to: &mut Port) -> u64 {
    let (mut rx, mut tx, mut count) = (from.rx(0), to.tx(0), 0);
    while tx.space() > 0
        && let Some(frame) = rx.pop()
    {
        // One that is too long for the other port is dropped.
        count += u64::from(tx.push(frame).is_ok());
    }
    count
}
