//! A worker that does nothing but notice frames.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use vmlan_frame::{Batch, Port, Sink};

/// How it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// It looks all the time.
    Awake,
    /// It has itself woken by the doorbell.
    Asleep,
}

/// What it has noticed.
#[derive(Debug)]
pub(super) struct Worker {
    start: Instant,
    /// When the last batch came, in nanoseconds since the start.
    pub(super) seen: AtomicU64,
    /// Frames so far: told after the time.
    pub(super) frames: AtomicU64,
}

impl Default for Worker {
    fn default() -> Self {
        Self { start: Instant::now(), seen: AtomicU64::new(0), frames: AtomicU64::new(0) }
    }
}

impl Worker {
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Waits for more than so many frames, by looking; false if they do not come.
    pub(super) fn wait(&self, frames: u64, patience: Duration) -> bool {
        let end = self.now() + u64::try_from(patience.as_nanos()).unwrap_or(0);
        while self.frames.load(Acquire) == frames {
            if self.now() > end {
                return false;
            }
            // It may want this very core.
            std::thread::yield_now();
        }
        true
    }

    /// Its life. A port whose doorbells cannot be watched shows: no frame arrives.
    pub(super) fn run(&self, port: &dyn Port, watch: Watch, over: &AtomicBool) {
        let (mut batch, mut sink) = (Batch::new(), Notice(self));
        let Ok(epoll) = epoll::create(epoll::CreateFlags::CLOEXEC) else { return };
        let mut version = None;
        while !over.load(Relaxed) {
            if port.pull(0, &mut batch, 256, &mut sink) > 0 || watch == Watch::Awake {
                continue;
            }
            if version != Some(port.doorbells_version()) {
                version = Some(port.doorbells_version());
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                for (at, bell) in port.doorbells(0).iter().enumerate() {
                    let data = epoll::EventData::new_u64(at as u64);
                    // One that is watched already stays so.
                    let _ = epoll::add(&epoll, bell, data, flags);
                }
            }
            if !port.arm(0) {
                let nap = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let mut events = Vec::with_capacity(4);
                // Rung, or time to look whether it is over: the same.
                let _ =
                    epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&nap));
            }
            port.disarm(0);
        }
    }
}

struct Notice<'a>(&'a Worker);

impl Sink for Notice<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.0.seen.store(self.0.now(), Release);
        self.0.frames.fetch_add(batch.len() as u64, Release);
    }
}
