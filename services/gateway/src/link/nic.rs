//! The NIC: our driver of virtio-net, with checksums and segments left to whoever receives.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use vmlan_driver::virtio::queues::{
    GSO_NONE, GSO_TCPV4, GSO_TCPV6, HDR_F_DATA_VALID, HDR_F_NEEDS_CSUM, NetHeader, RxBatch,
};
use vmlan_driver::virtio::{VirtioError, VirtioNet};
use vmlan_driver::wait::{Interest, Prepared};
use vmlan_transport::address::VhostUser;
use vmlan_transport::vhost_user::feature;

use vmlan_config::gateway::LANES;

use super::{Arrived, ETHERNET, LARGEST, Link, Offload};

/// Descriptors of each ring. Each has a buffer for a segment of 64 KiB, whose pages are taken when
/// they are first used.
const RING: u16 = 256;
/// Frames taken at once, in all and of one lane.
const BATCH: (usize, usize) = (64, 16);
/// Bytes of headers before the payload of a TCP segment that we send, over IPv4 and IPv6.
const HEADERS: (u16, u16) = (54, 74);
/// What the header of a frame says that has an IPv6 packet in it.
const IPV6: [u8; 2] = [0x86, 0xdd];

/// A virtio-net NIC on a port of the switch.
#[derive(Debug)]
pub(crate) struct VirtioLink {
    nic: VirtioNet,
    /// One for each lane. Out while frames are looked at.
    batches: Vec<RxBatch>,
    /// The lane that is looked at first.
    next: usize,
    frame: Vec<u8>,
    posted: bool,
}

impl VirtioLink {
    /// Plugs into the port at `socket`, trying for `patience`.
    pub(crate) fn connect(socket: &Path, patience: Duration) -> Result<Self, VirtioError> {
        let plain = VhostUser::new(socket);
        let offloads = feature::CSUM
            | feature::GUEST_CSUM
            | feature::GUEST_TSO4
            | feature::GUEST_TSO6
            | feature::HOST_TSO4
            | feature::HOST_TSO6;
        let features = plain.features | offloads;
        let buffer = LARGEST + 16;
        let address = VhostUser { ring_size: RING, buffer, features, queues: LANES, ..plain };
        let nic = VirtioNet::connect(&address, patience)?;
        let batches = nic.pairs.iter().map(|pair| pair.rx.batch()).collect();
        Ok(Self { nic, batches, next: 0, frame: vec![0; LARGEST], posted: false })
    }

    /// Hands the frames that are there, a bounded number, to `look`. Lanes take turns. How many
    /// there were.
    pub(crate) fn receive(&mut self, mut look: impl FnMut(&mut Self, &[u8], Arrived)) -> usize {
        let mut batches = std::mem::take(&mut self.batches);
        let mut frame = std::mem::take(&mut self.frame);
        let (lanes, mut total) = (batches.len(), 0);
        for _ in 0..lanes {
            let lane = self.next;
            self.next = (lane + 1) % lanes;
            if let Some(batch) = batches.get_mut(lane) {
                let most = BATCH.1.min(BATCH.0 - total);
                total += self.receive_from(lane, batch, &mut frame, most, &mut look);
            }
            if total == BATCH.0 {
                break;
            }
        }
        (self.batches, self.frame) = (batches, frame);
        total
    }

    /// The same of one lane.
    fn receive_from(
        &mut self,
        lane: usize,
        batch: &mut RxBatch,
        frame: &mut [u8],
        most: usize,
        look: &mut impl FnMut(&mut Self, &[u8], Arrived),
    ) -> usize {
        let count = self.nic.pairs.get_mut(lane).map_or(0, |pair| pair.rx.poll(batch, most));
        for n in 0..count {
            let Some((place, pair)) = batch.frames().get(n).copied().zip(self.nic.pairs.get(lane))
            else {
                break;
            };
            let header = pair.rx.header(batch, place);
            let trusted = header.flags & (HDR_F_NEEDS_CSUM | HDR_F_DATA_VALID) != 0;
            let len = pair.rx.read(batch, place, 0, frame);
            if let Some(bytes) = frame.get(..len.min(place.len)) {
                look(self, bytes, Arrived { lane, trusted });
            }
        }
        if let Some(pair) = self.nic.pairs.get_mut(lane) {
            pair.rx.release(batch);
        }
        count
    }

    /// Shows what was sent to the switch.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.posted)
            && let Some(pair) = self.nic.pairs.first_mut()
        {
            pair.tx.flush();
        }
    }

    /// States what we wait for: frames, or room. False: something is there already.
    pub(crate) fn arm(&mut self, tx: bool) -> bool {
        // What we send goes by the first pair.
        let interest = |pair| Interest { rx: !tx, tx: tx && pair == 0 };
        matches!(self.nic.prepare_wait_for(interest), Prepared::Sleep(_))
    }

    /// Takes the wishes back; `bits`: which of [`Self::watched`] could be read.
    pub(crate) fn disarm(&mut self, bits: u64) {
        self.nic.finish_wait(bits);
    }

    /// What to sleep on: the socket, which can be read when the switch is gone, and interrupts.
    pub(crate) fn watched(&self) -> Vec<BorrowedFd<'_>> {
        self.nic.watched()
    }

    /// Is the switch there?
    pub(crate) fn is_connected(&self) -> bool {
        self.nic.is_connected()
    }
}

impl Link for VirtioLink {
    fn room(&mut self) -> usize {
        self.nic.pairs.first_mut().map_or(0, |pair| {
            let free = pair.tx.free_slots();
            usize::from(if free < RING / 2 { pair.tx.reap() } else { free })
        })
    }

    fn send(&mut self, frame: &[u8], offload: Offload) {
        let Some(pair) = self.nic.pairs.first_mut() else { return };
        let Ok(len) = u32::try_from(frame.len()) else { return };
        if frame.len() > pair.tx.room() || frame.len() < ETHERNET {
            return;
        }
        let Some(slot) = pair.tx.next() else { return };
        let mut header = NetHeader { gso_type: GSO_NONE, ..NetHeader::default() };
        if let Some((start, offset)) = offload.checksum {
            header.flags = HDR_F_NEEDS_CSUM;
            (header.csum_start, header.csum_offset) = (start, offset);
        }
        if let Some(size) = offload.segment {
            let (kind, headers) = match frame.get(12..ETHERNET) == Some(&IPV6) {
                true => (GSO_TCPV6, HEADERS.1),
                false => (GSO_TCPV4, HEADERS.0),
            };
            (header.gso_type, header.gso_size, header.hdr_len) = (kind, size, headers);
        }
        pair.tx.write_header(slot, header);
        pair.tx.write(slot, 0, frame);
        pair.tx.send(slot, len);
        self.posted = true;
    }
}
