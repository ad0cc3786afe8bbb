//! A bridge that drops what goes to some TCP and UDP ports.
mod program;

use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use vmlan_tools::netmap::{Interest, Port};
use vmlan_transport::sys::poll_readable;

const USAGE: &str = "usage: firewall ADDRESS ADDRESS PORT...
Passes frames from each port to the other, except those to one of the TCP or UDP ports, until
Ctrl-C.
The two ports are on different switches, or in a VM the NICs of different LANs: on one and the
same, frames would circle for ever.
An e1000 has to take frames for everybody (promisc):
    firewall vfio-user:/run/vm1.sock,promisc vhost-user:/run/vm2.sock 23 445";

fn main() -> ExitCode {
    program::run(USAGE, 3, firewall)
}

fn firewall(args: &[String], stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let port = |arg: &String| {
        arg.parse().map_err(|_| format!("'{arg}' is not a TCP or UDP port: write its number"))
    };
    let closed = args[2..].iter().map(port).collect::<Result<Vec<u16>, _>>()?;
    let (mut a, mut b) = (Port::open(&args[0])?, Port::open(&args[1])?);
    println!("closed: {closed:?}");
    let (mut passed, mut dropped) = (0, 0);
    let mut pass = |from: &mut Port, to: &mut Port| {
        let (mut rx, mut tx) = (from.rx(0), to.tx(0));
        while tx.space() > 0
            && let Some(frame) = rx.pop()
        {
            let shut = program::parse(frame).1.is_some_and(|[_, to]| closed.contains(&to));
            let went = !shut && tx.push(frame).is_ok();
            *(if went { &mut passed } else { &mut dropped }) += 1;
        }
    };
    while !stop.load(Relaxed) {
        pass(&mut a, &mut b);
        pass(&mut b, &mut a);
        let (more_a, more_b) = (!a.rx(0).is_empty(), !b.rx(0).is_empty());
        let a_sleeps = a.arm(Interest { rx: !more_a, tx: more_b })?;
        if b.arm(Interest { rx: !more_b, tx: more_a })? && a_sleeps {
            poll_readable(&[a.as_fd(), b.as_fd()], Some(Duration::from_secs(1)))?;
        }
    }
    println!("{passed} frames passed, {dropped} dropped");
    Ok(())
}
