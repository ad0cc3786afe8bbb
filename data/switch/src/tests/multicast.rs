//! Which queries decide that multicast groups are held back from ports that have not joined them.

use super::*;
use crate::policy::{Groups, Member, Reach, Steer, Team};

const SECOND: u64 = 1_000_000_000;

/// IPv4 from 10.0.0.9 to 224.0.0.1: a query of IGMPv2, about all groups.
pub(super) const QUERY: [u8; 46] = [
    1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 58, 0xce, 10, 0,
    0, 9, 0xe0, 0, 0, 1, 0x94, 4, 0, 0, 17, 100, 0xee, 0x9b, 0, 0, 0, 0,
];

impl World {
    /// Whether port 1, which has joined nothing, still gets a group from port 0, 20 s after port
    /// 0's query.
    fn floods_after_query(&mut self) -> bool {
        self.ports[0].tx.lock().unwrap().push(QUERY.to_vec());
        self.breathe(0, SECOND);
        *self.ports[0].offload.lock().unwrap() = Offload::NONE;
        let mut data = QUERY.to_vec();
        data[..6].copy_from_slice(&[1, 0, 0x5e, 1, 2, 3]);
        data[23] = 17;
        data[30..34].copy_from_slice(&[239, 1, 2, 3]);
        self.ports.iter().for_each(|p| p.rx.lock().unwrap().clear());
        self.ports[0].tx.lock().unwrap().push(data);
        self.breathe(0, 20 * SECOND);
        !self.ports[1].rx.lock().unwrap().is_empty()
    }
}

fn joined() -> Policy {
    Policy { joined_only: true, ..Policy::default() }
}

fn reaching(groups: u64) -> Policy {
    let reach = Reach { groups: Some(Groups(groups)), ..Reach::default() };
    Policy { reach, ..Policy::default() }
}

fn member(member: u64, policy: Policy) -> Policy {
    let reach = Reach { member: Groups(member), ..policy.reach.clone() };
    Policy { reach, ..policy }
}

/// Port 0 asks, port 1 and 2 get only what they joined.
#[test]
fn a_query_counts_if_each_port_that_joins_is_given_it() {
    let floods = |policies: [Policy; 3]| {
        let mut w = world(3, Options::default());
        w.set_all(policies.into());
        w.floods_after_query()
    };
    assert!(!floods([Policy::default(), joined(), joined()]));
    assert!(floods([reaching(2), member(2, joined()), joined()]), "port 2 never hears of it");
    assert!(!floods([reaching(2), member(2, joined()), Policy::default()]), "port 2 gets all");
    assert!(!floods([reaching(6), member(2, joined()), member(4, joined())]));
    let other = Policy { vlan: Vlan::Access(7), ..joined() };
    assert!(!floods([Policy::default(), joined(), other]), "port 2 is on another LAN");
}

/// Its sum is right, and another one when it has been done: hosts ignore it.
#[test]
fn a_query_whose_sum_is_to_be_done_does_not_count() {
    for needs_csum in [false, true] {
        let mut w = world(2, Options::default());
        w.set_all(vec![Policy::default(), joined()]);
        *w.ports[0].offload.lock().unwrap() =
            Offload { needs_csum, csum_start: 38, csum_offset: 2, ..Offload::NONE };
        assert_eq!(w.floods_after_query(), needs_csum);
    }
}

/// Of two uplinks a guest uses one: the other's querier does not ask it.
#[test]
fn the_querier_of_another_uplink_does_not_count() {
    let uplink =
        || Policy { uplink: Some(Arc::new(crate::policy::Turns::default())), ..Policy::default() };
    let guest = |uplink| Policy {
        reach: Reach { uplink: Some(id(uplink)), ..Reach::default() },
        ..joined()
    };
    for (own, floods) in [(0, false), (3, true)] {
        let mut w = world(4, Options::default());
        w.set_all(vec![uplink(), guest(0), guest(own), uplink()]);
        assert_eq!(w.floods_after_query(), floods, "port 2's uplink is {own}");
    }
}

/// A team is asked at one member, the others are not.
#[test]
fn a_team_of_ports_that_join_is_not_asked() {
    let mut w = world(4, Options::default());
    let ips: Arc<[_]> = Vec::new().into();
    let member = |n| Member { port: id(n), name: "vm".into(), weight: 1, ips: ips.clone() };
    let team = Some(Arc::new(Team::new(Steer::default(), vec![member(2), member(3)])));
    let member = || Policy { team: team.clone(), ..joined() };
    w.set_all(vec![Policy::default(), joined(), member(), member()]);
    assert!(w.floods_after_query());
}

/// A port that was down is given all, until its guest can have been asked.
#[test]
fn who_was_down_is_given_all() {
    let mut w = world(2, Options::default());
    w.set_all(vec![Policy::default(), joined()]);
    w.switch.went_down(id(1));
    w.switch.came_up(id(1));
    assert!(w.floods_after_query());
    let mut w = world(2, Options::default());
    w.set_all(vec![Policy::default(), joined()]);
    w.forwarder.grow(&w.table);
    assert!(w.floods_after_query(), "nor was one whose policy is new");
}
