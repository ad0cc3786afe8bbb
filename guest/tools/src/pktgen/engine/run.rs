//! From the options to a summary: on the calling thread, or on several.

use std::time::{Duration, Instant};

use super::super::PktGenError;
use super::super::options::Options;
use super::super::report::Report;
use super::super::summary::Summary;
use super::outcome::Outcome;
use super::share::Share;
use super::threads::several;
use super::{Engine, NAP};
use vmlan_driver::nic::{self, Nic, NicError};
use vmlan_transport::Address;
use vmlan_transport::sys;

const SETTLE: Duration = Duration::from_millis(20); // Pause between two attempts to reach the NIC.

/// Runs one function to its end: the count, the time, silence, or the stop flag. Blocks; all
/// reports go through `report`.
///
/// # Errors
/// See [`PktGenError`]: wrong options, no back end within [`Options::patience`], or one that
/// refuses.
pub fn run(options: &Options, report: &mut dyn FnMut(Report)) -> Result<Summary, PktGenError> {
    options.check()?;
    let cpu = sys::process_cpu();
    let outcome = match &options.address {
        Address::VhostUser(address) if options.threads > 1 => several(options, address, report)?,
        _ => {
            pin(options, 0)?;
            reach(options, |patience| {
                let largest = options.largest().map(|size| size as usize);
                let run = Run { options, report: &mut *report };
                nic::open(&options.address, largest, patience, run)
            })??
        }
    };
    Ok(outcome.summary(options, cpu))
}

/// Tries for [`Options::patience`], and gives up early when the run is stopped: nobody may wait for
/// it any more.
pub(super) fn reach<T>(
    options: &Options,
    mut open: impl FnMut(Duration) -> Result<T, NicError>,
) -> Result<T, PktGenError> {
    if matches!(&options.address, Address::VhostUser(address) if address.listen) {
        return Ok(open(options.patience)?);
    }
    let end = Instant::now() + options.patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match open(left.min(NAP)) {
            Err(error) if !error.is_absence() || left <= NAP || Instant::now() >= end => {
                return Err(error.into());
            }
            Err(_) if options.stopped() => return Err(PktGenError::Interrupted),
            // The server must see the end of this attempt before the next one begins.
            Err(_) => std::thread::sleep(SETTLE),
            Ok(done) => return Ok(done),
        }
    }
}

pub(super) fn pin(options: &Options, thread: u16) -> Result<(), PktGenError> {
    let Some(cpu) = options.cpu_of(thread) else { return Ok(()) };
    sys::pin_to_cpu(cpu).map_err(|source| PktGenError::Cpu { cpu, source })
}

/// A run that waits for its device.
struct Run<'a> {
    options: &'a Options,
    report: &'a mut dyn FnMut(Report),
}

impl nic::Visitor for Run<'_> {
    type Output = Result<Outcome, PktGenError>;

    fn visit<N: Nic>(self, mut nic: N) -> Self::Output {
        (self.report)(Report::Connected(nic.connected()));
        let mut options = self.options.clone();
        let chosen = (options.src_mac != Options::default_mac()).then_some(options.src_mac);
        options.src_mac = nic.settle_mac(chosen).unwrap_or(options.src_mac);
        let share = Share::alone(nic.lanes(), options.count);
        drive(&options, nic, share, self.report)
    }
}

/// One thread's work, on its own part of the NIC.
pub(super) fn drive<N: Nic>(
    options: &Options,
    nic: N,
    share: Share,
    report: &mut dyn FnMut(Report),
) -> Result<Outcome, PktGenError> {
    let mut engine = Engine::new(options, nic, share, report)?;
    engine.prefill();
    engine.announce();
    let main = engine.main();
    engine.drain();
    main?;
    Ok(engine.outcome())
}
