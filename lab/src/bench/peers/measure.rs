//! One steady window, and the checks without which its figures are not believed.

use std::time::{Duration, Instant};

use serde::Serialize;

use vmlan_harness::{HarnessError, Result, Stop};

use super::guest::GuestCounters;
use super::switch::{Charged, Rig};
use crate::probe::limit;

/// Time for frames to spread over the rings.
const SETTLE: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 8;

/// Below this share of frames coming back the guest is mostly talking to itself.
const LEAST_RECEIVED: f64 = 0.9;

/// How far the guest's and the switch's rates may be apart: the switch is asked before and after
/// the guest, which takes some time.
const COUNTERS_APART: f64 = 0.25;

/// What one cell has shown. Rates are for each second of the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Frames delivered to the guest, both directions together.
    pub(super) frames_per_s: f64,
    /// The same by the switch's own counters.
    pub(super) switch_frames_per_s: f64,
    /// Frame bytes without FCS, preamble and gap.
    pub(super) gbit_per_s: f64,
    /// CPU seconds per second of the switch.
    pub(super) cpu_switch: f64,
    /// The figure to compare.
    pub(super) frames_per_cpu_s: f64,
    /// Share of the frames sent that never came back.
    pub(super) lost: f64,
    /// Frames a second that the lines of a frame permit, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_frames_per_s: Option<f64>,
}

impl Figures {
    /// For the line of a measurement that is done.
    pub(super) fn words(&self) -> String {
        let millions = [self.frames_per_s, self.frames_per_cpu_s].map(|rate| rate / 1e6);
        format!("{:.2} Mframes/s, {:.2} Mframes per CPU second", millions[0], millions[1])
    }

    pub(super) fn of_limit(&self) -> f64 {
        limit::share(self.frames_per_cpu_s, self.limit_frames_per_s)
    }
}

/// Counters of both sides; each with its own time, as asking takes some.
#[derive(Debug, Clone, Copy)]
struct Reading {
    seen: GuestCounters,
    cpu: (Instant, Charged),
    switch: (Instant, u64),
}

impl Reading {
    /// The switch's counters before or after the guest's: what asking costs is not in the window.
    fn take(rig: &mut Rig, stop: &Stop, switch_first: bool) -> Result<Self> {
        let ask = |rig: &mut Rig| Ok((Instant::now(), rig.switch.delivered(stop)?));
        let before = if switch_first { Some(ask(rig)?) } else { None };
        let seen = rig.guest.seen(stop)?;
        let cpu = (Instant::now(), rig.switch.cpu()?);
        Ok(Self { seen, cpu, switch: before.map_or_else(|| ask(rig), Ok)? })
    }
}

/// Starts the traffic, waits until it is steady, and measures for `time`.
///
/// # Errors
/// [`HarnessError::NoFigure`] when frames do not flow, get lost, have the wrong length, or when the
/// two sides' counters disagree.
pub(super) fn measure(rig: &mut Rig, stop: &Stop, time: Duration, bytes: u32) -> Result<Figures> {
    start(rig, stop, bytes)?;
    let first = Reading::take(rig, stop, true)?;
    stop.sleep((first.seen.at + time).saturating_duration_since(Instant::now()))?;
    let last = Reading::take(rig, stop, false)?;
    rig.switch.alive()?;
    figures(&first, &last, bytes)
}

// A switch that connects to the guest may need a second to notice it, and frames sent before that
// are lost.
fn start(rig: &mut Rig, stop: &Stop, bytes: u32) -> Result<()> {
    for attempt in 0..ATTEMPTS {
        rig.switch.alive()?;
        rig.guest.start(stop, bytes)?;
        let before = rig.guest.seen(stop)?.rx_frames;
        stop.sleep(SETTLE * (attempt + 1))?;
        if rig.guest.seen(stop)?.rx_frames > before {
            return Ok(());
        }
        rig.guest.pause(stop)?;
    }
    Err(HarnessError::NoFigure(format!("no frame came through in {ATTEMPTS} attempts")))
}

