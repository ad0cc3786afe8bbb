//! A port whose frames come back to it, and our user-space driver on its far side.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlan_driver::virtio::VirtioNet;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_frame::{Batch, Port, Sink};
use vmlan_transport::address::VhostUser;

use super::Fixture;

/// Sends every frame back, or holds it.
pub struct Mirror<'p> {
    port: &'p dyn Port,
    seen: Vec<Vec<u8>>,
    hold: bool,
}

impl Sink for Mirror<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let mut list = Vec::new();
        for i in 0..batch.len() {
            let view = batch.frame(i).unwrap();
            let mut bytes = vec![0; view.len];
            view.copy_to(&mut bytes);
            self.seen.push(bytes);
            list.push(u16::try_from(i).unwrap());
        }
        if self.hold {
            (0..batch.len()).for_each(|i| batch.hold(i));
        } else {
            let done = self.port.push(batch, &mut list);
            list.iter().skip(done).for_each(|i| batch.hold(usize::from(*i)));
        }
    }
}

pub fn bounce(port: &dyn Port, batch: &mut Batch<'static>, hold: bool) -> (usize, Vec<Vec<u8>>) {
    let mut mirror = Mirror { port, seen: Vec::new(), hold };
    let done = port.pull(0, batch, 256, &mut mirror);
    (done, mirror.seen)
}

pub fn address(f: &Fixture, more: &str) -> VhostUser {
    format!("vhost-user:{}{more}", f.path().display()).parse().unwrap()
}

/// Bounces frames of `port` until told to stop.
pub fn with_worker<R>(port: &dyn Port, work: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut batch = Batch::new();
            while !stop.load(Ordering::Relaxed) {
                if bounce(port, &mut batch, false).0 == 0 {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        // Also when the work panics: the scope waits for the thread.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Sends `count` frames by the first pair of queues and waits for them to come back.
pub fn round_trip(nic: &mut VirtioNet, count: usize) {
    let both = Interest { rx: true, tx: true };
    let mut batch = nic.pairs[0].rx.batch();
    let (mut sent, mut back) = (0, 0);
    while back < count {
        let tx = &mut nic.pairs[0].tx;
        tx.reap();
        while sent < count
            && let Some(slot) = tx.next()
        {
            tx.write(slot, 0, &[2; 60]);
            tx.send(slot, 60);
            sent += 1;
        }
        tx.flush();
        // The switch chooses the pair that a flow comes back by.
        for pair in &mut nic.pairs {
            back += pair.rx.poll(&mut batch, 256);
            pair.rx.release(&mut batch);
        }
        if back < count {
            let wake = nic.wait(both, Duration::from_secs(10)).unwrap();
            assert_ne!(wake, Wake::Timeout, "lost after {back} of {sent}");
        }
    }
    assert_eq!(back, count);
}

/// Rings in every shape: keys of a driver's address.
pub const SHAPES: [&str; 11] = [
    "",
    ",event_idx=off",
    ",indirect=off,in_order=off",
    ",mrg=off,segments=2",
    ",version_1=off,any_layout=off,mrg=off",
    ",reply_ack=off,mem_slots=off,inflight=off,status=off",
    ",size=2,buffer=128",
    ",packed=on",
    ",packed=on,event_idx=off,in_order=off,segments=4",
    ",packed=on,indirect=on,segments=2,mrg=off",
    ",packed=on,size=2,buffer=128",
];
