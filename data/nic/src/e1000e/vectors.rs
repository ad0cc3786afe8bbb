//! The interrupt block: that of the 82540EM ([`Irq`]) for the pin and MSI, and for MSI-X one with
//! the same registers, whose causes are routed to vectors.
//!
//! With MSI-X a cause that is enabled, and that IVAR gives a vector, sends that vector's message
//! once: until it is cleared, or masked and enabled again, it sends no other. When the message goes
//! out, causes in EIAC are cleared, and with CTRL_EXT.EIAME those in IAM are masked. So drivers
//! whose queues have vectors of their own never read ICR.
//!
//! Moderation is a hold-off, as everywhere here ([`crate::notify::moderate`]): each vector has a
//! window, as long as the longest of its EITR, the host's floor and, for queues, the chip's delay
//! timers. Whatever is held back has the timer set.
//!
//! The data path posts the causes of queues (TXQ0 and so on). Without MSI-X they are TXDW and RXT0.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vmlan_frame::Counter;

use self::cause::*;
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Delays, Edge, Host, Interrupts, Irq, Way};
use crate::intel::cause::{KINDS, LSC, MDAC, RXO, RXT0, TXDW};
use crate::intel::model::Block;
use crate::notify::moderate::{Alarm, Floor, Window};

/// Vectors of MSI-X.
pub const VECTORS: usize = 5;

/// Causes that the 82540EM does not have.
pub mod cause {
    pub const RXQ0: u32 = 1 << 20; // Receive queue 0 has written back.
    pub const RXQ1: u32 = 1 << 21;
    pub const TXQ0: u32 = 1 << 22; // Transmit queue 0 has written back.
    pub const TXQ1: u32 = 1 << 23;
    pub const OTHER: u32 = 1 << 24; // With MSI-X: one of those that are not about queues.
    pub const ASSERTED: u32 = 1 << 31; // An interrupt is asserted.
}

const RECEIVE: u32 = RXQ0 | RXQ1;
const TRANSMIT: u32 = TXQ0 | TXQ1;
/// Causes with vectors, in the order of IVAR.
const ROUTED: [u32; 5] = [RXQ0, RXQ1, TXQ0, TXQ1, OTHER];
/// Those that OTHER stands for: LSC, RXO, MDAC, SRPD, ACK and MNG.
const OTHERS: u32 = LSC | RXO | MDAC | 1 << 16 | 1 << 17 | 1 << 18;
const ALL: u32 = 0x01ff_ffff; // Causes that can be latched with MSI-X.

/// What the registers say about vectors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Routing {
    pub ivar: u32,
    pub eiac: u32,
    pub iam: u32,
    /// EITR, in ns.
    pub lengths: [u64; VECTORS],
    /// CTRL_EXT.EIAME.
    pub by_message: bool,
    /// CTRL_EXT.IAME.
    pub by_read: bool,
}

impl Routing {
    /// The vector of the `nth` of the routed causes.
    fn vector(&self, nth: usize) -> Option<usize> {
        let entry = self.ivar >> (4 * nth) & 15;
        let vector = (entry & 7) as usize;
        (entry & 8 != 0 && vector < VECTORS).then_some(vector)
    }
}

#[derive(Debug, Default)]
struct State {
    /// MSI-X is on: what follows counts. Otherwise [`Vectored::pin`] does.
    on: bool,
    routing: Routing,
    causes: u32,
    mask: u32,
    /// Causes whose message was sent since they were latched and enabled.
    sent: u32,
    /// Those whose delay timers do not count.
    prompt: u32,
    /// Those whose message is held back.
    holding: u32,
    windows: [Window; VECTORS],
    alarm: Alarm,
}

/// The interrupt block of an 82574L.
pub struct Vectored {
    pin: Irq,
    /// Locked before `pin`'s own.
    state: Mutex<State>,
    floor: Floor,
    raised: Counter,
    held: Counter,
    delivered: Counter,
}

/// Causes of queues as they are without MSI-X.
fn plain(causes: u32) -> u32 {
    let received = if causes & RECEIVE != 0 { RXT0 } else { 0 };
    let sent = if causes & TRANSMIT != 0 { TXDW } else { 0 };
    causes & KINDS.all | received | sent
}

/// Writing OTHER clears what it stands for, too.
fn cleared(bits: u32) -> u32 {
    if bits & OTHER != 0 { bits | OTHERS } else { bits }
}

impl Vectored {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// EIAC, IAM, IVAR, EITR or CTRL_EXT was written. What is pending is looked at later.
    pub fn route(&self, routing: Routing) {
        self.state().routing = routing;
    }

    /// Causes are latched, of which `prompt` wait for no delay timer.
    fn latch(&self, s: &mut State, causes: u32, prompt: u32, now: (Delays, &dyn Host)) -> Edge {
        let other = if causes & OTHERS != 0 { OTHER } else { 0 };
        s.causes |= (causes | other) & ALL;
        s.prompt |= prompt & causes;
        self.settle(s, now)
    }

