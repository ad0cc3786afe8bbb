//! Whatever the order in which drivers, 82574Ls, ports' threads and worker take their turns, nobody
//! waits for ever: in steps, by lot ([`exchange`]).

use std::sync::Arc;

use vmlan_driver::e1000::Intel82574;
use vmlan_frame::Mac;
use vmlan_nic::chip::{Config, Host, Nic};
use vmlan_nic::e1000e::E1000e;
use vmlan_tests::in_process_chip::register_pages;
use vmlan_tests::steps::exchange;

fn e1000e(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    let config = Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), ..Config::default() };
    Arc::new(E1000e::new(config, register_pages().0, host))
}

#[test]
fn no_order_of_turns_keeps_a_frame_back() {
    const WAYS: [&str; 7] = [
        "",
        ",writes=posted,size=32",
        ",irq=msi,size=64,refill=0",
        ",irq=intx,writes=posted,batch,interrupts=idle,size=32",
        ",interrupts=idle,size=32,segment=1600,refill=1,itr=300",
        ",batch,buffer=256,mtu=1501,segment=128,size=64,promisc,receive=poll",
        ",combine,receive=adaptive,rdtr=20,tidv=20",
    ];
    for (n, keys) in WAYS.iter().enumerate() {
        exchange::<Intel82574>(e1000e, [keys, WAYS[(n + 1) % WAYS.len()]], 20);
    }
}
