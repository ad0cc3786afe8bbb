//! Policies of running workers.
use vmlan_switch::policy::{Bucket, Limiter, Limits, Policy, Rate};

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
