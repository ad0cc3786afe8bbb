//! Frames of a capture, round and round.

use std::sync::Arc;
use std::time::Duration;

use super::super::capture::Capture;
use super::super::options::Options;
use super::Engine;
use vmlan_driver::nic::Nic;
use vmlan_transport::numbers::narrow32;

/// Where a replay stands.
pub(super) struct Replay {
    capture: Arc<Capture>,
    next: usize,
    /// When this lap's first frame is due; None before the first.
    lap: Option<u64>,
    timed: bool,
}

impl Replay {
    pub(super) fn new(capture: Arc<Capture>, options: &Options) -> Self {
        Self { capture, next: 0, lap: None, timed: options.recorded_timing }
    }

    fn due(&self) -> u64 {
        let (_, offset) = self.capture.frame(self.next);
        self.lap.map_or(0, |lap| lap.saturating_add(offset))
    }

    /// How long until the next frame is due.
    pub(super) fn until(&self, now: u64) -> Duration {
        Duration::from_nanos(self.due().saturating_sub(now))
    }

    /// The next frame, if it is due.
    fn peek(&mut self, now: u64) -> Option<&[u8]> {
        self.lap.get_or_insert(now);
        (!self.timed || self.due() <= now).then(|| self.capture.frame(self.next).0)
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.capture.len() {
            self.next = 0;
            self.lap = self.lap.map(|lap| lap.saturating_add(self.capture.period()));
        }
    }
}

impl<N: Nic> Engine<'_, N> {
    /// All on the first lane, so that the order stays.
    pub(super) fn replay_pass(&mut self, now: u64) -> u32 {
        for n in 0..self.lanes.len() {
            self.ignore_received(n);
        }
        let claimed = self.claim();
        let wanted = self.pace.allow(now, claimed);
        if wanted == 0 {
            return 0;
        }
        let free = self.make_room(0);
        let (mut sent, mut bytes) = (0, 0);
        let Some(replay) = &mut self.replay else { return 0 };
        while sent < wanted.min(free.into()) {
            let Some(frame) = replay.peek(now) else { break };
            let Some(slot) = self.nic.next(0) else { break };
            let len = narrow32(frame.len() as u64);
            self.nic.write(0, slot, 0, frame);
            self.nic.send(0, slot, len);
            replay.advance();
            sent += 1;
            bytes += u64::from(len);
        }
        self.nic.flush(0);
        self.pace.spend(sent);
        self.count(claimed, sent, bytes);
        sent
    }
}
