//! The lanes of a port, one for each pair of queues: their locks, and which frames go to which.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use vmlan_frame::BATCH;
use vmlan_nic::virtio::{NetRx, NetTx};
use vmlan_ram::Lines;

use super::MAX_PAIRS;
use super::sides::Side;

const LANES: usize = MAX_PAIRS as usize;
const _: () = assert!(LANES <= u64::BITS as usize);

/// A transmit and a receive side, each behind its lock. Aligned so that workers which serve
/// different lanes share no cache line.
#[derive(Default)]
#[repr(align(128))]
#[allow(missing_docs, reason = "the names say it")]
pub struct Lane {
    pub tx: Mutex<Side<NetTx>>,
    pub rx: Mutex<Side<NetRx>>,
    /// What the next push touches.
    pub next: Lines,
}

impl Lane {
    pub fn new(number: usize) -> Self {
        let tx = Mutex::new(Side { net: NetTx::of_lane(number), ..Side::default() });
        let rx = Mutex::new(Side { net: NetRx::of_lane(number), ..Side::default() });
        Self { tx, rx, next: Lines::default() }
    }
}

/// The lanes whose receive side is ready. Read without a lock: whoever comes while they change
/// delivers to one that was ready a moment ago.
pub struct Receivers {
    lanes: Box<[AtomicU8]>,
    /// How many there are; the others' places mean nothing.
    ready: AtomicUsize,
}

impl Receivers {
    pub fn new(lanes: usize) -> Self {
        let lanes = (0..lanes).map(|_| AtomicU8::new(0)).collect();
        Self { lanes, ready: AtomicUsize::new(0) }
    }

    /// Says of each lane whether it is ready. Returns whether some are.
    pub fn set(&self, ready: impl Iterator<Item = bool>) -> bool {
        let numbers = (0u8..).zip(ready).filter_map(|(n, ready)| ready.then_some(n));
        let places = self.lanes.iter().zip(numbers);
        let count = places.map(|(place, n)| place.store(n, Ordering::Relaxed)).count();
        self.ready.store(count, Ordering::Release);
        count > 0
    }

    /// How many there are.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    /// The lane at a place below what [`Receivers::ready`] said; some lane, if that is 0.
    #[inline]
    pub fn of(&self, place: usize) -> usize {
        self.lanes.get(place).map_or(0, |n| n.load(Ordering::Relaxed).into())
    }
}

/// The entries of a list, lane by lane; in each lane they keep their order.
pub struct Steered {
    entries: [u16; BATCH],
    /// The lanes that have some, each a bit.
    lanes: u64,
    /// Where each lane's part of the entries begins, and the last one's ends.
    starts: [u16; LANES + 1],
    /// How many of each lane's entries were dealt with.
    dealt: [u16; LANES],
}

impl Steered {
    /// At most [`BATCH`] entries are taken from the list. `lane` says for a frame where it goes.
    pub fn new(list: &[u16], lane: impl Fn(usize) -> usize) -> Self {
        let mut of_entries = [0u8; BATCH];
        let mut counts = [0u16; LANES];
        let mut lanes = 0;
        for (place, entry) in of_entries.iter_mut().zip(list) {
            let lane = lane(usize::from(*entry)) % LANES;
            *place = u8::try_from(lane).unwrap_or(0);
            lanes |= 1 << lane;
            if let Some(count) = counts.get_mut(lane) {
                *count += 1;
            }
        }
        let mut starts = [0; LANES + 1];
        let mut start = 0;
        for (place, count) in starts.iter_mut().skip(1).zip(counts) {
            start += count;
            *place = start;
        }
        let mut entries = [0; BATCH];
        let mut next = starts;
        for (lane, entry) in of_entries.iter().zip(list) {
            let Some(at) = next.get_mut(usize::from(*lane)) else { continue };
            if let Some(place) = entries.get_mut(usize::from(*at)) {
                *place = *entry;
            }
            *at += 1;
        }
        Self { entries, lanes, starts, dealt: [0; LANES] }
    }

    fn part(&self, lane: usize) -> &[u16] {
        let bounds = self.starts.get(lane..lane + 2).unwrap_or_default();
        let [start, end] = bounds else { return &[] };
        self.entries.get(usize::from(*start)..usize::from(*end)).unwrap_or_default()
    }

    /// The lanes that have entries, each a bit.
    pub fn lanes(&self) -> u64 {
        self.lanes
    }

    /// Has the entries of a lane dealt with by `push`, which says how many were, from the first on.
    pub fn push(&mut self, lane: usize, push: impl FnOnce(&[u16]) -> usize) {
        let part = self.part(lane);
        let done = push(part).min(part.len());
        if let Some(dealt) = self.dealt.get_mut(lane) {
            *dealt = u16::try_from(done).unwrap_or(0);
        }
    }

    /// Puts the list that this was made of into the order in which its entries were dealt with.
    /// Returns how many were; the others follow them.
    pub fn order(&self, list: &mut [u16]) -> usize {
        let done = self.dealt.iter().map(|n| usize::from(*n)).sum();
        if done == list.len() {
            return done;
        }
        let halves = |n: usize| {
            let dealt = self.dealt.get(n).copied().unwrap_or(0);
            self.part(n).split_at(usize::from(dealt))
        };
        let dealt = || (0..LANES).flat_map(|n| halves(n).0);
        let rest = (0..LANES).flat_map(|n| halves(n).1);
        list.iter_mut().zip(dealt().chain(rest)).for_each(|(place, entry)| *place = *entry);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(receivers: &Receivers) -> Vec<usize> {
        (0..receivers.ready()).map(|place| receivers.of(place)).collect()
    }

    #[test]
    fn frames_go_to_lanes_that_are_ready() {
        let receivers = Receivers::new(4);
        assert_eq!((receivers.ready(), receivers.of(0)), (0, 0));
        assert!(receivers.set([false, true, false, true].into_iter()));
        assert_eq!(ready(&receivers), [1, 3]);
        assert!(!receivers.set([false; 4].into_iter()));
        assert!(ready(&receivers).is_empty());
    }

    /// Lane 2 has no room for its last two, lane 0 for its last: they come last, and nobody
    /// overtakes within a lane.
    #[test]
    fn what_was_dealt_with_comes_first() {
        let mut list = [9, 4, 7, 2, 5, 8, 1, 0];
        let mut steered = Steered::new(&list, |i| i % 3);
        assert_eq!(steered.lanes(), 0b111);
        let mut seen = Vec::new();
        for (lane, room) in [(1, 9), (2, 1), (0, 1)] {
            steered.push(lane, |part| {
                seen.push(part.to_vec());
                room
            });
        }
        assert_eq!(seen, [vec![4, 7, 1], vec![2, 5, 8], vec![9, 0]]);
        assert_eq!(steered.order(&mut list), 5);
        assert_eq!(list, [9, 4, 7, 1, 2, 0, 5, 8]);
    }

    #[test]
    fn a_lane_that_was_passed_by_has_dealt_with_nothing() {
        let all: Vec<u16> = (0..).take(BATCH).collect();
        let mut list = all.clone();
        let mut steered = Steered::new(&list, |i| i % 2 + 62);
        assert_eq!(steered.lanes(), 1 << 62 | 1 << 63);
        steered.push(63, <[u16]>::len);
        assert_eq!(steered.order(&mut list), BATCH / 2);
        let odd_first =
            all.iter().filter(|n| *n % 2 == 1).chain(all.iter().filter(|n| *n % 2 == 0));
        assert!(list.iter().eq(odd_first));
    }
}
