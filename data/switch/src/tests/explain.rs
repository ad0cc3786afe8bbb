//! What is told of a frame, and what becomes of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use vmlan_frame::Counter;

use super::*;
use crate::policy::*;
use crate::{
    Claim, ClaimFault, ClaimSetting, End, Explanation, Fate, Finding, Naming, Place, PortSet, Step,
    StormTokens, Tag, Tags, Tokens, Verdict, Watch, WouldLearn,
};

/// Drops by port (source's `false`, receiver's `true`) and reason, and what was delivered to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Came {
    held: bool,
    delivered: BTreeMap<usize, Vec<u8>>,
    dropped: BTreeMap<(usize, bool, &'static str), u64>,
}

impl World {
    fn drops(&self) -> BTreeMap<(usize, bool, &'static str), u64> {
        let mut all = BTreeMap::new();
        for (i, p) in self.ports.iter().enumerate() {
            for r in Reason::ALL {
                all.insert((i, false, r.name()), p.counters.input.dropped(*r));
                all.insert((i, true, r.name()), p.counters.output.dropped(*r));
            }
        }
        all
    }

    /// Sends `frame`, really.
    fn try_out(&mut self, from: usize, frame: &[u8], now: u64) -> Came {
        let before = self.drops();
        self.ports[from].tx.lock().unwrap().push(frame.to_vec());
        self.breathe(from, now);
        let mut came = Came {
            held: !std::mem::take(&mut *self.ports[from].tx.lock().unwrap()).is_empty(),
            ..Came::default()
        };
        for (i, p) in self.ports.iter().enumerate() {
            let got = std::mem::take(&mut *p.rx.lock().unwrap());
            assert!(got.len() <= 1, "at most once");
            came.delivered.extend(got.into_iter().map(|f| (i, f)));
        }
        let since = self.drops().into_iter().map(|(k, n)| (k, n - before[&k]));
        came.dropped = since.filter(|(_, n)| *n > 0).collect();
        came
    }

    fn foretell(&self, from: usize, frame: &[u8], now: u64) -> Explanation {
        self.switch.explain(&self.table, id(from), frame, now).unwrap()
    }

    /// Takes a port's from-limits away, until they are given back.
    fn limit(&mut self, port: usize, from: Limits) -> Limits {
        let entry = |(i, p): (usize, &Arc<Fake>)| {
            let entry = self.table.get(id(i)).unwrap();
            let mut policy = Policy::clone(&entry.policy);
            if i == port {
                policy.from = from.clone();
            }
            let name = entry.name.clone();
            Some(Entry { name, port: p.clone(), mirror: None, policy: Arc::new(policy) })
        };
        let old = self.table.get(id(port)).unwrap().policy.from.clone();
        self.table = Table::new(self.ports.iter().enumerate().map(entry).collect());
        old
    }
}

/// What the explanation says, as if it had happened.
fn as_came(from: usize, told: &Explanation) -> Came {
    let mut came = Came::default();
    came.delivered.extend(told.answer.iter().map(|answer| (from, answer.clone())));
    let receivers = match &told.end {
        End::Refused(reason) => {
            came.dropped.insert((from, false, reason.name()), 1);
            &[][..]
        }
        End::To(receiver) => std::slice::from_ref(receiver),
        End::Flooded(receivers) => receivers,
    };
    for r in receivers.iter().chain(&told.copies) {
        match &r.fate {
            Fate::Delivered(bytes) => drop(came.delivered.insert(r.port.index(), bytes.clone())),
            Fate::Held => came.held = true,
            Fate::Dropped(reason) => {
                came.dropped.insert((r.port.index(), true, reason.name()), 1);
            }
        }
    }
    came
}

fn any_mac() -> impl Strategy<Value = Mac> {
    prop_oneof![
        20 => (1u8..6).prop_map(mac),
        2 => Just(Mac::BROADCAST),
        2 => Just(Mac::new([0x33, 0x33, 0, 0, 0, 1])),
        1 => Just(Mac::new([1, 0x80, 0xc2, 0, 0, 2])),
        3 => Just(Mac::new([1, 0, 0x5e, 1, 2, 3])),
        2 => Just(Mac::new([1, 0, 0x5e, 0, 0, 1])),
        1 => Just(Mac::default()),
    ]
}

fn v4() -> impl Strategy<Value = Ipv4Addr> {
    prop_oneof![(0u8..5).prop_map(|n| Ipv4Addr::new(10, 0, 0, n)), Just(Ipv4Addr::UNSPECIFIED)]
}

