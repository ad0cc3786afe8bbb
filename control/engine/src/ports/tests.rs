use std::path::Path;

use vmlan_attach::fuzz::Peer;
use vmlan_frame::Port;
use vmlan_switch::policy::{Macs, Policy, Vlan};
use vmlan_switch::{Options, Switch};

use super::*;
use crate::info::{Applied, FdbLine};
use vmlan_config::address::LimitTable;
use vmlan_config::file::Config;
use vmlan_config::settings::Plan;

mod announce;
mod events;
mod hand_over;
mod lost;
mod pins;

/// A switch with ports on sockets in a directory of its own.
struct Rig {
    dir: tempfile::TempDir,
    ports: Ports,
}

fn rig() -> Rig {
    let switch = Switch::new(Options::default());
    let workers = Workers::start(1, Duration::ZERO, switch.clone()).unwrap();
    Rig { dir: tempfile::tempdir().unwrap(), ports: Ports::new(workers, switch, || {}) }
}

impl Rig {
    /// Applies a file in which each line `NAME KIND KEYS` is a port on the socket NAME, and all
    /// others stand as they are.
    fn apply(&mut self, text: &str) -> Result<Applied, String> {
        self.run(text, false)
    }

    fn run(&mut self, text: &str, dry_run: bool) -> Result<Applied, String> {
        let mut file = String::new();
        for line in text.lines().map(str::trim) {
            match line.split_once(' ').filter(|_| !line.contains(" = ")) {
                Some((name, address)) => {
                    let address = address.replace('@', self.dir.path().to_str().unwrap());
                    file += &format!("[port.{name}]\naddress = '{address}'\n");
                }
                None => file += &format!("{line}\n"),
            }
        }
        let mut config = Config::parse(&file, Path::new("f")).map_err(|e| e.to_string())?;
        let plan = Plan::new(&mut config, Vec::new());
        plan.check(|p| !self.ports.has(p)).map_err(|wrong| wrong.placed(&config))?;
        self.ports.apply(&plan, dry_run).map_err(|failed| failed.refusal.message)
    }

    fn entry(&self, name: &str) -> &Entry {
        self.ports.entries.iter().find(|e| e.name.as_str() == name).unwrap()
    }

    /// As the workers have it.
    fn policy(&self, name: &str) -> Arc<Policy> {
        let id = self.entry(name).id.unwrap();
        self.ports.workers.table().get(id).unwrap().policy.clone()
    }

    fn port(&self, name: &str) -> Arc<dyn Port> {
        self.entry(name).opened.port()
    }

    fn addresses(&self) -> Vec<String> {
        let here = format!("{}/", self.dir.path().to_str().unwrap());
        let line = |p: PortInfo| format!("{}={}", p.name, p.address.replace(&here, ""));
        self.ports.list().into_iter().map(line).collect()
    }

    fn set(&mut self, name: &str, keys: &[(&str, &str)]) -> Result<PortInfo, String> {
        let keys: Vec<_> = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.ports.set(&name.parse().unwrap(), &keys).map_err(|r| r.message)
    }

