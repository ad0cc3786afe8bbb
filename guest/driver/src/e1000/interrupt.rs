//! Interrupts: cause, mask, poll, and enable again (SDM 3.2.7 and 13.4.17 to 13.4.21).
//!
//! ```text
//!   enabled ── interrupt: read ICR, write IMC ──► polling ── ring dry: write IMS ──► enabled
//! ```
//! A cause that appears while masked stays in ICR, so that IMS interrupts at once: nothing is lost between the last look
//! at the ring and the write.

use std::time::Duration;

use super::registers::{Register, cause};
use super::{Bus, E1000, Error, Interest, Interrupts, Irq, Prepared, Wake};

/// No moderation of the chip lasts so long: a frame that lies there longer had no interrupt.
const LATE: Duration = Duration::from_millis(100);

impl<B: Bus> E1000<B> {
    fn is_plain(&self) -> bool {
        self.options.interrupts == Interrupts::Always
    }

    /// Takes an interrupt if one has come. May the rings be looked at?
    #[inline]
    pub(super) fn may_poll(&mut self) -> bool {
        !self.is_plain() || self.enabled == 0 || self.take_interrupt()
    }

    /// True when there was one and the driver polls now.
    fn take_interrupt(&mut self) -> bool {
        let count = self.registers.bus_mut().take_interrupts();
        if count == 0 {
            return false;
        }
        self.interrupts.sent += count;
        self.rx.stats.wakeups += 1;
        self.handle()
    }

    /// The handler; true when the cause was one of ours.
    fn handle(&mut self) -> bool {
        let ours = self.registers.read(Register::ICR) & self.enabled != 0;
        if ours {
            self.registers.write(Register::IMC, u32::MAX);
            self.settle();
            self.enabled = 0;
        } else {
            self.interrupts.spurious += 1;
        }
        if self.options.irq == Irq::Intx {
            self.registers.with(Bus::unmask);
        }
        ours
    }

    /// A read pushes posted writes before it.
    fn settle(&mut self) {
        if self.options.flush {
            self.registers.read(Register::STATUS);
        }
    }

    pub(super) fn enable(&mut self, causes: u32) {
        let (less, more) = (self.enabled & !causes, causes & !self.enabled);
        if less != 0 {
            self.registers.write(Register::IMC, less);
        }
        if more != 0 {
            self.registers.write(Register::IMS, more);
            self.settle();
        }
        self.enabled = causes;
    }

    /// The receive ring is dry: clean the other one, and end the polling.
    pub(super) fn complete(&mut self) {
        if self.is_plain() && self.enabled == 0 {
            self.tx.reap();
            self.enable(cause::ALL);
        }
    }

    /// After a trip to the device, where a guest's processor would be interrupted.
    pub(super) fn look_for_interrupt(&mut self) {
        if self.is_plain() && self.enabled != 0 && self.take_interrupt() && !self.rx.ready() {
            self.complete();
        }
    }

    fn has(&self, interest: Interest) -> bool {
        interest.rx && self.rx.ready() || interest.tx && self.tx.is_half_done()
    }

    /// Sleeps until an interrupt comes, the device goes away, or `timeout` is over. Enables the causes, looks again, and only
    /// then sleeps.
    ///
    /// # Errors
    /// See [`Error`]; a device that is gone is [`Wake::Disconnected`].
    pub fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, Error> {
        match self.prepare_wait(interest)? {
            Prepared::Now(wake) => Ok(wake),
            Prepared::Sleep(most) => {
                let wake = self.sleep(interest, timeout.min(most));
                self.unless_failed(wake)
            }
        }
    }

    /// The first half of [`Self::wait`]: enables the causes and looks again. [`Self::finish_wait`] is to follow.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, Error> {
        let was_enabled = self.enabled != 0;
        if self.is_plain() && was_enabled && self.take_interrupt() {
            return Ok(Prepared::Now(Wake::Ready));
        }
        // A plain driver that is enabled waits for its interrupt, however long that is held back.
        if !was_enabled && interest.rx && self.rx.ready() {
            return Ok(Prepared::Now(Wake::Ready));
        }
        self.enable(self.causes(interest));
        if !self.is_plain() && self.has(interest) {
            return Ok(Prepared::Now(Wake::Ready));
        }
        if self.registers.failure().is_some() {
            return self.unless_failed(Wake::Disconnected).map(Prepared::Now);
        }
        Ok(Prepared::Sleep(Duration::MAX))
    }

    /// The second half: takes the interrupt, if the descriptors of [`Bus::watched`] say so.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn finish_wait(&mut self, interrupted: bool, gone: bool) -> Result<Wake, Error> {
        let wake = match (interrupted, gone) {
            (true, _) => Wake::Ready,
            (false, true) => Wake::Disconnected,
            (false, false) => Wake::Timeout,
        };
        if interrupted {
            self.take_interrupt();
        }
        self.unless_failed(wake)
    }

    fn unless_failed(&mut self, wake: Wake) -> Result<Wake, Error> {
        match self.registers.take_failure() {
            None => Ok(wake),
            Some(error) if error.is_gone() => Ok(Wake::Disconnected),
            Some(error) => Err(error.into()),
        }
    }

    fn causes(&self, interest: Interest) -> u32 {
        match (self.options.interrupts, interest) {
            (Interrupts::Always, Interest { rx: true, .. }) => cause::ALL,
            (Interrupts::Always, _) | (_, Interest { rx: false, tx: true }) => {
                cause::TXDW | cause::LSC
            }
            (Interrupts::Idle, Interest { tx: true, .. }) => cause::ALL,
            (Interrupts::Idle, _) => cause::RX | cause::LSC,
        }
    }

    fn sleep(&mut self, interest: Interest, timeout: Duration) -> Wake {
        let wait = |nic: &mut Self, time| nic.registers.with(|bus| bus.wait(time).map(Some));
        let mut wake = wait(self, timeout).unwrap_or(Wake::Disconnected);
        if wake == Wake::Timeout && self.has(interest) {
            wake = wait(self, LATE).unwrap_or(Wake::Disconnected);
            if wake == Wake::Timeout {
                self.interrupts.missed += 1;
                self.handle();
                return Wake::Ready;
            }
        }
        if wake == Wake::Ready {
            self.take_interrupt();
        }
        wake
    }
}
