//! What a port tells when it comes up or goes down.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use vmlan_frame::Port;
use vmlan_switch::policy::FirstMac;

use super::Changed;

/// Passes a port's news on. The MAC address that was seen first is forgotten there and then when the port's peer goes: the next one
/// may be there before the control thread looks. A guest that merely stops its driver is held to it.
pub(super) struct News {
    port: Arc<OnceLock<Weak<dyn Port>>>,
    first: Arc<FirstMac>,
    changed: Changed,
}

impl News {
    pub(super) fn new(changed: Changed, first: Arc<FirstMac>) -> Self {
        Self { port: Arc::default(), first, changed }
    }

    /// The port that tells them; it is known only after it was given whom to tell.
    pub(super) fn is_of(&self, port: &Arc<dyn Port>) {
        let _ = self.port.set(Arc::downgrade(port));
    }

    /// For the port to call.
    pub(super) fn changed(&self) -> Changed {
        let Self { port, first, changed } = self;
        let (port, first, changed) = (port.clone(), first.clone(), changed.clone());
        Arc::new(move || {
            if port.get().and_then(Weak::upgrade).is_some_and(|port| !port.is_connected()) {
                first.0.store(0, Ordering::Relaxed);
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
        fn pull(&self, _: &mut Batch<'static>, _: usize, _: &mut dyn Sink) -> usize {
            0
        }
        fn push(&self, _: &Batch<'_>, list: &[u16]) -> usize {
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
        fn arm(&self) -> bool {
            false
        }
        fn disarm(&self) {}
        fn counters(&self) -> &Counters {
            &self.1
        }
    }

    #[test]
    fn the_first_address_is_forgotten_with_the_peer_and_not_before() {
        let peer = Arc::new(Peer(AtomicBool::new(true), Counters::default()));
        let first = Arc::new(FirstMac::default());
        let news = News::new(Arc::new(|| {}), first.clone());
        let changed = news.changed();
        let port: Arc<dyn Port> = peer.clone();
        news.is_of(&port);
        first.0.store(7, Ordering::Relaxed);
        changed();
        assert_eq!(first.0.load(Ordering::Relaxed), 7, "the driver was stopped");
        peer.0.store(false, Ordering::Relaxed);
        changed();
        assert_eq!(first.0.load(Ordering::Relaxed), 0, "the peer has gone");
    }
}
