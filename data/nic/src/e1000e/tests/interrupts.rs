//! MSI-X: causes and vectors, and what masks and clears itself.

use vmlan_frame::Offload;

use super::*;
use crate::chip::{Nic, PciFunction};
use crate::intel::guest::{MAC, frame};

fn arrive(guest: &Guest) {
    guest.set(RD + TAIL, (guest.get(RD + HEAD) + 60) % 64);
    assert_eq!(guest.arrive(&[(frame(MAC, 60), Offload::NONE)]), 1);
}

/// As Linux: a message for each burst, and one write to have the next. No register is read.
#[test]
fn a_vector_clears_its_cause_and_masks_itself() {
    let mut guest = with_vectors();
    arrive(&guest);
    arrive(&guest);
    assert_eq!(sent(&guest), [0]);
    assert_eq!(guest.get(IMS) & RXQ0, 0, "masked by its message");
    guest.set(IMS, RXQ0);
    assert_eq!(sent(&guest), [0], "what came while it was masked");
    guest.set(IMS, RXQ0);
    assert_eq!(sent(&guest), [], "nothing new");
    guest.send(0, &frame([2; 6], 60));
    guest.pull();
    assert_eq!(sent(&guest), [1]);
    guest.set(IMS, TXQ0);
    assert_eq!(sent(&guest), []);
    guest.set(ICS, TXQ0);
    assert_eq!(sent(&guest), [1], "raised by hand");
}

#[test]
fn the_rest_has_one_vector_until_icr_is_read() {
    let guest = with_vectors();
    guest.get(ICR);
    sent(&guest);
    guest.set(IMS, OTHER);
    guest.chip.set_link(false);
    assert_eq!(sent(&guest), [2]);
    guest.chip.set_link(true);
    guest.set(IMS, OTHER);
    assert_eq!(sent(&guest), [2], "masked by its message, it is sent again when it is unmasked");
    let icr = guest.get(ICR);
    assert_eq!(icr & (OTHER | LSC), OTHER | LSC);
    assert_eq!(guest.get(ICR), 0, "a read clears them all");
    guest.set(IMS, OTHER);
    assert_eq!(sent(&guest), []);
}

/// Writing OTHER clears what it stands for.
#[test]
fn icr_is_written() {
    let guest = with_vectors();
    guest.set(IMC, u32::MAX);
    guest.get(ICR);
    guest.set(ICS, LSC | 1 << 4 | RXQ1);
    assert_eq!(guest.get(ICS), LSC | 1 << 4 | RXQ1 | OTHER, "ICS shows causes without effect");
    guest.set(ICR, OTHER);
    assert_eq!(guest.get(ICS), 1 << 4 | RXQ1);
    guest.set(ICR, u32::MAX);
    assert_eq!(guest.get(ICR), 0);
}

#[test]
fn a_cause_without_a_vector_or_with_one_that_is_not_there_sends_nothing() {
    for ivar in [0, 0x8000_000d, 0x8000_000e, 0x8000_000f, 0x8000_0000] {
        let guest = with_vectors();
        guest.set(IVAR, ivar);
        arrive(&guest);
        assert_eq!(sent(&guest), [], "{ivar:#x}");
        assert_ne!(guest.get(ICS) & RXQ0, 0, "it is latched");
        guest.set(IVAR, 0xc);
        assert_eq!(sent(&guest), [4], "it is sent when it has a vector");
    }
}

#[test]
fn without_eiac_and_eiame_a_cause_is_sent_once() {
    let guest = with_vectors();
    guest.set(EIAC, 0);
    guest.set(CTRL_EXT, 0);
    arrive(&guest);
    arrive(&guest);
    assert_eq!(sent(&guest), [0]);
    assert_ne!(guest.get(IMS) & RXQ0, 0);
    guest.set(ICR, RXQ0);
    arrive(&guest);
    assert_eq!(sent(&guest), [0]);
}

/// EITR is a window of its own for each vector. A reset leaves none of it behind but the window.
#[test]
fn throttled_vectors_hold_and_then_send() {
    let guest = with_vectors();
    guest.set(EITR, 1000);
    arrive(&guest);
    assert_eq!(sent(&guest), [0]);
    guest.set(IMS, RXQ0);
    arrive(&guest);
    assert_eq!(sent(&guest), []);
    guest.chip.set_link(false);
    assert_eq!(sent(&guest), [2], "another vector");
    assert!(!guest.host.sleep(255_000));
    assert!(guest.host.sleep(1_000));
    guest.chip.timer();
    assert_eq!(sent(&guest), [0]);
    // A shorter window ends sooner.
    guest.chip.set_link(true);
    guest.set(IMS, RXQ0);
    arrive(&guest);
    assert_eq!(sent(&guest), []);
    guest.set(EITR, 0);
    assert_eq!(sent(&guest), [0]);
    guest.set(EITR, 0xffff);
    guest.set(IMS, RXQ0);
    arrive(&guest);
    assert_eq!(sent(&guest), []);
    guest.set(0, 1 << 26);
    guest.host.sleep(1 << 30);
    guest.chip.timer();
    assert_eq!(sent(&guest), [], "a reset clears what was held");
    assert_eq!([guest.get(IVAR), guest.get(EIAC), guest.get(EITR), guest.get(IMS)], [0; 4]);
}

