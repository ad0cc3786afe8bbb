//! The interrupt block: vectors, each with a mask bit (IMR), instead of a register of causes.
//!
//! A vector is *fresh* when something has happened since its last message. A fresh vector that is
//! not masked sends, and is no longer fresh; with autoMask it then masks itself, until the driver
//! writes its IMR. A vector that became fresh while it was masked sends when it is unmasked:
//! drivers do not look at their rings again after unmasking, so that duty is the device's.
//!
//! The masks may be memory that the guest has mapped ([`Masks::Shared`]). Then nobody is told when
//! it unmasks a vector, so whoever works for the port looks ([`Vectors::look`]) for as long as a
//! fresh one was seen masked, and so does the timer, ever more rarely, where nobody works. No fence
//! is needed: each look comes later than the one that saw the mask.
//!
//! With MSI there is one message for whatever is fresh. With the pin, INTA# is asserted while
//! anything fresh is unmasked, until ICR is read.
//!
//! Moderation is a hold-off, as everywhere here ([`crate::notify::moderate`]): for each vector the
//! window of its level, or the host's floor if that is longer. Whatever is held back has the timer
//! set. The timer also serves the third look of the transmit side (`notify/deferred.rs`): a NIC has
//! only one.
//!
//! Level 8 leaves the choice to the device, and nearly all drivers ask for it. Then receptions are
//! told at once, for drivers mask a vector until they have emptied its rings. Completed
//! transmissions wait for [`TOGETHER`]: they are worth no interrupt of their own, as all that the
//! driver does then is to free buffers. A reception of the same vector takes them along, and so do
//! so many completions that the ring could run full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmlan_frame::Counter;
use vmlan_ram::Window;

use crate::bits::low32;
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Delays, Edge, Host, Interrupts, Way};
use crate::notify::moderate::{self, Alarm, Floor};

/// Vectors of the device: 8 for transmit queues, 16 for receive queues, one for events.
pub const VECTORS: usize = 25;
const ALL: u32 = (1 << VECTORS) - 1;

/// Windows of the moderation levels 0 to 7, in ns, and of level 8.
const LEVELS: [u64; 9] = [0, 8_000, 16_000, 32_000, 64_000, 125_000, 250_000, 500_000, ADAPTIVE];
/// Stands for the window of level 8, which holds nothing back by itself.
const ADAPTIVE: u64 = 1;
/// How long completed transmissions wait at level 8, in ns: 4,000 interrupts a second, to which
/// Linux' drivers set the chips of Intel for much traffic.
pub const TOGETHER: u64 = 250_000;
/// The longest window that a driver may ask for.
pub const LONGEST: u64 = 10_000_000;

/// From a look that found a fresh vector masked to the timer's next, in ns: at first, and at most.
const PATIENCE: [u64; 2] = [1_000_000, 16_000_000];
/// From one IMR to the next.
const STRIDE: usize = 8;

/// IMR of each vector.
#[derive(Debug)]
pub enum Masks {
    /// As bits.
    Own(u32),
    /// As registers in memory that the guest stores to.
    Shared(Window),
}

impl Masks {
    /// In `page`, if there is one.
    pub fn new(page: Option<Window>) -> Self {
        page.map_or(Self::Own(ALL), Self::Shared)
    }

    /// Those of `vectors` that are masked.
    fn of(&self, vectors: u32) -> u32 {
        match self {
            Self::Own(bits) => bits & vectors,
            Self::Shared(page) => ones(vectors).fold(0, |all, n| {
                all | (page.u32(n as usize * STRIDE, Ordering::Acquire) & 1) << n
            }),
        }
    }

    fn set(&mut self, vectors: u32, masked: bool) {
        match self {
            Self::Own(bits) if masked => *bits |= vectors,
            Self::Own(bits) => *bits &= !vectors,
            Self::Shared(page) => ones(vectors).for_each(|n| {
                page.set_u32(n as usize * STRIDE, masked.into(), Ordering::Release);
            }),
        }
    }

