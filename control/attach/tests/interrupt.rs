//! What a front end can do with descriptors it shares with us, and by talking: nothing that others notice.

mod common;

use std::os::fd::AsRawFd;

use common::*;
use vmlan_frame::{Batch, Sink};

struct Nobody;
impl Sink for Nobody {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

fn pull(f: &Fixture) -> usize {
    f.door.port().pull(&mut Batch::new(), 256, &mut Nobody)
}

/// News wakes every worker of the switch.
#[test]
fn a_front_end_that_talks_all_the_time_does_not_wake_the_workers_for_each_word() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let before = f.changes.load(std::sync::atomic::Ordering::SeqCst);
    let enable = message(18, 1, &halves(&[0, 1]));
    raw.bytes(&enable.repeat(1600), &[]).unwrap();
    assert!(raw.get(1, &[]).is_some());
    let news = f.changes.load(std::sync::atomic::Ordering::SeqCst) - before;
    assert!(news <= 110, "{news} times for 1600 words");
}

/// Each watch on an eventfd is served by whoever writes to it.
#[test]
fn an_interrupt_that_wakes_a_crowd_costs_its_own_port() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let _crowd = crowd(&guest.call);
    let most = most_slow(&guest.call);
    let mut interrupts = 0;
    for n in 0..50 {
        guest.post(1, n, guest.ram.guest_phys(1 << 20), 64, false);
        interrupts += pull(&f);
        let _ = guest.call.take();
    }
    assert!((5..=most).contains(&interrupts), "{interrupts} of 50, not {most}");
    assert!(raw.is_closed());
}

/// By another descriptor now and then, or another connection.
#[test]
fn a_quick_interrupt_does_not_excuse_the_slow_ones_before() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let _crowd = crowd(&guest.call);
    let most = most_slow(&guest.call);
    let quick = vmlan_transport::sys::EventFd::new().unwrap();
    let quick_fd = std::os::fd::AsFd::as_fd(&quick).as_raw_fd();
    let mut slow = 0_usize;
    for n in 0..50 {
        let fd = if n % 2 == 1 { quick_fd } else { guest.call_fd() };
        // Raises it, as there are used buffers.
        if raw.bytes(&message(13, 1 | NEED_REPLY, &words(&[1])), &[fd]).is_err()
            || raw.reply().is_none()
        {
            break;
        }
        slow += usize::from(n % 2 == 0);
        guest.post(1, n, guest.ram.guest_phys(1 << 20), 64, false);
        pull(&f);
        let _ = guest.call.take();
    }
    assert!(slow <= most, "{slow}, not {most}");
    assert!(raw.is_closed());
}

/// Nobody but a timer interrupts the port's own thread.
#[test]
fn an_interrupt_that_hangs_the_ports_thread_is_ended() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    guest.post(1, 0, guest.ram.guest_phys(1 << 20), 64, false);
    assert_eq!(pull(&f), 1);
    let call = vmlan_transport::sys::EventFd::new().unwrap();
    let end = std::sync::atomic::AtomicBool::new(false);
    let closed = std::thread::scope(|s| {
        make_blocking(&call);
        s.spawn(|| {
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                clear_nonblocking(&call);
            }
        });
        let fd = std::os::fd::AsFd::as_fd(&call).as_raw_fd();
        let set_call = message(13, 1 | NEED_REPLY, &words(&[1]));
        // The port makes it non-blocking, we blocking: sooner or later between its look and its write.
        let late = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::time::Instant::now() < late
            && raw.bytes(&set_call, &[fd]).is_ok()
            && raw.reply().is_some()
        {}
        let closed = raw.is_closed();
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        closed
    });
    // Else it would hang in there still, and `drop` with it.
    let _ = call.take();
    assert!(closed);
    assert!(f.faults() > 0);
    let mut again = f.connect();
    assert!(again.get(1, &[]).is_some(), "served after a while");
}

/// Pulls on a thread of its own, which is interrupted as the watchdog does; true if it had to be.
fn pull_is_parked(f: &Fixture) -> bool {
    use std::os::unix::thread::JoinHandleExt;
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeros is a valid sigaction; the handler does nothing, so that calls end with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let port = f.door.port();
    let worker = std::thread::spawn(move || port.pull(&mut Batch::new(), 256, &mut Nobody));
    // Much longer than a thread waits for a core.
    let late = std::time::Instant::now() + std::time::Duration::from_secs(2);
    while !worker.is_finished() && std::time::Instant::now() < late {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let parked = !worker.is_finished();
    if parked {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(worker.as_pthread_t(), libc::SIGUSR1) };
    }
    worker.join().unwrap();
    parked
}

/// Each time costs a worker, and all its ports, as long as the watchdog is patient.
#[test]
fn an_interrupt_that_hangs_can_not_be_had_again_and_again() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let mut parked = 0;
    for n in 0..5 {
        let call = vmlan_transport::sys::EventFd::new().unwrap();
        let fd = std::os::fd::AsFd::as_fd(&call).as_raw_fd();
        // SET_VRING_CALL: no answer if the connection has been ended.
        if raw.bytes(&message(13, 1 | NEED_REPLY, &words(&[1])), &[fd]).is_err()
            || raw.reply().is_none()
        {
            break;
        }
        make_blocking(&call);
        guest.post(1, n, guest.ram.guest_phys(1 << 20), 64, false);
        parked += u32::from(pull_is_parked(&f));
    }
    assert_eq!(parked, 1);
    assert!(raw.is_closed());
    let mut again = f.connect();
    again.sock.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    again.bytes(&message(1, 1, &[]), &[]).unwrap();
    assert_eq!(again.reply(), None, "not served for a while");
    again.sock.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    assert!(again.reply().is_some(), "but in the end");
}
