//! The CSB: scripted drivers of all generations that were in use, and a wire with numbered frames
//! both ways.

mod attack;
mod generations;
mod hostile;
mod points;
mod threads;

use std::sync::atomic::Ordering;

use vmlan_frame::{Batch, Offload, Sink};
use vmlan_ram::{Map, Slice, Window, full_fence};

use super::super::E1000;
use super::data::guest::*;
use crate::chip::Controlled;

pub const CSBAL: u64 = 0x2830;
pub const CSBAH: u64 = 0x2834;
/// Where the drivers here have the CSB.
pub const CSB: u32 = 0x8000;

pub const GUEST_TDT: usize = 0x00;
pub const GUEST_NEED_TXKICK: usize = 0x04;
pub const GUEST_NEED_RXKICK: usize = 0x08;
pub const CSB_ON: usize = 0x0c;
pub const GUEST_RDT: usize = 0x10;
pub const HOST_TDH: usize = 0x40;
pub const HOST_NEED_TXKICK: usize = 0x44;
pub const HOST_RDH: usize = 0x50;
pub const HOST_NEED_RXKICK: usize = 0x54;
pub const HOST_RXKICK_AT: usize = 0x5c;
pub const NONE: u32 = u32::MAX;

/// Which driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Kind {
    /// February 2013: `guest_rdt` once for each batch, boolean wishes.
    G0,
    /// May 2013: the same, released by CSBAH.
    G1,
    /// June 2013: `host_rxkick_at`.
    G2,
    /// 2013 to 2015: the long CSB, fields for MSI-X.
    G3,
    /// FreeBSD 10.4: sets neither index when its interface goes up, parks `guest_need_txkick` at 2.
    G4,
    /// As a driver should be: zeroes the page, sets every field, fences.
    New,
}

impl Kind {
    pub const ALL: [Self; 6] = [Self::G0, Self::G1, Self::G2, Self::G3, Self::G4, Self::New];
}

/// A driver with a CSB.
pub struct Driver<'g> {
    pub kind: Kind,
    pub chip: &'g E1000,
    pub csb: Window,
    map: &'g Map,
    tx: Window,
    rx: Window,
    /// Next to fill, next to be written back.
    pub next: u32,
    pub clean: u32,
    /// Next to be received, and the tail that was published last.
    pub rx_next: u32,
    pub sent: u32,
    pub received: u32,
    /// Writes of TDT and RDT.
    pub kicks: u32,
}

impl<'g> Driver<'g> {
    /// Places the CSB, resets the chip through the I/O window, starts it: in this order, as FreeBSD
    /// does.
    pub fn new(guest: &'g Guest, kind: Kind) -> Self {
        let window = |at: u64, len: usize| guest.map.window(at, len, 4).unwrap();
        let mut driver = Self {
            kind,
            chip: &guest.chip,
            csb: window(CSB.into(), 0x1000),
            map: &guest.map,
            tx: window(TX_RING, 16 * SIZE as usize),
            rx: window(RX_RING, 16 * SIZE as usize),
            next: 0,
            clean: 0,
            rx_next: 0,
            sent: 0,
            received: 0,
            kicks: 0,
        };
        // Whatever was there before.
        let fill = if kind == Kind::New { 0 } else { 0x0a5a_5a5b };
        for at in (0..0x1000).step_by(4) {
            driver.put(at, fill);
        }
        driver.put(HOST_NEED_TXKICK, 1);
        driver.put(GUEST_NEED_RXKICK, 1);
        driver.put(GUEST_NEED_TXKICK, 0);
        driver.put(CSB_ON, 0);
        driver.put(0x48, 1);
        driver.put(HOST_RXKICK_AT, NONE);
        driver.set(CSBAH, 0);
        driver.set(CSBAL, CSB);
        driver.up();
        driver
    }

