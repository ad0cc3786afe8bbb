//! A worker's loop, step by step, at a time that is told.

use std::sync::atomic::AtomicU64;

use vmlan_frame::{Batch, Counters, Offloads, Sink};
use vmlan_switch::{Options, Switch};

use super::super::Workers;
use super::*;

/// A port of which each look takes some time and finds some frames.
struct Looked {
    shared: Arc<Shared>,
    takes: u64,
    finds: AtomicU64,
    counters: Counters,
}

impl Port for Looked {
    fn pull(&self, _: usize, _: &mut Batch<'static>, _: usize, _: &mut dyn Sink) -> usize {
        self.shared.told.as_ref().unwrap().fetch_add(self.takes, Ordering::Relaxed);
        let frames = self.finds.load(Ordering::Relaxed);
        self.counters.input.frames.add(frames);
        usize::try_from(frames).unwrap()
    }
    fn push(&self, _: &Batch<'_>, list: &mut [u16]) -> usize {
        list.len()
    }
    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, _: usize) -> bool {
        false
    }
    fn disarm(&self, _: usize) {}
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// A worker with such ports: what a look at each takes, and the frames that it finds.
fn worker(all: &[(u64, u64)]) -> (Workers, Run, Vec<Arc<Looked>>) {
    let w = Workers::played(Switch::new(Options::default())).unwrap();
    let port = |(takes, finds): &(u64, u64)| {
        let (shared, finds) = (w.shared.clone(), AtomicU64::new(*finds));
        Arc::new(Looked { shared, takes: *takes, finds, counters: Counters::default() })
    };
    let ports: Vec<_> = all.iter().map(port).collect();
    let own = ports.iter().map(|p| (w.add("p", p.clone()).unwrap(), vec![0])).collect();
    let slot = Mailbox::new(0).unwrap();
    let mut run = Run::new(w.shared.clone(), slot.clone(), Run::epoll(&slot).unwrap());
    slot.assign(Assignment { table: Arc::new(w.table()), own, generation: 1 });
    run.read_mail();
    (w, run, ports)
}

/// A VMM may make each look at its rings long, by holes in its memory.
#[test]
fn a_breath_for_nothing_is_not_charged_to_the_next_port() {
    let (w, mut run, ports) = worker(&[(10_000_000, 0), (10_000, 64)]);
    let spent = || ports.iter().map(|p| p.counters.work_ns()).collect::<Vec<_>>();
    run.round(w.now());
    assert_eq!(spent(), [10_000_000, 10_000]);
    // It has its share, and what it may be forgiven.
    (1..100_000).for_each(|_| _ = run.round(w.now()));
    let spent = spent();
    assert_eq!(spent[1], 1_000_000_000);
    assert_eq!(spent[0] + spent[1], w.now());
    assert!(spent[0] < spent[1] * 3 / 2 + 50_000_000, "{spent:?}");
}

/// A neighbour that has frames in each round is no excuse, and frames of its own are one.
#[test]
fn a_port_that_rings_for_nothing_is_muted_whatever_others_do() {
    let (w, mut run, ports) = worker(&[(100, 0), (100, 0), (100, 1)]);
    let rings = |run: &mut Run, n: u64| {
        for i in 0..n {
            ports[1].finds.store(u64::from(i % 4 == 0), Ordering::Relaxed);
            run.own[..2].iter_mut().for_each(|own| own.rang = true);
            run.rang = true;
            assert!(run.round(w.now()) > 0);
            run.count_idle_rings(w.now());
            run.mute();
        }
        run.own.iter().map(|own| own.idle_rings.is_muted()).collect::<Vec<_>>()
    };
    assert_eq!(rings(&mut run, 128), [false; 3]);
    assert_eq!(rings(&mut run, 5), [true, false, false]);
    ports[0].finds.store(1, Ordering::Relaxed);
    assert_eq!(rings(&mut run, 50), [false; 3], "its frames make up for it");
}
