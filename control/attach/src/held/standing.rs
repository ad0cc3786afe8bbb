//! What the owner of a port and its thread tell each other about its being held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How it stands.
#[derive(Debug, Default)]
pub struct Standing {
    /// The next switch is to go on with the client.
    leaving: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the client outlives this switch, and if not, why. `None`: nobody wants that.
    held: Option<Result<(), String>>,
    /// Switches that the client has outlived, and how it has come through the last one.
    adopted: (u32, &'static str),
}

impl Standing {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port's thread is to leave the client to the next switch.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// It was told so.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The port is held for the next switch, or is not, and why.
    pub fn set_held(&self, held: Result<(), String>) {
        self.state().held = Some(held);
    }

    /// The client has outlived so many switches, and `how` it has come through the last one.
    pub fn set_adopted(&self, times: u32, how: &'static str) {
        self.state().adopted = (times, how);
    }

    /// The holder has what the next switch needs.
    pub fn outlives(&self) -> bool {
        matches!(self.state().held, Some(Ok(())))
    }

    /// For people: whether the client outlives this switch, and how many it has outlived.
    pub fn text(&self) -> Option<String> {
        let State { held, adopted: (times, how) } = &*self.state();
        let held = match held.as_ref()? {
            Ok(()) => "yes".to_owned(),
            Err(why) => format!("no: {why}"),
        };
        Some(match times {
            0 => held,
            1 => format!("{held}; adopted once {how}"),
            n => format!("{held}; adopted {n} times, the last one {how}"),
        })
    }
}
