//! Teams whose members come and go: each frame has one of them, and its flow no other without need.

use super::*;
use crate::policy::{Member, Steer, Team};

/// Flows of each breath.
const FLOWS: u8 = 32;
const ADDRESS: Mac = Mac::new([2, 0, 0, 0, 0, 0x77]);

fn policies(members: &[usize]) -> Vec<Policy> {
    let member = |i: &usize| Member {
        port: id(*i),
        name: format!("vm{i}").into(),
        weight: 1,
        ips: Vec::new().into(),
    };
    let team = Arc::new(Team::new(Steer::default(), members.iter().map(member).collect()));
    let policy =
        |i| Policy { team: members.contains(&i).then(|| team.clone()), ..Policy::default() };
    (0..5).map(policy).collect()
}

/// UDP from port 0 to the team's address, one frame of each flow.
fn send(w: &World) {
    for flow in 0..FLOWS {
        let mut f = vec![0; 60];
        f[..6].copy_from_slice(&ADDRESS.octets());
        f[6..12].copy_from_slice(&mac(1).octets());
        f[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        f[26..34].copy_from_slice(&[10, 1, 0, flow, 10, 0, 0, 2]);
        f[34..40].copy_from_slice(&[4, flow, 0, 80, 0, 26]);
        f[20] = flow;
        w.ports[0].tx.lock().unwrap().push(f);
    }
}

/// Who got each flow's frame: exactly one each.
fn receivers(w: &World) -> Vec<usize> {
    let mut who = vec![None; usize::from(FLOWS)];
    for port in 1..5 {
        for flow in w.tags(port) {
            let before = who[usize::from(flow)].replace(port);
            assert_eq!(before, None, "flow {flow} came twice");
        }
    }
    who.into_iter().map(|port| port.expect("each frame arrives")).collect()
}

#[test]
fn a_thousand_changes_of_members_lose_nothing_and_move_no_other_flow() {
    let mut w = world(5, Options::default());
    let mut before: Option<(Vec<usize>, Vec<usize>)> = None;
    let mut random = 0x2545_f491_u32;
    for change in 0..1000u64 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bits = random >> 28;
        let members: Vec<_> = (1..5).filter(|i| bits >> (i - 1) & 1 == 1 || bits == 0).collect();
        w.set_all(policies(&members));
        let _ = w.switch.fdb().remove(ADDRESS, Domain::default());
        w.switch.fdb().add_static(ADDRESS, Domain::default(), id(members[0])).unwrap();
        send(&w);
        w.breathe(0, change * 1_000_000);
        let who = receivers(&w);
        assert!(who.iter().all(|port| members.contains(port)), "{who:?} of {members:?}");
        if let Some((old_members, old)) = before {
            for (was, is) in old.iter().zip(&who).filter(|(was, is)| was != is) {
                let came = !old_members.contains(is);
                assert!(came || !members.contains(was), "a flow went from {was} to {is}");
            }
        }
        before = Some((members, who));
    }
    let drops: u64 = w.ports.iter().map(|p| p.counters.drops().map(|(_, n)| n).sum::<u64>()).sum();
    assert_eq!(drops, 0);
}
