//! A TAP device of the host that outlives the switch, with its addresses and what else the host has
//! set: somebody has duplicates of its queues for the next one.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use vmlan_frame::{Changed, Details, Port, error_chain};
use vmlan_keeper::hold::{Held, Hold};
use vmlan_uplink::tap::{self, Config, Tap};

use super::open::Holding;

/// What is held beside the queues: that they are some, and how they are described.
const QUEUES: &[u8] = b"vmlan tap 1";

pub(super) struct HeldTap {
    tap: Tap,
    hold: Option<Arc<dyn Hold>>,
    /// What the holder, and log lines, call it.
    label: String,
    /// The queues that it has, by their version, or why it has none.
    kept: (u64, Result<(), String>),
}

impl HeldTap {
    /// Opens the device, or goes on with it as the last switch has left it.
    ///
    /// # Errors
    /// One line that names the value and says what to do.
    pub(super) fn open(
        config: Config,
        holding: &mut Holding,
        changed: Changed,
    ) -> Result<Self, String> {
        let label = config.label.clone();
        let mut left = holding.found.remove(&label);
        let queues = left.take_if(|held| held.bytes == QUEUES).map(|held| held.fds);
        let adopted = queues.and_then(|fds| tap::adopt(config.clone(), fds, changed.clone()));
        let tap = match adopted {
            Some(tap) => tap,
            None => {
                // As long as somebody has it, nobody else may be able to.
                holding.hold.iter().for_each(|hold| drop(hold.forget(&label)));
                // A VM's, of a port of another kind: the holder was not to be the last that has it.
                left.into_iter().for_each(Held::let_go);
                tap::open(config, changed).map_err(|e| error_chain(&e))?
            }
        };
        let mut held = Self { tap, hold: holding.hold.clone(), label, kept: (0, Ok(())) };
        held.keep();
        Ok(held)
    }

    /// Has the queues held that there are now.
    pub(super) fn keep(&mut self) {
        // Looked at often: the queues have a lock that a worker wants.
        let Some(hold) = self.hold.as_ref().filter(|_| self.kept.0 != self.tap.version()) else {
            return;
        };
        let (queues, version) = self.tap.queues();
        let fds: Vec<_> = queues.iter().map(|queue| queue.as_fd()).collect();
        let done = match fds.is_empty() {
            true => Err("there is no device".to_owned()),
            false => hold.put(&self.label, &fds, QUEUES).map_err(|e| error_chain(&e)),
        };
        if let Err(why) = &done {
            log::warn!("{}: is not held for the next switch: {why}", self.label);
            let _ = hold.forget(&self.label);
        }
        self.kept = (version, done);
    }

    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// The holder has it as it is now.
    pub(super) fn outlives(&self) -> bool {
        let (version, done) = &self.kept;
        self.is_held() && done.is_ok() && *version == self.tap.version()
    }

    /// Leaves it to the next switch.
    pub(super) fn hand_over(&mut self) {
        self.hold = None;
        self.tap.close();
    }

    /// Lets it go: a device that a switch has made is gone then.
    pub(super) fn close(&mut self) {
        self.tap.close();
        self.hold.take().iter().for_each(|hold| drop(hold.forget(&self.label)));
    }

    pub(super) fn port(&self) -> Arc<dyn Port> {
        self.tap.port()
    }

    pub(super) fn mtu(&self) -> Option<u32> {
        self.tap.mtu()
    }

    pub(super) fn details(&self) -> Details {
        let mut details = self.tap.details();
        if self.is_held() {
            let held = match &self.kept {
                (_, Err(why)) => format!("no: {why}"),
                _ if self.outlives() => "yes".to_owned(),
                _ => "not yet".to_owned(),
            };
            details.push(("held", held));
        }
        details
    }
}
