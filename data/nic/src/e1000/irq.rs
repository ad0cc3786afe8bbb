//! The interrupt block: ICR, IMS, and moderation (SDM 13.4.17 to 13.4.21, 13.4.30, 13.4.31, 13.4.41, 13.4.43).
//!
//! A cause is always latched in ICR at once. Moderation decides when INTA# may rise. It is a hold-off: the first interrupt
//! after silence is delivered at once, and opens windows in which later ones of its kind are held back:
//!
//! - all kinds but link changes: ITR (256 ns) and the host's own floor, whichever is longer;
//! - transmit completions with IDE set: TIDV or TADV (1.024 us), the shorter that is set;
//! - receptions: RADV or RDTR (1.024 us), the shorter that is set, if RDTR is not 0.
//!
//! The real chip delays the first interrupt instead (TIDV, TADV, RDTR, RADV). Its drivers cannot tell, except that
//! a lone frame is seen sooner.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Host;

/// Causes, as in ICR, ICS, IMS and IMC (SDM 13.4.17).
pub mod cause {
    /// Transmit Descriptor Written Back.
    pub const TXDW: u32 = 1;
    /// Transmit Queue Empty.
    pub const TXQE: u32 = 1 << 1;
    /// Link Status Change.
    pub const LSC: u32 = 1 << 2;
    /// Receive Descriptor Minimum Threshold reached.
    pub const RXDMT0: u32 = 1 << 4;
    /// Receiver Overrun.
    pub const RXO: u32 = 1 << 6;
    /// Receiver Timer Interrupt: a frame has arrived.
    pub const RXT0: u32 = 1 << 7;
    /// Bits that exist in the 82540EM (SDM table 13-61).
    pub const ALL: u32 = 0x0001_82df | 1 << 9;
    /// Moderated by TIDV and TADV.
    pub const TRANSMIT: u32 = TXDW | TXQE;
    /// Moderated by RDTR and RADV.
    pub const RECEIVE: u32 = RXT0 | RXDMT0 | RXO;
    /// Never held back.
    pub const LINK: u32 = LSC;
}

/// Lengths of the windows, in ns, from the registers as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From ITR.
    pub all: u64,
    /// From TIDV and TADV, 0 unless a descriptor asked for it by IDE.
    pub transmit: u64,
    /// From RDTR and RADV.
    pub receive: u64,
}

#[derive(Debug, Default)]
struct State {
    icr: u32,
    ims: u32,
    /// INTA# is asserted (before the interrupt-disable bit of the PCI command register).
    level: bool,
    /// Ends of the windows that the last delivery opened.
    all_until: u64,
    transmit_until: u64,
    receive_until: u64,
    /// The timer is set for this time.
    timer: Option<u64>,
    /// A rise is being held back.
    holding: bool,
    raised: u64,
    held: u64,
    delivered: u64,
}

/// ICR, IMS and the level of INTA#.
pub struct Irq {
    state: Mutex<State>,
    /// The host's floor between two interrupts, in ns.
    floor: u64,
}

/// What the caller must tell the host, once it holds no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Edge {
    /// Nothing.
    None,
    /// [`Host::raise`].
    Rise,
    /// [`Host::lower`].
    Fall,
}

impl Edge {
    /// Tells the host.
    #[inline]
    pub fn tell(self, host: &dyn Host) {
        match self {
            Self::None => {}
            Self::Rise => host.raise(),
            Self::Fall => host.lower(),
        }
    }
}

impl Irq {
    /// No causes, all masked. At most `rate_max` interrupts per second (0: no floor).
    pub fn new(rate_max: u32) -> Self {
        let floor = if rate_max == 0 { 0 } else { 1_000_000_000 / u64::from(rate_max) };
        Self { state: Mutex::default(), floor }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Latches `causes`; INTA# rises if one is enabled and no window holds it back.
    #[inline]
    pub fn post(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.icr |= causes & cause::ALL;
        self.settle(&mut s, delays, host)
    }

    /// Reads ICR as the guest does: clears it, INTA# falls. Bit 31 (INT_ASSERTED) is set if the level was.
    pub fn read_icr(&self) -> (u32, Edge) {
        let mut s = self.state();
        let value = s.icr | if s.level { 1 << 31 } else { 0 };
        s.icr = 0;
        s.holding = false;
        (value, Self::fall(&mut s))
    }

    /// Writes ICR: bits written as 1 are cleared (SDM 13.4.17).
    pub fn write_icr(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.icr &= !bits;
        self.settle(&mut s, delays, host)
    }

    /// IMS as read.
    pub fn ims(&self) -> u32 {
        self.state().ims
    }

    /// Causes latched now, without clearing them.
    pub fn icr(&self) -> u32 {
        self.state().icr
    }

    /// Enables causes (a write to IMS).
    pub fn set_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.ims |= bits & cause::ALL;
        self.settle(&mut s, delays, host)
    }

