//! A ring whose descriptors say by a generation bit whose they are, and the ring of completions
//! that belongs to it. Where they are was said when the device was activated.
//!
//! ```text
//!     head: first not completed         tail: first that is not known to be ours
//!       │  ours                          │  read one by one, at each look, as far as it is ours
//!    ───┴────────────────────────────────┴──────────────────────────► round again, the bit flipped
//! ```
//!
//! - A transmit ring is looked at frame by frame: its tail stands behind a descriptor with EOP.
//!   Drivers publish the first descriptor of a frame last, so none is read before those in front of
//!   it are seen to be ours. iPXE writes the generation before EOP: a frame without an end is not
//!   there yet, and read again from its beginning at the next look.
//! - A frame that never ends is passed on once it is longer than any may be, to be dropped.
//! - One descriptor always stays out of reach, so that head equal to tail means an empty ring.
//!   Drivers leave one, too.
//! - Descriptors are never written. A completion's second quadword, with the generation, is written
//!   after everything else.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::{Map, Window};

use super::Vmxnet3;
use super::desc::{done, rx, tx};
use super::shared::{MOST, Place, QUEUE, Queue, STATUS};
use crate::chip::Fault;
use crate::chip::csb::{Csb, CsbSide, Direction};
use crate::chip::state::{Fields, Stateful};
use crate::notify::Guard;
use crate::notify::deferred::DeferredFields;
use crate::ring::{DescriptorRing, Descriptors, Look, MAX_PIECES, SIZE, distance, halves};

const AHEAD: u32 = 256; // Descriptors that one look reads, at most.

/// txThreshold and updateRxProd while no doorbell is wanted, and while one is.
const UNWANTED: [u32; 2] = [u32::MAX, 0];
const WANTED: u32 = 1;
const THRESHOLD: usize = 0x04; // txThreshold.
const UPDATE: usize = 0x00; // updateRxProd, the one byte of its word that is used.

/// A place in a ring, and the generation bit of this lap.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    at: u32,
    generation: bool,
}

impl Cursor {
    const START: Self = Self { at: 0, generation: true };

    #[inline]
    fn next(self, size: u32) -> Self {
        match self.at + 1 {
            at if at < size => Self { at, ..self },
            _ => Self { at: 0, generation: !self.generation },
        }
    }
}

impl Cursor {
    /// Passes a place in a ring of `size`.
    fn fields(&mut self, size: u32, io: &mut Fields<'_>) {
        let Self { at, generation } = self;
        io.below(at, size.max(1));
        io.flag(generation);
    }
}

/// The words of a queue's descriptor that the device writes while frames move.
pub struct QueueWords {
    window: Window,
    direction: Direction,
}

impl Guard for QueueWords {}

impl DeferredFields for QueueWords {
    fn set_wanted(&self, wanted: bool) {
        let (at, unwanted) = match self.direction {
            Direction::Transmit => (THRESHOLD, UNWANTED[0]),
            Direction::Receive => (UPDATE, UNWANTED[1]),
        };
        self.window.set_u32(at, if wanted { WANTED } else { unwanted }, Ordering::Relaxed);
    }
}

impl QueueWords {
    /// `stopped` and `error` become 0.
    fn clear_status(&self) {
        self.window.set_u32(STATUS, 0, Ordering::Relaxed);
        self.window.set_u32(STATUS + 4, 0, Ordering::Relaxed);
    }
}

/// What is said about a queue's completions: how many the ring of them holds, and what they call
/// its rings.
fn said(queue: Option<&Queue>) -> (u32, [u64; 2]) {
    let Some(queue) = queue else { return (1, [0; 2]) };
    (queue.completions.size, queue.names.map(|name| u64::from(name) << done::QUEUE_SHIFT))
}

