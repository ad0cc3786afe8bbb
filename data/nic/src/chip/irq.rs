//! The interrupt block: a cause register, a mask, and moderation; the same for all chips.
//!
//! A cause is always latched at once. Moderation decides when INTA# may rise. It is a hold-off: the
//! first interrupt after silence is delivered at once, and opens windows in which later ones of its
//! kind are held back:
//!
//! - all kinds but link changes: the chip's window for all ([`Delays::all`]) and the host's own
//!   floor, whichever is longer;
//! - link changes: nothing but the host's floor after another link change, since a guest can change
//!   its link as often as it likes;
//! - repeats of a level that still stands when the VMM unmasks it: the host's floor;
//! - transmit completions of which none asked to be prompt: [`Delays::transmit`];
//! - receptions: [`Delays::receive`]. Overruns and low rings are not receptions: the real chips
//!   report them at once, and so do we, within the window for all.
//!
//! Real chips delay the first interrupt instead. Their drivers cannot tell, except that a lone
//! frame is seen sooner.
//!
//! # No interrupt is lost
//!
//! Whenever a cause is pending, enabled and not delivered, the timer is set, for a time at or
//! before the end of the window that holds it ([`crate::notify::moderate`]). The length of a window
//! is read again from the registers each time: one that the guest has shortened ends sooner at the
//! next look (any write to a moderation register through the chip is one; a store to a mapped page
//! is seen when the timer fires, or at the next cause). With no window open nothing sets the timer:
//! an idle chip wakes nobody.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlan_frame::Counter;

use super::Host;
use super::csb::{Csb, Verdict};
use super::state::{Fields, Stateful};
use crate::notify::moderate::{Alarm, Floor, Window};

/// What a chip's causes are about.
#[derive(Debug)]
pub struct Kinds {
    /// Those that can be latched.
    pub all: u32,
    /// Frames were sent.
    pub transmit: u32,
    /// Those of them after which a completion that did not ask for delay counts as prompt.
    pub written: u32,
    /// Frames have arrived.
    pub receive: u32,
    /// Receive descriptors run low. With a CSB on, this alone never interrupts: the indexes tell it
    /// better.
    pub low: u32,
    /// The link has changed. Only the host's floor holds it back.
    pub link: u32,
    /// Causes about frames, overruns included: those that a message alone can report.
    pub data: u32,
}

/// Lengths of the windows, in ns, from the registers as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// For all kinds (e1000: ITR).
    pub all: u64,
    /// For completions that asked for delay (TIDV, TADV).
    pub transmit: u64,
    /// For receptions (RDTR, RADV).
    pub receive: u64,
}

const REFUSALS: u8 = 64; // Acknowledgements that are refused in turn. See [`Irq::ack_seen`].

#[derive(Debug, Default)]
struct State {
    causes: u32,
    mask: u32,
    /// Causes about frames that were posted since the register was last read without effect.
    fresh: u32,
    /// Acknowledgements of such that were refused since.
    refused: u8,
    /// INTA# is asserted (before the interrupt-disable bit of the PCI command register).
    level: bool,
    /// A prompt completion is pending: [`Delays::transmit`] does not hold it.
    prompt: bool,
    /// When the last interrupt was delivered, and the last that reported a completion, a reception.
    all: Window,
    transmit: Window,
    receive: Window,
    link: Window,
    /// A repeat is due when the timer fires.
    repeat: bool,
    alarm: Alarm,
    /// A rise is being held back.
    holding: bool,
    /// Where the guest says what it wants to be interrupted for.
    csb: Option<Arc<Csb>>,
    /// The CSB keeps in what is pending.
    shut: bool,
}

/// Written with the lock, read without: it is held while the CSB is read, and the guest's memory
/// may be slow (its VMM may be punching holes into it). A reader of the counts must not wait for
/// that.
#[derive(Debug, Default)]
struct Counts {
    raised: Counter,
    held: Counter,
    delivered: Counter,
    suppressed: Counter,
    wished: Counter,
}

