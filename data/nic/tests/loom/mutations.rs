//! Takes away each fence and each second look in turn: loom must find the failure, in every pairing
//! that has it.
//!
//! `docs/notify-mutations.md` is this test's report. With `VMLAN_WRITE_MUTATIONS=1` it is written,
//! else compared.

use std::cell::Cell;
use std::path::Path;

use crate::Without::{self, Device, Driver};
use crate::{csb, deferred, device, driver, packed, registers, virtqueue};

/// A model, and its name.
type Pairing = (&'static str, fn(Without));

const DOORBELLS: &[Pairing] = &[
    ("virtqueue doorbells by flags", virtqueue::doorbells_by_flags),
    ("virtqueue doorbells by events", virtqueue::doorbells_by_events),
];
const INTERRUPTS: &[Pairing] = &[
    ("virtqueue interrupts by flags", virtqueue::interrupts_by_flags),
    ("virtqueue interrupts by events", virtqueue::interrupts_by_events),
    ("one virtqueue interrupt for two buffers", virtqueue::interrupts_by_far_events),
];
const PACKED_DOORBELLS: &[Pairing] = &[
    ("packed doorbells by flags", packed::doorbells_by_flags),
    ("packed doorbells by places", packed::doorbells_by_places),
];
const PACKED_INTERRUPTS: &[Pairing] = &[
    ("packed interrupts by flags", packed::interrupts_by_flags),
    ("packed interrupts by places", packed::interrupts_by_places),
    ("one packed interrupt for two buffers", packed::interrupts_by_far_places),
];
const BELLS: &[Pairing] = &[
    ("trapped tail", registers::trapped),
    ("trapped tail, and the link in another thread", registers::trapped_and_link),
];
const MAPPED: &[Pairing] = &[("mapped tail", registers::mapped)];
const KICKS: &[Pairing] =
    &[("CSB transmit kicks", csb::kicks), ("CSB turned on in mid-traffic", csb::turned_on)];
const LEAVES: &[Pairing] =
    &[("CSB turned off by one processor, used by another", csb::turned_off_by_another)];
const COMPLETIONS: &[Pairing] = &[("CSB completions", csb::completions)];
const ROOM: &[Pairing] = &[
    ("CSB room, the wanted index met", csb::room),
    ("CSB room, the wanted index passed", csb::room_passed),
];
const RECEPTIONS: &[Pairing] = &[("CSB receptions", csb::receptions)];

const FENCED: &[Pairing] = &[("deferred doorbells, a driver with a fence", deferred::fenced)];
const STOCK: &[Pairing] = &[("deferred doorbells, a driver without a fence", deferred::stock)];

/// What stands at a point, what it separates or looks at, and where it is needed.
type Role = (&'static str, &'static [Pairing]);

#[rustfmt::skip]
fn of_device(point: device::Point) -> Role {
    use device::Point as P;
    match point {
        P::VirtqueuePublish => ("fence: `used.idx` stored, wish loaded", INTERRUPTS),
        P::VirtqueueArm => ("fence: wish stored, `avail.idx` loaded", DOORBELLS),
        P::VirtqueueLook => ("second look at `avail.idx`", DOORBELLS),
        P::PackedPublish => ("fence: USED stored, wish loaded", PACKED_INTERRUPTS),
        P::PackedArm => ("fence: wish stored, AVAIL loaded", PACKED_DOORBELLS),
        P::PackedLook => ("second look at AVAIL", PACKED_DOORBELLS),
        P::BellRing => ("fence: tail's register stored, wish loaded", BELLS),
        P::BellArm => ("fence: wish stored, tail's register loaded", BELLS),
        P::BellLook => ("second look at the tail's register", BELLS),
        P::CsbTransmitArm => ("fence: `host_need_txkick` stored, `guest_tdt` loaded", KICKS),
        P::CsbTransmitLook => ("second look at `guest_tdt`", KICKS),
        P::CsbSent => ("fence: `host_tdh` stored, `guest_need_txkick` loaded", COMPLETIONS),
        P::CsbRoomArm => ("fence: `host_rxkick_at` stored, `guest_rdt` loaded", ROOM),
        P::CsbRoomLook => ("second look at `guest_rdt`", ROOM),
        P::CsbReceived => ("fence: DD stored, `guest_need_rxkick` loaded", RECEPTIONS),
        P::CsbLeave => ("fence: `host_need_txkick` stored, `guest_tdt` loaded a last time", LEAVES),
        P::CsbLeaveLook => ("last look at `guest_tdt`", LEAVES),
        P::DeferredArm => ("fence: `txThreshold` stored, generation loaded", FENCED),
        P::DeferredLook => ("second look at the generation", FENCED),
        P::DeferredLater => ("third look at the generation, after a while", STOCK),
    }
}

#[rustfmt::skip]
fn of_driver(point: driver::Point) -> Role {
    use driver::Point as P;
    match point {
        P::VirtqueuePublish => ("fence: `avail.idx` stored, wish loaded", DOORBELLS),
        P::VirtqueueArm => ("fence: wish stored, `used.idx` loaded", INTERRUPTS),
        P::VirtqueueLook => ("second look at `used.idx`", INTERRUPTS),
        P::PackedPublish => ("fence: AVAIL stored, wish loaded", PACKED_DOORBELLS),
        P::PackedArm => ("fence: wish stored, USED loaded", PACKED_INTERRUPTS),
        P::PackedLook => ("second look at USED", PACKED_INTERRUPTS),
        P::CsbSend => ("fence: `guest_tdt` stored, `host_need_txkick` loaded", KICKS),
        P::CsbCompletionArm => {
            ("fence: `guest_need_txkick` stored, `host_tdh` loaded", COMPLETIONS)
        }
        P::CsbCompletionLook => ("second look at `host_tdh`", COMPLETIONS),
        P::CsbRefill => ("fence: `guest_rdt` stored, `host_rxkick_at` loaded", ROOM),
        P::CsbReceptionArm => ("fence: `guest_need_rxkick` stored, DD loaded", RECEPTIONS),
        P::CsbReceptionLook => ("second look at DD", RECEPTIONS),
        P::TailPublish => ("release fence: descriptors stored, tail's register stored", MAPPED),
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What loom finds wrong, quietly; None if nothing is.
pub fn fails(model: fn(Without), without: Without) -> Option<String> {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let end = std::panic::catch_unwind(|| model(without));
    QUIET.set(false);
    end.err().map(|payload| *payload.downcast::<String>().unwrap())
}

/// One line of the report. What was removed must be missed in each pairing, and in the same way.
fn line(side: &str, point: &str, (what, pairings): Role, without: Without) -> String {
    let mut failures = pairings.iter().map(|(name, model)| match fails(*model, without) {
        Some(failure) => failure,
        None => panic!("{name}: nobody misses {without:?}"),
    });
    let failure = failures.next().unwrap();
    assert!(failures.all(|other| other == failure) && failure.starts_with("lost"), "{failure}");
    let names: Vec<_> = pairings.iter().map(|(name, _)| *name).collect();
    format!("| {side} | `{point}` | {what} | **{failure}**: {} |\n", names.join("; "))
}

const INTRODUCTION: &str = "\
# Every fence and every second look of the notification protocol, taken away

Written by `data/nic/tests/loom/mutations.rs`. It takes away one at a time, lets loom try the
interleavings of the real driver's functions (`guest/driver/src/notify`) and the real device's
(`data/nic/src/notify`), and fails unless loom finds the failure in every pairing named. To write
this file again:

```sh
VMLAN_WRITE_MUTATIONS=1 cargo test -p vmlan-nic --test loom mutations
```

*Lost wake-up*: one side sleeps for ever although the other has published something. *Lost frame*:
an index is seen, and what it stands for is not.

| side | point | what was removed | what loom found |
| --- | --- | --- | --- |
";

const CONCLUSION: &str = "
Beside the points, one rule was broken to see it fail: a second look for *enough* room, as in the
CSB's reference, instead of for any movement of `guest_rdt` (test
`room_is_lost_when_the_second_look_wants_enough`): **lost wake-up**. The guest may have passed
`host_rxkick_at` before it was stated, and never passes it again.

vmxnet3's stock drivers have no fence between a generation bit and the threshold. Against them two
looks are not enough (test `two_looks_strand_a_frame_of_a_driver_without`): **lost wake-up**. The
third look finds what the second would have found, only later; the first two points are for drivers
that have the fence, which then wait for nothing.

There is no fence at these places, because nothing fails without one:

- between taking `host_need_txkick` away (a kick, or the worker wakes) and the next look at
  `guest_tdt`: nobody goes to sleep because of that look, only because of the one after the wish is
  stated again;
- around `guest_csb_on`: the indexes are stored before it with release, and the chip states its wish
  whether it is set or not;
- where a wish is taken back: at worst there is a doorbell that nobody needs.
";

#[test]
fn every_fence_and_every_second_look_is_missed() {
    let mut report = INTRODUCTION.to_owned();
    for point in device::Point::ALL {
        report += &line("device", &format!("{point:?}"), of_device(point), Device(point));
    }
    for point in driver::Point::ALL {
        report += &line("driver", &format!("{point:?}"), of_driver(point), Driver(point));
    }
    println!("{report}");
    report += CONCLUSION;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/notify-mutations.md");
    if std::env::var_os("VMLAN_WRITE_MUTATIONS").is_some() {
        std::fs::write(&path, &report).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == report, "{}: write it again, as it says", path.display());
}
