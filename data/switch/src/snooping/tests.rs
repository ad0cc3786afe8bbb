use super::*;

const SECOND: u64 = 1_000_000_000;

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn host() -> Policy {
    Policy { joined_only: true, ..Policy::default() }
}

/// Writes the Internet checksum of `bytes` to two of them, which are zero.
fn sum(bytes: &mut [u8], at: usize, before: u32) {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum = before + bytes.chunks(2).map(word).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = u16::try_from(sum).unwrap();
    bytes[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
}

/// IPv4 from 10.0.0.1.
fn v4(to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut f = vec![1, 0, 0x5e, to[1] & 0x7f, to[2], to[3], 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    f.extend(u16::try_from(20 + payload.len()).unwrap().to_be_bytes());
    f.extend([0, 0, 0, 0, 1, protocol, 0, 0, 10, 0, 0, 1]);
    f.extend(to);
    sum(&mut f[14..], 10, 0);
    f.extend(payload);
    f
}

fn igmp(kind: u8, code: u8, group: [u8; 4]) -> Vec<u8> {
    let to = if kind == 0x11 { [224, 0, 0, 1] } else { group };
    let mut message = [&[kind, code, 0, 0], &group[..]].concat();
    sum(&mut message, 2, 0);
    let frame = v4(to, 2, &message);
    if kind == 0x11 && code > 0 { with_options(&frame, &ALERT) } else { frame }
}

/// The IP option that later queries than those of the first version have.
const ALERT: [u8; 4] = [0x94, 4, 0, 0];

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
    sum(&mut payload, 2, 0);
    v4([224, 0, 0, 22], 2, &payload)
}

/// IPv6 with the hop-by-hop option that MLD has.
fn mld(to: [u8; 16], message: &[u8]) -> Vec<u8> {
    let mut f = vec![0x33, 0x33, to[12], to[13], to[14], to[15], 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    f.extend([0x60, 0, 0, 0, 0, u8::try_from(8 + message.len()).unwrap(), 0, 1]);
    f.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    f.extend(to);
    f.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    let mut message = message.to_vec();
    sum_mld(&f[22..54], &mut message);
    f.extend(message);
    f
}

/// With the pseudo-header of these addresses.
fn sum_mld(addresses: &[u8], message: &mut [u8]) {
    let words = addresses.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let before = words.sum::<u32>() + u32::try_from(message.len()).unwrap() + 58;
    message[2..4].fill(0);
    sum(message, 2, before);
}

const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// A query about a group, or about all (`[0; 16]`), of this many milliseconds.
fn mld_query(to: [u8; 16], group: [u8; 16], ms: u16) -> Vec<u8> {
    let [a, b] = ms.to_be_bytes();
    mld(to, &[&[130, 0, 0, 0, a, b, 0, 0][..], &group].concat())
}

fn v6_group(last: u8) -> [u8; 16] {
    [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last]
}

const OPEN: (&Vlan, Domain) = (&Vlan::Open, Domain::OPEN);

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
        let (cast, said) = self.0.look((head, frame.len()), OPEN, now);
        assert_eq!(self.0.state(), before, "looking changes nothing");
        self.0.hear(said, (id(from.0), from.1), Domain::OPEN, || true, now);
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
    lan.router(&mld_query(ALL_NODES, [0; 16], 10_000), SECOND);
    lan.host(1, &mld(v6_group(1), &[&[131, 0, 0, 0, 0, 0, 0, 0][..], &v6_group(1)].concat()), t);
    let records = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &v6_group(2)].concat();
    lan.host(2, &mld(ALL_NODES, &records), t);
    let gets = |port, group: [u8; 16], now| {
        let mut frame = mld(group, &[0; 8]);
        frame[54] = 17;
        let cast = lan.send((9, &Policy::default()), &frame, now).unwrap();
        lan.0.is_for(cast, id(port), now)
    };
    assert!(gets(1, v6_group(1), t) && !gets(2, v6_group(1), t));
    assert!(gets(2, v6_group(2), t) && !gets(1, v6_group(2), t));
    assert!(gets(3, ALL_NODES, t), "which no host reports");
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
    for tags in 1..4 {
        let hidden = tagged(query(), &[[0x81, 0, 0, 0], [0x88, 0xa8, 0, 0]].repeat(2)[..tags]);
        assert_eq!(from(&hidden), Err(Reason::MulticastGuard), "{tags} priority tags");
    }
    let mut short = query();
    short.truncate(39);
    assert_eq!(from(&short), Err(Reason::MulticastGuard));
    assert_eq!(from(&v4(G, 17, &[0; 8])).map(|c| matches!(c, Cast::Members(_))), Ok(true));
    // Options that push the query to the end of what is looked at, and beyond it.
    for size in (8..=512).step_by(8) {
        let mut far = mld_query(ALL_NODES, [0; 16], 10_000);
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
    let vlan = Vlan::Access(7);
    let other = (&vlan, Domain::customer(7));
    let look = |place| lan.0.look((&frame, frame.len()), place, 20 * SECOND).0;
    assert_eq!(look(other), Cast::All, "nobody asks there");
    let asked = query();
    let said = lan.0.look((&asked, asked.len()), other, SECOND).1;
    lan.0.hear(said, (id(9), &Policy::default()), other.1, || true, SECOND);
    assert!(!lan.0.is_for(look(other), id(1), 20 * SECOND));
    assert!(lan.0.is_for(look(OPEN), id(1), 20 * SECOND));
}

fn tagged(mut frame: Vec<u8>, tags: &[[u8; 4]]) -> Vec<u8> {
    frame.splice(12..12, tags.concat());
    frame
}

/// Tags that are payload are other LANs, of which nothing is known.
#[test]
fn a_query_in_a_tag_decides_for_nobody() {
    let (inner, service) = ([0x81, 0, 0, 5], [0x88, 0xa8, 0, 100]);
    let (qinq, trunk) = (Vlan::Qinq(100), Vlan::QinqTrunk(crate::policy::VidSet::all()));
    let customer = Vlan::Trunk { tagged: crate::policy::VidSet::all(), native: None };
    for (vlan, domain, own) in [
        (&Vlan::Open, Domain::OPEN, &[][..]),
        (&qinq, Domain::service(100), &[]),
        (&trunk, Domain::service(100), &[service]),
        (&customer, Domain::customer(5), &[inner]),
    ] {
        let lan = Lan(Snooping::new());
        let send = |payload: &[[u8; 4]], frame, now| {
            let frame = tagged(frame, &[own, payload].concat());
            let (cast, said) = lan.0.look((&frame, frame.len()), (vlan, domain), now);
            lan.0.hear(said, (id(9), &Policy::default()), domain, || true, now);
            cast
        };
        let data = || v4(G, 17, &[0; 8]);
        if *vlan != customer {
            send(&[inner], query(), SECOND);
            assert_eq!(send(&[], data(), 20 * SECOND), Cast::All, "{vlan}");
        }
        send(&[], query(), 30 * SECOND);
        assert!(matches!(send(&[], data(), 50 * SECOND), Cast::Members(_)), "{vlan}");
        if *vlan != customer {
            assert_eq!(send(&[inner], data(), 50 * SECOND), Cast::All, "{vlan}");
        }
    }
}

/// A message of IGMP or MLD in another frame, each sum right.
fn changed(frame: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut f = frame.to_vec();
    change(&mut f);
    if f[12] == 8 {
        let end = 14 + 4 * usize::from(f[14] & 15);
        let length = u16::try_from(f.len() - 14).unwrap();
        f[16..18].copy_from_slice(&length.to_be_bytes());
        f[24..26].fill(0);
        sum(&mut f[14..end], 10, 0);
        f[end + 2..end + 4].fill(0);
        sum(&mut f[end..], 2, 0);
    } else {
        let length = u16::try_from(f.len() - 54).unwrap();
        f[18..20].copy_from_slice(&length.to_be_bytes());
        let addresses = f[22..54].to_vec();
        sum_mld(&addresses, &mut f[62..]);
    }
    f
}

/// A query of IGMPv2 with other bytes at a place, and one of MLD.
fn igmp_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    changed(&query(), |f| f[at..at + bytes.len()].copy_from_slice(bytes))
}