/// A cause register, its mask, and the level of INTA#.
pub struct Irq {
    kinds: &'static Kinds,
    state: Mutex<State>,
    counts: Counts,
    /// The CSB was on when it was last looked at.
    csb_on: Arc<AtomicBool>,
    /// MSI is on.
    messages: AtomicBool,
    floor: Floor,
}

/// What the caller must tell the host, once it holds no lock.
///
/// Two threads may tell theirs in either order, so a host can hear of a rise after the fall that
/// followed it. That is one interrupt too many and never one too few; repeats of a level interrupt
/// go through `Nic::reassert`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub enum Edge {
    /// Nothing.
    #[default]
    None,
    /// [`Host::raise`].
    Rise,
    /// [`Host::lower`].
    Fall,
    /// [`Host::send`], for each of these vectors.
    Messages(u32),
}

impl Edge {
    /// Both, `later` having happened last.
    pub fn then(self, later: Self) -> Self {
        match (self, later) {
            (first, Self::None) => first,
            (Self::Messages(a), Self::Messages(b)) => Self::Messages(a | b),
            (_, later) => later,
        }
    }
}

impl Irq {
    /// No causes, all masked. At most `rate_max` interrupts per second (0: no floor).
    pub fn new(kinds: &'static Kinds, rate_max: u32) -> Self {
        let (state, counts, csb_on, messages) = Default::default();
        Self { kinds, state, counts, csb_on, messages, floor: Floor::new(rate_max) }
    }

    /// From now on at most `rate_max` interrupts per second. Call [`Irq::timer`] then: what is held
    /// may be due.
    pub fn set_rate_max(&self, rate_max: u32) {
        self.floor.set(rate_max);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Latches `causes`; INTA# rises if one is enabled and no window holds it back.
    #[inline]
    pub fn post(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.causes |= causes & self.kinds.all;
        s.fresh |= causes & self.kinds.data;
        let edge = self.settle(&mut s, delays, host);
        self.counts.suppressed.add(s.shut.into());
        edge
    }

    /// As [`Irq::post`], for completed transmissions. `delayed`: every descriptor that is reported
    /// asked for delay (IDE).
    #[inline]
    pub fn post_transmit(
        &self,
        causes: u32,
        delayed: bool,
        delays: Delays,
        host: &dyn Host,
    ) -> Edge {
        let mut s = self.state();
        s.causes |= causes & self.kinds.all;
        s.fresh |= causes & self.kinds.data;
        s.prompt |= !delayed && causes & self.kinds.written != 0;
        let edge = self.settle(&mut s, delays, host);
        self.counts.suppressed.add(s.shut.into());
        edge
    }

    /// Reads the causes and clears them all; INTA# falls. (As ICR is read, SDM 13.4.17.)
    pub fn take(&self) -> (u32, Edge) {
        let mut s = self.state();
        let value = std::mem::take(&mut s.causes);
        s.holding = false;
        s.prompt = false;
        s.shut = false;
        (value, Self::fall(&mut s))
    }

    /// Bits written as 1 are cleared (ICR of Intel's).
    pub fn ack(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.causes &= !bits;
        s.prompt &= bits & self.kinds.written == 0;
        self.settle(&mut s, delays, host)
    }

    /// As [`Irq::ack`], where the register is read without effect (ISR of Realtek's): what was
    /// posted since it was read is not cleared, since the driver cannot mean it.
    ///
    /// Drivers acknowledge, and then look at their rings. But the write may be posted (QEMU 11),
    /// and arrive long after that look: a frame that arrives in between would be neither seen nor
    /// reported. On the real bus that takes a fraction of a microsecond, here a message and two
    /// threads. Some drivers (8139cp) acknowledge several times without reading the register again,
    /// and some never read it: after [`REFUSALS`] they are believed, at the price of that many
    /// extra interrupts.
    pub fn ack_seen(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        let believed = s.refused == REFUSALS;
        let seen = if believed { bits } else { bits & !s.fresh };
        s.refused += u8::from(seen != bits);
        s.causes &= !seen;
        s.prompt &= seen & self.kinds.written == 0;
        // A message is for what was pending then. What is left wants another.
        s.level &= !self.messages.load(Ordering::Relaxed);
        self.settle(&mut s, delays, host)
    }

    /// The causes, without effect.
    pub fn causes(&self) -> u32 {
        let mut s = self.state();
        (s.fresh, s.refused) = (0, 0);
        s.causes
    }

    /// The causes that are enabled.
    pub fn mask(&self) -> u32 {
        self.state().mask
    }

    /// Enables these causes and no others.
    pub fn replace_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.mask = bits & self.kinds.all;
        self.settle(&mut s, delays, host)
    }