/// The rings of a queue.
pub struct Ring {
    direction: Direction,
    queue: Option<Queue>,
    number: usize,
    main: Descriptors,
    second: Descriptors,
    completions: Descriptors,
    completions_size: u32,
    /// What completions call the ring, and the second, where they say it.
    names: [u64; 2],
    words: Option<Arc<QueueWords>>,
    /// All of them are found in the memory as it is.
    found: bool,
    head: Cursor,
    tail: Cursor,
    second_at: Cell<Cursor>,
    done_at: Cell<Cursor>,
    /// So many buffers of the second ring were too few for a frame.
    short: Cell<Option<u32>>,
    /// What others know of the ring is void.
    moved: bool,
    /// A doorbell is wanted. Of a receive queue, never.
    pub asked: bool,
    /// Descriptors of transmissions that are completed; the driver may not have been told.
    pub waiting: u32,
    fault: Option<Fault>,
    /// Never placed: there is none.
    csb: CsbSide,
}

impl Ring {
    /// The rings of queue `number`, which are nowhere.
    pub fn new(direction: Direction, number: usize) -> Self {
        Self {
            direction,
            queue: None,
            number,
            main: Descriptors::default(),
            second: Descriptors::default(),
            completions: Descriptors::default(),
            completions_size: 1,
            names: [0; 2],
            words: None,
            found: false,
            head: Cursor::START,
            tail: Cursor::START,
            second_at: Cell::new(Cursor::START),
            done_at: Cell::new(Cursor::START),
            short: Cell::new(None),
            waiting: 0,
            moved: true,
            asked: false,
            fault: None,
            csb: CsbSide::new(direction),
        }
    }

    /// The driver has said where it is.
    pub fn is_placed(&self) -> bool {
        self.queue.is_some()
    }

    /// Its number among the queues of its kind.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The device is activated, with the rings of `queue`; or no longer active. A doorbell is
    /// wanted of a transmit queue: its worker may be asleep.
    pub fn place(&mut self, queue: Option<Queue>) {
        self.queue = queue;
        (self.completions_size, self.names) = said(queue.as_ref());
        (self.head, self.second_at) = (Cursor::START, Cell::new(Cursor::START));
        self.done_at = Cell::new(Cursor::START);
        self.doubt();
        self.lose();
        (self.asked, self.waiting) = (self.direction == Direction::Transmit, 0);
        if self.find()
            && let Some(words) = &self.words
        {
            words.clear_status();
            words.set_wanted(self.asked);
        }
    }

    /// Forgets which descriptors are ours.
    fn doubt(&mut self) {
        (self.tail, self.moved, self.fault) = (self.head, true, None);
        self.short.set(None);
    }

    /// Forgets where in memory all is.
    fn lose(&mut self) {
        (self.found, self.words) = (false, None);
    }

    /// Where a wish is stated. It may be the first to find the ring in a new map: a wish that is
    /// not stated would not be heard.
    pub fn words(&mut self) -> Option<Arc<QueueWords>> {
        let found = self.found || self.find();
        self.words.clone().filter(|_| found)
    }

    /// The bit of its vector.
    pub fn vector(&self) -> u32 {
        self.queue.map_or(0, |queue| queue.vector)
    }

    /// Finds its parts in memory. False: there are none, or they are not there ([`Ring::fault`]).
    #[cold]
    fn find(&mut self) -> bool {
        let Some(queue) = self.queue else { return false };
        let ring = self.name();
        let rings = [
            (&mut self.main, queue.ring),
            (&mut self.completions, queue.completions),
            (&mut self.second, queue.second),
        ];
        for (descriptors, Place { base, size }) in rings {
            let len = 16 * size;
            if size > 0 && !descriptors.find(base, len) {
                self.fault = Some(Fault::BadRing { ring, base, len });
                return false;
            }
        }
        let window = self.map().window(queue.address, QUEUE, 4);
        let direction = self.direction;
        self.words = window.map(|window| Arc::new(QueueWords { window, direction }));
        if self.words.is_none() {
            self.fault = Some(Fault::BadRing { ring, base: queue.address, len: 256 });
        }
        self.found = self.words.is_some();
        self.found
    }

