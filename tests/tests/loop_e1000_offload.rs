//! What an e1000 leaves to others, and what it does for them: checksums, segmentation, VLAN tags,
//! from and to every kind of receiver. Headers and checksums are judged by `etherparse`.

use std::path::Path;

use vmlan_attach::vfio_user::Doorbell;
use vmlan_driver::chip::{Offload, Segmentation};
use vmlan_driver::e1000::registers::Register;
use vmlan_driver::e1000::{Frame, rx_bits};
use vmlan_driver::virtio::queues::{HDR_F_NEEDS_CSUM, NetHeader};
use vmlan_tests::chip_guest::{CTRL_VME, E1000Guest};
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::gso::{self, KINDS, Kind};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, frame, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::vfio_user::VfioBus;

/// Payload lengths around what matters: one segment, an odd rest, the largest packet.
const LOADS: [usize; 7] = [1449, 2896, 2907, 9001, 30_011, 65_000, 65_463];
const MSS: u16 = 1448;
const TCP: [Kind; 2] = [Kind::Tcp4, Kind::Tcp6];

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n * 31 % 251).unwrap()).collect()
}

/// A frame of guest 1 to guest 2, what its sender asks for, and the frame as the driver leaves it.
fn unfinished(kind: Kind, load: &[u8], mss: u16) -> (Offload, Vec<u8>, NetHeader, Vec<u8>) {
    let (header, whole) = gso::unfinished(kind, mac(2, 0), mac(1, 0), load, mss);
    let byte = |n: usize| u8::try_from(n).unwrap();
    let (l4, v4) = (usize::from(header.csum_start), header.csum_start == 34);
    let offload = Offload {
        checksum: Some((byte(l4), byte(l4 + usize::from(header.csum_offset)))),
        ip: v4.then_some((14, 33)),
        tcp: matches!(kind, Kind::Tcp4 | Kind::Tcp6),
        segmentation: (mss > 0).then(|| Segmentation { mss, header: byte(kind.header_len()) }),
        vlan: None,
    };
    let mut bytes = whole.clone();
    if v4 {
        // The chip computes it from nothing.
        bytes[24..26].fill(0);
    }
    if mss > 0 {
        // Lengths are the chip's, and the pseudo header's sum is without (SDM 3.5.3).
        let at = if v4 { 16 } else { 18 };
        bytes[at..at + 2].fill(0);
        let at = l4 + usize::from(header.csum_offset);
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let len = u32::try_from(whole.len() - l4).unwrap();
        // One's complement subtraction.
        let new = u32::from(old) + 0xffff - (len & 0xffff) - (len >> 16);
        let folded = u16::try_from((new & 0xffff) + (new >> 16)).unwrap();
        bytes[at..at + 2].copy_from_slice(&folded.to_be_bytes());
    }
    (offload, bytes, header, whole)
}

/// Without the zeros that a short frame was padded with.
fn trim(bytes: &[u8]) -> &[u8] {
    let end = match bytes[12..14] {
        [8, 0] => 14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]])),
        _ => 54 + usize::from(u16::from_be_bytes([bytes[18], bytes[19]])),
    };
    assert!(end == bytes.len() || end < 60 && bytes.len() == 60, "{end} of {}", bytes.len());
    assert!(bytes[end..].iter().all(|byte| *byte == 0), "padded with zeros");
    &bytes[..end]
}

/// Either kind of receiver.
enum To {
    Virtio(Box<VirtioGuest>),
    Intel(Box<E1000Guest<VfioBus>>),
}

type Got = (NetHeader, Vec<u8>);

/// Makes a receiver at the virtio port or at the e1000's.
type Way = fn(&Path, &Path) -> To;

impl To {
    fn introduce(&mut self) {
        match self {
            Self::Virtio(guest) => guest.introduce(),
            Self::Intel(guest) => guest.introduce(),
        }
    }

    fn take(&mut self, mut each: impl FnMut(NetHeader, &[u8])) -> u64 {
        match self {
            Self::Virtio(guest) => guest.receive(each),
            Self::Intel(guest) => guest.receive(|said, bytes| {
                assert_eq!(said.checksum(), Some(true), "the chip's verdict on a good frame");
                each(NetHeader::default(), bytes);
            }),
        }
    }

