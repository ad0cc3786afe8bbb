//! The receive side of classic mode: frames meant for this station are written into the receive
//! buffer (`buffer.rs`).
//!
//! A frame that finds no room is left with its sender, as everywhere. RXOVW is posted when the
//! switch had to drop frames.

use std::sync::Arc;

use vmlan_frame::{Batch, FrameView, Mac, Reason};
use vmlan_ram::{Map, Slice};

use super::buffer::{LONGEST, Look, header, status};
use super::chip::Rtl8139;
use super::regs::CBR;
use crate::chip::frame_totals::{BatchTotals, FCS, SHORTEST};
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Chip, Fault, Received};
use crate::realtek::cplus::Cplus;
use crate::realtek::filter::{Match, Rules};
use crate::realtek::isr;
use crate::ring::is_memory;

const USUAL: u32 = 1528; // Bytes that a frame of the usual length takes.
const MANY: usize = 128; // Frames that nobody asks room for more than.
/// Zeros to pad with, and FCS: as many as the longest filler has.
static ZEROS: [u8; 256] = [0; 256];
/// EtherType 9000h.
const LOOPBACK_TEST: [u8; 2] = [0x90, 0x00];

/// The receive side of classic mode.
pub struct Classic {
    map: Arc<Map>,
    rules: Rules,
    /// Of the registers that `rules` was made of.
    version: Option<u32>,
    /// The buffer that was last found to be in memory.
    good: Option<(u32, u32)>,
    fault: Option<Fault>,
    /// The read pointer at which a push found no room.
    starved: Option<u32>,
    /// Frames that the switch dropped for want of room, at the last look.
    missed: u64,
}

impl Classic {
    pub fn new() -> Self {
        let (map, rules) = Default::default();
        let (version, good, fault, starved, missed) = Default::default();
        Self { map, rules, version, good, fault, starved, missed }
    }

    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.good = None;
        std::mem::replace(&mut self.map, map)
    }

    /// Forgets everything but the registers.
    pub fn stop(&mut self) {
        (self.good, self.fault, self.starved) = (None, None, None);
    }

    pub fn fault(&self) -> Option<Fault> {
        self.fault.or(self.map.poisoned().then_some(Fault::Truncated))
    }

    /// Reads the registers, and checks that the buffer is in memory. A buffer at 0 was never set:
    /// nobody's memory is there to be overwritten.
    fn look(&mut self, chip: &Rtl8139) -> Option<Look> {
        let look = Look::new(&chip.regs);
        if self.good != Some((look.base, look.size)) {
            self.good = self.holds(&look).then_some((look.base, look.size));
            let (base, len) = (look.base.into(), look.size);
            let bad = Fault::BadRing { ring: "receive", base, len };
            self.fault = self.good.is_none().then_some(bad);
        }
        self.good.map(|_| look)
    }

    fn holds(&self, look: &Look) -> bool {
        look.base != 0 && is_memory(&self.map, look.base.into(), look.size as usize)
    }

    fn update(&mut self, chip: &Rtl8139) {
        let version = chip.filter_version();
        if self.version != Some(version) {
            (self.version, self.rules) = (Some(version), chip.rules());
        }
    }

    /// Frames of the usual length for which there is room; if nearly all of the buffer is free, as
    /// many as anybody asks for.
    pub fn room(&mut self, chip: &Rtl8139) -> usize {
        let Some(look) = self.look(chip) else { return 0 };
        let frames = (look.free() / USUAL) as usize;
        // If this is too little, the caller waits for CAPR to move.
        self.starved = Some(look.read);
        if look.free() >= look.size / 4 * 3 { MANY } else { frames }
    }

    /// True if there is room, or, after a push that found too little, more of it.
    pub fn want_room(&mut self, chip: &Rtl8139) -> bool {
        let Some(look) = self.look(chip) else { return false };
        look.free() >= Look::need(64) && self.starved != Some(look.read)
    }

    pub fn receive(&mut self, chip: &Rtl8139, batch: &Batch<'_>, list: &[u16]) -> Received {
        self.update(chip);
        let Some(mut look) = self.look(chip) else { return Received::default() };
        let (before, mut sums) = (look.at, BatchTotals::default());
        let mut dealt = 0;
        for frame in list.iter().map(|i| batch.frame(usize::from(*i))) {
            match frame.map_or(Outcome::Skipped, |frame| self.deliver(&frame, &mut look)) {
                Outcome::Delivered(to, len) => sums.add(to, len),
                Outcome::NotOurs(len) => sums.pass_by(len),
                Outcome::Dropped(reason) => chip.core.counters.output.drop(reason, 1),
                Outcome::Skipped => {}
                Outcome::NoRoom => break,
            }
            dealt += 1;
        }
        let (frames, bytes) = sums.frames();
        chip.core.counters.output.count(frames, bytes);
        chip.core.stats.rx.count(sums);
        self.starved = None;
        if dealt < list.len() {
            chip.core.stats.rx.special.add(1);
            self.starved = Some(look.read);
        }
        let mut causes = 0;
        if look.at != before {
            chip.regs.set(CBR, look.at);
            causes |= isr::ROK;
        }
        let missed = chip.core().counters.output.dropped(Reason::ReceiverFull);
        if std::mem::replace(&mut self.missed, missed) != missed {
            causes |= isr::RDU;
        }
        Received { dealt, causes, reopened: false }
    }

    /// Writes a frame into the buffer, if it is for this station and there is room.
    fn deliver(&self, frame: &FrameView<'_, '_>, look: &mut Look) -> Outcome {
        let Some(matched) = self.rules.accepts(frame.head) else {
            return Outcome::NotOurs(frame.len);
        };
        let bytes = frame.len.max(SHORTEST) + FCS;
        let Some(len) = u32::try_from(bytes).ok().filter(|_| bytes <= LONGEST) else {
            return Outcome::Dropped(Reason::TooLong);
        };
        let mut after = *look;
        let filler = look.parts(len).is_none().then(|| look.filler());
        if let Some(filler) = filler {
            after.step(Look::need(filler));
        }
        let (skip, need) = (filler.map_or(0, Look::need), Look::need(len));
        if skip + need > look.free() {
            return Outcome::NoRoom;
        }
        let to = frame.head.first_chunk().map_or(Mac::default(), |to| Mac::new(*to));
        let there = filler.is_none_or(|len| self.fill(look, len))
            && self.write(&after, status_of(matched), len, frame.runs(0, frame.len));
        if !there {
            return Outcome::Dropped(Reason::BadDescriptor);
        }
        after.step(need);
        *look = after;
        Outcome::Delivered(to, frame.len)
    }

    /// Writes a frame of `len` bytes, FCS included, with its header. False: that is not all in
    /// memory, and nothing was written.
    fn write<'b>(
        &self,
        look: &Look,
        status: u16,
        len: u32,
        runs: impl Iterator<Item = Slice<'b>>,
    ) -> bool {
        let Some(parts) = look.parts(len) else { return false };
        let parts = [parts.first, parts.second];
        let mut place = Place { map: &self.map, base: look.base.into(), parts };
        let there = place.is_there();
        if there {
            place.put(Slice::from_bytes(&header(status, len)));
            runs.for_each(|run| place.put(run));
            place.fill();
        }
        there
    }

    /// Writes a frame that means nothing: from the station to itself, with the EtherType of the
    /// loopback test protocol.
    fn fill(&self, look: &Look, len: u32) -> bool {
        let mut head = [0; 14];
        let own = self.rules.own;
        for (byte, value) in head.iter_mut().zip(own.iter().chain(&own).chain(&LOOPBACK_TEST)) {
            *byte = *value;
        }
        self.write(look, status_of(Match::Physical), len, [Slice::from_bytes(&head)].into_iter())
    }
}

