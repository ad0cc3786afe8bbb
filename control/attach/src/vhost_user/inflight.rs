//! The inflight region: where a back end notes what it has in hand, for its successor.
//!
//! Ours completes strictly in order and starts where the used index stands in guest memory, so that the
//! successor needs nothing from here. The region is kept because front ends ask for it, in the format of the
//! specification ("Inflight I/O tracking", split virtqueues), with a true `used_idx`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_nic::virtio::Inflight;
use vmlan_ram::{Map, Region, Window};

use super::wire::InflightDesc;
use crate::memory::{self, map_file};
use crate::sys;

/// `QueueRegionSplit`: features, version, desc_num, last_batch_head, used_idx; then 16 bytes for each descriptor.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const USED_IDX: usize = 14;
const HEAD: u64 = 16;
const DESC: u64 = 16;
/// Each queue's part starts at a multiple of this.
const ALIGN: u64 = 64;

/// Largest virtqueue (virtio 1.2 section 2.7).
const MAX_RING: u16 = 32768;

/// Why an inflight region was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More rings than the device has, or none.
    #[error("an inflight region for {0} rings")]
    Queues(u16),
    /// A ring size that no ring has.
    #[error("an inflight region for rings of {0} descriptors")]
    RingSize(u16),
    /// The region is smaller than its rings, or far larger.
    #[error("an inflight region of {size} bytes where {needed} are needed")]
    Size {
        /// Bytes offered.
        size: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The ring has more descriptors than its part of the region.
    #[error("a ring of {ring} descriptors does not fit an inflight region made for {room}")]
    RingTooLarge {
        /// Descriptors of the ring.
        ring: u16,
        /// Descriptors there is room for.
        room: u16,
    },
    /// A format we do not know, or a region of other rings.
    #[error("the inflight region has version {version} and {desc_num} descriptors for a ring")]
    Format {
        /// Its version.
        version: u16,
        /// Descriptors it says it has.
        desc_num: u16,
    },
    /// The file could not be mapped.
    #[error("cannot map the inflight file")]
    Memory(#[from] memory::Error),
    /// The file could not be made.
    #[error("cannot make the inflight file")]
    Io(#[from] std::io::Error),
}

fn stride(ring_size: u16) -> u64 {
    (HEAD + DESC * u64::from(ring_size)).next_multiple_of(ALIGN)
}

/// Checks what a front end asks for; returns the bytes that its rings need.
fn check(desc: InflightDesc, rings: usize) -> Result<u64, Error> {
    if desc.queues == 0 || usize::from(desc.queues) > rings {
        return Err(Error::Queues(desc.queues));
    }
    if desc.ring_size == 0 || desc.ring_size > MAX_RING {
        return Err(Error::RingSize(desc.ring_size));
    }
    Ok(stride(desc.ring_size) * u64::from(desc.queues))
}

/// A fresh region for GET_INFLIGHT_FD. Nothing of it stays here: the front end keeps it and gives it back.
///
/// # Errors
/// [`Error`].
pub fn create(desc: InflightDesc, rings: usize) -> Result<(InflightDesc, OwnedFd), Error> {
    let size = check(desc, rings)?.next_multiple_of(4096);
    let file = sys::sealed_memfd(c"vmlan-inflight", size)?;
    Ok((InflightDesc { size, offset: 0, ..desc }, file))
}

/// A region that the front end gave (SET_INFLIGHT_FD).
#[derive(Debug)]
pub struct InflightRegion {
    map: Arc<Map>,
    queues: u16,
    ring_size: u16,
}

impl InflightRegion {
    /// Maps it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(desc: InflightDesc, fd: OwnedFd, rings: usize) -> Result<Self, Error> {
        let needed = check(desc, rings)?;
        let size = desc.size;
        if size < needed || size > needed.next_multiple_of(4096) + 4096 {
            return Err(Error::Size { size, needed });
        }
        let (mapping, inside) = map_file(fd, desc.offset, size)?;
        let region = Region::new(0, size, 0, inside, mapping).map_err(memory::Error::from)?;
        let map = Map::new(vec![region], None).map_err(memory::Error::from)?;
        Ok(Self { map: Arc::new(map), queues: desc.queues, ring_size: desc.ring_size })
    }

    /// The part of ring `index`, for a ring of `size` descriptors; `None` if the region does not cover it. A part
    /// that is all zeros is begun.
    ///
    /// # Errors
    /// [`Error::RingTooLarge`], [`Error::Format`].
    pub fn part(&self, index: usize, size: u16) -> Result<Option<Inflight>, Error> {
        if index >= usize::from(self.queues) {
            return Ok(None);
        }
        if size > self.ring_size {
            return Err(Error::RingTooLarge { ring: size, room: self.ring_size });
        }
        let len = stride(self.ring_size);
        let bytes = usize::try_from(len).unwrap_or(0);
        let Some(window) = self.map.window(len * index as u64, bytes, 8) else {
            return Ok(None);
        };
        begin(&window, self.ring_size)?;
        Ok(Some(Inflight { window, offset: USED_IDX }))
    }
}

fn begin(window: &Window, ring_size: u16) -> Result<(), Error> {
    let version = window.u16(VERSION, Ordering::Relaxed);
    let desc_num = window.u16(DESC_NUM, Ordering::Relaxed);
    match (version, desc_num) {
        (0, _) => {
            window.set_u64(0, 0, Ordering::Relaxed);
            window.set_u16(DESC_NUM, ring_size, Ordering::Relaxed);
            window.set_u16(VERSION, 1, Ordering::Release);
            Ok(())
        }
        (1, n) if n == ring_size => Ok(()),
        _ => Err(Error::Format { version, desc_num }),
    }
}
