//! The worker, as `control/engine/src/worker/run.rs`, and the ports that it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::{Batch, Counters, NicCounters, Offloads, Port, Sink};
use vmlan_nic::chip::Nic;
use vmlan_switch::{Entry, Forwarder, Options, PortId, Source, Switch, Table};

use super::turns::Turns;
use crate::in_process_lan::FULL_WAIT;

/// A switch with these chips.
pub(super) fn table(chips: &[Arc<dyn Nic>]) -> Table {
    let entry = |chip: &Arc<dyn Nic>| Entry {
        name: "step".into(),
        port: Arc::new(StepPort(Arc::clone(chip))),
        mirror: None,
        policy: Arc::default(),
    };
    Table::new(chips.iter().map(|chip| Some(entry(chip))).collect())
}

/// How long a worker sleeps at most that holds frames for a receiver which posts buffers without a
/// doorbell, in nanoseconds: `FIRST` in `control/engine/src/worker/mapped_doorbells.rs`.
const LOOK: u64 = 50_000;

/// What a worker does, as `control/engine/src/worker/run.rs`. `looks`: for room, too, where no
/// doorbell tells of it.
pub(super) fn work(turns: &Turns, table: &Table, bell: &AtomicBool, looks: bool) {
    let switch = Switch::new(Options { full_wait: FULL_WAIT, ..Options::default() });
    let mut forwarder = Forwarder::new(switch);
    forwarder.grow(table);
    let ports: Vec<_> =
        table.members().iter().map(|id| (*id, Arc::clone(&table.get(*id).unwrap().port))).collect();
    let mut blocked: Vec<PortId> = Vec::new();
    let joins = turns.below(2) == 0;
    while turns.step() {
        let (mut frames, mut held) = (0, false);
        // Some have their breath together.
        let mut joint: Vec<_> = ports.iter().map(|(id, _)| Source::new(*id)).collect();
        joint.retain(|_| joins && turns.below(2) == 0);
        while let Some(first) = joint.iter().position(|source| source.breath.is_none()) {
            forwarder.joint_breath(table, &mut joint[first..], turns.now());
            turns.step();
        }
        let has_had = |id: &PortId| joint.iter().any(|source| source.port == *id);
        let alone = ports.iter().filter(|(id, _)| !has_had(id)).map(|(id, _)| {
            let breath = forwarder.breath(table, *id, 0, turns.now());
            turns.step();
            breath
        });
        for breath in joint.iter().filter_map(|source| source.breath).chain(alone) {
            frames += breath.frames;
            held |= breath.held_ns.is_some();
        }
        if frames > 0 || turns.below(3) > 0 {
            continue;
        }
        blocked.clear();
        forwarder.take_blocked(&mut blocked);
        turns.step();
        let mut any = false;
        for (_, port) in &ports {
            any |= port.arm(0);
            turns.step();
        }
        if held && !any {
            for id in &blocked {
                any |= table.get(*id).unwrap().port.want_room();
                turns.step();
            }
        }
        if !any {
            let mut waited = blocked.iter().map(|id| &table.get(*id).unwrap().port);
            let silent = looks && held && waited.any(|port| port.posts_silently());
            let until = silent.then(|| turns.now() + LOOK);
            while !bell.swap(false, Ordering::SeqCst) && until.is_none_or(|at| turns.now() < at) {
                if !turns.sleep_until(until) {
                    return;
                }
            }
        }
        turns.step();
        ports.iter().for_each(|(_, port)| port.disarm(0));
    }
}

/// A chip as the switch sees it.
struct StepPort(Arc<dyn Nic>);

impl Port for StepPort {
    fn pull(
        &self,
        _: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        self.0.pull(batch, limit, sink)
    }

    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        self.0.push(batch, list)
    }

    fn offloads(&self) -> Offloads {
        self.0.offloads()
    }

    fn room(&self) -> usize {
        self.0.room()
    }

    fn is_up(&self) -> bool {
        self.0.is_up()
    }

    fn arm(&self, _: usize) -> bool {
        self.0.arm()
    }

    fn disarm(&self, _: usize) {
        self.0.disarm();
    }

    fn want_room(&self) -> bool {
        !self.is_up() || self.0.want_room()
    }

    fn posts_silently(&self) -> bool {
        self.0.posts_silently()
    }

    fn device(&self) -> Option<NicCounters> {
        Some(self.0.device())
    }

    fn counters(&self) -> &Counters {
        self.0.counters()
    }
}