fn v6() -> impl Strategy<Value = Ipv6Addr> {
    let low = (0u16..5).prop_map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
    let own = (1u8..6).prop_map(|n| format!("fe80::ff:fe00:{n}").parse().unwrap());
    prop_oneof![low, own, Just(Ipv6Addr::UNSPECIFIED)]
}

/// What stands behind the MAC addresses and tags, its EtherType first.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let arp = (any_mac(), v4(), any_mac(), v4(), 0u8..4).prop_map(|(a, b, c, d, op)| {
        let begin = vec![8, 6, 0, 1, 8, 0, 6, 4, 0, op];
        let ip = |ip: Ipv4Addr| ip.octets().to_vec();
        [begin, a.octets().to_vec(), ip(b), c.octets().to_vec(), ip(d)].concat()
    });
    let ip4 = (v4(), v4(), prop_oneof![Just(67u16), Just(68), any::<u16>()], 0u8..2, 0usize..60);
    let udp4 = ip4.prop_map(|(a, b, port, fragment, more)| {
        let len = u16::try_from(28 + more).unwrap().to_be_bytes();
        let udp = u16::try_from(8 + more).unwrap().to_be_bytes();
        let mut p = vec![8, 0, 0x45, 0, len[0], len[1], 0, 0, 0, fragment * 8, 64, 17, 0, 0];
        p.extend(a.octets());
        p.extend(b.octets());
        p.extend(port.to_be_bytes());
        p.extend([0, 68, udp[0], udp[1], 0, 0]);
        p.resize(p.len() + more, 0);
        p
    });
    let kinds = prop_oneof![Just(133u8), Just(134), Just(135), Just(136), Just(128)];
    let nd = (v6(), v6(), v6(), kinds, any_mac()).prop_map(|(a, b, target, kind, link)| {
        let mut p = vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255];
        p.extend(a.octets());
        p.extend(b.octets());
        p.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        p.extend(target.octets());
        p.extend([1, 1]);
        p.extend(link.octets());
        p
    });
    // Groups: who asks, joins and leaves, and data.
    let group = (0u8..3).prop_map(|n| [239, 1, 2, n]);
    let kinds = prop_oneof![1 => Just(0x11u8), 4 => Just(0x16), 1 => Just(0x17), 1 => Just(0x22)];
    let igmp = (group.clone(), kinds, v4()).prop_map(|(group, kind, from)| {
        let begin = [8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2, 0, 0];
        [&begin[..], &from.octets(), &group, &[kind, 1, 0, 0], &group].concat()
    });
    let query = Just(
        [
            &[8, 0, 0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 0x44, 0xd7][..],
            &[0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0, 0x11, 1, 0xee, 0xfe, 0, 0, 0, 0],
        ]
        .concat(),
    );
    let data = (group, v4()).prop_map(|(group, from)| {
        let begin = [8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 1, 17, 0, 0];
        [&begin[..], &from.octets(), &group, &[0, 1, 0, 2, 0, 8, 0, 0]].concat()
    });
    let odd = prop::collection::vec(any::<u8>(), 0..80);
    let long = prop_oneof![Just(1500usize), Just(9000), 65_000usize..65_560];
    let long = long.prop_map(|n| [vec![8, 0, 0x45], vec![0; n]].concat());
    prop_oneof![3 => arp, 3 => udp4, 3 => nd, 2 => igmp, 2 => query, 2 => data, 1 => odd, 1 => long]
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => Just(0x8100u16), 2 => Just(0x88a8), 1 => Just(0x9100)];
    let tag = (kind, prop_oneof![0u16..5, Just(4095)], 0u16..3);
    let tags = prop_oneof![
        3 => Just(Vec::new()),
        2 => prop::collection::vec(tag.clone(), 1..2),
        1 => prop::collection::vec(tag, 2..4),
    ];
    (any_mac(), any_mac(), tags, payload()).prop_map(|(dst, src, tags, payload)| {
        let mut f = [dst.octets(), src.octets()].concat();
        for (kind, vid, priority) in tags {
            f.extend(kind.to_be_bytes());
            f.extend((priority << 13 | vid).to_be_bytes());
        }
        f.extend(payload);
        f
    })
}

