//! One steady window, and the checks without which its figures are not believed.

use std::time::{Duration, Instant};

use serde::Serialize;

use vmlan_harness::{HarnessError, Result, Stop, usage::CpuTime, usage::machine_busy};

use super::guest::GuestCounters;
use super::switch::{Charged, Rig};

const WARM_UP: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 4;

/// Below this share of frames coming back the guest is mostly talking to itself.
const LEAST_RECEIVED: f64 = 0.9;

/// How far the guest's and the switch's counters may be apart, frames on their way included.
const COUNTERS_APART: f64 = 0.05;

/// CPU seconds per second that others may use before a cell counts as noisy.
const QUIET: f64 = 0.1;

/// What one cell has shown. Rates are for each second of the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Frames delivered to the guest, both directions together.
    pub frames_per_s: f64,
    /// Median of the rates that the guest itself gave each second.
    pub rx_pps_median: f64,
    /// The same by the switch's own counters.
    pub switch_frames_per_s: f64,
    /// Frame bytes without FCS, preamble and gap.
    pub gbit_per_s: f64,
    /// CPU seconds per second of the switch.
    pub cpu_switch: f64,
    /// CPU seconds per second of the guest's process, without what is charged to the switch.
    pub cpu_guest: f64,
    /// CPU seconds per second of everything else on the machine: the noise.
    pub cpu_others: f64,
    /// The figure to compare.
    pub frames_per_cpu_s: f64,
    /// Share of the frames sent that never came back.
    pub lost: f64,
}

impl Figures {
    /// Whether others used enough CPU to disturb a polling thread.
    pub fn noisy(&self) -> bool {
        self.cpu_others > QUIET
    }
}

/// Counters of both sides; each with its own time, as asking takes some. The switch is asked before
/// and after the guest, so that its two answers enclose the guest's however long a busy machine
/// takes between them.
#[derive(Debug, Clone, Copy)]
struct Reading {
    seen: GuestCounters,
    cpu: (Instant, Charged, f64, f64),
    switch: [(Instant, u64); 2],
}

impl Reading {
    fn take(rig: &mut Rig, stop: &Stop) -> Result<Self> {
        let ask = |rig: &mut Rig| Ok((Instant::now(), rig.switch.delivered(stop)?));
        let before = ask(rig)?;
        let seen = rig.guest.seen(stop)?;
        let guest = CpuTime::of(rig.guest.pid())?.total().as_secs_f64();
        let cpu = (Instant::now(), rig.switch.cpu()?, guest, machine_busy()?.as_secs_f64());
        Ok(Self { seen, cpu, switch: [before, ask(rig)?] })
    }
}

/// Starts the traffic, waits until it is steady, and measures for `seconds`.
///
/// # Errors
/// [`HarnessError::Failed`] when frames do not flow, get lost, have the wrong length, or when the
/// two sides' counters disagree.
pub fn measure(rig: &mut Rig, stop: &Stop, seconds: u32, bytes: u32) -> Result<Figures> {
    start(rig, stop)?;
    let first = Reading::take(rig, stop)?;
    let mut rates = Vec::new();
    for second in 1..seconds {
        let due = first.seen.at + Duration::from_secs(second.into());
        stop.sleep(due.saturating_duration_since(Instant::now()))?;
        rates.push(rig.guest.seen(stop)?.rx_pps);
    }
    let end = first.seen.at + Duration::from_secs(seconds.into());
    stop.sleep(end.saturating_duration_since(Instant::now()))?;
    let last = Reading::take(rig, stop)?;
    rates.push(last.seen.rx_pps);
    rig.switch.alive()?;
    figures(&first, &last, &mut rates, bytes)
}

// A switch that connects to the guest may need a second to notice it, and frames sent before that
// are lost.
fn start(rig: &mut Rig, stop: &Stop) -> Result<()> {
    for _ in 0..ATTEMPTS {
        rig.switch.alive()?;
        rig.guest.start(stop)?;
        stop.sleep(WARM_UP / 2)?;
        let before = rig.guest.seen(stop)?.rx_frames;
        stop.sleep(WARM_UP / 2)?;
        if rig.guest.seen(stop)?.rx_frames > before {
            return Ok(());
        }
    }
    Err(HarnessError::NoFigure(format!("no frame came through in {ATTEMPTS} attempts")))
}

