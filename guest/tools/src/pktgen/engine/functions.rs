//! One pass of each function over all queue pairs; each returns how many frames it moved.

use std::sync::Arc;

use super::super::frame::{self, STAMP_AT, Verdict};
use super::super::sequence;
use super::Engine;
use vmlan_driver::nic::Nic;
use vmlan_transport::numbers::narrow32;

impl<N: Nic> Engine<'_, N> {
    /// Frames that one batch may still move. [`Self::count`] settles what became of them.
    pub(super) fn claim(&self) -> u32 {
        self.share.claim(self.options.burst, self.counts.frames)
    }

    pub(super) fn count(&mut self, claimed: u32, frames: u32, bytes: u64) {
        self.share.settle(claimed, frames);
        self.counts.frames += u64::from(frames);
        self.counts.bytes += bytes;
        self.counts.batches += u64::from(frames > 0);
    }

    pub(super) fn tx_pass(&mut self, now: u64) -> u32 {
        let mut moved = 0;
        for n in 0..self.lanes.len() {
            self.ignore_received(n);
            let claimed = self.claim();
            let wanted = self.pace.allow(now, claimed);
            if wanted == 0 {
                self.share.settle(claimed, 0);
                continue;
            }
            self.make_room(n);
            let (sent, bytes) = if self.plain {
                let sent = self.nic.send_filled(n, wanted, self.options.size);
                (sent, u64::from(sent) * u64::from(self.options.size))
            } else {
                self.send_each(n, wanted)
            };
            self.nic.flush(n);
            self.pace.spend(sent);
            self.count(claimed, sent, bytes);
            moved += sent;
        }
        moved
    }

    /// Takes sent slots back, and notes how many there are.
    pub(super) fn make_room(&mut self, n: usize) -> u16 {
        let free = self.nic.reap(n);
        self.min_space = Some(self.min_space.map_or(free, |least| least.min(free)));
        if free == 0 {
            self.nic.count_full(n);
        }
        free
    }

    /// Sends frames that differ: in size, in their addresses, or by their numbers. How many, and
    /// their bytes.
    pub(super) fn send_each(&mut self, n: usize, wanted: u32) -> (u32, u64) {
        let count = wanted.min(self.nic.free_slots(n).into());
        let mut bytes = 0;
        for _ in 0..count {
            let Some(slot) = self.nic.next(n) else { break };
            let size = self.size(n, slot);
            self.finish_frame(n, slot, size);
            self.nic.send(n, slot, size);
            bytes += u64::from(size);
        }
        (count, bytes)
    }

    /// Writes what is new in the frame of a slot since it was sent last.
    fn finish_frame(&mut self, n: usize, slot: u16, size: u32) {
        let offload = self.varies && self.offloads();
        let lane = &mut self.lanes[n];
        let mut body = lane.bodies[usize::from(slot)];
        if self.varies {
            // Lanes take turns, so that all of them together go through the range.
            let nth = lane.number * self.share.lanes as u64 + u64::from(lane.queue);
            let head = frame::head(self.options, size, nth, offload);
            self.nic.write(n, slot, 0, &head);
            body ^= frame::head_sum(&head);
        }
        if self.numbers {
            let stamp = frame::stamp(body, lane.queue, lane.number);
            self.nic.write(n, slot, STAMP_AT, &stamp);
        }
        lane.number += 1;
    }

    /// A sender is flooded with other guests' frames like anyone else; its buffers must not run out
    /// for that.
    pub(super) fn ignore_received(&mut self, n: usize) {
        let batch = &mut self.lanes[n].batch;
        if self.nic.ready(n) {
            self.counts.other += self.nic.poll(n, batch, usize::MAX) as u64;
            self.nic.release(n, batch);
        }
    }

    pub(super) fn rx_pass(&mut self) -> u32 {
        let mut moved = 0;
        for n in 0..self.lanes.len() {
            if !self.nic.ready(n) {
                continue;
            }
            let claimed = self.claim();
            if claimed == 0 {
                continue;
            }
            let batch = &mut self.lanes[n].batch;
            let frames = self.nic.poll(n, batch, claimed as usize);
            let frames = narrow32(frames as u64);
            let left = self.nic.posted(n);
            self.min_space = Some(self.min_space.map_or(left, |least| least.min(left)));
            let bytes = N::bytes(&self.lanes[n].batch);
            if self.options.verify {
                self.check_sequence(n, frames);
            }
            self.nic.release(n, &mut self.lanes[n].batch);
            self.count(claimed, frames, bytes);
            moved += frames;
        }
        moved
    }

    /// Copies a received frame to the scratch buffer; its length there.
    pub(super) fn copy_out(&mut self, n: usize, at: usize) -> usize {
        self.nic.read(n, &self.lanes[n].batch, at, &mut self.scratch)
    }

    pub(super) fn verdict(&mut self, n: usize, at: usize) -> Verdict {
        let len = self.copy_out(n, at);
        let pending = self.nic.checksum_pending(n, &self.lanes[n].batch, at);
        frame::verify(&self.scratch[..len], pending)
    }

    fn check_sequence(&mut self, n: usize, frames: u32) {
        let sequences = Arc::clone(&self.share.sequences);
        let mut sequences = sequence::lock(&sequences);
        for at in 0..frames as usize {
            match self.verdict(n, at) {
                Verdict::Other => self.counts.other += 1,
                Verdict::Corrupt => self.counts.corrupt += 1,
                Verdict::Good { queue, number } => {
                    let sender = self.scratch[6..].first_chunk().copied().unwrap_or_default();
                    let lane = self.lanes[n].queue.into();
                    let noted = sequences.note(sender, queue, number, lane);
                    self.counts.other += u64::from(!noted);
                }
            }
        }
    }

    pub(super) fn pong_pass(&mut self) -> u32 {
        let mut moved = 0;
        for n in 0..self.lanes.len() {
            let claimed = self.claim();
            let most = (claimed as usize).min(self.nic.reap(n).into());
            let frames = self.nic.poll(n, &mut self.lanes[n].batch, most);
            let (mut sent, mut bytes) = (0, 0);
            for at in 0..frames {
                let len = self.turn_round(n, at);
                sent += u32::from(len > 0);
                bytes += u64::from(len);
            }
            self.nic.flush(n);
            self.nic.release(n, &mut self.lanes[n].batch);
            self.count(claimed, sent, bytes);
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
        let len = narrow32(len as u64);
        self.nic.write(n, slot, 0, bytes);
        self.nic.send(n, slot, len);
        len
    }
}
