//! Policies of running workers.
use vmlan_switch::policy::{Bucket, Limiter, Limits, Policy, Rate, Turns};

use super::*;

fn frames_a_second(w: &Workers, per_second: u64) -> Arc<Policy> {
    let rate = Rate { per_second, burst: Duration::from_millis(5) };
    let limiter = Limiter { frames: Some(Bucket::new(rate, w.now())), ..Limiter::default() };
    let from = Limits { own: Some(Arc::new(limiter)), ..Limits::default() };
    Arc::new(Policy { from, ..Policy::default() })
}

#[test]
fn a_port_without_tokens_is_left_alone_and_goes_on_when_its_limit_goes() {
    let w = workers(1, Duration::from_millis(10));
    let (a, b) = (Fake::new(), Fake::new());
    let id = w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    let slow = frames_a_second(&w, 1);
    w.set_policies([(id, slow.clone())]);
    a.send(50, 1);
    a.ring();
    until("the tokens that are there", || b.rx.load(Ordering::SeqCst) > 0);
    let held = || slow.from.own.as_ref().unwrap().counters.held.get();
    until("the limit", || held() > 0);
    until("the worker to sleep", || b.armed.load(Ordering::SeqCst));
    let arms = b.arms.load(Ordering::SeqCst);
    // Its doorbell tells nothing new, and is not asked for.
    assert!(!a.armed.load(Ordering::SeqCst));
    std::thread::sleep(Duration::from_millis(50));
    assert!(b.arms.load(Ordering::SeqCst) < arms + 20, "it sleeps until tokens are there");
    assert!(b.rx.load(Ordering::SeqCst) < 5);
    w.set_policies([(id, Arc::default())]);
    until("all that was held", || b.rx.load(Ordering::SeqCst) == 50);
}

#[test]
fn changing_policies_keeps_doorbells_and_loses_no_frame() {
    let w = workers(2, Duration::from_millis(10));
    let (a, b) = (Fake::new(), Fake::new());
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    let other = w.add("c", Fake::new()).unwrap();
    for round in 1..=200 {
        a.send(3, 1);
        let policy = frames_a_second(&w, round);
        w.set_policies([(other, policy)]);
        until("delivery", || b.rx.load(Ordering::SeqCst) as u64 == 3 * round);
    }
}

/// A port that takes its turns at `turns`, by a limit that it shares.
fn tenant(turns: &Arc<Turns>) -> Arc<Policy> {
    let shared = Limiter { turns: Some(turns.clone()), ..Limiter::default() };
    let from = Limits { shared: Some(Arc::new(shared)), ..Limits::default() };
    Arc::new(Policy { from, ..Policy::default() })
}

/// Two ports that share a limit, and an uplink. The first waits at both for as long as it may
/// sleep; the second has all that it may have before that one.
struct Waiting {
    w: Workers,
    limit: Arc<Turns>,
    uplink: Arc<Turns>,
    ids: [PortId; 2],
}

impl Waiting {
    fn new() -> Self {
        let w = Workers::played(Switch::new(Options::default())).unwrap();
        let [limit, uplink] = [0, 1].map(|_| Arc::new(Turns::patient(2_000_000_000)));
        let ids = ["a", "b"].map(|name| w.add(name, Fake::new()).unwrap());
        w.set_policies(ids.map(|id| (id, tenant(&limit))));
        let up = w.add("up", Fake::new()).unwrap();
        let policy = Policy { uplink: Some(uplink.clone()), ..Policy::default() };
        w.set_policies([(up, Arc::new(policy))]);
        w.pass(1);
        for turns in [&limit, &uplink] {
            turns.wants(ids[0], 1, w.now());
            turns.sent(ids[1], 1, 1 << 20, true, w.now());
        }
        let waiting = Self { w, limit, uplink, ids };
        assert_eq!(waiting.grants(), [0, 0]);
        waiting
    }

    /// What the second may send by the limit, and by the uplink.
    fn grants(&self) -> [u64; 2] {
        [&self.limit, &self.uplink].map(|turns| turns.grant(self.ids[1], 1, self.w.now()))
    }
}

#[test]
fn a_port_that_is_removed_holds_up_nobody() {
    let waiting = Waiting::new();
    waiting.w.remove(waiting.ids[0]);
    assert_eq!(waiting.grants(), [u64::MAX; 2]);
}

#[test]
fn a_port_that_leaves_a_shared_limit_holds_up_nobody() {
    let other = Arc::new(Turns::default());
    for policy in [Arc::default(), tenant(&other)] {
        let waiting = Waiting::new();
        // Another limiter with the same turns, as when its rate changes: it waits on.
        waiting.w.set_policies(waiting.ids.map(|id| (id, tenant(&waiting.limit))));
        assert_eq!(waiting.grants(), [0, 0]);
        waiting.w.set_policies([(waiting.ids[0], policy)]);
        assert_eq!(waiting.grants(), [u64::MAX, 0]);
    }
}
