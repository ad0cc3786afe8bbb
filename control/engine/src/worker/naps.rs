//! Short sleeps without doorbells.
//!
//! A guest on a `vfio-user:` port stands still from a doorbell to its answer, for which four
//! threads have to wake up one after the other: 20 us where they are awake soon, 300 where idle
//! cores are halted by a hypervisor. One that sends a frame each 30 us, a little less often than a
//! worker spins, would ring for each of them, and be ten times slower. So the worker of such a port
//! lets it nap for a moment first: it sleeps itself, states no wish to this port, and looks: what
//! came meanwhile came without a doorbell. Whoever sends without being answered notices nothing but
//! that. Each port naps by itself: the others' wishes are stated as always.
//!
//! A nap that found nothing is followed by one twice as long, up to [`LONGEST`]: when the first
//! begins, the guest may still wait for the answer to its last doorbell. One that found frames is
//! followed by a short one. If they find nothing at all, or a single frame after an answer to the
//! last one, which they held up, [`PAUSE`] sleeps with doorbells follow: a ping-pong is held up in
//! one of so many round trips, and silence costs three naps.

use vmlan_frame::Port;

/// The first nap, in ns: as long as a sleeper takes to look for buffers that were posted in
/// silence.
const SHORTEST: u64 = 50_000;
/// The last one.
const LONGEST: u64 = 200_000;

/// Sleeps after naps that did not pay until the next one.
const PAUSE: u32 = 64;

/// Frames from and to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    from: u64,
    to: u64,
}

/// The naps of a port whose guest rings dearly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Naps {
    before: Traffic,
    /// It naps so long, in ns; 0: it does not.
    nap: u64,
    until: u64,
    /// Sleeps until the next one.
    pause: u32,
}

impl Naps {
    /// The worker is about to sleep. Says until when the port, if it naps, is not to be armed.
    pub(super) fn next(&mut self, port: &dyn Port, now: u64) -> Option<u64> {
        if !port.rings_dearly() {
            return None;
        }
        let counters = port.counters();
        let (from, to) = (counters.input.frames.get(), counters.output.frames.get());
        self.after(Traffic { from, to }, now)
    }

    fn after(&mut self, traffic: Traffic, now: u64) -> Option<u64> {
        let from = traffic.from.wrapping_sub(self.before.from);
        if from == 0 && self.nap > 0 && now < self.until {
            // Another port ended the sleep.
            return Some(self.until);
        }
        let to = traffic.to.wrapping_sub(self.before.to);
        self.before = traffic;
        self.nap = match self.nap {
            0 if from == 0 => 0,
            0 => {
                self.pause = self.pause.saturating_sub(1);
                if self.pause == 0 { SHORTEST } else { 0 }
            }
            nap if from == 0 && nap < LONGEST => nap * 2,
            _ if from == 0 || from == 1 && to > 0 => {
                self.pause = PAUSE;
                0
            }
            _ => SHORTEST,
        };
        self.until = now.saturating_add(self.nap);
        (self.nap > 0).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port whose naps last as long as they want to.
    #[derive(Default)]
    struct Sleeper {
        naps: Naps,
        now: u64,
    }

    impl Sleeper {
        /// What happens in a sleep and after it, until the next: frames from the port, and to it.
        /// Says how long that is a nap.
        fn sleeps(&mut self, (from, to): (u64, u64)) -> Option<u64> {
            let Traffic { from: old_from, to: old_to } = self.naps.before;
            let traffic = Traffic { from: old_from + from, to: old_to + to };
            let until = self.naps.after(traffic, self.now);
            let length = until.map(|until| until - self.now);
            self.now = until.unwrap_or(self.now + 1_000_000);
            length
        }
    }

    #[test]
    fn a_stream_is_not_asked_to_ring() {
        let mut port = Sleeper::default();
        assert_eq!(port.sleeps((0, 9)), None, "it only receives");
        for _ in 0..100 {
            assert_eq!(port.sleeps((1, 0)), Some(SHORTEST), "each nap brings a frame");
        }
        for _ in 0..100 {
            assert_eq!(port.sleeps((4, 2)), Some(SHORTEST), "it is a stream of TCP");
        }
    }

    #[test]
    fn a_ping_pong_is_rarely_held_up() {
        let mut port = Sleeper::default();
        let napped = (0..10 * (PAUSE + 1)).filter(|_| port.sleeps((1, 1)).is_some()).count();
        assert_eq!(napped, 10);
    }

    #[test]
    fn naps_for_nothing_grow_and_are_not_repeated_soon() {
        let mut port = Sleeper::default();
        assert_eq!(port.sleeps((1, 0)), Some(50_000));
        let quiet: Vec<_> = (0..4).map(|_| port.sleeps((0, 0))).collect();
        assert_eq!(quiet, [Some(100_000), Some(200_000), None, None]);
        let napped = (0..PAUSE).filter(|_| port.sleeps((1, 0)).is_some()).count();
        assert_eq!(napped, 1, "the last of them");
    }

    /// The guest was still waiting for the answer to its doorbell.
    #[test]
    fn a_long_nap_that_found_something_is_followed_by_a_short_one() {
        let mut port = Sleeper::default();
        for traffic in [(1, 0), (0, 0), (0, 0)] {
            assert!(port.sleeps(traffic).is_some());
        }
        assert_eq!(port.sleeps((1, 0)), Some(SHORTEST));
    }

    /// What others do makes a nap neither longer nor shorter, and a ping-pong no stream.
    #[test]
    fn a_sleep_that_another_port_ends_is_no_nap_for_nothing() {
        let mut naps = Naps::default();
        let traffic = |from, to| Traffic { from, to };
        assert_eq!(naps.after(traffic(1, 0), 1_000), Some(51_000));
        for now in (2_000..51_000).step_by(1_000) {
            assert_eq!(naps.after(traffic(1, now / 26_000), now), Some(51_000));
        }
        assert_eq!(naps.after(traffic(2, 1), 51_000), None, "the answer to an answer");
    }
}
