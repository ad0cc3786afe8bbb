//! What a client can do with an interrupt's eventfd, whose open file it shares with us: nothing that others notice.

mod common;
mod vfio;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use common::until;
use vfio::*;

/// Makes the chip raise and withdraw its interrupt once.
fn interrupt(client: &mut Raw) -> Option<u32> {
    let ics = access(0, e1000::ICS, 4, &4u32.to_le_bytes());
    client.ask(WRITE, &ics, &[])?;
    client.ask(READ, &access(0, e1000::ICR, 4, &[]), &[])?;
    client.set_irqs(NONE | UNMASK, INTX, 1, &[])
}

fn connect(f: &Fixture, line: &File) -> Raw {
    let mut client = f.ready();
    client.enable();
    client.set(e1000::IMS, 4);
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(line)]), Some(0));
    client
}

/// Each watch on an eventfd is served by whoever writes to it.
#[test]
fn an_interrupt_that_wakes_a_crowd_ends_its_connection_and_is_not_had_again_at_once() {
    let f = Fixture::new();
    let line = eventfd();
    let mut client = connect(&f, &line);
    let fds: Vec<_> = (0..400).map(|_| line.try_clone().unwrap()).collect();
    let watch = |_| {
        // SAFETY: no pointers; the descriptor is new.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(0)) };
        for fd in &fds {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let (e, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
            // SAFETY: `event` outlives the call.
            assert_eq!(unsafe { libc::epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
        }
        epoll
    };
    let crowd: Vec<_> = (0..250).map(watch).collect();
    let times = (0..50).take_while(|_| interrupt(&mut client) == Some(0)).count();
    assert!((4..=7).contains(&times), "{times} of 50");
    assert!(client.is_closed());
    drop(crowd);
    let mut again = f.connect();
    again.sock.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert_eq!(again.negotiate(), None, "not served for a while");
    drop(again);
    f.assert_alive();
}

#[test]
fn an_interrupt_that_hangs_its_port_costs_nobody_else() {
    let (f, other) = (Fixture::new(), Fixture::new());
    let line = eventfd();
    let mut client = connect(&f, &line);
    let mut neighbour = other.ready();
    // The counter is full and writes wait. The flag is set again before each of ours, or this would hang.
    (&line).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..20 {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(line.as_raw_fd(), libc::F_SETFL, libc::O_RDWR) };
        assert_eq!(interrupt(&mut client), Some(0));
    }
    assert_eq!(neighbour.config16(0), 0x8086);
    drop(client);
    f.assert_alive();
}

/// The pin moves in workers and in the port's thread at once.
#[test]
fn no_interrupt_is_lost_between_masking_and_unmasking() {
    let f = Fixture::new();
    let line = eventfd();
    let mut client = connect(&f, &line);
    for round in 0..3000 {
        client.post(e1000::ICS, 4);
        if round % 2 == 0 {
            assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
        }
        until("an interrupt", || count(&line) > 0);
        client.get(e1000::ICR);
        assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
        let _ = count(&line);
    }
}

/// News wakes every worker of the switch.
#[test]
fn a_client_that_talks_all_the_time_does_not_wake_the_workers_for_each_word() {
    let f = Fixture::new();
    let mut client = f.ready();
    let before = f.changes.load(std::sync::atomic::Ordering::SeqCst);
    for i in 0..5000 {
        client.post(e1000::TDLEN, i * 128);
    }
    client.get(e1000::STATUS);
    let news = f.changes.load(std::sync::atomic::Ordering::SeqCst) - before;
    assert_eq!(news, 0);
}
