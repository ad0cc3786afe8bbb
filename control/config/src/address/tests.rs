use std::time::Duration;

use proptest::prelude::*;
use vmlan_frame::Mac;

use super::*;

/// Something like an address.
const STRANGE_ADDRESS: &str = concat!(
    r"(vhost-user|vfio-user|tap|packet|xdp|stream|pcap)?:?[ -~,=\n]{0,24}",
    r"((,,?)(queues|mode|group|ports|mac|connect|poll_idle|irq_rate_max|macs|ips|trunk|vlan|",
    r"native|reach|uplink|to_rate|from_frames|watch)=?[0-9a-zGM+:,./-]{0,18}){0,3}"
);

/// Something like a configuration file.
const STRANGE_FILE: &str = concat!(
    r#"(\[switch\]\n)?(workers|spin|api)?( = )?[0-9'"]{0,6}\n?"#,
    r"(\[port\.?[a-z]?\]?\n)?[ -~\n]{0,40}"
);

proptest! {
    /// Whatever is typed is refused in one line, or means the same when it is written down and read
    /// again.
    #[test]
    fn no_text_is_too_strange(text in STRANGE_ADDRESS) {
        match text.parse::<Address>() {
            Ok(address) => prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address)),
            Err(e) => prop_assert!(!e.to_string().is_empty()),
        }
    }

    /// The file's parser takes any text without a panic.
    #[test]
    fn no_file_is_too_strange(text in STRANGE_FILE) {
        if let Err(e) = crate::file::Config::parse(&text, std::path::Path::new("f")) {
            prop_assert!(!e.to_string().is_empty());
        }
    }
}