impl Stateful for Classic {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { map: _, rules: _, version, good, fault, starved, missed } = self;
        io.option(starved, Fields::u32);
        io.u64(missed);
        if io.restores() {
            // The next look finds out.
            (*version, *good, *fault) = (None, None, None);
        }
    }
}

/// What became of a frame.
enum Outcome {
    /// To whom, and its length.
    Delivered(Mac, usize),
    /// Its length.
    NotOurs(usize),
    Dropped(Reason),
    Skipped,
    NoRoom,
}

/// What the header says about how a frame was found to be for this station.
fn status_of(matched: Match) -> u16 {
    let kind = match matched {
        Match::Physical => status::PAM,
        Match::Other => 0,
        Match::Multicast => status::MAR,
        Match::Broadcast => status::BAR,
    };
    status::ROK | kind
}

/// Where a frame goes, and how far it is written: offsets and lengths that are left.
struct Place<'m> {
    map: &'m Map,
    base: u64,
    parts: [(u32, u32); 2],
}

impl Place<'_> {
    /// All of it is in memory: behind the buffer's end there may be none.
    fn is_there(&self) -> bool {
        let part = |at: u32, len: u32| is_memory(self.map, self.base + u64::from(at), len as usize);
        self.parts.iter().all(|&(at, len)| part(at, len))
    }

    /// Writes bytes, and goes on behind them.
    fn put(&mut self, mut bytes: Slice<'_>) {
        for (at, left) in &mut self.parts {
            while *left > 0 && !bytes.is_empty() {
                let gpa = self.base + u64::from(*at);
                let most = bytes.len().min(*left as usize);
                let Some(mut run) = self.map.first_run_mut(gpa, most) else { return };
                let n = run.write_from(0, bytes);
                if n == 0 {
                    return;
                }
                bytes = bytes.sub(n, usize::MAX);
                // No more than what was left.
                let n = u32::try_from(n).unwrap_or(*left).min(*left);
                (*at, *left) = (*at + n, *left - n);
            }
        }
    }

    /// Zeros up to the end: padding and FCS.
    fn fill(&mut self) {
        self.put(Slice::from_bytes(&ZEROS));
    }
}
