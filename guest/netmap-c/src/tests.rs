//! The region's account of buffers and blocks, and sleeps. Whole programs in C are in
//! tests/tests/netmap_c.rs.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::pipe::Pipe;
use super::region::{BUFFERS, FIRST, is_buffer, region};
use super::ring::{CHANGED, Ring, Slot};
use super::table::{self, Request};
use super::{ffi, name};
use vmlan_transport::sys::EventFd;

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
