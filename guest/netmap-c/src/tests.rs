//! The region's account of buffers and blocks, and sleeps. Whole programs in C are in
//! tests/tests/netmap_c.rs.

mod quiet;

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::adapter::{Adapter, Bounds};
use super::nic_port::NicPort;
use super::pipe::Pipe;
use super::region::{BUFFERS, FIRST, is_buffer, region};
use super::ring::{CHANGED, Ring, Slot};
use super::table::{self, Request};
use super::{ffi, name};
use quiet::{Quiet, Wire};
use vmlan_tools::netmap::{Interest, Port};
use vmlan_transport::sys::{self, EventFd};

/// Ends what hangs; nothing else is measured by it.
const HANG: Duration = Duration::from_secs(60);

/// Tests share the process's one region, and take from it one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// As a program gives `count` slots.
fn give(ring: &Ring, count: u32) {
    ring.set_head(ring.ahead(ring.seen, count));
}

/// A buffer is in two slots of a pipe, and only one of them is told when it is exchanged.
#[test]
fn a_pipe_gives_back_the_buffers_that_its_ends_have_now() {
    let _turn = TURN.lock().unwrap();
    let region = region().unwrap();
    let all = region.free_buffers();
    let other = Ring::new(region, (0, false), 16).unwrap();
    let exchange = |ring: &Ring, at: u32, with: u32| {
        let (mine, theirs) = (ring.slot(at).index, other.slot(with).index);
        ring.put(at, Slot { index: theirs, len: 60, flags: CHANGED });
        other.put(with, Slot { index: mine, len: 0, flags: 0 });
    };
    // What was sent and not read, what was read and not given back, what was given back, and what
    // was never sent; each with and without an exchange.
    for (sent, read) in [(0_u32, 0), (5, 0), (5, 2), (5, 5), (7, 7)] {
        let mut pipe = Pipe::new(region, [8, 4]).unwrap();
        exchange(pipe.end(0).tx(), 1, 1);
        exchange(pipe.end(0).tx(), 7, 2);
        give(pipe.end(0).tx(), sent);
        pipe.end(0).txsync().unwrap();
        pipe.end(1).rxsync().unwrap();
        if sent == 5 {
            exchange(pipe.end(1).rx(), 0, 3);
            exchange(pipe.end(1).rx(), 4, 4);
        }
        give(pipe.end(1).rx(), read);
        pipe.end(1).rxsync().unwrap();
        pipe.end(0).txsync().unwrap();
        if read == 5 {
            exchange(pipe.end(0).tx(), 0, 5);
        }
        assert_eq!(pipe.end(1).counters().rx_frames, u64::from(sent));
        drop(pipe);
        assert_eq!(region.free_buffers(), all - 16, "sent {sent}, read {read}");
        let mut held: Vec<_> = (0..16).map(|at| other.slot(at).index).collect();
        held.sort_unstable();
        held.dedup();
        // None of them is free.
        let free = region.take_buffers(region.free_buffers()).unwrap();
        assert!(held.len() == 16 && held.iter().all(|index| !free.contains(index)));
        region.give_buffers(free);
    }
    drop(other);
    assert_eq!(region.free_buffers(), all);
}

#[test]
fn what_is_given_back_twice_or_was_nobodys_counts_once() {
    let _turn = TURN.lock().unwrap();
    let region = region().unwrap();
    let all = region.free_buffers();
    let mine = region.take_buffers(10).unwrap();
    assert!(mine.iter().all(|index| is_buffer(*index)) && region.free_buffers() == all - 10);
    assert!(region.take_buffers(all).is_none(), "more than there are");
    let lies = [mine[0], mine[0], 0, 1, BUFFERS, u32::MAX];
    region.give_buffers(mine.iter().copied().chain(lies));
    region.give_buffers(lies);
    assert_eq!(region.free_buffers(), all);
    assert!(!is_buffer(FIRST - 1) && !is_buffer(BUFFERS));

    let blocks: Vec<_> = (0..3).map(|_| region.take_block(1000).unwrap()).collect();
    assert!(blocks.windows(2).all(|pair| pair[1] >= pair[0] + 1000), "{blocks:?}");
    for block in [blocks[1], blocks[0], blocks[2]] {
        region.give_block(block, 1000);
    }
    assert_eq!(region.take_block(3000), Some(blocks[0]), "neighbours are one again");
    assert!(region.take_block(64 << 20).is_none());
    region.give_block(blocks[0], 3000);
}

/// One end of a pipe, whose other end is silent.
fn silent(port: &str) -> RawFd {
    let (mode, slots) = (name::ALL_NIC, [0, 0]);
    let request = Request { port, mode, ring: 0, mem_id: 0, flags: 0, slots, extra: 0 };
    table::open(&request).unwrap().fd()
}

