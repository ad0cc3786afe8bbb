use std::net::IpAddr;

use vmlan_frame::headers::Neighbour;
use vmlan_frame::{Headers, Mac, Network, Reason};
use vmlan_switch::policy::{Domain, Vlan};
use vmlan_switch::{
    Claim, ClaimFault, ClaimSetting, End, Explanation, Fate, Finding, PortId, Receiver, Step, Tags,
    Unparsed, Verdict, WouldLearn,
};

use super::frame::{Inside, Wanted, parse_hex, to_hex};
use super::*;
use vmlan_config::address::Address;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn wanted(inside: Inside, ips: Option<(&str, &str)>) -> Wanted {
    Wanted {
        src: "52:54:00:00:00:01".parse().unwrap(),
        dst: Mac::BROADCAST,
        ips: ips.map(|(a, b)| (ip(a), ip(b))),
        inside,
        ..Wanted::default()
    }
}

fn parsed(wanted: &Wanted) -> (Vec<u8>, Headers) {
    let frame = wanted.build().unwrap();
    let headers = Headers::parse(&frame, frame.len());
    (frame, headers)
}

#[test]
fn frames_are_what_was_asked_for() {
    let v4 = Some(("10.0.0.1", "10.0.0.2"));
    let v6 = Some(("fd00::1", "fd00::2"));
    let (frame, h) = parsed(&wanted(Inside::Udp(1024, 53), v4));
    assert_eq!((frame.len(), h.network, h.parsed), (60, Network::Ipv4, true));
    assert_eq!(h.ports(&frame), Some((1024, 53)));
    assert_eq!(h.addresses(&frame), Some((&[10, 0, 0, 1][..], &[10, 0, 0, 2][..])));
    let (frame, h) = parsed(&Wanted { len: Some(1514), ..wanted(Inside::Tcp(1, 2), v6) });
    assert_eq!((frame.len(), h.network, h.parsed, h.ip_len), (1514, Network::Ipv6, true, 1500));
    let (frame, h) = parsed(&Wanted { vlans: vec![10, 20], ..wanted(Inside::Nothing, v4) });
    assert_eq!((h.tags, h.tci, h.protocol, h.parsed), (2, Some(10), 1, true));
    assert_eq!(frame.len(), 60);
    let (frame, h) = parsed(&wanted(Inside::Arp, v4));
    let arp = h.arp(&frame, frame.len()).unwrap();
    assert_eq!((arp.operation, arp.sender.1, arp.target.1), (1, [10, 0, 0, 1], [10, 0, 0, 2]));
    assert_eq!(parsed(&wanted(Inside::Nothing, None)).1.ethertype, 0x88b5);
    for kind in [Neighbour::RS, Neighbour::RA, Neighbour::NS, Neighbour::NA, Neighbour::REDIRECT] {
        let (frame, h) = parsed(&wanted(Inside::Icmpv6(kind), v6));
        let message = h.neighbour(&frame).unwrap_or_else(|| panic!("{kind}"));
        assert_eq!((message.kind, message.hop_limit), (kind, 255));
    }
    let (frame, h) = parsed(&wanted(Inside::Icmpv6(Neighbour::NS), Some(("::", "fd00::2"))));
    assert_eq!(h.neighbour(&frame).unwrap().link_layers().count(), 0);
    let asked: std::net::Ipv6Addr = "ff02::1:ff00:2".parse().unwrap();
    assert_eq!(h.addresses(&frame).unwrap().1, asked.octets());
}

#[test]
fn what_does_not_go_together_is_refused() {
    let v4 = Some(("10.0.0.1", "10.0.0.2"));
    let fails = |w: Wanted, said: &str| {
        let e = w.build().unwrap_err();
        assert!(e.contains(said), "{e}");
    };
    fails(wanted(Inside::Arp, None), "--ip-src");
    fails(wanted(Inside::Arp, Some(("::1", "::2"))), "IPv4");
    fails(wanted(Inside::Icmpv6(135), v4), "IPv6");
    fails(wanted(Inside::Udp(1, 2), Some(("::1", "10.0.0.1"))), "different kinds");
    fails(Wanted { len: Some(40), ..wanted(Inside::Tcp(1, 2), v4) }, "takes 54");
    fails(
        Wanted { len: Some(70_000), ..wanted(Inside::Tcp(1, 2), v4) },
        "too many for an IP packet",
    );
}

