//! What a front end can do with descriptors it shares with us, and by talking: nothing that others
//! notice.

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::*;
use rustix::event::epoll::{EventData, EventFlags};
use vmlan_frame::{Batch, Sink};

struct Nobody;
impl Sink for Nobody {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

fn pull(f: &Fixture) -> usize {
    f.door.port().pull(0, &mut Batch::new(), 256, &mut Nobody)
}

/// Each change wakes every worker of the switch.
#[test]
fn a_front_end_that_talks_all_the_time_does_not_wake_the_workers_for_each_message() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let woken = |message: &[u8]| {
        // What was said before may be told late: a busy port's pause is 20 ms.
        let mut before = None;
        until("nothing more is told", || {
            std::thread::sleep(Duration::from_millis(100));
            let now = Some(f.changes.load(std::sync::atomic::Ordering::SeqCst));
            std::mem::replace(&mut before, now) == now
        });
        let (before, begin) = (before.unwrap(), Instant::now());
        for _ in 0..100 {
            raw.bytes(&message.repeat(16), &[]).unwrap();
            assert!(raw.get(1, &[]).is_some());
        }
        let possible = 2 + u64::try_from(begin.elapsed().as_millis()).unwrap();
        (f.changes.load(std::sync::atomic::Ordering::SeqCst) - before, possible)
    };
    let mut woken = woken;
    assert_eq!(woken(&message(4, 1, &[])).0, 0, "for messages that change nothing");
    let (n, possible) = woken(&message(18, 1, &halves(&[0, 1])));
    assert!(n <= possible, "{n} times, more than once a millisecond");
}

/// Each watch on an eventfd is served by whoever writes to it. How many are too many is judged in
/// simulated time, where the cost is counted.
#[test]
fn an_interrupt_that_wakes_a_crowd_costs_its_own_port() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let _crowd = crowd(&guest.call);
    if !is_slow(&guest.call) {
        return;
    }
    let mut n = 0;
    until("the port has had enough", || {
        guest.post(1, n, guest.ram.guest_phys(1 << 20), 64, false);
        n = n.wrapping_add(1);
        let done = pull(&f);
        let _ = guest.call.take();
        done == 0
    });
    assert!(raw.is_closed());
}

/// Closing a doorbell as the last one that has it, or removing it from an epoll, takes as long as
/// the crowd on it is large. What a worker is given to watch is therefore never the front end's.
#[test]
fn workers_watch_one_descriptor_of_ours_whatever_a_front_end_kicks() {
    let f = Fixture::new();
    let before = f.door.port().doorbells(0);
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let _crowd = crowd(&guest.kick);
    let same = |bells: &[vmlan_frame::Doorbell]| {
        bells.len() == 1 && std::sync::Arc::ptr_eq(&bells[0], &before[0])
    };
    assert!(same(&f.door.port().doorbells(0)), "rings are started");
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    watch(&epoll, &before[0]);
    let _ = rings(&epoll);
    guest.kick.signal();
    assert!(rings(&epoll), "a kick is heard through it");
    assert_eq!(raw.base(0), Some(0));
    drop(raw);
    until("gone", || f.detail("state").contains("waiting"));
    assert!(same(&f.door.port().doorbells(0)), "the front end has gone");
    let _ = rings(&epoll);
    guest.kick.signal();
    assert!(!rings(&epoll), "the kick of one that has gone");
}

/// When an epoll is added to one that a worker watches, the worker waits for as long as the crowd
/// is large on what is in it. How much is too much is judged in simulated time.
#[test]
fn a_crowd_on_a_kick_costs_its_own_port() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.give_memory(&mut raw);
    let _crowd = crowd(&guest.kick);
    if !is_slow_to_nest(&guest.kick) {
        return;
    }
    assert_eq!(raw.kick(0, guest.kick_fd()), Some(1));
    assert!(raw.is_closed());
    assert_eq!(f.door.vhost_port().kicks().len(), 0);
}

/// As [`is_slow`], of putting an epoll with this into another: more than 0.5 ms is too much. It is
/// this thread's time: other tests run meanwhile.
fn is_slow_to_nest(kick: impl std::os::fd::AsFd) -> bool {
    let epoll =
        || rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let add = |to: &OwnedFd, fd: &dyn std::os::fd::AsFd| {
        rustix::event::epoll::add(to, fd.as_fd(), EventData::new_u64(0), EventFlags::IN).unwrap();
    };
    let inner = epoll();
    add(&inner, &kick);
    let time = || {
        let clock = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let (outer, begin) = (epoll(), clock());
        add(&outer, &inner);
        clock() - begin
    };
    let slow = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    told((0..5).all(|_| time() > slow))
}

fn watch(epoll: &OwnedFd, bell: &vmlan_frame::Doorbell) {
    let edge = EventFlags::IN | EventFlags::ET;
    rustix::event::epoll::add(epoll, bell, EventData::new_u64(0), edge).unwrap();
}

/// True if something rang since the last look.
fn rings(epoll: &OwnedFd) -> bool {
    let mut events = Vec::with_capacity(1);
    let now = rustix::event::Timespec::default();
    rustix::event::epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&now))
        .unwrap()
        > 0
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
    let ended = std::thread::scope(|s| {
        make_blocking(&call);
        s.spawn(|| {
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                clear_nonblocking(&call);
            }
        });
        let fd = std::os::fd::AsFd::as_fd(&call).as_raw_fd();
        let set_call = message(13, 1 | NEED_REPLY, &words(&[1]));
        // The port makes it non-blocking, we blocking: sooner or later between its look and its
        // write, where two threads run at once.
        let late = Instant::now() + PATIENCE / 4;
        let mut answers = || raw.bytes(&set_call, &[fd]).is_ok() && raw.reply().is_some();
        let hung = loop {
            if !answers() {
                break true;
            }
            if Instant::now() > late {
                break false;
            }
        };
        let ended = hung.then(|| raw.is_closed());
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        ended
    });
    // Else it would hang in there still, and `drop` with it.
    let _ = call.take();
    let Some(closed) = ended else {
        return println!("skipped: the port's thread never hung, as where there is one core");
    };
    assert!(closed);
    assert!(f.faults() > 0);
    until("served after a while", || f.connect().get(1, &[]).is_some());
}

/// Pulls on a thread of its own, which is interrupted as the watchdog does; true if it had to be.
fn pull_is_parked(f: &Fixture) -> bool {
    use std::os::unix::thread::JoinHandleExt;
    // Port threads have given SIGUSR1 a handler that does nothing, so that calls end with EINTR.
    let port = f.door.port();
    let (tell, told) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        port.pull(0, &mut Batch::new(), 256, &mut Nobody)
    });
    let tid = told.recv().unwrap();
    // In a write (system call 1), and still there: not one that waits for a core.
    let writes = || {
        let call = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall"));
        call.is_ok_and(|call| call.starts_with("1 "))
    };
    let mut parked = false;
    until("the worker is back, or parked", || {
        let before = writes();
        std::thread::sleep(Duration::from_millis(20));
        parked = before && writes();
        parked || worker.is_finished()
    });
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
    let begin = Instant::now();
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
    until("served in the end", || f.connect().get(1, &[]).is_some());
    assert!(begin.elapsed() >= Duration::from_secs(3), "served again at once");
}
