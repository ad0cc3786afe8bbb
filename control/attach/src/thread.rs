//! The thread of one port.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlan_frame::Counters;
use vmlan_keeper::KeeperError;

use crate::budget::Budget;
use crate::interrupt_cost::guard_thread;
use crate::waker::Waker;

/// The thread keeps little on its stack; a hundred ports should not cost much.
pub const STACK: usize = 256 << 10;
/// Longest wait for the thread to end.
const CLOSE: Duration = Duration::from_millis(800);

/// How long all ports wait together until each goes on with the client of a switch that has died:
/// some may be slow.
pub const ADOPTION: Duration = Duration::from_millis(300);

/// How long a switch has to live with a client that it went on with. One that dies before that may
/// have died of it.
pub const TRIAL: Duration = Duration::from_secs(1);

/// Pause in accepting when the process has no descriptor left: the listener stays readable, and
/// polling it would spin.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// Pause after a peer that parked the port's keeper, or a worker in a write. Each such write costs
/// all ports of that worker up to 50 ms, the watchdog's patience, so it must not happen often.
pub const PENALTY: Duration = Duration::from_secs(3);

/// A thread that ends when its waker says so.
#[derive(Debug)]
pub struct PortThread {
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    /// When it was told to end.
    told: Option<Instant>,
}

impl PortThread {
    /// Starts the thread. It may raise interrupts: none can keep it for ever.
    pub fn spawn(
        name: &str,
        waker: Arc<Waker>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK);
        let (tell, told) = mpsc::sync_channel(1);
        let thread = builder.spawn(move || {
            let guarded = guard_thread();
            let go = guarded.is_ok();
            let _ = tell.send(guarded);
            if go {
                vmlan_sandbox::enter(vmlan_sandbox::Thread::Port);
                run();
            }
        })?;
        told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { waker, thread: Some(thread), told: None })
    }

    /// Tells the thread to end, and does not wait for it.
    pub fn stop(&mut self) {
        self.waker.stop();
        self.told.get_or_insert_with(Instant::now);
    }

    /// Ends the thread of the port that log lines call `who`. Threads that were stopped together
    /// are waited for together.
    ///
    /// If a peer keeps the thread somewhere for long, the thread is left behind, and the caller
    /// goes on (false). So the caller must not rely on the thread to release anything that others
    /// need.
    pub fn close(&mut self, who: &str) -> bool {
        self.stop();
        let Some(thread) = self.thread.take() else { return true };
        while !thread.is_finished() && !self.left(Instant::now()).is_zero() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let ended = thread.is_finished();
        if ended {
            let _ = thread.join();
        } else {
            log::error!("{who}: its thread hangs and is left behind");
        }
        ended
    }

    /// How long the thread has to end still.
    fn left(&self, now: Instant) -> Duration {
        let end = self.told.map_or(now, |told| told + CLOSE);
        end.saturating_duration_since(now)
    }
}

/// Frames that a port has moved, both ways.
pub fn frames(counters: &Counters) -> u64 {
    let (input, output) = counters.snapshot();
    input.frames + output.frames
}

/// A time during which no new connection is looked for.
#[derive(Debug)]
pub struct AcceptPause {
    until: Option<Instant>,
    budget: Budget,
    /// Of connections that moved no frame.
    idle: Budget,
    /// Frames that the port had moved when the latest one was found.
    frames: u64,
}

impl Default for AcceptPause {
    fn default() -> Self {
        let (budget, idle) = (Budget::CONNECTIONS, Budget::IDLE_CONNECTIONS);
        Self { until: None, budget, idle, frames: 0 }
    }
}

impl AcceptPause {
    /// From now on, for `time` at least: a longer pause stays.
    pub fn begin(&mut self, time: Duration) {
        self.until = self.until.max(Some(Instant::now() + time));
    }

    /// One was found, at a port that has moved so many frames. After too many there is a pause.
    pub fn found(&mut self, frames: u64) {
        let now = Instant::now();
        self.budget.spend(now);
        if std::mem::replace(&mut self.frames, frames) == frames {
            self.idle.spend(now);
        }
        if let Some(left) = self.budget.left(now).max(self.idle.left(now)) {
            self.begin(left);
        }
    }

    /// From now on, for as long as is due after the port's keeper failed so.
    pub fn begin_after(&mut self, error: &KeeperError) {
        let parked = matches!(error, KeeperError::Parked | KeeperError::Forbidden(_));
        self.begin(if parked { PENALTY } else { ACCEPT_PAUSE });
    }

    pub fn end_if_due(&mut self, now: Instant) {
        self.until = self.until.filter(|until| *until > now);
    }

    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// How long it takes still; `None`: it is over.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_moved_frames_are_not_counted_among_those_that_did_not() {
        let found = |moved: u64| {
            let mut pause = AcceptPause::default();
            (0..1000).find(|n| {
                pause.found(n * moved);
                pause.is_on()
            })
        };
        assert_eq!((found(0), found(1)), (Some(16), Some(64)));
    }

    #[test]
    fn a_short_pause_does_not_end_a_long_one() {
        let mut pause = AcceptPause::default();
        pause.begin(PENALTY);
        pause.begin(Duration::from_millis(1));
        pause.end_if_due(Instant::now() + PENALTY / 2);
        assert!(pause.is_on());
    }

    /// However many peers keep their ports' threads, a switch ends.
    #[test]
    fn threads_that_are_stopped_together_are_waited_for_together() {
        let (hang, hung) = mpsc::channel::<()>();
        let hung = Arc::new(std::sync::Mutex::new(hung));
        let spawn = |_| {
            let hung = Arc::clone(&hung);
            let run = move || drop(hung.lock().map(|hung| hung.recv()));
            PortThread::spawn("hangs", Arc::new(Waker::new().unwrap()), run).unwrap()
        };
        let mut all: Vec<_> = (0..20).map(spawn).collect();
        let begin = Instant::now();
        all.iter_mut().for_each(PortThread::stop);
        let end = Instant::now() + CLOSE;
        all.iter_mut().for_each(|thread| assert!(!thread.close("port")));
        assert!(begin.elapsed() >= CLOSE);
        // Waiting for one does not begin the time of another anew.
        assert!(all.iter().all(|thread| thread.left(end).is_zero()));
        drop(hang);
    }
}
