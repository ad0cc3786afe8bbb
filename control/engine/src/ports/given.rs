//! Ports that a fuzz target has made, for addresses whose sockets nobody opens.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use vmlan_frame::{Changed, Port};

/// A port, and who listens to it.
type Given = (Arc<dyn Port>, Option<Changed>);

thread_local! {
    static GIVEN: RefCell<BTreeMap<String, Given>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// An address with this place means `port`, in this thread.
pub(crate) fn give(place: &str, port: Arc<dyn Port>) {
    GIVEN.with_borrow_mut(|all| all.insert(place.to_owned(), (port, None)));
}

/// The port at this place came up or went down, as far as anybody listens.
pub(crate) fn changed(place: &str) {
    let listens = GIVEN.with_borrow(|all| all.get(place).and_then(|(_, changed)| changed.clone()));
    if let Some(changed) = listens {
        changed();
    }
}

/// The port at this place, if there is one; `changed` listens to it.
pub(super) fn take(place: &str, changed: &Changed) -> Option<Arc<dyn Port>> {
    GIVEN.with_borrow_mut(|all| {
        let (port, listens) = all.get_mut(place)?;
        *listens = Some(changed.clone());
        Some(port.clone())
    })
}
