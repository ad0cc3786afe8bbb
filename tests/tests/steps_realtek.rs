//! Whatever the order in which drivers, chips, ports' threads and worker take their turns, nobody
//! waits for ever: in steps, by lot ([`exchange`]).

use std::sync::Arc;

use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_frame::Mac;
use vmlan_nic::chip::{Config, Host, Nic};
use vmlan_nic::r8169::R8169;
use vmlan_nic::rtl8139::Rtl8139;
use vmlan_tests::steps::exchange;

fn config() -> Config {
    Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), irq_rate_max: 0, csb: true }
}

fn r8169(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(R8169::new(config(), host))
}

fn rtl8139(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(Rtl8139::new(config(), true, host))
}

/// It had got back all its buffers silently, for to enable interrupts would have told the chip of
/// them; and then it did not enable any.
#[test]
fn whoever_begins_to_poll_tells_of_the_buffers_that_came_back() {
    for size in [8, 32] {
        let adaptive = format!(",combine,receive=adaptive,mitigate=0x1111,size={size}");
        exchange::<Rings<Gigabit>>(r8169, [&adaptive, ",batch,segment=64,size=1024"], 40);
        let adaptive = format!(",combine,receive=adaptive,size={size}");
        exchange::<Rings<Plus>>(rtl8139, [&adaptive, ",batch"], 40);
    }
}

/// A ring so small that all of it is less than what is usually told at a time; frames in several
/// buffers.
#[test]
fn whoever_polls_tells_a_chip_that_ran_short() {
    for keys in [",receive=poll,size=8", ",interrupts=idle,size=8,buffer=256,writes=posted"] {
        exchange::<Rings<Gigabit>>(r8169, [keys, ",batch,size=64"], 40);
        exchange::<Rings<Plus>>(rtl8139, [keys, ",batch,size=64"], 40);
    }
}

#[test]
fn no_order_of_turns_keeps_a_frame_back() {
    const WAYS: [&str; 6] = [
        "",
        ",writes=posted,flush,size=32",
        ",irq=msi,size=64,csb",
        ",irq=msi,writes=posted,batch,interrupts=idle,size=32,refill=0",
        ",csb,interrupts=idle,size=8,segment=1600,refill=1",
        ",batch,buffer=256,mtu=1501,segment=64,size=64,promisc,mitigate=0xffff,mitigate_unit=3",
    ];
    for (n, keys) in WAYS.iter().enumerate() {
        let other = WAYS[(n + 1) % WAYS.len()];
        exchange::<Rings<Gigabit>>(r8169, [keys, other], 20);
    }
    for keys in
        ["", ",writes=posted,size=32", ",csb,size=8", ",batch,buffer=256,mtu=1501,segment=64"]
    {
        exchange::<Rings<Plus>>(rtl8139, [keys, ",receive=adaptive"], 20);
    }
    for keys in ["", ",writes=posted,buffer=8192", ",batch,receive=poll,promisc"] {
        exchange::<Classic>(rtl8139, [keys, ",buffer=16384,interrupts=idle"], 20);
    }
}
