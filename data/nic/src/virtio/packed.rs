//! The device side of one packed ring (virtio 1.2 section 2.8).
//!
//! ```text
//!  descriptors:   behind .................... ahead ....................
//!                 │ read, not given back      │ not looked at
//!                 └ next used descriptor      └ next available one, if its flags say so
//! ```
//!
//! Each head is copied out once, into `buffers`, with the number of descriptors behind it; what is
//! used is what was copied. The buffers of a list behind its first are read once, when they are
//! asked for.
//!
//! A used descriptor is one store of eight bytes, and they are written in the order of the ring,
//! which is that of the buffers. So whenever this process ends, the ring says how far it came:
//! [`place::find`].

mod list;
mod place;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vmlan_ram::{Map, Noting, Window};

use super::desc::{Desc, NEXT, WRITE};
use super::queue::{AnyQueue, HEADS, Queue, Ring};
use super::{Fault, Features, Inflight, Rings, feature};
use crate::bits::low32;
use crate::chip::held::point;
use crate::notify::packed::{self, DISABLE, Event, PackedFields};
use list::List;
use place::Place;

/// Flags of a descriptor, beside those of split rings (section 2.8.1).
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Bytes of an event suppression structure (section 2.8.14).
const EVENT_LEN: usize = 4;

/// Descriptors that one reading of heads visits, at most; the last list may exceed it.
const SCAN: usize = 4096;

/// A buffer whose head was read.
#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    first: Desc,
    /// The first descriptor's place in the ring.
    slot: u16,
    /// Descriptors in the ring.
    count: u16,
    id: u16,
}

/// A used descriptor that waits to be written.
#[derive(Clone, Copy, Debug)]
struct Used {
    len: u32,
    id: u16,
    count: u16,
}

/// What only a packed ring has.
pub(super) struct Packed {
    ring: Window,
    /// Event suppression, as the driver says it; as we say it.
    driver: Window,
    device: Window,
    ahead: Place,
    behind: Place,
    /// Descriptors from `behind` to `ahead`.
    taken: u16,
    buffers: Box<[Buffer; HEADS as usize]>,
    /// Bits of the ids of those descriptors' buffers.
    ids: Box<[u64]>,
    /// Never more than it has room for.
    staged: Vec<Used>,
    begun: bool,
    /// A rule that was found broken, for the next look.
    broken: Option<Fault>,
}

/// The flags by which a descriptor is available in the lap of `wrap`.
fn available(wrap: bool) -> u16 {
    if wrap { AVAIL } else { USED }
}

/// Those by which it is used.
fn used(wrap: bool) -> u16 {
    if wrap { AVAIL | USED } else { 0 }
}

