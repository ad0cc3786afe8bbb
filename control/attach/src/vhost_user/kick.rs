//! A port's doorbells: the kick eventfds of its front end, behind one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::event::epoll;
use vmlan_frame::{Counters, Doorbell};

use super::sides::lock;
use crate::eventfd;
use crate::interrupt_cost::{InterruptCost, SystemClocks};

/// The kick eventfd of a virtqueue, and how often the guest has written to it.
///
/// Nobody reads it, so it counts by itself. (Reading it would also take the edge away from a worker
/// that is just falling asleep.)
#[derive(Debug)]
pub struct Kick {
    fd: OwnedFd,
    transmit: bool,
    /// Its count when last looked at.
    seen: AtomicU64,
}

impl Kick {
    /// Counts from now on.
    pub fn new(fd: OwnedFd, transmit: bool) -> Self {
        let seen = AtomicU64::new(eventfd::count(fd.as_fd()));
        Self { fd, transmit, seen }
    }

    /// Adds what has come since the last look.
    fn count(&self, counters: &Counters) {
        let counter =
            if self.transmit { &counters.input.notifications } else { &counters.rx_doorbells };
        let now = eventfd::count(self.fd.as_fd());
        let seen = self.seen.swap(now, Ordering::Relaxed);
        // A front end that takes its eventfd back may read it, which begins the count again.
        counter.add_shared(now.checked_sub(seen).unwrap_or(now));
    }
}

impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// All kicks of a port, and for each of its lanes the one descriptor by which its worker hears
/// them: an epoll that holds an epoll that holds the kicks.
///
/// A kick belongs to the front end, which can hang a million watches on it. Then adding it,
/// removing it, or closing it as the last to have it takes up to half a second, with the lock of
/// the epoll that watches it held. So workers never touch a kick. They watch `bell`, which is ours
/// and lives as long as the port. When kicks change, the port's own thread gathers the new ones in
/// a fresh epoll, which it exchanges for the one before in `bell`. Only then is the old one taken
/// apart, when no worker can meet it any more.
///
/// When an epoll is added to another, the kernel walks all watches on what is in it, with the lock
/// of the other one held: 12 ms for 400,000. So that is tried first with an epoll that no worker
/// can meet. Kicks with a crowd on them are refused, and their port is hung up on. A crowd takes
/// longer to gather than the two steps are apart.
///
/// A write to a kick wakes whoever waits for `bell`, edge-triggered or not, whether or not an
/// earlier one was seen. A kick that was written to before it was gathered wakes them when its
/// epoll is put in.
#[derive(Debug)]
pub struct Kicks {
    lanes: Box<[Bell]>,
    counting: Mutex<Counting>,
    counted: Condvar,
}

/// The kicks of one lane.
#[derive(Debug)]
struct Bell {
    bell: Arc<OwnedFd>,
    gathered: Mutex<Gathered>,
}

/// How often the kicks were to be counted, and were. Even that takes as long as a crowd on one is
/// large, so the port's own thread does it.
#[derive(Clone, Copy, Debug, Default)]
struct Counting {
    asked: u64,
    answered: u64,
}

/// Longest wait for a count. A port that is late is not waited for again until it has answered.
const COUNT: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Gathered {
    kicks: Vec<Arc<Kick>>,
    /// `None` without kicks.
    epoll: Option<OwnedFd>,
}

impl Gathered {
    fn new(kicks: Vec<Arc<Kick>>) -> io::Result<Self> {
        if kicks.is_empty() {
            return Ok(Self::default());
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        kicks.iter().try_for_each(|kick| watch(&epoll, &kick.fd))?;
        Ok(Self { kicks, epoll: Some(epoll) })
    }

    fn are(&self, kicks: &[Arc<Kick>]) -> bool {
        let same = self.kicks.iter().zip(kicks).all(|(a, b)| Arc::ptr_eq(a, b));
        same && self.kicks.len() == kicks.len()
    }
}

fn watch(epoll: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), edge)?)
}

/// True if it takes long to have this watched.
fn is_crowded(gathered: &OwnedFd, cost: &InterruptCost) -> io::Result<bool> {
    let trial = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut done = Ok(());
    let crowd = cost.finds_crowd(&SystemClocks, || {
        done = watch(&trial, gathered);
        let _ = epoll::delete(&trial, gathered);
    });
    done.map(|()| crowd)
}

impl Bell {
    fn new() -> io::Result<Self> {
        let bell = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        Ok(Self { bell, gathered: Mutex::default() })
    }

