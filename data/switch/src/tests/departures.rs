//! A guest that leaves takes its learned addresses with it.

use super::*;

const MS: u64 = 1_000_000;

impl World {
    /// The port goes down, as its own thread says it.
    fn leaves(&self, port: usize) {
        self.ports[port].up.store(false, Ordering::Relaxed);
        self.switch.went_down(id(port));
    }

    /// The port is up again, and its guest sends a frame to all.
    fn returns(&mut self, port: usize, src: Mac, now: u64) {
        self.ports[port].up.store(true, Ordering::Relaxed);
        self.switch.came_up(id(port));
        self.send(port, Mac::BROADCAST, src, 0);
        self.breathe(port, now);
    }

    fn known(&self, src: Mac) -> Option<PortId> {
        self.switch.fdb().lookup(src, Domain::OPEN)
    }
}

#[test]
fn frames_to_a_guest_that_left_flood_to_where_it_is_now() {
    let mut w = world(4, Options::default());
    (0..3).for_each(|port| w.returns(port, mac(port.try_into().unwrap()), 0));
    w.returns(0, mac(9), 0);
    w.switch.fdb().add_static(mac(8), Domain::OPEN, id(0)).unwrap();
    w.leaves(0);
    assert_eq!(w.switch.forget_departed(MS), None);
    let left: Vec<_> = w.switch.fdb().list().iter().map(|e| (e.port, e.mac)).collect();
    assert!(left.iter().all(|(port, mac_)| *port != id(0) || *mac_ == mac(8)), "{left:?}");
    assert_eq!((left.len(), w.known(mac(1)), w.known(mac(8))), (3, Some(id(1)), Some(id(0))));
    // It is at port 3 now, and has not said a word there yet.
    (0..4).for_each(|port| drop(w.tags(port)));
    w.send(1, mac(9), mac(1), 7);
    w.breathe(1, 2 * MS);
    assert_eq!((w.tags(3), w.tags(2)), (vec![7], vec![7]));
    assert_eq!(w.dropped(0, Reason::LinkDown), 0);
    // What is pinned stays where it is, and is lost there.
    w.send(1, mac(8), mac(1), 8);
    w.breathe(1, 2 * MS);
    assert_eq!((w.tags(3), w.dropped(0, Reason::LinkDown)), (vec![], 1));
}

/// A port says that it is down before its guest has ever sent anything: while a VMM connects, say.
/// The control thread may look only after the guest's first frame, which must not be forgotten.
#[test]
fn what_a_guest_says_first_is_not_forgotten() {
    let mut w = world(2, Options::default());
    w.leaves(0);
    w.returns(0, mac(9), MS);
    assert_eq!((w.switch.forget_departed(MS), w.known(mac(9))), (None, Some(id(0))));
}

/// The table may not be walked again so soon; meanwhile the guest is back.
#[test]
fn a_guest_that_is_back_before_the_walk_keeps_its_addresses() {
    let mut w = world(2, Options::default());
    for now in [0, MS] {
        w.returns(0, mac(9), now);
        w.leaves(0);
        assert_eq!(w.switch.forget_departed(now).is_some(), now > 0);
    }
    w.returns(0, mac(9), 2 * MS);
    assert_eq!((w.switch.forget_departed(200 * MS), w.known(mac(9))), (None, Some(id(0))));
}

/// The address has been learned elsewhere before the table is walked: it stays there.
#[test]
fn an_address_that_has_moved_is_not_forgotten_with_its_old_port() {
    let mut w = world(3, Options::default());
    w.returns(0, mac(9), 0);
    w.leaves(0);
    w.returns(2, mac(9), MS);
    assert_eq!((w.switch.forget_departed(MS), w.known(mac(9))), (None, Some(id(2))));
}

/// A guest that goes and comes all the time, with a frame each time, has the table walked ten times
/// a second and no more; and no departure is forgotten over it.
#[test]
fn flapping_costs_ten_walks_a_second() {
    let mut w = world(3, Options::default());
    let (mut walks, mut again) = (0, 0);
    for step in 0..10_000 {
        let now = step * MS / 10;
        w.returns(0, mac(9), now);
        assert_eq!(w.known(mac(9)), Some(id(0)));
        w.leaves(0);
        again += u32::from(w.switch.forget_departed(now).is_some());
        walks += u32::from(w.known(mac(9)).is_none());
    }
    assert_eq!((walks, again), (10, 10_000 - 10));
    w.returns(1, mac(1), 1000 * MS);
    w.leaves(1);
    let wait = w.switch.forget_departed(1000 * MS + 1).map_or(0, |ns| ns + 1);
    assert!(wait <= 100 * MS, "{wait}");
    assert_eq!(w.switch.forget_departed(1000 * MS + wait), None);
    assert_eq!((w.known(mac(1)), w.known(mac(9))), (None, None));
}

/// Ports at which nothing was learned go down for nothing: no walk, and nobody waits.
#[test]
fn a_port_without_learned_addresses_costs_nothing() {
    let mut w = world(3, Options::default());
    w.returns(1, mac(1), 0);
    for _ in 0..100 {
        w.leaves(0);
        assert_eq!(w.switch.forget_departed(0), None);
    }
    w.leaves(1);
    assert_eq!((w.switch.forget_departed(0), w.known(mac(1))), (None, None));
    // The clock has gone back: at most the usual wait.
    w.returns(1, mac(1), 0);
    w.leaves(1);
    assert_eq!(w.switch.forget_departed(0), Some(100 * MS));
}
