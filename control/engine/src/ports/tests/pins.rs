//! Addresses that are pinned by hand stay while their port is closed and opened again.

use super::*;

const MAC: &str = "52:54:00:00:00:0a";

/// Port `a` with this address, to which one is pinned by hand and one by its `macs`.
fn pinned(a: &str, vid: Option<u16>) -> Rig {
    let mut rig = rig();
    rig.apply(&format!("a {a}\nb stream:@/b")).unwrap();
    rig.ports.add_mac(MAC.parse().unwrap(), &"a".parse().unwrap(), vid).unwrap();
    rig
}

#[test]
fn a_pin_outlives_a_port_that_is_opened_again() {
    let mut rig = pinned("stream:@/a,macs=52:54:00:00:00:01", None);
    let both = ["52:54:00:00:00:01 a", "52:54:00:00:00:0a a"];
    assert_eq!(rig.pins(), both);
    let old = rig.port("a");
    rig.set("a", &[("connect", "on")]).unwrap();
    assert!(!Arc::ptr_eq(&old, &rig.port("a")), "it is another");
    assert_eq!(rig.pins(), both);
    // By a file too, under the number of another port.
    rig.apply("c stream:@/a\na stream:@/b,macs=52:54:00:00:00:01\nb stream:@/c").unwrap();
    assert_eq!(rig.pins(), both);
    // Those of its list are its list's affair.
    rig.set("a", &[("connect", "on"), ("macs", "")]).unwrap();
    assert_eq!(rig.pins(), both[1..]);
    rig.ports.remove_mac(MAC.parse().unwrap(), None).unwrap();
    rig.set("a", &[("connect", "")]).unwrap();
    assert_eq!(rig.pins(), [""; 0], "what was deleted does not come back");
    rig.ports.add_mac(MAC.parse().unwrap(), &"a".parse().unwrap(), None).unwrap();
    rig.ports.remove(&"a".parse().unwrap()).unwrap();
    rig.apply("a stream:@/a").unwrap();
    assert_eq!(rig.pins(), [""; 0], "nor does that of a port that was deleted");
}

#[test]
fn a_pin_outlives_a_change_that_is_refused() {
    let mut rig = pinned("stream:@/a,macs=52:54:00:00:00:01+52:54:00:00:00:02", None);
    let all = rig.pins();
    assert_eq!(all.len(), 3);
    let old = rig.port("a");
    // It is opened, its list is too long for so many VLANs, and it is opened as it was.
    let refused = rig.set("a", &[("connect", "on"), ("trunk", "1-2049")]).unwrap_err();
    assert!(refused.contains("macs: 2 addresses in 2049 VLANs"), "{refused}");
    assert!(refused.ends_with("; it was closed, and opened again as it was"), "{refused}");
    assert!(!Arc::ptr_eq(&old, &rig.port("a")), "it is another");
    assert_eq!(rig.pins(), all);
    let macs = "macs=52:54:00:00:00:01+52:54:00:00:00:02";
    for (text, said) in [
        // It is opened again before another cannot be, or gives up its place for one.
        (format!("a stream:@/a,connect=on,{macs}\nb stream:@/none/b"), "port b: "),
        (format!("a stream:@/x,{macs}\nb vhost-user:@/a\nc stream:@/none/c"), "port c: "),
        (format!("a stream:@/a,connect=on,{macs},trunk=1-2049\nb stream:@/b"), "2049 VLANs"),
    ] {
        let old = rig.port("a");
        let refused = rig.apply(&text).unwrap_err();
        assert!(refused.contains(said) && !refused.contains("not all is as it was"), "{refused}");
        assert!(!Arc::ptr_eq(&old, &rig.port("a")), "it is another: {text}");
        assert_eq!(rig.pins(), all, "{text}");
    }
}

#[test]
fn a_pin_goes_with_its_vlan_or_to_the_port_that_lists_it() {
    let mut rig = pinned("stream:@/a,trunk=10+20", Some(10));
    rig.ports.add_mac(MAC.parse().unwrap(), &"a".parse().unwrap(), Some(20)).unwrap();
    assert_eq!(rig.pins().len(), 2);
    rig.set("a", &[("connect", "on"), ("trunk", "20")]).unwrap();
    let lines: Vec<_> = rig.ports.fdb().into_iter().map(|l| (l.port, l.vlan)).collect();
    assert_eq!(lines, [("a".to_owned(), Some(20))]);
    rig.set("a", &[("connect", ""), ("trunk", "10+20")]).unwrap();
    assert_eq!(rig.pins().len(), 1, "it was dropped, and is not kept for later");
    // `b` lists it, in the same step in which its port is opened again.
    let text = format!("a stream:@/a,connect=on,trunk=20\nb stream:@/b,macs={MAC},vlan=20");
    rig.apply(&text).unwrap();
    assert_eq!(rig.pins(), [format!("{MAC} b")]);
}
