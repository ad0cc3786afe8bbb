//! One NIC for several threads: each has some of its queue pairs, and they meet only to reconnect.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Pair, VirtioError, VirtioNet};

/// What makes a [`VirtioNet`] a part of a larger one.
#[derive(Debug)]
pub(super) struct Part {
    whole: Arc<Whole>,
    number: usize,
    generation: u64,
    /// The connection, to see its end.
    link: OwnedFd,
}

/// The NIC itself, without its pairs while those are out.
#[derive(Debug)]
struct Whole {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    nic: VirtioNet,
    /// The pairs of each part that is waiting here, or has ended.
    parked: Vec<Option<Vec<Pair>>>,
    /// Grows with each new connection.
    generation: u64,
}

impl Whole {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked here had parked pairs at most.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn link(&self) -> Result<OwnedFd, VirtioError> {
        let fail = |source| VirtioError::System { what: "share the connection", source };
        self.nic.front_end()?.as_fd().try_clone_to_owned().map_err(fail)
    }

    /// Connects with the pairs of all parts, which are all parked.
    fn reconnect(&mut self, patience: Duration) -> Result<(), VirtioError> {
        let shares: Vec<_> =
            self.parked.iter().map(|pairs| pairs.as_ref().map_or(0, Vec::len)).collect();
        self.nic.pairs = self.parked.iter_mut().filter_map(Option::take).flatten().collect();
        let result = self.nic.reconnect(patience);
        let mut pairs = self.nic.pairs.drain(..);
        for (place, share) in self.parked.iter_mut().zip(shares) {
            *place = Some(pairs.by_ref().take(share).collect());
        }
        drop(pairs);
        self.generation += u64::from(result.is_ok());
        result
    }
}

impl VirtioNet {
    /// Splits the NIC into `parts`, each a NIC with some of the queue pairs, for a thread each;
    /// none gets no pair, so there may be fewer. What concerns the connection as a whole
    /// ([`Self::front_end`], [`Self::stop`], dirty logging) cannot be done by a part.
    /// [`Self::reconnect`] succeeds once all parts have called it, or ended.
    ///
    /// # Errors
    /// See [`VirtioError`]; the NIC is gone then.
    pub fn split(mut self, parts: u16) -> Result<Vec<Self>, VirtioError> {
        let mut pairs = std::mem::take(&mut self.pairs);
        let parts = usize::from(parts).clamp(1, pairs.len().max(1));
        let (share, more) = (pairs.len() / parts, pairs.len() % parts);
        let (address, ram, features) = (self.address.clone(), Arc::clone(&self.ram), self.features);
        let state = State { nic: self, parked: (0..parts).map(|_| None).collect(), generation: 0 };
        let whole = Arc::new(Whole { state: Mutex::new(state), changed: Condvar::new() });
        let make = |number| {
            let link = whole.lock().link()?;
            let part = Part { whole: Arc::clone(&whole), number, generation: 0, link };
            Ok(Self {
                pairs: pairs.drain(..share + usize::from(number < more)).collect(),
                address: address.clone(),
                ram: Arc::clone(&ram),
                front: None,
                listener: None,
                inflight: None,
                features,
                reconnects: 0,
                part: Some(part),
            })
        };
        (0..parts).map(make).collect()
    }

    /// The connection, whose end can be seen: its own, or that of the NIC it is a part of.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        let part = self.part.as_ref().map(|part| part.link.as_fd());
        part.or(self.front.as_ref().map(AsFd::as_fd))
    }

    /// As [`Self::reconnect`], for a part: the last of all parts does it for them, with the pairs
    /// of all.
    pub(super) fn rejoin(&mut self, patience: Duration) -> Result<(), VirtioError> {
        let Some(part) = &mut self.part else { return Err(VirtioError::NotConnected) };
        let whole = Arc::clone(&part.whole);
        let mut state = whole.lock();
        state.parked[part.number] = Some(std::mem::take(&mut self.pairs));
        let mut result = Err(VirtioError::NotConnected);
        if state.parked.iter().all(Option::is_some) {
            result = state.reconnect(patience);
            whole.changed.notify_all();
        } else {
            let waiting = |state: &mut State| state.generation == part.generation;
            let waited = whole.changed.wait_timeout_while(state, patience, waiting);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.pairs = state.parked[part.number].take().unwrap_or_default();
        if state.generation == part.generation {
            return result;
        }
        // If that connection is gone by now, the end of the old one shows it as well.
        part.link = state.link()?;
        part.generation = state.generation;
        self.reconnects += 1;
        Ok(())
    }

    /// Leaves the pairs of a part that ends to the other parts: a device is started with all of its
    /// rings or not at all.
    pub(super) fn park(&mut self) {
        if let Some(part) = self.part.take() {
            part.whole.lock().parked[part.number] = Some(std::mem::take(&mut self.pairs));
        }
    }
}