fn vlan() -> impl Strategy<Value = Vlan> {
    let vids = || prop::collection::vec(1u16..5, 0..4).prop_map(VidSet::new);
    prop_oneof![
        1 => Just(Vlan::Open),
        3 => (1u16..3).prop_map(Vlan::Access),
        3 => (vids(), prop::option::of(1u16..5))
            .prop_map(|(tagged, native)| Vlan::Trunk { tagged, native }),
        1 => (1u16..4).prop_map(Vlan::Qinq),
        1 => vids().prop_map(Vlan::QinqTrunk),
    ]
}

fn claims() -> impl Strategy<Value = SourceCheck> {
    let macs = prop_oneof![
        3 => Just(Macs::Any),
        1 => prop_oneof![Just(0u64), (1u8..6).prop_map(|n| mac(n).bits())]
            .prop_map(|bits| Macs::First(Arc::new(FirstMac(AtomicU64::new(bits))))),
        2 => prop::collection::vec((1u8..6).prop_map(mac), 1..4)
            .prop_map(|macs| Macs::Listed(macs.into())),
    ];
    let prefix = prop_oneof![
        (v4().prop_map(IpAddr::from), 24u8..33),
        (v6().prop_map(IpAddr::from), 60u8..129),
    ];
    let prefix = prefix.prop_map(|(address, bits)| Prefix { address, bits });
    let ips = prop::option::of(prop::collection::vec(prefix, 0..4));
    (macs, ips, any::<bool>(), any::<bool>()).prop_map(|(macs, ips, dhcp_guard, ra_guard)| {
        let ips: Option<Arc<[Prefix]>> = ips.map(Into::into);
        SourceCheck { macs, free: ips.clone().filter(|_| dhcp_guard), ips, dhcp_guard, ra_guard }
    })
}

/// A bucket for a few of the frames to come.
fn bucket(most: u64) -> impl Strategy<Value = Option<Bucket>> {
    let rate = move |burst_us| Rate { per_second: most, burst: Duration::from_micros(burst_us) };
    prop::option::of((1u64..2000).prop_map(move |us| Bucket::new(rate(us), 0)))
}

fn limits() -> impl Strategy<Value = Limits> {
    let limiter = || {
        let both = (bucket(1_000_000), bucket(1000));
        both.prop_map(|(bits, frames)| Limiter { bits, frames, ..Limiter::default() })
    };
    let one = || prop::option::weighted(0.2, limiter().prop_map(Arc::new));
    (one(), one()).prop_map(|(own, shared)| Limits { own, shared })
}

fn policy(vlans: bool) -> impl Strategy<Value = Policy> {
    let vlan = if vlans { vlan().boxed() } else { Just(Vlan::Open).boxed() };
    let groups = prop::option::weighted(0.4, (0u64..4).prop_map(Groups));
    let uplink = prop::option::weighted(0.3, (0usize..5).prop_map(id));
    let reach = ((0u64..4).prop_map(Groups), groups, uplink)
        .prop_map(|(member, groups, uplink)| Reach { member, groups, uplink });
    let few = || bucket(1000).prop_map(|b| b.map(Arc::new));
    let storm = (few(), few(), few()).prop_map(|(broadcast, multicast, unknown)| Storm {
        broadcast,
        multicast,
        unknown,
    });
    let storm = prop_oneof![2 => Just(Storm::default()), 1 => storm];
    let source_check = prop_oneof![3 => Just(SourceCheck::default()), 1 => claims()];
    // At some of them ports wait, of which one is far ahead of the others.
    let wait = |waiting: bool| {
        let queue = Turns::default();
        for i in (0..3).filter(|_| waiting) {
            queue.sent(id(i), 1, if i == 0 { 1 << 20 } else { 1 }, true, 1);
        }
        Arc::new(queue)
    };
    let is_uplink = prop::option::weighted(0.1, any::<bool>().prop_map(wait));
    let domain = prop::option::of((0u16..4).prop_map(Domain::from_bits));
    let watch = (prop::collection::vec((0usize..6).prop_map(id), 0..3), domain)
        .prop_map(|(ports, domain)| Arc::new(Watch { ports: PortSet::new(ports), domain }));
    let monitor = prop::option::weighted(0.1, prop::option::of(watch));
    let mtu = prop::option::weighted(0.2, prop_oneof![Just(68u16), 20u16..80, Just(1400)]);
    let flags = (prop::bool::weighted(0.2), any::<bool>(), prop::bool::weighted(0.4), mtu);
    let kind = (is_uplink, monitor, 1u16..5, flags);
    (vlan, source_check, reach, storm, limits(), limits(), kind).prop_map(
        |(vlan, source_check, reach, storm, from, to, kind)| {
            let (uplink, monitor, weight, flags) = kind;
            let (drops_unknown, passes_reserved, joined_only, mtu) = flags;
            Policy {
                source_check,
                vlan,
                reach,
                storm,
                drops_unknown,
                passes_reserved,
                joined_only,
                mtu,
                from,
                to,
                weight,
                uplink,
                monitor: monitor.is_some(),
                watch: monitor.flatten(),
                ..Policy::default()
            }
        },
    )
}

