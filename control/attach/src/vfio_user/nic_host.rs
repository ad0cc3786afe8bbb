//! What a NIC needs from the outside: interrupts, a timer, the worker's doorbell.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vmlan_nic::Interrupt;
use vmlan_nic::chip::Host;
use vmlan_nic::notify::moderate::Clock;
use vmlan_ram::full_fence;

use crate::eventfd;
use crate::interrupt_cost::InterruptCost;
use crate::interrupt_eventfd::{InterruptEventFd, drop_last};
use crate::timer::Timer;
use crate::waker::Waker;
use vmlan_nic::chip::Nic;

/// Most vectors that a NIC can have: one message can name them all.
const VECTORS: usize = vmlan_keeper::MAX_FDS;

/// A kind of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    None,
    /// By the pin.
    Intx,
    /// By messages.
    Msi,
    /// By messages of several vectors.
    Msix,
}

/// The interrupts of one client.
#[derive(Debug)]
struct Lines {
    intx: InterruptEventFd,
    /// INTx masks itself when it is delivered, and stays so until the client says otherwise
    /// (AUTOMASKED).
    masked: AtomicBool,
    msi: InterruptEventFd,
    /// Of MSI-X.
    vectors: [InterruptEventFd; VECTORS],
}

impl Lines {
    fn new(cost: &Arc<InterruptCost>) -> Self {
        let line = || InterruptEventFd::new(Arc::clone(cost));
        Self {
            intx: line(),
            masked: AtomicBool::new(false),
            msi: line(),
            vectors: std::array::from_fn(|_| line()),
        }
    }

    /// Those of a kind, by vector. INTx and MSI have one.
    fn of(&self, mode: Mode) -> &[InterruptEventFd] {
        match mode {
            Mode::None => &[],
            Mode::Intx => slice::from_ref(&self.intx),
            Mode::Msi => slice::from_ref(&self.msi),
            Mode::Msix => &self.vectors,
        }
    }

    fn raised(&self) -> u64 {
        let kinds = [Mode::Intx, Mode::Msi, Mode::Msix];
        kinds.into_iter().flat_map(|mode| self.of(mode)).map(InterruptEventFd::raised).sum()
    }
}

/// The host of one port's NIC.
#[derive(Debug)]
pub struct NicHost {
    lines: Mutex<Arc<Lines>>,
    /// Interrupts of the clients before this one.
    before: AtomicU64,
    /// This client's interrupts are broken.
    stuck: AtomicBool,
    cost: Arc<InterruptCost>,
    timer: Timer,
    bell: Arc<OwnedFd>,
    waker: Arc<Waker>,
}

impl NicHost {
    /// A host without a client. `waker` is told when a client's interrupt is found to be broken.
    pub fn new(waker: Arc<Waker>) -> std::io::Result<Self> {
        let cost = Arc::default();
        Ok(Self {
            lines: Mutex::new(Arc::new(Lines::new(&cost))),
            before: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            cost,
            timer: Timer::new()?,
            bell: Arc::new(eventfd::new()?),
            waker,
        })
    }

