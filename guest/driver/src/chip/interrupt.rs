//! Interrupts: cause, mask, poll, and enable again.
//!
//! ```text
//!   enabled ─ interrupt: read causes, mask ─► polling ─ ring dry: enable ─► enabled
//! ```
//! A cause that appears while masked stays, so that enabling interrupts at once: nothing is lost
//! between the last look at the ring and that. While CSB is on nothing is masked: its flags, set
//! only for a sleep, take the mask's place.

use std::time::Duration;

use super::{
    Bus, Chip, ChipDriver, ChipError, Completion, Interest, Interrupts, Irq, Reception, RxSide,
    TxSide, Wake,
};
use crate::notify::csb;
use crate::wait::Prepared;

/// No moderation of the chip lasts this long: a frame that waits longer had no interrupt.
const LATE: Duration = Duration::from_millis(100);
/// How long a receiver that polls sleeps. FreeBSD's polls 1,000 to 5,000 times a second, at its
/// timer's ticks.
const TICK: Duration = Duration::from_micros(200);
/// After this many ticks in turn without a frame, an adaptive receiver wants interrupts again.
const QUIET: u8 = 10;

/// What the adaptive receiver knows.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// It polls, because the last interrupt found much.
    pub(super) polls: bool,
    /// Ticks in turn that found nothing.
    quiet: u8,
    /// Frames received before the last interrupt.
    before: u64,
}

impl<C: Chip, B: Bus> ChipDriver<C, B> {
    pub(super) fn is_plain(&self) -> bool {
        self.options.interrupts == Interrupts::Always && !self.is_csb_on()
    }

    /// Received frames do not interrupt.
    pub(super) fn polls(&self) -> bool {
        self.options.receive == Reception::Poll || self.load.polls
    }

    /// Takes an interrupt if one has come. May the rings be looked at?
    #[inline]
    pub(super) fn may_poll(&mut self) -> bool {
        !self.is_plain() || self.enabled == 0 || self.polls() || self.is_called()
    }

    /// Has an interrupt come that lets the driver look at its rings? It is masked then.
    fn is_called(&mut self) -> bool {
        self.take_interrupt() && self.enabled == 0
    }

    /// True when there was one of ours; the driver polls now, unless it was only about sent frames
    /// and the chip's driver does not mask those.
    fn take_interrupt(&mut self) -> bool {
        let count = self.registers.bus_mut().take_interrupts();
        if count == 0 {
            return false;
        }
        self.interrupts.sent += count;
        self.rx.stats_mut().wakeups += 1;
        self.handle()
    }

    /// The handler; true when the cause was one of ours.
    fn handle(&mut self) -> bool {
        // A message about frames has taken its cause out of ICR, and no other is enabled.
        if self.is_csb_on() && self.options.irq == Irq::Msi {
            return true;
        }
        if self.options.irq != Irq::Intx && !self.options.reads_causes {
            return self.assume_causes();
        }
        self.look_at_causes()
    }

    /// The message may have been about anything. All causes are cleared before the rings are looked
    /// at: what comes later is another cause.
    fn assume_causes(&mut self) -> bool {
        C::mask(self);
        self.enabled = 0;
        self.load.before = self.rx.stats().frames;
        C::clear(self);
        self.settle();
        self.rx.note_received();
        self.note_sent();
        true
    }

    fn note_sent(&mut self) {
        self.sent = true;
        self.tx.note_sent();
        if self.combine.complete() {
            self.ring();
        }
    }

    fn look_at_causes(&mut self) -> bool {
        let causes = C::causes(self);
        let was_enabled = self.enabled;
        let ours = causes & was_enabled != 0;
        if !ours {
            self.interrupts.spurious += 1;
        } else if !self.is_csb_on() && (C::MASKS_SENT || causes & C::CAUSES.received != 0) {
            C::mask(self);
            self.enabled = 0;
            self.load.before = self.rx.stats().frames;
        }
        // It must have arrived before the rings are looked at: what comes later is another cause.
        if ours && C::acknowledge(self, causes) || was_enabled != self.enabled {
            self.settle();
        }
        if self.options.irq == Irq::Intx {
            self.registers.with(Bus::unmask);
        }
        if causes & C::CAUSES.received != 0 {
            self.rx.note_received();
        }
        if causes & C::CAUSES.sent != 0 {
            self.note_sent();
        }
        ours
    }

    /// A read pushes posted writes before it.
    fn settle(&mut self) {
        if self.options.flush && !C::masks_itself(&self.options) {
            C::settle(&mut self.registers);
        }
    }

    pub(super) fn enable(&mut self, causes: u32) {
        if causes != self.enabled {
            C::enable(self, self.enabled, causes);
            self.untold = 0;
            if causes & !self.enabled != 0 {
                self.settle();
            }
        }
        self.enabled = causes;
    }