#[test]
fn hex_is_read_however_it_is_written() {
    assert_eq!(parse_hex("0x00ff a0:b1-\nC2\n"), Ok(vec![0, 255, 0xa0, 0xb1, 0xc2]));
    assert_eq!(parse_hex(&to_hex(&[1, 0xab])), Ok(vec![1, 0xab]));
    for (text, said) in [("", "0 hex digits"), ("abc", "3 hex digits"), ("zz", "'z'")] {
        let e = parse_hex(text).unwrap_err();
        assert!(e.contains(said), "{e}");
    }
}

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn explained(addresses: &[&str], told: &Explanation) -> Explained {
    let addresses: Vec<Address> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    let names = ["vm0", "vm1", "vm2"];
    let ports = addresses.iter().enumerate().map(|(i, a)| (id(i), names[i], a));
    Explained::new(told, 60, id(0), &Known { ports: ports.collect() })
}

fn told(steps: Vec<Step>, end: End) -> Explanation {
    Explanation {
        steps,
        held: false,
        end,
        domain: Domain::OPEN,
        claim: None,
        settings: Vec::new(),
        answer: None,
        copies: Vec::new(),
    }
}

/// A MAC or IP address.
fn claim(text: &str) -> Claim {
    text.parse().map_or_else(|_| Claim::Ip(ip(text)), Claim::Mac)
}

fn refusal(reason: Reason, claimed: Option<&str>) -> Explanation {
    let mac = "52:54:00:00:00:01".parse().unwrap();
    let finding = Finding::Learning(mac, WouldLearn::Pinned(id(1)));
    let step = Step { port: None, verdict: Verdict::Refuse, finding };
    let end = End::Refused(reason);
    Explanation { claim: claimed.map(claim), ..told(vec![step], end) }
}

