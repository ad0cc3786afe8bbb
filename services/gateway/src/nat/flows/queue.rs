//! Flows that want a turn. Ports take turns, and the flows of each: a port with a thousand of them
//! holds up its neighbours no longer than one with one.

use std::collections::{HashMap, VecDeque};

use crate::lan::PortNo;

/// Flows that wait, each once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ports: VecDeque<PortNo>,
    flows: HashMap<PortNo, VecDeque<usize>>,
}

impl Queue {
    pub(super) fn push(&mut self, port: PortNo, flow: usize) {
        let own = self.flows.entry(port).or_default();
        if own.is_empty() {
            self.ports.push_back(port);
        }
        own.push_back(flow);
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        let port = self.ports.pop_front()?;
        let own = self.flows.get_mut(&port)?;
        let flow = own.pop_front();
        if own.is_empty() {
            self.flows.remove(&port);
        } else {
            self.ports.push_back(port);
        }
        flow
    }

    pub(super) fn len(&self) -> usize {
        self.flows.values().map(VecDeque::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}
