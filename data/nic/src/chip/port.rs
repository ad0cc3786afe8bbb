//! The chip as the switch sees it.

use std::sync::{Arc, TryLockError};

use vmlan_frame::{BATCH, Batch, Finisher, Offloads, Reason, Sink};
use vmlan_ram::Map;

use super::csb::Csb;
use super::held::{Held, Remains};
use super::interrupts::Interrupts;
use super::state::Fields;
use super::{Chip, Fault, StateError};

/// What lets frames pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// PCI lets it use memory: bus master, and in D0.
    pub dma: bool,
    /// There is a link.
    pub link: bool,
    /// Frames that the guest sends come back to it.
    pub loopback: bool,
    /// The driver has turned the transmitter on.
    pub transmit: bool,
    /// The driver has turned the receiver on.
    pub receive: bool,
}

impl Gate {
    /// The transmit side may move frames: the wire is there, and the driver has enabled it.
    fn sends(self) -> bool {
        (self.link || self.loopback) && self.dma && self.transmit
    }
}

/// What a pull did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames finished, those dropped here included; 1, if there were descriptors but no whole
    /// frame.
    pub finished: usize,
    /// Interrupt causes to post, without locks.
    pub causes: u32,
    /// Every descriptor that reports its status asked for delay.
    pub delayed: bool,
    /// The guest has turned its CSB off: causes that were kept in are to come out.
    pub reopened: bool,
    /// What was lent, in bytes to copy, segments to be cut included.
    pub work: usize,
    /// Descriptors and regions of memory that were looked at.
    pub visited: usize,
}

/// What a push did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Entries of the list that were dealt with.
    pub dealt: usize,
    /// Interrupt causes to post, without locks.
    pub causes: u32,
    /// The guest has turned its CSB off: causes that were kept in are to come out.
    pub reopened: bool,
}

/// A transmit side, behind its lock.
pub trait TransmitSide<C>: Send {
    /// The newest version of its part of a state.
    const STATE: u16 = 1;

    /// The guest's memory.
    fn map(&self) -> &Arc<Map>;
    /// Replaces the map; nothing of the old one is kept. No frame is lent.
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map>;
    /// A new CSB, or none.
    fn place_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>);
    /// The same CSB, in a new map. `on`: the driver lets this side use its memory.
    fn replace_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>, on: bool);
    /// Passes its state, of a chip whose registers are known already.
    fn fields(&mut self, chip: &C, io: &mut Fields<'_>);
    /// The CSB of a chip that goes on from a state: it is told nothing.
    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>);
    /// What of it outlives the process goes there.
    fn hold(&mut self, _: &Arc<Held>) {}
    /// Goes on from what a process has left, of a chip whose registers are known already.
    ///
    /// # Errors
    /// It cannot.
    fn revive(&mut self, _chip: &C, _: &Remains<'_>) -> Result<(), StateError> {
        Err(StateError::NotHeld)
    }
    /// Forgets everything about its rings but the registers.
    fn stop(&mut self, chip: &C);
    /// As after power-on: what descriptors have said is forgotten, too.
    fn reset(&mut self, chip: &C) {
        self.stop(chip);
    }
    /// Why it stands still.
    fn fault(&self) -> Option<Fault>;
    /// The worker is about to sleep: asks to be kicked. True if it should not: it is `on`, and
    /// there is something to do.
    fn arm(&mut self, chip: &C, on: bool) -> bool;
    /// Lends up to `limit` frames to `sink`, those that were held first, and writes back what is
    /// finished. Storage for the frames is `spare`'s.
    fn transmit(
        &mut self,
        chip: &C,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent;
}

/// A receive side, behind its lock.
pub trait ReceiveSide<C>: Send {
    /// Replaces the map; nothing of the old one is kept. No frame is being written.
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map>;
    /// A new CSB, or none.
    fn place_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>);
    /// The same CSB, in a new map. `on`: the driver lets this side use its memory.
    fn replace_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>, on: bool);
    /// As [`TransmitSide::state`].
    fn fields(&mut self, chip: &C, io: &mut Fields<'_>);
    /// As [`TransmitSide::adopt_csb`].
    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>);
    /// As [`TransmitSide::hold`].
    fn hold(&mut self, _: &Arc<Held>) {}
    /// As [`TransmitSide::revive`].
    ///
    /// # Errors
    /// It cannot.
    fn revive(&mut self, _chip: &C, _: &Remains<'_>) -> Result<(), StateError> {
        Err(StateError::NotHeld)
    }
    /// Forgets everything about its ring but the registers.
    fn stop(&mut self, chip: &C);
    /// Why it stands still.
    fn fault(&self) -> Option<Fault>;
    /// Frames that could be received now, roughly.
    fn room(&mut self, chip: &C) -> usize;
    /// Somebody waits for room: asks the guest to say so when there is. True if there is already.
    fn want_room(&mut self, chip: &C) -> bool;
    /// Delivers the frames of `batch` that `list` names, in that order.
    fn receive(&mut self, chip: &C, batch: &Batch<'_>, list: &[u16]) -> Received;
}

pub(super) fn fault<C: Chip>(chip: &C) -> Option<Fault> {
    let core = chip.core();
    let transmit = || core.tx.try_lock().ok().and_then(|tx| tx.fault());
    let receive = || core.rx.try_lock().ok().and_then(|rx| rx.fault());
    // Warnings come last, so that they do not hide faults that stop a side.
    transmit().or_else(receive).or_else(|| core.csb_fault())
}

