//! What a port tells when it comes up or goes down.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use vmlan_frame::Port;
use vmlan_switch::policy::FirstMac;

use super::Changed;

/// Passes a port's news on. The MAC address that was seen first is forgotten there and then when the port goes down: the next peer
/// may be there before the control thread looks.
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
            if port.get().and_then(Weak::upgrade).is_some_and(|port| !port.is_up()) {
                first.0.store(0, Ordering::Relaxed);
            }
            changed();
        })
    }
}