/// Policies of some ports, of which some are a team.
fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let steer = prop_oneof![Just(Steer::Ip), Just(Steer::default())];
    let team = prop::option::weighted(0.3, (steer, prop::collection::vec(any::<bool>(), 5)));
    let some = |vlans| prop::collection::vec(policy(vlans), 2..6);
    let some = prop_oneof![1 => some(true), 2 => some(false)];
    (some, team).prop_map(|(mut policies, team)| {
        let Some((steer, chosen)) = team else { return policies };
        let is = |i: usize, p: &Policy| chosen[i] && !p.monitor;
        let member = |(i, p): (usize, &Policy)| Member {
            port: id(i),
            name: format!("vm{i}").into(),
            weight: p.weight,
            ips: p.source_check.ips.clone().unwrap_or_default(),
        };
        let members = policies.iter().enumerate().filter(|(i, p)| is(*i, p)).map(member);
        let team = Arc::new(Team::new(steer, members.collect()));
        for (i, p) in policies.iter_mut().enumerate().filter(|(i, p)| is(*i, p)) {
            p.team = Some(team.clone()).filter(|_| i < 5);
        }
        policies
    })
}

/// Everything that explaining could have changed.
fn state(w: &World, now: u64) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut fdb = w.switch.fdb().list();
    fdb.sort_by_key(|e| (e.mac, e.domain));
    let limit = |l: &Limits| {
        let each = l.own.iter().chain(&l.shared);
        each.map(|l| {
            let c = &l.counters;
            let tokens = |b: &Option<Bucket>| b.as_ref().map(|b| b.tokens(now));
            let counted = [&c.passed, &c.held, &c.dropped].map(Counter::get);
            (counted, tokens(&l.bits), tokens(&l.frames))
        })
        .collect::<Vec<_>>()
    };
    let policy = |p: &PortId| {
        let p = &w.table.get(*p).unwrap().policy;
        let first = match &p.source_check.macs {
            Macs::First(first) => first.0.load(Ordering::Relaxed),
            _ => 0,
        };
        let storm = [&p.storm.broadcast, &p.storm.multicast, &p.storm.unknown];
        let storm = storm.map(|b| b.as_ref().map(|b| b.tokens(now)));
        (first, storm, limit(&p.from), limit(&p.to))
    };
    let policies: Vec<_> = w.table.members().iter().map(policy).collect();
    (fdb, w.switch.fdb().unlearned(), policies, w.drops(), w.switch.snooping.state())
}

/// One thing after the other: who, when, what.
fn sent() -> impl Strategy<Value = Vec<(usize, u64, Vec<u8>)>> {
    let long = prop_oneof![9 => 0u64..300_000, 1 => 0u64..100_000_000_000];
    prop::collection::vec((0usize..5, long, frame()), 1..30)
}

/// Pinned addresses: which, where, in which domain.
fn pins() -> impl Strategy<Value = Vec<(u8, usize, u16)>> {
    prop::collection::vec((1u8..6, 0usize..5, 0u16..4), 0..3)
}

proptest! {
    /// Whatever the policies, what is told of a frame is what becomes of it, to the byte.
    #[test]
    fn what_is_told_happens(
        policies in policies(),
        down in prop::collection::vec(prop::bool::weighted(0.15), 6),
        pins in pins(),
        sent in sent(),
    ) {
        let n = policies.len();
        let tight = Options { fdb_entries: 8, fdb_port_cap: 4, ..Options::default() };
        let mut w = world(n, tight);
        w.set_all(policies);
        for (p, down) in w.ports.iter().zip(down) {
            p.up.store(!down, Ordering::Relaxed);
        }
        for (m, port, vid) in pins {
            let _ = w.switch.fdb().add_static(mac(m), Domain::from_bits(vid), id(port % n));
        }
        let mut now = 1;
        for (from, later, frame) in sent {
            let from = from % n;
            now += later;
            let before = state(&w, now);
            let told = w.foretell(from, &frame, now);
            prop_assert_eq!(&before, &state(&w, now), "explaining changes nothing");
            if frame.len() < 14 || matches!(told.steps[0].finding, Finding::BadLength(_)) {
                prop_assert!(matches!(told.end, End::Refused(Reason::Runt | Reason::TooLong)));
                continue;
            }
            let mut came = w.try_out(from, &frame, now);
            if told.held {
                // It was not looked at. What is told of later is what becomes of it with tokens.
                let held = Came { held: true, ..Came::default() };
                prop_assert_eq!(held, came, "{:02x?}\n{:#?}", frame, told.steps);
                let limits = w.limit(from, Limits::default());
                came = w.try_out(from, &frame, now);
                w.limit(from, limits);
            }
            prop_assert_eq!(as_came(from, &told), came, "{:02x?}\n{:#?}", frame, told.steps);
        }
    }
}