    /// The interface goes up.
    pub fn up(&mut self) {
        self.chip.write_config(4, &[7, 0]);
        self.chip.write_ports(0, &0u32.to_le_bytes());
        self.chip.write_ports(4, &(1u32 << 26).to_le_bytes());
        self.chip.set_link(true);
        self.set(CTRL, SLU);
        for (base, at) in [(TD, TX_RING), (RD, RX_RING)] {
            self.set(base, u32::try_from(at).unwrap());
            self.set(base + HIGH, 0);
            self.set(base + LEN, SIZE * 16);
            self.set(base + HEAD, 0);
            self.set(base + TAIL, 0);
        }
        (self.next, self.clean, self.rx_next) = (0, 0, 0);
        for i in 0..SIZE {
            let at = 16 * i as usize;
            self.tx.set_u64(at, TX_BUFFERS + 2048 * u64::from(i), Ordering::Relaxed);
            self.tx.set_u64(at + 8, 1 << 32, Ordering::Relaxed);
            self.rx.set_u64(at, RX_BUFFERS + 2048 * u64::from(i), Ordering::Relaxed);
            self.rx.set_u64(at + 8, 0, Ordering::Relaxed);
        }
        if self.kind != Kind::G4 {
            self.put(GUEST_TDT, 0);
            self.put(GUEST_RDT, SIZE - 1);
        }
        self.set(TCTL, 2 | 8);
        self.set(RCTL, 2 | 1 << 15);
        self.set(RD + TAIL, SIZE - 1);
        // RXT0, RXO, RXDMT0, LSC, TXDW.
        self.set(0xd0, 0xd5);
    }

    pub fn set(&self, at: u64, value: u32) {
        self.chip.write_bar(0, at, &value.to_le_bytes());
    }

    pub fn reg(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.chip.read_bar(0, at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub fn put(&self, at: usize, value: u32) {
        self.csb.set_u32(at, value, Ordering::Release);
    }

    pub fn get(&self, at: usize) -> u32 {
        self.csb.u32(at, Ordering::Acquire)
    }

    /// Turns the CSB on or off, as a sysctl does: nothing else happens.
    pub fn turn(&self, on: bool) {
        self.put(CSB_ON, on.into());
    }

    /// The same, by a driver that knows what it does.
    pub fn turn_well(&mut self, on: bool) {
        if on {
            self.put(GUEST_TDT, self.next);
            self.put(GUEST_RDT, (self.rx_next + SIZE - 1) % SIZE);
            full_fence();
            self.turn(true);
        } else {
            self.turn(false);
            full_fence();
            self.set(TD + TAIL, self.next);
            self.set(RD + TAIL, (self.rx_next + SIZE - 1) % SIZE);
        }
    }

    /// Only the drivers of today know that a store followed by a load needs one.
    fn fence(&self) {
        if self.kind == Kind::New {
            full_fence();
        }
    }

    pub fn is_on(&self) -> bool {
        self.get(CSB_ON) != 0
    }

    fn reclaim(&mut self) {
        let done = |d: &Self| d.tx.u32(16 * d.clean as usize + 12, Ordering::Acquire) & 1 != 0;
        while self.clean != self.next && done(self) {
            self.clean = (self.clean + 1) % SIZE;
        }
    }

    pub fn free(&mut self) -> u32 {
        self.reclaim();
        (self.clean + SIZE - 1 - self.next) % SIZE
    }

    /// Sends one numbered frame; false if there is no descriptor.
    pub fn send(&mut self) -> bool {
        if self.free() == 0 {
            return false;
        }
        let mut bytes = frame([0xff; 6], 60);
        bytes[14..18].copy_from_slice(&self.sent.to_le_bytes());
        let buffer = TX_BUFFERS + 2048 * u64::from(self.next);
        self.map.slice_mut(buffer, 60).unwrap().write(0, &bytes);
        self.tx.set_u64(16 * self.next as usize + 8, 60 | LAST, Ordering::Release);
        self.next = (self.next + 1) % SIZE;
        self.sent += 1;
        self.put(GUEST_TDT, self.next);
        self.fence();
        let wanted = self.get(HOST_NEED_TXKICK);
        let wanted = if self.kind == Kind::G4 { wanted & 1 } else { wanted };
        if !self.is_on() || wanted != 0 {
            self.kicks += 1;
            self.set(TD + TAIL, self.next);
        }
        true
    }

    fn word(&self, index: u32) -> u64 {
        self.rx.u64(16 * index as usize + 8, Ordering::Acquire)
    }

    /// Receives what there is, and says whether it wants an interrupt for more. Frames must be
    /// those that are next.
    pub fn receive(&mut self, most: u32) -> u32 {
        if self.is_on() {
            self.put(GUEST_NEED_RXKICK, 0);
        }
        let (before, mut last) = (self.received, None);
        while self.received - before < most {
            let i = self.rx_next;
            if self.word(i) & (1 << 32) == 0 {
                break;
            }
            let mut bytes = [0; 4];
            let buffer = RX_BUFFERS + 2048 * u64::from(i);
            self.map.slice(buffer + 14, 4).unwrap().read(&mut bytes);
            assert_eq!(u32::from_le_bytes(bytes), self.received, "lost, twice, or out of order");
            self.received += 1;
            self.rx.set_u64(16 * i as usize + 8, 0, Ordering::Release);
            self.rx_next = (i + 1) % SIZE;
            last = Some(i);
            if self.kind >= Kind::G2 && self.is_on() {
                self.refilled(i);
            }
        }
        if let Some(last) = last
            && (self.kind < Kind::G2 || !self.is_on())
        {
            self.refilled_batch(last);
        }
        self.received - before
    }

    fn refilled(&mut self, i: u32) {
        self.put(GUEST_RDT, i);
        self.fence();
        if i == self.get(HOST_RXKICK_AT) {
            self.kicks += 1;
            self.set(RD + TAIL, i);
        }
    }

    fn refilled_batch(&mut self, last: u32) {
        // FreeBSD 10.4 lets the word go stale.
        if self.kind != Kind::G4 {
            self.put(GUEST_RDT, last);
        }
        self.fence();
        if !self.is_on() || self.kind < Kind::G2 && self.get(HOST_NEED_RXKICK) != 0 {
            self.kicks += 1;
            self.set(RD + TAIL, last);
        }
    }

    /// Nothing is left: asks for an interrupt. False: there is something after all.
    pub fn want_frames(&self) -> bool {
        self.put(GUEST_NEED_RXKICK, 1);
        self.fence();
        self.word(self.rx_next) & (1 << 32) == 0
    }

    /// Waits for sent frames to be written back. False: there is room already.
    pub fn want_sent(&mut self) -> bool {
        self.put(GUEST_NEED_TXKICK, 1);
        self.fence();
        self.free() == 0
    }

    pub fn sent_enough(&self) {
        self.put(GUEST_NEED_TXKICK, if self.kind == Kind::G4 { 2 } else { 0 });
    }

    /// As the driver's detach does it.
    pub fn release(&self) {
        self.turn(false);
        if self.kind == Kind::G1 {
            return self.set(CSBAH, u32::MAX);
        }
        // FreeBSD 10.4 forgets to.
        if self.kind != Kind::G4 {
            self.set(CSBAH, 0);
            self.set(CSBAL, 0);
        }
    }
}

/// The other end: checks the numbers of what comes, and sends numbered frames.
pub struct Wire {
    spare: Batch<'static>,
    pub come: u32,
    pub gone: u32,
}

impl Default for Wire {
    fn default() -> Self {
        Self { spare: Batch::new(), come: 0, gone: 0 }
    }
}

/// Checks numbers.
struct Numbers<'w>(&'w mut u32);

impl Sink for Numbers<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let mut bytes = [0; 60];
            batch.frame(i).unwrap().copy_to(&mut bytes);
            let number = u32::from_le_bytes(bytes[14..18].try_into().unwrap());
            assert_eq!(number, *self.0, "lost, twice, or out of order");
            *self.0 += 1;
        }
    }
}