    /// What may interrupt a driver like the kernel's while it is awake.
    pub(super) fn causes_awake(&self) -> u32 {
        let sent = if self.options.completion == Completion::Lazy { 0 } else { C::CAUSES.sent };
        let received = if self.options.receive == Reception::Poll { 0 } else { C::CAUSES.received };
        C::CAUSES.link | sent | received
    }

    /// All causes that are enabled while CSB is on, whose flags say when they interrupt. Messages
    /// say which frames there are, but not that the link has changed: that cause would stay.
    pub(super) fn causes_of_csb(&self) -> u32 {
        let link = if self.options.irq == Irq::Msi { 0 } else { C::CAUSES.link };
        C::CAUSES.sent | C::CAUSES.received | C::CAUSES.csb | link
    }

    fn causes(&self, interest: Interest) -> u32 {
        let received = if self.options.receive == Reception::Poll { 0 } else { C::CAUSES.received };
        match (self.options.interrupts, interest) {
            (Interrupts::Always, Interest { rx: true, tx: false }) => self.causes_awake(),
            (Interrupts::Always, Interest { rx: true, tx: true })
            | (Interrupts::Idle, Interest { rx: _, tx: true }) => {
                C::CAUSES.sent | C::CAUSES.link | if interest.rx { received } else { 0 }
            }
            (Interrupts::Always, _) => C::CAUSES.sent | C::CAUSES.link,
            (Interrupts::Idle, _) => received | C::CAUSES.link,
        }
    }

    /// The receive ring is dry: clean the other one, and end the polling.
    pub(super) fn complete(&mut self) {
        if !self.is_plain() || self.enabled != 0 {
            return;
        }
        self.reap();
        if self.options.receive == Reception::Adaptive && self.goes_on_polling() {
            return;
        }
        self.enable(self.causes_awake());
    }

    fn goes_on_polling(&mut self) -> bool {
        let found = self.rx.stats().frames - self.load.before;
        if !self.load.polls && found >= u64::from(self.options.budget / 4).max(2) {
            (self.load.polls, self.load.quiet) = (true, 0);
            // The mask, which is not written now, would have told the chip of the buffers that it
            // has got back since the interrupt.
            self.publish_buffers();
        }
        self.load.polls
    }

    /// After a trip to the device, where a guest's processor would be interrupted.
    pub(super) fn look_for_interrupt(&mut self) {
        if self.is_plain()
            && self.enabled != 0
            && self.is_called()
            && (self.polls() || !self.rx.ready(&mut self.registers))
        {
            self.complete();
        }
    }

    fn has(&mut self, interest: Interest) -> bool {
        interest.rx && self.rx.ready(&mut self.registers) || interest.tx && self.has_sent()
    }

    fn has_sent(&self) -> bool {
        let on = self.csb.as_ref().filter(|csb| csb.is_on());
        on.is_some_and(|csb| self.tx.has_moved(csb.host_tdh())) || self.tx.is_half_done()
    }

    /// Sleeps until an interrupt comes, the device goes away, or `timeout` is over. Enables the
    /// causes (or sets CSB's flags), looks again, and only then sleeps; what send combining holds
    /// back leaves in time, whatever the timeout.
    ///
    /// # Errors
    /// See [`ChipError`]; a device that is gone is [`Wake::Disconnected`].
    pub fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, ChipError> {
        let end = self.now().saturating_add(timeout);
        loop {
            let limit = match self.prepare_wait(interest)? {
                Prepared::Now(wake) => return self.finish(wake),
                Prepared::Sleep(limit) => limit,
            };
            let left = end.saturating_sub(self.now());
            let wake = self.sleep(interest, left, limit);
            if wake != Wake::Timeout || left <= limit {
                return self.finish(wake);
            }
            self.finish(wake)?;
        }
    }

    fn now(&self) -> Duration {
        self.registers.bus().now()
    }

    fn sleep(&mut self, interest: Interest, left: Duration, limit: Duration) -> Wake {
        let wait = |nic: &mut Self, time| nic.registers.with(|bus| bus.wait(time).map(Some));
        let mut wake = wait(self, left.min(limit)).unwrap_or(Wake::Disconnected);
        let looked = left <= limit && !self.polls();
        if wake == Wake::Timeout && looked && self.has(interest) {
            wake = wait(self, LATE).unwrap_or(Wake::Disconnected);
            if wake == Wake::Timeout && self.has(interest) {
                self.interrupts.missed += 1;
                self.look_at_causes();
                return Wake::Ready;
            }
        }
        if wake == Wake::Ready {
            self.take_interrupt();
        }
        wake
    }

