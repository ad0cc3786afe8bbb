//! Short sleeps without doorbells.
//!
//! A guest on a `vfio-user:` port stands still from a doorbell to its answer, for which four
//! threads have to wake up one after the other: 20 us where they are awake soon, 300 where idle
//! cores are halted by a hypervisor. One that sends a frame each 30 us, a little less often than a
//! worker spins, would ring for each of them, and be ten times slower. So the worker of such a port
//! sleeps for a moment first, states no wish, and looks: what came meanwhile came without a
//! doorbell. Whoever sends without being answered notices nothing but that.
//!
//! A nap that found nothing is followed by one twice as long, up to [`LONGEST`]: when the first
//! begins, the guest may still wait for the answer to its last doorbell. One that found frames is
//! followed by a short one. If they find nothing at all, or a single frame after an answer to the
//! last one, which they held up, [`PAUSE`] sleeps with doorbells follow: a ping-pong is held up in
//! one of so many round trips, and silence costs three naps.

use std::time::Duration;

use vmlan_frame::Port;
use vmlan_switch::PortId;

/// The first nap, as long as a sleeper takes to look for buffers that were posted in silence.
const SHORTEST: Duration = Duration::from_micros(50);
/// The last one.
const LONGEST: Duration = Duration::from_micros(200);

/// Sleeps after naps that did not pay until the next one.
const PAUSE: u32 = 64;

/// Frames from and to the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    from: u64,
    to: u64,
}

/// The ports of a worker whose guests ring dearly, as of the last arming.
#[derive(Debug, Default)]
pub(super) struct Naps {
    ports: Vec<PortId>,
    now: Traffic,
    before: Traffic,
    /// This sleep is one, so long.
    nap: Option<Duration>,
    /// Sleeps until the next one.
    pause: u32,
}

impl Naps {
    /// The worker is about to sleep: forgets all ports.
    pub(super) fn begin(&mut self) {
        self.ports.clear();
        self.now = Traffic::default();
    }

    /// One of the worker's ports. True: [`Naps::end`] decides whether it is armed.
    pub(super) fn add(&mut self, id: PortId, port: &dyn Port) -> bool {
        if !port.rings_dearly() {
            return false;
        }
        let counters = port.counters();
        self.ports.push(id);
        self.now.from = self.now.from.wrapping_add(counters.input.frames.get());
        self.now.to = self.now.to.wrapping_add(counters.output.frames.get());
        true
    }

    /// All are added: true if they stay unarmed for [`Naps::timeout`].
    pub(super) fn end(&mut self) -> bool {
        let from = self.now.from.wrapping_sub(self.before.from);
        let to = self.now.to.wrapping_sub(self.before.to);
        self.before = self.now;
        self.nap = match self.nap {
            Some(nap) if from == 0 && nap < LONGEST => Some(nap * 2),
            Some(_) if from == 0 || from == 1 && to > 0 => {
                self.pause = PAUSE;
                None
            }
            None if from == 0 => None,
            _ => {
                self.pause = self.pause.saturating_sub(1);
                (self.pause == 0).then_some(SHORTEST)
            }
        };
        self.nap.is_some()
    }

    /// How long to sleep at most.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.nap
    }

    /// The ports, in any case.
    pub(super) fn ports(&self) -> &[PortId] {
        &self.ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens in a sleep and after it, until the next: frames from the port, and to it.
    fn sleeps(naps: &mut Naps, traffic: (u64, u64)) -> bool {
        naps.now = Traffic { from: naps.before.from + traffic.0, to: naps.before.to + traffic.1 };
        naps.end()
    }

    #[test]
    fn a_stream_is_not_asked_to_ring() {
        let mut naps = Naps::default();
        assert!(!sleeps(&mut naps, (0, 9)), "it only receives");
        for _ in 0..100 {
            assert!(sleeps(&mut naps, (1, 0)), "each nap brings a frame");
        }
        for _ in 0..100 {
            assert!(sleeps(&mut naps, (4, 2)), "it is a stream of TCP");
        }
    }

    #[test]
    fn a_ping_pong_is_rarely_held_up() {
        let mut naps = Naps::default();
        let napped = (0..10 * (PAUSE + 1)).filter(|_| sleeps(&mut naps, (1, 1))).count();
        assert_eq!(napped, 10);
    }

    #[test]
    fn naps_for_nothing_grow_and_are_not_repeated_soon() {
        let mut naps = Naps::default();
        assert!(sleeps(&mut naps, (1, 0)));
        let mut slept = SHORTEST;
        while sleeps(&mut naps, (0, 0)) {
            slept += naps.timeout().unwrap();
        }
        assert_eq!((slept, naps.timeout()), (Duration::from_micros(350), None));
        assert!(!sleeps(&mut naps, (0, 0)), "silence");
        let napped = (0..PAUSE).filter(|_| sleeps(&mut naps, (1, 0))).count();
        assert_eq!((napped, naps.timeout()), (1, Some(SHORTEST)));
    }

    /// The guest was still waiting for the answer to its doorbell.
    #[test]
    fn a_long_nap_that_found_something_is_followed_by_a_short_one() {
        let mut naps = Naps::default();
        for traffic in [(1, 0), (0, 0), (0, 0), (1, 0)] {
            assert!(sleeps(&mut naps, traffic));
        }
        assert_eq!(naps.timeout(), Some(SHORTEST));
    }
}