    /// The frames until `bytes` bytes of payload came.
    fn collect(&mut self, kind: Kind, bytes: usize) -> Vec<Got> {
        let (mut all, mut sum, mut progress) = (Vec::new(), 0, Progress::default());
        while sum < bytes {
            let now = self.take(|header, frame| {
                let frame = trim(frame);
                sum += frame.len() - kind.header_len();
                all.push((header, frame.to_vec()));
            });
            progress.note(now, || format!("{kind:?}: {sum} of {bytes} bytes"));
        }
        assert_eq!(sum, bytes);
        all
    }

    fn assert_sound(&self) {
        match self {
            Self::Virtio(guest) => guest.assert_sound(),
            Self::Intel(guest) => guest.assert_sound(),
        }
    }
}

fn check_segments(kind: Kind, load: &[u8], size: usize, got: &[Got]) {
    assert_eq!(got.len(), load.len().div_ceil(size), "{kind:?}: segments of {} bytes", load.len());
    let mut at = 0;
    for (n, (header, frame)) in got.iter().enumerate() {
        assert_eq!((header.gso_type, header.flags & HDR_F_NEEDS_CSUM), (0, 0), "{kind:?} {n}");
        let segment = gso::judge(kind, frame);
        let last = n + 1 == got.len();
        assert_eq!(segment.payload, load[at..(at + size).min(load.len())], "{kind:?} segment {n}");
        assert_eq!(segment.seq, gso::SEQ.wrapping_add(u32::try_from(at).unwrap()));
        assert_eq!(segment.psh, last, "{kind:?} segment {n}: PSH belongs to the last");
        if kind == Kind::Tcp4 {
            let first = gso::judge(kind, &got[0].1).ip_id;
            assert_eq!(segment.ip_id, first.wrapping_add(u16::try_from(n).unwrap()));
        }
        at += segment.payload.len();
    }
    assert_eq!(at, load.len());
}

fn sender(at: &Path, keys: &str) -> E1000Guest<VfioBus> {
    E1000Guest::connect(at, 1, &format!(",tso,csum,writes=posted{keys}"))
}

fn send(a: &mut E1000Guest<VfioBus>, offload: Offload, bytes: &[u8]) {
    let mut progress = Progress::default();
    while !a.send(offload, bytes) {
        progress.note(0, || "no slot".into());
    }
    a.flush();
    a.receive(|_, _| {});
}

#[test]
fn tso_reaches_a_guest_that_negotiated_it_unsegmented() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add_e1000_with("a", Doorbell::Trapped), lan.add("b", 1));
    for (of_a, mrg) in [("", "on,buffer=2048,size=256"), (",segment=1600,size=1024", "off,size=64")]
    {
        let mut a = sender(&at_a, of_a);
        let mut b =
            VirtioGuest::connect(&at_b, 2, &format!(",guest_tso=on,guest_uso=on,mrg={mrg}"));
        b.introduce();
        for kind in TCP {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (offload, bytes, header, whole) = unfinished(kind, &load, MSS);
                send(&mut a, offload, &bytes);
                let mut got = Vec::new();
                let mut progress = Progress::default();
                while got.is_empty() {
                    let now = b.receive(|header, frame| got.push((header, frame.to_vec())));
                    progress.note(now, || format!("{kind:?} of {}", load.len()));
                }
                let (h, frame) = &got[0];
                let said = (h.gso_type, h.gso_size, h.csum_start, h.csum_offset, h.hdr_len);
                let meant =
                    (kind.gso(), MSS, header.csum_start, header.csum_offset, header.hdr_len);
                assert_eq!((said, h.flags & HDR_F_NEEDS_CSUM), (meant, HDR_F_NEEDS_CSUM));
                assert_eq!(got.len(), 1, "{kind:?} of {} bytes", load.len());
                let at = frame.iter().zip(&whole).position(|(a, b)| a != b);
                assert!(*frame == whole, "{kind:?}, {} bytes, changed at {at:?}", load.len());
            }
        }
        b.assert_sound();
        a.assert_sound();
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