/// The delay timers hold queues' causes as they hold those of the other chip, and end by
/// themselves; FPD ends them at once.
#[test]
fn delay_timers_hold_queues() {
    let mut guest = with_vectors();
    guest.set(0x2820, 32);
    guest.set(0x282c, 32);
    arrive(&guest);
    assert_eq!(sent(&guest), [0]);
    guest.set(IMS, RXQ0);
    arrive(&guest);
    assert_eq!(sent(&guest), []);
    guest.set(0x2820, 1 << 31 | 32);
    assert_eq!(sent(&guest), [0], "FPD");
    guest.set(IMS, RXQ0);
    arrive(&guest);
    assert!(guest.host.sleep(32 * 1024));
    guest.chip.timer();
    assert_eq!(sent(&guest), [0]);
    // Completions that ask for delay, and one that does not.
    guest.set(0x3820, 8);
    let at = guest.fill(0, &frame([2; 6], 60));
    let last = 60 | crate::intel::guest::LAST;
    guest.post(&[(at, last | crate::intel::guest::IDE)]);
    guest.pull();
    assert_eq!(sent(&guest), [1]);
    guest.set(IMS, TXQ0);
    guest.post(&[(at, last | crate::intel::guest::IDE)]);
    guest.pull();
    assert_eq!(sent(&guest), []);
    guest.post(&[(at, last)]);
    guest.pull();
    assert_eq!(sent(&guest), [1]);
}

/// What is pending when MSI-X goes is said by the pin, as soon as that is let out.
#[test]
fn the_pin_says_what_no_message_has() {
    for kept_in in [false, true] {
        let guest = with_vectors();
        // Messages of no vector are sent for it.
        guest.set(IVAR, 0);
        if kept_in {
            guest.chip.write_config(0x05, &[4]);
        }
        arrive(&guest);
        guest.set(IMS, 0x85);
        let before = guest.host.raises();
        guest.set(ICS, LSC);
        guest.chip.write_config(0xa2, &[0, 0]);
        if kept_in {
            assert_eq!(guest.host.raises(), before);
            guest.chip.write_config(0x05, &[0]);
        }
        assert_eq!(guest.host.raises(), before + 1);
        assert!(guest.chip.is_asserted());
        assert_eq!(guest.get(ICR) & 0x8000_0084, 1 << 31 | 0x84, "RXT0, LSC");
        assert!(!guest.chip.is_asserted());
    }
}

/// So it is by MSI, where that is on when MSI-X goes.
#[test]
fn msi_says_what_no_message_of_msi_x_has() {
    let guest = with_vectors();
    guest.set(IVAR, 0);
    guest.chip.write_config(0xd2, &[1]);
    guest.set(IMS, LSC);
    guest.set(ICS, LSC);
    let before = guest.host.raises();
    guest.chip.write_config(0xa2, &[0, 0]);
    assert_eq!(guest.host.raises(), before + 1);
    assert_eq!(guest.get(ICR) & LSC, LSC);
    guest.set(ICS, LSC);
    assert_eq!(guest.host.raises(), before + 2, "and what comes later");
}

/// The host's limit holds for each vector.
#[test]
fn the_hosts_limit_holds_for_each_vector() {
    let guest = with_vectors();
    guest.chip.set_irq_rate_max(1000);
    arrive(&guest);
    guest.set(IMS, RXQ0);
    arrive(&guest);
    assert_eq!(sent(&guest), [0]);
    assert!(guest.host.sleep(1_000_000));
    guest.chip.timer();
    assert_eq!(sent(&guest), [0]);
}

/// Without MSI-X the causes are the other chip's, and ICR says that it asserts the interrupt.
#[test]
fn the_pin_and_msi_have_the_old_causes() {
    for msi in [false, true] {
        let mut guest = Guest::new();
        if msi {
            guest.chip.write_config(0xd2, &[1]);
        }
        guest.get(ICR);
        guest.set(IMS, 0x85);
        let before = guest.host.raises();
        arrive(&guest);
        guest.send(0, &frame([2; 6], 60));
        guest.pull();
        assert_eq!(guest.host.raises(), before + 1);
        assert_eq!(guest.get(ICR), 1 << 31 | 0x83, "RXT0, TXDW, TXQE");
        guest.set(ICS, 1 << 3);
        assert_eq!(guest.get(ICR), 1 << 3, "asserted for nothing that is enabled");
    }
}

