//! What passes in a window of time: two looks at all counters, and the difference.

use serde::Serialize;

use super::Look;
use crate::probe::limit;
use vmlan_config::human_text::to_f64;
use vmlan_engine::stats::PortStats;

/// What a window has shown. Rates are for each second; CPU is in cores: 1.0 is one core, busy all
/// the time. "For 1,000 frames" counts both ends' and divides by the frames delivered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Window {
    /// Frames delivered.
    pub(crate) frames_per_s: f64,
    /// Frame bytes, without FCS, preamble and gap.
    pub(crate) gbit_per_s: f64,
    /// Frames taken from guests.
    pub(crate) sent_per_s: f64,
    /// Register accesses that left the guest (virtio: doorbells).
    pub(crate) accesses_per_kframe: f64,
    /// Doorbells alone.
    pub(crate) doorbells_per_kframe: f64,
    /// Interrupts the guests got.
    pub(crate) interrupts_per_kframe: f64,
    /// Of the switch.
    pub(crate) cpu_switch: f64,
    /// Of each guest.
    pub(crate) cpu_guests: Vec<f64>,
    /// Frames of a batch at delivery.
    pub(crate) mean_batch: f64,
    /// Frames dropped.
    pub(crate) drops: u64,
    /// Its length.
    pub(crate) seconds: f64,
    /// Frames a second that the lines of a frame permit, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_frames_per_s: Option<f64>,
}

impl Window {
    /// What was counted between two looks at the same processes.
    pub(crate) fn between(before: &Look, after: &Look) -> Self {
        let seconds = (after.at - before.at).as_secs_f64();
        let grown = |value: fn(&PortStats) -> u64| {
            let sum = |r: &Look| r.ports.iter().map(value).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let per = |part: u64, whole: f64| if whole > 0.0 { to_f64(part) / whole } else { 0.0 };
        let frames = grown(|p| p.out.frames);
        let thousands = to_f64(frames) / 1000.0;
        let both = after.cpu.iter().zip(&before.cpu);
        let mut cpu = both.map(|(a, b)| a.saturating_sub(*b).as_secs_f64() / seconds);
        Self {
            frames_per_s: per(frames, seconds),
            gbit_per_s: per(grown(|p| p.out.bytes), seconds) * 8e-9,
            sent_per_s: per(grown(|p| p.r#in.frames), seconds),
            accesses_per_kframe: per(grown(accesses), thousands),
            doorbells_per_kframe: per(grown(|p| p.doorbells), thousands),
            interrupts_per_kframe: per(grown(interrupts), thousands),
            cpu_switch: cpu.next().unwrap_or_default(),
            cpu_guests: cpu.collect(),
            mean_batch: per(frames, to_f64(grown(|p| p.out.batches))),
            drops: grown(PortStats::dropped),
            seconds,
            limit_frames_per_s: None,
        }
    }

    /// Frames for each CPU second of the switch, of those that the limit permits.
    pub(crate) fn of_limit(&self) -> f64 {
        limit::share(self.frames_per_s / self.cpu_switch, self.limit_frames_per_s)
    }

    /// Of both guests.
    pub(crate) fn cpu_of_guests(&self) -> f64 {
        self.cpu_guests.iter().sum()
    }
}

/// Each is a message to the switch's process: a register of an emulated NIC, or a doorbell.
fn accesses(port: &PortStats) -> u64 {
    port.device.as_ref().map_or(port.doorbells, |d| d.accesses().reads + d.accesses().writes)
}

fn interrupts(port: &PortStats) -> u64 {
    port.device.as_ref().map_or(port.interrupts, |d| d.delivered)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use vmlan_engine::stats::{Accesses, DeviceStats};

    #[test]
    fn figures_are_differences_over_time() {
        let port = |frames: u64| {
            let mut p = PortStats::default();
            p.out.frames = frames;
            p.out.bytes = frames * 60;
            p.out.batches = frames / 100;
            p.doorbells = frames / 500;
            p.interrupts = frames / 250;
            p.drops.insert("receiver-full".into(), frames / 1000);
            p
        };
        let nic = |frames: u64| {
            let mut device = DeviceStats { delivered: frames / 1000, ..DeviceStats::default() };
            device.registers.insert("TDT".into(), Accesses { reads: 0, writes: frames / 100 });
            let mut port = PortStats { device: Some(device), ..PortStats::default() };
            port.r#in.frames = frames;
            port
        };
        let at = Instant::now();
        let reading = |s: u64, frames| Look {
            at: at + Duration::from_secs(s),
            ports: vec![nic(frames), port(frames)],
            cpu: [500, 250, 1000].map(|ms| Duration::from_millis(ms * s)).to_vec(),
            sleeps: Vec::new(),
        };
        let window = Window::between(&reading(1, 1_000_000), &reading(3, 5_000_000));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{a} {b}");
        near(window.frames_per_s, 2e6);
        near(window.sent_per_s, 2e6);
        near(window.gbit_per_s, 0.96);
        near(window.cpu_switch, 0.5);
        near(window.cpu_of_guests(), 1.25);
        // A NIC's registers and a ring's doorbells; a NIC's delivered interrupts and a ring's.
        near(window.accesses_per_kframe, 10.0 + 2.0);
        near(window.interrupts_per_kframe, 1.0 + 4.0);
        near(window.mean_batch, 100.0);
        assert_eq!(window.drops, 4000);
        // 2 million by half a core, of 10 million by a whole one.
        assert!(window.of_limit().is_nan());
        near(Window { limit_frames_per_s: Some(1e7), ..window }.of_limit(), 0.4);
    }
}