fn mld_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    changed(&mld_query(ALL_NODES, [0; 16], 10_000), |f| {
        f[at..at + bytes.len()].copy_from_slice(bytes);
    })
}

fn longer(frame: &[u8], more: &[u8]) -> Vec<u8> {
    changed(frame, |f| f.extend(more))
}

/// Filled up with bytes that are no part of the packet.
fn padded(frame: &[u8], len: usize) -> Vec<u8> {
    let mut f = frame.to_vec();
    f.resize(len, 0);
    f
}

/// With these IP options.
fn with_options(frame: &[u8], options: &[u8]) -> Vec<u8> {
    changed(frame, |f| {
        let end = 14 + 4 * usize::from(f[14] & 15);
        f.splice(34..end, options.iter().copied());
        f[14] = 0x45 + u8::try_from(options.len() / 4).unwrap();
    })
}

/// Queries that hosts ignore or need not answer for all groups: nothing is held back after them.
#[test]
fn a_query_that_some_hosts_do_not_answer_counts_for_nothing() {
    let v6 = mld_query(ALL_NODES, [0; 16], 10_000);
    let flip = |frame: &[u8], at: usize| {
        let mut f = frame.to_vec();
        f[at] ^= 1;
        f
    };
    for (what, frame) in [
        ("longer than a NIC takes", padded(&query(), 1600)),
        ("padded for nothing", padded(&query(), 61)),
        ("checksum", flip(&query(), 40)),
        ("header's checksum", flip(&query(), 24)),
        ("to a host", igmp_with(30, &[10, 0, 0, 1])),
        ("to another group", igmp_with(30, &G)),
        ("to another MAC address", igmp_with(2, &[0x5e, 1, 2, 3])),
        ("to all MAC addresses", igmp_with(0, &[0xff; 6])),
        ("from a group", igmp_with(26, &[224, 0, 0, 1])),
        ("from loopback", igmp_with(26, &[127, 0, 0, 1])),
        ("from afar", igmp_with(22, &[2])),
        ("of a group", igmp(0x11, 100, G)),
        ("of no version", longer(&query(), &[0, 0, 0])),
        ("of sources", longer(&query(), &[0, 0, 0, 1, 10, 0, 0, 1])),
        ("by a route", with_options(&query(), &[0x94, 4, 0, 0, 0x83, 7, 4, 10, 0, 0, 9, 0])),
        ("version 2, no alert", with_options(&query(), &[])),
        ("version 3, no alert", with_options(&longer(&query(), &[2, 125, 0, 0]), &[])),
        ("an alert of something else", with_options(&query(), &[0x94, 4, 0, 1])),
        ("longer than a NIC takes", padded(&v6, 1600)),
        ("padded for nothing", padded(&v6, v6.len() + 1)),
        ("checksum", flip(&v6, 64)),
        ("to a host", mld_with(38, &[0xfe, 0x80])),
        ("to another group", mld_query(v6_group(1), [0; 16], 10_000)),
        ("to another MAC address", mld_with(5, &[2])),
        ("source", mld_with(22, &[0xfd])),
        ("no source", mld_with(22, &[0; 16])),
        ("of a group", mld_query(ALL_NODES, v6_group(1), 10_000)),
        ("of no version", longer(&v6, &[0, 0, 0])),
        ("of sources", longer(&v6, &[&[0, 0, 0, 1][..], &v6_group(1)].concat())),
        ("no alert", mld_with(56, &[1, 4, 5, 2, 0, 0])),
        ("an alert of something else", mld_with(56, &[5, 2, 0, 1])),
    ] {
        let lan = Lan(Snooping::new());
        assert_eq!(lan.send((9, &Policy::default()), &frame, SECOND), Ok(Cast::All), "{what}");
        assert_eq!(lan.0.state(), [0; 0], "{what}: {frame:x?}");
    }
}

