//! What an e1000 leaves to others, and what it does for them: checksums, segmentation, VLAN tags,
//! from and to every kind of receiver. Headers and checksums are judged by `etherparse`.

use std::path::PathBuf;

use vmlan_attach::vfio_user::Doorbell;
use vmlan_driver::chip::Offload;
use vmlan_driver::e1000::registers::Register;
use vmlan_driver::e1000::{Frame, Intel, rx_bits};
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_tests::chip_guest::{CTRL_VME, E1000Guest};
use vmlan_tests::chip_offload::{self, MSS, TCP, To, check_segments, payload, send, sender, trim};
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::gso::{self, KINDS, Kind};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, frame, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::vfio_user::VfioBus;

fn unfinished(kind: Kind, load: &[u8], mss: u16) -> (Offload, Vec<u8>, NetHeader, Vec<u8>) {
    chip_offload::unfinished::<Intel>(kind, load, mss)
}

/// A trapped one.
fn add(lan: &mut Lan, name: &str) -> PathBuf {
    lan.add_e1000_with(name, Doorbell::Trapped)
}

#[test]
fn tso_reaches_a_guest_that_negotiated_it_unsegmented() {
    let ways = [("", "on,buffer=2048,size=256"), (",segment=1600,size=1024", "off,size=64")];
    chip_offload::tso_arrives_whole::<Intel>(add, &ways);
}

#[test]
fn tso_reaches_all_others_in_segments() {
    let mapped = |lan: &mut Lan, name: &str| lan.add_e1000_with(name, Doorbell::Mapped);
    let keys = [",csum,size=256,writes=posted", ",csum,size=1024,buffer=512,secrc,irq=msi"];
    chip_offload::tso_arrives_in_segments::<Intel>(mapped, add, &keys);
}

#[test]
fn virtio_s_large_packets_reach_an_e1000_in_segments() {
    let keys = [",csum,size=256", ",csum,size=1024,buffer=256,segment=64,irq=msi,writes=posted"];
    chip_offload::large_packets_arrive_in_segments::<Intel>(add, &keys);
}

#[test]
fn checksums_are_finished_unless_the_receiver_takes_them() {
    chip_offload::checksums_are_finished::<Intel>(add, ",csum,writes=posted");
}

#[test]
fn packets_that_find_no_room_for_all_their_segments_wait() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_v) = (lan.add_e1000_with("a", Doorbell::Trapped), lan.add("v", 1));
    let at_b = lan.add_e1000_with("b", Doorbell::Trapped);
    // 21 segments each, and room for 63. (Beyond 32 segments a packet is begun before there is room
    // for all.)
    let mut b = To::Chip(E1000Guest::connect(&at_b, 2, ",csum,size=64,writes=posted").into());
    let mut a = sender::<Intel>(&at_a, ",size=1024,batch");
    let mut v = VirtioGuest::connect(&at_v, 1, ",size=64,buffer=65600,tso=on");
    b.introduce();
    let load = payload(30_011);
    let count = 20;
    let (offload, bytes, ..) = unfinished(Kind::Tcp4, &load, MSS);
    for _ in 0..count {
        send(&mut a, offload, &bytes);
    }
    let got = b.collect(Kind::Tcp4, count * load.len());
    got.chunks(21).for_each(|packet| check_segments(Kind::Tcp4, &load, MSS.into(), packet));
    let (header, bytes) = gso::unfinished(Kind::Tcp4, mac(2, 0), mac(1, 0), &load, MSS);
    for _ in 0..count {
        assert!(v.send(0, header, &bytes));
    }
    v.flush();
    let got = b.collect(Kind::Tcp4, count * load.len());
    got.chunks(21).for_each(|packet| check_segments(Kind::Tcp4, &load, MSS.into(), packet));
    assert_eq!(["a", "v", "b"].map(|port| lan.drops(port)), [0; 3], "{:?}", lan.dropped("b"));
}

/// One frame, with what the chip says about it.
fn one(guest: &mut E1000Guest<VfioBus>) -> (Frame, Vec<u8>) {
    let (mut got, mut progress) = (Vec::new(), Progress::default());
    while got.is_empty() {
        let now = guest.receive(|said, bytes| got.push((said, bytes.to_vec())));
        progress.note(now, || "one frame".into());
    }
    assert_eq!(got.len(), 1);
    got.remove(0)
}

#[test]
fn what_an_e1000_says_about_checksums_is_true() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add_e1000_with("b", Doorbell::Mapped));
    let mut a = VirtioGuest::connect(&at_a, 1, ",csum=on");
    let mut b = E1000Guest::connect(&at_b, 2, ",csum");
    b.introduce();
    for kind in KINDS {
        for len in [7, 8, 500, 1399] {
            let v4 = matches!(kind, Kind::Tcp4 | Kind::Udp4);
            let (header, bytes) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &payload(len), 0);
            // Whose checksum we finish ourselves is right; IPv4's time to live is another
            // checksum's.
            for ip in [true, false] {
                let mut bytes = bytes.clone();
                if v4 && !ip {
                    bytes[22] ^= 0x10;
                }
                assert!(a.send(0, header, &bytes));
                a.flush();
                let (said, got) = one(&mut b);
                assert_eq!(trim(&got), gso::complete(&header, &bytes));
                assert_eq!(said.checksum(), Some(true), "{kind:?} of {len}");
                assert_eq!(said.word & rx_bits::IPCS != 0, v4, "{kind:?}: IPv6 has no header sum");
                assert_eq!(said.word & rx_bits::IPE != 0, v4 && !ip, "{kind:?} of {len}");
            }
            // For what came finished nobody vouches, be it right or wrong: the guest looks itself.
            for wrong in [0, 0x10] {
                let mut bytes = gso::complete(&header, &bytes);
                *bytes.last_mut().unwrap() ^= wrong;
                assert!(a.send(0, NetHeader::default(), &bytes));
                a.flush();
                let (said, got) = one(&mut b);
                assert_eq!((trim(&got), said.checksum()), (bytes.as_slice(), None), "{kind:?}");
            }
        }
    }
}

