//! What passes between two moments, port by port, and the CPU time of each process to the
//! nanosecond.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Lab;
use crate::failure::Failure;
use vmlan_config::human_text::to_f64;
use vmlan_engine::stats::{Accesses, PortStats};
use vmlan_harness::usage::{run_time, sleeps};

/// Stands among registers for virtio-net's kicks.
pub(crate) const DOORBELL: &str = "doorbell";

/// All counters at one moment.
pub(crate) struct Look {
    /// In the middle between asking and being told.
    pub(crate) at: Instant,
    pub(crate) ports: Vec<PortStats>,
    /// Of the switch, then of the processes asked for.
    pub(super) cpu: Vec<Duration>,
    /// Times that the processes asked for went to sleep.
    pub(super) sleeps: Vec<u64>,
}

/// The time between two looks.
pub(crate) struct Span {
    before: Look,
    after: Look,
}

impl Look {
    /// At the switch and at these processes.
    pub(crate) fn take(lab: &Lab, pids: &[u32]) -> Result<Self, Failure> {
        let gone = || Failure::Failed("a process of the measurement is gone".into());
        let asked = Instant::now();
        let ports = lab.stats()?;
        let at = asked + asked.elapsed() / 2;
        let cpu: Option<Vec<_>> =
            [lab.switch()].iter().chain(pids).map(|pid| run_time(*pid)).collect();
        let sleeps: Option<Vec<_>> = pids.iter().map(|pid| sleeps(*pid)).collect();
        Ok(Self { at, ports, cpu: cpu.ok_or_else(gone)?, sleeps: sleeps.ok_or_else(gone)? })
    }

    /// A counter of one port.
    pub(crate) fn of(&self, port: &str, counter: impl Fn(&PortStats) -> u64) -> u64 {
        self.ports.iter().find(|p| p.name == port).map_or(0, counter)
    }
}

impl Span {
    pub(crate) fn between(before: Look, after: Look) -> Self {
        Self { before, after }
    }

    /// Lets `time` pass.
    pub(crate) fn of(lab: &mut Lab, pids: &[u32], time: Duration) -> Result<Self, Failure> {
        const STEP: Duration = Duration::from_millis(250);
        let before = Look::take(lab, pids)?;
        while let Some(left) = time.checked_sub(before.at.elapsed()).filter(|left| !left.is_zero())
        {
            lab.pause(left.min(STEP))?;
        }
        Ok(Self::between(before, Look::take(lab, pids)?))
    }

    /// Accesses to each register of a port's NIC that was touched. Virtio-net has none: its
    /// doorbells stand for them.
    pub(crate) fn registers(&self, port: &str) -> BTreeMap<String, Accesses> {
        let all = |look: &Look| {
            let found = look.ports.iter().find(|p| p.name == port);
            found.map(registers).unwrap_or_default()
        };
        let (old, mut new) = (all(&self.before), all(&self.after));
        for (name, n) in &mut new {
            let old = old.get(name).copied().unwrap_or_default();
            n.reads = n.reads.saturating_sub(old.reads);
            n.writes = n.writes.saturating_sub(old.writes);
        }
        new.retain(|_, n| n.reads + n.writes > 0);
        new
    }

    pub(crate) fn seconds(&self) -> f64 {
        (self.after.at - self.before.at).as_secs_f64().max(1e-9)
    }

    /// How much a counter of a port has grown.
    pub(crate) fn grown(&self, port: &str, counter: impl Fn(&PortStats) -> u64) -> u64 {
        self.after.of(port, &counter).saturating_sub(self.before.of(port, &counter))
    }

    /// The same, a second.
    pub(crate) fn rate(&self, port: &str, counter: impl Fn(&PortStats) -> u64) -> f64 {
        to_f64(self.grown(port, counter)) / self.seconds()
    }

    /// How much a counter of all ports together has grown.
    pub(crate) fn all(&self, counter: impl Fn(&PortStats) -> u64) -> u64 {
        let sum = |look: &Look| look.ports.iter().map(&counter).sum::<u64>();
        sum(&self.after).saturating_sub(sum(&self.before))
    }

    /// CPU of the switch, in cores.
    pub(crate) fn switch(&self) -> f64 {
        self.cpu(0)
    }

    /// CPU of the `n`th of the processes asked for, in cores.
    pub(crate) fn guest(&self, n: usize) -> f64 {
        self.cpu(n + 1)
    }

    /// Times that the processes asked for went to sleep, a second.
    pub(crate) fn sleeps(&self) -> f64 {
        let sum = |look: &Look| look.sleeps.iter().sum::<u64>();
        to_f64(sum(&self.after).saturating_sub(sum(&self.before))) / self.seconds()
    }

    fn cpu(&self, n: usize) -> f64 {
        let both = self.after.cpu.get(n).zip(self.before.cpu.get(n));
        both.map_or(0.0, |(a, b)| a.saturating_sub(*b).as_secs_f64()) / self.seconds()
    }
}

fn registers(port: &PortStats) -> BTreeMap<String, Accesses> {
    let kicks = || Accesses { reads: 0, writes: port.doorbells };
    let none = || [(DOORBELL.to_owned(), kicks())].into();
    port.device.as_ref().map_or_else(none, |d| d.registers.clone())
}

/// Interrupts that a port's guest got.
pub(crate) fn interrupts(port: &PortStats) -> u64 {
    port.device.as_ref().map_or(port.interrupts, |d| d.delivered)
}

/// Frames dropped for this reason.
pub(crate) fn dropped(reason: &'static str) -> impl Fn(&PortStats) -> u64 {
    move |port| port.drops.get(reason).copied().unwrap_or(0)
}
