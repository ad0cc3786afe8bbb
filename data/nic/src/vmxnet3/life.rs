//! What the device does in its life: it is activated, told of changes, quiesced, reset.
//!
//! | kept by | RST#, power-on | RESET | QUIESCE | ACTIVATE |
//! | --- | --- | --- | --- | --- |
//! | configuration space | no | yes | yes | yes |
//! | the version that was chosen | no | yes | yes | yes |
//! | the address, if the driver changed it | no | no | yes | yes |
//! | the address of DriverShared | no | no | yes | yes |
//! | masks of vectors | no | no | yes | yes |
//! | counters | no | no | yes | no |
//!
//! Drivers free their buffers as soon as the write of QUIESCE has returned. So it takes the locks
//! of both sides: when it returns, no frame is being written and none will be.

use std::sync::Arc;

use vmlan_frame::{Mac, Reason};
use vmlan_ram::Map;

use super::chip::Vmxnet3;
use super::rules::Rules;
use super::shared::{COUNTERS, EVENTS, RECEIVE, Shared, TRANSMIT, is_shared};
use super::stats::Figures;
use super::vectors::VECTORS;
use crate::bits::low32;
use crate::chip::state::{Fields, Stateful};
use crate::chip::{After, Chip, ControlOf, Interrupts, TransmitSide};

/// Bits of `ecr`: what has happened to the device.
mod event {
    pub const RECEIVE: u32 = 1; // A queue has failed.
    pub const TRANSMIT: u32 = 2; // The same.
    pub const LINK: u32 = 4;
}

/// Of [`Device::memo`]: an address of DriverShared, and the version above.
const ADDRESS: u64 = (1 << VERSION) - 1;
const VERSION: u32 = 56;

/// The device as its driver has set it up. Behind the control lock.
#[derive(Default)]
pub struct Device {
    /// There is a link.
    pub cable: bool,
    /// The address in use, as MACL and MACH have it.
    pub mac: u64,
    /// The address of DriverShared.
    pub shared: u64,
    /// The version that the driver has chosen, as a bit.
    pub version: u32,
    /// The result of the last command.
    pub result: u32,
    /// `ecr`, of which the driver's copy is written only.
    pub events: u32,
    /// How interrupts are coalesced, as the driver has said it.
    pub scheme: [u8; 16],
    pub active: Option<Active>,
    /// Words of the MSI-X table, which VMMs keep themselves.
    pub table: [[u32; 4]; VECTORS],
}

/// What is known while the device is active.
#[derive(Default)]
pub struct Active {
    /// Where DriverShared was when it was activated.
    pub shared: u64,
    /// Where the descriptors of queues are: for transmission, for reception.
    queues: [Vec<u64>; 2],
    event_vector: u32,
    pub rules: Arc<Rules>,
    /// Packets are handed over uncut.
    pub uncut: bool,
    /// Counters when it was activated.
    base: [Figures; TRANSMIT + RECEIVE],
}

impl Stateful for Device {
    #[rustfmt::skip]
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self {
            cable, mac, shared, version, result, events, scheme, active, table,
        } = self;
        io.flag(cable);
        [&mut *mac, shared].into_iter().for_each(|address| io.u64(address));
        io.check(*mac >> 48 == 0);
        [version, result, events].into_iter().for_each(|word| io.u32(word));
        io.bytes(scheme);
        io.option(active, |io, active| active.fields(io));
        table.fields(io);
    }
}

impl Stateful for Active {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { shared, queues: [senders, receivers], event_vector, rules, uncut, base } = self;
        io.u64(shared);
        io.list(senders, TRANSMIT, Fields::u64);
        io.list(receivers, RECEIVE, Fields::u64);
        io.u32(event_vector);
        io.check(event_vector.count_ones() < 2 && *event_vector >> VECTORS == 0);
        Arc::make_mut(rules).fields(io);
        io.flag(uncut);
        base.fields(io);
    }
}

impl Device {
    /// What has to be known of it to tell its driver that it has died.
    pub fn memo(&self) -> u64 {
        let version = u64::from(self.version.min(0xff));
        if self.shared > ADDRESS { 0 } else { self.shared | version << VERSION }
    }
}

