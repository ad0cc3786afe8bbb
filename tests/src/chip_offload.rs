//! What a chip leaves to others, and what it does for them, whatever the chip is: checksums and
//! segmentation, from and to every kind of receiver. Headers and checksums are judged by
//! `etherparse`.

use std::path::{Path, PathBuf};

use vmlan_driver::chip::{Chip, Offload, Segmentation};
use vmlan_driver::virtio::queues::{HDR_F_NEEDS_CSUM, NetHeader};
use vmlan_transport::Model;
use vmlan_transport::vfio_user::VfioBus;

use crate::chip_guest::ChipGuest;
use crate::exchange::TestGuest;
use crate::gso::{self, KINDS, Kind};
use crate::in_process_lan::{FULL_WAIT, Lan};
use crate::numbered::{Progress, mac};
use crate::virtio_guest::VirtioGuest;

/// Payload lengths around what matters: one segment, an odd rest, the largest packet.
const LOADS: [usize; 7] = [1449, 2896, 2907, 9001, 30_011, 65_000, 65_463];
/// Bytes of a full segment.
pub const MSS: u16 = 1448;
/// What is cut into segments.
pub const TCP: [Kind; 2] = [Kind::Tcp4, Kind::Tcp6];

/// A payload that tells where each byte belongs.
pub fn payload(len: usize) -> Vec<u8> {
    (0..=250).cycle().step_by(31).take(len).collect()
}

/// A frame of guest 1 to guest 2: what its sender asks for, the frame as the chip's driver leaves
/// it, and both as virtio has them.
///
/// # Panics
/// When it would be longer than 64 KiB.
pub fn unfinished<C: Chip>(
    kind: Kind,
    load: &[u8],
    mss: u16,
) -> (Offload, Vec<u8>, NetHeader, Vec<u8>) {
    let (header, whole) = gso::unfinished(kind, mac(2, 0), mac(1, 0), load, mss);
    let byte = |n: usize| u8::try_from(n).expect("a header");
    let (l4, v4) = (usize::from(header.csum_start), header.csum_start == 34);
    let offload = Offload {
        checksum: Some((byte(l4), byte(l4 + usize::from(header.csum_offset)))),
        ip: v4.then_some((14, 33)),
        tcp: matches!(kind, Kind::Tcp4 | Kind::Tcp6),
        segmentation: (mss > 0).then(|| Segmentation { mss, header: byte(kind.header_len()) }),
        vlan: None,
    };
    let mut bytes = whole.clone();
    // A vmxnet3 computes no sum over the IP header alone, and takes no lengths for its own.
    let vmware = C::MODEL == Model::Vmxnet3;
    if v4 && !(vmware && mss == 0) {
        // The chip computes it from nothing.
        bytes[24..26].fill(0);
    }
    if mss > 0 {
        // Lengths are the chip's, and the pseudo header's sum is without (SDM 3.5.3).
        let at = if v4 { 16 } else { 18 };
        if !vmware {
            bytes[at..at + 2].fill(0);
        }
        let at = l4 + usize::from(header.csum_offset);
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let len = u32::try_from(whole.len() - l4).expect("a packet");
        // One's complement subtraction.
        let new = u32::from(old) + 0xffff - (len & 0xffff) - (len >> 16);
        let folded = u16::try_from((new & 0xffff) + (new >> 16)).expect("folded");
        bytes[at..at + 2].copy_from_slice(&folded.to_be_bytes());
    }
    (offload, bytes, header, whole)
}

/// Without the zeros that a short frame was padded with.
///
/// # Panics
/// When something else is there.
pub fn trim(bytes: &[u8]) -> &[u8] {
    let end = match bytes[12..14] {
        [8, 0] => 14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]])),
        _ => 54 + usize::from(u16::from_be_bytes([bytes[18], bytes[19]])),
    };
    assert!(end == bytes.len() || end < 60 && bytes.len() == 60, "{end} of {}", bytes.len());
    assert!(bytes[end..].iter().all(|byte| *byte == 0), "padded with zeros");
    &bytes[..end]
}

/// Either kind of receiver.
pub enum To<C: Chip> {
    /// A virtio guest.
    Virtio(Box<VirtioGuest>),
    /// A guest with the chip.
    Chip(Box<ChipGuest<C, VfioBus>>),
}

/// A frame that was received, with what virtio says of it.
pub type Got = (NetHeader, Vec<u8>);

/// Adds a port for the chip.
pub type Add = fn(&mut Lan, &str) -> PathBuf;

impl<C: Chip> To<C> {
    /// Guest 2 with a virtio NIC.
    pub fn virtio(at: &Path, keys: &str) -> Self {
        Self::Virtio(VirtioGuest::connect(at, 2, keys).into())
    }

    /// Guest 2 with the chip.
    pub fn chip(at: &Path, keys: &str) -> Self {
        Self::Chip(ChipGuest::connect(at, 2, keys).into())
    }

    /// See [`TestGuest::introduce`].
    pub fn introduce(&mut self) {
        match self {
            Self::Virtio(guest) => guest.introduce(),
            Self::Chip(guest) => guest.introduce(),
        }
    }

    fn take(&mut self, mut each: impl FnMut(NetHeader, &[u8])) -> u64 {
        match self {
            Self::Virtio(guest) => guest.receive(each),
            Self::Chip(guest) => guest.receive(|said, bytes| {
                assert_eq!(said.checksum(), Some(true), "the chip's verdict on a good frame");
                each(NetHeader::default(), bytes);
            }),
        }
    }

