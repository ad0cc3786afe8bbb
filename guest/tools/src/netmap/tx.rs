//! Transmit rings.

use super::cursors::Cursors;
use super::ring::Ring;
use vmlan_driver::nic::Nic;
use vmlan_transport::numbers::narrow32;

/// What a port keeps of a transmit ring.
#[derive(Debug)]
pub(super) struct TxRing {
    pub(super) at: Cursors,
    lens: Box<[u32]>,
}

impl TxRing {
    pub(super) fn new(device: &impl Nic, lane: usize) -> Self {
        let at = Cursors::new(device.slots(lane));
        Self { at, lens: vec![0; usize::from(at.slots())].into() }
    }

    /// Sends what lies between the last sync's `head` and this one's, and takes sent slots back.
    #[inline]
    pub(super) fn sync<N: Nic>(&mut self, device: &mut N, lane: usize) {
        let count = self.at.given();
        if count > 0 {
            self.send(device, lane, count);
            device.flush(lane);
        }
        self.at.set_owned(device.reap(lane));
    }

    #[inline]
    fn send<N: Nic>(&mut self, device: &mut N, lane: usize, count: u16) {
        let mut at = usize::from(self.at.ahead(self.at.head, self.at.slots() - count));
        for _ in 0..count {
            // There is one: slots between head and tail are free, and nobody else sends.
            let Some(slot) = device.next(lane) else { break };
            device.send(lane, slot, self.lens[at]);
            at = if at + 1 == self.lens.len() { 0 } else { at + 1 };
        }
        self.at.sync();
    }

    /// For the program.
    #[inline]
    pub(super) fn lend<'a, N: Nic>(&'a mut self, device: &'a N, lane: usize) -> Tx<'a, N> {
        Ring { device, lane, at: &mut self.at, own: &mut self.lens }
    }

    /// An unused ring, for a device that lost what was under way.
    pub(super) fn reset(&mut self, device: &mut impl Nic, lane: usize) {
        self.at = Cursors::new(self.at.slots());
        self.at.set_owned(device.reap(lane));
    }
}

/// Why a frame was not put into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refused {
    /// No slot between `head` and `tail`: sync, or wait.
    #[error("no transmit slot is free")]
    Full,
    /// Longer than a slot. See `room` or `mtu` of the address.
    #[error("a frame of {len} bytes does not fit a slot of {room}")]
    TooLong { len: usize, room: usize },
    #[error("{0} bytes are not an Ethernet frame")]
    TooShort(usize),
}

/// A transmit ring. The program owns the slots from `head` up to, but not including, `tail`: it
/// fills them, moves `head` past them, and [`txsync`](super::Port::txsync) sends them.
pub type Tx<'a, N> = Ring<'a, N, [u32]>;

impl<N: Nic> Tx<'_, N> {
    /// Does the device have frames, or get some with the next sync?
    pub fn is_pending(&self) -> bool {
        self.at.given() > 0 || self.device.under_way(self.lane) > 0
    }

    /// A slot, to be filled.
    ///
    /// # Panics
    /// When it is not between `head` and `tail`: the device may be reading it.
    #[inline]
    pub fn slot(&mut self, at: u16) -> TxSlot<'_, N> {
        let slot = self.device.slot_ahead(self.lane, self.at.place(at));
        let len = &mut self.own[usize::from(at)];
        TxSlot { device: self.device, lane: self.lane, slot, len }
    }

    /// Moves `head`, and `cur` where it would be left behind: the slots before it are sent by the
    /// next sync.
    ///
    /// # Panics
    /// When `to` is not from `head` to `tail`, or a slot in between was never filled.
    #[inline]
    pub fn set_head(&mut self, to: u16) {
        let (mut at, before) = (self.at.head, *self.at);
        self.at.set_head(to);
        while at != to {
            assert!(self.own[usize::from(at)] > 0, "slot {at} was never filled");
            at = before.ahead(at, 1);
        }
    }

    /// Copies a frame into the slot at `head` and moves `head` and `cur` past it.
    ///
    /// # Errors
    /// See [`Refused`]; the ring is as it was.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> Result<(), Refused> {
        if self.is_empty() {
            return Err(Refused::Full);
        }
        let (head, given) = (self.at.head, self.at.given());
        let slot = self.device.slot_ahead(self.lane, given);
        let len = &mut self.own[usize::from(head)];
        TxSlot { device: self.device, lane: self.lane, slot, len }.put(frame)?;
        self.at.step();
        Ok(())
    }
}

/// A transmit slot: a length, and bytes in memory that the device shares. It keeps both when it
/// comes back, so that a program which sends the same frame again needs not write it again (so long
/// as the device finishes frames in order, as the switch does).
#[derive(Debug)]
pub struct TxSlot<'a, N: Nic> {
    device: &'a N,
    lane: usize,
    slot: u16,
    len: &'a mut u32,
}

impl<N: Nic> TxSlot<'_, N> {
    /// Longest frame, in bytes.
    #[inline]
    pub fn room(&self) -> usize {
        self.device.room(self.lane)
    }

    /// Bytes of the frame in it; 0 for a slot that was never filled.
    #[inline]
    pub fn len(&self) -> usize {
        *self.len as usize
    }

    /// Was it never filled?
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self.len == 0
    }

    /// Says how long the frame is, in bytes.
    ///
    /// # Errors
    /// [`Refused::TooLong`], [`Refused::TooShort`].
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), Refused> {
        let room = self.room();
        if len > room {
            return Err(Refused::TooLong { len, room });
        }
        if len < 14 {
            return Err(Refused::TooShort(len));
        }
        *self.len = narrow32(len as u64);
        Ok(())
    }

    /// Writes bytes of the frame, from byte `at` on.
    ///
    /// # Panics
    /// When they leave the slot.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.device.write(self.lane, self.slot, at, bytes);
    }

    /// Puts a whole frame into it.
    ///
    /// # Errors
    /// [`Refused::TooLong`], [`Refused::TooShort`].
    #[inline]
    pub fn put(&mut self, frame: &[u8]) -> Result<(), Refused> {
        self.set_len(frame.len())?;
        self.write(0, frame);
        Ok(())
    }
}