fn pass(finding: Finding) -> Step {
    Step { port: None, verdict: Verdict::Pass, finding }
}

fn at(port: usize, verdict: Verdict, finding: Finding) -> Step {
    Step { port: Some(id(port)), verdict, finding }
}

fn arp(src: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let macs = [Mac::BROADCAST.octets(), src.octets()].concat();
    let begin = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    [&macs, &begin[..], &src.octets(), &sender, &[0; 6], &target].concat()
}

#[test]
fn a_refusal_has_the_step_and_the_address() {
    let mut w = world(2, Options::default());
    let own = Prefix { address: IpAddr::from([10, 0, 0, 1]), bits: 32 };
    let ips = Some([own].into());
    let policy =
        Policy { source_check: SourceCheck { ips, ..SourceCheck::default() }, ..Policy::default() };
    w.set_all(vec![policy, Policy::default()]);
    let told = w.foretell(0, &arp(mac(1), [10, 0, 0, 9], [10, 0, 0, 2]), 1);
    assert_eq!(told.end, End::Refused(Reason::SpoofedArp));
    let ip = IpAddr::from([10, 0, 0, 9]);
    let refused = Finding::ClaimRefused(ClaimFault::NotOwn(Naming::Arp, ip));
    let want = [
        pass(Finding::FromLimit(Tokens::Unlimited)),
        pass(Finding::Enters(Tags::default(), Vlan::Open, Domain::OPEN)),
        Step { port: None, verdict: Verdict::Refuse, finding: refused },
    ];
    assert_eq!(told.steps, want);
    assert_eq!(told.claim, Some(Claim::Ip(ip)));
}