pub(super) fn pull<C: Chip>(
    chip: &C,
    batch: &mut Batch<'static>,
    limit: usize,
    sink: &mut dyn Sink,
) -> usize {
    let core = chip.core();
    core.tell(core.irq.look(&*core.host));
    if core.is_being_changed() {
        return 0;
    }
    let mut tx = match core.tx.try_lock() {
        Ok(tx) => tx,
        Err(TryLockError::Poisoned(tx)) => tx.into_inner(),
        Err(TryLockError::WouldBlock) => return 0,
    };
    let gate = chip.gate();
    if !gate.sends() {
        return 0;
    }
    let mut own = OwnReceiver { chip, causes: 0 };
    let sink: &mut dyn Sink = if gate.loopback { &mut own } else { sink };
    let sent = tx.transmit(chip, batch, limit, sink);
    drop(tx);
    if sent.reopened {
        core.remoderate(chip);
    }
    if sent.causes != 0 {
        core.post_transmit(chip, sent.causes, sent.delayed);
    }
    if own.causes != 0 {
        core.post(chip, own.causes);
    }
    sent.finished
}

pub(super) fn push<C: Chip>(chip: &C, batch: &Batch<'_>, list: &[u16]) -> usize {
    let Received { dealt, causes, reopened } =
        receive(chip, batch, list, |gate| gate.link && !gate.loopback);
    if reopened {
        chip.core().remoderate(chip);
    }
    if causes != 0 {
        chip.core().post(chip, causes);
    }
    dealt
}

/// Receives if the wire is as `wire` says. What is on is looked at under the lock: whoever turned
/// it off and then had the lock knows that no DMA runs any more.
fn receive<C: Chip>(
    chip: &C,
    batch: &Batch<'_>,
    list: &[u16],
    wire: fn(&Gate) -> bool,
) -> Received {
    let core = chip.core();
    let Some(mut rx) = core.receive_side() else { return Received::default() };
    let gate = chip.gate();
    if wire(&gate) && gate.dma && gate.receive {
        return rx.receive(chip, batch, list);
    }
    core.counters.output.drop(Reason::LinkDown, list.len() as u64);
    Received { dealt: list.len(), ..Received::default() }
}

pub(super) fn is_set_up<C: Chip>(chip: &C) -> bool {
    let gate = chip.gate();
    gate.dma && gate.receive
}

pub(super) fn is_up<C: Chip>(chip: &C) -> bool {
    is_set_up(chip) && chip.gate().link
}

pub(super) fn room<C: Chip>(chip: &C) -> usize {
    let Some(mut rx) = chip.core().receive_side() else { return 0 };
    let gate = chip.gate();
    // One that is off drops what comes.
    if gate.dma && gate.receive { rx.room(chip) } else { BATCH }
}

pub(super) fn arm<C: Chip>(chip: &C) -> bool {
    let core = chip.core();
    let more = core.tx_bell.arm(|| {
        // Being changed: look again.
        core.tx.try_lock().map_or(true, |mut tx| tx.arm(chip, chip.gate().sends()))
    });
    // The worker is going to sleep, see `Irq::regate`.
    if let Some(irq) = core.irq.with_csb().filter(|_| core.has_csb) {
        core.tell(irq.regate(chip.delays(), &*core.host));
    }
    core.tell(core.irq.look(&*core.host));
    more
}

pub(super) fn want_room<C: Chip>(chip: &C) -> bool {
    let core = chip.core();
    core.rx_bell.arm(|| !is_up(chip) || core.receive_side().is_none_or(|mut rx| rx.want_room(chip)))
}

/// Loopback: frames go to the chip's own receive side, once the transmit side has found them all.
/// Nothing recurses, since receiving transmits nothing. What finds no room is lost, as on a wire.
struct OwnReceiver<'c, C> {
    chip: &'c C,
    causes: u32,
}

impl<C: Chip> OwnReceiver<'_, C> {
    fn receive(&mut self, batch: &Batch<'_>, list: &[u16]) {
        let received = receive(self.chip, batch, list, |gate| gate.loopback);
        self.causes |= received.causes;
        let lost = list.len() - received.dealt.min(list.len());
        if lost > 0 {
            self.chip.core().counters.output.drop(Reason::ReceiverFull, lost as u64);
        }
    }

    /// Frames with work left in them. This is a diagnostic: it may allocate.
    fn finish(&mut self, batch: &Batch<'_>) {
        let mut out = Batch::new();
        let list: Vec<u16> = (0..).take(BATCH).collect();
        for frame in (0..batch.len()).filter_map(|i| batch.frame(i)) {
            let Ok(mut finisher) = Finisher::new(frame, Offloads::NONE) else { continue };
            loop {
                out.clear();
                let more = finisher.fill(&mut out);
                self.receive(&out, list.get(..out.len()).unwrap_or_default());
                if !matches!(more, Ok(true)) {
                    break;
                }
            }
        }
    }
}

impl<C: Chip> Sink for OwnReceiver<'_, C> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        if batch.needs() == Offloads::NONE {
            let mut list = [0u16; BATCH];
            for (entry, i) in list.iter_mut().zip(0u16..) {
                *entry = i;
            }
            self.receive(batch, list.get(..batch.len()).unwrap_or_default());
        } else {
            self.finish(batch);
        }
    }
}