fn set_vme(guest: &mut E1000Guest<VfioBus>) {
    let registers = guest.nic.registers_mut();
    let value = registers.read(Register::CTRL);
    registers.write(Register::CTRL, value | CTRL_VME);
    registers.read(Register::CTRL);
}

/// Writes a register that the driver does not know.
fn poke(guest: &mut E1000Guest<VfioBus>, offset: u32, value: u32) {
    guest.nic.registers_mut().write_at(Register::CTRL, offset / 4, value);
}

fn tagged(bytes: &[u8], tag: u16) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    [&bytes[..12], &[0x81, 0, high, low], &bytes[12..]].concat()
}

/// VLAN ethertype and filter table (SDM 13.4.7, 13.5.4).
const VET: u32 = 0x38;
const VFTA: u32 = 0x5600;
const RCTL_VFE: u32 = 1 << 18;

#[test]
fn vlan_tags_are_inserted_stripped_and_filtered() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at = ["a", "b"].map(|n| lan.add_e1000_with(n, Doorbell::Trapped));
    let at_v = lan.add("v", 1);
    let mut a = sender::<Intel>(&at[0], ",size=512");
    let mut b = E1000Guest::connect(&at[1], 2, ",csum");
    let mut v = VirtioGuest::connect(&at_v, 3, "");
    b.introduce();
    v.introduce();
    a.receive(|_, _| {});
    for guest in [&mut a, &mut b] {
        poke(guest, VET, 0x8100);
    }
    for strips in [false, true] {
        set_vme(&mut a);
        if strips {
            set_vme(&mut b);
        }
        b.receive(|_, _| {});
        for (n, tag) in [(0, 5_u16), (1, 0xe064), (2, 0x0fff), (3, 0)] {
            for len in [60, 64, 300, 1514] {
                let offload = Offload { vlan: Some(tag), ..Offload::default() };
                let bytes = frame(mac(2, 0), mac(1, 0), n, len);
                send(&mut a, offload, &bytes);
                let (said, got) = one(&mut b);
                let expected = if strips { bytes.clone() } else { tagged(&bytes, tag) };
                assert_eq!(said.vlan(), strips.then_some(tag), "{len} bytes");
                assert!(got == expected, "{len} bytes, tag {tag}: {} came", got.len());
                let bytes = frame(mac(3, 0), mac(1, 0), n, len);
                send(&mut a, offload, &bytes);
                let (mut seen, mut progress) = (Vec::new(), Progress::default());
                while seen.is_empty() {
                    // Frames to guest 2 come too until the switch knows where that is in this VLAN.
                    let ours = |bytes: &[u8]| bytes[..6] == mac(3, 0);
                    let now = v.receive(|_, bytes| {
                        if ours(bytes) {
                            seen = bytes.to_vec();
                        }
                    });
                    progress.note(now, || "a tagged frame".into());
                }
                assert!(seen == tagged(&bytes, tag), "virtio sees the tag");
            }
        }
    }
    let rctl = b.nic.registers_mut().read(Register::RCTL);
    b.nic.registers_mut().write(Register::RCTL, rctl | RCTL_VFE);
    poke(&mut b, VFTA + 4 * (100 / 32), 1 << (100 % 32));
    b.nic.registers_mut().read(Register::STATUS);
    for tag in [99, 100, 101, 0, 0x1064, 4095] {
        let offload = Offload { vlan: Some(tag), ..Offload::default() };
        send(&mut a, offload, &frame(mac(2, 0), mac(1, 0), tag.into(), 200));
    }
    send(&mut a, Offload::default(), &frame(mac(2, 0), mac(1, 0), 7, 200));
    let got = one_or_more(&mut b, 3);
    let tags: Vec<_> = got.iter().map(|(said, _)| said.vlan()).collect();
    assert_eq!(tags, [Some(100), Some(0x1064), None], "VLAN 100 with any priority, and no VLAN");
}

fn one_or_more(guest: &mut E1000Guest<VfioBus>, count: usize) -> Vec<(Frame, Vec<u8>)> {
    let (mut got, mut progress) = (Vec::new(), Progress::default());
    while got.len() < count {
        let now = guest.receive(|said, bytes| got.push((said, bytes.to_vec())));
        progress.note(now, || format!("{} of {count} frames", got.len()));
    }
    got
}

#[test]
fn segments_carry_the_tag_of_their_packet() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) =
        (lan.add_e1000_with("a", Doorbell::Mapped), lan.add_e1000_with("b", Doorbell::Mapped));
    let mut a = sender::<Intel>(&at_a, "");
    let mut b = E1000Guest::connect(&at_b, 2, ",csum");
    b.introduce();
    for guest in [&mut a, &mut b] {
        poke(guest, VET, 0x8100);
    }
    set_vme(&mut a);
    set_vme(&mut b);
    for kind in TCP {
        let load = payload(10_000);
        let (offload, bytes, ..) = unfinished(kind, &load, 1300);
        send(&mut a, Offload { vlan: Some(77), ..offload }, &bytes);
        let got = one_or_more(&mut b, 8);
        assert!(got.iter().all(|(said, _)| said.vlan() == Some(77)));
        assert!(got.iter().all(|(said, _)| said.checksum() == Some(true)), "{kind:?}");
        let got: Vec<_> = got.into_iter().map(|(_, f)| (NetHeader::default(), f)).collect();
        check_segments(kind, &load, 1300, &got);
    }
}