/// Whatever timeout, even none: a port that stays silent does not keep the others' news.
#[test]
fn another_descriptor_ends_a_sleep_on_a_silent_port() {
    let _turn = TURN.lock().unwrap();
    let port = silent("others{1");
    for (timeout, early) in [(-1, true), (-1, false), (i32::MAX, true), (i32::MAX, false)] {
        let other = Arc::new(EventFd::new().unwrap());
        if early {
            other.signal();
        }
        let (told, heard) = mpsc::channel();
        let watched = Arc::clone(&other);
        std::thread::spawn(move || {
            let fds = [port, watched.as_fd().as_raw_fd()];
            let mut fds = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: -1 });
            let ready = ffi::poll(&mut fds, timeout).unwrap();
            told.send((ready, fds.map(|fd| fd.revents))).unwrap();
        });
        if !early {
            other.signal();
        }
        let answer = heard.recv_timeout(HANG);
        assert_eq!(answer, Ok((1, [0, libc::POLLIN])), "timeout {timeout}, early {early}");
    }
    assert!(table::close(port));
}

const NONE: Interest = Interest { rx: false, tx: false };
const RX: Interest = Interest { rx: true, tx: false };
const TX: Interest = Interest { rx: false, tx: true };
/// Two descriptors of one NIC: one for frames, one to send.
const RXD: Bounds = Bounds { tx: 0..0, rx: 0..1 };
const TXD: Bounds = Bounds { tx: 0..1, rx: 0..0 };

fn quiet() -> (Adapter<Quiet>, Arc<Wire>) {
    let quiet = Quiet::new();
    let wire = Arc::clone(&quiet.0);
    let nic = NicPort::new(Port::new(quiet).unwrap(), region().unwrap()).unwrap();
    (Adapter::new(nic, None), wire)
}

/// Would poll(2) on the NIC's descriptor return?
fn wakes(adapter: &Adapter<Quiet>) -> bool {
    sys::poll_readable(&[adapter.nic.as_fd()], Some(Duration::ZERO)).unwrap() == 1
}

#[test]
fn who_arms_last_leaves_the_other_sleepers_their_wishes() {
    let _turn = TURN.lock().unwrap();
    for last in [NONE, TX] {
        for order in [[(&RXD, RX), (&TXD, last)], [(&TXD, last), (&RXD, RX)]] {
            let (mut adapter, wire) = quiet();
            for (bounds, want) in order {
                assert!(adapter.arm(bounds, want).unwrap(), "nothing is there");
            }
            assert_eq!(wire.wish(), Some(Interest { tx: last.tx, ..RX }));
            assert!(!wakes(&adapter));
            wire.deliver(&[7; 60]);
            assert!(wakes(&adapter), "{order:?}");
            order.iter().for_each(|(bounds, want)| adapter.wake(bounds, *want));
            adapter.rxsync(&RXD).unwrap();
            assert_eq!(adapter.ready(&RXD), RX);
        }
    }
}

#[test]
fn a_sleeper_that_woke_has_no_wish() {
    let _turn = TURN.lock().unwrap();
    let (mut adapter, wire) = quiet();
    // Two threads sleep alike; one of them wakes.
    for _ in 0..2 {
        assert!(adapter.arm(&RXD, RX).unwrap());
    }
    adapter.wake(&RXD, RX);
    adapter.txsync(&TXD).unwrap();
    assert!(wakes(&adapter), "a sync took the wishes back: the other one must look");
    assert!(adapter.arm(&TXD, TX).unwrap() && !wakes(&adapter));
    assert_eq!(wire.wish(), Some(Interest { rx: true, tx: true }));
    adapter.wake(&RXD, RX);
    adapter.wake(&TXD, TX);
    assert!(adapter.arm(&TXD, TX).unwrap());
    assert_eq!(wire.wish(), Some(TX));
}

/// The interrupt for a sleeper is taken by another thread's sync, which then sleeps itself.
#[test]
fn what_another_threads_sync_brings_wakes_the_sleeper() {
    let _turn = TURN.lock().unwrap();
    let (mut adapter, wire) = quiet();
    let both = Bounds { tx: 0..1, rx: 0..1 };
    assert!(adapter.arm(&RXD, RX).unwrap());
    wire.deliver(&[7; 60]);
    adapter.rxsync(&both).unwrap();
    assert!(!adapter.arm(&both, TX).unwrap(), "it must not sleep over the other's frame");
    assert!(wakes(&adapter));
    assert_eq!(adapter.ready(&RXD), RX);
}
