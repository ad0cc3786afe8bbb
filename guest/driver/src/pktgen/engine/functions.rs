//! One pass of each function over all queue pairs; each returns how many frames it moved.

use super::super::frame::{self, STAMP_AT, Verdict};
use super::Engine;
use crate::device::Device;

/// A ping without an answer for so long is lost.
const PING_TIMEOUT_NS: u64 = 1_000_000_000;

impl<N: Device> Engine<'_, N> {
    /// Frames still to be moved, as far as one batch is concerned.
    fn quota(&self) -> u32 {
        let left = match self.options.count {
            0 => u64::MAX,
            count => count.saturating_sub(self.counts.frames),
        };
        u32::try_from(left).unwrap_or(u32::MAX).min(self.options.burst)
    }

    fn count(&mut self, frames: u32, bytes: u64) {
        self.counts.frames += u64::from(frames);
        self.counts.bytes += bytes;
        self.counts.batches += u64::from(frames > 0);
    }

    pub(super) fn tx_pass(&mut self, now: u64) -> u32 {
        let mut moved = 0;
        for n in 0..self.lanes.len() {
            self.ignore_received(n);
            let wanted = self.pace.allow(now, self.quota());
            if wanted == 0 {
                continue;
            }
            let free = self.nic.reap(n);
            self.min_space = Some(self.min_space.map_or(free, |least| least.min(free)));
            if free == 0 {
                self.nic.count_full(n);
            }
            let sent = if self.options.sequence {
                self.send_numbered(n, wanted)
            } else {
                self.nic.send_filled(n, wanted, self.options.size)
            };
            self.nic.flush(n);
            self.pace.spend(sent);
            self.count(sent, u64::from(sent) * u64::from(self.options.size));
            moved += sent;
        }
        moved
    }

    fn send_numbered(&mut self, n: usize, wanted: u32) -> u32 {
        let (nic, lane) = (&mut self.nic, &mut self.lanes[n]);
        let queue = u8::try_from(n).unwrap_or(u8::MAX);
        let count = wanted.min(nic.free_slots(n).into());
        for _ in 0..count {
            let Some(slot) = nic.next(n) else { break };
            let stamp = frame::stamp(lane.bodies[usize::from(slot)], queue, lane.number);
            nic.write(n, slot, STAMP_AT, &stamp);
            nic.send(n, slot, self.options.size);
            lane.number += 1;
        }
        count
    }

    /// A sender is flooded with other guests' frames like anyone else; its buffers must not run out for that.
    fn ignore_received(&mut self, n: usize) {
        let batch = &mut self.lanes[n].batch;
        if self.nic.ready(n) {
            self.counts.other += self.nic.poll(n, batch, usize::MAX) as u64;
            self.nic.release(n, batch);
        }
    }

    pub(super) fn rx_pass(&mut self) -> u32 {
        let mut moved = 0;
        for n in 0..self.lanes.len() {
            let most = self.quota() as usize;
            if most == 0 || !self.nic.ready(n) {
                continue;
            }
            let batch = &mut self.lanes[n].batch;
            let frames = u32::try_from(self.nic.poll(n, batch, most)).unwrap_or(u32::MAX);
            let left = self.nic.posted(n);
            self.min_space = Some(self.min_space.map_or(left, |least| least.min(left)));
            let bytes = N::bytes(&self.lanes[n].batch);
            if self.options.verify {
                for at in 0..frames as usize {
                    self.check_sequence(n, at);
                }
            }
            self.nic.release(n, &mut self.lanes[n].batch);
            self.count(frames, bytes);
            moved += frames;
        }
        moved
    }

    /// Copies a received frame to the scratch buffer; its length there.
    fn copy_out(&mut self, n: usize, at: usize) -> usize {
        self.nic.read(n, &self.lanes[n].batch, at, &mut self.scratch)
    }

    fn verdict(&mut self, n: usize, at: usize) -> Verdict {
        let len = self.copy_out(n, at);
        let pending = self.nic.checksum_pending(n, &self.lanes[n].batch, at);
        frame::verify(&self.scratch[..len], pending)
    }

    fn check_sequence(&mut self, n: usize, at: usize) {
        match self.verdict(n, at) {
            Verdict::Other => self.counts.other += 1,
            Verdict::Corrupt => self.counts.corrupt += 1,
            Verdict::Good { queue, number } => {
                let expected = &mut self.expected[usize::from(queue)];
                if number < *expected {
                    self.counts.out_of_order += 1;
                } else {
                    let gap = number - *expected;
                    self.counts.lost = self.counts.lost.saturating_add(gap);
                    *expected = number.saturating_add(1);
                }
            }
        }
    }

    pub(super) fn ping_pass(&mut self, now: u64) -> u32 {
        for n in 0..self.lanes.len() {
            self.take_answers(n);
        }
        if let Some((_, sent)) = self.waiting {
            if now.saturating_sub(sent) < PING_TIMEOUT_NS {
                return 0;
            }
            self.waiting = None;
            self.counts.lost += 1;
        }
        if self.pace.allow(now, self.quota().min(1)) == 0 || self.nic.reap(0) == 0 {
            return 0;
        }
        let number = self.lanes[0].number;
        // Before the frame leaves: an e1000's doorbell may take as long as the whole way there and back.
        let start = self.now();
        let sent = self.send_numbered(0, 1);
        self.waiting = (sent > 0).then_some((number, start));
        self.nic.flush(0);
        self.pace.spend(sent);
        self.count(sent, u64::from(sent) * u64::from(self.options.size));
        sent
    }

    fn take_answers(&mut self, n: usize) {
        let count = self.nic.poll(n, &mut self.lanes[n].batch, usize::MAX);
        for at in 0..count {
            match (self.verdict(n, at), self.waiting) {
                (Verdict::Good { number, .. }, Some((wanted, sent))) if number == wanted => {
                    self.histogram.add(self.now() - sent);
                    self.waiting = None;
                }
                (Verdict::Corrupt, _) => self.counts.corrupt += 1,
                _ => self.counts.other += 1,
            }
        }
        self.nic.release(n, &mut self.lanes[n].batch);
    }

    pub(super) fn pong_pass(&mut self) -> u32 {
        let mut moved = 0;
        for n in 0..self.lanes.len() {
            let most = (self.quota() as usize).min(self.nic.reap(n).into());
            let frames = self.nic.poll(n, &mut self.lanes[n].batch, most);
            let (mut sent, mut bytes) = (0, 0);
            for at in 0..frames {
                let len = self.turn_round(n, at);
                sent += u32::from(len > 0);
                bytes += u64::from(len);
            }
            self.nic.flush(n);
            self.nic.release(n, &mut self.lanes[n].batch);
            self.count(sent, bytes);
            moved += sent;
        }
        moved
    }

    /// Sends a received frame back; its length, or 0 when it is not one to answer.
    fn turn_round(&mut self, n: usize, at: usize) -> u32 {
        let len = self.copy_out(n, at);
        let bytes = &mut self.scratch[..len];
        if len > self.nic.room(n) || !frame::turn_round(bytes, self.options.src_mac) {
            self.counts.other += 1;
            return 0;
        }
        let Some(slot) = self.nic.next(n) else { return 0 };
        let len = u32::try_from(len).unwrap_or(0);
        self.nic.write(n, slot, 0, bytes);
        self.nic.send(n, slot, len);
        len
    }
}