    fn pins(&self) -> Vec<String> {
        let lines = self.ports.fdb().into_iter().filter(|line| line.r#static);
        lines.map(|line| format!("{} {}", line.mac, line.port)).collect()
    }
}

fn names(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

const THREE: &str = "a stream:@/a\nb stream:@/b,to_rate=1Mbit\nc vhost-user:@/c";

#[test]
fn a_file_is_put_into_force_by_difference() {
    let mut rig = rig();
    let first = rig.apply(THREE).unwrap();
    assert_eq!(names(&first.added), ["a", "b", "c"]);
    let (a, b, c) = (rig.port("a"), rig.port("b"), rig.port("c"));
    let (pa, pb) = (rig.policy("a"), rig.policy("b"));
    let again = rig.apply(THREE).unwrap();
    assert!(again.is_nothing());
    assert_eq!(names(&again.unchanged), ["a", "b", "c"]);

    let text = "a stream:@/a\nb stream:@/b,to_rate=2Mbit\nd stream:@/d";
    let dry = rig.run(text, true).unwrap();
    assert_eq!(rig.addresses().len(), 3, "only told");
    let done = rig.apply(text).unwrap();
    assert_eq!(Applied { dry_run: false, generation: dry.generation + 1, ..dry }, done);
    assert_eq!((names(&done.added), names(&done.removed)), (vec!["d"], vec!["c"]));
    assert_eq!((names(&done.changed), names(&done.unchanged)), (vec!["b"], vec!["a"]));
    assert!(done.reopened.is_empty());
    assert!(Arc::ptr_eq(&a, &rig.port("a")) && Arc::ptr_eq(&b, &rig.port("b")));
    assert!(Arc::ptr_eq(&pa, &rig.policy("a")), "not even its policy is touched");
    let counters = |p: &Policy| p.to.own.as_ref().unwrap().counters.clone();
    assert!(Arc::ptr_eq(&counters(&pb), &counters(&rig.policy("b"))), "it counts on");
    assert!(!rig.dir.path().join("c").exists());
    drop(c);
    let done = rig.apply("a stream:@/a2\nb stream:@/b,to_rate=2Mbit\nd stream:@/d").unwrap();
    assert_eq!((names(&done.changed), names(&done.reopened)), (vec!["a"], vec!["a"]));
    assert_eq!(rig.addresses(), ["a=stream:a2", "b=stream:b,to_rate=2Mbit", "d=stream:d"]);
}

#[test]
fn places_and_names_may_change_hands() {
    let mut rig = rig();
    rig.apply(THREE).unwrap();
    let done = rig.apply("a vhost-user:@/c\nb stream:@/a\nd stream:@/b").unwrap();
    assert_eq!(names(&done.reopened), ["a", "b"]);
    assert_eq!((names(&done.added), names(&done.removed)), (vec!["d"], vec!["c"]));
    assert_eq!(rig.addresses(), ["a=vhost-user:c", "b=stream:a", "d=stream:b"]);
    assert_eq!(std::fs::read_dir(rig.dir.path()).unwrap().count(), 3);
}

#[test]
fn what_fails_leaves_everything_as_it_was() {
    let mut rig = rig();
    rig.apply(&format!(
        "{THREE}\nmac stream:@/m,macs=52:54:00:00:00:01\n[limit.gold]\nrate = '1Mbit'\n"
    ))
    .unwrap();
    std::fs::write(rig.dir.path().join("file"), "").unwrap();
    let before = (rig.addresses(), rig.pins(), rig.ports.limits());
    let (a, pa) = (rig.port("a"), rig.policy("a"));
    let again = "; closed, and opened again as they were: b, c";
    let unchanged = "; nothing was changed";
    for (text, said, end) in [
        // The last of many things fails.
        (
            "a stream:@/a,weight=7\nb stream:@/c\nc stream:@/b\nx \
                stream:@/x,macs=52:54:00:00:00:01\nz stream:@/none/z",
            "port z: ",
            again,
        ),
        // What only opening finds is found before the port that runs is closed.
        ("a stream:@/a\nb vhost-user:@/b,group=no-such-group-here", "no-such-group", unchanged),
        ("c vhost-user:@/none/c", "none`", unchanged),
        ("c vhost-user:@/file", "is not a socket", unchanged),
        ("a stream:@/a,uplink=b", "there is no such port", ""),
        ("a stream:@/a,reach=web", "f:2: port a: reach=web: there is no such group", ""),
        ("a stream:@/a,weight=0", "f:2: port a: weight=0", ""),
        ("a stream:@/a\nb stream:@/a", "is the place of port a already", ""),
    ] {
        let (b, c) = (rig.port("b"), rig.port("c"));
        let error = rig.apply(text).unwrap_err();
        assert!(error.contains(said) && error.ends_with(end), "{error}");
        let are_same = Arc::ptr_eq(&b, &rig.port("b")) && Arc::ptr_eq(&c, &rig.port("c"));
        assert_eq!(are_same, end != again, "{text}");
        assert!(!error.contains("not all is as it was"), "{error}");
        assert_eq!((rig.addresses(), rig.pins(), rig.ports.limits()), before, "{text}");
        assert!(Arc::ptr_eq(&a, &rig.port("a")) && rig.policy("a").weight == pa.weight);
        assert!(rig.policy("b").to.own.is_some(), "what was opened again has its policy");
    }
    let c = rig.port("c");
    let error = rig.set("c", &[("group", "no-such-group-here")]).unwrap_err();
    assert!(error.contains("no-such-group-here") && Arc::ptr_eq(&c, &rig.port("c")), "{error}");
    assert_eq!(std::fs::read_dir(rig.dir.path()).unwrap().count(), 5);
}

#[test]
fn words_become_policies() {
    let mut rig = rig();
    rig.apply(
        "a stream:@/a,macs=52:54:00:00:00:01,ips=10.0.0.1,dhcp_guard,member=web,reach=db,uplink=up,\
         weight=3,vlan=5,broadcast_frames=10
         b stream:@/b,macs=first,unknown=drop,reserved=pass,multicast=joined,\
         member=db,reach=none,trunk=1-3,native=9,\
         from_limit=gold,to_limit=gold
         up stream:@/up,from_rate=2Gbit,from_burst=10ms
         w stream:@/w,watch=a+b
         [limit.gold]
         rate = '1Gbit'",
    )
    .unwrap();
    let (a, b, up, w) = (rig.policy("a"), rig.policy("b"), rig.policy("up"), rig.policy("w"));
    assert!(
        matches!(&a.source_check.macs, Macs::Listed(l) if l.len() == 1)
            && a.source_check.dhcp_guard
    );
    assert!(matches!(b.source_check.macs, Macs::First(_)) && !b.source_check.ra_guard);
    assert_eq!(a.source_check.ips.as_ref().map(|l| l[0].bits), Some(32));
    assert!(!a.drops_unknown && !a.passes_reserved && !a.joined_only);
    assert!(b.drops_unknown && b.passes_reserved && b.joined_only);
    assert_eq!(a.reach.groups, Some(b.reach.member));
    assert_ne!(a.reach.member, b.reach.member);
    assert_eq!(b.reach.groups.map(|g| g.0), Some(0));
    assert_eq!((a.reach.uplink, b.reach.uplink), (rig.entry("up").id, None));
    assert!(up.uplink.is_some() && a.uplink.is_none());
    assert_eq!((a.weight, b.weight, a.vlan.clone()), (3, 1, Vlan::Access(5)));
    assert!(matches!(&b.vlan, Vlan::Trunk { tagged, native: Some(9) } if tagged.has(3)));
    assert_eq!(a.storm.broadcast.as_ref().map(|s| s.rate().per_second), Some(10));
    let gold = b.from.shared.as_ref().unwrap();
    assert!(Arc::ptr_eq(gold, b.to.shared.as_ref().unwrap()) && b.from.own.is_none());
    let rate = up.from.own.as_ref().unwrap().bits.as_ref().unwrap().rate();
    assert_eq!((rate.per_second, rate.burst), (2_000_000_000, Duration::from_millis(10)));
    assert!(w.monitor && !a.monitor);
    assert!(w.watch.as_ref().unwrap().ports.has(rig.entry("a").id.unwrap()));
    assert_eq!(rig.ports.limits()[0].ports, ["b"]);
}

/// A peer that is connected to the stream port on the socket `name`.
fn stream_peer(rig: &Rig, name: &str) -> std::os::unix::net::UnixStream {
    let peer = std::os::unix::net::UnixStream::connect(rig.dir.path().join(name)).unwrap();
    while !rig.port(name).is_up() {
        std::thread::yield_now();
    }
    peer
}

#[test]
fn a_sender_is_told_the_mtu_of_a_link() {
    use std::io::{Read, Write};
    let mut rig = rig();
    rig.apply("a stream:@/a\nup stream:@/up,mtu=1400").unwrap();
    let (mut a, mut up) = (stream_peer(&rig, "a"), stream_peer(&rig, "up"));
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 5, 220, 0, 0, 0x40, 0];
    frame.extend([64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 8, 0, 0, 0]);
    frame.resize(1514, 0);
    let send = |peer: &mut std::os::unix::net::UnixStream, frame: &[u8]| {
        let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
        peer.write_all(&[&len[..], frame].concat()).unwrap();
    };
    // Of a packet that floods, somebody else may be the one it is for: nobody is told.
    let hello = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &[0; 48]].concat();
    send(&mut up, &hello);
    a.read_exact(&mut [0; 4 + 60]).unwrap();
    send(&mut a, &frame);
    let mut answer = [0; 4 + 42];
    a.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[38..40], &answer[44..46]), (&[3, 4][..], &[5, 120][..]), "1400");
    assert_eq!(rig.port("up").counters().output.dropped(vmlan_frame::Reason::TooLong), 1);
    rig.set("up", &[("mtu", "1500")]).unwrap();
    send(&mut a, &frame);
    let mut passed = [0; 4 + 1514];
    up.read_exact(&mut passed).unwrap();
    assert_eq!(passed[4..], frame, "changed while it runs");
}