    fn name(&self) -> &'static str {
        match self.direction {
            Direction::Transmit => "transmit",
            Direction::Receive => "receive",
        }
    }

    fn size(&self) -> u32 {
        self.queue.map_or(0, |queue| queue.ring.size)
    }

    /// Descriptors that the tail may still move over.
    #[inline]
    fn free(&self, size: u32) -> u32 {
        size - 1 - distance(self.head.at, self.tail.at, size)
    }

    /// The word at `at`, if that descriptor is ours.
    #[inline]
    fn ours(&self, at: Cursor, bit: u64) -> Option<u64> {
        let word = self.main.second(at.at, Ordering::Acquire);
        ((word & bit != 0) == at.generation).then_some(word)
    }

    /// Moves the tail over descriptors that are ours, as `bit` says, and have all of `others`; up
    /// to `most`. Returns how many there were.
    #[inline]
    fn follow(&mut self, size: u32, most: u32, bit: u64, others: u64) -> u32 {
        let mut left = most;
        while left > 0 {
            let Cursor { at, generation } = self.tail;
            let wanted = others | if generation { bit } else { 0 };
            let n = left.min(size - at);
            let ours = |word| word & (others | bit) == wanted;
            let found = self.main.leading_second(at, n, ours);
            self.tail = match at + found {
                at if at < size => Cursor { at, generation },
                _ => Cursor { at: 0, generation: !generation },
            };
            left -= found;
            if found < n {
                break;
            }
        }
        most - left
    }

    /// Moves the tail over buffers that are ours.
    #[inline]
    fn follow_buffers(&mut self, size: u32) {
        self.follow(size, self.free(size).min(AHEAD), rx::GENERATION, 0);
    }

    /// Moves the tail over frames that are ours, each of them whole; most are of one descriptor.
    #[inline]
    fn follow_frames(&mut self, size: u32) {
        let most = self.free(size).min(AHEAD);
        let plain = self.follow(size, most, tx::GENERATION, tx::EOP);
        if plain < most && self.ours(self.tail, tx::GENERATION).is_some() {
            self.follow_parts(size);
        }
    }

    #[inline(never)]
    fn follow_parts(&mut self, size: u32) {
        let (mut at, mut open) = (self.tail, 0usize);
        let most = self.free(size);
        for n in 1..=most.min(AHEAD) {
            let Some(word) = self.ours(at, tx::GENERATION) else { return };
            at = at.next(size);
            open += 1;
            // Of one that has no end, what there is.
            let endless = open > MAX_PIECES || n == most && n + 1 == size;
            if word & tx::EOP != 0 || endless {
                (self.tail, open) = (at, 0);
            }
        }
    }

    /// Reports a completion: its two quadwords, the second without generation.
    #[inline]
    pub fn complete(&self, first: u64, second: u64) {
        let at = self.done_at.get();
        let generation = if at.generation { done::GENERATION } else { 0 };
        self.completions.set(at.at, (first, second | generation));
        self.done_at.set(at.next(self.completions_size));
    }

    /// All before `head` is completed.
    #[inline]
    pub fn publish(&mut self, head: u32) {
        // A lap ends where the index goes back.
        let generation = self.head.generation ^ (head < self.head.at);
        self.head = Cursor { at: head, generation };
    }

    /// What completions call the ring, and the second, where they say it.
    #[inline]
    pub fn names(&self) -> [u64; 2] {
        self.names
    }

    /// The second quadword of a descriptor of the main ring.
    #[inline]
    pub fn word(&self, index: u32) -> u64 {
        self.main.second(index, Ordering::Relaxed)
    }

    /// The buffer `n` places behind those that are used up in the second ring: its index, if it is
    /// ours.
    pub fn second_after(&self, n: u32) -> Option<u32> {
        let size = self.queue.map_or(0, |queue| queue.second.size);
        if n + 1 >= size {
            return None;
        }
        let mut at = self.second_at.get();
        for _ in 0..n {
            at = at.next(size);
        }
        let word = self.second.second(at.at, Ordering::Acquire);
        let ours = (word & rx::GENERATION != 0) == at.generation;
        self.short.set((!ours).then_some(n));
        ours.then_some(at.at)
    }

    /// Bytes of the next head, and of the next body of the second ring; 0: there is none.
    pub fn lengths(&self) -> (usize, usize) {
        let len =
            |word: u64, bit| if word & rx::BODY == bit { (word & rx::LEN) as usize } else { 0 };
        let second = self.queue.is_some_and(|queue| queue.second.size > 0);
        let body = self.second.second(self.second_at.get().at, Ordering::Relaxed);
        (len(self.word(self.head.at), 0), if second { len(body, rx::BODY) } else { 0 })
    }

    /// The next buffer of the second ring is used up.
    pub fn pass_second(&self) {
        let size = self.queue.map_or(0, |queue| queue.second.size);
        self.second_at.set(self.second_at.get().next(size));
    }

    /// The descriptor at `index` of the second ring.
    pub fn read_second(&self, index: u32) -> (u64, u64) {
        self.second.read(index)
    }
}

