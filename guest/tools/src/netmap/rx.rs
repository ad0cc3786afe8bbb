//! Receive rings.

use super::cursors::Cursors;
use super::ring::Ring;
use vmlan_driver::nic::{Nic, Receive};
use vmlan_transport::numbers::narrow16;

/// Room for the longest frame there is: 64 KiB that were not segmented.
const LONGEST: usize = 1 << 17;

/// What a port keeps of a receive ring. Slot `seen + n` is the `n`th frame of the batch.
#[derive(Debug)]
pub(super) struct RxRing<B> {
    pub(super) at: Cursors,
    own: Received<B>,
}

/// Received frames, and room to copy one of them to.
#[derive(Debug)]
pub struct Received<B> {
    batch: B,
    scratch: Box<[u8]>,
}

impl<B> RxRing<B> {
    pub(super) fn new<N: Receive<Batch = B>>(device: &N, lane: usize) -> Self {
        let at = Cursors::new(device.posted(lane).saturating_add(1));
        Self { at, own: Received { batch: device.batch(lane), scratch: vec![0; LONGEST].into() } }
    }

    /// Gives back what lies before `head`, and takes what has come.
    #[inline]
    pub(super) fn sync<N: Receive<Batch = B>>(&mut self, device: &mut N, lane: usize) {
        let count = self.at.given();
        if count > 0 {
            device.release_first(lane, &mut self.own.batch, count.into());
            self.at.sync();
        }
        let held = device.poll(lane, &mut self.own.batch, usize::from(self.at.slots() - 1));
        self.at.set_owned(narrow16(held as u64));
    }

    /// For the program.
    #[inline]
    pub(super) fn lend<'a, N: Nic<Batch = B>>(
        &'a mut self,
        device: &'a N,
        lane: usize,
    ) -> Rx<'a, N> {
        Ring { device, lane, at: &mut self.at, own: &mut self.own }
    }

    /// Is every slot the program's?
    pub(super) fn is_full(&self) -> bool {
        self.at.owned() + 1 == self.at.slots()
    }

    /// Gives everything back, read or not.
    pub(super) fn clear<N: Receive<Batch = B>>(&mut self, device: &mut N, lane: usize) {
        device.release(lane, &mut self.own.batch);
        self.at = Cursors::new(self.at.slots());
    }
}

/// A receive ring. The program owns the slots from `head` up to, but not including, `tail`: each
/// has a frame. It moves `head` past those it has done with, in order, and keeps the others;
/// [`rxsync`](super::Port::rxsync) gives the former back and brings new ones.
pub type Rx<'a, N> = Ring<'a, N, Received<<N as Receive>::Batch>>;

impl<N: Nic> Rx<'_, N> {
    /// A slot, with its frame.
    ///
    /// # Panics
    /// When it is not between `head` and `tail`: the device may be writing it.
    #[inline]
    pub fn slot(&mut self, at: u16) -> RxSlot<'_, N> {
        let at = usize::from(self.at.place(at));
        let Received { batch, scratch } = &mut *self.own;
        RxSlot { device: self.device, lane: self.lane, batch, at, scratch }
    }

    /// Moves `head`, and `cur` where it would be left behind: the next sync gives the slots before
    /// it back.
    ///
    /// # Panics
    /// When `to` is not from `head` to `tail`.
    #[inline]
    pub fn set_head(&mut self, to: u16) {
        self.at.set_head(to);
    }

    /// The frame at `head`, copied to memory of the program's own; moves `head` and `cur` past it.
    #[inline]
    pub fn pop(&mut self) -> Option<&mut [u8]> {
        if self.is_empty() {
            return None;
        }
        let place = usize::from(self.at.given());
        self.at.step();
        let Received { batch, scratch } = &mut *self.own;
        let len = self.device.read(self.lane, batch, place, scratch);
        Some(&mut scratch[..len])
    }
}

/// A receive slot: a frame in memory that the device shares, so its bytes are copied before anybody
/// looks at them.
#[derive(Debug)]
pub struct RxSlot<'a, N: Nic> {
    device: &'a N,
    lane: usize,
    batch: &'a N::Batch,
    at: usize,
    scratch: &'a mut [u8],
}

impl<'a, N: Nic> RxSlot<'a, N> {
    /// Bytes of the frame.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // No frame is.
    pub fn len(&self) -> usize {
        N::frame_len(self.batch, self.at)
    }

    /// Copies the frame's first bytes, as many as there are or `bytes` has; returns how many. What
    /// only looks at headers copies no more than those.
    #[inline]
    pub fn read(&self, bytes: &mut [u8]) -> usize {
        self.device.read(self.lane, self.batch, self.at, bytes)
    }

    /// The whole frame, copied to memory of the program's own, which may change it there.
    #[inline]
    pub fn bytes(self) -> &'a mut [u8] {
        let len = self.device.read(self.lane, self.batch, self.at, self.scratch);
        &mut self.scratch[..len]
    }

    /// Is the frame's checksum still to be completed? Only where the address asked for that
    /// (`guest_csum=on`).
    pub fn checksum_pending(&self) -> bool {
        self.device.checksum_pending(self.lane, self.batch, self.at)
    }
}
