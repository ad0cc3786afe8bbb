//! Teams whose members come and go: each frame has one of them, and its flow no other without need.

use super::*;
use crate::End;
use crate::policy::{Macs, Member, SourceCheck, Steer, Team};

/// Flows of each breath.
const FLOWS: u8 = 32;
const ADDRESS: Mac = Mac::new([2, 0, 0, 0, 0, 0x77]);

fn policies(members: &[usize], macs: &Macs) -> Vec<Policy> {
    let member = |i: &usize| Member {
        port: id(*i),
        name: format!("vm{i}").into(),
        weight: 1,
        ips: Vec::new().into(),
    };
    let team = Arc::new(Team::new(Steer::default(), members.iter().map(member).collect()));
    let policy = |i| match members.contains(&i) {
        true => Policy {
            team: Some(team.clone()),
            source_check: SourceCheck { macs: macs.clone(), ..SourceCheck::default() },
            ..Policy::default()
        },
        false => Policy::default(),
    };
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
        w.set_all(policies(&members, &Macs::Any));
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

/// ARP from 10.0.0.1.
fn arp(dst: Mac, operation: u8, about: [u8; 4]) -> Vec<u8> {
    let (m, to) = (mac(1).octets(), dst.octets());
    let begin = [8, 6, 0, 1, 8, 0, 6, 4, 0, operation];
    [&to[..], &m, &begin, &m, &[10, 0, 0, 1], &to, &about].concat()
}

/// A neighbour advertisement of fe80::1.
fn advertisement(dst: Mac, to: [u8; 16]) -> Vec<u8> {
    let own = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let begin = [0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255];
    let message = [136, 0, 0, 0, 0x60, 0, 0, 0];
    let macs = [dst.octets(), mac(1).octets()].concat();
    [&macs[..], &begin, &own, &to, &message, &own].concat()
}

#[test]
fn each_guest_of_a_team_hears_of_its_neighbours() {
    let many = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
    let [host, all] =
        [0xfd, 0xff].map(|first| [first, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let (shared, own) = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let tells = [
        ("an answer", arp(ADDRESS, 2, shared)),
        ("an announcement", arp(Mac::BROADCAST, 1, own)),
        ("an announcement as an answer", arp(Mac::BROADCAST, 2, own)),
        ("an advertisement", advertisement(ADDRESS, host)),
        ("an unsolicited one", advertisement(many, all)),
    ];
    let asks =
        [("a request", arp(Mac::BROADCAST, 1, shared)), ("a probe", arp(ADDRESS, 1, shared))];
    let listed = Macs::Listed([ADDRESS].into());
    for (macs, guests) in [(&listed, true), (&Macs::Any, false)] {
        let mut w = world(5, Options::default());
        w.set_all(policies(&[1, 2, 3], macs));
        w.switch.fdb().add_static(ADDRESS, Domain::default(), id(1)).unwrap();
        w.ports[3].up.store(false, Ordering::Relaxed);
        let all = tells.iter().map(|told| (told, guests)).chain(asks.iter().map(|a| (a, false)));
        for ((what, frame), copies) in all {
            let told = w.switch.explain(&w.table, id(0), frame, 0).unwrap();
            w.ports[0].tx.lock().unwrap().push(frame.clone());
            w.breathe(0, 0);
            let got = [1, 2, 3].map(|i| std::mem::take(&mut *w.ports[i].rx.lock().unwrap()).len());
            let outside = std::mem::take(&mut *w.ports[4].rx.lock().unwrap()).len();
            match copies {
                true => assert_eq!(got, [1, 1, 0], "{what}"),
                false => assert_eq!((got[0] + got[1], got[2]), (1, 0), "{what}: {got:?}"),
            }
            let to_all = frame[0] & 1 == 1;
            assert_eq!(outside, usize::from(to_all), "{what}");
            let receivers = match told.end {
                End::Flooded(receivers) => receivers.len(),
                End::To(_) => 1,
                End::Refused(why) => panic!("{what}: {why:?}"),
            };
            assert_eq!(receivers, got.iter().sum::<usize>() + outside, "{what}");
        }
        // Copies wait for nobody.
        w.ports[1].room.store(0, Ordering::Relaxed);
        w.ports[2].room.store(0, Ordering::Relaxed);
        w.ports[0].tx.lock().unwrap().push(arp(ADDRESS, 2, shared));
        w.breathe(0, 0);
        assert_eq!(w.ports[0].tx.lock().unwrap().is_empty(), guests);
        w.ports[1].up.store(false, Ordering::Relaxed);
        w.ports[2].up.store(false, Ordering::Relaxed);
        w.ports[0].tx.lock().unwrap().push(arp(ADDRESS, 2, shared));
        w.breathe(0, 0);
        assert!(w.dropped(1, Reason::LinkDown) > 0, "nobody is up");
    }
}
