//! The driver's receive work on a thread of its own: a guest's second processor.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, Thread};
use std::time::{Duration, Instant};

use super::StackError;
use super::driver::{Driver, Sleeper};
use super::engine::{NAP, reconnect};
use super::options::Options;
use super::report::Report;
use vmlan_driver::nic::{Nic, NicError};
use vmlan_driver::virtio::VirtioError;
use vmlan_driver::wait::{Interest, Prepared, Wake};
use vmlan_transport::sys::{self, EventFd};

/// What the thread tells, and is told.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    app: Thread,
    reports: Mutex<Vec<Result<Report, StackError>>>,
}

/// The thread; dropped, it ends.
pub(super) struct ReceiveThread<'s, 'd, N: Nic> {
    shared: Arc<Shared>,
    driver: &'d Driver<N>,
    sleeper: &'d Sleeper,
    thread: Option<ScopedJoinHandle<'s, ()>>,
}

/// What a second thread will sleep on.
///
/// # Errors
/// An eventfd cannot be made.
pub(super) fn sleeper() -> Result<Sleeper, StackError> {
    let kick = EventFd::new().map_err(|source| system("make an eventfd", source))?;
    Ok(Sleeper { asleep: AtomicBool::new(false), kick })
}

fn system(what: &'static str, source: std::io::Error) -> StackError {
    NicError::from(VirtioError::System { what, source }).into()
}

impl<'s, 'd: 's, N: Nic> ReceiveThread<'s, 'd, N> {
    /// Starts it. The calling thread is the application's.
    pub(super) fn spawn(
        scope: &'s Scope<'s, 'd>,
        driver: &'d Driver<N>,
        sleeper: &'d Sleeper,
        options: &'d Options,
    ) -> Self {
        let (stop, app) = (AtomicBool::new(false), std::thread::current());
        let shared = Arc::new(Shared { stop, app, reports: Mutex::default() });
        let theirs = Arc::clone(&shared);
        let run = move || {
            let watched = Vec::new();
            let mut work = Receive { driver, sleeper, options, shared: &theirs, watched };
            if let Err(error) = work.run() {
                theirs.report(Err(error));
            }
        };
        Self { shared, driver, sleeper, thread: Some(scope.spawn(run)) }
    }

    /// The application has nothing to do for so long, or until something comes. `blocked`: it waits
    /// for transmit slots.
    pub(super) fn sleep(&self, blocked: bool, nap: Duration) {
        if blocked && !self.driver.blocked.swap(true, Relaxed) {
            self.sleeper.kick.signal();
        }
        if !self.driver.has_frames() {
            std::thread::park_timeout(nap);
        }
    }

    /// Ends the thread and returns its result.
    ///
    /// # Errors
    /// What it ended with.
    pub(super) fn reports(&self, report: &mut dyn FnMut(Report)) -> Result<(), StackError> {
        let reports = self.shared.reports.lock().map(|mut reports| std::mem::take(&mut *reports));
        reports.unwrap_or_default().into_iter().try_for_each(|one| one.map(&mut *report))
    }
}

impl<N: Nic> Drop for ReceiveThread<'_, '_, N> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.sleeper.kick.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn report(&self, reports: Result<Report, StackError>) {
        if let Ok(mut list) = self.reports.lock() {
            list.push(reports);
        }
        self.app.unpark();
    }
}

struct Receive<'a, N: Nic> {
    driver: &'a Driver<N>,
    sleeper: &'a Sleeper,
    options: &'a Options,
    shared: &'a Shared,
    /// Copies of the interrupts among what the device watches, and their places there: no lock is
    /// held while this sleeps.
    watched: Vec<(usize, OwnedFd)>,
}

impl<N: Nic> Receive<'_, N> {
    fn run(&mut self) -> Result<(), StackError> {
        let mut idle = None;
        while !self.shared.stop.load(Relaxed) {
            if self.driver.receive(self.options.budget.into()) > 0 {
                self.shared.app.unpark();
                idle = None;
                continue;
            }
            if idle.get_or_insert_with(Instant::now).elapsed() < self.options.spin {
                // The application uses this lock as well.
                (0..8).for_each(|_| std::hint::spin_loop());
                continue;
            }
            if self.sleep()? == Wake::Disconnected {
                self.reconnect()?;
            }
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<Wake, StackError> {
        let blocked = self.driver.blocked.load(Relaxed);
        let prepared = self.prepare(blocked)?;
        let (ready, kicked) = match prepared {
            Prepared::Now(_) => (0, false),
            Prepared::Sleep(limit) => self.poll(NAP.min(limit))?,
        };
        if kicked {
            let _ = self.sleeper.kick.take();
        }
        let device = &mut self.driver.nic().device;
        self.sleeper.asleep.store(false, Relaxed);
        let wake = device.finish_wait(ready)?;
        let wake = match prepared {
            Prepared::Now(wake) => wake,
            // Nobody watched for the end.
            Prepared::Sleep(_) if wake == Wake::Timeout && !kicked && !device.is_connected() => {
                Wake::Disconnected
            }
            Prepared::Sleep(_) => wake,
        };
        if blocked && wake == Wake::Ready {
            self.driver.blocked.store(false, Relaxed);
            self.shared.app.unpark();
        }
        Ok(wake)
    }

    fn prepare(&mut self, blocked: bool) -> Result<Prepared, StackError> {
        let device = &mut self.driver.nic().device;
        if self.watched.is_empty() {
            let end = device.watched_for_end();
            for (at, fd) in device.watched().into_iter().enumerate() {
                if end >> at & 1 == 0 {
                    let copy = fd.try_clone_to_owned();
                    self.watched.push((at, copy.map_err(|e| system("copy a descriptor", e))?));
                }
            }
        }
        let prepared = device.prepare_wait(Interest { rx: true, tx: blocked })?;
        self.sleeper.asleep.store(true, Relaxed);
        Ok(prepared)
    }

    /// Sleeps; the bits of what could be read, and whether somebody kicked.
    fn poll(&self, nap: Duration) -> Result<(u64, bool), StackError> {
        let mut fds: Vec<_> = self.watched.iter().map(|(_, fd)| fd.as_fd()).collect();
        fds.push(self.sleeper.kick.as_fd());
        let bits = sys::poll_readable(&fds, Some(nap))
            .map_err(|source| system("wait for an interrupt", source))?;
        let readable = self.watched.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1);
        let ready = readable.fold(0, |ready, (_, (at, _))| ready | 1 << at);
        Ok((ready, bits >> self.watched.len() & 1 == 1))
    }

    fn reconnect(&mut self) -> Result<(), StackError> {
        self.shared.report(Ok(Report::Disconnected));
        self.watched.clear();
        if let Some(time) = reconnect(self.driver, self.options)? {
            self.shared.report(Ok(Report::Reconnected(time)));
        }
        Ok(())
    }
}
