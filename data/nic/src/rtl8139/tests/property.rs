//! Any registers and descriptors: bounded work, no panic, no byte changed that the guest did not
//! name.

use proptest::collection::vec;
use proptest::prelude::*;

use super::guest::*;
use crate::chip::{Nic, PciFunction, Space};

/// The guest names memory below this only.
const NAMED: u64 = MEMORY - 0x1_0000;

#[derive(Clone, Debug)]
enum Step {
    /// A register: where, how many bytes, what.
    Write(u64, usize, u64),
    Read(u64, usize),
    Descriptor(bool, u32, u32, u32, u64),
    Pull(usize, Vec<usize>),
    Push(Vec<usize>),
    Arm,
    Link(bool),
    Tick(u64),
    Poll,
}

/// An address that the guest may name, or one that is nowhere.
fn address() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => (0..64u64).prop_map(|i| (TX_BUFFERS + 0x1000 * i) as u32),
        2 => Just(TX_RING as u32),
        2 => Just(RX_RING as u32),
        2 => Just(RX_BUFFER as u32),
        1 => Just(0u32),
        1 => MEMORY as u32..u32::MAX,
    ]
}

fn register() -> impl Strategy<Value = Step> {
    let sized = (0..0x100u64, 1..9usize, any::<u64>())
        // Not where addresses are: those come below.
        .prop_filter("no address", |(at, len, _)| {
            let end = at + *len as u64;
            let apart = |from: u64, to: u64| end <= from || *at >= to;
            apart(0x10, 0x34) && apart(0xe4, 0xec) && apart(0xf0, 0xf8) && apart(0x50, 0x51)
        })
        .prop_map(|(at, len, value)| Step::Write(at, len, value));
    let places = prop_oneof![
        Just(0x20u64),
        Just(0x24),
        Just(0x28),
        Just(0x2c),
        Just(0x30),
        Just(0x10),
        Just(0xe4),
        Just(0xf0),
    ];
    let place = (places, address()).prop_map(|(at, value)| {
        // DTCCR with its bit, and the CSB aligned or not.
        Step::Write(at, 4, u64::from(value | if at == 0x10 { 8 } else { 0 }))
    });
    let tsd = (0..4u64, any::<u32>()).prop_map(|(n, value)| {
        // In C+ mode it is the address of a dump.
        Step::Write(TSD + 4 * n, 4, u64::from(value & 0x0fff | 0x40))
    });
    let on = prop_oneof![Just(0x0cu64), Just(0x1c), Just(0x04), Just(0x08), Just(0)];
    let on = on.prop_map(|value| Step::Write(CR, 1, value));
    let mode = prop_oneof![Just(0u64), Just(0x3b), Just(0x7b), Just(1), Just(2)];
    let mode = mode.prop_map(|value| Step::Write(CPCR, 2, value));
    let rcr = any::<u32>().prop_map(|value| Step::Write(RCR, 4, u64::from(value | 0xe)));
    prop_oneof![2 => sized, 3 => place, 3 => tsd, 2 => on, 1 => mode, 2 => rcr]
}

fn step() -> impl Strategy<Value = Step> {
    let opts = (any::<u32>(), any::<bool>(), 0..3000u32).prop_map(|(bits, plain, len)| {
        if plain { OWN | FS | LS | len } else { bits & 0xffff_0fff }
    });
    let descriptor = (any::<bool>(), 0..70u32, opts, any::<u32>(), address())
        .prop_map(|(tx, i, a, b, at)| Step::Descriptor(tx, i, a, b, at.into()));
    prop_oneof![
        6 => register(),
        1 => (0..0x110u64, 0..20usize).prop_map(|(at, len)| Step::Read(at, len)),
        6 => descriptor,
        3 => (0..40usize, vec(0..40usize, 0..4)).prop_map(|(n, hold)| Step::Pull(n, hold)),
        4 => vec(14..5000usize, 0..20).prop_map(Step::Push),
        1 => Just(Step::Arm),
        1 => any::<bool>().prop_map(Step::Link),
        1 => (0..1u64 << 30).prop_map(Step::Tick),
        2 => Just(Step::Poll),
    ]
}

fn run(guest: &mut Guest, step: &Step) {
    match step {
        Step::Write(at, len, value) => guest.set(*at, &value.to_le_bytes()[..*len]),
        Step::Read(at, len) => guest.chip.read(Space::Bar(0), *at, &mut vec![0; *len]),
        Step::Descriptor(tx, i, opts1, opts2, at) => {
            let ring = if *tx { TX_RING } else { RX_RING };
            guest.desc(ring, *i, *opts1, *opts2, *at);
        }
        Step::Pull(limit, hold) => {
            let mut take = Take { hold: hold.clone(), ..Take::default() };
            guest.chip.pull(&mut guest.batch, *limit, &mut take);
            // A batch in loopback is nobody's here; each of the two queues has its own.
            assert!(take.frames.len() <= *limit);
        }
        Step::Push(lens) => {
            let frames: Vec<_> = lens.iter().map(|len| frame(MAC, *len)).collect();
            assert!(guest.arrive(&frames) <= frames.len());
        }
        Step::Arm => {
            let _ = (guest.chip.arm(), guest.chip.want_room(), guest.chip.room());
            guest.chip.disarm();
        }
        Step::Link(up) => guest.chip.set_link(*up),
        Step::Tick(ns) => guest.sleep(*ns),
        Step::Poll => guest.set8(TPPOLL, 0x40),
    }
}

/// What every chip keeps to, whatever happened.
fn check(guest: &Guest) {
    assert!(guest.read(NAMED, (MEMORY - NAMED) as usize).iter().all(|b| *b == 0x5a));
    let (isr, imr) = (guest.get16(ISR), guest.get16(IMR));
    if guest.chip.is_asserted() {
        assert_ne!(isr & imr, 0, "INTA# without a cause");
    }
    let _ = (guest.chip.fault(), guest.chip.device(), guest.chip.is_up());
}

fn any_steps(mut guest: Guest, steps: &[Step]) -> Result<(), TestCaseError> {
    guest.write(NAMED, &vec![0x5a; (MEMORY - NAMED) as usize]);
    for step in steps {
        run(&mut guest, step);
    }
    check(&guest);
    // A driver that starts again finds a good chip.
    guest.chip.reset();
    guest.chip.write(Space::Config, 4, &[7, 0]);
    guest.chip.set_link(true);
    guest.start_classic(0);
    guest.next = 0;
    guest.send(&frame(MAC, 77));
    prop_assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 77)])), (1, 1));
    prop_assert_eq!(guest.take().map(|(status, f)| (status, f.len())), Some((0x4001, 81)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 1000 }))]

    #[test]
    fn any_steps_in_classic_mode(steps in vec(step(), 0..120)) {
        any_steps(Guest::classic(), &steps)?;
    }

    #[test]
    fn any_steps_in_plus_mode(steps in vec(step(), 0..120)) {
        any_steps(Guest::plus(), &steps)?;
    }

    #[test]
    fn any_steps_with_a_csb(steps in vec(step(), 0..120)) {
        any_steps(Guest::plus_with(true), &steps)?;
    }
}