    /// Sends what is due, and sets the timer for what is held back.
    fn settle(&self, s: &mut State, (delays, host): (Delays, &dyn Host)) -> Edge {
        let pending = s.causes & s.mask;
        s.sent &= pending;
        s.holding &= pending;
        s.prompt &= s.causes;
        let mut ready = [0; VECTORS];
        for (nth, cause) in ROUTED.iter().enumerate() {
            if pending & !s.sent & cause != 0
                && let Some(vector) = s.routing.vector(nth).and_then(|v| ready.get_mut(v))
            {
                *vector |= cause;
            }
        }
        if ready == [0; VECTORS] {
            return Edge::None;
        }
        let floor = self.floor.ns();
        let free = floor == 0 && delays.transmit | delays.receive == 0;
        let now = if free && s.routing.lengths == [0; VECTORS] { None } else { Some(host.now()) };
        let (mut messages, mut first) = (0, u64::MAX);
        for (vector, causes) in ready.iter().enumerate().filter(|(_, causes)| **causes != 0) {
            self.raised.add((causes & !s.holding).count_ones().into());
            let end = now.map_or(0, |now| s.end(vector, *causes, (delays, floor), now));
            if now.is_some_and(|now| end > now) {
                self.held.add((causes & !s.holding).count_ones().into());
                s.holding |= causes;
                first = first.min(end);
                continue;
            }
            self.delivered.add(causes.count_ones().into());
            s.send(vector, *causes, now);
            messages |= 1 << vector;
        }
        if first < u64::MAX && s.alarm.wants(first) {
            host.set_timer(first);
        }
        if messages == 0 { Edge::None } else { Edge::Messages(messages) }
    }
}

impl State {
    /// A message is to be sent, and held back.
    fn is_ready(&self) -> bool {
        let ready = self.causes & self.mask & !self.sent;
        let routed = |nth| self.routing.vector(nth).is_some();
        ROUTED.iter().enumerate().any(|(nth, cause)| ready & cause != 0 && routed(nth))
    }

    /// When the first of a vector's `causes` may be delivered.
    fn end(&self, vector: usize, causes: u32, (delays, floor): (Delays, u64), now: u64) -> u64 {
        let delay = |cause: u32| match () {
            () if cause & self.prompt != 0 => 0,
            () if cause & RECEIVE != 0 => delays.receive,
            () if cause & TRANSMIT != 0 => delays.transmit,
            () => 0,
        };
        // The one that waits least takes the others along.
        let kinds = ROUTED.iter().filter(|cause| causes & **cause != 0);
        let shortest = kinds.map(|cause| delay(*cause)).min().unwrap_or(0);
        let length = self.routing.lengths.get(vector).copied().unwrap_or(0);
        let length = length.max(floor).max(shortest);
        self.windows.get(vector).map_or(0, |window| window.end(length, now))
    }

    /// The message of `vector` goes out, for these causes.
    fn send(&mut self, vector: usize, causes: u32, now: Option<u64>) {
        if let (Some(window), Some(now)) = (self.windows.get_mut(vector), now) {
            window.open(now);
        }
        self.causes &= !(causes & self.routing.eiac);
        if self.routing.by_message {
            self.mask &= !(causes & self.routing.iam);
        }
        self.holding &= !causes;
        self.prompt &= self.causes;
        self.sent = (self.sent | causes) & self.causes & self.mask;
    }
}

impl Block for Vectored {
    fn new(rate_max: u32) -> Self {
        let (raised, held, delivered) = Default::default();
        let (pin, floor) = (Irq::new(&KINDS, rate_max), Floor::new(rate_max));
        Self { pin, state: Mutex::default(), floor, raised, held, delivered }
    }

    /// Clears them all, with MSI-X as well: drivers raise again, by ICS, what a read may have
    /// taken. With CTRL_EXT.IAME a read masks what is in IAM, but only while an interrupt is
    /// asserted: Linux enables nothing after a read that finds no INT_ASSERTED.
    fn take(&self) -> (u32, Edge) {
        let mut s = self.state();
        let mask = if s.on { s.mask } else { self.pin.mask() };
        let (causes, edge) = match s.on {
            true => {
                (s.sent, s.prompt, s.holding) = (0, 0, 0);
                (std::mem::take(&mut s.causes), Edge::None)
            }
            false => self.pin.take(),
        };
        if causes & mask == 0 {
            return (causes, edge);
        }
        if s.routing.by_read {
            let iam = s.routing.iam;
            s.mask &= !iam;
            self.pin.drop_mask(iam);
        }
        (causes | ASSERTED, edge)
    }

