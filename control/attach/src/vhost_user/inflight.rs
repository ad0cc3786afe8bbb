//! The inflight region: where a back end notes the descriptors that it is working on, for its
//! successor.
//!
//! We complete descriptors strictly in order and start at the used index in guest memory, so our
//! successor needs nothing from here. The region is kept because front ends ask for it, in the
//! format of the specification ("Inflight I/O tracking", split virtqueues), with a true `used_idx`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_keeper::Descriptor;
use vmlan_nic::virtio::Inflight;
use vmlan_ram::{Map, Region, Window};

use super::wire::InflightDesc;
use crate::bytes::widen;
use crate::memory::{Files, MemoryError, map_file, sealed_memfd};

/// `QueueRegionSplit`: features, version, desc_num, last_batch_head, used_idx; then 16 bytes for
/// each descriptor.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const USED_IDX: usize = 14;
const HEAD: u32 = 16;
const DESC: u32 = 16;
/// Each queue's part starts at a multiple of this.
const ALIGN: u32 = 64;

/// Largest virtqueue (virtio 1.2 section 2.7).
const MAX_RING: u16 = 32768;

/// Why an inflight region was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum InflightError {
    #[error("an inflight region for {0} virtqueues is not possible")]
    Queues(u16),
    #[error("an inflight region for virtqueues of {0} descriptors is not possible")]
    RingSize(u16),
    #[error("an inflight region of {size} bytes where {needed} are needed")]
    Size { size: u64, needed: u64 },
    #[error("a virtqueue of {ring} descriptors does not fit an inflight region made for {room}")]
    RingTooLarge { ring: u16, room: u16 },
    #[error("the inflight region has version {version} and {desc_num} descriptors for a virtqueue")]
    Format { version: u16, desc_num: u16 },
    #[error("cannot map the inflight file")]
    Memory(#[from] MemoryError),
    #[error("cannot make the inflight file")]
    Io(#[from] std::io::Error),
}

/// Bytes of one queue's part.
fn stride(ring_size: u16) -> u32 {
    (HEAD + DESC * u32::from(ring_size)).next_multiple_of(ALIGN)
}

/// Checks what a front end asks for; returns the bytes that its virtqueues need.
fn check(desc: InflightDesc, rings: usize) -> Result<u64, InflightError> {
    if desc.queues == 0 || usize::from(desc.queues) > rings {
        return Err(InflightError::Queues(desc.queues));
    }
    if desc.ring_size == 0 || desc.ring_size > MAX_RING {
        return Err(InflightError::RingSize(desc.ring_size));
    }
    Ok(u64::from(stride(desc.ring_size)) * u64::from(desc.queues))
}

/// A fresh region for GET_INFLIGHT_FD. Nothing of it stays here: the front end keeps it and gives
/// it back.
pub fn create(desc: InflightDesc, rings: usize) -> Result<(InflightDesc, OwnedFd), InflightError> {
    let size = check(desc, rings)?.next_multiple_of(4096);
    let file = sealed_memfd(c"vmlan-inflight", size)?;
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
    pub fn new(desc: InflightDesc, fd: Descriptor, rings: usize) -> Result<Self, InflightError> {
        let needed = check(desc, rings)?;
        let size = desc.size;
        if size < needed || size > needed.next_multiple_of(4096) + 4096 {
            return Err(InflightError::Size { size, needed });
        }
        let (mapping, inside) = map_file(fd, desc.offset, size, Files::Ram)?;
        let region = Region::new(0, size, 0, inside, mapping).map_err(MemoryError::from)?;
        let map = Map::new(vec![region], None).map_err(MemoryError::from)?;
        Ok(Self { map: Arc::new(map), queues: desc.queues, ring_size: desc.ring_size })
    }

    /// The part of virtqueue `index`, for a virtqueue of `size` descriptors; `None` if the region
    /// does not cover it. A part that is all zeros is begun.
    ///
    /// # Errors
    /// [`InflightError::RingTooLarge`], [`InflightError::Format`].
    pub fn part(&self, index: u8, size: u16) -> Result<Option<Inflight>, InflightError> {
        if u16::from(index) >= self.queues {
            return Ok(None);
        }
        if size > self.ring_size {
            return Err(InflightError::RingTooLarge { ring: size, room: self.ring_size });
        }
        let len = stride(self.ring_size);
        let Some(window) = self.map.window(u64::from(len) * u64::from(index), widen(len), 8) else {
            return Ok(None);
        };
        begin(&window, self.ring_size)?;
        Ok(Some(Inflight { window, offset: USED_IDX }))
    }
}

fn begin(window: &Window, ring_size: u16) -> Result<(), InflightError> {
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
        _ => Err(InflightError::Format { version, desc_num }),
    }
}
