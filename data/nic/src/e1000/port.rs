//! The chip as the switch sees it.

use std::sync::TryLockError;
use std::sync::atomic::Ordering;

use vmlan_frame::{BATCH, Batch, Finisher, Offloads, Reason, Sink};

use super::chip::lock;
use super::desc::{rctl, tctl};
use super::link::{Gate, Loopback};
use super::rx::Received;
use super::{E1000, Trouble, regs};

impl E1000 {
    /// Why the chip stands still, until the guest resets it or moves its rings. Cheap; `None` while frames move.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        let tx = self.tx.try_lock().ok().map(|tx| (tx.trouble(), tx.block.trouble));
        let (transmit, block) = tx.unwrap_or_default();
        let receive = || self.rx.try_lock().ok().and_then(|rx| rx.trouble());
        // What only warns comes last, lest it hide what stops.
        transmit.or_else(receive).or(block)
    }

    /// The transmit side may move frames: the wire is there, and the driver has enabled it.
    fn sends(&self, gate: &Gate) -> bool {
        let wire = gate.link || gate.loopback != Loopback::None;
        wire && self.uses_memory(gate).0
    }

    /// The driver lets the transmit side, and the receive side, use its memory: bus master, and enabled.
    pub(super) fn uses_memory(&self, gate: &Gate) -> (bool, bool) {
        let (transmit, receive) = (self.regs.get(regs::TCTL), self.regs.get(regs::RCTL));
        (gate.dma && transmit & tctl::EN != 0, gate.dma && receive & rctl::EN != 0)
    }

    /// Lends up to `limit` frames to `sink`, in `batch`, whose storage is the caller's (see `Port::pull`). In loopback they
    /// go to the chip's own receive side instead.
    pub fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        if self.wanted.load(Ordering::Acquire) > 0 {
            return 0;
        }
        let mut tx = match self.tx.try_lock() {
            Ok(tx) => tx,
            Err(TryLockError::Poisoned(tx)) => tx.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let gate = self.gate();
        if !self.sends(&gate) {
            return 0;
        }
        let mut own = OwnReceiver { chip: self, causes: 0 };
        let looped = gate.loopback != Loopback::None;
        let sink: &mut dyn Sink = if looped { &mut own } else { sink };
        let sent = tx.transmit(self, batch, limit, sink);
        drop(tx);
        if sent.reopened {
            self.remoderate();
        }
        if sent.causes != 0 {
            self.post_transmit(sent.causes, sent.delayed);
        }
        if own.causes != 0 {
            self.post(own.causes);
        }
        sent.finished
    }

    /// Delivers the frames of `batch` that `list` names, in that order; returns how many were dealt with (see
    /// `Port::push`).
    pub fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        let Received { dealt, causes, reopened } =
            self.receive(batch, list, |gate| gate.link && gate.loopback == Loopback::None);
        if reopened {
            self.remoderate();
        }
        if causes != 0 {
            self.post(causes);
        }
        dealt
    }

    /// Receives if the wire is such as `wire` says. What is on is looked at under the lock: whoever turned it off and then
    /// had the lock knows that no DMA runs any more.
    fn receive(&self, batch: &Batch<'_>, list: &[u16], wire: fn(&Gate) -> bool) -> Received {
        let mut rx = lock(&self.rx);
        let gate = self.gate();
        if wire(&gate) && self.uses_memory(&gate).1 {
            return rx.receive(self, batch, list);
        }
        self.counters.output.drop(Reason::LinkDown, list.len() as u64);
        Received { dealt: list.len(), ..Received::default() }
    }

    /// What a receiver of this kind takes: nothing unfinished.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    /// Frames that could be received now, roughly.
    #[must_use]
    pub fn room(&self) -> usize {
        let mut rx = lock(&self.rx);
        // One that is off drops what comes.
        if self.uses_memory(&self.gate()).1 { rx.room(self) } else { BATCH }
    }

    /// Asks to be told of the next write to TDT (see `Port::arm`). True if frames wait already.
    #[must_use]
    pub fn arm(&self) -> bool {
        let more = self.tx_bell.arm(|| {
            let mut tx = lock(&self.tx);
            tx.arm(self, self.sends(&self.gate()))
        });
        self.regate();
        more
    }

    /// The worker looks by itself.
    pub fn disarm(&self) {
        self.tx_bell.disarm();
    }

    /// Asks to be told of the next write to RDT (see `Port::want_room`). True if there is room already.
    #[must_use]
    pub fn want_room(&self) -> bool {
        self.rx_bell.arm(|| !self.is_up() || lock(&self.rx).want_room(self))
    }
}

/// Loopback (13.4.22 RCTL.LBM; PHY control register bit 14): frames go to the chip's own receive side, once the transmit side
/// has found them all. Nothing recurses, for receiving transmits nothing. What finds no room is lost, as on a wire.
struct OwnReceiver<'c> {
    chip: &'c E1000,
    causes: u32,
}

impl OwnReceiver<'_> {
    fn receive(&mut self, batch: &Batch<'_>, list: &[u16]) {
        let received = self.chip.receive(batch, list, |gate| gate.loopback != Loopback::None);
        self.causes |= received.causes;
        let lost = list.len() - received.dealt.min(list.len());
        if lost > 0 {
            self.chip.counters.output.drop(Reason::ReceiverFull, lost as u64);
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

impl Sink for OwnReceiver<'_> {
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
