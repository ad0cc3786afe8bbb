use super::*;

const SECOND: u64 = 1_000_000_000;

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn host() -> Policy {
    Policy { joined_only: true, ..Policy::default() }
}

/// IPv4 from 10.0.0.1.
fn v4(to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut f = vec![1, 0, 0x5e, to[1] & 0x7f, to[2], to[3], 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    f.extend(u16::try_from(20 + payload.len()).unwrap().to_be_bytes());
    f.extend([0, 0, 0, 0, 1, protocol, 0, 0, 10, 0, 0, 1]);
    f.extend(to);
    f.extend(payload);
    f
}

fn igmp(kind: u8, code: u8, group: [u8; 4]) -> Vec<u8> {
    let to = if kind == 0x11 { [224, 0, 0, 1] } else { group };
    v4(to, 2, &[&[kind, code, 0, 0], &group[..]].concat())
}

fn query() -> Vec<u8> {
    igmp(0x11, 100, [0; 4])
}

/// Records of IGMPv3: type, group, number of sources.
fn igmpv3(records: &[(u8, [u8; 4], u8)]) -> Vec<u8> {
    let mut payload = vec![0x22, 0, 0, 0, 0, 0, 0, u8::try_from(records.len()).unwrap()];
    for (kind, group, sources) in records {
        payload.extend([*kind, 0, 0, *sources]);
        payload.extend(group);
        payload.resize(payload.len() + 4 * usize::from(*sources), 9);
    }
    v4([224, 0, 0, 22], 2, &payload)
}

/// IPv6 with the hop-by-hop option that MLD has.
fn mld(to: [u8; 16], message: &[u8]) -> Vec<u8> {
    let mut f = vec![0x33, 0x33, to[12], to[13], to[14], to[15], 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    f.extend([0x60, 0, 0, 0, 0, u8::try_from(8 + message.len()).unwrap(), 0, 1]);
    f.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    f.extend(to);
    f.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    f.extend(message);
    f
}

fn v6_group(last: u8) -> [u8; 16] {
    [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last]
}

struct Lan(Snooping);

impl Lan {
    /// A querier has asked and been answered.
    fn asked() -> Self {
        let lan = Self(Snooping::new());
        lan.router(&query(), SECOND);
        lan
    }

    fn send(&self, from: (usize, &Policy), frame: &[u8], now: u64) -> Result<Cast, Reason> {
        let head = &frame[..frame.len().min(128)];
        let before = self.0.state();
        if from.1.joined_only {
            guard((head, frame.len()))?;
        }
        let (cast, said) = self.0.look((head, frame.len()), Domain::OPEN, now);
        assert_eq!(self.0.state(), before, "looking changes nothing");
        self.0.hear(said, (id(from.0), from.1), Domain::OPEN, now);
        Ok(cast)
    }

    fn router(&self, frame: &[u8], now: u64) {
        self.send((9, &Policy::default()), frame, now).unwrap();
    }

    fn host(&self, port: usize, frame: &[u8], now: u64) {
        assert_eq!(self.send((port, &host()), frame, now), Ok(Cast::Routers));
    }

    /// Whether data to a group goes to a port.
    fn gets(&self, port: usize, to: [u8; 4], now: u64) -> bool {
        let cast = self.send((9, &Policy::default()), &v4(to, 17, &[0; 8]), now).unwrap();
        self.0.is_for(cast, id(port), now)
    }
}

const G: [u8; 4] = [239, 1, 2, 3];
/// It has the MAC address of `G`.
const ALIAS: [u8; 4] = [238, 129, 2, 3];

#[test]
fn only_members_get_a_group_once_a_querier_has_been_answered() {
    let lan = Lan(Snooping::new());
    let t = 20 * SECOND;
    assert!(lan.gets(1, G, t), "nobody has asked yet");
    lan.router(&query(), t);
    assert!(lan.gets(1, G, t + 9 * SECOND), "hosts have 10 s to answer");
    lan.host(1, &igmp(0x16, 0, G), t + 5 * SECOND);
    let t = t + 16 * SECOND;
    assert!(lan.gets(1, G, t) && !lan.gets(2, G, t) && !lan.gets(1, [239, 1, 2, 4], t));
    assert!(!lan.gets(1, ALIAS, t), "told apart by IP address");
    assert!(lan.gets(2, [224, 0, 0, 5], t), "of the local link: all");
    assert_eq!((lan.0.joined(id(1)), lan.0.joined(id(2))), (1, 0));
}

#[test]
fn what_is_not_renewed_ends() {
    let lan = Lan::asked();
    lan.host(1, &igmp(0x16, 0, G), 20 * SECOND);
    for i in 1..=2 {
        lan.router(&query(), i * 125 * SECOND);
    }
    assert!(lan.gets(1, G, 276 * SECOND) && !lan.gets(1, G, 286 * SECOND));
    assert!(!lan.gets(1, G, 500 * SECOND));
    assert_eq!(lan.0.joined(id(1)), 0);
    assert!(lan.gets(1, G, 510 * SECOND), "the querier has gone: all get all");
}

#[test]
fn ages_are_not_mistaken_after_a_long_silence() {
    for hours in 1..200 {
        let lan = Lan::asked();
        lan.host(1, &igmp(0x16, 0, G), 20 * SECOND);
        let t = 20 * SECOND + hours * 37 * SECOND * 13;
        lan.router(&query(), t);
        lan.host(2, &igmp(0x16, 0, ALIAS), t);
        assert!(!lan.gets(1, G, t + 40 * SECOND) && lan.gets(2, ALIAS, t + 40 * SECOND), "{hours}");
    }
}

#[test]
fn who_leaves_is_given_two_seconds() {
    let lan = Lan::asked();
    let t = 20 * SECOND;
    lan.host(1, &igmp(0x16, 0, G), t);
    lan.host(1, &igmp(0x16, 0, ALIAS), t);
    lan.host(1, &igmp(0x17, 0, G), t + SECOND);
    assert!(lan.gets(1, G, t + 3 * SECOND), "another host may be behind the port");
    assert!(!lan.gets(1, G, t + 8 * SECOND) && lan.gets(1, ALIAS, t + 8 * SECOND));
    lan.host(1, &igmp(0x16, 0, G), t + 9 * SECOND);
    lan.host(1, &igmp(0x17, 0, G), t + 10 * SECOND);
    lan.host(1, &igmp(0x16, 0, G), t + 11 * SECOND);
    assert!(lan.gets(1, G, t + 30 * SECOND), "it answers the querier");
    lan.0.forget(id(1));
    assert!(!lan.gets(1, G, t + 30 * SECOND) && lan.0.joined(id(1)) == 0);
}

#[test]
fn records_of_version_3() {
    let lan = Lan::asked();
    let t = 20 * SECOND;
    let group = |n| [239, 0, 0, n];
    let kinds = [(2, 1, 0), (4, 2, 0), (1, 3, 2), (5, 4, 1), (1, 5, 0), (6, 6, 1), (3, 7, 0)];
    lan.host(1, &igmpv3(&kinds[..3].iter().map(|k| (k.0, group(k.1), k.2)).collect::<Vec<_>>()), t);
    lan.host(1, &igmpv3(&kinds[3..].iter().map(|k| (k.0, group(k.1), k.2)).collect::<Vec<_>>()), t);
    let got: Vec<u8> = (1..=7).filter(|n| lan.gets(1, group(*n), t + 10 * SECOND)).collect();
    assert_eq!(got, [1, 2, 3, 4, 6], "to include nobody is no membership");
    lan.host(1, &igmpv3(&[(3, group(1), 0)]), t + 10 * SECOND);
    assert!(!lan.gets(1, group(1), t + 18 * SECOND));
}

#[test]
fn mld_of_both_versions() {
    let lan = Lan(Snooping::new());
    let t = 20 * SECOND;
    let query = [&[130, 0, 0, 0, 0x27, 0x10, 0, 0][..], &[0; 16]].concat();
    let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    lan.router(&mld(all_nodes, &query), SECOND);
    lan.host(1, &mld(v6_group(1), &[&[131, 0, 0, 0, 0, 0, 0, 0][..], &v6_group(1)].concat()), t);
    let records = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &v6_group(2)].concat();
    lan.host(2, &mld(all_nodes, &records), t);
    let gets = |port, group: [u8; 16], now| {
        let mut frame = mld(group, &[0; 8]);
        frame[54] = 17;
        let cast = lan.send((9, &Policy::default()), &frame, now).unwrap();
        lan.0.is_for(cast, id(port), now)
    };
    assert!(gets(1, v6_group(1), t) && !gets(2, v6_group(1), t));
    assert!(gets(2, v6_group(2), t) && !gets(1, v6_group(2), t));
    assert!(gets(3, all_nodes, t), "which no host reports");
    lan.host(1, &mld(v6_group(1), &[&[132, 0, 0, 0, 0, 0, 0, 0][..], &v6_group(1)].concat()), t);
    assert!(!gets(1, v6_group(1), t + 8 * SECOND));
    assert!(lan.gets(1, G, t), "nobody asks in IPv4");
}

#[test]
fn a_host_is_no_querier() {
    let lan = Lan::asked();
    let from = |frame: &[u8]| lan.send((1, &host()), frame, 20 * SECOND);
    assert_eq!(from(&query()), Err(Reason::MulticastGuard));
    assert_eq!(from(&igmp(0x99, 0, G)), Err(Reason::MulticastGuard), "of a kind that nobody knows");
    let mut fragment = query();
    fragment[20] = 0x20;
    assert_eq!(from(&fragment), Err(Reason::MulticastGuard));
    let mut short = query();
    short.truncate(35);
    assert_eq!(from(&short), Err(Reason::MulticastGuard));
    assert_eq!(from(&v4(G, 17, &[0; 8])).map(|c| matches!(c, Cast::Members(_))), Ok(true));
    // Options that push the query to the end of what is looked at, and beyond it.
    let query = [&[130, 0, 0, 0, 0x27, 0x10, 0, 0][..], &[0; 16]].concat();
    for size in (8..=512).step_by(8) {
        let mut far = mld([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &query);
        far.splice(62..62, vec![0; size - 8]);
        far[55] = u8::try_from(size / 8 - 1).unwrap();
        let length = u16::try_from(far.len() - 54).unwrap().to_be_bytes();
        far[18..20].copy_from_slice(&length);
        assert_eq!(from(&far), Err(Reason::MulticastGuard), "{size}");
    }
}

#[test]
fn what_is_too_much_to_keep_or_to_read_is_for_all_groups() {
    let lan = Lan::asked();
    let t = 20 * SECOND;
    for n in 0..MOST {
        lan.host(1, &igmp(0x16, 0, [239, 9, 0, u8::try_from(n).unwrap()]), t);
    }
    assert_eq!(lan.0.joined(id(1)), MOST);
    assert!(!lan.gets(1, G, t));
    lan.host(1, &igmp(0x16, 0, [239, 9, 9, 9]), t);
    assert!(lan.gets(1, G, t) && !lan.gets(2, G, t), "one more: all, and others nothing");
    // Twenty records are longer than a snapshot.
    lan.host(2, &igmpv3(&[(4, [239, 7, 7, 7], 0); 20]), t);
    assert!(lan.gets(2, G, t) && !lan.gets(3, G, t));
    (0..6).for_each(|i| lan.router(&query(), t + i * 100 * SECOND));
    assert!(!lan.gets(1, G, t + 500 * SECOND), "for a lifetime");
}

#[test]
fn a_flood_of_reports_fills_nothing_but_its_own_share() {
    let lan = Lan::asked();
    let t = 20 * SECOND;
    for n in 0..100_000u32 {
        let [_, a, b, c] = n.to_be_bytes();
        lan.host(1, &igmp(0x16, 0, [232 + a, 1, b, c]), t);
    }
    assert_eq!(lan.0.joined(id(1)), MOST);
    lan.host(2, &igmp(0x16, 0, G), t);
    assert!(lan.gets(2, G, t) && lan.0.joined(id(2)) == 1);
}

#[test]
fn domains_are_apart() {
    let lan = Lan::asked();
    lan.host(1, &igmp(0x16, 0, G), 20 * SECOND);
    let frame = v4(G, 17, &[0; 8]);
    let other = Domain::customer(7);
    let look = |domain| lan.0.look((&frame, frame.len()), domain, 20 * SECOND);
    assert_eq!(look(other).0, Cast::All, "nobody asks there");
    let said = Said { message: Some(Membership::Query(Duration::ZERO)), network: Network::Ipv4 };
    lan.0.hear(said, (id(9), &Policy::default()), other, SECOND);
    assert!(!lan.0.is_for(look(other).0, id(1), 20 * SECOND));
    assert!(lan.0.is_for(look(Domain::OPEN).0, id(1), 20 * SECOND));
}
