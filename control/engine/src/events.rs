//! What happens in a running switch, told to whoever listens.
//!
//! The control thread looks ten times a second while somebody listens, and not otherwise: no worker
//! does anything for it but note addresses that are new or move. What comes and goes between two
//! looks is not told. Each listener has a place in one bounded queue; one that is too slow is told
//! how much it has missed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// Events that are kept for the slowest listener.
const KEPT: usize = 1024;

/// Those who may listen.
pub const MOST_LISTENERS: usize = 64;

/// Something that happened, as the API tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts the events of this switch since somebody listened first. 0: it is for one listener.
    pub number: u64,
    /// What happened: `listening`, `port-added`, `port-changed`, `port-removed`, `port-up`,
    /// `port-down`, `applied`, `limit-changed`, `sflow-changed`, `address-learned`,
    /// `address-moved`, `dropped`, `held`, `fault`, `missed`.
    pub event: String,
    /// The port that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The limit that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The configuration's generation after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The address that was learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The VLAN in which it was, and the service VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The service VLAN in which it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qinq: Option<u16>,
    /// The port that the address was behind before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Why frames were dropped: the same word as in `stats`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many frames, faults or events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Event {
    /// Of this kind.
    pub(crate) fn new(event: &str) -> Self {
        Self { event: event.to_owned(), ..Self::default() }
    }

    /// Of this kind, about a port.
    pub(crate) fn of(event: &str, port: &str) -> Self {
        Self { port: Some(port.to_owned()), ..Self::new(event) }
    }

    /// A listener has missed `count` events.
    pub fn missed(count: u64) -> Self {
        Self { count: Some(count), ..Self::new("missed") }
    }
}

/// What a listener is told by.
pub type Listener = broadcast::Receiver<Arc<Event>>;

/// Tells listeners.
#[derive(Debug)]
pub(crate) struct Events {
    sender: broadcast::Sender<Arc<Event>>,
    next: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(KEPT), next: 1 }
    }
}

impl Events {
    pub(crate) fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    pub(crate) fn listen(&self) -> Listener {
        self.sender.subscribe()
    }

    pub(crate) fn tell(&mut self, event: Event) {
        if self.listeners() > 0 {
            let number = self.next;
            self.next += 1;
            // The last of them may have gone just now.
            let _ = self.sender.send(Arc::new(Event { number, ..event }));
        }
    }
}
