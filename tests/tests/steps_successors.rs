//! Real drivers, on chips that are replaced by others in mid-traffic: each frame arrives, once and
//! in order, whatever the order of turns. What a planned restart of the switch does to them.

use std::sync::Arc;

use vmlan_driver::chip;
use vmlan_driver::e1000::Intel;
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_driver::vmxnet3::Vmware;
use vmlan_frame::Mac;
use vmlan_nic::chip::{Config, Host, Nic};
use vmlan_nic::e1000::E1000;
use vmlan_nic::r8169::R8169;
use vmlan_nic::rtl8139::Rtl8139;
use vmlan_nic::vmxnet3::Vmxnet3;
use vmlan_tests::in_process_chip::register_pages;
use vmlan_tests::steps::{Make, exchange};
use vmlan_tests::successors::Successors;

/// One that is replaced, by its model.
fn lasting(make: Make, host: Arc<dyn Host>) -> Arc<dyn Nic> {
    Arc::new(Successors::new(make, host))
}

fn config() -> Config {
    Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), irq_rate_max: 0, csb: true }
}

fn e1000(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    lasting(|host| Arc::new(E1000::new(config(), register_pages().0, host)), host)
}

fn r8169(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    lasting(|host| Arc::new(R8169::new(config(), host)), host)
}

fn rtl8139(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    lasting(|host| Arc::new(Rtl8139::new(config(), true, host)), host)
}

fn vmxnet3(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    lasting(|host| Arc::new(Vmxnet3::new(config(), host)), host)
}

fn each<C: chip::Chip>(make: Make, ways: &[&str]) {
    for (n, keys) in ways.iter().enumerate() {
        exchange::<C>(make, [keys, ways[(n + 1) % ways.len()]], 7);
    }
}

#[test]
fn e1000s() {
    each::<Intel>(e1000, &["", ",irq=msi,size=32,csb", ",itr=7000,writes=posted", ",csb,batch"]);
}

#[test]
fn r8169s() {
    each::<Rings<Gigabit>>(r8169, &["", ",irq=msi,csb,size=64", ",mitigate=0x5151,size=32"]);
}

#[test]
fn rtl8139s() {
    each::<Rings<Plus>>(rtl8139, &["", ",csb,size=8", ",batch,buffer=256,mtu=1501,segment=64"]);
    each::<Classic>(rtl8139, &["", ",writes=posted,buffer=8192"]);
}

#[test]
fn vmxnet3s() {
    each::<Vmware>(vmxnet3, &["", ",irq=msi,size=64,refill=0", ",irq=intx,writes=posted,size=32"]);
}