    /// Enables causes, too.
    pub fn set_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.mask |= bits & self.kinds.all;
        self.settle(&mut s, delays, host)
    }

    /// Disables causes.
    pub fn clear_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.mask &= !bits;
        self.settle(&mut s, delays, host)
    }

    /// The timer has fired, early or late: what was held back is looked at again. An early call
    /// finds it still held, and sets the timer once more, since a host may have forgotten the time
    /// that it was given.
    pub fn timer(&self, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        s.alarm.clear();
        if s.repeat && s.level {
            let again = self.repeat_now(&mut s, host);
            return if again { Edge::Rise } else { Edge::None };
        }
        self.settle(&mut s, delays, host)
    }

    /// The VMM has unmasked a level interrupt. True: it still stands, and is to be delivered again
    /// now. The host's floor holds for repeats, too: a guest that never looks at ICR has one for
    /// each end of an interrupt.
    pub fn repeat(&self, host: &dyn Host) -> bool {
        let mut s = self.state();
        s.level && self.repeat_now(&mut s, host)
    }

    fn repeat_now(&self, s: &mut State, host: &dyn Host) -> bool {
        let floor = self.floor.ns();
        if floor > 0 {
            let now = host.now();
            let end = s.all.end(floor, now);
            if end > now {
                if !std::mem::replace(&mut s.repeat, true) {
                    self.counts.raised.add(1);
                    self.counts.held.add(1);
                }
                s.wake_at(end, host);
                return false;
            }
            s.all.open(now);
        }
        // One that was held has been counted as raised.
        self.counts.raised.add(u64::from(!std::mem::take(&mut s.repeat)));
        self.counts.delivered.add(1);
        true
    }

    /// A moderation register has changed: what was held back may be due now.
    pub fn remoderate(&self, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        self.settle(&mut s, delays, host)
    }

    /// The delay timers of these causes expire at once (RDTR.FPD, TIDV.FPD; SDM 13.4.30, 13.4.41).
    pub fn flush(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if causes & self.kinds.transmit != 0 {
            s.transmit.close();
        }
        if causes & self.kinds.receive != 0 {
            s.receive.close();
        }
        self.settle(&mut s, delays, host)
    }

    /// A cause is latched and enabled, whether or not it was delivered.
    #[cfg(any(test, feature = "fuzz"))]
    pub fn pending(&self) -> bool {
        let s = self.state();
        s.causes & s.mask != 0
    }

    /// The CSB keeps it in.
    pub fn is_shut(&self) -> bool {
        self.state().shut
    }

    /// The state while somebody waits for the guest's memory.
    #[cfg(test)]
    pub fn csb(&self) -> impl Sized {
        self.state()
    }

    /// The CSB.
    pub(super) fn csb_now(&self) -> Option<Arc<Csb>> {
        self.state().csb.clone()
    }

    /// The level of INTA#.
    pub fn level(&self) -> bool {
        self.state().level
    }

    /// Causes, mask, windows and level as after reset. Counts stay.
    pub fn reset(&self) -> Edge {
        let mut s = self.state();
        let edge = Self::fall(&mut s);
        let csb = s.csb.take();
        // The host's floor holds for guests that reset the chip for each interrupt, too. Their own
        // windows are gone: what opens these two says nothing of their length.
        *s = State { csb, all: s.all, link: s.link, ..State::default() };
        edge
    }

    /// Replaces the CSB. Nothing of the old one is kept.
    pub fn set_csb(&self, csb: Option<Arc<Csb>>) {
        let on = csb.as_ref().is_some_and(|csb| csb.is_on());
        let old = std::mem::replace(&mut self.state().csb, csb);
        self.csb_on.store(on, Ordering::Relaxed);
        drop(old);
    }

    /// The worker is going to sleep: what the CSB keeps in is looked at once more. It heals guests
    /// that ask for an interrupt and look again without a fence between (all of 2013 do); their
    /// stores have arrived by now.
    pub fn regate(&self, delays: Delays, host: &dyn Host) -> Edge {
        let mut s = self.state();
        if s.shut { self.settle(&mut s, delays, host) } else { Edge::None }
    }

    /// Interrupts are messages from now on, or the pin again.
    pub fn set_messages(&self, on: bool) {
        self.messages.store(on, Ordering::Relaxed);
    }

    /// Disables causes as a read of them does: nothing rises by that.
    pub fn drop_mask(&self, bits: u32) {
        self.state().mask &= !bits;
    }

    /// Another block takes over, and the host's timer with it: causes and mask, which are none from
    /// now on.
    pub fn unload(&self) -> (u32, u32) {
        let mut s = self.state();
        s.holding = false;
        s.alarm.clear();
        let _ = Self::fall(&mut s);
        (std::mem::take(&mut s.causes), std::mem::take(&mut s.mask))
    }

    /// This one does. The pin is up if something is pending: [`Irq::repeat`] is to follow.
    pub fn load(&self, causes: u32, mask: u32) {
        let mut s = self.state();
        s.alarm.clear();
        (s.causes, s.mask) = (causes & self.kinds.all, mask & self.kinds.all);
        s.level = s.causes & s.mask != 0;
    }

    /// For a CSB to say in whether it is on.
    pub fn csb_on(&self) -> &Arc<AtomicBool> {
        &self.csb_on
    }

    /// The CSB is on; interrupts that it kept in, and those that were let out because it asked for
    /// them.
    pub fn csb_state(&self) -> (bool, u64, u64) {
        let Counts { suppressed, wished, .. } = &self.counts;
        (self.csb_on.load(Ordering::Relaxed), suppressed.get(), wished.get())
    }

    /// Raised, held back, delivered.
    pub fn counts(&self) -> (u64, u64, u64) {
        let Counts { raised, held, delivered, .. } = &self.counts;
        (raised.get(), held.get(), delivered.get())
    }

    fn fall(s: &mut State) -> Edge {
        s.repeat = false;
        if std::mem::take(&mut s.level) { Edge::Fall } else { Edge::None }
    }

    /// Brings the level in line with causes, mask and windows.
    fn settle(&self, s: &mut State, delays: Delays, host: &dyn Host) -> Edge {
        let pending = s.causes & s.mask;
        if pending == 0 {
            s.holding = false;
            s.shut = false;
            return Self::fall(s);
        }
        if s.level {
            return Edge::None;
        }
        let verdict = s.csb.as_ref().map_or(Verdict::Pass, |csb| csb.judge(pending, self.kinds));
        s.shut = verdict == Verdict::Shut;
        if s.shut {
            return Edge::None;
        }
        if !s.holding {
            self.counts.raised.add(1);
        }
        let floor = self.floor.ns();
        let delays = Delays { all: delays.all.max(floor), ..delays };
        // Without moderation the clock is never asked.
        if delays != Delays::default() {
            let now = host.now();
            if let Some(at) = s.held_until(self.kinds, pending, now, delays, floor) {
                return self.hold(s, at, host);
            }
            s.open(self.kinds, pending, now);
        }
        self.counts.wished.add(u64::from(verdict == Verdict::Wished));
        s.holding = false;
        s.prompt = false;
        self.deliver(s);
        self.counts.delivered.add(1);
        Edge::Rise
    }

    /// The pin stays up until the guest clears the causes. A driver may have asked in its CSB that
    /// a message be enough: its causes are taken out of the register, so that it need not look
    /// there, and the next one is another message (`docs/csb.md`). No message is about causes that
    /// are masked: they stay, and are told when that ends.
    fn deliver(&self, s: &mut State) {
        let said = self.messages.load(Ordering::Relaxed)
            && s.csb.as_ref().is_some_and(|csb| csb.messages_say_all());
        if said {
            s.causes &= !(self.kinds.data & s.mask);
        }
        s.level = !said;
    }

    /// Holds a rise back until `at`.
    fn hold(&self, s: &mut State, at: u64, host: &dyn Host) -> Edge {
        if !s.holding {
            s.holding = true;
            self.counts.held.add(1);
        }
        s.wake_at(at, host);
        Edge::None
    }
}

