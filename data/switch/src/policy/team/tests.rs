use super::*;

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn member(i: usize, weight: u16) -> Member {
    let prefix = Prefix { address: IpAddr::from([10, 0, 0, u8::try_from(i).unwrap()]), bits: 32 };
    Member { port: id(i), name: format!("vm{i}").into(), weight, ips: [prefix].into() }
}

fn team(members: impl IntoIterator<Item = usize>) -> Team {
    Team::new(Steer::default(), members.into_iter().map(|i| member(i, 1)).collect())
}

/// UDP of a flow: everything but the MAC addresses follows from its number.
fn flow(n: u16) -> Vec<u8> {
    let mut f = vec![0; 60];
    f[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    f[26..34].copy_from_slice(&[10, 1, 0, 1, 10, 0, 0, 2]);
    f[28..30].copy_from_slice(&(n / 100).to_be_bytes());
    f[34..36].copy_from_slice(&(1024 + n % 100).to_be_bytes());
    f[36..40].copy_from_slice(&[0, 80, 0, 26]);
    f
}

fn spread(team: &Team, can: impl Fn(PortId) -> bool) -> Vec<Chosen> {
    (0..10_000).map(flow).map(|f| team.choose((&f, 60), false, &can)).collect()
}

fn count(of: &[Chosen], i: usize) -> usize {
    of.iter().filter(|c| **c == Chosen::One(id(i))).count()
}

#[test]
fn ten_thousand_flows_are_spread_within_two_percent() {
    for first in [0, 10, 20, 30] {
        let all = spread(&team(first..first + 4), |_| true);
        for i in first..first + 4 {
            let n = count(&all, i);
            assert!((2300..=2700).contains(&n), "{n} of 10,000 at vm{i}");
        }
    }
}

#[test]
fn weights_are_shares() {
    let members = [(1, 1), (2, 3), (3, 4)].map(|(i, weight)| member(i, weight)).to_vec();
    let all = spread(&Team::new(Steer::default(), members), |_| true);
    for (i, share) in [(1, 1250), (2, 3750), (3, 5000)] {
        let n = count(&all, i);
        assert!(n.abs_diff(share) <= 200, "{n} instead of {share}");
    }
}

#[test]
fn who_leaves_moves_its_own_flows_and_who_comes_takes_its_own() {
    let four = spread(&team(0..4), |_| true);
    let three = spread(&team([0, 1, 3]), |_| true);
    let down = spread(&team(0..4), |port| port != id(2));
    assert_eq!(three, down, "a member that is down and one that is gone leave the same");
    for (before, after) in four.iter().zip(&three) {
        assert!(before == after || *before == Chosen::One(id(2)));
        assert_ne!(*after, Chosen::One(id(2)));
    }
    for i in [0, 1, 3] {
        let more = count(&three, i) - count(&four, i);
        assert!(more.abs_diff(count(&four, 2) / 3) < 200, "the rest share its flows: {more}");
    }
}

#[test]
fn without_members_nobody_is_chosen() {
    let f = flow(1);
    assert_eq!(team(0..2).choose((&f, 60), false, |_| false), Chosen::Nobody);
    assert_eq!(team([]).choose((&f, 60), false, |_| true), Chosen::Nobody);
    let short = team(0..2).choose((&f[..14], 14), false, |_| true);
    assert!(matches!(short, Chosen::One(_)), "frames without IP have MAC addresses");
}

#[test]
fn addresses_have_owners() {
    let mut members = vec![member(1, 1), member(2, 1)];
    let wide = Prefix { address: IpAddr::from([10, 0, 0, 0]), bits: 8 };
    members.push(Member { ips: [wide].into(), ..member(3, 1) });
    let team = Team::new(Steer::Ip, members);
    let to = |last: u8, group: bool| {
        let mut f = flow(1);
        f[33] = last;
        f[0] = u8::from(group);
        team.choose((&f, 60), false, |_| true)
    };
    assert_eq!(to(1, false), Chosen::One(id(1)));
    assert_eq!(to(2, false), Chosen::One(id(2)), "the longest prefix");
    assert_eq!(to(9, false), Chosen::One(id(3)));
    assert_eq!(to(2, true), Chosen::All, "for many");
    let mut arp = vec![0xff; 42];
    arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp[38..].copy_from_slice(&[10, 0, 0, 2]);
    assert_eq!(team.choose((&arp, 42), false, |_| true), Chosen::One(id(2)), "who is asked for");
    assert_eq!(
        team.choose((&arp, 42), false, |port| port != id(2)),
        Chosen::Nobody,
        "though it is down"
    );
    let all = |arp: &[u8]| team.choose((arp, 42), false, |_| true) == Chosen::All;
    arp[28..32].copy_from_slice(&[10, 0, 0, 2]);
    assert!(all(&arp), "who announces itself asks nobody");
    arp[31] = 9;
    arp[21] = 2;
    assert!(all(&arp), "nor does an answer to all");
    arp[0] = 2;
    assert_eq!(team.choose((&arp, 42), false, |_| true), Chosen::One(id(2)), "who is answered");
}

#[test]
fn words() {
    for text in ["ip", "hash:src", "hash:src+dst+ports", "hash:dst+ports"] {
        assert_eq!(text.parse::<Steer>().map(|s| s.to_string()).as_deref(), Ok(text));
    }
    assert_eq!(
        "hash:ports+src".parse::<Steer>().map(|s| s.to_string()),
        Ok("hash:src+ports".into())
    );
    for text in ["", "hash", "hash:", "hash:src+src", "hash:mac", "IP"] {
        assert_eq!(text.parse::<Steer>(), Err(ParseSteerError), "{text}");
    }
}