    /// Disables causes (a write to IMC).
    pub fn clear_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.ims &= !bits;
        self.settle(&mut s, delays, host)
    }

    /// The timer has fired: what was held back is looked at again.
    pub fn timer(&self, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.timer = None;
        self.settle(&mut s, delays, host)
    }

    /// The level of INTA#.
    pub fn level(&self) -> bool {
        self.state().level
    }

    /// Causes, mask, windows and level as after reset. Counts stay.
    pub fn reset(&self) -> Edge {
        let mut s = self.state();
        let edge = Self::fall(&mut s);
        let State { raised, held, delivered, .. } = *s;
        *s = State { raised, held, delivered, ..State::default() };
        edge
    }

    /// Raised, held back, delivered.
    pub fn counts(&self) -> (u64, u64, u64) {
        let s = self.state();
        (s.raised, s.held, s.delivered)
    }

    fn fall(s: &mut State) -> Edge {
        if std::mem::take(&mut s.level) { Edge::Fall } else { Edge::None }
    }

    /// Brings the level in line with ICR, IMS and the windows.
    fn settle(&self, s: &mut State, delays: Delays, host: &dyn Host) -> Edge {
        let pending = s.icr & s.ims;
        if pending == 0 {
            s.holding = false;
            return Self::fall(s);
        }
        if s.level {
            return Edge::None;
        }
        if !s.holding {
            s.raised += 1;
        }
        let all = delays.all.max(self.floor);
        // The clock is asked only if a window is open or will be.
        if all | delays.transmit | delays.receive | s.all_until | s.transmit_until | s.receive_until
            != 0
        {
            let now = host.now();
            if let Some(at) = s.hold_until(pending, now) {
                return Self::hold(s, at, host);
            }
            s.open(pending, now, all, delays);
        }
        s.holding = false;
        s.level = true;
        s.delivered += 1;
        Edge::Rise
    }

    /// Holds a rise back until `at`.
    fn hold(s: &mut State, at: u64, host: &dyn Host) -> Edge {
        if !s.holding {
            s.holding = true;
            s.held += 1;
        }
        if s.timer.is_none_or(|set| at < set) {
            s.timer = Some(at);
            host.set_timer(at);
        }
        Edge::None
    }
}

impl State {
    /// When the first of the `pending` causes may be delivered; `None`: now.
    fn hold_until(&self, pending: u32, now: u64) -> Option<u64> {
        let kinds = [
            (cause::TRANSMIT, self.all_until.max(self.transmit_until)),
            (cause::RECEIVE, self.all_until.max(self.receive_until)),
            (cause::LINK, 0),
            (!(cause::TRANSMIT | cause::RECEIVE | cause::LINK), self.all_until),
        ];
        let ends = kinds.iter().filter(|(causes, _)| pending & causes != 0).map(|(_, end)| *end);
        ends.min().filter(|end| *end > now)
    }

    /// A delivery now opens windows for the next.
    fn open(&mut self, pending: u32, now: u64, all: u64, delays: Delays) {
        self.all_until = if all == 0 { 0 } else { now.saturating_add(all) };
        let until = |delay: u64, causes: u32, before: u64| match delay {
            _ if pending & causes == 0 => before,
            0 => 0,
            delay => now.saturating_add(delay),
        };
        self.transmit_until = until(delays.transmit, cause::TRANSMIT, self.transmit_until);
        self.receive_until = until(delays.receive, cause::RECEIVE, self.receive_until);
    }
}