#[test]
fn a_flood_says_who_gets_it_in_which_form_and_who_does_not() {
    let mut w = world(6, Options::default());
    let vlan = |vlan| Policy { vlan, ..Policy::default() };
    let limiter = Limiter {
        frames: Some(Bucket::new(Rate { per_second: 1, burst: Duration::from_secs(1) }, 0)),
        ..Limiter::default()
    };
    let to = Limits { own: Some(Arc::new(limiter)), shared: None };
    to.passed(3, 0);
    w.set_all(vec![
        vlan(Vlan::Access(10)),
        vlan(Vlan::Trunk { tagged: VidSet::new([10, 20]), native: None }),
        vlan(Vlan::Access(20)),
        vlan(Vlan::Access(10)),
        Policy { to, ..vlan(Vlan::Access(10)) },
        Policy { monitor: true, ..Policy::default() },
    ]);
    w.ports[3].up.store(false, Ordering::Relaxed);
    let frame = arp(mac(1), [10, 0, 0, 1], [10, 0, 0, 2]);
    let told = w.foretell(0, &frame, 1);
    let ten = Domain::customer(10);
    let delivery =
        Finding::Delivery { tags: Tags(vec![Tag::Customer(10)]), left: None, full: false };
    let want = [
        pass(Finding::FromLimit(Tokens::Unlimited)),
        pass(Finding::Enters(Tags::default(), Vlan::Access(10), ten)),
        pass(Finding::AnyClaim),
        pass(Finding::Source(mac(1))),
        pass(Finding::Learning(mac(1), WouldLearn::New)),
        pass(Finding::Destination(Mac::BROADCAST, Place::Group)),
        pass(Finding::Storm(StormTokens::Unlimited)),
        at(1, Verdict::Pass, delivery),
        at(2, Verdict::Refuse, Finding::OutsideDomain(Vlan::Access(20), ten)),
        at(3, Verdict::Refuse, Finding::LinkDown),
        at(4, Verdict::Drop, Finding::ToLimit { wait_ns: 1_000_000_000 }),
        at(5, Verdict::Refuse, Finding::ReceiverIsMonitor),
    ];
    assert_eq!((&told.steps[..], told.domain), (&want[..], ten));
    let End::Flooded(receivers) = &told.end else { panic!("{told:?}") };
    let tagged = [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
    assert_eq!(receivers[0].fate, Fate::Delivered(tagged));
    assert_eq!(receivers[1].fate, Fate::Dropped(Reason::OverLimit));
    assert_eq!(receivers.len(), 2);
    assert_eq!(w.switch.explain(&w.table, id(9), &frame, 1), None, "no such port");
}

fn limited() -> Limits {
    let rate = Rate { per_second: 1, burst: Duration::from_secs(1) };
    let limiter = Limiter { frames: Some(Bucket::new(rate, 0)), ..Limiter::default() };
    let limits = Limits { own: Some(Arc::new(limiter)), shared: None };
    limits.passed(3, 0);
    limits
}

#[test]
fn over_the_limit_the_verdict_is_explained_too() {
    let mut w = world(2, Options::default());
    let macs = Macs::Listed([mac(1)].into());
    let source_check = SourceCheck { macs, ..SourceCheck::default() };
    w.set_all(vec![
        Policy { source_check, from: limited(), ..Policy::default() },
        Policy::default(),
    ]);
    let told = w.foretell(0, &arp(mac(1), [10, 0, 0, 1], [10, 0, 0, 2]), 1);
    assert_eq!(told.steps[0].verdict, Verdict::Hold);
    assert!(told.held && matches!(&told.end, End::Flooded(to) if to.len() == 1), "{told:?}");
    let told = w.foretell(0, &arp(mac(2), [10, 0, 0, 1], [10, 0, 0, 2]), 1);
    assert_eq!((told.held, &told.end), (true, &End::Refused(Reason::SpoofedMac)));
    assert_eq!(told.claim, Some(Claim::Mac(mac(2))));
    assert_eq!(told.settings, [ClaimSetting::Macs]);
}

#[test]
fn the_settings_that_decide_are_named_and_a_group_is_nobody() {
    let mut w = world(2, Options::default());
    let source_check = SourceCheck {
        free: None,
        macs: Macs::Listed([mac(1)].into()),
        ips: Some([Prefix { address: IpAddr::from([10, 0, 0, 1]), bits: 32 }].into()),
        dhcp_guard: true,
        ra_guard: true,
    };
    w.set_all(vec![Policy { source_check, ..Policy::default() }, Policy::default()]);
    let settings = |w: &World, behind: &[u8]| {
        let frame = [&[0xff; 6], &mac(1).octets()[..], behind, &[0; 40]].concat();
        let told = w.foretell(0, &frame, 1);
        assert_eq!(told.end, End::Refused(Reason::NotParsed));
        told.settings
    };
    use ClaimSetting::{DhcpGuard, Ips, Macs as Listed, RaGuard};
    assert_eq!(settings(&w, &[0x88, 0xb5]), [Ips], "an EtherType that only ips= refuses");
    assert_eq!(settings(&w, &[8, 6]), [Listed, Ips], "ARP of no kind");
    let all = [Listed, Ips, DhcpGuard, RaGuard];
    assert_eq!(settings(&w, &[0x91, 0, 0, 1]), all, "an old service tag");
    for nobody in [Mac::BROADCAST, Mac::default()] {
        let told = w.foretell(0, &arp(nobody, [10, 0, 0, 1], [10, 0, 0, 2]), 1);
        assert_eq!(told.end, End::Refused(Reason::SpoofedMac));
        assert_eq!(told.claim, None, "not to be listed");
    }
}

#[test]
fn a_port_that_reaches_nobody_is_refused_at_reach() {
    let mut w = world(2, Options::default());
    w.try_out(1, &[&[0xff; 6], &mac(2).octets()[..], &[0; 50]].concat(), 1);
    let reach = Reach { groups: Some(Groups(0)), ..Reach::default() };
    w.set_all(vec![Policy { reach, ..Policy::default() }, Policy::default()]);
    let told = w.foretell(0, &[&mac(2).octets()[..], &mac(1).octets(), &[0; 50]].concat(), 1);
    assert_eq!(told.end, End::Refused(Reason::Isolated));
    let last = told.steps.last().unwrap();
    assert_eq!(last, &at(1, Verdict::Refuse, Finding::ReachesNobody), "whose groups help");
}
