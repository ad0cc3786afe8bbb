//! Handing memory and rings to the back end, stopping them, and starting again.

use std::os::fd::AsFd;

use super::{Pair, VirtioError, VirtioNet};
use crate::virtio::queues::Queue;
use vmlan_transport::memory::Ram;
use vmlan_transport::vhost_user::{FrontEnd, Inflight, ProtocolError, VringAddr, protocol};

const ACKNOWLEDGE: u8 = 1; // Device status bits (virtio 1.2, 2.1).
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;

impl VirtioNet {
    /// Everything between SET_FEATURES and DRIVER_OK, on a fresh connection. Rings go on from their
    /// used index.
    pub(super) fn start(&mut self) -> Result<(), VirtioError> {
        let front = self.front.as_ref().ok_or(VirtioError::NotConnected)?;
        let status = front.has(protocol::STATUS);
        if status {
            front.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK)?;
        }
        if let (true, Some(mtu)) = (front.has(protocol::NET_MTU), self.address.mtu) {
            front.set_mtu(mtu)?;
        }
        front.set_memory(&self.ram.regions(), self.ram.raw_fd())?;
        self.start_inflight()?;
        self.start_rings()?;
        if status {
            self.front_end()?.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK)?;
        }
        self.greet();
        Ok(())
    }

    fn start_inflight(&mut self) -> Result<(), VirtioError> {
        let front = self.front.as_ref().ok_or(VirtioError::NotConnected)?;
        if !front.has(protocol::INFLIGHT_SHMFD) {
            return Ok(());
        }
        let (queues, size) = (2 * self.address.queues, self.address.ring_size);
        let inflight: &Inflight = match &mut self.inflight {
            Some(kept) => kept,
            empty => empty.insert(front.get_inflight(queues, size)?),
        };
        front.set_inflight(inflight, queues, size)?;
        Ok(())
    }

    /// Sets up and enables every ring. Also starts them again after [`Self::stop`].
    pub fn start_rings(&self) -> Result<(), VirtioError> {
        let front = self.front_end()?;
        for (index, queue) in rings(&self.pairs) {
            self.start_ring(front, index, queue)?;
        }
        for (index, _) in rings(&self.pairs).filter(|_| front.rings_start_disabled()) {
            front.set_vring_enable(index, true)?;
        }
        // Answered in order: the rings are enabled when this is. Without REPLY_ACK nothing else
        // shows it, and what a ring that is not yet enabled sends is thrown away.
        if front.rings_start_disabled() {
            front.features()?;
        }
        Ok(())
    }

    fn start_ring(&self, front: &FrontEnd, index: u32, queue: &Queue) -> Result<(), ProtocolError> {
        front.set_vring_num(index, queue.ring.options().size)?;
        front.set_vring_base(index, queue.ring.base())?;
        front.set_vring_addr(index, addresses(&self.ram, queue, false))?;
        front.set_vring_call(index, queue.call.as_fd())?;
        front.set_vring_kick(index, queue.kick.as_fd())
    }

    /// What was posted before the device came, and a doorbell for each ring: a new device has seen
    /// neither.
    fn greet(&mut self) {
        for pair in &mut self.pairs {
            pair.rx.start();
            pair.tx.flush();
            pair.rx.queue.ring_doorbell();
            pair.tx.queue.ring_doorbell();
        }
    }

    /// Stops every ring: GET_VRING_BASE for each, after which the back end touches none. Returns
    /// the bases, in the order of the rings; for a device that uses buffers in order they equal the
    /// used indices.
    pub fn stop(&mut self) -> Result<Vec<u32>, VirtioError> {
        let front = self.front_end()?;
        let bases = rings(&self.pairs).map(|(index, _)| front.get_vring_base(index));
        let bases: Vec<u32> = bases.collect::<Result<_, _>>()?;
        let queues = self.pairs.iter_mut().flat_map(|p| [&mut p.rx.queue, &mut p.tx.queue]);
        queues.zip(&bases).for_each(|(queue, base)| queue.ring.set_base(*base));
        Ok(bases)
    }
}

/// The rings with their numbers: receive 2n, transmit 2n + 1 (virtio 1.2, 5.1.2).
pub(super) fn rings(pairs: &[Pair]) -> impl Iterator<Item = (u32, &Queue)> {
    (0..).zip(pairs.iter().flat_map(|pair| [&pair.rx.queue, &pair.tx.queue]))
}

pub(super) fn addresses(ram: &Ram, queue: &Queue, log: bool) -> VringAddr {
    let places = queue.ring.places();
    VringAddr {
        desc: ram.user_addr(places.desc),
        used: ram.user_addr(places.used),
        avail: ram.user_addr(places.avail),
        log: log.then(|| ram.guest_phys(places.used)),
    }
}