    fn are_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Passes them. Shared ones are stored only if they are to become others: the guest may be
    /// storing to them.
    fn fields(&mut self, io: &mut Fields<'_>) {
        let mut bits = self.of(ALL);
        let before = bits;
        io.below(&mut bits, ALL + 1);
        if bits != before {
            self.set(bits, true);
            self.set(ALL & !bits, false);
        }
    }
}

/// That of `vector`, if there is such a vector.
fn bit(vector: u32) -> u32 {
    ALL & 1u32.checked_shl(vector).unwrap_or(0)
}

/// The bits that are set, by their numbers.
fn ones(bits: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).filter(move |n| bits >> n & 1 != 0)
}

#[derive(Debug)]
struct State {
    masks: Masks,
    /// Something has happened since their last message.
    fresh: u32,
    /// Those that exist: the driver says how many there are.
    valid: u32,
    auto_mask: bool,
    way: Way,
    /// INTA# is asserted.
    level: bool,
    /// A repeat of it is due when the timer fires.
    repeat: bool,
    windows: [moderate::Window; VECTORS],
    lengths: [u64; VECTORS],
    /// Those whose message is held back.
    holding: u32,
    /// Fresh by completed transmissions only, and at level 8: they wait until `together`.
    completed: u32,
    together: u64,
    alarm: Alarm,
    /// When the transmit side wants to look again.
    look: Option<u64>,
    /// From here to the timer's next look at masks.
    patience: u64,
}

impl State {
    fn new(way: Way, masks: Masks) -> Self {
        Self {
            masks,
            fresh: 0,
            valid: 0,
            auto_mask: false,
            way,
            level: false,
            repeat: false,
            windows: Default::default(),
            lengths: [0; VECTORS],
            holding: 0,
            completed: 0,
            together: 0,
            alarm: Alarm::default(),
            look: None,
            patience: PATIENCE[0],
        }
    }

    /// What is to be delivered, now or later.
    fn ready(&self) -> u32 {
        let fresh = self.fresh & self.valid;
        fresh & !self.masks.of(fresh)
    }

    /// As after reset. Windows stay.
    fn reset(&mut self) {
        let masks = std::mem::replace(&mut self.masks, Masks::Own(ALL));
        let windows = std::mem::take(&mut self.windows);
        *self = Self { windows, ..Self::new(self.way, masks) };
        self.masks.set(ALL, true);
    }

    fn wake_at(&mut self, at: u64, host: &dyn Host) {
        if self.alarm.wants(at) {
            host.set_timer(at);
        }
    }

    /// Those of `ready` that may be delivered now, as bits; their windows open. For the others the
    /// timer is set.
    fn due(&mut self, ready: u32, floor: u64, host: &dyn Host) -> u32 {
        let windows = self.lengths.iter().any(|length| *length > ADAPTIVE);
        let limited = floor > 0 || windows || self.completed & ready != 0;
        if !limited {
            return ready;
        }
        let now = host.now();
        let (mut due, mut first) = (0, u64::MAX);
        for (n, (window, length)) in self.windows.iter_mut().zip(&self.lengths).enumerate() {
            if ready >> n & 1 == 0 {
                continue;
            }
            let together = if self.completed >> n & 1 == 0 { 0 } else { self.together };
            let length = if *length == ADAPTIVE { 0 } else { *length };
            let end = window.end(length.max(floor), now).max(together);
            if end > now {
                first = first.min(end);
            } else {
                window.open(now);
                due |= 1 << n;
            }
        }
        if due != ready {
            self.wake_at(first, host);
        }
        due
    }

    /// Transmissions of these vectors are completed.
    fn complete(&mut self, vectors: u32, host: &dyn Host) {
        let lengths = self.lengths.iter().enumerate();
        let adaptive = lengths.fold(0, |all, (n, l)| all | u32::from(*l == ADAPTIVE) << n);
        let wait = vectors & !self.fresh & adaptive;
        if self.completed == 0 && wait != 0 {
            self.together = host.now().saturating_add(TOGETHER);
        }
        self.completed |= wait;
    }

    fn fall(&mut self) -> Edge {
        self.repeat = false;
        if std::mem::take(&mut self.level) { Edge::Fall } else { Edge::None }
    }
}