fn figures(a: &Reading, b: &Reading, rates: &mut [f64], bytes: u32) -> Result<Figures> {
    let received = b.seen.rx_frames.saturating_sub(a.seen.rx_frames);
    let sent = b.seen.tx_frames.saturating_sub(a.seen.tx_frames);
    let length = b.seen.rx_bytes.saturating_sub(a.seen.rx_bytes) as f64 / received as f64;
    let frames_per_s = per_s(received as f64, a.seen.at, b.seen.at);
    let [(start, first), (end, last)] = [a.switch[0], b.switch[0]];
    let switch_frames_per_s = per_s(last.saturating_sub(first) as f64, start, end);
    check_flow(received, sent, length, bytes)?;
    check_counters(received, a, b)?;
    let cpu = |spent: f64| per_s(spent, a.cpu.0, b.cpu.0);
    let own = cpu(b.cpu.1.own - a.cpu.1.own);
    let in_guest = cpu(b.cpu.1.in_guest - a.cpu.1.in_guest);
    let (guest, busy) = (cpu(b.cpu.2 - a.cpu.2), cpu(b.cpu.3 - a.cpu.3));
    let cpu_switch = own + in_guest;
    if cpu_switch <= 0.0 {
        return Err(HarnessError::NoFigure(
            "the switch used no CPU time that could be measured".into(),
        ));
    }
    Ok(Figures {
        frames_per_s,
        rx_pps_median: median(rates).unwrap_or_default(),
        switch_frames_per_s,
        gbit_per_s: frames_per_s * f64::from(bytes) * 8.0 / 1e9,
        cpu_switch,
        cpu_guest: guest - in_guest,
        cpu_others: (busy - guest - own).max(0.0),
        frames_per_cpu_s: frames_per_s / cpu_switch,
        lost: (1.0 - received as f64 / sent as f64).max(0.0),
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

fn check_counters(received: u64, a: &Reading, b: &Reading) -> Result<()> {
    let least = b.switch[0].1.saturating_sub(a.switch[1].1);
    let most = b.switch[1].1.saturating_sub(a.switch[0].1);
    let guest = received as f64;
    if guest >= least as f64 * (1.0 - COUNTERS_APART)
        && guest <= most as f64 * (1.0 + COUNTERS_APART)
    {
        return Ok(());
    }
    Err(HarnessError::NoFigure(format!(
        "the guest received {received} frames but the switch counts {least} to {most} delivered"
    )))
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: Instant, frames: u64, cpu: f64) -> Reading {
        let (rx_frames, rx_bytes, tx_frames) = (frames, frames * 60, frames + 512);
        let seen = GuestCounters { at, rx_frames, rx_bytes, tx_frames, rx_pps: 0.0 };
        let charged = Charged { own: cpu, in_guest: 0.0 };
        Reading { seen, cpu: (at, charged, cpu, 3.0 * cpu), switch: [(at, frames); 2] }
    }

    fn window() -> (Reading, Reading) {
        let start = Instant::now();
        (reading(start, 1000, 1.0), reading(start + Duration::from_secs(4), 8_001_000, 3.0))
    }

    #[test]
    fn rates_are_per_second_and_per_cpu_second() {
        let (a, b) = window();
        let figures = figures(&a, &b, &mut [1.0, 9.0, 3.0], 60).unwrap();
        assert_eq!(figures.frames_per_s, 2e6);
        assert_eq!(figures.rx_pps_median, 3.0);
        assert_eq!(figures.gbit_per_s, 0.96);
        assert_eq!(figures.cpu_switch, 0.5);
        assert_eq!(figures.cpu_others, 0.5);
        assert_eq!(figures.frames_per_cpu_s, 4e6);
        assert_eq!(figures.lost, 0.0);
    }

    #[test]
    fn work_done_in_the_guest_is_charged_once() {
        let (a, mut b) = window();
        b.cpu.1 = Charged { own: 1.0, in_guest: 1.0 };
        let figures = figures(&a, &b, &mut [], 60).unwrap();
        assert_eq!(figures.cpu_switch, 0.25);
        assert_eq!(figures.cpu_guest, 0.25);
        assert_eq!(figures.cpu_others, 1.0);
    }

    #[test]
    fn nothing_received_is_no_figure() {
        let (a, mut b) = window();
        b.seen.rx_frames = a.seen.rx_frames;
        assert!(figures(&a, &b, &mut [], 60).is_err());
    }

    #[test]
    fn heavy_loss_is_no_figure() {
        let (a, mut b) = window();
        b.seen.tx_frames *= 2;
        assert!(figures(&a, &b, &mut [], 60).is_err());
    }

    #[test]
    fn foreign_frames_are_noticed() {
        let (a, b) = window();
        assert!(figures(&a, &b, &mut [], 256).is_err());
    }

    #[test]
    fn disagreeing_counters_are_noticed() {
        let (a, mut b) = window();
        let honest = b.switch;
        b.switch = honest.map(|(at, frames)| (at, frames * 9 / 10));
        assert!(figures(&a, &b, &mut [], 60).is_err());
        b.switch = honest.map(|(at, frames)| (at, frames * 11 / 10));
        assert!(figures(&a, &b, &mut [], 60).is_err());
    }

    #[test]
    fn a_slow_answer_is_no_disagreement() {
        let (a, mut b) = window();
        b.switch[0].1 = b.switch[0].1 * 8 / 10;
        b.switch[1].1 = b.switch[1].1 * 12 / 10;
        assert!(figures(&a, &b, &mut [], 60).is_ok());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [5.0]), Some(5.0));
        assert_eq!(median(&mut [3.0, 1.0]), Some(2.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
    }
}