    fn causes(&self) -> u32 {
        let s = self.state();
        let (causes, mask) = match s.on {
            true => (s.causes, s.mask),
            false => (self.pin.causes(), self.pin.mask()),
        };
        causes | if causes & mask == 0 { 0 } else { ASSERTED }
    }

    fn ack(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.ack(bits, delays, host);
        }
        s.causes &= !cleared(bits);
        self.settle(&mut s, (delays, host))
    }

    fn mask(&self) -> u32 {
        let s = self.state();
        if s.on { s.mask } else { self.pin.mask() }
    }

    fn set_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.set_mask(bits, delays, host);
        }
        s.mask |= bits & ALL;
        self.settle(&mut s, (delays, host))
    }

    fn clear_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.clear_mask(bits, delays, host);
        }
        s.mask &= !bits;
        self.settle(&mut s, (delays, host))
    }

    fn flush(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.flush(causes, delays, host);
        }
        let queues = if causes & RXT0 != 0 { RECEIVE } else { TRANSMIT };
        s.prompt |= queues & s.causes;
        self.settle(&mut s, (delays, host))
    }

    /// Windows stay: the host's floor holds for a guest that resets its chip for each interrupt,
    /// too.
    fn reset(&self) -> Edge {
        let mut s = self.state();
        *s = State { on: s.on, windows: s.windows, ..State::default() };
        self.pin.reset()
    }
}

impl Interrupts for Vectored {
    fn post(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.post(plain(causes), delays, host);
        }
        self.latch(&mut s, causes, 0, (delays, host))
    }

    fn post_transmit(&self, causes: u32, delayed: bool, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.post_transmit(plain(causes), delayed, delays, host);
        }
        let prompt = if delayed { 0 } else { TRANSMIT };
        self.latch(&mut s, causes, prompt, (delays, host))
    }

    fn remoderate(&self, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if !s.on {
            return self.pin.remoderate(delays, host);
        }
        self.settle(&mut s, (delays, host))
    }

    fn timer(&self, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.alarm.clear();
        if !s.on {
            return self.pin.timer(delays, host);
        }
        self.settle(&mut s, (delays, host))
    }

    fn repeat(&self, host: &dyn Host) -> bool {
        let s = self.state();
        !s.on && self.pin.repeat(host)
    }

    fn level(&self) -> bool {
        let s = self.state();
        !s.on && self.pin.level()
    }

    fn counts(&self) -> (u64, u64, u64) {
        let (raised, held, delivered) = self.pin.counts();
        (raised + self.raised.get(), held + self.held.get(), delivered + self.delivered.get())
    }

    fn set_rate_max(&self, rate_max: u32) {
        self.floor.set(rate_max);
        self.pin.set_rate_max(rate_max);
    }

    /// The routing follows from the registers.
    fn fields(&self, io: &mut Fields<'_>) {
        let Self { pin, state: _, floor: _, raised, held, delivered } = self;
        pin.fields(io);
        let s = &mut *self.state();
        let State { on, routing: _, causes, mask, sent, prompt, holding, windows, alarm } = s;
        io.flag(on);
        for word in [causes, mask, sent, prompt, holding] {
            io.below(word, ALL + 1);
        }
        windows.fields(io);
        alarm.fields(io);
        io.check(s.sent & !(s.causes & s.mask) == 0);
        [raised, held, delivered].into_iter().for_each(|count| io.counter(count));
    }

    fn enabled(&self) -> u32 {
        self.mask()
    }

    fn revive(&self, enabled: u32) {
        let mut s = self.state();
        (s.causes, s.sent, s.prompt, s.holding) = (0, 0, 0, 0);
        s.mask = if s.on { enabled & ALL } else { 0 };
        self.pin.load(0, if s.on { 0 } else { enabled });
    }

    fn resume(&self, host: &dyn Host) {
        let mut s = self.state();
        if !s.on {
            return self.pin.resume(host);
        }
        let waits = s.is_ready();
        if let Some(at) = s.alarm.resume(waits, || host.now()) {
            host.set_timer(at);
        }
    }

    /// Causes and mask are the same registers either way.
    fn set_way(&self, way: Way) {
        let mut s = self.state();
        self.pin.set_way(way);
        let on = way == Way::Vectors;
        if on == s.on {
            return;
        }
        s.on = on;
        // The host's timer may be set for the other one.
        s.alarm.clear();
        if on {
            (s.causes, s.mask) = self.pin.unload();
            (s.sent, s.prompt, s.holding) = (0, 0, 0);
        } else {
            self.pin.load(plain(s.causes), s.mask);
            (s.causes, s.mask) = (0, 0);
        }
    }

    #[cfg(any(test, feature = "fuzz"))]
    fn pending(&self) -> bool {
        let s = self.state();
        if !s.on {
            return self.pin.pending();
        }
        s.is_ready()
    }
}
