//! A ring of 16-byte descriptors in the guest's memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::{Map, Window};

use super::SIZE;
use crate::chip::held::point;
use crate::chip::state::{Fields, Stateful};

/// The descriptors of a ring, wherever it is now.
#[derive(Default)]
pub struct Descriptors {
    map: Arc<Map>,
    window: Option<Window>,
    base: u64,
    len: u32,
}

impl Descriptors {
    #[inline]
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Replaces the map; nothing of the old one is kept.
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.window = None;
        std::mem::replace(&mut self.map, map)
    }

    /// True if the ring was last found there.
    #[inline]
    pub fn is_at(&self, base: u64, len: u32) -> bool {
        base == self.base && len == self.len
    }

    /// Where the ring is: `len` bytes at `base`. False: that is not in the guest's memory.
    #[inline]
    pub fn find(&mut self, base: u64, len: u32) -> bool {
        if !self.is_at(base, len) || self.window.is_none() {
            (self.base, self.len) = (base, len);
            self.window = self.map.window(base, len as usize, SIZE);
        }
        self.window.is_some()
    }

    /// Descriptors, as last looked for.
    pub fn size(&self) -> u32 {
        self.len >> 4
    }

    /// The descriptor at `index`, as two quadwords, each read once.
    #[inline]
    pub fn read(&self, index: u32) -> (u64, u64) {
        self.window.as_ref().map_or((0, 0), |w| w.descriptor(at(index)))
    }

    /// Where it is, and its bytes.
    pub fn place(&self) -> (u64, u32) {
        (self.base, self.len)
    }

    /// Its first quadword.
    #[inline]
    pub fn first(&self, index: u32, order: Ordering) -> u64 {
        self.window.as_ref().map_or(0, |w| w.u64(at(index), order))
    }

    /// Its second quadword.
    #[inline]
    pub fn second(&self, index: u32, order: Ordering) -> u64 {
        self.window.as_ref().map_or(0, |w| w.u64(at(index) + 8, order))
    }

    /// Its first doubleword.
    #[inline]
    pub fn word(&self, index: u32, order: Ordering) -> u32 {
        self.window.as_ref().map_or(0, |w| w.u32(at(index), order))
    }

    /// How many of `n` descriptors from `index` on have a first doubleword that passes `test`,
    /// before the first without it.
    #[inline]
    pub fn leading(&self, index: u32, n: u32, test: impl Fn(u32) -> bool) -> u32 {
        let found = |w: &Window| w.leading::<SIZE>(at(index), n as usize, test);
        // No more than `n`, which is what a count beyond u32 saturates to.
        self.window.as_ref().map_or(0, found).try_into().unwrap_or(n)
    }

    /// As [`Self::leading`], by their second quadwords.
    #[inline]
    pub fn leading_second(&self, index: u32, n: u32, test: impl Fn(u64) -> bool) -> u32 {
        let found = |w: &Window| w.leading_descriptors(at(index), n as usize, test);
        self.window.as_ref().map_or(0, found).try_into().unwrap_or(n)
    }

    /// Writes the descriptor at `index`, its second quadword after all that was written before.
    #[inline]
    pub fn set(&self, index: u32, words: (u64, u64)) {
        if let Some(window) = &self.window {
            point();
            #[cfg(test)]
            window.set_u64(at(index), words.0, Ordering::Relaxed);
            point();
            window.set_descriptor(at(index), words);
        }
    }

    /// Copies out descriptors from `index` on, as many as `out` holds or the ring has before its
    /// end.
    #[inline]
    pub fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        let out = out.as_flattened_mut();
        if let Some(window) = &self.window {
            window.slice(at(index), out.len()).read(out);
        }
    }

    /// Writes the quadword at `offset` (0 or 8) of the descriptor at `index`, after all that was
    /// written before.
    #[inline]
    pub fn set_u64(&self, index: u32, offset: usize, word: u64) {
        if let Some(window) = &self.window {
            point();
            window.set_u64(at(index) + offset, word, Ordering::Release);
        }
    }

    /// Writes the doubleword at `offset` (0, 4, 8 or 12) of it.
    #[inline]
    pub fn set_u32(&self, index: u32, offset: usize, word: u32) {
        if let Some(window) = &self.window {
            point();
            window.set_u32(at(index) + offset, word, Ordering::Release);
        }
    }
}

impl Stateful for Descriptors {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { map: _, window, base, len } = self;
        io.u64(base);
        io.u32(len);
        if io.restores() {
            *window = None;
            let (base, len) = (*base, *len);
            let _found = len > 0 && self.find(base, len);
        }
    }
}

/// The byte at which the descriptor `index` begins.
#[inline]
fn at(index: u32) -> usize {
    index as usize * SIZE
}