/// An address as MACL and MACH have it.
pub fn registers_of(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The address in MACL and MACH.
pub fn mac_of(registers: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = registers.to_le_bytes();
    Mac::new([a, b, c, d, e, f])
}

impl Vmxnet3 {
    /// Runs `what` with the guest's memory, while no frame moves. Only so may the control side use
    /// it: nobody else may keep a map alive.
    pub(super) fn with_memory<T>(&self, what: impl FnOnce(&Arc<Map>) -> T) -> T {
        self.core.stopped(|tx, _| what(TransmitSide::<Self>::map(tx)))
    }

    /// All but configuration space.
    pub(super) fn reset_device(&self, control: &mut ControlOf<Self>) -> After {
        let after = self.quiesce(control);
        let Device { cable, version, table, .. } = control.phy;
        let mac = registers_of(self.mac);
        control.phy = Device { cable, version, table, mac, ..Device::default() };
        let edge = self.core.irq.reset();
        self.set_gate(control);
        self.core.let_interrupts(&control.pci);
        After { edge: after.edge.then(edge), ..after }
    }

    /// When this returns, no DMA runs any more, and none will.
    pub(super) fn quiesce(&self, control: &mut ControlOf<Self>) -> After {
        control.phy.active = None;
        self.set_gate(control);
        self.core.stopped(|tx, rx| {
            tx.place(self, std::iter::empty());
            rx.place(self, std::iter::empty());
        });
        After::default()
    }

    /// True if it worked. A device that is active already begins again: its driver may be another
    /// one, which knows nothing of the first.
    pub(super) fn activate(&self, control: &mut ControlOf<Self>) -> After {
        let mut after = self.quiesce(control);
        let Device { shared: address, version, mac, .. } = control.phy;
        let own = mac_of(mac);
        let read = self.with_memory(|map| {
            let shared = Shared::read(map, address)?;
            let mut rules = Rules::read(map, address, &shared, own);
            rules.knows_uncut = version > 1;
            Some((shared, Arc::new(rules)))
        });
        let Some((shared, rules)) = read.filter(|_| control.pci.may_dma()) else {
            control.phy.result = 1;
            return after;
        };
        let edge = self.core.irq.set_up(shared.vectors, shared.auto_mask);
        let levels = self.core.irq.set_levels(shared.levels(), &*self.core.host);
        after.edge = after.edge.then(edge).then(levels);
        let uncut = self.core.stopped(|tx, rx| {
            rx.set_rules(&rules);
            tx.place(self, shared.senders());
            rx.place(self, shared.receivers());
            rx.take_uncut()
        });
        let mut base = [Figures::default(); TRANSMIT + RECEIVE];
        base.iter_mut().zip(self.stats.figures(self.missed())).for_each(|(base, now)| *base = now);
        let senders = shared.senders().map(|queue| queue.address).collect();
        let receivers = shared.receivers().map(|queue| queue.address).collect();
        control.phy.events = 0;
        control.phy.result = 0;
        control.phy.active = Some(Active {
            shared: address,
            queues: [senders, receivers],
            event_vector: shared.event_vector,
            rules,
            uncut,
            base,
        });
        self.set_gate(control);
        After { ring_tx: true, ring_rx: true, ..after }
    }

    /// Reads rules again, those that `read` names, at the address of DriverShared.
    pub(super) fn update_rules(
        &self,
        control: &mut ControlOf<Self>,
        read: impl FnOnce(&mut Rules, &Map, u64),
    ) {
        let Some(active) = &mut control.phy.active else { return };
        self.core.stopped(|tx, rx| {
            let rules = Arc::make_mut(&mut active.rules);
            read(rules, TransmitSide::<Self>::map(tx), active.shared);
            rx.set_rules(&active.rules);
            active.uncut = rx.take_uncut();
        });
        self.set_gate(control);
    }

    /// Frames that were lost because there were no buffers.
    pub(super) fn missed(&self) -> u64 {
        self.core.counters.output.dropped(Reason::ReceiverFull)
    }

    /// Writes the counters since ACTIVATE into the descriptors of the queues.
    pub(super) fn write_stats(&self, control: &ControlOf<Self>) {
        let Some(active) = &control.phy.active else { return };
        let numbered = |first: usize, queues: &[u64]| {
            let pairs = queues.iter().copied().enumerate();
            pairs.map(|(n, address)| (first + n, address)).collect::<Vec<_>>()
        };
        let [senders, receivers] = &active.queues;
        let queues = [numbered(0, senders), numbered(TRANSMIT, receivers)].concat();
        let now: Vec<Figures> = self.stats.figures(self.missed()).collect();
        self.with_memory(|map| {
            for (n, address) in queues {
                let (Some(base), Some(now)) = (active.base.get(n), now.get(n)) else { continue };
                let since = now
                    .iter()
                    .zip(base)
                    .flat_map(|(n, base)| n.saturating_sub(*base).to_le_bytes());
                let bytes: Vec<u8> = since.collect();
                let place = address.checked_add(COUNTERS);
                if let Some(mut place) = place.and_then(|at| map.slice_mut(at, bytes.len())) {
                    place.write(0, &bytes);
                }
            }
        });
    }

    /// Events have happened, or were taken: what is in DriverShared follows.
    fn write_events(&self, control: &ControlOf<Self>) {
        if !control.pci.may_dma() {
            return;
        }
        // One that has died has not been activated, and knows nevertheless.
        let shared = control.phy.active.as_ref().map_or(control.phy.shared, |a| a.shared);
        let events = control.phy.events.to_le_bytes();
        self.with_memory(|map| {
            let place = shared.checked_add(EVENTS).filter(|_| is_shared(map, shared));
            if let Some(mut place) = place.and_then(|at| map.slice_mut(at, events.len())) {
                place.write(0, &events);
            }
        });
    }

    /// A device that had said so of itself has died: all its queues have failed. Its driver then
    /// resets and activates this one.
    pub(super) fn fail(&self, control: &mut ControlOf<Self>, memo: u64) {
        control.phy.shared = memo & ADDRESS;
        control.phy.version = low32(memo >> VERSION);
        control.phy.events = event::RECEIVE | event::TRANSMIT;
        self.set_gate(control);
        self.write_events(control);
    }

    /// ECR is written: these events are taken.
    pub(super) fn take_events(&self, control: &mut ControlOf<Self>, taken: u32) -> After {
        control.phy.events &= !taken;
        self.write_events(control);
        After::default()
    }

    /// Brings what lets frames pass in line with the cable and PCI. A change of the link is an
    /// event.
    pub(super) fn follow_link(&self, control: &mut ControlOf<Self>) -> After {
        let before = self.gate();
        self.set_gate(control);
        self.core.let_interrupts(&control.pci);
        let now = self.gate();
        let opens = now != before;
        // As another kind of interrupt, or let out: what was kept in.
        let edge = self.core.irq.remoderate(self.delays(), &*self.core.host);
        let mut after = After { edge, ring_tx: opens, ring_rx: opens, ..After::default() };
        if before.link != now.link
            && let Some(active) = &control.phy.active
        {
            after.causes = active.event_vector;
            control.phy.events |= event::LINK;
            self.write_events(control);
        }
        after
    }
}