impl State {
    /// When the first of the `pending` causes may be delivered; `None`: now.
    fn held_until(
        &self,
        of: &Kinds,
        pending: u32,
        now: u64,
        delays: Delays,
        floor: u64,
    ) -> Option<u64> {
        let all = self.all.end(delays.all, now);
        let transmit = if self.prompt { 0 } else { self.transmit.end(delays.transmit, now) };
        let receive = self.receive.end(delays.receive, now);
        let kinds = [
            (of.transmit, all.max(transmit)),
            (of.receive, all.max(receive)),
            (of.link, self.link.end(floor, now)),
            (!(of.transmit | of.receive | of.link), all),
        ];
        let ends = kinds.iter().filter(|(causes, _)| pending & causes != 0).map(|(_, end)| *end);
        ends.min().filter(|end| *end > now)
    }

    /// A delivery now opens windows for the next.
    fn open(&mut self, of: &Kinds, pending: u32, now: u64) {
        self.all.open(now);
        if pending & of.transmit != 0 {
            self.transmit.open(now);
        }
        if pending & of.receive != 0 {
            self.receive.open(now);
        }
        if pending & of.link != 0 {
            self.link.open(now);
        }
    }

    fn wake_at(&mut self, at: u64, host: &dyn Host) {
        if self.alarm.wants(at) {
            host.set_timer(at);
        }
    }
}

