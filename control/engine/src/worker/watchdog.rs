//! A worker must never be parked by a peer.
//!
//! The only system call on the data path that a hostile VMM can turn into a blocking one is the
//! write to its call eventfd: it can clear `O_NONBLOCK` (the description is shared) and fill the
//! counter. A worker whose pulse stands still for [`PATIENCE`] while it is not asleep gets a
//! signal, which ends that write with EINTR; the port is then shut down by whoever made the write.
//! The watchdog itself sleeps while all workers do.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::signal;
use super::{Shared, lock};

const PATIENCE: Duration = Duration::from_millis(25);

pub(super) struct Watchdog {
    /// The watchdog waits until somebody is awake.
    parked: AtomicBool,
    stopping: Mutex<bool>,
    poke: Condvar,
}

impl Watchdog {
    pub(super) fn new() -> io::Result<Self> {
        signal::install_interrupter()?;
        Ok(Self {
            parked: AtomicBool::new(false),
            stopping: Mutex::new(false),
            poke: Condvar::new(),
        })
    }

    /// A worker woke up.
    #[inline]
    pub(super) fn awake(&self) {
        if self.parked.load(Ordering::Relaxed) {
            self.unpark();
        }
    }

    #[cold]
    fn unpark(&self) {
        let _held = lock(&self.stopping);
        self.parked.store(false, Ordering::SeqCst);
        self.poke.notify_all();
    }

    pub(super) fn stop(&self) {
        *lock(&self.stopping) = true;
        self.parked.store(false, Ordering::SeqCst);
        self.poke.notify_all();
    }
}

pub(super) fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("watchdog".into()).spawn(move || watch(&shared, PATIENCE))
}

fn watch(shared: &Shared, patience: Duration) {
    vmlan_sandbox::enter(vmlan_sandbox::Thread::Watchdog);
    let mut last: Vec<u64> = vec![0; shared.slots.len()];
    let dog = &shared.watchdog;
    let mut stopping = lock(&dog.stopping);
    while !*stopping {
        if shared.slots.iter().all(|s| s.pulse.load(Ordering::SeqCst) % 2 == 1) {
            dog.parked.store(true, Ordering::SeqCst);
            // Look again: a worker may have woken before it could see us parked.
            let still = shared.slots.iter().all(|s| s.pulse.load(Ordering::SeqCst) % 2 == 1);
            while still && dog.parked.load(Ordering::SeqCst) && !*stopping {
                stopping =
                    dog.poke.wait(stopping).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            dog.parked.store(false, Ordering::SeqCst);
        }
        // Returns at once if it was told to stop while parked.
        (stopping, _) = dog
            .poke
            .wait_timeout_while(stopping, patience, |stopping| !*stopping)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for (slot, last) in shared.slots.iter().zip(&mut last) {
            let pulse = slot.pulse.load(Ordering::SeqCst);
            if pulse == *last && pulse % 2 == 0 && !slot.is_stopping() {
                signal::interrupt_thread(slot.thread.load(Ordering::SeqCst));
            }
            *last = pulse;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use vmlan_switch::{Options, Switch};

    use super::*;
    use crate::worker::Workers;

    #[test]
    fn whoever_is_parked_stops_at_once() {
        let workers = Workers::played(Switch::new(Options::default())).unwrap();
        let (shared, watched) = (&workers.shared, workers.shared.clone());
        let thread = std::thread::spawn(move || watch(&watched, Duration::from_secs(3600)));
        while !shared.watchdog.parked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        shared.watchdog.stop();
        let end = Instant::now() + Duration::from_secs(60);
        while !thread.is_finished() {
            assert!(Instant::now() < end, "it waits for its patience to end");
            std::thread::yield_now();
        }
    }
}