#[test]
fn the_narrowest_link_that_a_guest_may_send_to_is_its_mtu() {
    let mut rig = rig();
    rig.apply(
        "a vhost-user:@/a\nb vfio-user:@/b\nup stream:@/up,mtu=1400\nout stream:@/o,mtu=1450",
    )
    .unwrap();
    let mtu = |rig: &Rig, name: &str| rig.ports.get(&name.parse().unwrap()).unwrap().mtu;
    assert_eq!([mtu(&rig, "a"), mtu(&rig, "b")], [Some(1400); 2]);
    rig.set("b", &[("uplink", "out")]).unwrap();
    rig.set("a", &[("uplink", "up")]).unwrap();
    assert_eq!([mtu(&rig, "a"), mtu(&rig, "b")], [Some(1400), Some(1450)]);
    rig.set("a", &[("vlan", "10")]).unwrap();
    assert_eq!(mtu(&rig, "a"), None, "in a VLAN that no link carries");
    rig.set("up", &[("trunk", "9+10")]).unwrap();
    assert_eq!(mtu(&rig, "a"), Some(1400));
    rig.set("a", &[("mtu", "1500")]).unwrap();
    assert_eq!(mtu(&rig, "a"), Some(1500), "its own goes first");
    rig.set("out", &[("mtu", "1500")]).unwrap();
    assert_eq!(mtu(&rig, "b"), None, "as any guest takes");
}