    /// As [`Kicks::set`].
    fn set(
        &self,
        kicks: Vec<Arc<Kick>>,
        counters: &Counters,
        cost: &InterruptCost,
    ) -> io::Result<()> {
        if lock(&self.gathered).are(&kicks) {
            return Ok(());
        }
        let new = Gathered::new(kicks.clone())?;
        if let Some(epoll) = &new.epoll {
            if is_crowded(epoll, cost)? {
                return Err(io::Error::other("a crowd watches it"));
            }
            watch(&self.bell, epoll)?;
        }
        let old = std::mem::replace(&mut *lock(&self.gathered), new);
        if let Some(epoll) = &old.epoll {
            let _ = epoll::delete(&self.bell, epoll);
        }
        // Looking costs more than most of this: only at those that are seen no more.
        let left = |old: &&Arc<Kick>| !kicks.iter().any(|kick| Arc::ptr_eq(kick, old));
        old.kicks.iter().filter(left).for_each(|kick| kick.count(counters));
        Ok(())
    }
}

impl Kicks {
    /// No kicks, for a port with so many lanes.
    pub fn new(lanes: usize) -> io::Result<Self> {
        let lanes = (0..lanes).map(|_| Bell::new()).collect::<io::Result<_>>()?;
        let (counting, counted) = Default::default();
        Ok(Self { lanes, counting, counted })
    }

