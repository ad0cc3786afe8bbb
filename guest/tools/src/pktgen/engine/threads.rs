//! A run on several threads, each with some of the NIC's queue pairs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use super::super::PktGenError;
use super::super::options::{Options, OptionsError};
use super::super::report::{Interval, Report};
use super::outcome::Outcome;
use super::run::{drive, pin, reach};
use super::share::{Pool, Share};
use vmlan_driver::nic::{Info, NicError};
use vmlan_driver::virtio::{VirtioError, VirtioNet};
use vmlan_transport::address::VhostUser;

/// Runs [`Options::threads`] threads on one NIC.
pub(super) fn several(
    options: &Options,
    address: &VhostUser,
    report: &mut dyn FnMut(Report),
) -> Result<Outcome, PktGenError> {
    let mut address = address.clone();
    let largest = options.largest().unwrap_or(0) as usize;
    address.buffer = address.buffer.max(largest + vmlan_driver::virtio::queues::NetHeader::LEN);
    let nic = reach(options, |patience| Ok(VirtioNet::connect(&address, patience)?))?;
    report(Report::Connected(nic.connected()));
    let lanes = nic.lanes();
    if lanes < options.threads.into() {
        return Err(OptionsError::Lanes { threads: options.threads, lanes }.into());
    }
    let parts = nic.split(options.threads).map_err(NicError::from)?;
    let abort = Arc::new(AtomicBool::new(false));
    let mut share = Share::alone(lanes, options.count);
    share.abort = Some(Arc::clone(&abort));
    share.last = options.idle_exit.map(|_| Arc::default());
    share.pool = (options.count > 0).then(|| Arc::new(Pool::new(options.count)));
    std::thread::scope(|threads| {
        let (reports, heard) = mpsc::channel();
        let mut workers = Vec::new();
        for (n, part) in (0..).zip(parts) {
            let (reports, place) = (reports.clone(), share.clone());
            share.first += part.lanes();
            workers.push(threads.spawn(move || one(options, n, part, place, &reports)));
        }
        drop(reports);
        MergedReports::new(options.threads).listen(&heard, report);
        collect(workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }))
    })
}

/// A message of a thread; `None`: it has ended.
type ThreadReport = (u16, Option<Report>);

/// Tells that a thread has ended, also when it panics, and stops the others unless it went well.
struct Ends<'a> {
    thread: u16,
    reports: &'a mpsc::Sender<ThreadReport>,
    abort: Option<Arc<AtomicBool>>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Some(abort) = &self.abort {
            abort.store(true, Relaxed);
        }
        // The listener is gone only when nobody needs the message.
        let _ = self.reports.send((self.thread, None));
    }
}

fn one(
    options: &Options,
    thread: u16,
    part: VirtioNet,
    share: Share,
    reports: &mpsc::Sender<ThreadReport>,
) -> Result<Outcome, PktGenError> {
    let mut ends = Ends { thread, reports, abort: share.abort.clone() };
    let mut options = options.clone();
    options.rate = rate_of_thread(options.rate, options.threads, thread);
    pin(&options, thread)?;
    let outcome = drive(&options, part, share, &mut |report| {
        let _ = reports.send((thread, Some(report)));
    })?;
    // One that has seen its senders fall silent may end alone.
    ends.abort = None;
    Ok(outcome)
}

/// A thread's part of a rate.
fn rate_of_thread(rate: u64, threads: u16, thread: u16) -> u64 {
    let threads = u64::from(threads);
    rate / threads + u64::from(u64::from(thread) < rate % threads)
}

/// The outcome of all, or the first reason that tells something.
fn collect(
    done: impl Iterator<Item = Result<Outcome, PktGenError>>,
) -> Result<Outcome, PktGenError> {
    let mut sum: Option<Outcome> = None;
    let mut failure: Option<PktGenError> = None;
    for result in done {
        match (result, &mut sum) {
            (Ok(outcome), Some(sum)) => sum.merge(&outcome),
            (Ok(outcome), empty) => *empty = Some(outcome),
            (Err(error), _) => {
                let vague = matches!(
                    failure,
                    None | Some(PktGenError::Device(NicError::Virtio(VirtioError::NotConnected)))
                );
                failure = if vague { Some(error) } else { failure };
            }
        }
    }
    match (failure, sum) {
        (None, Some(sum)) => Ok(sum),
        (failure, _) => Err(failure.unwrap_or(OptionsError::Threads.into())),
    }
}

/// Makes one report of what all threads tell.
struct MergedReports {
    intervals: Vec<Option<VecDeque<Interval>>>,
    gone: u16,
}

impl MergedReports {
    fn new(threads: u16) -> Self {
        Self { intervals: vec![Some(VecDeque::new()); threads.into()], gone: 0 }
    }

    /// Until all have ended.
    fn listen(&mut self, reports: &mpsc::Receiver<ThreadReport>, report: &mut dyn FnMut(Report)) {
        for (thread, told) in reports {
            let told = self.hear(thread.into(), told);
            told.into_iter().for_each(&mut *report);
            while let Some(interval) = self.complete() {
                report(Report::Interval(interval));
            }
        }
    }

    fn hear(&mut self, thread: usize, told: Option<Report>) -> Option<Report> {
        match told {
            None => self.intervals[thread] = None,
            Some(Report::Interval(interval)) => {
                if let Some(intervals) = &mut self.intervals[thread] {
                    intervals.push_back(interval);
                }
            }
            // The NIC is one: it goes when the first thread sees that, and is back when the last
            // one has its part of it.
            Some(Report::Disconnected) => {
                self.gone += 1;
                return (self.gone == 1).then_some(Report::Disconnected);
            }
            Some(Report::Reconnected(time)) => {
                self.gone = self.gone.saturating_sub(1);
                return (self.gone == 0).then_some(Report::Reconnected(time));
            }
            Some(Report::Connected(_)) => {}
        }
        None
    }

    /// The next interval that all running threads have reported.
    fn complete(&mut self) -> Option<Interval> {
        let mut running = self.intervals.iter_mut().flatten().peekable();
        running.peek()?;
        let firsts: Option<Vec<_>> = running.map(|intervals| intervals.front().copied()).collect();
        let sum = firsts?.into_iter().reduce(|mut sum, interval| {
            sum.merge(&interval);
            sum
        });
        for intervals in self.intervals.iter_mut().flatten() {
            intervals.pop_front();
        }
        sum
    }
}