/// The port's address, another's, why it is refused, the address it claims; key and fix.
type Refused =
    (&'static str, &'static str, Reason, Option<&'static str>, Option<&'static str>, &'static str);

const REFUSED: &[Refused] = &[
    (
        "tap:t0,ips=10.0.0.1",
        PLAIN,
        Reason::SpoofedArp,
        Some("10.0.0.9"),
        Some("ips=10.0.0.1"),
        "`vmlan port set vm0 ips=10.0.0.1+10.0.0.9`",
    ),
    (
        "tap:t0,ips=none",
        PLAIN,
        Reason::SpoofedIp,
        Some("10.0.0.9"),
        Some("ips=none"),
        "ips=10.0.0.9`",
    ),
    (
        "tap:t0,macs=first",
        PLAIN,
        Reason::SpoofedMac,
        Some("02:00:00:00:00:02"),
        Some("macs=first"),
        "disconnects",
    ),
    (
        "tap:t0,macs=02:00:00:00:00:01",
        PLAIN,
        Reason::SpoofedMac,
        None,
        Some("macs=02:00:00:00:00:01"),
        "no frame can come from that address",
    ),
    (
        "tap:t0,macs=02:00:00:00:00:01",
        PLAIN,
        Reason::SpoofedMac,
        Some("02:00:00:00:00:02"),
        Some("macs=02:00:00:00:00:01"),
        "macs=02:00:00:00:00:01+02:00:00:00:00:02`",
    ),
    (
        "tap:t0,dhcp_guard=on",
        PLAIN,
        Reason::DhcpGuard,
        None,
        Some("dhcp_guard=on"),
        "dhcp_guard=off`",
    ),
    ("tap:t0,ra_guard=on", PLAIN, Reason::RaGuard, None, Some("ra_guard=on"), "ra_guard=off`"),
    ("tap:t0,unknown=drop", PLAIN, Reason::Unknown, None, Some("unknown=drop"), "unknown=`"),
    (
        "tap:t0,multicast=joined",
        PLAIN,
        Reason::MulticastGuard,
        None,
        Some("multicast=joined"),
        "multicast=`",
    ),
    ("tap:t0,reserved=drop", PLAIN, Reason::Reserved, None, None, "reserved=pass`"),
    ("tap:t0,trunk=10,native=20", PLAIN, Reason::Vlan, None, Some("trunk=10,native=20"), "tag"),
    (
        "tap:t0,broadcast_frames=10",
        PLAIN,
        Reason::Storm,
        None,
        Some("broadcast_frames=10"),
        "raise",
    ),
    (
        PLAIN,
        "tap:t0,macs=52:54:00:00:00:01",
        Reason::NotAllowed,
        None,
        Some("vm1: macs=52:54:00:00:00:01"),
        "list of vm1",
    ),
    (PLAIN, "tap:t0", Reason::NotAllowed, None, None, "`vmlan fdb del 52:54:00:00:00:01`"),
    (PLAIN, "tap:t0", Reason::BadSource, None, None, "source address"),
];

const PLAIN: &str = "tap:t1";

#[test]
fn refusals_name_the_key_and_what_to_do() {
    for (own, other, reason, claim, key, fix) in REFUSED.iter().copied() {
        let told = explained(&[own, other], &refusal(reason, claim));
        assert_eq!(
            (told.outcome.as_str(), told.reason.as_deref()),
            ("refused", Some(reason.name()))
        );
        assert_eq!((told.by.as_deref(), told.key.as_deref()), (Some("vm0"), key), "{reason:?}");
        assert!(told.fix.as_ref().unwrap().contains(fix), "{:?}", told.fix);
        let text = told.table();
        assert!(text.contains(&format!("refused: {}, counted at vm0\n", reason.name())), "{text}");
    }
}

#[test]
fn deliveries_name_the_ports_and_what_they_see() {
    let untagged = Fate::Delivered(vec![0; 60]);
    let tagged = Fate::Delivered([&[0; 12][..], &[0x81, 0, 0, 10], &[0; 44]].concat());
    let dropped = Fate::Dropped(Reason::OverLimit);
    let told = |end| told(Vec::new(), end);
    let at = |i, fate: &Fate| Receiver { port: id(i), fate: fate.clone() };
    let ports = ["tap:t0", "tap:t1,to_rate=1Mbit", "tap:t2"];
    let flood = told(End::Flooded(vec![at(1, &dropped), at(2, &tagged)]));
    let said = explained(&ports, &flood);
    assert_eq!(said.outcome, "flooded");
    assert_eq!(said.to, [ToLine { port: "vm2".into(), form: "tag 10".into() }]);
    assert!(said.table().ends_with("\nflooded to vm2 (tag 10)\n"), "{}", said.table());
    let said = explained(&ports, &told(End::To(at(2, &untagged))));
    assert!(said.table().ends_with("\ndelivered to vm2 (untagged)\n"), "{}", said.table());
    let said = explained(&ports, &told(End::To(at(1, &dropped))));
    assert_eq!((said.outcome.as_str(), said.reason.as_deref()), ("refused", Some("over-limit")));
    assert_eq!((said.by.as_deref(), said.key.as_deref()), (Some("vm1"), Some("to_rate=1Mbit")));
    let ports = ["tap:t0,from_frames=10", "tap:t1,uplink=vm2", "tap:t2"];
    let held = |end| Explanation { held: true, ..told(end) };
    let said = explained(&ports, &held(End::To(at(1, &untagged))));
    assert_eq!((said.outcome.as_str(), said.key.as_deref()), ("held", Some("from_frames=10")));
    assert_eq!(said.then.as_deref(), Some("delivered"));
    let text = "\nheld at vm0, then delivered to vm1 (untagged)\n  by    from_frames=10\n";
    assert!(said.table().contains(text), "{}", said.table());
    let said = explained(&ports, &held(End::Refused(Reason::BadSource)));
    assert_eq!((said.outcome.as_str(), said.then), ("refused", None), "it will never pass");
    let copies = vec![at(1, &dropped), at(2, &untagged)];
    let said = explained(&ports, &Explanation { copies, ..told(End::To(at(1, &untagged))) });
    assert_eq!(said.copies, ["vm2"]);
    assert!(said.table().ends_with("to vm1 (untagged); copied to vm2\n"), "{}", said.table());
}

fn out(port: usize, finding: Finding) -> Step {
    Step { port: Some(id(port)), verdict: Verdict::Refuse, finding }
}

/// The addresses of three ports; key and fix where vm0 may not send to vm1.
const ISOLATED: &[([&str; 3], &str, &str)] = &[
    (["tap:t0,reach=none", "tap:t1,member=a+b", PLAIN], "reach=none", "reach=a`"),
    (
        ["tap:t0,reach=x+y", "tap:t1,member=a+b", "tap:t2,member=x"],
        "reach=x+y",
        "vm1 is in a+b: `vmlan port set vm0 reach=x+y+a`",
    ),
    (
        ["tap:t0,reach=x", PLAIN, "tap:t2,member=x"],
        "reach=x",
        "vm1 is in no group: `vmlan port set vm1 member=x`",
    ),
    (["tap:t0,reach=none", PLAIN, PLAIN], "reach=none", "member=GROUP`, then"),
    (["tap:t0,uplink=vm2", "tap:t1", "tap:t2,uplink=vm1"], "uplink=vm2", "uplink=vm1`"),
    (["tap:t0", "tap:t1,uplink=vm2", "tap:t2,uplink=vm0"], "vm1: uplink=vm2", "uplink=vm0`"),
];

#[test]
fn isolation_names_whose_key_it_is_and_what_to_add() {
    for (ports, key, fix) in ISOLATED {
        let steps = vec![out(1, Finding::MayNotSend(id(1)))];
        let said = explained(ports, &told(steps, End::Refused(Reason::Isolated)));
        assert_eq!(said.key.as_deref(), Some(*key), "{ports:?}");
        assert!(said.fix.as_ref().unwrap().contains(fix), "{:?}", said.fix);
        let owner = if key.contains(": ") { "" } else { "vm0: " };
        let line = format!("this port may not send to vm1 ({owner}{key})");
        assert_eq!(said.steps[0].detail, line);
    }
    let refused = told(Vec::new(), End::Refused(Reason::Isolated));
    let said = explained(&["tap:t0,reach=none", "tap:t1"], &refused);
    assert_eq!(said.key.as_deref(), Some("reach=none"));
    assert!(said.fix.as_ref().unwrap().contains("vm0 reach=`"), "{:?}", said.fix);
    let said = explained(
        &["tap:t0", "tap:t1,watch=all", "tap:t2"],
        &told(vec![out(1, Finding::MayNotSend(id(1)))], End::Refused(Reason::NoReceiver)),
    );
    assert_eq!(said.steps[0].detail, "this port may not send to vm1 (vm1: watch=all)");
}

#[test]
fn nobody_in_the_vlan_is_told_with_the_key() {
    let fix = |ports: &[&str], domain: Domain, steps: Vec<Step>| {
        let end = End::Refused(Reason::NoReceiver);
        let said = explained(ports, &Explanation { domain, ..told(steps, end) });
        (said.key.unwrap_or_default(), said.fix.unwrap())
    };
    let ten = Domain::customer(10);
    let outside = |port| out(port, Finding::OutsideDomain(Vlan::Open, ten));
    let others = || vec![outside(1), outside(2)];
    let (key, text) = fix(&["tap:t0,vlan=10", "tap:t1,vlan=20", PLAIN], ten, others());
    assert_eq!(key, "vlan=10");
    assert!(text.contains("other VLANs than vlan 10: `vmlan port set vm1 vlan=10`"), "{text}");
    let (_, text) = fix(&["tap:t0,vlan=10", "tap:t1,trunk=20", PLAIN], ten, others());
    assert!(text.ends_with("`vmlan port set vm1 trunk=20+10`"), "{text}");
    let service = Domain::service(7);
    let (_, text) = fix(&["tap:t0,qinq=7", "tap:t1"], service, vec![outside(1)]);
    assert!(text.ends_with("`vmlan port set vm1 qinq=7`"), "{text}");
    let (key, text) = fix(&["tap:t0", "tap:t1,vlan=20"], Domain::OPEN, vec![outside(1)]);
    assert_eq!(key, "vm1: vlan=20");
    assert!(text.ends_with("`vmlan port set vm0 vlan=20`"), "{text}");
    let steps = vec![outside(1), out(2, Finding::LinkDown)];
    let (_, text) = fix(&["tap:t0,vlan=10", "tap:t1", "tap:t2,vlan=10"], ten, steps);
    assert!(text.starts_with("vm2 would accept it, but is down: `ip link set t2 up`"), "{text}");
    let steps = vec![out(1, Finding::LinkDown)];
    let (_, text) = fix(&["tap:t0", "vhost-user:/a.sock"], Domain::OPEN, steps);
    assert!(
        text.ends_with("attach a VM to it (`vmlan vm-args vm1`), or start its driver"),
        "{text}"
    );
}

#[test]
fn what_is_not_understood_names_the_keys_that_mind() {
    let own = Unparsed::EtherType(super::frame::ETHERTYPE_EXPERIMENT);
    let finding = Finding::ClaimRefused(ClaimFault::NotParsed(own));
    let step = Step { port: None, verdict: Verdict::Refuse, finding };
    let refused = told(vec![step], End::Refused(Reason::NotParsed));
    let ports = ["tap:t0,macs=02:00:00:00:00:01,ips=10.0.0.1", "tap:t1"];
    let said = explained(&ports, &Explanation { settings: vec![ClaimSetting::Ips], ..refused });
    assert_eq!(
        said.steps[0].detail,
        "not understood to its end, and so not allowed: EtherType 0x88b5"
    );
    assert_eq!(said.key.as_deref(), Some("ips=10.0.0.1"));
    let fix = said.fix.unwrap();
    assert!(fix.contains("`vmlan port set vm0 ips=`"), "{fix}");
    assert!(fix.contains("--ip-src"), "what explain itself made: {fix}");
}

#[test]
fn findings_are_said_in_words() {
    use vmlan_switch::policy::Budget;
    use vmlan_switch::{Place, StormTokens, Tag, Tokens};
    let addresses: Vec<Address> = ["tap:t0", "tap:t1"].iter().map(|a| a.parse().unwrap()).collect();
    let ports = addresses.iter().enumerate().map(|(i, a)| (id(i), ["vm0", "vm1"][i], a)).collect();
    let known = Known { ports };
    let mac: Mac = "52:54:00:00:00:01".parse().unwrap();
    let budget = Budget { bits: 12_345, frames: 7 };
    let tags = Tags(vec![Tag::Service(100), Tag::Customer(7)]);
    let left = Some(Budget { bits: 20_000_000, frames: i64::MAX });
    for (finding, said) in [
        (Finding::FromLimit(Tokens::Unlimited), "there is no limit"),
        (Finding::FromLimit(Tokens::Left(budget)), "12 kbit and 7 frames left"),
        (
            Finding::FromLimit(Tokens::Spent { wait_ns: 1_500_000 }),
            "no tokens: it stays in its sender's ring for 1.5 ms",
        ),
        (
            Finding::Enters(Tags::default(), Vlan::Open, Domain::OPEN),
            "untagged, no VLAN: it is in the domain of ports without VLANs",
        ),
        (Finding::OutsideDomain(Vlan::Access(20), Domain::customer(10)), "vlan=20: not in vlan 10"),
        (Finding::Learning(mac, WouldLearn::New), "52:54:00:00:00:01 would be learned"),
        (Finding::Destination(mac, Place::Behind(id(1))), "52:54:00:00:00:01 is behind vm1"),
        (
            Finding::Storm(StormTokens::Spent { rate: 9 }),
            "over 9 frames per second like this to all",
        ),
        (
            Finding::PassedOver { wait_ns: 1_500_000 },
            "its memory made a worker sleep: it is passed over for 1.5 ms",
        ),
        (
            Finding::ToLimit { wait_ns: 1_000_000_000 },
            "no tokens: nothing gets there for a second or more",
        ),
        (
            Finding::Delivery { tags, left, full: true },
            "service tag 100, tag 7, 20 Mbit left, but it is full at present",
        ),
    ] {
        assert_eq!(super::sentence::finding(&finding, &known), said);
    }
}