#[test]
fn queries_of_all_versions_count() {
    let v6 = mld_query(ALL_NODES, [0; 16], 10_000);
    for (what, frame) in [
        ("version 1", igmp(0x11, 0, [0; 4])),
        ("version 2", query()),
        ("padded to the shortest frame", padded(&query(), 60)),
        ("version 3", longer(&query(), &[2, 125, 0, 0])),
        ("a proxy's", igmp_with(26, &[0; 4])),
        ("more options", with_options(&query(), &[1, 1, 1, 1, 0x94, 4, 0, 0])),
        ("version 1", v6.clone()),
        ("version 2", longer(&v6, &[2, 125, 0, 0])),
        ("padding before", mld_with(56, &[1, 0, 5, 2, 0, 0])),
        ("padding behind", mld_with(56, &[5, 2, 0, 0, 0, 0])),
    ] {
        let lan = Lan(Snooping::new());
        lan.router(&frame, SECOND);
        assert_eq!(lan.0.state().len(), 2, "{what}: {frame:x?}");
    }
}

/// Nor does one keep alive what a querier that has gone has begun.
#[test]
fn a_query_of_a_group_keeps_no_querier_alive() {
    let lan = Lan::asked();
    (0..3).for_each(|i| lan.router(&igmp(0x11, 10, G), i * 100 * SECOND));
    assert!(!lan.gets(1, G, 250 * SECOND) && lan.gets(1, G, 260 * SECOND));
}

