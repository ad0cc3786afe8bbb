//! A switch leaves its ports to the next one.

use vmlan_attach::fuzz::Peer;

use super::*;

/// A client may keep its port's thread for a while: all are waited for together.
#[test]
fn all_held_ports_are_told_to_leave_before_any_is_waited_for() {
    let mut rig = rig();
    let (asked, peers) = (given::Asked::default(), [Peer::virtio(), Peer::chip(), Peer::virtio()]);
    for (name, peer) in ["a", "b", "c"].into_iter().zip(&peers) {
        given::give_held(name, peer.port(), &asked);
    }
    rig.apply("a vhost-user:a\nd stream:@/d\nb vfio-user:b\nc vhost-user:c").unwrap();
    asked.lock().unwrap().clear();
    rig.ports.hand_over();
    let asked = asked.lock().unwrap();
    let (paused, left) = asked.split_at(3);
    // Whatever one has sent arrives before others go.
    assert_eq!(paused, ["pause a", "pause b", "pause c"]);
    assert_eq!(
        left,
        ["leave a", "leave b", "leave c", "hand over a", "hand over b", "hand over c"]
    );
    assert_eq!(rig.addresses(), ["d=stream:d"]);
}

/// Nor does one delay the others when the next switch goes on with them.
#[test]
fn all_ports_are_opened_before_any_is_waited_for() {
    let mut rig = rig();
    let (asked, peers) = (given::Asked::default(), [Peer::virtio(), Peer::chip()]);
    for (name, peer) in ["a", "b"].into_iter().zip(&peers) {
        given::give_held(name, peer.port(), &asked);
    }
    rig.apply("a vhost-user:a\nb vfio-user:b").unwrap();
    assert_eq!(*asked.lock().unwrap(), ["open a", "open b", "wait for a", "wait for b"]);
}
