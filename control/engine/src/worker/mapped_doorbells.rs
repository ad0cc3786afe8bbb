//! Ports whose doorbells are words in shared memory: how long a worker may sleep between two looks
//! at them.

use std::time::Duration;

use vmlan_frame::Port;
use vmlan_switch::PortId;

/// The first sleep after traffic. Each look that finds nothing doubles the next, up to the ports'
/// own interval: an answer is found soon, a guest that keeps its ring full is not held to one ring
/// for each interval, and silence costs what was asked for.
pub(super) const FIRST: Duration = Duration::from_micros(50);

/// The polled ports of a worker, as of the last arming.
#[derive(Debug, Default)]
pub(super) struct MappedPorts {
    ports: Vec<PortId>,
    /// The shortest of their intervals.
    most: Option<Duration>,
    pause: Duration,
    /// Frames that passed them, both ways, when last looked at.
    traffic: u64,
    counted: u64,
}

impl MappedPorts {
    /// The worker arms: forgets all ports.
    pub(super) fn begin(&mut self) {
        self.ports.clear();
        self.most = None;
        self.counted = 0;
    }

    /// One of the ports being armed, if it is to be polled.
    pub(super) fn add(&mut self, id: PortId, port: &dyn Port) {
        let Some(interval) = port.poll_interval() else { return };
        let counters = port.counters();
        self.ports.push(id);
        self.most = Some(self.most.map_or(interval, |most| most.min(interval)));
        let frames = counters.input.frames.get().wrapping_add(counters.output.frames.get());
        self.counted = self.counted.wrapping_add(frames);
    }

    /// All are armed.
    pub(super) fn end(&mut self) {
        if self.traffic != self.counted {
            self.traffic = self.counted;
            self.pause = FIRST;
        }
    }

    /// The ports to look at.
    pub(super) fn ports(&self) -> &[PortId] {
        &self.ports
    }

    /// How long to sleep; `None`: for ever.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.most.map(|most| most.min(self.pause.max(FIRST)))
    }

    /// A look found nothing.
    pub(super) fn missed(&mut self) {
        if let Some(most) = self.most {
            self.pause = self.pause.max(FIRST).saturating_mul(2).min(most);
        }
    }
}
