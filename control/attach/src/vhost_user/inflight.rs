//! The inflight region: where a back end notes the descriptors that it is working on, for its
//! successor.
//!
//! We complete descriptors strictly in order, and guest memory says how far we came, so our
//! successor needs nothing from here. The region is kept because front ends ask for it, in the
//! formats of the specification ("Inflight I/O tracking", split and packed virtqueues), with a true
//! `used_idx`.

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
///
/// `QueueRegionPacked`: features, version, desc_num, free_head, old_free_head, used_idx,
/// old_used_idx, used_wrap_counter, old_used_wrap_counter; then 32 bytes for each descriptor.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;

/// Where the two formats differ.
struct Format {
    used_idx: usize,
    head: u32,
    desc: u32,
}

const SPLIT: Format = Format { used_idx: 14, head: 16, desc: 16 };
const PACKED: Format = Format { used_idx: 16, head: 32, desc: 32 };
/// `next` in a packed virtqueue's part of a descriptor.
const NEXT: usize = 2;
/// Both wrap counters are 1, both indexes 0: the word at `used_idx`.
const PACKED_START: u64 = 0x101 << 32;

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
    #[error("an inflight region made for virtqueues of another layout, split or packed")]
    Layout,
    #[error("the inflight region has version {version} and {desc_num} descriptors for a virtqueue")]
    Format { version: u16, desc_num: u16 },
    #[error("cannot map the inflight file")]
    Memory(#[from] MemoryError),
    #[error("cannot make the inflight file")]
    Io(#[from] std::io::Error),
}

fn format(packed: bool) -> Format {
    if packed { PACKED } else { SPLIT }
}

/// Bytes of one queue's part.
fn stride(ring_size: u16, packed: bool) -> u32 {
    let format = format(packed);
    (format.head + format.desc * u32::from(ring_size)).next_multiple_of(ALIGN)
}

/// Checks what a front end asks for; returns the bytes that its virtqueues need.
fn check(desc: InflightDesc, rings: usize, packed: bool) -> Result<u64, InflightError> {
    if desc.queues == 0 || usize::from(desc.queues) > rings {
        return Err(InflightError::Queues(desc.queues));
    }
    if desc.ring_size == 0 || desc.ring_size > MAX_RING {
        return Err(InflightError::RingSize(desc.ring_size));
    }
    Ok(u64::from(stride(desc.ring_size, packed)) * u64::from(desc.queues))
}

/// A fresh region for GET_INFLIGHT_FD. Nothing of it stays here: the front end keeps it and gives
/// it back.
pub fn create(
    desc: InflightDesc,
    rings: usize,
    packed: bool,
) -> Result<(InflightDesc, OwnedFd), InflightError> {
    let size = check(desc, rings, packed)?.next_multiple_of(4096);
    let file = sealed_memfd(c"vmlan-inflight", size)?;
    Ok((InflightDesc { size, offset: 0, ..desc }, file))
}

/// A region that the front end gave (SET_INFLIGHT_FD).
#[derive(Debug)]
pub struct InflightRegion {
    map: Arc<Map>,
    queues: u16,
    ring_size: u16,
    packed: bool,
}

impl InflightRegion {
    /// Maps it.
    pub fn new(
        desc: InflightDesc,
        fd: Descriptor,
        rings: usize,
        packed: bool,
    ) -> Result<Self, InflightError> {
        let needed = check(desc, rings, packed)?;
        let size = desc.size;
        if size < needed || size > needed.next_multiple_of(4096) + 4096 {
            return Err(InflightError::Size { size, needed });
        }
        let (mapping, inside) = map_file(fd, desc.offset, size, Files::Ram)?;
        let region = Region::new(0, size, 0, inside, mapping).map_err(MemoryError::from)?;
        let map = Map::new(vec![region], None).map_err(MemoryError::from)?;
        Ok(Self { map: Arc::new(map), queues: desc.queues, ring_size: desc.ring_size, packed })
    }

    /// The part of virtqueue `index`, for a virtqueue of `size` descriptors; `None` if the region
    /// does not cover it. A part that is all zeros is begun.
    ///
    /// # Errors
    /// [`InflightError::RingTooLarge`], [`InflightError::Layout`], [`InflightError::Format`].
    pub fn part(
        &self,
        index: u8,
        size: u16,
        packed: bool,
    ) -> Result<Option<Inflight>, InflightError> {
        if u16::from(index) >= self.queues {
            return Ok(None);
        }
        if size > self.ring_size {
            return Err(InflightError::RingTooLarge { ring: size, room: self.ring_size });
        }
        if packed != self.packed {
            return Err(InflightError::Layout);
        }
        let len = stride(self.ring_size, packed);
        let Some(window) = self.map.window(u64::from(len) * u64::from(index), widen(len), 8) else {
            return Ok(None);
        };
        begin(&window, self.ring_size, packed)?;
        Ok(Some(Inflight { window, offset: format(packed).used_idx }))
    }
}

fn begin(window: &Window, ring_size: u16, packed: bool) -> Result<(), InflightError> {
    let version = window.u16(VERSION, Ordering::Relaxed);
    let desc_num = window.u16(DESC_NUM, Ordering::Relaxed);
    match (version, desc_num) {
        (0, _) => {
            window.set_u64(0, 0, Ordering::Relaxed);
            window.set_u16(DESC_NUM, ring_size, Ordering::Relaxed);
            if packed {
                window.set_u64(PACKED.used_idx, PACKED_START, Ordering::Relaxed);
                // The free descriptors are a list, in which nothing of ours is ever missing.
                for i in 0..ring_size {
                    let at = widen(PACKED.head + PACKED.desc * u32::from(i)) + NEXT;
                    window.set_u16(at, i.wrapping_add(1), Ordering::Relaxed);
                }
            }
            window.set_u16(VERSION, 1, Ordering::Release);
            Ok(())
        }
        (1, n) if n == ring_size => Ok(()),
        _ => Err(InflightError::Format { version, desc_num }),
    }
}
