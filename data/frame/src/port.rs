//! A place where frames enter and leave.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{Batch, Counters, FrameView, NicCounters, Offloads, Reason};

/// Receives the frames that a port lends.
pub trait Sink {
    /// Takes the batch. Frames whose verdict is still [`crate::Verdict::Done`] afterwards are
    /// finished with. Those set to [`crate::Verdict::Held`] stay with the port, and a later pull
    /// lends them again, before all others and in the same order.
    fn deliver(&mut self, batch: &mut Batch<'_>);

    /// The port read `bytes` of `frames` that it did not lend, to drop them: its peer is charged as
    /// if they had passed. `frames` is at least 1 and is part of what [`Port::pull`] returns.
    fn skipped(&mut self, _frames: usize, _bytes: u64) {}
}

/// A descriptor that becomes readable when the other side of a port rings.
///
/// Its port owns it. Whoever watches it shares that ownership, so that the descriptor's number is
/// not reused before the watch has ended.
pub type Doorbell = Arc<dyn AsFd + Send + Sync>;

/// Called by a port's thread whenever the port may have come up or gone down, or its doorbells may
/// have changed.
pub type Changed = Arc<dyn Fn() + Send + Sync>;

/// What a port is and how its connection stands: keys and values, for people and for JSON.
pub type Details = Vec<(&'static str, String)>;

/// A place where frames enter and leave: a VM's NIC, a TAP device, a socket, a file.
///
/// A port has two sides, each with its own lock inside. [`Port::pull`] holds the transmit side for
/// as long as the frames are lent, [`Port::push`] the receive side, which is a leaf. So whoever
/// holds both (to replace a memory map, to stop a ring) knows that no frame of this port is
/// borrowed or being written. Order: transmit side, then receive side. A worker may hold the
/// transmit sides of several ports, since [`Port::pull`] never waits for one.
///
/// A port may have several *lanes*: pairs of a transmit and a receive side, each with its locks,
/// for as many queues of a NIC. Frames of one flow keep to a lane. Different workers may pull from
/// different lanes at the same time.
///
/// No method blocks, and each does bounded work.
pub trait Port: Send + Sync {
    /// How many lanes it has, which never changes.
    fn lanes(&self) -> usize {
        1
    }

    /// Lends up to `limit` frames of a lane to `sink`, in `batch`, whose storage is the caller's.
    ///
    /// Returns how many were finished. 0 means that there is nothing to do, or that the port is not
    /// ready, held up, or just being changed by its owner. Work that led to no frame counts as one,
    /// so that it is charged for.
    fn pull(
        &self,
        lane: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize;

    /// Delivers the frames of `batch` that `list` names, in that order, and publishes them
    /// together.
    ///
    /// Returns how many entries of `list` were dealt with: delivered, or dropped and counted for a
    /// reason of this port's own (too long, not ready). The rest found no room. Where one lane has
    /// room and another has not, the entries are put in another order: those dealt with come first,
    /// and those of one flow stay in order. The caller makes sure that [`Port::offloads`] covers
    /// what every frame needs.
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize;

    /// Frames will be pushed soon: asks the CPU for what [`Port::push`] will wait for. Takes no
    /// lock, and promises nothing.
    fn expect(&self) {}

    /// What this port's receiver negotiated.
    fn offloads(&self) -> Offloads;

    /// How many frames of the usual length could be pushed now, and one of any length for certain
    /// if that is not 0. `usize::MAX` if unknown.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// True if [`Batch::source`] decides by which lane frames are delivered.
    fn steers_by_source(&self) -> bool {
        false
    }

    /// The lane by which frame `i` of `batch` is delivered.
    fn lane_for(&self, _batch: &Batch<'_>, _i: usize) -> usize {
        0
    }

    /// As [`Port::room`], of a lane. If it is less than `wanted` the caller waits: as after a push
    /// that found no room, [`Port::want_room`] asks for more than is there.
    fn room_in(&self, _lane: usize, _wanted: usize) -> usize {
        self.room()
    }

    /// True if the port is connected and its driver is ready.
    fn is_up(&self) -> bool;

    /// True if the same peer is there as before, whatever state its driver is in. A guest can take
    /// its port down and up as often as it likes, but only its VMM can connect anew.
    fn is_connected(&self) -> bool {
        self.is_up()
    }

    /// Asks the other side to ring when it sends by a lane: the worker is about to sleep. Returns
    /// true if frames are waiting already, in which case it must not sleep. Held frames do not
    /// count: it is their receiver that is waited for.
    fn arm(&self, lane: usize) -> bool;

    /// True while a thread of its own has its locks or wants them: workers pass it by, and it may
    /// say of frames and of room that there are some. That thread may be kept from running for
    /// long, so a worker sleeps, and looks again by a timer.
    fn is_being_changed(&self) -> bool {
        false
    }

    /// Tells the other side not to ring: the worker is awake and looks by itself.
    fn disarm(&self, lane: usize);

    /// Asks for a doorbell when receive buffers are posted, since a sender waits for room. Returns
    /// true if there is room already.
    fn want_room(&self) -> bool {
        true
    }

    /// The doorbells of a lane. Watched edge-triggered and never read by the worker, so a hostile
    /// peer cannot park it there.
    fn doorbells(&self, _lane: usize) -> Vec<Doorbell> {
        Vec::new()
    }

    /// Changes whenever [`Port::doorbells`] does.
    fn doorbells_version(&self) -> u64 {
        0
    }

    /// How long its worker may sleep while this port is armed, if some of its doorbells are words
    /// in shared memory, which wake nobody: the port is looked at once in this time.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// True if its guest may post receive buffers without ringing: whoever holds frames for it has
    /// to look again.
    fn posts_silently(&self) -> bool {
        self.poll_interval().is_some()
    }

    /// True if its guest rings only when it is asked to, and stands still until each doorbell is
    /// answered: it is better looked at again soon than asked to ring.
    fn rings_dearly(&self) -> bool {
        false
    }

    /// True if its rings and buffers are a guest's memory, which may make a worker sleep.
    fn is_guest(&self) -> bool {
        false
    }

    /// What an emulated NIC counts besides frames. Not for the data path.
    fn device(&self) -> Option<NicCounters> {
        None
    }

    /// Called when a doorbell of this port ended a worker's sleep. Ports whose doorbells count
    /// themselves (eventfds) do nothing here: see [`Port::count_doorbells`].
    fn rang(&self) {}

    /// Brings counters up to date that the kernel keeps: of doorbells, of frames that it lost.
    /// Called when the counters are about to be read, never on the data path.
    fn count_doorbells(&self) {}

    /// Its counters.
    fn counters(&self) -> &Counters;
}

/// Watches frames pass: a capture file.
pub trait Mirror: Send + Sync {
    /// A frame passed `interface` (the number that the mirror gave that port).
    ///
    /// `outgoing`: it was delivered to the port, else it came from it. `dropped`: it went no
    /// further. Must not block: what does not fit a bounded queue is lost to the mirror, which
    /// counts it.
    fn capture(
        &self,
        interface: u32,
        outgoing: bool,
        frame: &FrameView<'_, '_>,
        dropped: Option<Reason>,
    );
}
