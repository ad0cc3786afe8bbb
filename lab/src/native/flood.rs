//! Guests that flood, many of them in one thread: it fills all rings in turn and empties what has
//! arrived, by polling, and sleeps for a moment when there was little to do. So a flood costs
//! little beside the switch that has to carry it. Virtio-net; frames lie ready in all slots, and
//! only descriptors are touched.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use vmlan_driver::nic::{Receive, Transmit};
use vmlan_tools::AnyNic;
use vmlan_transport::{Address, Mac};

use crate::failure::Failure;
use vmlan_frame::error_chain;
use vmlan_harness::Pin;

/// Sleep when little has moved; with the way in and out of the kernel it lasts about twice as long.
const NAP: Duration = Duration::from_micros(30);
/// Where nobody else needs the core: time between two looks at the rings. Looking takes their cache
/// lines from the switch.
const GAP: Duration = Duration::from_micros(4);
/// A paced guest sends when so much of a second is due, in one burst.
const BURSTS_PER_SECOND: u64 = 10_000;
/// A longer stall is not made up for.
const MOST_BEHIND: Duration = Duration::from_millis(10);
/// Largest frame.
const ROOM: usize = 1514;
/// Rate that stands for all there is.
pub(crate) const ALL: u64 = u64::MAX;

/// What the thread does while little moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It sleeps, and leaves the core to the guests beside it.
    Nap,
    /// It stays awake: a worker that serves two ports empties a ring within 50 us.
    Spin,
}

/// A guest's place at the switch, and whom it sends to.
pub(crate) struct FloodGuest {
    /// Its port.
    pub(crate) port: String,
    pub(crate) mac: Mac,
    pub(crate) to: Mac,
}

