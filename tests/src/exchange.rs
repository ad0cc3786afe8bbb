//! Guests that send numbered frames to each other and check every byte, whatever their NICs are.

use std::time::{Duration, Instant};

use vmlan_driver::chip::Poke;

use crate::in_process_lan;
use crate::numbered::{Progress, Sizes};
use crate::virtio_guest::VirtioGuest;

/// A guest with a NIC.
pub trait TestGuest {
    /// Its number, byte 4 of its MAC addresses.
    fn id(&self) -> u8;
    /// How many flows it sends.
    fn flows(&self) -> u64;
    /// Short frames to it are padded on the way.
    fn expect_padding(&mut self);
    /// Forgets what was sent and expected, for the next round.
    fn start_over(&mut self);
    /// Waits until the device has seen all that was posted to it, receive buffers above all: an
    /// introduction is a broadcast, which does not wait for a receiver whose buffers are on their
    /// way back.
    fn settle(&mut self) {}
    /// Lets the switch know where this guest is: until then frames to it are flooded, and floods do
    /// not wait for a full receiver.
    fn introduce(&mut self);
    /// Sends the next numbered frames of each flow to guest `to`, until there are no slots or
    /// `count` of each are sent; returns how many were sent now.
    fn send_next(&mut self, to: u8, count: u64, sizes: Sizes) -> u64;
    /// Takes all frames that are there; each must be the next of its flow, to guest `to` (0xff:
    /// everybody).
    fn receive_next(&mut self, to: u8, sizes: Sizes) -> u64;
    /// Every descriptor is where it belongs.
    fn assert_sound(&self);
    /// What the guest waits for and where its rings stand, in a line, if it can tell.
    fn explain(&mut self) -> String {
        String::new()
    }
    /// Wakes somebody up who should be awake. A guest that cannot does nothing.
    fn poke(&mut self, _: Poke) {}
}

impl TestGuest for VirtioGuest {
    fn id(&self) -> u8 {
        self.id
    }

    fn flows(&self) -> u64 {
        self.nic.pairs.len() as u64
    }

    fn expect_padding(&mut self) {
        self.expected.padded = true;
    }

    fn start_over(&mut self) {
        VirtioGuest::start_over(self);
    }

    fn introduce(&mut self) {
        VirtioGuest::introduce(self);
    }

    fn send_next(&mut self, to: u8, count: u64, sizes: Sizes) -> u64 {
        VirtioGuest::send_next(self, to, count, sizes)
    }

    fn receive_next(&mut self, to: u8, sizes: Sizes) -> u64 {
        VirtioGuest::receive_next(self, to, sizes)
    }

    fn assert_sound(&self) {
        VirtioGuest::assert_sound(self);
    }

    fn explain(&mut self) -> String {
        format!("{:?}", self.nic.audit())
    }
}

/// What two guests and their ports look like that stand still; then each is poked in turn, and it
/// is told which poke went home: that is the wake-up that was lost.
fn explain_stall(a: &mut dyn TestGuest, b: &mut dyn TestGuest, sizes: Sizes) -> String {
    /// Much longer than anything that is still to come.
    const LONG: Duration = Duration::from_millis(100);
    let mut lines = vec![String::new()];
    let ids = [a.id(), b.id()];
    lines.push(format!("guest {}: {}", ids[0], a.explain()));
    lines.push(format!("guest {}: {}", ids[1], b.explain()));
    lines.extend(in_process_lan::explain_ports());
    let mut moves = |a: &mut dyn TestGuest, b: &mut dyn TestGuest, after: String| {
        let start = Instant::now();
        let mut moved = [0; 2];
        while start.elapsed() < LONG {
            moved[0] += a.receive_next(ids[0], sizes);
            moved[1] += b.receive_next(ids[1], sizes);
        }
        lines.push(format!("after {after} {moved:?} frames came"));
    };
    moves(a, b, "this was asked for".into());
    for poke in Poke::ALL {
        a.poke(poke);
        moves(a, b, format!("guest {}'s {poke:?}", ids[0]));
        b.poke(poke);
        moves(a, b, format!("guest {}'s {poke:?}", ids[1]));
    }
    lines.join("\n  ")
}

/// Both guests send `count` numbered frames on each queue to each other; all arrive, in order,
/// unchanged.
///
/// # Panics
/// When not.
pub fn exchange(a: &mut dyn TestGuest, b: &mut dyn TestGuest, count: u64, sizes: Sizes) {
    a.settle();
    b.settle();
    a.introduce();
    b.introduce();
    exchange_known(a, b, count, sizes);
}

/// As [`exchange`], `rounds` times a few frames, between guests of which one has come to a port
/// that another one left just now. The switch may have still to forget what it learned there, and
/// then forgets the newcomer too, until its next frame: meanwhile frames are flooded, and a flood
/// waits for no full receiver.
///
/// # Panics
/// When not.
pub fn exchange_few(a: &mut dyn TestGuest, b: &mut dyn TestGuest, rounds: u64, sizes: Sizes) {
    (0..rounds).for_each(|_| exchange(a, b, 10, sizes));
}

/// As [`exchange`], between guests that the switch knows: nothing is flooded, so nobody else sees a
/// frame of theirs.
///
/// # Panics
/// When not.
pub fn exchange_known(a: &mut dyn TestGuest, b: &mut dyn TestGuest, count: u64, sizes: Sizes) {
    a.start_over();
    b.start_over();
    let wanted = [b.flows() * count, a.flows() * count];
    let mut got = [0, 0];
    let mut progress = Progress::default();
    while got != wanted {
        let sent = a.send_next(b.id(), count, sizes) + b.send_next(a.id(), count, sizes);
        let now = [a.receive_next(a.id(), sizes), b.receive_next(b.id(), sizes)];
        got = [got[0] + now[0], got[1] + now[1]];
        progress.note(sent + now[0] + now[1], || {
            format!("received {got:?} of {wanted:?}{}", explain_stall(a, b, sizes))
        });
    }
    a.assert_sound();
    b.assert_sound();
}

/// `from` sends `count` numbered frames of each flow to `to`, which receives them all.
///
/// # Panics
/// When not.
pub fn one_way(from: &mut dyn TestGuest, to: &mut dyn TestGuest, count: u64, sizes: Sizes) {
    from.start_over();
    to.start_over();
    from.settle();
    to.settle();
    to.introduce();
    let (mut got, mut progress) = (0, Progress::default());
    while got < count * from.flows() {
        let sent = from.send_next(to.id(), count, sizes);
        from.receive_next(from.id(), sizes);
        let now = to.receive_next(to.id(), sizes);
        got += now;
        progress.note(sent + now, || {
            format!("received {got} of {count}{}", explain_stall(from, to, sizes))
        });
    }
    from.assert_sound();
    to.assert_sound();
}
