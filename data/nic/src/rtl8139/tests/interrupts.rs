//! ISR, IMR, INTA#, the timer.

use std::sync::atomic::Ordering;

use super::guest::*;
use crate::chip::{Config, Nic, PciFunction, Space};

const CYCLE: u64 = 1000;

#[test]
fn causes_are_cleared_by_writing_ones() {
    let mut guest = Guest::classic();
    let raised = guest.raised();
    guest.send(&frame(MAC, 60));
    guest.pull();
    guest.arrive(&[frame(MAC, 60)]);
    assert_eq!((guest.get16(ISR), guest.raised() - raised), (ROK | TOK, 1));
    assert_eq!(guest.get16(ISR), ROK | TOK, "reading has no effect");
    guest.ack(TOK);
    assert_eq!((guest.get16(ISR), guest.chip.is_asserted()), (ROK, true));
    // A byte at a time.
    guest.set8(ISR + 1, 0xff);
    assert_eq!(guest.get16(ISR), ROK);
    guest.set8(ISR, 1);
    assert_eq!((guest.get16(ISR), guest.chip.is_asserted()), (0, false));
    assert_eq!(guest.host.lowered.load(Ordering::Relaxed), 1);
}

#[test]
fn the_mask_lets_causes_out() {
    let guest = Guest::classic();
    guest.set16(IMR, TOK);
    let raised = guest.raised();
    guest.arrive(&[frame(MAC, 60)]);
    assert_eq!((guest.get16(IMR), guest.get16(ISR), guest.raised()), (TOK, ROK, raised));
    guest.set16(IMR, ROK);
    assert_eq!((guest.raised(), guest.chip.is_asserted()), (raised + 1, true));
    guest.set16(IMR, 0);
    assert!(!guest.chip.is_asserted());
    // IMR and ISR in one access, as some drivers do: the mask first, then the causes.
    guest.set32(IMR, u32::from(ROK) << 16 | 0xffff);
    assert_eq!((guest.get16(IMR), guest.get16(ISR)), (0xc1ff, 0));
    // A byte of it.
    guest.set8(IMR, 0);
    assert_eq!(guest.get16(IMR), 0xc100);
}

#[test]
fn configuration_space_keeps_interrupts_in() {
    let guest = Guest::classic();
    guest.chip.write(Space::Config, 4, &[7, 4]);
    let raised = guest.raised();
    guest.arrive(&[frame(MAC, 60)]);
    assert_eq!((guest.raised(), guest.chip.is_asserted()), (raised, false));
    let mut status = [0; 2];
    guest.chip.read(Space::Config, 6, &mut status);
    assert_eq!(status[0] & 8, 8, "interrupt status");
    guest.chip.write(Space::Config, 4, &[7, 0]);
    assert_eq!(guest.raised(), raised + 1);
}

#[test]
fn the_hosts_limit_holds() {
    let guest = Guest::bare(true, Config { irq_rate_max: 1000, ..Guest::config() });
    guest.start_classic(0);
    for round in 0..3 {
        guest.sleep(1_000_000);
        let raised = guest.raised();
        for _ in 0..5 {
            guest.arrive(&[frame(MAC, 60)]);
            guest.ack(0xffff);
            guest.sleep(1000);
        }
        assert_eq!(guest.raised() - raised, 1, "{round}");
        guest.take();
        guest.arrive(&[frame(MAC, 60)]);
        guest.sleep(999_000);
        assert_eq!(guest.raised() - raised, 2, "{round}: held back, not lost");
        guest.ack(0xffff);
        while guest.take().is_some() {}
    }
}

#[test]
fn timer() {
    let guest = Guest::classic();
    guest.set32(TCTR, 0x1234);
    assert_eq!(guest.get32(TCTR), 0);
    guest.sleep(33 * CYCLE);
    // 33 MHz.
    assert_eq!(guest.get32(TCTR), 33 * 33);
    guest.set32(TIMERINT, 33 * 100);
    guest.sleep(66 * CYCLE);
    assert_eq!(guest.get16(ISR), 0);
    guest.sleep(CYCLE);
    assert_eq!(guest.get16(ISR), TIMEOUT);
    guest.ack(TIMEOUT);
    guest.sleep(1000 * CYCLE);
    assert_eq!(guest.get16(ISR), 0, "once, until TCTR comes round");
    guest.set32(TCTR, 0);
    guest.sleep(100 * CYCLE);
    assert_eq!(guest.get16(ISR), TIMEOUT);
    guest.set32(TIMERINT, 0);
    guest.ack(TIMEOUT);
    guest.set32(TCTR, 0);
    guest.sleep(1_000_000_000);
    assert_eq!(guest.get16(ISR), 0);
    guest.set32(TIMERINT, 5);
    guest.set8(CR, RST);
    guest.sleep(1_000_000_000);
    assert_eq!((guest.get16(ISR), guest.get32(TIMERINT)), (0, 0));
}

/// Both users of the host's one timer are served: TimerInt, and the limit.
#[test]
fn timer_and_limit_share_the_hosts_timer() {
    let guest = Guest::bare(true, Config { irq_rate_max: 1000, ..Guest::config() });
    guest.start_classic(0);
    guest.sleep(10_000_000);
    guest.arrive(&[frame(MAC, 60)]);
    guest.ack(ROK);
    guest.set32(TCTR, 0);
    guest.set32(TIMERINT, 33 * 200);
    guest.arrive(&[frame(MAC, 60)]);
    let raised = guest.raised();
    guest.sleep(200_000);
    assert_eq!((guest.get16(ISR), guest.raised()), (ROK | TIMEOUT, raised));
    guest.sleep(800_000);
    assert_eq!(guest.raised(), raised + 1);
}

#[test]
fn software_interrupt() {
    let guest = Guest::plus();
    let raised = guest.raised();
    guest.set8(TPPOLL, 1);
    assert_eq!((guest.get16(ISR), guest.raised(), guest.get8(TPPOLL)), (SWINT, raised + 1, 0));
}

/// A reset forgets causes and mask, and INTA# falls.
#[test]
fn reset_lowers() {
    let guest = Guest::classic();
    guest.arrive(&[frame(MAC, 60)]);
    assert!(guest.chip.is_asserted());
    guest.set8(CR, RST);
    assert!(!guest.chip.is_asserted());
    assert_eq!((guest.get16(ISR), guest.get16(IMR)), (0, 0));
}
