//! Stand-ins for the data path until its files are there (CHIP-B removes this file).
#![allow(missing_docs)]

use std::sync::Arc;

use vmlan_frame::{Batch, Counters, Offloads, Sink};
use vmlan_ram::Map;

use super::{E1000, Trouble};

#[derive(Default)]
pub struct Tx {
    map: Arc<Map>,
}

#[derive(Default)]
pub struct Rx {
    map: Arc<Map>,
}

#[derive(Default)]
pub struct Stats;

impl Tx {
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        std::mem::replace(&mut self.map, map)
    }
    pub fn stop(&mut self) {}
    pub fn reset(&mut self) {}
}

impl Rx {
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        std::mem::replace(&mut self.map, map)
    }
    pub fn stop(&mut self) {}
    pub fn reset(&mut self) {}
}

impl Stats {
    pub fn read(&self, _: u32, _: &Counters) -> Option<u32> {
        None
    }
    pub fn clear(&self, _: &Counters) {}
    pub fn totals(&self, _: &Counters) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl E1000 {
    /// Lends up to `limit` frames (see `Port::pull`).
    pub fn pull(&self, _: &mut Batch<'static>, _: usize, _: &mut dyn Sink) -> usize {
        self.post_transmit(0, true);
        0
    }
    /// Delivers frames (see `Port::push`).
    pub fn push(&self, _: &Batch<'_>, list: &[u16]) -> usize {
        list.len()
    }
    /// What a receiver of this kind takes.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        Offloads::NONE
    }
    /// Room.
    #[must_use]
    pub fn room(&self) -> usize {
        0
    }
    /// See `Port::arm`.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.tx_bell.arm();
        false
    }
    /// See `Port::disarm`.
    pub fn disarm(&self) {
        self.tx_bell.disarm();
    }
    /// See `Port::want_room`.
    #[must_use]
    pub fn want_room(&self) -> bool {
        true
    }
    /// Why it stands still.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        None
    }
}
