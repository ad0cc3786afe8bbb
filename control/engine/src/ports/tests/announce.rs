//! What uplinks hear of guests.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;

fn read(from: &mut UnixStream) -> Vec<u8> {
    let mut len = [0; 4];
    from.read_exact(&mut len).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(len) as usize];
    from.read_exact(&mut frame).unwrap();
    frame
}

#[test]
fn a_guest_is_announced_to_its_uplink_in_its_vlan() {
    let mut rig = rig();
    rig.apply(
        "a stream:@/a,macs=52:54:00:00:00:01,ips=10.0.0.7,vlan=5,uplink=up
         b stream:@/b,mac=52:54:00:00:00:02
         up stream:@/up,trunk=5+6
         lan stream:@/lan,announce=on",
    )
    .unwrap();
    let (mut up, mut lan) = (stream_peer(&rig, "up"), stream_peer(&rig, "lan"));
    assert!(rig.ports.announce().is_none(), "there is no guest");
    let _a = stream_peer(&rig, "a");
    assert!(rig.ports.announce().is_some(), "more than one is sent");
    let frame = read(&mut up);
    assert_eq!(
        (&frame[6..12], &frame[12..18]),
        (&[0x52, 0x54, 0, 0, 0, 1][..], &[0x81, 0, 0, 5, 8, 6][..])
    );
    assert_eq!((&frame[32..36], &frame[42..46]), (&[10, 0, 0, 7][..], &[10, 0, 0, 7][..]));
    let _b = stream_peer(&rig, "b");
    assert!(rig.ports.announce().is_some());
    let here = |line: &FdbLine| line.mac == "52:54:00:00:00:02" && line.port == "b";
    assert!(rig.ports.fdb().iter().any(here), "this switch hears it too");
    let frame = read(&mut lan);
    assert_eq!((&frame[6..12], &frame[12..14]), (&[0x52, 0x54, 0, 0, 0, 2][..], &[0x80, 0x35][..]));
}

/// An address that is at one of several NICs is announced of none: hosts would believe the last.
#[test]
fn an_address_is_announced_of_one_nic_only() {
    let mut rig = rig();
    rig.apply(
        "a stream:@/a,macs=52:54:00:00:00:01+52:54:00:00:00:02,ips=10.0.0.7
         up stream:@/up,announce=on",
    )
    .unwrap();
    let mut up = stream_peer(&rig, "up");
    let _a = stream_peer(&rig, "a");
    let _ = rig.ports.announce();
    let heard = [read(&mut up), read(&mut up)];
    assert_eq!(heard.each_ref().map(|f| f[11]), [1, 2]);
    assert!(heard.iter().all(|f| f[12..14] == [0x80, 0x35]), "RARP claims no address");
}
