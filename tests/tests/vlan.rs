//! VLANs between real drivers: a virtio guest and an e1000 in an access port, a provider of VLANs
//! on a trunk. Large segments get and lose their tags on the way; checksums are judged by
//! `etherparse`.

use vmlan_driver::virtio::queues::{HDR_F_NEEDS_CSUM, NetHeader};
use vmlan_frame::Reason;
use vmlan_switch::policy::{Policy, VidSet, Vlan};
use vmlan_tests::chip_guest::E1000Guest;
use vmlan_tests::gso::{self, KINDS, Kind};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::vfio_user::VfioBus;

const SIZE: u16 = 1000;
const TAG: [u8; 4] = [0x81, 0, 0, 10];

fn policy(vlan: Vlan) -> Policy {
    Policy { vlan, ..Policy::default() }
}

fn tagged(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// Takes the tag off, which must be there.
fn untagged(frame: &[u8]) -> Vec<u8> {
    assert_eq!(frame[12..16], TAG);
    [&frame[..12], &frame[16..]].concat()
}

fn send(guest: &mut VirtioGuest, header: NetHeader, frame: &[u8]) {
    let mut progress = Progress::default();
    while !guest.send(0, header, frame) {
        progress.note(0, || "no slot".into());
    }
    guest.flush();
}

/// The frames of guest 1 that guest 2 gets, until `bytes` bytes came behind headers of `header`
/// bytes.
fn collect(
    mut take: impl FnMut(&mut dyn FnMut(NetHeader, &[u8])) -> u64,
    header: usize,
    bytes: usize,
) -> Vec<(NetHeader, Vec<u8>)> {
    let (mut all, mut sum, mut progress) = (Vec::new(), 0, Progress::default());
    while sum < bytes {
        let now = take(&mut |said, frame| {
            if frame[..12] == [mac(2, 0), mac(1, 0)].concat() {
                sum += frame.len() - header;
                all.push((said, frame.to_vec()));
            }
        });
        progress.note(now, || format!("{sum} of {bytes} bytes"));
    }
    all
}

/// Judges segments, or one finished frame.
fn judge(kind: Kind, load: &[u8], frames: impl Iterator<Item = Vec<u8>>) {
    let payload: Vec<u8> = frames.flat_map(|f| gso::judge(kind, &f).payload).collect();
    assert_eq!(payload, load, "{kind:?}");
}

#[test]
fn segments_get_and_lose_their_tags() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (vm, trunk, nic) = (lan.add("vm", 1), lan.add("trunk", 1), lan.add_e1000("nic", |_| {}));
    lan.set_policy("vm", policy(Vlan::Access(10)));
    lan.set_policy("nic", policy(Vlan::Access(20)));
    let all = Vlan::Trunk { tagged: VidSet::new([10, 20]), native: None };
    lan.set_policy("trunk", policy(all));
    let load: Vec<u8> = (0..30_011).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let offloads = ",size=64,buffer=65600,tso=on,uso=on,guest_tso=on,guest_uso=on";
    let mut a = VirtioGuest::connect(&vm, 1, offloads);
    // With offloads a segment arrives whole, else in pieces.
    for (keys, whole) in [(offloads, true), ("", false)] {
        let mut b = VirtioGuest::connect(&trunk, 2, keys);
        for kind in KINDS {
            let (header, frame) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &load, SIZE);
            send(&mut a, header, &frame);
            let got = collect(|each| b.receive(each), kind.header_len() + 4, load.len());
            assert_eq!(got.len(), if whole { 1 } else { load.len().div_ceil(SIZE.into()) });
            let (said, first) = &got[0];
            if whole {
                assert_eq!((said.gso_type, said.gso_size), (kind.gso(), SIZE), "{kind:?}");
                assert_eq!(said.flags & HDR_F_NEEDS_CSUM, HDR_F_NEEDS_CSUM);
                assert_eq!(said.csum_start, header.csum_start + 4, "{kind:?}");
                assert_eq!(untagged(first), frame, "{kind:?}: nothing else has changed");
            } else {
                judge(kind, &load, got.iter().map(|(_, f)| untagged(f)));
            }
        }
    }
    back(&mut lan, &mut a, &trunk, &nic, &load);
}

/// From the trunk to the access ports, each in its own VLAN; and what is refused.
fn back(
    lan: &mut Lan,
    a: &mut VirtioGuest,
    trunk: &std::path::Path,
    nic: &std::path::Path,
    load: &[u8],
) {
    let mut b = VirtioGuest::connect(trunk, 1, ",size=64,buffer=65600,tso=on");
    let mut c: E1000Guest<VfioBus> = E1000Guest::connect(nic, 2, "");
    for kind in [Kind::Tcp4, Kind::Tcp6] {
        let (mut header, frame) = gso::unfinished(kind, mac(2, 0), mac(1, 0), load, SIZE);
        header.csum_start += 4;
        header.hdr_len += 4;
        send(&mut b, header, &tagged(&frame, TAG));
        let got = collect(|each| a.receive(each), kind.header_len(), load.len());
        assert_eq!((got.len(), &got[0].1), (1, &frame), "{kind:?}");
        send(&mut b, header, &tagged(&frame, [0x81, 0, 0, 20]));
        let mut take = |each: &mut dyn FnMut(NetHeader, &[u8])| {
            c.receive(|_, frame| each(NetHeader::default(), frame))
        };
        let got = collect(&mut take, kind.header_len(), load.len());
        judge(kind, load, got.into_iter().map(|(_, f)| f));
    }
    let refused = |lan: &Lan, name: &str| lan.counters(name, |c| c.input.dropped(Reason::Vlan));
    let before = (refused(lan, "vm"), refused(lan, "trunk"));
    let (_, frame) = gso::unfinished(Kind::Tcp4, mac(2, 0), mac(1, 0), &load[..100], 0);
    send(a, NetHeader::default(), &tagged(&frame, TAG));
    send(&mut b, NetHeader::default(), &frame);
    send(&mut b, NetHeader::default(), &tagged(&tagged(&frame, TAG), [0x81, 0, 0, 20]));
    let mut progress = Progress::default();
    while (refused(lan, "vm"), refused(lan, "trunk")) != (before.0 + 1, before.1 + 2) {
        progress.note(0, || "three frames to be refused".into());
    }
    a.assert_sound();
    b.assert_sound();
}
