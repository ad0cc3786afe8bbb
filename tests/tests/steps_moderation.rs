//! Interrupt moderation in simulated time: it holds interrupts back, and never a frame. Guests,
//! chips and worker take their turns by lot, and time is drawn as well, so that what comes of it
//! does not depend on the machine.

use std::sync::Arc;

use vmlan_driver::chip::{self};
use vmlan_driver::e1000::{Intel, Intel82574};
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_frame::{Mac, NicCounters};
use vmlan_nic::chip::{Config, Host, Nic};
use vmlan_nic::e1000::E1000;
use vmlan_nic::e1000e::E1000e;
use vmlan_nic::r8169::R8169;
use vmlan_nic::rtl8139::Rtl8139;
use vmlan_tests::in_process_chip::register_pages;
use vmlan_tests::numbered::Sizes;
use vmlan_tests::steps::{Make, Steps};
use vmlan_transport::Model;

/// Every legal length.
const ALL: Sizes = Sizes { least: 14, most: 1514 };

fn config(irq_rate_max: u32) -> Config {
    Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), irq_rate_max, csb: false }
}

fn e1000<const RATE: u32>(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(E1000::new(config(RATE), register_pages().0, host))
}

fn e1000e<const RATE: u32>(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(E1000e::new(config(RATE), register_pages().0, host))
}

fn r8169<const RATE: u32>(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(R8169::new(config(RATE), host))
}

fn rtl8139<const RATE: u32>(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(Rtl8139::new(config(RATE), true, host))
}

/// Exchanges frames between two guests with these keys: all arrive, and some interrupts wait.
fn moderated<C: chip::Chip>(make: Make, keys: &str) {
    // The 8139 has no MSI.
    let irqs = match C::MODEL {
        Model::E1000 | Model::R8169 => &["intx", "msi"][..],
        Model::Rtl8139Plus | Model::Rtl8139Classic => &["intx"],
        Model::E1000e | Model::Vmxnet3 => &["intx", "msi", "msix"],
    };
    for irq in irqs {
        let keys = format!("{keys},irq={irq},writes=posted");
        let mut all_held = 0;
        for seed in 1..=6 {
            let mut steps = Steps::<C>::new(seed, [&keys, &keys], make);
            // Many frames, then single ones, each of which interrupts.
            for counts in std::iter::once([100, 100]).chain([[1, 1]; 40]) {
                if let Err(state) = steps.exchange(counts, ALL) {
                    panic!("{keys}, seed {seed}: {state}");
                }
            }
            for NicCounters { raised, held, delivered, .. } in steps.devices() {
                let counts = format!("{raised} raised, {held} held, {delivered} delivered");
                assert!(held <= raised && delivered <= raised, "{keys}, seed {seed}: {counts}");
                all_held += held;
            }
        }
        println!("{:?}{keys}: {all_held} held back", C::MODEL);
        assert!(all_held > 0, "{keys} holds nothing back");
    }
}

#[test]
fn registers_of_intels_chips() {
    // ITR in 256 ns, the others in 1.024 us.
    for keys in [
        ",itr=7000",
        ",tidv=10000,tadv=20000",
        ",rdtr=10000,radv=20000",
        ",itr=500,tidv=2000,tadv=3000,rdtr=2000,radv=4000",
        ",tidv=65535,tadv=2000,rdtr=65535,radv=2000",
    ] {
        moderated::<Intel>(e1000::<0>, keys);
        moderated::<Intel82574>(e1000e::<0>, keys);
    }
}

#[test]
fn intr_mitigate_of_the_r8169() {
    // Timers of up to 15 * 320 ns * 32, frames in fours.
    for mitigate in ["0xf0f0", "0xffff", "0x00f0", "0xa1a1"] {
        let keys = format!(",mitigate={mitigate},mitigate_unit=3");
        moderated::<Rings<Gigabit>>(r8169::<0>, &keys);
    }
}

#[test]
fn the_hosts_own_limit() {
    moderated::<Intel>(e1000::<500>, "");
    moderated::<Intel82574>(e1000e::<500>, "");
    moderated::<Intel>(e1000::<20_000>, ",tidv=65535,rdtr=20000,size=16");
    moderated::<Rings<Gigabit>>(r8169::<500>, "");
    moderated::<Rings<Plus>>(rtl8139::<500>, "");
    moderated::<Classic>(rtl8139::<2000>, "");
}