proptest! {
    /// Every good value means the same when it is written down and read again.
    #[test]
    fn amounts_go_both_ways(
        rate in 64_000u64..=400_000_000_000,
        frames in 1u64..=1_000_000_000,
        us in 100u64..=1_000_000,
    ) {
        let kbit = Thousandths(rate);
        let given = format!("tap:t,from_burst={us}us,from_frames={frames},from_rate={kbit}kbit");
        let address = ok(&given);
        let limit = address.policy().from.own;
        prop_assert_eq!((limit.rate, limit.frames), (Some(rate), Some(frames)));
        prop_assert_eq!(limit.burst, Duration::from_micros(us));
        prop_assert_eq!(ok(&address.to_string()), address);
    }

    #[test]
    fn lists_go_both_ways(
        vids in prop::collection::btree_set(1u16..=4094, 1..40),
        macs in prop::collection::btree_set(1u64..1 << 40, 1..9),
        ips in prop::collection::btree_set((any::<u32>(), 1u8..=32), 1..9),
    ) {
        let joined = |words: Vec<String>| words.join("+");
        let v = joined(vids.iter().rev().map(u16::to_string).collect());
        let m = joined(macs.iter().map(|m| Mac::from_bits(*m).to_string()).collect());
        let net = |(ip, bits): &(u32, u8)| {
            let ip = std::net::Ipv4Addr::from_bits(ip & (u32::MAX << (32 - bits)));
            format!("{ip}/{bits}")
        };
        let nets: std::collections::BTreeSet<_> = ips.iter().map(net).collect();
        let i = joined(nets.into_iter().collect());
        let address = ok(&format!("tap:t,ips={i},macs={m},trunk={v}"));
        let VlanRule::Trunk(Some(list), None) = &address.policy().vlan else { panic!("{address}") };
        prop_assert_eq!(list.iter().collect::<Vec<_>>(), vids.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(ok(&address.to_string()), address);
    }
}

/// A number of thousandths, with a decimal point.
struct Thousandths(u64);

impl std::fmt::Display for Thousandths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

fn ok(text: &str) -> Address {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn an_address_says_what_it_says() {
    let a =
        ok("vhost-user:/run/vm1.sock,queues=2,mode=0660,group=kvm,connect,mac=52:54:00:00:00:01");
    assert_eq!((a.kind(), a.place()), (Kind::VhostUser, "/run/vm1.sock"));
    let Spec::VhostUser(spec) = a.spec() else { panic!("{a}") };
    assert_eq!((spec.queues, spec.mode, spec.mtu), (2, Some(0o660), None));
    assert_eq!((spec.group.as_deref(), spec.connect), (Some("kvm"), true));
    assert_eq!(spec.mac.map(|m| m.to_string()).as_deref(), Some("52:54:00:00:00:01"));
    let n = ok("vfio-user:/n,doorbell=mapped,poll_idle=1500us,irq_rate_max=0,link=up");
    let Spec::VfioUser(spec) = n.spec() else { panic!("{n}") };
    assert_eq!((spec.doorbell, spec.link, spec.model), (Doorbell::Mapped, true, Model::E1000));
    assert_eq!(spec.poll_idle, Some(Duration::from_micros(1500)));
    let Spec::VfioUser(spec) = ok("vfio-user:/n,model=rtl8139,plus=off").spec().clone() else {
        panic!("of another kind");
    };
    assert_eq!(spec.model, Model::Rtl8139 { plus: false });
    for (text, canonical) in
        [("1000ms", "1s"), ("1000us", "1ms"), ("01ms", "1ms"), ("50us", "50us")]
    {
        let address = ok(&format!("vfio-user:/n,poll_idle={text}"));
        assert_eq!(address.to_string(), format!("vfio-user:/n,poll_idle={canonical}"));
    }
    let ports = |text: &str| match ok(text).spec() {
        Spec::Pcap(pcap) => pcap.ports.as_ref().map(Vec::len),
        other => panic!("{other:?}"),
    };
    assert_eq!(ports("pcap:out.pcapng,ports=vm1+vm2"), Some(2));
    assert_eq!(ports("pcap:x"), None);
}

#[test]
fn text_and_address_go_both_ways() {
    for text in [
        "vhost-user:/run/vm1.sock",
        "vhost-user:/run/a,,b.sock,connect,group=a=b,mode=0600,queues=4",
        "tap:vmlan0,queues=2",
        "packet:eth1,announce=off,mtu=9000,trunk=all",
        "xdp:eth1,mtu=1400,queues=4,zerocopy=off",
        "xdp:eth1,zerocopy",
        "vfio-user:/run/vm2.sock",
        "vfio-user:/r,doorbell=mapped,irq_rate_max=8000,link=down,model=e1000,poll_idle=250us",
        "vhost-user:/r,memory=disk",
        "vfio-user:/r,csb,memory=ram,model=e1000",
        "vfio-user:/r,doorbell=mapped,link=down,model=e1000e,poll_idle=250us",
        "vfio-user:/r,csb,irq_rate_max=8000,model=r8169",
        "vfio-user:/r,csb,model=rtl8139,plus",
        "vfio-user:/r,doorbell=trapped,model=rtl8139,plus=off",
        "vfio-user:/r,csb=off,irq_rate_max=8000,link=down,model=vmxnet3",
        "stream:/run/passt.sock,connect",
        "pcap:/tmp/o,,,,ut.pcapng,ports=a+b",
        "tap:t,dhcp_guard,from_burst=10ms,from_frames=10k,from_limit=gold,from_rate=2.5Gbit,\
         ips=10.0.0.0/8+10.0.0.1+fd00::/64",
        "tap:t,macs=52:54:00:00:00:01+52:54:00:00:00:02,member=db+web,native=5,\
         reach=none,to_rate=100.000001Mbit,trunk=1-3+10-20",
        "tap:t,broadcast_frames=1500,ips=none,macs=first,multicast_frames=1M,qinq=4094,\
         ra_guard,reach=all,unknown_frames=1,uplink=up0,weight=1000",
        "stream:/run/up.sock,mtu=1400",
        "tap:t,mtu=1450",
        "tap:t,announce=off,multicast=joined,reserved=pass,steer=hash:src,team=web,unknown=drop",
        "tap:t,ips=leased,qinq_trunk=all,to_rate=64kbit,uplink=any",
        "tap:t,to_limit=gold,watch=a+b,watch_vlan=7",
    ] {
        assert_eq!(ok(text).to_string(), text);
    }
    assert_eq!(ok("vhost-user:/a,,b").place(), "/a,b");
    assert_eq!(ok("stream:/run/x,connect=off").to_string(), "stream:/run/x,connect=off");
}

/// What is written, and what is said of it.
const WRONG: &[(&str, &str)] = &[
    ("", "is not a valid address"),
    ("tap", "write KIND:PLACE"),
    ("vhostuser:/a", "did you mean 'vhost-user'?"),
    ("usb:/a", "valid: vhost-user, vfio-user, tap, packet, xdp, stream, pcap"),
    ("tap:", "name of a network interface"),
    ("tap:a-name-that-is-too-long", "1 to 15"),
    ("tap:a/b", "1 to 15"),
    ("tap:tap%d", "1 to 15"),
    ("packet:eth:1", "name of a network interface"),
    ("xdp:eth1,queues=65", "a number from 1 to 64"),
    ("packet:eth1,queues=2", "'queues' is not a key of packet"),
    ("vhost-user:", "path of a UNIX socket"),
    ("vhost-user:/a,queue=2", "did you mean 'queues'?"),
    ("vhost-user:/a,", "'' is not a key"),
    ("vhost-user:/a,queues", "queues has no value"),
    ("vhost-user:/a,queues=0", "1 to 64"),
    ("vhost-user:/a,queues=+2", "1 to 64"),
    ("vhost-user:/a,queues=99999999999999", "1 to 64"),
    ("vhost-user:/a,queues=2,queues=2", "given twice"),
    ("vhost-user:/a,mode=9", "octal"),
    ("vhost-user:/a,mode=4755", "octal"),
    ("vhost-user:/a,mac=01:00:5e:00:00:01", "MAC address of one card"),
    ("vhost-user:/a,mac=00:00:00:00:00:00", "MAC address of one card"),
    ("vhost-user:/a,connect=yes", "on or off"),
    ("vhost-user:/a,group=", "some text"),
    ("tap:t0,model=e1000", "is not a key of tap"),
    ("pcap:x,ports=a++b", "joined by '+'"),
    ("viofuser:/a", "did you mean 'vfio-user'?"),
    ("vfio-user:", "path of a UNIX socket"),
    (
        "vfio-user:/a,model=ne2000",
        "model=ne2000: e1000, e1000e, r8169, rtl8139 or vmxnet3 is wanted",
    ),
    ("vfio-user:/a,model", "write model=VALUE, e1000, e1000e, r8169, rtl8139 or vmxnet3"),
    ("vfio-user:/a,plus=yes,model=rtl8139", "plus=yes: on or off is wanted"),
    ("vfio-user:/a,plus=off", "plus=off wants model=rtl8139 beside it: add it, or leave plus out"),
    ("vfio-user:/a,plus,model=r8169", "plus=on wants model=rtl8139 beside it"),
    ("tap:t,plus=off", "'plus' is not a key of tap"),
    (
        "vfio-user:/a,model=r8169,doorbell=mapped",
        "doorbell=mapped does not go with model=r8169: the switch must be told of stores to its \
         interrupt status and commands, which are in one page",
    ),
    (
        "vfio-user:/a,model=vmxnet3,csb",
        "csb=on does not go with model=vmxnet3, which has shared words of its own",
    ),
    (
        "vfio-user:/a,csb,model=e1000e",
        "does not go with model=e1000e, whose vectors it has no word",
    ),
    ("vfio-user:/a,model=vmxnet3,plus=off", "plus=off wants model=rtl8139 beside it"),
    (
        "vfio-user:/a,model=r8169,poll_idle=1ms",
        "poll_idle=1ms does not go with model=r8169: it is for mapped doorbells",
    ),
    ("vfio-user:/a,modl=r8169", "'modl' is not a key of vfio-user: did you mean 'model'?"),
    ("vfio-user:/a,model=rtl8139,doorbell=mapped", "leave it out, or write model=e1000"),
    (
        "vfio-user:/a,model=rtl8139,plus=off,csb",
        "csb=on does not go with plus=off: a plain RTL8139 has no descriptor rings",
    ),
    ("vfio-user:/a,doorbell=polled", "doorbell=polled: trapped or mapped is wanted"),
    ("vfio-user:/a,link=off", "link=off: up or down is wanted"),
    ("vfio-user:/a,poll_idle=1", "poll_idle=1: a time from 50us to 1s, like 1ms, is wanted"),
    ("vfio-user:/a,poll_idle=49us", "50us to 1s"),
    ("vfio-user:/a,poll_idle=1001ms", "50us to 1s"),
    ("vfio-user:/a,poll_idle=+1ms", "50us to 1s"),
    ("vfio-user:/a,poll_idle=ms", "50us to 1s"),
    ("vfio-user:/a,poll_idle=1.5ms", "50us to 1s"),
    ("vfio-user:/a,poll_idle=1µs", "50us to 1s"),
    ("vfio-user:/a,irq_rate_max=1000001", "a number from 0 to 1000000"),
    ("vfio-user:/a,irq_rate_max=-1", "a number from 0 to 1000000"),
    ("vfio-user:/a,mac=03:00:00:00:00:01", "MAC address of one card"),
    ("vfio-user:/a,csb,doorbell=mapped", "csb=on does not go with doorbell=mapped"),
    ("vfio-user:/a,queues=2", "is not a key of vfio-user"),
    ("vfio-user:/a,connect", "is not a key of vfio-user"),
    ("vhost-user:/a,link=down", "is not a key of vhost-user"),
    ("pcap:/a,macs=first", "'macs' is not a key of pcap"),
    ("tap:t,to_rat=1Mbit", "did you mean 'to_rate'?"),
    (
        "tap:t,to_rate=0kbit",
        "to_rate=0kbit: a rate from 64kbit to 400Gbit, like 2.5Gbit, is wanted",
    ),
    ("tap:t,to_rate=0", "64kbit to 400Gbit"),
    ("tap:t,to_rate=63.999kbit", "64kbit to 400Gbit"),
    ("tap:t,to_rate=400.000000001Gbit", "64kbit to 400Gbit"),
    ("tap:t,to_rate=1000000", "64kbit to 400Gbit"),
    ("tap:t,to_rate=1.Mbit", "64kbit to 400Gbit"),
    ("tap:t,to_rate=1.0000001Mbit", "64kbit to 400Gbit"),
    ("tap:t,to_rate=1e3Mbit", "64kbit to 400Gbit"),
    ("tap:t,to_rate=999999999999999999999Gbit", "64kbit to 400Gbit"),
    ("tap:t,from_frames=0", "from_frames=0: a number from 1 to 1G, like 10k, is wanted"),
    ("tap:t,from_frames=1.1G", "1 to 1G"),
    ("tap:t,from_frames=0.5", "1 to 1G"),
    ("tap:t,from_rate=1Mbit,from_burst=99us", "a time from 100us to 1s"),
    ("tap:t,from_burst=5ms", "from_burst=5ms wants from_rate or from_frames beside it"),
    ("tap:t,to_burst=5ms,from_rate=1Mbit", "to_burst=5ms wants to_rate or to_frames beside it"),
    ("tap:t,weight=0", "weight=0: a number from 1 to 1000"),
    ("tap:t,weight=1001", "1 to 1000"),
    ("tap:t,vlan=0", "vlan=0: a number from 1 to 4094"),
    ("tap:t,vlan=4095", "1 to 4094"),
    ("tap:t,trunk=0", "trunk=0: all, or VLANs from 1 to 4094, like 1+10-20, is wanted"),
    ("tap:t,trunk=1-4095", "1 to 4094"),
    ("tap:t,trunk=20-10", "1 to 4094"),
    ("tap:t,trunk=1++2", "1 to 4094"),
    ("tap:t,trunk=5+1-3+5", "trunk=5+1-3+5: VID 5 is given twice: leave one out"),
    ("tap:t,trunk=1-10+7", "VID 7 is given twice"),
    ("tap:t,vlan=5,vlan=6", "key 'vlan' is given twice"),
    ("tap:t,vlan=5,trunk=1", "vlan=5 does not go with trunk=1: leave one out"),
    ("tap:t,qinq=5,qinq_trunk=all", "qinq=5 does not go with qinq_trunk=all"),
    ("tap:t,trunk=1,qinq=5", "trunk=1 does not go with qinq=5"),
    ("tap:t,native=1", "native=1 wants trunk=VLANS beside it: add it, or leave native out"),
    ("tap:t,native=1,vlan=5", "native=1 wants trunk=VLANS"),
    ("tap:t,macs=", "macs=: any, first, or MAC addresses of cards"),
    ("tap:t,macs=any+first", "any, first, or MAC addresses"),
    ("tap:t,macs=01:00:5e:00:00:01", "MAC addresses of cards"),
    (
        "tap:t,macs=52:54:00:00:00:01+52:54:00:00:00:02+52:54:00:00:00:01",
        "52:54:00:00:00:01 is given twice",
    ),
    ("tap:t,ips=10.0.0.1+10.0.0.1", "10.0.0.1 is given twice"),
    ("tap:t,ips=10.0.0.1/33", "addresses and prefixes"),
    ("tap:t,ips=10.0.0.1/24", "no bits behind the prefix"),
    ("tap:t,ips=fd00::1/+10.0.0.1", "addresses and prefixes"),
    ("tap:t,ips=any+10.0.0.1", "addresses and prefixes"),
    ("tap:t,ips=leased+10.0.0.1", "addresses and prefixes"),
    ("tap:t,member=a b", "names of groups joined by '+'"),
    ("tap:t,member=all", "names of groups joined by '+'"),
    ("tap:t,member=a+a", "a is given twice"),
    ("tap:t,reach=none+a", "all, none, or names of groups"),
    ("tap:t,uplink=", "any, or the name of a port"),
    ("tap:t,from_limit=any", "the name of a limit"),
    ("tap:t,dhcp_guard=yes", "on or off"),
    ("tap:t,unknown=pass", "flood or drop"),
    ("tap:t,team=any", "the name of a team"),
    ("tap:t,steer=ip", "steer=ip wants team=NAME beside it"),
    ("tap:t,team=a,steer=hash:mac", "ip, or hash: and some of src+dst+ports"),
    ("tap:t,team=a,watch=all", "watch=all does not go with team=a"),
    ("tap:t,watch=all,vlan=5", "watch=all does not go with vlan=5: leave one out"),
    ("tap:t,watch_vlan=5,macs=first", "watch_vlan=5 does not go with macs=first"),
];

#[test]
fn a_wrong_address_names_the_value_and_says_what_to_do() {
    for (text, said) in WRONG.iter().copied() {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
        assert!(!error.contains('\n'));
    }
    let long = format!("vhost-user:/{}", "x".repeat(SOCKET_PATH));
    assert!(long.parse::<Address>().unwrap_err().to_string().contains("107"));
}

#[test]
fn names_are_plain_words() {
    for good in ["vm1", "a", "web-01.example_x", &"x".repeat(32)] {
        assert!(good.parse::<PortName>().is_ok(), "{good}");
    }
    for bad in ["", "-x", ".x", "a b", "a/b", "a\n", "é", &"x".repeat(33)] {
        assert!(bad.parse::<PortName>().is_err(), "{bad}");
    }
    let named: NamedAddress = "vm1=stream:/run/a=b".parse().unwrap();
    assert_eq!((named.name.as_str(), named.address.place()), ("vm1", "/run/a=b"));
    let error = "vhost-user:/run/x,queues=2".parse::<NamedAddress>().unwrap_err();
    assert!(error.to_string().contains("write NAME=KIND:PLACE"), "{error}");
}

#[test]
fn what_a_change_touches_is_known() {
    let a = ok("vhost-user:/run/a,mode=0600");
    let with = |address: &Address, keys: &[(&str, &str)]| {
        let mut draft = address.draft();
        keys.iter().for_each(|(key, value)| draft.replace(key, value).unwrap());
        draft.check().unwrap()
    };
    let b = with(&a, &[("mode", "0660"), ("to_rate", "1Mbit")]);
    assert_eq!(a.differences(&b), Some(vec!["mode", "to_rate"]));
    assert!(a.differs_only_live(&b));
    let b = with(&b, &[("queues", "2")]);
    assert!(!a.differs_only_live(&b));
    let b = with(&b, &[("queues", ""), ("mode", ""), ("to_rate", ""), ("mtu", "")]);
    assert_eq!(b, ok("vhost-user:/run/a"));
    assert_eq!(a.differences(&ok("vhost-user:/run/b")), None);
}

/// Addresses of IPv6 are made by guests themselves: none can be kept.
#[test]
fn the_address_that_is_kept_is_one_of_ipv4() {
    let read = |ip: &str| format!("vhost-user:/v,ip={ip}").parse::<Address>();
    assert_eq!(read("10.77.0.20").unwrap().reserved(), Some([10, 77, 0, 20].into()));
    for ip in ["fd00::5", "::ffff:10.77.0.20", "10.77.0", "10.77.0.20/24"] {
        let error = read(ip).unwrap_err().to_string();
        assert!(error.contains(ip) && error.contains("an IPv4 address"), "{error}");
    }
}
