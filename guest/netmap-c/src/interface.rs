//! `struct netmap_if`, one for each descriptor: where its rings are, and its extra buffers.

use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::region::{BUFFERS, Region, is_buffer};
use super::ring::Ring;
use vmlan_transport::numbers::narrow32;

/// Offsets in the structure; tests/c/layout.c compares them.
const VERSION: usize = 16;
const TX_RINGS: usize = 24;
const RX_RINGS: usize = 28;
const EXTRA: usize = 32;
const HOST_TX_RINGS: usize = 36;
const HOST_RX_RINGS: usize = 40;
const RINGS: usize = 56;
/// `NETMAP_API`.
const API: u32 = 14;

/// Rings of a port, transmit and receive: the NIC's, and the host's. One that a descriptor is not
/// bound to is nothing.
pub(crate) struct Shown<'a> {
    pub(crate) nic: [Vec<Option<&'a Ring>>; 2],
    pub(crate) host: [Vec<Option<&'a Ring>>; 2],
}

/// The structure of a descriptor.
pub(crate) struct Interface {
    region: &'static Region,
    pub(crate) block: usize,
    bytes: usize,
    /// Extra buffers that it was given.
    pub(crate) extra: u32,
}

impl Interface {
    /// # Errors
    /// ENOMEM when the region is full. Of extra buffers there may be fewer than were asked for.
    pub(crate) fn new(
        region: &'static Region,
        name: &str,
        shown: &Shown<'_>,
        extra: u32,
    ) -> Result<Self, Errno> {
        let rings = || (0..2).flat_map(|way| shown.nic[way].iter().chain(&shown.host[way]));
        let bytes = RINGS + 8 * rings().count();
        let block = region.take_block(bytes).ok_or(Errno::NOMEM)?;
        let mut made = Self { region, block, bytes, extra: 0 };
        for (at, letter) in name.bytes().take(15).enumerate() {
            let shift = 8 * (at % 2);
            region.word16(block + at / 2 * 2).fetch_or(u16::from(letter) << shift, Relaxed);
        }
        let count32 = |count: usize| narrow32(count as u64);
        let count = |rings: &[_]| count32(rings.len());
        for (at, number) in [
            (VERSION, API),
            (TX_RINGS, count(&shown.nic[0])),
            (RX_RINGS, count(&shown.nic[1])),
            (HOST_TX_RINGS, count(&shown.host[0])),
            (HOST_RX_RINGS, count(&shown.host[1])),
        ] {
            region.word32(block + at).store(number, Relaxed);
        }
        for (at, ring) in rings().enumerate() {
            // A distance, which may be negative; 0 for none.
            let distance = ring.map_or(0, |ring| (ring.offset() as u64).wrapping_sub(block as u64));
            region.set64(block + RINGS + 8 * at, distance);
        }
        let buffers = region.take_some_buffers(extra as usize);
        made.extra = count32(buffers.len());
        // Each begins with the index of the next.
        let follows = buffers.iter().skip(1).chain(&[0]);
        for (index, next) in buffers.iter().zip(follows) {
            region.write(*index, &next.to_ne_bytes());
        }
        let first = buffers.first().copied().unwrap_or(0);
        region.word32(block + EXTRA).store(first, Relaxed);
        Ok(made)
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // As netmap does it: the buffers that the program has in its list now.
        let mut next = self.region.word32(self.block + EXTRA).load(Relaxed);
        let mut buffers = Vec::new();
        while is_buffer(next) && buffers.len() < BUFFERS as usize {
            buffers.push(next);
            let mut bytes = [0; 4];
            self.region.read(next, &mut bytes);
            next = u32::from_ne_bytes(bytes);
        }
        self.region.give_buffers(buffers);
        self.region.give_block(self.block, self.bytes);
    }
}
