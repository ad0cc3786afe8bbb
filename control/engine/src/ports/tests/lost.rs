//! Ports that cannot be opened again.

use super::events::heard;
use super::*;

/// Two tenants, each with an uplink of its own. That of `a` can be opened where its directory is.
fn tenants() -> Rig {
    let mut rig = rig();
    std::fs::create_dir(rig.dir.path().join("sub")).unwrap();
    rig.apply(&tenants_with("")).unwrap();
    assert!(!may_send(&rig, "a", "lanb") && may_send(&rig, "b", "lanb"));
    rig
}

/// Too many for thousands of VLANs, which is found when the port has been opened.
const MACS: &str = "macs=52:54:00:00:00:01+52:54:00:00:00:02";

fn tenants_with(keys: &str) -> String {
    format!(
        "a stream:@/a,uplink=lana\nlana stream:@/sub/lana,{MACS}{keys}\n\
         b stream:@/b,uplink=lanb\nlanb stream:@/lanb"
    )
}

fn may_send(rig: &Rig, from: &str, to: &str) -> bool {
    let part = |name: &str| (rig.entry(name).id.unwrap(), rig.policy(name));
    let (from, to) = (part(from), part(to));
    from.1.reach.covers((from.0, &from.1), (to.0, &to.1))
}

#[test]
fn a_port_whose_uplink_is_lost_uses_no_other() {
    let set = |rig: &mut Rig| {
        drop(rig.set("lana", &[("connect", "on"), ("trunk", "1-2049")]).unwrap_err())
    };
    let keys = ",connect=on,trunk=1-2049";
    let apply = |rig: &mut Rig| drop(rig.apply(&tenants_with(keys)).unwrap_err());
    for lose in [&apply as &dyn Fn(&mut Rig), &set] {
        let mut rig = tenants();
        let (mut listener, _) = rig.ports.listen().unwrap();
        let old = rig.entry("lana").id.unwrap();
        std::fs::remove_dir_all(rig.dir.path().join("sub")).unwrap();
        lose(&mut rig);
        assert_eq!(rig.addresses().len(), 3, "it is gone");
        assert_ne!(rig.policy("a").reach.uplink, Some(old), "another port may have that number");
        rig.ports.enforce().unwrap();
        assert!(!may_send(&rig, "a", "lanb") && !may_send(&rig, "lanb", "a"));
        assert!(may_send(&rig, "b", "lanb") && may_send(&rig, "lanb", "b"));
        assert_eq!(heard(&mut listener), ["port-removed lana"]);
        // It comes back.
        std::fs::create_dir(rig.dir.path().join("sub")).unwrap();
        rig.apply(&tenants_with("")).unwrap();
        assert!(may_send(&rig, "a", "lana") && !may_send(&rig, "a", "lanb"));
    }
}