impl Wire {
    pub fn pull(&mut self, chip: &E1000) -> usize {
        chip.disarm();
        chip.pull(&mut self.spare, 32, &mut Numbers(&mut self.come))
    }

    /// Sends up to `n`; returns how many had room.
    pub fn push(&mut self, chip: &E1000, n: u16) -> usize {
        let mut batch = Batch::new();
        let bodies: Vec<_> = (0..u32::from(n)).map(|i| (self.gone + i).to_le_bytes()).collect();
        for number in &bodies {
            let rest = [number.as_slice(), &[0; 42]].map(Slice::from_bytes);
            batch.add_parts(&frame([0xff; 6], 14), rest, Offload::NONE).unwrap();
        }
        let list: Vec<u16> = (0..n).collect();
        let dealt = chip.push(&batch, &list);
        self.gone += u32::try_from(dealt).unwrap();
        dealt
    }
}

impl std::fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, next, clean, rx_next, sent, received, kicks, .. } = self;
        write!(f, "{kind:?}: next {next}, clean {clean}, rx_next {rx_next}, ")?;
        write!(f, "sent {sent}, received {received}, kicks {kicks}; csb")?;
        (0..0x68).step_by(4).try_for_each(|at| write!(f, " {:x}", self.get(at)))?;
        let regs = [TD + HEAD, TD + TAIL, RD + HEAD, RD + TAIL].map(|at| self.reg(at));
        write!(f, "; TDH, TDT, RDH, RDT {regs:?}")
    }
}

/// Register accesses so far.
pub fn accesses(chip: &E1000) -> u64 {
    chip.device().registers.iter().map(|a| a.reads + a.writes).sum()
}