    fn lines(&self) -> Arc<Lines> {
        Arc::clone(&self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets the client: its descriptors are closed once the writes under way have ended, which
    /// are waited for.
    pub fn disconnect(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *lines, Arc::new(Lines::new(&self.cost)));
        self.stuck.store(false, Ordering::Relaxed);
        drop(lines);
        self.before.fetch_add(old.raised(), Ordering::Relaxed);
        drop_last(old);
    }

    /// Connects an interrupt to an eventfd, or takes its eventfd away. INTx starts unmasked; a
    /// message that found no eventfd at its vector is not sent again.
    pub fn set(&self, (mode, vector): (Mode, u16), fd: Option<OwnedFd>, nic: &dyn Nic) {
        let lines = self.lines();
        let Some(line) = lines.of(mode).get(usize::from(vector)) else { return };
        line.set(fd);
        match mode {
            Mode::Intx if line.is_connected() => self.unmask(nic),
            Mode::Msi if line.is_connected() => self.again(nic),
            _ => {}
        }
    }

    /// All interrupts that have an eventfd, and these.
    pub fn connected(&self) -> Vec<((Mode, u16), Arc<File>)> {
        let lines = self.lines();
        let of = |mode: Mode| {
            let fds = (0..).zip(lines.of(mode));
            fds.filter_map(move |(vector, line)| Some(((mode, vector), line.fd()?)))
        };
        [Mode::Intx, Mode::Msi, Mode::Msix].into_iter().flat_map(of).collect()
    }

    /// Raises all interrupts that have an eventfd, whatever their masks say: one too many finds no
    /// cause, one too few hangs the guest.
    pub fn raise_all(&self) {
        let lines = self.lines();
        for mode in [Mode::Intx, Mode::Msi, Mode::Msix] {
            let connected = lines.of(mode).iter().filter(|line| line.is_connected());
            connected.for_each(|line| self.write(&lines, line));
        }
    }

    /// Takes away all eventfds of a kind.
    pub fn cut(&self, mode: Mode) {
        self.lines().of(mode).iter().for_each(|line| line.set(None));
    }

    pub fn mask(&self) {
        self.lines().masked.store(true, Ordering::SeqCst);
    }

    /// Unmasks INTx, and delivers it again if its cause still stands.
    pub fn unmask(&self, nic: &dyn Nic) {
        self.lines().masked.store(false, Ordering::SeqCst);
        self.again(nic);
    }

    /// The chip may assert its pin at the same time: with the fence, it sees the mask cleared or we
    /// see the pin asserted.
    fn again(&self, nic: &dyn Nic) {
        full_fence();
        nic.reassert();
    }

    /// Delivers an interrupt because the client asks for one, to test its set-up.
    pub fn trigger(&self, (mode, vector): (Mode, u16)) {
        let lines = self.lines();
        if let Some(line) = lines.of(mode).get(usize::from(vector)) {
            self.write(&lines, line);
        }
    }

    fn write(&self, lines: &Arc<Lines>, call: &InterruptEventFd) {
        call.raise();
        if call.is_stuck() {
            self.give_up(lines);
        }
    }

    /// By the time a worker comes back from a write that hung, the client may have gone, and
    /// another may be there that has done nothing. The cost is charged in any case.
    #[cold]
    fn give_up(&self, lines: &Arc<Lines>) {
        let now = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = Arc::ptr_eq(&now, lines) && !self.stuck.swap(true, Ordering::Relaxed);
        drop(now);
        if stuck || self.cost.is_broken() {
            self.waker.wake();
        }
    }

    /// What interrupts have cost, of all clients.
    pub fn cost(&self) -> &InterruptCost {
        &self.cost
    }

    /// A write to an interrupt failed, hung, or was slow again and again: the client tampers with
    /// it.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// How the client wants its interrupts now.
    pub fn mode(&self) -> Mode {
        let lines = self.lines();
        let vectors = lines.vectors.iter().any(InterruptEventFd::is_connected);
        match (vectors, lines.msi.is_connected(), lines.intx.is_connected()) {
            (true, _, _) => Mode::Msix,
            (_, true, _) => Mode::Msi,
            (_, _, true) => Mode::Intx,
            _ => Mode::None,
        }
    }

    /// Interrupts delivered to all clients so far.
    pub fn raised(&self) -> u64 {
        self.before.load(Ordering::Relaxed) + self.lines().raised()
    }

    pub fn timer_fd(&self) -> BorrowedFd<'_> {
        self.timer.fd()
    }

    pub fn take_timer(&self) {
        self.timer.take();
    }

    /// The eventfd that wakes the port's worker. Ours alone.
    pub fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }
}

impl Host for NicHost {
    fn now(&self) -> u64 {
        self.timer.now()
    }

    fn set_timer(&self, at: u64) {
        self.timer.set_timer(at);
    }

    fn raise(&self) {
        let lines = self.lines();
        if lines.msi.is_connected() {
            self.write(&lines, &lines.msi);
        } else if lines.intx.is_connected() && !lines.masked.swap(true, Ordering::SeqCst) {
            self.write(&lines, &lines.intx);
        }
    }

    fn send(&self, vector: u16) {
        self.trigger((Mode::Msix, vector));
    }

    fn doorbell(&self) {
        eventfd::signal(self.bell.as_fd());
    }
}