    /// The first half of [`Self::wait`], for a caller that sleeps by itself: [`Self::finish_wait`]
    /// follows in any case. After [`Prepared::Sleep`] it must come back within that time, and start
    /// again.
    pub fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, ChipError> {
        self.flush_due();
        if self.is_ready(interest) {
            return Ok(Prepared::Now(Wake::Ready));
        }
        if let Some(error) = self.registers.take_failure() {
            return if error.is_gone() {
                Ok(Prepared::Now(Wake::Disconnected))
            } else {
                Err(error.into())
            };
        }
        let deadline = self.combine.deadline();
        let limit = deadline.map_or(Duration::MAX, |end| end.saturating_sub(self.now()));
        let ticks = interest.rx && self.polls() || interest.tx && self.tx.is_blind();
        Ok(Prepared::Sleep(if ticks { limit.min(TICK) } else { limit }))
    }

    /// The second half of [`Self::wait`]: was the interrupt's descriptor readable, was the one that
    /// tells of the device's end?
    pub fn finish_wait(&mut self, interrupted: bool, gone: bool) -> Result<Wake, ChipError> {
        if interrupted {
            self.take_interrupt();
        }
        self.finish(match (interrupted, gone) {
            (true, _) => Wake::Ready,
            (false, true) => Wake::Disconnected,
            (false, false) => Wake::Timeout,
        })
    }

    fn finish(&mut self, wake: Wake) -> Result<Wake, ChipError> {
        self.sent &= wake != Wake::Ready;
        if let Some(csb) = self.csb.as_ref().filter(|csb| csb.is_on()) {
            csb::unwant_reception(csb);
            csb::unwant_completion(csb);
        }
        self.flush_due();
        match self.registers.take_failure() {
            None => Ok(wake),
            Some(error) if error.is_gone() => Ok(Wake::Disconnected),
            Some(error) => Err(error.into()),
        }
    }

    /// States the wishes. Is there something already?
    fn is_ready(&mut self, interest: Interest) -> bool {
        if interest.tx && self.tx.is_blind() && !self.is_csb_on() {
            self.ask_for_head();
            if !self.tx.is_blind() {
                return true;
            }
        }
        // One that was taken between the caller's last look and now does not come again.
        if interest.tx && std::mem::take(&mut self.sent) && !self.is_csb_on() {
            return true;
        }
        let was_enabled = self.enabled != 0;
        if self.is_csb_on() {
            return self.has(interest) || self.want(interest);
        }
        if self.is_plain() && was_enabled && self.take_interrupt() {
            return true;
        }
        // A plain driver that is enabled waits for its interrupt, however long that is held back.
        let looks = !was_enabled || self.polls();
        if looks && interest.rx && self.rx.ready(&mut self.registers) {
            self.load.quiet = 0;
            return true;
        }
        if self.load.polls {
            return self.is_still_busy(interest);
        }
        self.enable(self.causes(interest));
        !self.is_plain() && self.has(interest)
    }

    /// An adaptive receiver polls, and has found nothing.
    fn is_still_busy(&mut self, interest: Interest) -> bool {
        if interest.tx && self.tx.is_half_done() {
            return true;
        }
        self.load.quiet += 1;
        if self.load.quiet >= QUIET {
            self.load.polls = false;
            self.enable(self.causes(interest));
        }
        false
    }

    /// CSB's flags.
    fn want(&mut self, interest: Interest) -> bool {
        let Some(csb) = &self.csb else { return false };
        let sent = || self.tx.has_moved(csb.host_tdh()) || self.tx.is_half_done();
        let received = interest.rx && self.options.receive != Reception::Poll;
        let (rx, registers) = (&mut self.rx, &mut self.registers);
        received && csb::want_reception(csb, || rx.ready(registers))
            || interest.tx && csb::want_completion(csb, sent)
    }

    /// Turns the CSB of a chip that was started with it on or off. While it is off, the registers
    /// count.
    ///
    /// # Panics
    /// When [`super::Options::csb`] is off.
    pub fn set_csb(&mut self, on: bool) {
        self.flush();
        let csb = self.csb.as_mut().expect("a CSB");
        if csb.is_on() == on {
            return;
        }
        if on {
            csb.start(self.tx.tail(), self.rx.tail());
            self.enable(self.causes_of_csb());
            return;
        }
        // An old kick that stands in a register, or is posted and arrives once the CSB is off,
        // would be taken for the current tail: the chip would use descriptors that are not its own.
        C::ring(&mut self.registers, &mut self.tx);
        C::give(&mut self.registers, &mut self.rx);
        C::settle(&mut self.registers);
        self.csb.as_mut().expect("a CSB").stop();
        // What was published without a kick may not have been seen.
        C::ring(&mut self.registers, &mut self.tx);
        C::give(&mut self.registers, &mut self.rx);
        // As after an interrupt: the driver polls until the ring is dry, and enables again. Causes
        // that stand interrupt then.
        C::mask(self);
        self.settle();
        self.enabled = 0;
    }

    /// Takes the CSB away from the chip, which forgets its page.
    pub(crate) fn release_csb(&mut self) {
        if self.is_csb_on() {
            self.set_csb(false);
        }
        if self.csb.is_some() {
            C::place_csb(&mut self.registers, 0);
        }
    }
}
