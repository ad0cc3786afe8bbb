//! Both sides, each in the mode that CPCR says: classic, or C+. Only one of the two is ever on, and
//! whoever changes that stops both (`access.rs`). Only C+ mode uses a CSB.

use std::sync::Arc;

use vmlan_frame::{Batch, Sink};
use vmlan_ram::Map;

use super::chip::Rtl8139;
use super::classic::Classic;
use super::regs::Registers;
use super::tsd::{Pairs, Tsd};
use crate::chip::csb::Csb;
use crate::chip::held::{Held, Remains};
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Fault, ReceiveSide, Received, Sent, StateError, TransmitSide};
use crate::realtek::cplus::{Digest, Receiving, Which};
use crate::realtek::queues::Queues;
use crate::realtek::ring::Ring;
use crate::ring::{Receiver, Transmitter};

/// The transmit side.
pub struct Tx {
    classic: Transmitter<Tsd>,
    plus: Queues<Rtl8139>,
    /// C+ mode.
    mode: bool,
}

/// The receive side.
pub struct Rx {
    classic: Classic,
    plus: Receiver<Receiving<Rtl8139>>,
    /// C+ mode.
    mode: bool,
}

impl Tx {
    pub fn new(regs: &Arc<Registers>) -> Self {
        let classic = Transmitter::new(Pairs::new(regs));
        Self { classic, plus: Queues::default(), mode: false }
    }

    /// Begins at the first descriptor of everything.
    pub fn restart(&mut self, chip: &Rtl8139) {
        self.stop(chip);
        self.classic.ring.rewind();
        chip.rewind(true, false);
        self.mode = chip.regs.plus_mode().0;
    }
}

impl Default for Rx {
    fn default() -> Self {
        let plus = Receiver::new(Ring::new(Which::Receive), Digest::default());
        Self { classic: Classic::new(), plus, mode: false }
    }
}

impl Rx {
    /// Begins at the first descriptor.
    pub fn restart(&mut self, chip: &Rtl8139) {
        self.stop(chip);
        chip.rewind(false, true);
        self.mode = chip.regs.plus_mode().1;
    }
}

impl TransmitSide<Rtl8139> for Tx {
    fn map(&self) -> &Arc<Map> {
        self.classic.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        drop(self.plus.set_map(Arc::clone(&map)));
        self.classic.set_map(map)
    }

    fn place_csb(&mut self, chip: &Rtl8139, csb: Option<Arc<Csb>>) {
        self.plus.place_csb(chip, csb);
    }

    fn replace_csb(&mut self, chip: &Rtl8139, csb: Option<Arc<Csb>>, on: bool) {
        self.plus.replace_csb(chip, csb, on && self.mode);
    }

    fn fields(&mut self, chip: &Rtl8139, io: &mut Fields<'_>) {
        let Self { classic, plus, mode } = self;
        io.flag(mode);
        io.check(*mode == chip.regs.plus_mode().0);
        classic.fields(chip, io);
        plus.fields(chip, io);
    }

    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>) {
        self.plus.adopt_csb(csb);
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.classic.hold(held);
        self.plus.hold(held);
    }

    /// The other mode begins anew when it is turned on.
    fn revive(&mut self, chip: &Rtl8139, remains: &Remains<'_>) -> Result<(), StateError> {
        self.mode = chip.regs.plus_mode().0;
        match self.mode {
            true => self.plus.revive(chip, remains),
            false => self.classic.revive(chip, remains),
        }
    }

    fn stop(&mut self, chip: &Rtl8139) {
        self.classic.stop(chip);
        self.plus.stop(chip);
    }

    fn fault(&self) -> Option<Fault> {
        if self.mode { self.plus.fault() } else { self.classic.fault() }
    }

    fn arm(&mut self, chip: &Rtl8139, on: bool) -> bool {
        if self.mode { self.plus.arm(chip, on) } else { self.classic.arm(chip, on) }
    }

    fn transmit(
        &mut self,
        chip: &Rtl8139,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        match self.mode {
            true => self.plus.transmit(chip, spare, limit, sink),
            false => self.classic.transmit(chip, spare, limit, sink),
        }
    }
}

impl ReceiveSide<Rtl8139> for Rx {
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        drop(self.plus.set_map(Arc::clone(&map)));
        self.classic.set_map(map)
    }

    fn place_csb(&mut self, chip: &Rtl8139, csb: Option<Arc<Csb>>) {
        self.plus.place_csb(chip, csb);
    }

    fn replace_csb(&mut self, chip: &Rtl8139, csb: Option<Arc<Csb>>, on: bool) {
        self.plus.replace_csb(chip, csb, on && self.mode);
    }

    fn fields(&mut self, chip: &Rtl8139, io: &mut Fields<'_>) {
        let Self { classic, plus, mode } = self;
        io.flag(mode);
        io.check(*mode == chip.regs.plus_mode().1);
        classic.fields(io);
        plus.fields(chip, io);
    }

    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>) {
        self.plus.adopt_csb(csb);
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.plus.hold(held);
    }

    /// Of classic mode the registers are all: CBR is where the next frame goes.
    fn revive(&mut self, chip: &Rtl8139, remains: &Remains<'_>) -> Result<(), StateError> {
        self.mode = chip.regs.plus_mode().1;
        if self.mode { self.plus.revive(chip, remains) } else { Ok(()) }
    }

    fn stop(&mut self, chip: &Rtl8139) {
        self.classic.stop();
        self.plus.stop(chip);
    }

    fn fault(&self) -> Option<Fault> {
        if self.mode { self.plus.fault() } else { self.classic.fault() }
    }

    fn room(&mut self, chip: &Rtl8139) -> usize {
        if self.mode { self.plus.room(chip) } else { self.classic.room(chip) }
    }

    fn want_room(&mut self, chip: &Rtl8139) -> bool {
        if self.mode { self.plus.want_room(chip) } else { self.classic.want_room(chip) }
    }

    fn receive(&mut self, chip: &Rtl8139, batch: &Batch<'_>, list: &[u16]) -> Received {
        match self.mode {
            true => self.plus.receive(chip, batch, list),
            false => self.classic.receive(chip, batch, list),
        }
    }
}
