//! The thread of one port.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlan_keeper::KeeperError;

use crate::interrupt_cost::guard_thread;
use crate::waker::Waker;

/// The thread keeps little on its stack; a hundred ports should not cost much.
pub const STACK: usize = 256 << 10;
/// Longest wait for the thread to end.
const CLOSE: Duration = Duration::from_millis(800);

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
}

impl PortThread {
    /// Starts the thread. It may raise interrupts: none can keep it for ever.
    ///
    /// # Errors
    /// That of the system.
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
        Ok(Self { waker, thread: Some(thread) })
    }

    /// Ends the thread of the port that log lines call `who`.
    ///
    /// If a peer keeps the thread somewhere for long, the thread is left behind, and the caller
    /// goes on. So the caller must not rely on the thread to release anything that others need.
    pub fn close(&mut self, who: &str) {
        self.waker.stop();
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + CLOSE;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        if thread.is_finished() {
            let _ = thread.join();
        } else {
            log::error!("{who}: its thread hangs and is left behind");
        }
    }
}

/// A time during which no new connection is looked for.
#[derive(Debug, Default)]
pub struct AcceptPause(Option<Instant>);

impl AcceptPause {
    /// From now on, for `time`.
    pub fn begin(&mut self, time: Duration) {
        self.0 = Some(Instant::now() + time);
    }

    /// From now on, for as long as is due after the port's keeper failed so.
    pub fn begin_after(&mut self, error: &KeeperError) {
        let parked = matches!(error, KeeperError::Parked);
        self.begin(if parked { PENALTY } else { ACCEPT_PAUSE });
    }

    /// Ends it if its time has come.
    pub fn end_if_due(&mut self, now: Instant) {
        self.0 = self.0.filter(|until| *until > now);
    }

    /// Connections wait.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// How long it takes still; `None`: it is over.
    #[must_use]
    pub fn left(&self, now: Instant) -> Option<Duration> {
        self.0.map(|until| until.saturating_duration_since(now))
    }
}