/// The flags in a descriptor's second word.
fn flags(word: u64) -> u16 {
    let [.., a, b] = word.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// A descriptor from its two words.
fn desc((addr, word): (u64, u64)) -> Desc {
    let [.., a, b, _, _] = word.to_le_bytes();
    Desc { addr, len: low32(word), flags: flags(word), next: u16::from_le_bytes([a, b]) }
}

/// Reads the descriptor at `slot`, each word once.
fn read(ring: &Window, slot: u16) -> Desc {
    let word = ring.u64(off(slot) + 8, Acquire);
    desc((ring.u64(off(slot), Relaxed), word))
}

fn off(slot: u16) -> usize {
    16 * usize::from(slot)
}

fn windows(rings: &Rings, map: &Arc<Map>) -> Result<(Window, Window, Window), Fault> {
    let size = rings.size;
    if size == 0 || size > 32768 {
        return Err(Fault::BadPackedSize(size));
    }
    let window = |gpa, len, align| map.window(gpa, len, align).ok_or(Fault::BadRing(gpa));
    let ring = window(rings.desc, off(size), 16)?;
    Ok((ring, window(rings.avail, EVENT_LEN, 4)?, window(rings.used, EVENT_LEN, 4)?))
}

impl PackedFields for Queue<Packed> {
    #[inline]
    fn is_available(&self) -> bool {
        let Place { slot, wrap } = self.layout.ahead;
        let flags = self.layout.ring.u16(off(slot) + 14, Acquire);
        flags & (AVAIL | USED) == available(wrap) && self.layout.taken < self.rings.size
    }
    #[inline]
    fn driver_event(&self) -> Event {
        Event::from_word(self.layout.driver.u32(0, Relaxed))
    }
    #[inline]
    fn set_device_event(&self, event: Event) {
        self.layout.device.set_u32(0, event.word(), Relaxed);
        if let (Some(dirty), Some(gpa)) = (&self.dirty, self.rings.log) {
            dirty.mark(gpa, EVENT_LEN as u64);
        }
    }
}

impl Queue<Packed> {
    /// Starts where the ring's descriptors say; where they say nothing, at `rings.base`. At most
    /// `staged` buffers are used before they are published.
    pub(super) fn new(
        rings: Rings,
        map: &Arc<Map>,
        features: Features,
        staged: usize,
    ) -> Result<Self, Fault> {
        let (ring, driver, device) = windows(&rings, map)?;
        let start = match place::find(&ring, rings.size) {
            Some(place) => place,
            None => Place::from_base(rings.base, rings.size)?,
        };
        let layout = Packed {
            ring,
            driver,
            device,
            ahead: start,
            behind: start,
            taken: 0,
            buffers: Box::new([Buffer::default(); HEADS as usize]),
            ids: vec![0; usize::from(rings.size).div_ceil(64)].into(),
            staged: Vec::with_capacity(staged),
            begun: start != Place::START,
            broken: None,
        };
        Ok(Self::at(layout, rings, map, features, 0))
    }

    /// Copies heads, of at most [`HEADS`] positions from `base` on.
    #[inline]
    fn fetch_heads(&mut self, base: u16) -> Result<usize, Fault> {
        let (mut visited, mut heads) = (0, 0);
        while visited < SCAN {
            let room = HEADS - self.fetched.wrapping_sub(base).min(HEADS);
            let room = room.min(self.rings.size.saturating_sub(self.layout.taken));
            if room == 0 {
                break;
            }
            let end = self.rings.size - self.layout.ahead.slot;
            let singles = self.fetch_singles(room)?;
            let mut more = singles;
            if singles < room.min(end) {
                let Some(count) = self.fetch_list()? else {
                    break;
                };
                more += count;
                heads += 1;
            }
            visited += usize::from(more);
            heads += usize::from(singles);
        }
        Ok(visited - heads)
    }

    /// Copies heads of lists of one descriptor, of `room` positions at most and up to the ring's
    /// end; returns how many.
    #[inline]
    fn fetch_singles(&mut self, room: u16) -> Result<u16, Fault> {
        let (size, fetched) = (self.rings.size, self.fetched);
        let Packed { ring, ahead, buffers, ids, .. } = &mut self.layout;
        let (mut slot, mut at, mut fault) = (ahead.slot, fetched, None);
        let (want, run) = (available(ahead.wrap), room.min(size - slot));
        let wanted = |word| flags(word) & (AVAIL | USED | NEXT) == want;
        ring.take_descriptors(off(slot), run.into(), wanted, |words| {
            let first = desc(words);
            let id = first.next;
            fault = claim(ids, id, size);
            if let Some(to) = buffers.get_mut(usize::from(at & (HEADS - 1))) {
                *to = Buffer { first, slot, count: 1, id };
            }
            (slot, at) = (slot + 1, at.wrapping_add(1));
            fault.is_none()
        });
        let n = at.wrapping_sub(fetched);
        ahead.pass(n, size);
        self.layout.taken += n;
        self.fetched = at;
        fault.map_or(Ok(n), Err)
    }

    /// Copies the head of a list of several descriptors, if one is next; returns how many it has.
    #[inline(never)]
    fn fetch_list(&mut self) -> Result<Option<u16>, Fault> {
        let (size, Place { slot, wrap }) = (self.rings.size, self.layout.ahead);
        let layout = &mut self.layout;
        let first = read(&layout.ring, slot);
        if first.flags & (AVAIL | USED) != available(wrap) {
            return Ok(None);
        }
        let (mut last, mut count) = (first, 1);
        while last.flags & NEXT != 0 {
            if layout.taken + count >= size {
                return Err(Fault::Endless);
            }
            last = read(&layout.ring, place::after(slot, count, size));
            count += 1;
        }
        let id = last.next;
        if let Some(fault) = claim(&mut layout.ids, id, size) {
            return Err(fault);
        }
        if let Some(to) = layout.buffers.get_mut(usize::from(self.fetched & (HEADS - 1))) {
            *to = Buffer { first, slot, count, id };
        }
        layout.ahead.pass(count, size);
        layout.taken += count;
        self.fetched = self.fetched.wrapping_add(1);
        Ok(Some(count))
    }

    /// Writes a used descriptor at `behind`.
    #[inline]
    fn write_used(&mut self, used_now: Used) {
        let Used { len, id, count } = used_now;
        let Place { slot, wrap } = self.layout.behind;
        if count > 1 {
            self.mark_rest(count);
        }
        let flags = used(wrap) | if len > 0 { WRITE } else { 0 };
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        point();
        self.layout.ring.set_u64(off(slot) + 8, word, Release);
        self.layout.behind.pass(count, self.rings.size);
        self.layout.taken = self.layout.taken.saturating_sub(count);
        if let Some(word) = self.layout.ids.get_mut(usize::from(id >> 6)) {
            *word &= !(1 << (id & 63));
        }
    }

    /// Marks the descriptors behind a list's first as passed, the last one first. Nobody but
    /// [`place::find`] looks at them before the driver writes them again.
    #[inline(never)]
    fn mark_rest(&self, count: u16) {
        let (size, behind) = (self.rings.size, self.layout.behind);
        for k in (1..count).rev() {
            let mut place = behind;
            place.pass(k, size);
            let at = off(place.slot) + 14;
            let kept = self.layout.ring.u16(at, Relaxed) & !(AVAIL | USED);
            self.layout.ring.set_u16(at, kept | used(place.wrap), Release);
        }
    }

    /// Marks `count` descriptors from `from` on as written. The front end's log address is that of
    /// our event suppression structure; these have none of their own.
    fn log_descriptors(&self, map: &Map, from: Place, count: u16) {
        let size = self.rings.size;
        if self.dirty.is_some() && self.rings.log.is_some() {
            let now = count.min(size - from.slot);
            map.mark_dirty(self.rings.desc + off(from.slot) as u64, off(now));
            map.mark_dirty(self.rings.desc, off(count - now));
        }
    }
}

/// Notes that the buffer `id` is with us.
#[inline]
fn claim(ids: &mut [u64], id: u16, size: u16) -> Option<Fault> {
    let word = ids.get_mut(usize::from(id >> 6)).filter(|_| id < size);
    let Some(word) = word else { return Some(Fault::BufferId(id)) };
    let bit = 1 << (id & 63);
    let twice = *word & bit != 0;
    *word |= bit;
    twice.then_some(Fault::BufferIdTwice(id))
}

impl Ring for Queue<Packed> {
    #[inline]
    fn of(queue: &mut AnyQueue) -> Option<&mut Self> {
        if let AnyQueue::Packed(queue) = queue { Some(queue) } else { None }
    }

    type Chain<'q> = List<'q>;

    fn rebuild_windows(&mut self, map: &Arc<Map>) -> Result<(), Fault> {
        let (ring, driver, device) = windows(&self.rings, map)?;
        (self.layout.ring, self.layout.driver, self.layout.device) = (ring, driver, device);
        Ok(())
    }

    /// Looks at one descriptor at most.
    #[inline]
    fn look(&mut self) -> Result<u16, Fault> {
        if let Some(fault) = self.layout.broken {
            return Err(fault);
        }
        match self.known() {
            0 => Ok(self.is_available().into()),
            known => Ok(known),
        }
    }

    #[inline]
    fn known(&self) -> u16 {
        self.fetched.wrapping_sub(self.next)
    }

    #[inline]
    fn fetch(&mut self, base: u16) -> Result<usize, Fault> {
        let fetched = self.fetch_heads(base);
        if let Err(fault) = fetched {
            self.layout.broken = Some(fault);
        }
        fetched
    }

    #[inline]
    fn head(&self, position: u16) -> u16 {
        position & (HEADS - 1)
    }

    #[inline]
    fn desc(&self, head: u16) -> Result<Desc, Fault> {
        let buffer = self.layout.buffers.get(usize::from(head));
        buffer.map(|b| b.first).ok_or(Fault::OutOfTable(head.into()))
    }

    #[inline]
    fn chain<'q>(&'q self, map: &'q Map, head: u16, first: Desc, write: bool) -> List<'q> {
        let buffer = self.layout.buffers.get(usize::from(head)).copied().unwrap_or_default();
        let indirect = self.features.has(feature::INDIRECT_DESC);
        List::new(&self.layout.ring, map, (first, buffer.slot, buffer.count), indirect, write)
    }

    #[inline]
    fn stage(&mut self, _: &Map, head: u16, len: u32) {
        let Some(buffer) = self.layout.buffers.get(usize::from(head)) else { return };
        self.layout.staged.push(Used { len, id: buffer.id, count: buffer.count });
    }

    #[inline]
    fn stage_unwritten(&mut self, n: u16) {
        for k in 0..n {
            let at = usize::from(self.done.wrapping_add(k) & (HEADS - 1));
            if let Some(buffer) = self.layout.buffers.get(at) {
                self.layout.staged.push(Used { len: 0, id: buffer.id, count: buffer.count });
            }
        }
    }

    #[inline]
    fn expose(&mut self, map: &Map) -> Option<bool> {
        if self.layout.staged.is_empty() {
            return None;
        }
        let (from, before) = (self.layout.behind, self.layout.taken);
        let staged = std::mem::take(&mut self.layout.staged);
        for used in &staged {
            self.write_used(*used);
        }
        let n = staged.len();
        self.layout.staged = staged;
        self.layout.staged.clear();
        self.done = self.done.wrapping_add(crate::bits::small(n));
        let count = before - self.layout.taken;
        point();
        self.log_descriptors(map, from, count);
        let (size, to) = (self.rings.size, self.layout.behind);
        match packed::publish(self, to.event(), count, size) {
            Ok(wanted) => Some(wanted),
            Err(off) => {
                self.layout.broken = Some(Fault::EventOffset(off));
                Some(true)
            }
        }
    }

    fn state_wish(&mut self, seen: u16) -> bool {
        let at = self.layout.ahead.event();
        packed::arm(self, at, self.event_idx()) || self.fetched != seen
    }

    fn quiet(&self) {
        self.set_device_event(Event { at: 0, flags: DISABLE });
    }

    fn seen(&self) -> u16 {
        self.fetched
    }

    fn is_begun(&self) -> bool {
        self.layout.begun || self.layout.behind != Place::START
    }

    /// Both halves are the same: nothing is used out of order.
    fn base(&self) -> u32 {
        let at = u32::from(self.layout.behind.event());
        at | at << 16
    }

    fn note_lines(&self, lines: &mut Noting<'_>) {
        lines.ring(&self.layout.ring, off(self.layout.behind.slot));
        lines.ring(&self.layout.driver, 0);
    }

    /// As [`Inflight`] says: `used_idx` and `old_used_idx`, then the two wrap counters, of a byte
    /// each.
    fn note(&self, inflight: &Inflight) {
        let Place { slot, wrap } = self.layout.behind;
        let (slot, wrap) = (u64::from(slot), u64::from(wrap));
        let word = slot | slot << 16 | wrap << 32 | wrap << 40;
        point();
        inflight.window.set_u64(inflight.offset, word, Release);
    }

    fn mark_published(&self, map: &Map) {
        self.log_descriptors(map, Place::START, self.rings.size);
    }
}