    /// The frames until `bytes` bytes of payload came.
    ///
    /// # Panics
    /// When they do not, or more do.
    pub fn collect(&mut self, kind: Kind, bytes: usize) -> Vec<Got> {
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

    /// See [`TestGuest::assert_sound`].
    pub fn assert_sound(&self) {
        match self {
            Self::Virtio(guest) => guest.assert_sound(),
            Self::Chip(guest) => guest.assert_sound(),
        }
    }
}

/// Are these the segments, of `size` bytes each, of a packet with this payload?
///
/// # Panics
/// When they are not.
pub fn check_segments(kind: Kind, load: &[u8], size: usize, got: &[Got]) {
    assert_eq!(got.len(), load.len().div_ceil(size), "{kind:?}: segments of {} bytes", load.len());
    let mut at = 0;
    for (n, (header, frame)) in got.iter().enumerate() {
        assert_eq!((header.gso_type, header.flags & HDR_F_NEEDS_CSUM), (0, 0), "{kind:?} {n}");
        let segment = gso::judge(kind, frame);
        let last = n + 1 == got.len();
        assert_eq!(segment.payload, load[at..(at + size).min(load.len())], "{kind:?} segment {n}");
        assert_eq!(segment.seq, gso::SEQ.wrapping_add(u32::try_from(at).expect("64 KiB")));
        assert_eq!(segment.psh, last, "{kind:?} segment {n}: PSH belongs to the last");
        if kind == Kind::Tcp4 {
            let first = gso::judge(kind, &got[0].1).ip_id;
            assert_eq!(segment.ip_id, first.wrapping_add(u16::try_from(n).expect("few")));
        }
        at += segment.payload.len();
    }
    assert_eq!(at, load.len());
}

/// Guest 1, who sends.
pub fn sender<C: Chip>(at: &Path, keys: &str) -> ChipGuest<C, VfioBus> {
    ChipGuest::connect(at, 1, &format!(",tso,csum,writes=posted{keys}"))
}

/// Sends a frame.
///
/// # Panics
/// When there is no slot for long.
pub fn send<C: Chip>(a: &mut ChipGuest<C, VfioBus>, offload: Offload, bytes: &[u8]) {
    let mut progress = Progress::default();
    while !a.send(offload, bytes) {
        progress.note(0, || "no slot".into());
    }
    a.flush();
    a.receive(|_, _| {});
}

/// What a chip shall cut reaches a virtio guest that takes it in one piece. `ways`: keys of the
/// sender, and the receiver's way of taking it.
///
/// # Panics
/// When it does not, here and below.
pub fn tso_arrives_whole<C: Chip>(add: Add, ways: &[(&str, &str)]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add(&mut lan, "a"), lan.add("b", 1));
    for (of_a, mrg) in ways {
        let mut a = sender::<C>(&at_a, of_a);
        let mut b =
            VirtioGuest::connect(&at_b, 2, &format!(",guest_tso=on,guest_uso=on,mrg={mrg}"));
        b.introduce();
        for kind in TCP {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (offload, bytes, header, whole) = unfinished::<C>(kind, &load, MSS);
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

/// What a chip shall cut reaches all others in segments: virtio guests, and chips with these keys.
pub fn tso_arrives_in_segments<C: Chip>(add_sender: Add, add: Add, keys: &[&str]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at_a = add_sender(&mut lan, "a");
    let (at_v, at_i) = (lan.add("v", 1), add(&mut lan, "i"));
    let virtio = [",size=256", ",size=256,version_1=off,mrg=off"];
    for n in 0..virtio.len() + keys.len() {
        let mut a = sender::<C>(&at_a, ",batch");
        let mut b = match n.checked_sub(virtio.len()) {
            None => To::<C>::virtio(&at_v, virtio[n]),
            Some(n) => To::chip(&at_i, keys[n]),
        };
        b.introduce();
        for (kind, size) in TCP.into_iter().zip([1448, 1001]) {
            for load in LOADS {
                let load = payload(load.min(65_535 - kind.header_len() + 14));
                let (offload, bytes, ..) = unfinished::<C>(kind, &load, size);
                send(&mut a, offload, &bytes);
                check_segments(kind, &load, size.into(), &b.collect(kind, load.len()));
            }
        }
        b.assert_sound();
    }
    assert_eq!(["a", "v", "i"].map(|port| lan.drops(port)), [0; 3]);
}

/// What virtio wants to be cut reaches chips with these keys in segments.
pub fn large_packets_arrive_in_segments<C: Chip>(add: Add, keys: &[&str]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), add(&mut lan, "b"));
    let mut a = VirtioGuest::connect(&at_a, 1, ",size=64,buffer=65600,tso=on");
    for keys in keys {
        let mut b = To::<C>::chip(&at_b, keys);
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

/// Checksums of a chip's frames are finished for whoever does not take them so; `keys`: of a chip
/// that receives.
pub fn checksums_are_finished<C: Chip>(add: Add, keys: &str) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at_a = add(&mut lan, "a");
    let (at_v, at_i) = (lan.add("v", 1), add(&mut lan, "i"));
    for way in 0..3 {
        let takes = way == 1;
        let mut a = sender::<C>(&at_a, ",size=256");
        let mut b = match way {
            0 => To::<C>::virtio(&at_v, ",size=64"),
            1 => To::virtio(&at_v, ",size=64,guest_csum=on"),
            _ => To::chip(&at_i, keys),
        };
        b.introduce();
        for kind in KINDS {
            // From below the shortest frame over the end of the switch's snapshot to the longest;
            // odd lengths.
            for len in (1..90).chain([1000, 1399, 1440]) {
                let load = payload(len);
                let (offload, bytes, _, whole) = unfinished::<C>(kind, &load, 0);
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
