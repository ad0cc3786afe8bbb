//! A client that talks without end has its port to itself, and nothing else: not the port's owner,
//! not the workers.

mod common;
mod vfio;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::until;
use vfio::*;

/// CTRL (SDM 13.4.1) and its bit "set link up"; STATUS and its bit "link up"; RCTL and its bit
/// "enable".
const CTRL: u64 = 0;
const SLU: u32 = 1 << 6;
const STATUS: u64 = 8;
const LU: u32 = 1 << 1;
const RCTL: u64 = 0x100;
const EN: u32 = 1 << 1;

#[test]
fn a_flood_of_messages_does_not_keep_the_owner_out() {
    let mut f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    client.set(CTRL, SLU);
    client.set(RCTL, EN);
    assert_ne!(client.get(STATUS) & LU, 0);
    until("up", || f.door.port().is_up());
    // 1,024 registers each, and no reply to take: as much work as few bytes can ask for.
    let one = message(9, READ, NO_REPLY, &access(0, 0, 4096, &[]));
    let flood = one.repeat(2000);
    let stop = AtomicBool::new(false);
    let (down, closed) = std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) && client.bytes(&flood, &[]).is_ok() {
                std::hint::spin_loop();
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        f.door.set_link(false);
        let begin = Instant::now();
        // What the NIC itself says, as `details` tells what is wanted.
        until("the link is down", || !f.door.port().is_up());
        let down = begin.elapsed();
        let begin = Instant::now();
        f.door.close();
        stop.store(true, Ordering::Relaxed);
        (down, begin.elapsed())
    });
    assert!(!f.dir.path().join("vm.sock").exists(), "the thread was left behind");
    println!("link down after {down:?}, closed after {closed:?}");
}

/// One message may ask for many accesses, which cost us far more than its sender: a pause follows.
#[test]
fn many_accesses_in_a_message_buy_no_time() {
    let f = Fixture::new();
    let mut client = f.ready();
    let mut merged = words(&[170]);
    for _ in 0..170 {
        merged.extend(access(0, 0xd0, 4, &[0; 4]));
        merged.extend([0; 4]);
    }
    let merged = message(1, 15, NO_REPLY, &merged);
    let large = message(1, READ, NO_REPLY, &access(0, 0, 4096, &[]));
    for (one, least) in [(merged, 162), (large, 1016)] {
        let begin = Instant::now();
        client.bytes(&one.repeat(40), &[]).unwrap();
        let _ = client.get(STATUS);
        // The last pause comes after the answer.
        let pauses = Duration::from_micros(10) * 38 * least;
        assert!(begin.elapsed() >= pauses, "{:?} is less than {pauses:?}", begin.elapsed());
    }
}

/// Of messages that are no register accesses 4,096 are served at once, and 10,000 in each second
/// after that.
#[test]
fn messages_that_set_things_up_buy_no_time() {
    // DEVICE_GET_INFO, and a command that there is not.
    for command in [4, 99] {
        let f = Fixture::new();
        let mut client = f.ready();
        let begin = Instant::now();
        let one = message(9, command, NO_REPLY, &halves(&[16, 0, 0, 0]));
        for _ in 0..300 {
            client.bytes(&one.repeat(20), &[]).unwrap();
        }
        let _ = client.get(STATUS);
        let took = begin.elapsed();
        // The pause for what one read brought, up to 302 messages, comes after the answer.
        let pauses = Duration::from_micros(100) * (6000 - 4096 - 302);
        assert!(took >= pauses, "6,000 messages {command} in {took:?}, less than {pauses:?}");
    }
}

#[test]
fn a_wish_for_a_port_that_waits_to_reply_is_no_hang_up() {
    let f = Fixture::new();
    let mut client = f.ready();
    let one = message(9, READ, 0, &access(0, 0, 4096, &[]));
    // More replies than both sockets' buffers hold: the port waits until some are taken.
    const ASKED: usize = 400;
    client.bytes(&one.repeat(ASKED), &[]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    f.door.set_link(false);
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..ASKED {
        let reply = client.reply().expect("hung up on");
        assert_eq!((reply.error, reply.body.len()), (0, 4096 + 16));
    }
    client.set(CTRL, SLU);
    assert_eq!(client.get(STATUS) & LU, 0, "the cable is out");
}

#[test]
fn a_nic_that_flaps_wakes_the_workers_now_and_then_only() {
    let f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    client.set(CTRL, SLU);
    let begin = Instant::now();
    let before = f.changes.load(Ordering::SeqCst);
    const FLAPS: u32 = 20_000;
    for n in 0..FLAPS {
        client.post(RCTL, if n % 2 == 0 { EN } else { 0 });
    }
    client.set(RCTL, EN);
    until("workers hear of the last state", || {
        f.door.port().is_up() && f.changes.load(Ordering::SeqCst) > before
    });
    std::thread::sleep(Duration::from_millis(20));
    let told = f.changes.load(Ordering::SeqCst) - before;
    // One each millisecond at most, however long all of this took.
    let took = begin.elapsed();
    let most = u64::try_from(took.as_millis()).unwrap() + 2;
    assert!((1..=most).contains(&told), "{told} wake-ups for {FLAPS} changes in {took:?}");
    // And the last state was told, not the one before.
    assert!(f.door.port().is_up());
}

#[test]
fn a_guest_that_stops_its_nic_is_the_same_peer_until_its_vmm_goes() {
    let f = Fixture::new();
    let port = f.door.port();
    assert!(!port.is_connected());
    let mut client = f.ready();
    client.enable();
    client.set(CTRL, SLU);
    for _ in 0..3 {
        client.set(RCTL, EN);
        until("up", || port.is_up());
        client.set(RCTL, 0);
        until("down", || !port.is_up());
        assert!(port.is_connected());
    }
    drop(client);
    until("the peer is gone", || !port.is_connected());
}