    /// What the worker of a lane watches.
    pub fn bell(&self, lane: usize) -> Option<Doorbell> {
        self.lanes.get(lane).map(|lane| Arc::clone(&lane.bell) as Doorbell)
    }

    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lock(&lane.gathered).kicks.len()).sum()
    }

    /// Replaces all kicks, each of which has a lane. For the port's own thread, without locks: it
    /// may take long, which breaks `cost`.
    ///
    /// # Errors
    /// That of epoll, or there is a crowd: some lane's have not changed. A front end can cause it.
    pub fn set(
        &self,
        kicks: &[(usize, Arc<Kick>)],
        counters: &Counters,
        cost: &InterruptCost,
    ) -> io::Result<()> {
        for (n, lane) in self.lanes.iter().enumerate() {
            let own = kicks.iter().filter(|(lane, _)| *lane == n);
            lane.set(own.map(|(_, kick)| Arc::clone(kick)).collect(), counters, cost)?;
        }
        Ok(())
    }

    /// Has the port's own thread, which `wake` wakes, add what has come since the last look. Waits
    /// for that, but not for long.
    pub fn ask_for_count(&self, wake: impl FnOnce()) {
        let mut counting = lock(&self.counting);
        let late = counting.asked != counting.answered;
        counting.asked += 1;
        let mine = counting.asked;
        wake();
        if !late {
            let open = |c: &mut Counting| c.answered < mine;
            let _ = self.counted.wait_timeout_while(counting, COUNT, open);
        }
    }

    /// For the port's own thread: does what was asked for. False: nobody asked.
    pub fn count_if_asked(&self, counters: &Counters) -> bool {
        let Counting { asked, answered } = *lock(&self.counting);
        if asked == answered {
            return false;
        }
        for lane in &self.lanes {
            let kicks = lock(&lane.gathered).kicks.clone();
            kicks.iter().for_each(|kick| kick.count(counters));
        }
        lock(&self.counting).answered = asked;
        self.counted.notify_all();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    fn kick() -> Arc<Kick> {
        Arc::new(Kick::new(eventfd::new().unwrap(), true))
    }

    /// A worker: watches as workers do.
    struct Watcher(OwnedFd);

    impl Watcher {
        fn new(kicks: &Kicks) -> Self {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            watch(&epoll, &kicks.lanes[0].bell).unwrap();
            Self(epoll)
        }

        /// True if something rang within that time.
        fn rang(&self, patience: Duration) -> bool {
            let mut events = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.0, spare, Some(&patience.try_into().unwrap())).unwrap() > 0
        }
    }

    const LONG: Duration = Duration::from_secs(120);

    /// A thread that does not answer is waited for once, and what it counts later is not lost.
    #[test]
    fn a_port_that_counts_late_is_not_waited_for_again() {
        let (kicks, counters) = (Kicks::new(1).unwrap(), Counters::default());
        let one = kick();
        kicks.set(&[(0, one.clone())], &counters, &InterruptCost::default()).unwrap();
        assert!(!kicks.count_if_asked(&counters));
        let woken = AtomicU64::new(0);
        for _ in 0..100_000 {
            eventfd::signal(one.fd.as_fd());
            // 20 ms each, if it were waited for, are half an hour.
            kicks.ask_for_count(|| {
                woken.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(woken.into_inner(), 100_000);
        assert_eq!(counters.input.notifications.get(), 0);
        assert!(kicks.count_if_asked(&counters) && !kicks.count_if_asked(&counters));
        assert_eq!(counters.input.notifications.get(), 100_000);
    }

    /// With 64 virtqueues that change one after the other it would be 64 times as many looks.
    #[test]
    fn only_kicks_that_are_taken_away_are_counted_unasked() {
        let (kicks, counters) = (Kicks::new(1).unwrap(), Counters::default());
        let (cost, [one, two]) = (InterruptCost::default(), [kick(), kick()]);
        kicks.set(&[(0, one.clone())], &counters, &cost).unwrap();
        eventfd::signal(one.fd.as_fd());
        kicks.set(&[(0, one), (0, two.clone())], &counters, &cost).unwrap();
        assert_eq!(counters.input.notifications.get(), 0);
        kicks.set(&[(0, two)], &counters, &cost).unwrap();
        assert_eq!(counters.input.notifications.get(), 1);
    }

    /// Nobody reads a kick, so it stays readable: each write must be an event all the same.
    #[test]
    fn each_kick_is_an_event_though_nobody_reads_it() {
        let kicks = Kicks::new(1).unwrap();
        let watcher = Watcher::new(&kicks);
        let two = [kick(), kick()];
        kicks
            .set(
                &two.clone().map(|kick| (0, kick)),
                &Counters::default(),
                &InterruptCost::default(),
            )
            .unwrap();
        for i in 0..10 {
            assert!(!watcher.rang(Duration::ZERO), "told once");
            eventfd::signal(two[i % 2].fd.as_fd());
            assert!(watcher.rang(LONG));
        }
    }

    /// The other half of [`Kicks`]'s promise: what came before the kick was gathered.
    #[test]
    fn a_kick_from_before_it_was_shown_is_an_event() {
        let kicks = Kicks::new(1).unwrap();
        let watcher = Watcher::new(&kicks);
        let (early, quiet) = (kick(), kick());
        kicks.set(&[(0, quiet.clone())], &Counters::default(), &InterruptCost::default()).unwrap();
        assert!(!watcher.rang(Duration::ZERO));
        eventfd::signal(early.fd.as_fd());
        kicks
            .set(&[(0, quiet), (0, early)], &Counters::default(), &InterruptCost::default())
            .unwrap();
        assert!(watcher.rang(Duration::ZERO));
        kicks.set(&[], &Counters::default(), &InterruptCost::default()).unwrap();
        assert_eq!(kicks.len(), 0);
    }

    /// A worker that is just falling asleep, or that a list of kicks is exchanged under: no kick is
    /// lost. The guest kicks, and waits until that is noticed.
    #[test]
    fn no_kick_is_lost_while_kicks_are_exchanged_and_workers_fall_asleep() {
        assert_eq!(lost(false), None, "the kick of this number woke nobody");
        assert_eq!(lost(true), None, "the same, under exchange");
    }

    /// The first of many kicks that woke nobody.
    fn lost(exchange: bool) -> Option<u64> {
        let (kicks, done, told) =
            (Kicks::new(1).unwrap(), AtomicBool::new(false), AtomicU64::new(0));
        let watcher = Watcher::new(&kicks);
        let (rings, spare) = (kick(), kick());
        let counters = Counters::default();
        kicks.set(&[(0, rings.clone())], &counters, &InterruptCost::default()).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0.. {
                    if !exchange || done.load(Ordering::Relaxed) {
                        break;
                    }
                    let more = (i % 2 == 0).then(|| spare.clone());
                    let all = more.into_iter().chain([rings.clone()]).map(|kick| (0, kick));
                    kicks
                        .set(&all.collect::<Vec<_>>(), &counters, &InterruptCost::default())
                        .unwrap();
                }
            });
            s.spawn(|| {
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    if told.load(Ordering::Acquire) == sent {
                        sent += 1;
                        told.fetch_or(1 << 63, Ordering::AcqRel);
                        eventfd::signal(rings.fd.as_fd());
                    }
                    std::hint::spin_loop();
                }
            });
            let lost = (1..=50_000).find(|seen| {
                while told.load(Ordering::Acquire) >> 63 == 0 {
                    if !watcher.rang(LONG) {
                        return true;
                    }
                }
                told.store(*seen, Ordering::Release);
                false
            });
            done.store(true, Ordering::Relaxed);
            lost
        })
    }
}
