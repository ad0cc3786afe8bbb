//! virtio-net behind vhost-user.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Connected, Info, NicError, Receive, Registers, Transmit, Wait};
use crate::stats::QueueStats;
use crate::virtio::VirtioNet;
use crate::virtio::queues::{HDR_F_NEEDS_CSUM, NetHeader, RxBatch};
use crate::virtio::virtqueue::Audit;
use crate::wait::{Interest, Prepared, Wake};
use vmlan_transport::Mac;
use vmlan_transport::numbers::narrow16;
use vmlan_transport::vhost_user::feature;

/// "Complete the UDP checksum": from byte 34 on, at byte 40.
fn checksum_header() -> NetHeader {
    NetHeader { flags: HDR_F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..NetHeader::default() }
}

impl Info for VirtioNet {
    fn lanes(&self) -> usize {
        self.pairs.len()
    }

    fn connected(&self) -> Connected {
        let queues = narrow16(self.pairs.len() as u64);
        Connected::Virtio { features: self.features(), queues }
    }

    fn settle_mac(&mut self, chosen: Option<Mac>) -> Option<Mac> {
        chosen
    }

    fn can_checksum(&self) -> bool {
        self.has(feature::CSUM)
    }

    fn is_connected(&self) -> bool {
        VirtioNet::is_connected(self)
    }

    fn reconnects(&self) -> u64 {
        VirtioNet::reconnects(self)
    }

    fn stats(&self) -> QueueStats {
        let mut sum = QueueStats::default();
        for stats in self.pairs.iter().flat_map(|pair| [pair.tx.stats(), pair.rx.stats()]) {
            sum.doorbells += stats.doorbells;
            sum.interrupts += stats.interrupts;
            sum.full += stats.full;
            sum.malformed += stats.malformed;
        }
        sum
    }

    fn is_sound(&self) -> bool {
        self.audit().iter().all(Audit::is_sound)
    }

    fn registers(&self) -> Option<Registers> {
        None
    }
}

impl Transmit for VirtioNet {
    fn slots(&self, lane: usize) -> u16 {
        self.pairs[lane].tx.slots()
    }

    fn room(&self, lane: usize) -> usize {
        self.pairs[lane].tx.room()
    }

    #[inline]
    fn free_slots(&self, lane: usize) -> u16 {
        self.pairs[lane].tx.free_slots()
    }

    fn under_way(&self, lane: usize) -> u16 {
        self.pairs[lane].tx.outstanding()
    }

    #[inline]
    fn reap(&mut self, lane: usize) -> u16 {
        self.pairs[lane].tx.reap()
    }

    #[inline]
    fn next(&mut self, lane: usize) -> Option<u16> {
        self.pairs[lane].tx.next()
    }

    #[inline]
    fn slot_ahead(&self, lane: usize, ahead: u16) -> u16 {
        self.pairs[lane].tx.slot_ahead(ahead)
    }

    #[inline]
    fn write(&self, lane: usize, slot: u16, at: usize, bytes: &[u8]) {
        self.pairs[lane].tx.write(slot, at, bytes);
    }

    fn offload_checksum(&mut self, lane: usize, slot: u16, on: bool) {
        let header = if on { checksum_header() } else { NetHeader::default() };
        self.pairs[lane].tx.write_header(slot, header);
    }

    #[inline]
    fn send(&mut self, lane: usize, slot: u16, len: u32) {
        self.pairs[lane].tx.send(slot, len);
    }

    #[inline]
    fn send_filled(&mut self, lane: usize, count: u32, len: u32) -> u32 {
        self.pairs[lane].tx.send_filled(count, len)
    }

    #[inline]
    fn flush(&mut self, lane: usize) {
        self.pairs[lane].tx.flush();
    }

    fn count_full(&mut self, lane: usize) {
        self.pairs[lane].tx.count_full();
    }
}

impl Receive for VirtioNet {
    type Batch = RxBatch;

    fn batch(&self, lane: usize) -> RxBatch {
        self.pairs[lane].rx.batch()
    }

    #[inline]
    fn ready(&mut self, lane: usize) -> bool {
        self.pairs[lane].rx.ready()
    }

    #[inline]
    fn poll(&mut self, lane: usize, batch: &mut RxBatch, most: usize) -> usize {
        self.pairs[lane].rx.poll(batch, most)
    }

    fn bytes(batch: &RxBatch) -> u64 {
        batch.frames().iter().map(|frame| frame.len as u64).sum()
    }

    #[inline]
    fn frame_len(batch: &RxBatch, at: usize) -> usize {
        batch.frames()[at].len
    }

    #[inline]
    fn read(&self, lane: usize, batch: &RxBatch, at: usize, bytes: &mut [u8]) -> usize {
        let frame = batch.frames()[at];
        let most = frame.len.min(bytes.len());
        self.pairs[lane].rx.read(batch, frame, 0, &mut bytes[..most])
    }

    fn checksum_pending(&self, lane: usize, batch: &RxBatch, at: usize) -> bool {
        let header = self.pairs[lane].rx.header(batch, batch.frames()[at]);
        header.flags & HDR_F_NEEDS_CSUM != 0
    }

    #[inline]
    fn release(&mut self, lane: usize, batch: &mut RxBatch) {
        self.pairs[lane].rx.release(batch);
    }

    #[inline]
    fn release_first(&mut self, lane: usize, batch: &mut RxBatch, count: usize) {
        self.pairs[lane].rx.release_first(batch, count);
    }

    fn posted(&self, lane: usize) -> u16 {
        self.pairs[lane].rx.outstanding()
    }
}

impl Wait for VirtioNet {
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, NicError> {
        Ok(VirtioNet::wait(self, interest, timeout)?)
    }

    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError> {
        Ok(VirtioNet::prepare_wait(self, interest))
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        VirtioNet::watched(self)
    }

    fn watched_for_end(&self) -> u64 {
        1
    }

    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError> {
        Ok(VirtioNet::finish_wait(self, ready))
    }

    fn reconnect(&mut self, patience: Duration) -> Result<(), NicError> {
        Ok(VirtioNet::reconnect(self, patience)?)
    }
}
