//! Whatever the order in which drivers, vmxnet3s, ports' threads and worker take their turns,
//! nobody waits for ever: in steps, by lot ([`exchange`]).

use std::sync::Arc;

use vmlan_driver::vmxnet3::Vmware;
use vmlan_frame::Mac;
use vmlan_nic::chip::{Config, Host, Nic};
use vmlan_nic::vmxnet3::Vmxnet3;
use vmlan_tests::chip_loop::ALL;
use vmlan_tests::steps::{Steps, exchange};

fn vmxnet3(host: Arc<dyn Host>) -> Arc<dyn Nic> {
    let config = Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), ..Config::default() };
    Arc::new(Vmxnet3::new(config, host))
}

#[test]
fn no_order_of_turns_keeps_a_frame_back() {
    const WAYS: [&str; 7] = [
        "",
        ",fence=off,writes=posted,size=32",
        ",irq=msi,size=64,refill=0",
        ",irq=intx,writes=posted,batch,interrupts=idle,size=32",
        ",interrupts=idle,size=32,segment=1600,refill=1,fence=off",
        ",batch,buffer=256,mtu=1501,segment=128,size=64,promisc,receive=poll",
        ",irq=intx,combine,receive=adaptive",
    ];
    for (n, keys) in WAYS.iter().enumerate() {
        exchange::<Vmware>(vmxnet3, [keys, WAYS[(n + 1) % WAYS.len()]], 20);
    }
}

/// No doorbell tells of buffers. A worker that waits for one waits for ever.
#[test]
fn frames_wait_for_ever_for_buffers_that_nobody_looks_for() {
    let waits = |seed| {
        let keys = [",size=32"; 2];
        let mut steps = Steps::<Vmware>::with_a_worker_that_never_looks(seed, keys, vmxnet3);
        steps.exchange([400, 40], ALL).is_err()
    };
    assert!((1..=20).any(waits), "nobody needs the look");
}

/// The device says by its threshold that it looks by itself, and by its flag that it needs no
/// buffers.
#[test]
fn a_device_that_is_awake_saves_doorbells() {
    let mut saved = [[0; 2]; 2];
    for seed in 1..=6 {
        let mut steps = Steps::<Vmware>::new(seed, ["", ",fence=off"], vmxnet3);
        steps.exchange([300, 300], ALL).unwrap_or_else(|state| panic!("seed {seed}: {state}"));
        for (guest, saved) in steps.guests().iter().zip(&mut saved) {
            let (tx, rx) = (guest.nic.tx_stats(), guest.nic.rx_stats());
            *saved = [saved[0] + tx.doorbells_saved, saved[1] + rx.doorbells_saved];
        }
    }
    println!("doorbells saved, of frames and of buffers: {saved:?}");
    assert!(saved.iter().flatten().all(|count| *count > 0), "{saved:?}");
}