/// With IAME a read of ICR masks what is in IAM, if it finds an interrupt asserted. One that finds
/// none (a line that is shared, an interrupt that was withdrawn) masks nothing: Linux would not
/// enable it again.
#[test]
fn a_read_of_icr_that_finds_an_interrupt_masks_by_iame() {
    for vectors in [false, true] {
        let guest = if vectors { with_vectors() } else { Guest::new() };
        guest.set(IMC, u32::MAX);
        guest.get(ICR);
        guest.set(IMS, 0x85);
        guest.set(IAM, 0x80);
        guest.set(CTRL_EXT, 1 << 27);
        for causes in [0, 1 << 3] {
            guest.set(ICS, causes);
            assert_eq!(guest.get(ICR) & 1 << 31, 0);
            assert_eq!(guest.get(IMS), 0x85);
        }
        guest.set(ICS, LSC);
        assert_ne!(guest.get(ICR) & 1 << 31, 0);
        assert_eq!(guest.get(IMS), 0x05);
    }
}

/// Turning MSI-X on and off takes what is pending along.
#[test]
fn causes_and_masks_survive_a_change_of_way() {
    let guest = Guest::new();
    guest.get(ICR);
    guest.set(ICS, LSC);
    guest.chip.write_config(0xa2, &[0, 0x80]);
    assert_eq!(guest.get(ICS), LSC);
    guest.set(IMS, LSC | RXQ0);
    guest.set(ICS, RXQ0);
    guest.chip.write_config(0xa2, &[0, 0]);
    assert_eq!((guest.get(ICS), guest.get(IMS)), (1 << 31 | LSC | 0x80, LSC));
    assert!(guest.chip.fault().is_none());
}

mod property {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Cause(u32),
        Set(u32),
        Clear(u32),
        Ack(u32),
        Read,
        Register(u64, u32),
        Sleep(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let causes = || (0u32..32).prop_map(|bits| bits << 20 | (bits & 1) << 2);
        let register = prop_oneof![
            (Just(EIAC), causes()),
            (Just(IAM), causes()),
            (Just(IVAR), any::<u32>()),
            (0..5u64, 0..40u32).prop_map(|(n, value)| (EITR + 4 * n, value)),
            any::<u32>().prop_map(|bits| (CTRL_EXT, bits & (9 << 24))),
        ];
        prop_oneof![
            6 => causes().prop_map(Step::Cause),
            4 => causes().prop_map(Step::Set),
            2 => causes().prop_map(Step::Clear),
            1 => causes().prop_map(Step::Ack),
            1 => Just(Step::Read),
            2 => register.prop_map(|(at, value)| Step::Register(at, value)),
            4 => (0..20_000u64).prop_map(Step::Sleep),
        ]
    }

    /// Whatever the order: a cause that is latched, enabled and routed, and whose message was not
    /// sent, has a timer; when that has passed it is sent. And none is sent twice without a new
    /// cause, or a mask between.
    fn check(steps: Vec<Step>) {
        let guest = with_vectors();
        guest.get(ICR);
        sent(&guest);
        // Messages that causes, and their unmasking, may have brought.
        let mut due = 5;
        let mut messages = 0;
        for step in steps {
            match step {
                Step::Cause(bits) => {
                    due += bits.count_ones() + 1;
                    guest.set(ICS, bits);
                }
                Step::Set(bits) => {
                    due += bits.count_ones() + 1;
                    guest.set(IMS, bits);
                }
                Step::Clear(bits) => guest.set(IMC, bits),
                Step::Ack(bits) => guest.set(ICR, bits),
                Step::Read => drop(guest.get(ICR)),
                Step::Register(at, value) => guest.set(at, value),
                Step::Sleep(ns) => {
                    if guest.host.sleep(ns) {
                        guest.chip.timer();
                    }
                }
            }
            messages += u32::try_from(sent(&guest).len()).unwrap();
            assert!(messages <= due, "{messages} messages for {due} causes");
            let pending = crate::chip::Interrupts::pending(&guest.chip.core.irq);
            let timer = *guest.host.timer.lock().unwrap();
            assert!(!pending || timer.is_some(), "a message is lost");
        }
        guest.host.sleep(1 << 30);
        guest.chip.timer();
        assert!(!crate::chip::Interrupts::pending(&guest.chip.core.irq));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn no_cause_is_lost_and_none_is_sent_twice(steps in vec(step(), 0..120)) {
            check(steps);
        }
    }
}
