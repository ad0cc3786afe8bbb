//! The ring in which the kernel puts the frames of a packet socket (kernel:
//! `Documentation/networking/packet_mmap.rst`, version 2).
//!
//! ```text
//!  slot: │ tpacket2_hdr │ sockaddr_ll │ virtio-net header │ frame, without its VLAN tag │
//!        0                                               tp_mac
//! ```
//!
//! Version 2 and not 3: the latter hands frames over in blocks, the last of which waits for a timer
//! of the kernel's, 1 ms at least, that runs also while there are no frames. A frame that is too
//! long for its slot is cut there and queued whole beside the ring, so that slots can be short.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use vmlan_frame::Reason;

use crate::sys::{self, Shared};
use crate::vnet_header;

/// Frames that wait while no worker looks: 2 ms of a 10 Gbit/s link with frames of usual length.
const SLOTS: u32 = 1024;

/// What is before the longest frame in a slot, at most; and with it, the shortest slot.
const OVERHEAD: u32 = 128;
const SHORTEST: u32 = 2048;
const LONGEST: u32 = 16 * 1024;

// Places of the fields of `tpacket2_hdr`.
const STATUS: usize = 0;
const FIELDS: usize = 4;

#[derive(Debug)]
pub(super) struct Ring {
    /// None if the kernel did not give another one.
    memory: Option<Shared>,
    geometry: libc::tpacket_req,
    slot: usize,
    /// The slot that is filled next.
    next: usize,
    /// Slots given back since the socket was made.
    taken: u64,
}

/// What the kernel says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Where its virtio-net header begins.
    at: usize,
    /// Bytes of header and frame.
    len: usize,
    /// The tag that the kernel has taken out.
    pub(super) tag: Option<[u8; 4]>,
    /// The frame is cut here.
    pub(super) cut: bool,
    /// It waits in the socket's queue, whole.
    pub(super) queued: bool,
    /// Bytes of header and frame there.
    pub(super) whole: usize,
}

impl Ring {
    /// Gives `socket`, which is not bound yet, a ring for the frames of a link with this MTU.
    pub(super) fn new(socket: BorrowedFd<'_>, mtu: u32) -> std::io::Result<Self> {
        let slot = mtu.saturating_add(OVERHEAD).clamp(SHORTEST, LONGEST).next_power_of_two();
        let geometry = libc::tpacket_req {
            tp_block_size: LONGEST,
            tp_block_nr: SLOTS / (LONGEST / slot),
            tp_frame_size: slot,
            tp_frame_nr: SLOTS,
        };
        let slot = slot as usize;
        let mut ring = Self { memory: None, geometry, slot, next: 0, taken: 0 };
        ring.renew(socket)?;
        Ok(ring)
    }

    /// Gives the socket a new ring. What waits in the old one, and beside it, is lost.
    pub(super) fn renew(&mut self, socket: BorrowedFd<'_>) -> std::io::Result<()> {
        let none = libc::tpacket_req {
            tp_block_size: 0,
            tp_block_nr: 0,
            tp_frame_size: 0,
            tp_frame_nr: 0,
        };
        // The kernel keeps a ring that is mapped, and takes no second one.
        self.memory = None;
        sys::packet_set(socket, &sys::PACKET_RX_RING, &none)?;
        sys::packet_set(socket, &sys::PACKET_RX_RING, &self.geometry)?;
        self.memory = Some(Shared::map(socket, 0, self.slot * SLOTS as usize)?);
        self.next = 0;
        Ok(())
    }

    /// False if the kernel did not give another ring.
    pub(super) fn is_there(&self) -> bool {
        self.memory.is_some()
    }

    /// Slots given back since the socket was made.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The oldest frame, if there is one.
    pub(super) fn peek(&self) -> Option<Slot> {
        let (memory, base) = (self.memory.as_ref()?, self.next * self.slot);
        // Acquire: what the kernel wrote before it handed the slot over.
        let status = memory.load(base + STATUS, Ordering::Acquire);
        let mut fields = [0; 24];
        if status & libc::TP_STATUS_USER == 0 || !memory.read(base + FIELDS, &mut fields) {
            return None;
        }
        let [len, kept, places, _, _, tag] = *fields.as_chunks::<4>().0 else { return None };
        let (len, kept) = (u32::from_ne_bytes(len), u32::from_ne_bytes(kept));
        let mac = usize::from(u16::from_ne_bytes([places[0], places[1]]));
        Some(Slot {
            at: base + mac.saturating_sub(vnet_header::LEN),
            len: vnet_header::LEN + (kept as usize).min(self.slot.saturating_sub(mac)),
            tag: tag_of(status, tag),
            cut: kept < len,
            queued: status & libc::TP_STATUS_COPY != 0,
            whole: vnet_header::LEN.saturating_add(len as usize),
        })
    }

    /// Copies header and frame to `room`; returns their length.
    pub(super) fn copy(&self, slot: &Slot, room: &mut [u8]) -> Result<usize, Reason> {
        let to = room.get_mut(..slot.len).ok_or(Reason::TooLong)?;
        let copied = self.memory.as_ref().is_some_and(|memory| memory.read(slot.at, to));
        if copied { Ok(slot.len) } else { Err(Reason::DeviceError) }
    }

    /// Gives the oldest frame's slot back.
    pub(super) fn give_back(&mut self) {
        // Release: what was read of it.
        let at = self.next * self.slot + STATUS;
        if let Some(memory) = &self.memory {
            memory.store(at, libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.taken += 1;
        self.next = if self.next + 1 < SLOTS as usize { self.next + 1 } else { 0 };
    }
}

/// The tag as it was in the frame: its type and its contents.
fn tag_of(status: u32, [c0, c1, t0, t1]: [u8; 4]) -> Option<[u8; 4]> {
    const VLAN: u16 = 0x8100; // 802.1Q, if the kernel does not say which.
    let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
        u16::from_ne_bytes([t0, t1])
    } else {
        VLAN
    };
    let ([k0, k1], [c0, c1]) = (kind.to_be_bytes(), u16::from_ne_bytes([c0, c1]).to_be_bytes());
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some([k0, k1, c0, c1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_as_they_were() {
        let (tci, tpid) = (0x6123u16.to_ne_bytes(), 0x88a8u16.to_ne_bytes());
        let word = [tci[0], tci[1], tpid[0], tpid[1]];
        let known = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(tag_of(known, word), Some([0x88, 0xa8, 0x61, 0x23]));
        assert_eq!(tag_of(libc::TP_STATUS_VLAN_VALID, word), Some([0x81, 0, 0x61, 0x23]));
        assert_eq!(tag_of(libc::TP_STATUS_USER, word), None);
    }
}