#[test]
fn tso_reaches_all_others_in_segments() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at_a = lan.add_e1000_with("a", Doorbell::Mapped);
    let (at_v, at_i) = (lan.add("v", 1), lan.add_e1000_with("i", Doorbell::Trapped));
    let ways: [Way; 4] = [
        |v, _| To::Virtio(VirtioGuest::connect(v, 2, ",size=256").into()),
        |v, _| To::Virtio(VirtioGuest::connect(v, 2, ",size=256,version_1=off,mrg=off").into()),
        |_, i| To::Intel(E1000Guest::connect(i, 2, ",csum,size=256,writes=posted").into()),
        |_, i| {
            To::Intel(E1000Guest::connect(i, 2, ",csum,size=1024,buffer=512,secrc,irq=msi").into())
        },
    ];
    for way in ways {
        let (mut a, mut b) = (sender(&at_a, ",batch"), way(&at_v, &at_i));
        b.introduce();
        for (kind, size) in TCP.into_iter().zip([1448, 1001]) {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (offload, bytes, ..) = unfinished(kind, &load, size);
                send(&mut a, offload, &bytes);
                check_segments(kind, &load, size.into(), &b.collect(kind, load.len()));
            }
        }
        b.assert_sound();
    }
    assert_eq!(["a", "v", "i"].map(|port| lan.drops(port)), [0; 3]);
}

#[test]
fn virtio_s_large_packets_reach_an_e1000_in_segments() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add_e1000_with("b", Doorbell::Trapped));
    let mut a = VirtioGuest::connect(&at_a, 1, ",size=64,buffer=65600,tso=on");
    for keys in [",csum,size=256", ",csum,size=1024,buffer=256,segment=64,irq=msi,writes=posted"] {
        let mut b = To::Intel(E1000Guest::connect(&at_b, 2, keys).into());
        b.introduce();
        for (kind, size) in TCP.into_iter().zip([1448, 1001]) {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (header, bytes) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &load, size);
                assert!(a.send(0, header, &bytes));
                a.flush();
                check_segments(kind, &load, size.into(), &b.collect(kind, load.len()));
                a.receive(|_, _| {});
            }
        }
        b.assert_sound();
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

#[test]
fn checksums_are_finished_unless_the_receiver_takes_them() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at_a = lan.add_e1000_with("a", Doorbell::Trapped);
    let (at_v, at_i) = (lan.add("v", 1), lan.add_e1000_with("i", Doorbell::Trapped));
    let ways: [(bool, Way); 3] = [
        (false, |v, _| To::Virtio(VirtioGuest::connect(v, 2, ",size=64").into())),
        (true, |v, _| To::Virtio(VirtioGuest::connect(v, 2, ",size=64,guest_csum=on").into())),
        (false, |_, i| To::Intel(E1000Guest::connect(i, 2, ",csum,writes=posted").into())),
    ];
    for (takes, way) in ways {
        let (mut a, mut b) = (sender(&at_a, ",size=256"), way(&at_v, &at_i));
        b.introduce();
        for kind in KINDS {
            // From below the shortest frame over the end of the switch's snapshot to the longest;
            // odd lengths.
            for len in (1..90).chain([1000, 1399, 1440]) {
                let load = payload(len);
                let (offload, bytes, _, whole) = unfinished(kind, &load, 0);
                send(&mut a, offload, &bytes);
                let got = b.collect(kind, len);
                let open = got[0].0.flags & HDR_F_NEEDS_CSUM != 0;
                if takes {
                    assert!(open && got[0].1 == whole, "{kind:?} {len}: as it was sent");
                } else {
                    assert!(!open, "{kind:?} {len}: the receiver cannot complete a checksum");
                    assert_eq!(gso::judge(kind, &got[0].1).payload, load);
                }
            }
        }
        b.assert_sound();
        a.assert_sound();
    }
    assert_eq!(["a", "v", "i"].map(|port| lan.drops(port)), [0; 3]);
}

#[test]
fn packets_that_find_no_room_for_all_their_segments_wait() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_v) = (lan.add_e1000_with("a", Doorbell::Trapped), lan.add("v", 1));
    let at_b = lan.add_e1000_with("b", Doorbell::Trapped);
    // 21 segments each, and room for 63. (Beyond 32 segments a packet is begun before there is room
    // for all.)
    let mut b = To::Intel(E1000Guest::connect(&at_b, 2, ",csum,size=64,writes=posted").into());
    let mut a = sender(&at_a, ",size=1024,batch");
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
    let mut a = sender(&at[0], ",size=512");
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
    let mut a = sender(&at_a, "");
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
