//! `irq_rate_max`: what is held back comes all the same, once, whatever happens meanwhile. The
//! limit is one interrupt a second. That something is held back is judged only while less time than
//! that has passed.

mod common;
mod vfio;

use std::time::{Duration, Instant};

use common::*;
use vmlan_frame::{Batch, NicCounters, Sink};

struct Nobody;
impl Sink for Nobody {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

/// A port whose guest sends frames, and wants an interrupt for each.
struct Sender {
    f: Fixture,
    guest: Guest,
    raw: Raw,
    sent: u16,
    /// Before the latest interrupt that was not held back.
    since: Instant,
}

impl Sender {
    /// What starting its rings raised has been taken.
    fn new(rate: u32) -> Self {
        let f = Fixture::with(|config| config.irq_rate_max = 0);
        let guest = Guest::new();
        let mut raw = f.ready();
        guest.start(&mut raw);
        let _ = guest.call.take();
        f.door.set_irq_rate_max(rate);
        Self { f, guest, raw, sent: 0, since: Instant::now() }
    }

    fn send(&mut self) {
        self.guest.post(1, self.sent, self.guest.ram.guest_phys(1 << 20), 64, false);
        self.sent += 1;
        let port = self.f.door.port();
        assert_eq!(port.pull(0, &mut Batch::new(), 256, &mut Nobody), 1);
    }

    fn got(&self) -> u64 {
        self.guest.call.take()
    }

    /// One is delivered, then one is held back that stands for two frames.
    fn hold() -> Self {
        loop {
            let mut s = Self::new(1);
            s.since = Instant::now();
            s.send();
            assert_eq!(s.got(), 1, "the first is not delayed");
            s.send();
            s.send();
            // On a machine that took a second for that, what was held has come already.
            if s.is_early() {
                return s;
            }
        }
    }

    /// What is held back cannot have come by itself yet.
    fn is_early(&self) -> bool {
        self.since.elapsed() < Duration::from_secs(1)
    }

    /// Nothing has come, or it was time for it.
    fn assert_held(&self, got: u64) {
        assert!(got == 0 || !self.is_early(), "{got} came at once");
    }

    fn device(&self) -> NicCounters {
        self.f.door.port().device().expect("a limit")
    }
}

#[test]
fn what_is_held_back_comes_when_its_time_has_come() {
    let s = Sender::hold();
    let got = s.got();
    s.assert_held(got);
    until("the timer", || got + s.got() == 1);
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(s.got(), 0, "once");
    let device = s.device();
    assert_eq!((device.raised, device.held, device.delivered), (2, 1, 2));
    assert_eq!(s.f.door.port().counters().tx_interrupts.get(), 2, "those that were told");
}

#[test]
fn a_limit_that_is_taken_away_lets_go() {
    let mut s = Sender::hold();
    let early = s.got();
    s.assert_held(early);
    s.f.door.set_irq_rate_max(0);
    until("what was held", || early + s.got() == 1);
    s.send();
    s.send();
    assert_eq!(s.got(), 2);
    assert_eq!(s.device().held, 1, "counts stay");
}

/// Whoever serves it next knows of nothing.
#[test]
fn a_ring_that_stops_has_its_interrupt_before() {
    let mut s = Sender::hold();
    assert_eq!(s.raw.base(1), Some(3));
    assert_eq!(s.got(), 1);
}

#[test]
fn a_front_end_that_goes_has_its_interrupt_and_a_new_one_its_own() {
    let Sender { f, guest, raw, .. } = Sender::hold();
    drop(raw);
    until("the end", || !f.is_up());
    until("what was held", || guest.call.take() == 1);
    let other = Guest::new();
    let mut raw = f.ready();
    f.door.set_irq_rate_max(1000);
    other.start(&mut raw);
    until("what starting raises", || other.call.take() > 0);
    assert_eq!(guest.call.take(), 0);
}

/// VMMs exchange it to mask the interrupt.
#[test]
fn it_comes_by_the_descriptor_that_is_there_then() {
    let mut s = Sender::hold();
    let other = vmlan_transport::sys::EventFd::new().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&other));
    assert_eq!(s.raw.call(1, fd), Some(0));
    until("the timer", || other.take() > 0);
    assert_eq!(s.got(), 0);
}

/// A trapped e1000: its limit is moved while it holds a repeat of its level.
#[test]
fn the_limit_of_an_e1000_is_moved_while_it_runs() {
    use vfio::{EVENTFD, INTX, NONE, TRIGGER, UNMASK, count, eventfd, raw};
    let f = vfio::Fixture::with(|config| config.irq_rate_max = 1);
    let line = eventfd();
    let mut client = f.ready();
    client.enable();
    client.set(vfio::e1000::IMS, 4);
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    let since = Instant::now();
    client.set(vfio::e1000::ICS, 4);
    client.get(vfio::e1000::ICR);
    assert_eq!(count(&line), 1);
    assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
    client.set(vfio::e1000::ICS, 4);
    client.get(vfio::e1000::IMS);
    let early = count(&line);
    assert!(early == 0 || since.elapsed() >= Duration::from_secs(1), "held back");
    f.door.set_irq_rate_max(0);
    until("what was held", || early + count(&line) == 1);
}