/// Orders to a guest, and what it has done.
#[derive(Default)]
struct Dial {
    bytes: AtomicU32,
    /// Frames a second.
    rate: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// What a guest has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// Frames that the switch took.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// The thread. It ends when this is dropped.
pub(crate) struct Flood {
    dials: Vec<Arc<Dial>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Connects the guests (address, guest) and tells the switch where they are. They are
    /// silent.
    pub(super) fn start(
        guests: &[(String, &FloodGuest)],
        idle: Idle,
        pin: Pin,
    ) -> Result<Self, Failure> {
        let mut nics = Vec::new();
        for (address, guest) in guests {
            nics.push(Nic::open(address, guest)?);
        }
        let dials = nics.iter().map(|n| n.dial.clone()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let run = move || run(nics, idle, &ends);
        let thread = pin.around(|| Builder::new().name("flood".into()).spawn(run));
        let thread = thread.map_err(|e| Failure::Failed(format!("no thread: {e}")))?;
        Ok(Self { dials, stop, thread: Some(thread) })
    }

    /// From now on guest `at` sends so many frames a second ([`ALL`]: all there is; 0: none) of
    /// so many bytes.
    pub(crate) fn order(&self, at: usize, bytes: u32, rate: u64) {
        self.dials[at].bytes.store(bytes, Relaxed);
        self.dials[at].rate.store(rate, Relaxed);
    }

    /// The same for all.
    pub(crate) fn order_all(&self, bytes: u32, rate: u64) {
        (0..self.dials.len()).for_each(|at| self.order(at, bytes, rate));
    }

    pub(crate) fn done(&self, at: usize) -> Done {
        let dial = &self.dials[at];
        let [sent, received] = [&dial.sent, &dial.received].map(|n| n.load(Relaxed));
        Done { sent, received }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not fail; if it did, its figures would show that.
            let _ = thread.join();
        }
    }
}

fn run(mut nics: Vec<Nic>, idle: Idle, stop: &AtomicBool) {
    vmlan_transport::sys::exact_timers();
    let start = Instant::now();
    while !stop.load(Relaxed) {
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let busy = nics.iter_mut().fold(false, |busy, nic| nic.pass(now) | busy);
        if busy {
            continue;
        }
        match idle {
            Idle::Nap => sleep(NAP),
            Idle::Spin => spin(),
        }
    }
}

fn spin() {
    let end = Instant::now() + GAP;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

/// A guest's device.
struct Nic {
    device: AnyNic,
    batch: <AnyNic as Receive>::Batch,
    dial: Arc<Dial>,
    /// Frames posted so far.
    posted: u64,
    pace: Pace,
}

/// Frames that are due at a rate.
#[derive(Default)]
struct Pace {
    rate: u64,
    since: u64,
    spent: u64,
}

impl Pace {
    /// Frames that may be sent at `now`.
    fn due(&mut self, rate: u64, now: u64) -> u64 {
        if rate == ALL || rate == 0 {
            self.rate = rate;
            return rate;
        }
        if rate != self.rate {
            *self = Self { rate, since: now, spent: 0 };
        }
        let per = |time: u64| u128::from(time) * u128::from(rate) / 1_000_000_000;
        let earned = u64::try_from(per(now.saturating_sub(self.since))).unwrap_or(u64::MAX);
        let behind = u64::try_from(MOST_BEHIND.as_nanos()).unwrap_or(u64::MAX);
        let most = u64::try_from(per(behind)).unwrap_or(u64::MAX).max(1);
        self.spent = self.spent.max(earned.saturating_sub(most));
        let due = earned - self.spent;
        if due < (rate / BURSTS_PER_SECOND).max(1) { 0 } else { due }
    }
}

impl Nic {
    fn open(address: &str, guest: &FloodGuest) -> Result<Self, Failure> {
        let wrong =
            |e: &dyn std::error::Error| Failure::Failed(format!("{address}: {}", error_chain(&e)));
        let place: Address = address.parse().map_err(|e| wrong(&e))?;
        let device = AnyNic::open(&place, Some(ROOM), super::PATIENCE).map_err(|e| wrong(&e))?;
        let batch = device.batch(0);
        Ok(Self { device, batch, dial: Arc::default(), posted: 0, pace: Pace::default() }
            .prepared(guest))
    }

    /// Announced to the switch, and with a frame in each slot.
    fn prepared(mut self, guest: &FloodGuest) -> Self {
        const BROADCAST: Mac = Mac([0xff; 6]);
        let hello = frame(guest.mac, BROADCAST);
        self.device.reap(0);
        if let Some(slot) = self.device.next(0) {
            self.device.write(0, slot, 0, &hello[..60]);
            self.device.send(0, slot, 60);
            self.device.flush(0);
        }
        let end = Instant::now() + Duration::from_secs(1);
        while self.device.reap(0) < self.device.slots(0) && Instant::now() < end {
            sleep(NAP);
        }
        let frame = frame(guest.mac, guest.to);
        (0..self.device.slots(0)).for_each(|slot| self.device.write(0, slot, 0, &frame));
        self
    }

    /// Moves what there is; true if that was much, and more may be there already.
    fn pass(&mut self, now: u64) -> bool {
        let slots = u64::from(self.device.slots(0));
        let received = self.device.poll(0, &mut self.batch, usize::MAX) as u64;
        if received > 0 {
            self.device.release(0, &mut self.batch);
            self.dial.received.fetch_add(received, Relaxed);
        }
        let free = u64::from(self.device.reap(0));
        self.dial.sent.store(self.posted - (slots - free), Relaxed);
        let rate = self.dial.rate.load(Relaxed);
        let due = self.pace.due(rate, now).min(free);
        if due > 0 {
            let due = u32::try_from(due).unwrap_or(u32::MAX);
            let sent = self.device.send_filled(0, due, self.dial.bytes.load(Relaxed));
            self.device.flush(0);
            self.posted += u64::from(sent);
            self.pace.spent += u64::from(sent);
        }
        due.max(received) * 8 >= slots
    }
}

/// IPv4, UDP, 46 bytes of it, and padding up to the largest size: whole at whatever length it is
/// sent.
fn frame(from: Mac, to: Mac) -> Vec<u8> {
    let ip = |mac: Mac| [10, 0, mac.0[4], mac.0[5]];
    let mut head = vec![0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0];
    head.extend(ip(from));
    head.extend(ip(to));
    let sum: u32 = head.chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0);
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    // Ports, length, and no checksum.
    let udp = [0x04, 0xd2, 0x16, 0x2e, 0, 26, 0, 0];
    let mut frame = [&to.0[..], &from.0, &[8, 0], &head, &udp].concat();
    frame.resize(ROOM, 0x5a);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_a_sum_that_adds_up() {
        let frame = frame(Mac([2, 0, 0, 0, 1, 7]), Mac([2, 0, 0, 0, 2, 9]));
        let sum: u32 =
            frame[14..34].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!((&frame[..2], &frame[26..34]), (&[2, 0][..], &[10, 0, 1, 7, 10, 0, 2, 9][..]));
    }

    #[test]
    fn a_pace_is_kept_in_bursts_and_a_stall_is_not_made_up_for() {
        let mut pace = Pace::default();
        assert_eq!(pace.due(100_000, 5), 0);
        assert_eq!(pace.due(100_000, 50_005), 0, "five frames are no burst");
        assert_eq!(pace.due(100_000, 200_005), 20);
        pace.spent += 20;
        assert_eq!(pace.due(100_000, 1_000_000_005), 1000, "10 ms, not a second");
        assert_eq!(pace.due(0, 1_000_000_006), 0);
        assert_eq!(pace.due(ALL, 1_000_000_007), ALL);
    }
}