impl DescriptorRing for Ring {
    type Chip = Vmxnet3;

    #[inline]
    fn map(&self) -> &Arc<Map> {
        self.main.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.lose();
        self.doubt();
        drop(self.second.set_map(Arc::clone(&map)));
        drop(self.completions.set_map(Arc::clone(&map)));
        self.main.set_map(map)
    }

    fn has_more(&self) -> bool {
        self.short.get().is_some_and(|n| self.second_after(n).is_some())
    }

    fn csb(&mut self) -> &mut CsbSide {
        &mut self.csb
    }

    #[inline]
    fn look(&mut self, _: &Vmxnet3) -> Result<Look, Fault> {
        let size = self.size();
        if size > 0 && !self.found && !self.find() {
            return self.fault.map_or(Ok(Look { size: 0, head: 0, tail: 0, moved: true }), Err);
        }
        if size > 0 {
            match self.direction {
                Direction::Transmit => self.follow_frames(size),
                Direction::Receive => self.follow_buffers(size),
            }
        }
        let moved = std::mem::take(&mut self.moved);
        Ok(Look { size, head: self.head.at, tail: self.tail.at, moved })
    }

    fn fault(&self) -> Option<Fault> {
        self.fault.or(self.map().poisoned().then_some(Fault::Truncated))
    }

    fn forget(&mut self, _: &Vmxnet3) {
        self.doubt();
    }

    fn publish_again(&self, _: &Vmxnet3) {}

    fn replace_csb(&mut self, _: &Vmxnet3, _: Option<Arc<Csb>>, _: bool) {}

    #[rustfmt::skip]
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self {
            direction: _, queue, number: _, main: _, second: _, completions: _, completions_size,
            names, words: _, found, head, tail, second_at, done_at, short, moved, asked,
            waiting: _, fault: _, csb: _,
        } = self;
        io.option(queue, |io, queue| queue.fields(io));
        let Queue { ring, second, .. } = queue.unwrap_or_default();
        (*completions_size, *names) = said(queue.as_ref());
        [head, tail].into_iter().for_each(|at| at.fields(ring.size, io));
        second_at.get_mut().fields(second.size, io);
        done_at.get_mut().fields(*completions_size, io);
        io.option(short.get_mut(), |io, n| io.below(n, MOST));
        [moved, asked, &mut *found].into_iter().for_each(|flag| io.flag(flag));
        if io.restores() {
            let found = *found;
            self.lose();
            self.fault = None;
            if found && !self.find() {
                self.doubt();
            }
        }
    }

    fn extent(&self) -> Option<(u32, u32)> {
        self.queue.map(|queue| (self.head.at, queue.ring.size))
    }

    #[inline]
    fn read(&self, index: u32) -> (u64, u64) {
        self.main.read(index)
    }

    #[inline]
    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        self.main.copy(index, out);
    }

    #[inline]
    fn split(desc: &[u8; SIZE]) -> (u64, u64) {
        halves(desc)
    }
}