/// The vectors of one device.
pub struct Vectors {
    state: Mutex<State>,
    /// A fresh vector was masked by shared memory when it was last looked at.
    stuck: AtomicBool,
    floor: Floor,
    raised: Counter,
    held: Counter,
    delivered: Counter,
}

impl Vectors {
    /// None fresh. At most `rate_max` messages per second of each (0: no floor).
    pub fn new(rate_max: u32, masks: Masks) -> Self {
        let state = Mutex::new(State::new(Way::Pin, masks));
        let (stuck, raised, held, delivered) = Default::default();
        Self { state, stuck, floor: Floor::new(rate_max), raised, held, delivered }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As after reset. The host's floor holds for a guest that resets its device for each
    /// interrupt, too.
    pub fn reset(&self) -> Edge {
        let mut s = self.state();
        let edge = s.fall();
        s.reset();
        edge
    }

    /// ACTIVATE: the driver has `count` vectors, which mask themselves or not. Masks stay.
    pub fn set_up(&self, count: u8, auto_mask: bool) -> Edge {
        let mut s = self.state();
        s.valid = ALL & low32((1 << count.min(31)) - 1);
        (s.auto_mask, s.fresh, s.holding, s.completed) = (auto_mask, 0, 0, 0);
        s.fall()
    }

    /// Moderation levels, one for each vector.
    pub fn set_levels(&self, levels: &[u8], host: &dyn Host) -> Edge {
        let mut s = self.state();
        for (length, level) in s.lengths.iter_mut().zip(levels) {
            *length = LEVELS.get(usize::from(*level)).copied().unwrap_or(0);
        }
        self.settle(&mut s, host)
    }

    /// So many ns between the messages of each vector.
    pub fn set_windows(&self, ns: u64, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.lengths = [ns; VECTORS];
        self.settle(&mut s, host)
    }

    /// IMR of a vector.
    pub fn masked(&self, vector: u32) -> bool {
        self.state().masks.of(bit(vector)) != 0
    }

    /// IMR of a vector is written.
    pub fn set_mask(&self, vector: u32, masked: bool, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.masks.set(bit(vector), masked);
        self.settle(&mut s, host)
    }

    /// ICR is read: true if INTA# was asserted, which it no longer is.
    pub fn take(&self) -> (bool, Edge) {
        let mut s = self.state();
        let was = s.level;
        if was {
            s.fresh = s.masks.of(s.fresh);
            // Those that come from now on wait as long as any.
            s.completed &= s.fresh;
            if s.auto_mask {
                s.masks.set(1, true);
            }
        }
        (was, s.fall())
    }

    /// The transmit side wants a look at `at`: [`Vectors::take_look`].
    pub fn look_at(&self, at: u64, host: &dyn Host) {
        let mut s = self.state();
        s.look = Some(at);
        s.wake_at(at, host);
    }

    /// The look of the transmit side is due.
    pub fn take_look(&self, now: u64) -> bool {
        self.state().look.take_if(|at| *at <= now).is_some()
    }

    fn settle(&self, s: &mut State, host: &dyn Host) -> Edge {
        let ready = s.ready();
        let stuck = s.masks.are_shared() && s.fresh & s.valid & !ready != 0;
        self.stuck.store(stuck, Ordering::Relaxed);
        if stuck {
            s.wake_at(host.now().saturating_add(s.patience), host);
        } else {
            s.patience = PATIENCE[0];
        }
        s.holding &= ready;
        s.completed &= s.fresh;
        if s.way == Way::Pin && (ready == 0 || s.level) {
            return if ready == 0 { s.fall() } else { Edge::None };
        }
        if ready == 0 {
            return Edge::None;
        }
        self.raised.add((ready & !s.holding).count_ones().into());
        let due = s.due(ready, self.floor.ns(), host);
        self.held.add((ready & !due & !s.holding).count_ones().into());
        self.delivered.add(due.count_ones().into());
        s.holding = ready & !due;
        if due == 0 {
            return Edge::None;
        }
        if s.way == Way::Pin {
            s.level = true;
            return Edge::Rise;
        }
        s.fresh &= !due;
        s.completed &= !due;
        if s.auto_mask {
            s.masks.set(due, true);
        }
        if s.way == Way::Message { Edge::Rise } else { Edge::Messages(due) }
    }
}

impl Interrupts for Vectors {
    /// `causes`: vectors, as bits.
    fn post(&self, causes: u32, _: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.completed &= !causes;
        s.fresh |= causes & s.valid;
        self.settle(&mut s, host)
    }