fn figures(a: &Reading, b: &Reading, bytes: u32) -> Result<Figures> {
    let received = b.seen.rx_frames.saturating_sub(a.seen.rx_frames);
    let sent = b.seen.tx_frames.saturating_sub(a.seen.tx_frames);
    let length = b.seen.rx_bytes.saturating_sub(a.seen.rx_bytes) as f64 / received as f64;
    let frames_per_s = per_s(received as f64, a.seen.at, b.seen.at);
    let switched = b.switch.1.saturating_sub(a.switch.1) as f64;
    let switch_frames_per_s = per_s(switched, a.switch.0, b.switch.0);
    check_flow(received, sent, length, bytes)?;
    check_counters(frames_per_s, switch_frames_per_s)?;
    let cpu = |of: fn(&Charged) -> f64| per_s(of(&b.cpu.1) - of(&a.cpu.1), a.cpu.0, b.cpu.0);
    let cpu_switch = cpu(|c| c.own) + cpu(|c| c.in_guest);
    if cpu_switch <= 0.0 {
        return Err(HarnessError::NoFigure(
            "the switch used no CPU time that could be measured".into(),
        ));
    }
    Ok(Figures {
        frames_per_s,
        switch_frames_per_s,
        gbit_per_s: frames_per_s * f64::from(bytes) * 8.0 / 1e9,
        cpu_switch,
        frames_per_cpu_s: frames_per_s / cpu_switch,
        lost: (1.0 - received as f64 / sent as f64).max(0.0),
        limit_frames_per_s: None,
    })
}

fn per_s(amount: f64, from: Instant, to: Instant) -> f64 {
    amount / (to - from).as_secs_f64()
}

fn check_flow(received: u64, sent: u64, length: f64, bytes: u32) -> Result<()> {
    if received == 0 {
        return Err(HarnessError::NoFigure(format!("no frame came back of {sent} sent")));
    }
    if (received as f64) < LEAST_RECEIVED * sent as f64 {
        return Err(HarnessError::NoFigure(format!(
            "only {received} of {sent} frames sent came back"
        )));
    }
    if (length - f64::from(bytes)).abs() > 0.5 {
        return Err(HarnessError::NoFigure(format!(
            "frames came back with {length:.1} bytes on average instead of {bytes}"
        )));
    }
    Ok(())
}

fn check_counters(guest: f64, switch: f64) -> Result<()> {
    if (switch / guest - 1.0).abs() <= COUNTERS_APART {
        return Ok(());
    }
    Err(HarnessError::NoFigure(format!(
        "the guest received {guest:.0} frames/s but the switch counts {switch:.0} delivered"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: Instant, frames: u64, cpu: f64) -> Reading {
        let (rx_frames, rx_bytes, tx_frames) = (frames, frames * 60, frames + 512);
        let seen = GuestCounters { at, rx_frames, rx_bytes, tx_frames };
        Reading { seen, cpu: (at, Charged { own: cpu, in_guest: 0.0 }), switch: (at, frames) }
    }

    fn window() -> (Reading, Reading) {
        let start = Instant::now();
        (reading(start, 1000, 1.0), reading(start + Duration::from_secs(4), 8_001_000, 3.0))
    }

    #[test]
    fn rates_are_per_second_and_per_cpu_second() {
        let (a, b) = window();
        let figures = figures(&a, &b, 60).unwrap();
        assert_eq!(figures.frames_per_s, 2e6);
        assert_eq!(figures.gbit_per_s, 0.96);
        assert_eq!(figures.cpu_switch, 0.5);
        assert_eq!(figures.frames_per_cpu_s, 4e6);
        assert_eq!(figures.lost, 0.0);
    }

    #[test]
    fn work_done_in_the_guest_is_charged_as_well() {
        let (a, mut b) = window();
        b.cpu.1 = Charged { own: 1.0, in_guest: 1.0 };
        assert_eq!(figures(&a, &b, 60).unwrap().cpu_switch, 0.25);
    }

    #[test]
    fn what_cannot_be_believed_is_no_figure() {
        let (a, b) = window();
        let nothing = Reading { seen: GuestCounters { rx_frames: 1000, ..b.seen }, ..b };
        let loss = Reading { seen: GuestCounters { tx_frames: 16_002_000, ..b.seen }, ..b };
        let [fewer, more] =
            [5, 15].map(|tenths| Reading { switch: (b.switch.0, b.switch.1 * tenths / 10), ..b });
        for odd in [nothing, loss, fewer, more] {
            assert!(figures(&a, &odd, 60).is_err(), "{odd:?}");
        }
        assert!(figures(&a, &b, 256).is_err(), "foreign frames");
    }
}
