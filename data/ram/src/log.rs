//! The dirty log of live migration: one bit for each 4 KiB page (vhost-user spec, "Migration").

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::Mapping;

/// Bytes a bit of the log stands for (`VHOST_LOG_PAGE`).
const PAGE: u64 = 4096;

/// A bitmap in memory shared with the VMM.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl DirtyLog {
    /// The `len` bytes at `offset` of `mapping`; `None` if they leave it.
    #[must_use]
    pub fn new(mapping: Arc<Mapping>, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > mapping.len() as u64 {
            return None;
        }
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        Some(Self { mapping, offset, len })
    }

    /// Marks the pages of `len` bytes at `gpa`. Pages beyond the log are ignored, as the spec leaves
    /// them to the VMM's choice of size.
    pub fn mark(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len - 1) / PAGE;
        for page in gpa / PAGE..=last {
            let Some(byte) = self.byte(page / 8) else {
                return;
            };
            byte.fetch_or(1 << (page % 8), Ordering::Relaxed);
        }
    }

    fn byte(&self, index: u64) -> Option<&AtomicU8> {
        let index = usize::try_from(index).ok().filter(|i| *i < self.len)?;
        // SAFETY: offset + index < mapping.len(), by `new` and the line above; the mapping lives as
        // long as `self`; an atomic byte may be shared with another process.
        Some(unsafe { AtomicU8::from_ptr(self.mapping.base().as_ptr().add(self.offset + index)) })
    }
}
