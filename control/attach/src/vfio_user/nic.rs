//! What the server needs of a NIC model, whichever it is.

use std::ops::Range;
use std::sync::Arc;

use vmlan_frame::{Batch, Counters, Device, Offloads, Sink};
use vmlan_nic::e1000::{self, E1000};
use vmlan_ram::Map;

/// A space that the VMM reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// A BAR by number.
    Bar(u8),
    /// PCI configuration space.
    Config,
}

/// What a model looks like on its bus.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its name in configuration.
    pub model: &'static str,
    /// Bytes of each BAR; 0: there is none.
    pub bars: [u64; 6],
    /// Bytes of configuration space.
    pub config: u64,
    /// The part of BAR 0 that can be shared memory: whole pages.
    pub pages: Range<usize>,
    /// It can send messages (MSI).
    pub msi: bool,
}

/// Why a NIC stands still, or does not do all that it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In words.
    pub text: String,
    /// The guest address that it is about.
    pub address: Option<u64>,
    /// It stands still.
    pub stops: bool,
    /// The client's memory is gone: it cannot be served any longer.
    pub fatal: bool,
}

/// A NIC model with locks of its own. The first methods are called by the port's thread, which plays the VMM's exit path;
/// the others by workers, as [`vmlan_frame::Port`] says.
#[allow(missing_docs)] // As in `Port` and `E1000`.
pub trait Nic: Send + Sync {
    fn layout(&self) -> &Layout;
    /// Reads registers. The caller has checked that they lie in the space.
    fn read(&self, space: Space, offset: u64, data: &mut [u8]);
    /// Writes registers.
    fn write(&self, space: Space, offset: u64, data: &[u8]);
    fn reset(&self);
    /// A reset for another machine: nothing of what the last one wrote is left, in non-volatile memory neither.
    fn renew(&self);
    /// Waits for both sides; the old map is no longer used.
    fn set_map(&self, map: Arc<Map>) -> Arc<Map>;
    fn set_link(&self, up: bool);
    fn set_irq_rate_max(&self, rate_max: u32);
    fn timer(&self);
    fn reassert(&self);
    fn trouble(&self) -> Option<Trouble>;

    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize;
    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize;
    fn offloads(&self) -> Offloads;
    fn room(&self) -> usize;
    fn is_up(&self) -> bool;
    fn arm(&self) -> bool;
    fn disarm(&self);
    fn want_room(&self) -> bool;
    fn counters(&self) -> &Counters;
    fn device(&self) -> Device;
}

/// The 82540EM on its bus: 128 KiB of registers, 64 bytes of I/O ports, MSI.
pub static E1000_LAYOUT: Layout = Layout {
    model: "e1000",
    bars: [128 << 10, 64, 0, 0, 0, 0],
    config: 256,
    pages: 0x2000..0x2000 + E1000::PAGES,
    msi: true,
};

impl Nic for E1000 {
    fn layout(&self) -> &Layout {
        &E1000_LAYOUT
    }

    #[inline]
    fn read(&self, space: Space, offset: u64, data: &mut [u8]) {
        match space {
            Space::Bar(0) => self.read_bar0(offset, data),
            Space::Bar(_) => self.read_bar1(offset, data),
            Space::Config => self.read_config(offset, data),
        }
    }

    #[inline]
    fn write(&self, space: Space, offset: u64, data: &[u8]) {
        match space {
            Space::Bar(0) => self.write_bar0(offset, data),
            Space::Bar(_) => self.write_bar1(offset, data),
            Space::Config => self.write_config(offset, data),
        }
    }

    fn reset(&self) {
        E1000::reset(self);
    }
    fn renew(&self) {
        E1000::renew(self);
    }

    fn set_map(&self, map: Arc<Map>) -> Arc<Map> {
        E1000::set_map(self, map)
    }

    fn set_link(&self, up: bool) {
        E1000::set_link(self, up);
    }

    fn set_irq_rate_max(&self, rate_max: u32) {
        E1000::set_irq_rate_max(self, rate_max);
    }

    fn timer(&self) {
        E1000::timer(self);
    }

    fn reassert(&self) {
        E1000::reassert(self);
    }

    fn trouble(&self) -> Option<Trouble> {
        let trouble = E1000::trouble(self)?;
        let address = match &trouble {
            e1000::Trouble::BadRing { base, .. } => Some(*base),
            e1000::Trouble::BadBlock { address, fault: e1000::BlockFault::Outside } => {
                Some(*address)
            }
            _ => None,
        };
        let fatal = matches!(trouble, e1000::Trouble::Truncated);
        let stops = !matches!(trouble, e1000::Trouble::BadBlock { .. });
        Some(Trouble { text: trouble.to_string(), address, stops, fatal })
    }

    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        E1000::pull(self, batch, limit, sink)
    }

    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        E1000::push(self, batch, list)
    }

    fn offloads(&self) -> Offloads {
        E1000::offloads(self)
    }

    fn room(&self) -> usize {
        E1000::room(self)
    }

    fn is_up(&self) -> bool {
        E1000::is_up(self)
    }

    fn arm(&self) -> bool {
        E1000::arm(self)
    }

    fn disarm(&self) {
        E1000::disarm(self);
    }

    fn want_room(&self) -> bool {
        E1000::want_room(self)
    }

    fn counters(&self) -> &Counters {
        E1000::counters(self)
    }

    fn device(&self) -> Device {
        E1000::device(self)
    }
}
