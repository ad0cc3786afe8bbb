//! The driver's receive work on a thread of its own: a guest's second processor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, Thread};
use std::time::{Duration, Instant};

use super::Error;
use super::driver::Driver;
use super::engine::{NAP, reconnect};
use super::options::Options;
use super::report::Report;
use crate::device::Device;
use crate::nic::{self, Interest, Prepared, Wake};
use crate::sys::{self, EventFd};

/// What the two threads have in common beside the driver.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Wakes the driver's thread: the application waits for slots, or the run is over.
    kick: EventFd,
    app: Thread,
    news: Mutex<Vec<Result<Report, Error>>>,
}

/// The thread; dropped, it ends.
pub(super) struct Second<'s, 'd, D: Device> {
    shared: Arc<Shared>,
    driver: &'d Driver<D>,
    thread: Option<ScopedJoinHandle<'s, ()>>,
}

impl<'s, 'd: 's, D: Device> Second<'s, 'd, D> {
    /// Starts it. The calling thread is the application's.
    ///
    /// # Errors
    /// No eventfd to be had.
    pub(super) fn spawn<'e: 'd>(
        scope: &'s Scope<'s, 'd>,
        driver: &'d Driver<D>,
        options: &'e Options,
    ) -> Result<Self, Error> {
        let kick = EventFd::new().map_err(|source| system("make an eventfd", source))?;
        let (stop, news, app) = (AtomicBool::new(false), Mutex::default(), std::thread::current());
        let shared = Arc::new(Shared { stop, kick, app, news });
        let theirs = Arc::clone(&shared);
        let run = move || {
            let mut work = Receive { driver, options, shared: &theirs, watched: Vec::new() };
            if let Err(error) = work.run() {
                theirs.tell(Err(error));
            }
        };
        Ok(Self { shared, driver, thread: Some(scope.spawn(run)) })
    }

    /// The application has nothing to do for so long, or until something comes. `blocked`: it waits for transmit slots.
    pub(super) fn sleep(&self, blocked: bool, nap: Duration) {
        if blocked && !self.driver.blocked.swap(true, Relaxed) {
            self.shared.kick.signal();
        }
        if !self.driver.has_frames() {
            std::thread::park_timeout(nap);
        }
    }

    /// Hands over what the thread had to say.
    ///
    /// # Errors
    /// What it ended with.
    pub(super) fn news(&self, report: &mut dyn FnMut(Report)) -> Result<(), Error> {
        let news = self.shared.news.lock().map(|mut news| std::mem::take(&mut *news));
        news.unwrap_or_default().into_iter().try_for_each(|one| one.map(&mut *report))
    }
}

impl<D: Device> Drop for Second<'_, '_, D> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.kick.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tell(&self, news: Result<Report, Error>) {
        if let Ok(mut list) = self.news.lock() {
            list.push(news);
        }
        self.app.unpark();
    }
}

fn system(what: &'static str, source: std::io::Error) -> Error {
    crate::device::Error::from(nic::Error::System { what, source }).into()
}

struct Receive<'a, D: Device> {
    driver: &'a Driver<D>,
    options: &'a Options,
    shared: &'a Shared,
    /// Copies of what the device says is to be watched, so that no lock is held while this sleeps.
    watched: Vec<OwnedFd>,
}

impl<D: Device> Receive<'_, D> {
    fn run(&mut self) -> Result<(), Error> {
        let mut idle = None;
        while !self.shared.stop.load(Relaxed) {
            if self.driver.receive(self.options.budget.into()) > 0 {
                self.shared.app.unpark();
                idle = None;
                continue;
            }
            if idle.get_or_insert_with(Instant::now).elapsed() < self.options.spin {
                // The lock is the application's, too.
                (0..8).for_each(|_| std::hint::spin_loop());
                continue;
            }
            if self.sleep()? == Wake::Disconnected {
                self.reconnect()?;
            }
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<Wake, Error> {
        let blocked = self.driver.blocked.load(Relaxed);
        let prepared = {
            let device = &mut self.driver.nic().device;
            if self.watched.is_empty() {
                let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
                let watched = device.watched().into_iter().map(copy).collect::<Result<_, _>>();
                self.watched = watched.map_err(|source| system("copy a descriptor", source))?;
            }
            device.prepare_wait(Interest { rx: true, tx: blocked })?
        };
        let count = self.watched.len();
        let bits = match prepared {
            Prepared::Now(_) => 0,
            Prepared::Sleep(limit) => {
                let mut fds: Vec<_> = self.watched.iter().map(AsFd::as_fd).collect();
                fds.push(self.shared.kick.as_fd());
                sys::poll_readable(&fds, Some(NAP.min(limit)))
                    .map_err(|source| system("wait for an interrupt", source))?
            }
        };
        if bits >> count & 1 == 1 {
            let _ = self.shared.kick.take();
        }
        let wake = self.driver.nic().device.finish_wait(bits & !(u64::MAX << count))?;
        let wake = if let Prepared::Now(now) = prepared { now } else { wake };
        if blocked && wake == Wake::Ready {
            self.driver.blocked.store(false, Relaxed);
            self.shared.app.unpark();
        }
        Ok(wake)
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        self.shared.tell(Ok(Report::Disconnected));
        self.watched.clear();
        if let Some(time) = reconnect(self.driver, self.options)? {
            self.shared.tell(Ok(Report::Reconnected(time)));
        }
        Ok(())
    }
}