    fn post_transmit(&self, causes: u32, delayed: bool, delays: Delays, host: &dyn Host) -> Edge {
        if !delayed {
            return self.post(causes, delays, host);
        }
        let mut s = self.state();
        let causes = causes & s.valid;
        s.complete(causes, host);
        s.fresh |= causes;
        self.settle(&mut s, host)
    }

    fn remoderate(&self, _: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        self.settle(&mut s, host)
    }

    fn timer(&self, _: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.alarm.clear();
        s.patience = (s.patience * 2).min(PATIENCE[1]);
        if let Some(at) = s.look {
            s.wake_at(at, host);
        }
        if s.repeat && s.level {
            return if self.repeat_now(&mut s, host) { Edge::Rise } else { Edge::None };
        }
        self.settle(&mut s, host)
    }

    #[inline]
    fn look(&self, host: &dyn Host) -> Edge {
        if !self.stuck.load(Ordering::Relaxed) {
            return Edge::None;
        }
        let mut s = self.state();
        self.settle(&mut s, host)
    }

    fn repeat(&self, host: &dyn Host) -> bool {
        let mut s = self.state();
        s.level && self.repeat_now(&mut s, host)
    }

    fn level(&self) -> bool {
        self.state().level
    }

    fn counts(&self) -> (u64, u64, u64) {
        (self.raised.get(), self.held.get(), self.delivered.get())
    }

    fn set_rate_max(&self, rate_max: u32) {
        self.floor.set(rate_max);
    }

    fn fields(&self, io: &mut Fields<'_>) {
        let Self { state: _, stuck, floor: _, raised, held, delivered } = self;
        let s = &mut *self.state();
        #[rustfmt::skip]
        let State {
            masks, fresh, valid, auto_mask, way, level, repeat, windows, lengths, holding, alarm,
            look, completed: _, together: _, patience: _,
        } = s;
        masks.fields(io);
        for word in [fresh, valid, holding] {
            io.below(word, ALL + 1);
        }
        [&mut *auto_mask, level, repeat].into_iter().for_each(|flag| io.flag(flag));
        let pin = *way == Way::Pin;
        windows.fields(io);
        lengths.fields(io);
        io.check(lengths.iter().all(|length| *length <= LONGEST));
        alarm.fields(io);
        io.option(look, Fields::u64);
        // A store to a shared mask takes effect at the next look.
        let shared = s.masks.are_shared();
        stuck.store(shared, Ordering::Relaxed);
        io.check(!s.level || pin && (shared || s.ready() != 0));
        [raised, held, delivered].into_iter().for_each(|count| io.counter(count));
    }

    fn resume(&self, host: &dyn Host) {
        let mut s = self.state();
        let waits = s.ready() != 0 && !s.level || s.repeat || s.look.is_some();
        if let Some(at) = s.alarm.resume(waits, || host.now()) {
            host.set_timer(at);
        }
    }

    fn set_way(&self, way: Way) {
        let mut s = self.state();
        if s.way != way {
            (s.way, s.level, s.repeat) = (way, false, false);
        }
    }

    #[cfg(any(test, feature = "fuzz"))]
    fn pending(&self) -> bool {
        self.state().ready() != 0
    }
}

impl Vectors {
    /// INTA# still stands: true if it may be delivered again now, else the timer is set.
    fn repeat_now(&self, s: &mut State, host: &dyn Host) -> bool {
        let due = s.due(1, self.floor.ns(), host) != 0;
        let counted = std::mem::replace(&mut s.repeat, !due);
        self.raised.add(u64::from(!counted));
        self.held.add(u64::from(!counted && !due));
        self.delivered.add(u64::from(due));
        due
    }
}