impl Irq {
    /// Passes its state, but for what the CSB and configuration space say of it.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { kinds, state: _, counts, csb_on: _, messages: _, floor: _ } = self;
        let s = &mut *self.state();
        #[rustfmt::skip]
        let State {
            causes, mask, fresh, refused, level, prompt, all, transmit, receive, link, repeat,
            alarm, holding, csb: _, shut,
        } = s;
        [&mut *causes, &mut *mask, &mut *fresh].into_iter().for_each(|word| io.u32(word));
        io.check((*causes | *mask) & !kinds.all == 0 && *fresh & !kinds.data == 0);
        io.u8(refused);
        io.check(*refused <= REFUSALS);
        io.flag(level);
        io.check(!*level || *causes & *mask != 0);
        io.flag(prompt);
        [all, transmit, receive, link].into_iter().for_each(|window| window.fields(io));
        [repeat, holding, shut].into_iter().for_each(|flag| io.flag(flag));
        alarm.fields(io);
        counts.fields(io);
    }

    /// It goes on from a state: the host's timer is set, if something waits for it.
    pub fn resume(&self, host: &dyn Host) {
        let mut s = self.state();
        let waits = s.causes & s.mask != 0 && !s.level && !s.shut || s.repeat;
        if let Some(at) = s.alarm.resume(waits, || host.now()) {
            host.set_timer(at);
        }
    }
}

impl Counts {
    fn fields(&self, io: &mut Fields<'_>) {
        let Self { raised, held, delivered, suppressed, wished } = self;
        [raised, held, delivered, suppressed, wished].into_iter().for_each(|n| io.counter(n));
    }
}