#[test]
fn members_of_a_team_share_it_and_an_address() {
    let mut rig = rig();
    let text = "a stream:@/a,macs=52:54:00:00:00:01,team=web
                b stream:@/b,macs=52:54:00:00:00:01,team=web,weight=3
                c stream:@/c";
    rig.apply(text).unwrap();
    let team = |rig: &Rig, port| rig.policy(port).team.clone();
    let web = team(&rig, "a").unwrap();
    assert!(Arc::ptr_eq(&web, &team(&rig, "b").unwrap()) && team(&rig, "c").is_none());
    assert_eq!(rig.pins(), ["52:54:00:00:00:01 a"]);
    rig.apply(&text.replace("c stream:@/c", "c stream:@/c,weight=2")).unwrap();
    assert!(Arc::ptr_eq(&web, &team(&rig, "a").unwrap()), "others' changes do not matter");
    rig.apply(&text.replace("01,team=web\n", "02,team=web\n")).unwrap();
    let mut pins = rig.pins();
    pins.sort();
    assert_eq!(pins, ["52:54:00:00:00:01 b", "52:54:00:00:00:02 a"], "the next has it");
    for (bad, said) in [
        ("b stream:@/b,team=web,steer=ip,ips=10.0.0.1", "port a of the same team has steer=hash:"),
        ("b stream:@/b,team=db,steer=ip", "steer=ip wants ips="),
        ("b stream:@/b,macs=52:54:00:00:00:02,team=db", "port a lists it too"),
    ] {
        let text = format!("a stream:@/a,macs=52:54:00:00:00:02,team=web\n{bad}");
        let error = rig.apply(&text).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_change_touches_what_it_concerns_and_goes_on_with_the_rest() {
    let mut rig = rig();
    rig.apply(
        "a stream:@/a,uplink=up,from_limit=gold,from_rate=1Mbit,macs=first\nb \
            stream:@/b,from_limit=gold
         up stream:@/up
         [limit.gold]
         rate = '1Gbit'",
    )
    .unwrap();
    let old = ["a", "b", "up"].map(|name| rig.policy(name));
    let table = LimitTable::new(&[("rate".to_owned(), "2Gbit".to_owned())]).unwrap();
    rig.ports.set_limit(&"gold".parse().unwrap(), table).unwrap();
    let new = ["a", "b", "up"].map(|name| rig.policy(name));
    assert!(Arc::ptr_eq(&old[2], &new[2]), "it has no such limit");
    let [before, after] = [&old, &new].map(|p| p[0].from.shared.clone().unwrap());
    assert!(Arc::ptr_eq(&before.counters, &after.counters) && !Arc::ptr_eq(&before, &after));
    assert!(Arc::ptr_eq(&after, new[1].from.shared.as_ref().unwrap()));
    let own = |p: &Policy| p.from.own.clone().unwrap();
    assert!(Arc::ptr_eq(&own(&old[0]), &own(&new[0])), "the very same bucket");

    rig.set("a", &[("weight", "5"), ("from_rate", "")]).unwrap();
    assert!(rig.policy("a").from.own.is_none());
    assert!(Arc::ptr_eq(&new[1], &rig.policy("b")));
    // A port that is opened again has its policy again, and its limiter counts on.
    rig.set("a", &[("from_rate", "3Mbit")]).unwrap();
    let limiter = own(&rig.policy("a"));
    rig.set("a", &[("connect", "on")]).unwrap();
    let policy = rig.policy("a");
    assert!(
        Arc::ptr_eq(&limiter, &own(&policy)) && matches!(policy.source_check.macs, Macs::First(_))
    );
    assert_eq!(policy.reach.uplink, rig.entry("up").id);
    // The uplink comes again under another number, and everybody knows it.
    rig.set("up", &[("connect", "on")]).unwrap();
    assert_eq!(rig.policy("a").reach.uplink, rig.entry("up").id);
    assert!(rig.policy("up").uplink.is_some());
    let refusal = rig.ports.remove(&"up".parse().unwrap()).unwrap_err();
    assert!(refusal.message.contains("port up: port a has uplink=up and needs it"), "{refusal}");
    rig.set("a", &[("uplink", "")]).unwrap();
    assert!(rig.policy("up").uplink.is_none());
    let refusal = rig.ports.remove_limit(&"gold".parse().unwrap()).unwrap_err();
    assert!(refusal.message.contains("limit gold: a, b use it"), "{refusal}");
    rig.ports.remove(&"up".parse().unwrap()).unwrap();
}

#[test]
fn listed_addresses_are_pinned_in_each_domain_and_move_with_the_list() {
    let mut rig = rig();
    rig.apply("a stream:@/a,macs=52:54:00:00:00:01+52:54:00:00:00:02\nb stream:@/b").unwrap();
    let pins = rig.pins();
    assert_eq!(pins, ["52:54:00:00:00:01 a", "52:54:00:00:00:02 a"]);
    let error = rig.set("b", &[("macs", "52:54:00:00:00:02")]).unwrap_err();
    assert!(error.contains("port b: macs=52:54:00:00:00:02: port a lists it too"), "{error}");
    assert_eq!(rig.pins(), pins);
    let (mac, b): (vmlan_frame::Mac, _) =
        ("52:54:00:00:00:02".parse().unwrap(), "b".parse().unwrap());
    assert!(rig.ports.add_mac(mac, &b, None).unwrap_err().message.contains("port a lists it"));
    assert!(rig.ports.remove_mac(mac, None).unwrap_err().message.contains("port a lists it"));
    assert_eq!(rig.pins(), pins);
    rig.apply("a stream:@/a,macs=52:54:00:00:00:01\nb stream:@/b,macs=52:54:00:00:00:02").unwrap();
    assert_eq!(rig.pins(), ["52:54:00:00:00:01 a", "52:54:00:00:00:02 b"]);
    rig.set("b", &[("trunk", "1+3-4"), ("native", "9")]).unwrap();
    assert_eq!(rig.pins().len(), 1 + 4, "{:?}", rig.pins());
    rig.set("b", &[("trunk", "all"), ("native", "")]).unwrap();
    assert_eq!(rig.pins(), ["52:54:00:00:00:01 a"], "nobody else names a VLAN");
    rig.set("b", &[("trunk", "")]).unwrap();
    rig.set("b", &[("connect", "on")]).unwrap();
    assert_eq!(rig.pins(), ["52:54:00:00:00:01 a", "52:54:00:00:00:02 b"], "pinned again");
    rig.set("a", &[("macs", "first")]).unwrap();
    rig.ports.remove(&"b".parse().unwrap()).unwrap();
    assert_eq!(rig.pins(), [""; 0]);
}

#[test]
fn a_trunk_of_all_vlans_is_pinned_in_those_that_others_name() {
    let mut rig = rig();
    let mac = "52:54:00:00:00:0a";
    let places = |rig: &Rig| -> Vec<_> {
        let lines = rig.ports.fdb().into_iter().filter(|line| line.r#static);
        lines.map(|l| (l.port, l.vlan.or(l.qinq.map(|v| 10_000 + v)).unwrap_or(0))).collect()
    };
    let r = |vids: &[u16]| vids.iter().map(|v| ("r".to_owned(), *v)).collect::<Vec<_>>();
    rig.apply(&format!("r stream:@/r,macs={mac},trunk=all,native=5\ng stream:@/g,vlan=10"))
        .unwrap();
    assert_eq!(places(&rig), r(&[5, 10]));
    // It follows what others do.
    rig.set("g", &[("vlan", "20")]).unwrap();
    assert_eq!(places(&rig), r(&[5, 20]));
    rig.set("g", &[("vlan", ""), ("trunk", "30-31"), ("native", "7")]).unwrap();
    assert_eq!(places(&rig), r(&[5, 7, 30, 31]));
    let q = format!("q=stream:{}/q,qinq=9", rig.dir.path().display());
    rig.ports.add(q.parse().unwrap()).unwrap();
    assert_eq!(places(&rig), r(&[5, 7, 30, 31]));
    rig.set("r", &[("trunk", ""), ("native", ""), ("qinq_trunk", "all")]).unwrap();
    assert_eq!(places(&rig), r(&[10_009]));
    rig.set("r", &[("qinq_trunk", ""), ("trunk", "all")]).unwrap();
    rig.ports.remove(&"g".parse().unwrap()).unwrap();
    assert_eq!(places(&rig), r(&[]), "nobody names a VLAN");
}

#[test]
fn too_many_pins_are_refused() {
    let mut rig = rig();
    let two = "52:54:00:00:00:0a+52:54:00:00:00:0b";
    rig.apply(&format!("r stream:@/r,macs={two},trunk=all\ng stream:@/g,vlan=10")).unwrap();
    let (before, addresses) = (rig.pins(), rig.addresses());
    assert_eq!(before.len(), 2);
    for (name, vids) in [("g", "1-2049"), ("r", "1-2049")] {
        let error = rig.set(name, &[("vlan", ""), ("trunk", vids)]).unwrap_err();
        assert!(error.starts_with("port r: macs: 2 addresses in 2049 VLANs"), "{error}");
        assert!(error.contains("list fewer addresses, or fewer VLANs"), "{error}");
        assert_eq!((rig.pins(), rig.addresses()), (before.clone(), addresses.clone()));
    }
    rig.set("g", &[("vlan", ""), ("trunk", "1-2048")]).unwrap();
    assert_eq!(rig.pins().len(), 4096);
}

#[test]
fn nothing_is_put_into_force_where_nothing_changes() {
    let mut rig = rig();
    rig.apply("a stream:@/a,member=x,reach=x\nb stream:@/b,member=y+x,reach=y").unwrap();
    let old = ["a", "b"].map(|name| rig.policy(name));
    rig.set("a", &[("mac", "52:54:00:00:00:09")]).unwrap();
    rig.set("a", &[("weight", "")]).unwrap();
    rig.apply(
        "a stream:@/a,member=x,reach=x,mac=52:54:00:00:00:09\nb stream:@/b,member=x+y,reach=y",
    )
    .unwrap();
    let c = format!("c=stream:{}/c,member=z,reach=y", rig.dir.path().display());
    rig.ports.add(c.parse().unwrap()).unwrap();
    rig.ports.remove(&"c".parse().unwrap()).unwrap();
    let new = ["a", "b"].map(|name| rig.policy(name));
    assert!(old.iter().zip(&new).all(|(old, new)| Arc::ptr_eq(old, new)));
}

#[test]
fn what_others_refer_to_stays_until_they_let_go() {
    let mut rig = rig();
    rig.apply(
        "a stream:@/a,member=web+x\nb stream:@/b,reach=web,uplink=u\nu stream:@/u\nw \
            stream:@/w,watch=a",
    )
    .unwrap();
    let before = rig.addresses();
    let member = "port a: port b has reach=web and needs it: give another port member= of that \
        group, or change this (`vmlan port set b reach=...`), first";
    for keys in [[("member", "")], [("member", "x")]] {
        assert_eq!(rig.set("a", &keys).unwrap_err(), member);
    }
    let gone = |rig: &mut Rig, name: &str| rig.ports.remove(&name.parse().unwrap());
    let error = gone(&mut rig, "a").unwrap_err();
    assert!(matches!(error.cause, Cause::Exists) && error.message.contains("needs it"), "{error}");
    let error = rig.set("u", &[("watch", "all")]).unwrap_err();
    assert!(
        error.contains("port u: port b has uplink=u and needs it: `vmlan port set b"),
        "{error}"
    );
    assert_eq!(rig.addresses(), before);
    rig.set("b", &[("member", "web")]).unwrap();
    rig.set("a", &[("member", "")]).unwrap();
    let error = gone(&mut rig, "a").unwrap_err().message;
    assert!(
        error.contains("port a: port w has watch=a and needs it: take it out there"),
        "{error}"
    );
    let error = rig.set("a", &[("watch", "all")]).unwrap_err();
    assert!(error.contains("port w has watch=a"), "{error}");
    rig.set("w", &[("watch", "b")]).unwrap();
    gone(&mut rig, "a").unwrap();
    // The member of its own group goes with its reach.
    gone(&mut rig, "b").unwrap_err();
    rig.set("w", &[("watch", "")]).unwrap();
    gone(&mut rig, "b").unwrap();
}

#[test]
fn what_changes_is_told_with_old_and_new() {
    let mut rig = rig();
    rig.apply("a stream:@/a,weight=2\nb stream:@/b\nc stream:@/c").unwrap();
    let text = "a stream:@/a,macs=first\nb vhost-user:@/b\nc stream:@/c";
    for dry_run in [true, false] {
        let told = rig.run(text, dry_run).unwrap();
        let said: Vec<_> = told.changes.iter().map(|(n, c)| (&**n, say_changes(c))).collect();
        let a = "macs unset -> first, weight 2 -> unset".to_owned();
        assert_eq!(said, [("a", a), ("b", "kind stream -> vhost-user".to_owned())]);
        assert_eq!((names(&told.changed), names(&told.reopened)), (vec!["a", "b"], vec!["b"]));
    }
    assert!(rig.apply(text).unwrap().changes.is_empty());
}

#[test]
fn of_two_ports_at_one_place_the_new_one_is_to_blame() {
    let mut rig = rig();
    rig.apply("z stream:@/z").unwrap();
    let error = rig.apply("a stream:@/z\nz stream:@/z").unwrap_err();
    assert!(
        error.contains("port a: ") && error.contains("is the place of port z already"),
        "{error}"
    );
}

#[test]
fn a_key_of_before_that_does_not_go_with_a_new_one_can_be_left_out() {
    let mut rig = rig();
    rig.apply("a vfio-user:@/a,model=rtl8139,plus\nb vfio-user:@/b,poll_idle=1ms").unwrap();
    for (name, fix) in [("a", "`plus=` leaves it out"), ("b", "`poll_idle=` leaves it out")] {
        let said = rig.set(name, &[("model", "r8169")]).unwrap_err();
        assert!(said.contains(fix), "{said}");
    }
    rig.set("a", &[("model", "r8169"), ("plus", "")]).unwrap();
    let said = rig.set("a", &[("plus", "on")]).unwrap_err();
    assert!(said.ends_with("leave plus out"), "{said}");
}

#[test]
fn gateways_come_and_go_as_kept_addresses_allow_and_are_told_whose_they_are() {
    let mut rig = rig();
    let peers = [Peer::virtio(), Peer::virtio()];
    let places = ["198.18.0.0/24", "198.18.9.0/24"];
    places.iter().zip(&peers).for_each(|(place, peer)| given::give(place, peer.port()));
    let add = |rig: &mut Rig, port: &str| {
        let port = port.replace('@', rig.dir.path().to_str().unwrap());
        rig.ports.add(port.parse().unwrap()).map(drop).map_err(|refusal| refusal.message)
    };
    let del = |rig: &mut Rig, name: &str| {
        rig.ports.remove(&name.parse().unwrap()).map_err(|refusal| refusal.message)
    };
    rig.apply("a stream:@/a,ip=198.18.0.20\nb stream:@/b,ip=198.18.9.20").unwrap();
    let said = |net: &str| {
        Err(format!(
            "port {net}: port b has ip=198.18.9.20, which no nat: port would have then: change \
             that first (`vmlan port set b ip=...`), or add another nat: port that has it"
        ))
    };
    let (net, net9) = ("net=nat:198.18.0.0/24", "net9=nat:198.18.9.0/24,vlan=9");
    assert_eq!(add(&mut rig, net), said("net"));
    let error = rig.set("a", &[("ip", "198.18.9.20")]).unwrap_err();
    assert!(error.contains("port b: ip=198.18.9.20: it is kept for port a already"), "{error}");
    rig.set("a", &[("ip", "")]).unwrap();
    add(&mut rig, net9).unwrap();
    add(&mut rig, net).unwrap();
    let error = rig.set("a", &[("ip", "198.18.0.1")]).unwrap_err();
    assert!(error.contains("port a: ip=198.18.0.1: no nat: port gives it: net has"), "{error}");
    rig.set("a", &[("ip", "198.18.0.20")]).unwrap();
    assert_eq!(del(&mut rig, "net9"), said("net9"));
    rig.set("net9", &[("domain", "nine")]).unwrap();

    // A gateway that was lost: what is wrong without it is not the fault of other changes.
    let at = rig.ports.find(&"net9".parse().unwrap()).unwrap();
    rig.ports.entries.remove(at);
    rig.set("b", &[("weight", "2")]).unwrap();
    rig.set("net", &[("domain", "zero")]).unwrap();
    del(&mut rig, "net").unwrap();
}