/// A querier may give an hour for answers: until then nobody is cut off.
#[test]
fn late_answers_are_waited_for() {
    let late = |code| igmp(0x11, code, [0; 4]);
    let lan = Lan(Snooping::new());
    lan.router(&late(0xff), SECOND);
    assert!((0..500).all(|s| lan.gets(1, G, s * SECOND)));
    // 102.4 s.
    let lan = Lan(Snooping::new());
    lan.router(&late(0xb0), SECOND);
    assert!(lan.gets(1, G, 100 * SECOND) && !lan.gets(1, G, 110 * SECOND));
    // The answers to the first are known until 260 s.
    let lan = Lan::asked();
    lan.router(&late(0xb0), 100 * SECOND);
    assert!(!lan.gets(1, G, 101 * SECOND), "they come before");
    lan.router(&late(0xd0), 200 * SECOND);
    assert!(lan.gets(1, G, 201 * SECOND), "they may come later");
}

/// Whoever was not asked yet gets all groups: a port that is new or was down, whose policy was
/// another, or that was in other VLANs.
#[test]
fn who_has_not_been_asked_is_given_all() {
    let lan = Lan::asked();
    let mut t = 20 * SECOND;
    let mut vlans = 1..;
    let steps: [&mut dyn FnMut(); 4] = [
        &mut || lan.0.restrict(id(1), &host()),
        &mut || lan.0.not_asked(id(1)),
        &mut || {
            lan.0.restrict(id(1), &Policy::default());
            lan.0.restrict(id(1), &host());
        },
        &mut || {
            let vlan = Vlan::Access(vlans.next().unwrap());
            lan.0.restrict(id(1), &Policy { vlan, ..host() });
        },
    ];
    for (n, step) in steps.into_iter().enumerate() {
        let ask = || (0..4).for_each(|i| lan.router(&query(), t + i * 100 * SECOND));
        assert!(!lan.gets(1, G, t), "{n}");
        step();
        ask();
        assert!(lan.gets(1, G, t + 400 * SECOND), "{n}: it has said nothing yet");
        t += 400 * SECOND;
        lan.host(1, &igmp(0x16, 0, ALIAS), t);
        (0..6).for_each(|i| lan.router(&query(), t + i * 100 * SECOND));
        assert!(lan.gets(1, G, t + 250 * SECOND) && !lan.gets(1, G, t + 270 * SECOND), "{n}");
        let reported = lan.send((2, &host()), &igmp(0x16, 0, G), t).unwrap();
        assert!(!lan.0.is_for(reported, id(1), t), "it would not send its own");
        t += 500 * SECOND;
    }
    lan.0.restrict(id(1), &host());
    lan.0.forget(id(1));
    lan.0.restrict(id(1), &host());
    assert!(lan.gets(1, G, t), "another port of that number");
}
