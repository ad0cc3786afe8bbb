//! Who would be shown a copy of a frame.

use vmlan_frame::Reason;

use super::{End, Fate, Finding, Receiver, Trace, Verdict};
use crate::{Entry, PortId, Watch};

impl Trace<'_> {
    /// `Pass::show`, for all monitors.
    pub(super) fn copies(&mut self) {
        let table = self.table;
        for port in table.monitors() {
            if let Some(entry) = table.get(*port).filter(|e| e.port.is_up() && self.is_shown(e)) {
                let copy = self.copy(*port, entry);
                self.outcome.copies.push(copy);
            }
        }
    }

    fn is_shown(&self, monitor: &Entry) -> bool {
        monitor.policy.watch.as_deref().is_some_and(|watch| self.is_wanted(watch))
    }

    /// `Pass::is_wanted`. What a receiver loses after it was handed over has been on the wire.
    fn is_wanted(&self, watch: &Watch) -> bool {
        let watched = watch.ports.has(self.source) || watch.domain == Some(self.outcome.domain);
        match &self.outcome.end {
            End::Refused(reason) => watched && *reason == Reason::NoReceiver,
            End::To(Receiver {
                fate:
                    Fate::Held
                    | Fate::Dropped(Reason::OverLimit | Reason::TooLong | Reason::ReceiverFull),
                ..
            }) => false,
            End::To(to) => watched || watch.ports.has(to.port),
            End::Flooded(all) => watched || all.iter().any(|to| watch.ports.has(to.port)),
        }
    }

    /// `Pass::copy`.
    fn copy(&mut self, port: PortId, entry: &Entry) -> Receiver {
        let passed_over = self.switch.stalls.left(port, self.now);
        if let Some(wait_ns) = passed_over {
            self.step(Some(port), Verdict::Drop, Finding::PassedOver { wait_ns });
            return Receiver { port, fate: Fate::Dropped(Reason::ReceiverFull) };
        }
        let fate = match self.over(&entry.policy) {
            Some(finding) => {
                self.step(Some(port), Verdict::Drop, finding);
                Fate::Dropped(Reason::OverLimit)
            }
            None => {
                self.step(Some(port), Verdict::Pass, Finding::Copy);
                Fate::Delivered(self.whole())
            }
        };
        Receiver { port, fate }
    }

    fn whole(&self) -> Vec<u8> {
        let Some(frame) = self.batch.frame(0) else { return Vec::new() };
        let mut bytes = vec![0; frame.len];
        frame.copy_to(&mut bytes);
        bytes
    }
}
