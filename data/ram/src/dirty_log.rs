//! The dirty log of live migration: one bit for each 4 KiB page (vhost-user spec, "Migration").

use std::sync::Arc;

use crate::Mapping;
use crate::cell::Cell;

const PAGE: u64 = 4096; // Bytes a bit of the log stands for (`VHOST_LOG_PAGE`).

/// A bitmap in memory shared with the VMM.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Arc<Mapping>,
    offset: u64,
    len: u64,
}

impl DirtyLog {
    /// The `len` bytes at `offset` of `mapping`; `None` if they leave it.
    pub fn new(mapping: Arc<Mapping>, offset: u64, len: u64) -> Option<Self> {
        mapping.part(offset, len)?;
        Some(Self { mapping, offset, len })
    }

    /// Marks the pages of `len` bytes at `gpa`. Pages beyond the log are ignored, as the spec
    /// leaves its size to the VMM.
    pub fn mark(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len - 1) / PAGE;
        for page in gpa / PAGE..=last {
            let Some(byte) = self.byte(page / 8) else {
                return;
            };
            byte.set_bits(1 << (page % 8));
        }
    }

    fn byte(&self, index: u64) -> Option<Cell<'_, u8>> {
        self.mapping.part(self.offset, self.len)?.cell(usize::try_from(index).ok()?)
    }
}
