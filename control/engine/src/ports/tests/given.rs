//! Ports that a fuzz target or a test has made, for addresses whose sockets nobody opens.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use vmlan_frame::{Changed, Port};

/// What was asked of ports that are held, in that order.
pub(crate) type Asked = Arc<Mutex<Vec<String>>>;

/// A port, and who listens to it.
#[derive(Clone)]
pub(crate) struct Given {
    port: Arc<dyn Port>,
    changed: Option<Changed>,
    place: String,
    /// If it is held for the next switch.
    asked: Option<Asked>,
}

impl Given {
    pub(super) fn port(&self) -> Arc<dyn Port> {
        self.port.clone()
    }

    pub(super) fn is_held(&self) -> bool {
        self.asked.is_some()
    }

    /// It was asked to do `what`.
    pub(super) fn note(&self, what: &str) {
        if let Some(asked) = &self.asked {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.push(format!("{what} {}", self.place));
        }
    }
}

thread_local! {
    static GIVEN: RefCell<BTreeMap<String, Given>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// An address with this place means `port`, in this thread.
pub(crate) fn give(place: &str, port: Arc<dyn Port>) {
    give_one(Given { port, changed: None, place: place.to_owned(), asked: None });
}

/// As [`give`], for a port that is held, and says what it is asked to do.
#[cfg(test)]
pub(crate) fn give_held(place: &str, port: Arc<dyn Port>, asked: &Asked) {
    let asked = Some(asked.clone());
    give_one(Given { port, changed: None, place: place.to_owned(), asked });
}

fn give_one(given: Given) {
    GIVEN.with_borrow_mut(|all| all.insert(given.place.clone(), given));
}

/// The port at this place came up or went down, as far as anybody listens.
pub(crate) fn changed(place: &str) {
    let listens = GIVEN.with_borrow(|all| all.get(place).and_then(|given| given.changed.clone()));
    if let Some(changed) = listens {
        changed();
    }
}

/// There is a port at this place.
pub(super) fn has(place: &str) -> bool {
    GIVEN.with_borrow(|all| all.contains_key(place))
}

/// The port at this place, if there is one; `changed` listens to it.
pub(super) fn take(place: &str, changed: &Changed) -> Option<Given> {
    GIVEN.with_borrow_mut(|all| {
        let given = all.get_mut(place)?;
        given.changed = Some(changed.clone());
        given.note("open");
        Some(given.clone())
    })
}
