//! What happens when a port comes up or goes down.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use vmlan_frame::{Changed, Port};
use vmlan_switch::policy::FirstMac;
use vmlan_switch::{PortId, Switch};

/// Passes on that a port has come up or gone down.
///
/// The MAC address that was seen first is forgotten at once when the port's peer goes: the next
/// peer may be there before the control thread looks. A guest that only stops its driver keeps it.
/// The addresses that were learned are forgotten by the control thread, whenever the port went
/// down.
pub(super) struct LinkWatch {
    port: Arc<OnceLock<Weak<dyn Port>>>,
    id: Arc<OnceLock<PortId>>,
    switch: Arc<Switch>,
    first: Arc<FirstMac>,
    changed: Changed,
}

impl LinkWatch {
    pub(super) fn new(changed: Changed, first: Arc<FirstMac>, switch: Arc<Switch>) -> Self {
        Self { port: Arc::default(), id: Arc::default(), switch, first, changed }
    }

    /// The port that is watched: it is made with [`LinkWatch::changed`], so it comes later.
    pub(super) fn set_port(&self, port: &Arc<dyn Port>) {
        let _ = self.port.set(Arc::downgrade(port));
    }

    /// Its number in the switch, which it has before anything can be learned from it.
    pub(super) fn set_id(&self, id: PortId) {
        let _ = self.id.set(id);
    }

    /// For the port to call.
    pub(super) fn changed(&self) -> Changed {
        let Self { port, id, switch, first, changed } = self;
        let (port, id, switch) = (port.clone(), id.clone(), switch.clone());
        let (first, changed) = (first.clone(), changed.clone());
        Arc::new(move || {
            if let Some(port) = port.get().and_then(Weak::upgrade) {
                if !port.is_connected() {
                    first.0.store(0, Ordering::Relaxed);
                }
                match id.get() {
                    Some(id) if port.is_up() => switch.came_up(*id),
                    Some(id) => switch.went_down(*id),
                    None => {}
                }
            }
            changed();
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use vmlan_frame::{Batch, Counters, Offloads, Sink};

    use super::*;

    /// Connected, and not up.
    struct Peer(AtomicBool, Counters);

    impl Port for Peer {
        fn pull(&self, _: usize, _: &mut Batch<'static>, _: usize, _: &mut dyn Sink) -> usize {
            0
        }
        fn push(&self, _: &Batch<'_>, list: &mut [u16]) -> usize {
            list.len()
        }
        fn offloads(&self) -> Offloads {
            Offloads::NONE
        }
        fn is_up(&self) -> bool {
            false
        }
        fn is_connected(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
        fn arm(&self, _: usize) -> bool {
            false
        }
        fn disarm(&self, _: usize) {}
        fn counters(&self) -> &Counters {
            &self.1
        }
    }

    #[test]
    fn the_first_address_is_forgotten_with_the_peer_and_not_before() {
        let peer = Arc::new(Peer(AtomicBool::new(true), Counters::default()));
        let first = Arc::new(FirstMac::default());
        let switch = Switch::new(vmlan_switch::Options::default());
        let watch = LinkWatch::new(Arc::new(|| {}), first.clone(), switch);
        let changed = watch.changed();
        let port: Arc<dyn Port> = peer.clone();
        watch.set_port(&port);
        first.0.store(7, Ordering::Relaxed);
        changed();
        assert_eq!(first.0.load(Ordering::Relaxed), 7, "the driver was stopped");
        peer.0.store(false, Ordering::Relaxed);
        changed();
        assert_eq!(first.0.load(Ordering::Relaxed), 0, "the peer has gone");
    }
}
