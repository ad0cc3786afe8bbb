//! Broadcast domains against a reader of tags that shares nothing with the code.
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// All that a switch somewhere might read as a tag.
const KINDS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];

/// A tag: kind, VID, priority (PCP and DEI).
pub(crate) type Tag = (u16, u16, u16);

/// Few, so that they meet.
fn vid() -> impl Strategy<Value = u16> {
    select(vec![1, 2, 2, 10, 10, 100, 4094, 0, 4095])
}

pub(crate) fn vlan() -> impl Strategy<Value = Vlan> {
    let set = || {
        prop_oneof![
            4 => prop::collection::vec(vid(), 0..4).prop_map(VidSet::new),
            1 => Just(VidSet::all()),
        ]
    };
    prop_oneof![
        1 => Just(Vlan::Open),
        2 => vid().prop_map(Vlan::Access),
        4 => (set(), prop::option::of(vid()))
            .prop_map(|(tagged, native)| Vlan::Trunk { tagged, native }),
        2 => vid().prop_map(Vlan::Qinq),
        2 => set().prop_map(Vlan::QinqTrunk),
    ]
}

/// Frames of 14 bytes or more, some cut off in their tags.
pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = select(vec![0x8100, 0x8100, 0x8100, 0x88a8, 0x88a8, 0x9100, 0x9200, 0x9300]);
    let tags = prop::collection::vec((kind, vid(), 0u16..16), 0..4);
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    let kept = prop_oneof![4 => Just(usize::MAX), 1 => 14usize..40];
    (tags, select(vec![0x0800, 0x0806, 0x1234, 38]), payload, kept).prop_map(
        |(tags, ethertype, payload, kept): (Vec<Tag>, u16, _, _)| {
            let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
            for (kind, vid, priority) in tags {
                bytes.extend(kind.to_be_bytes());
                bytes.extend((vid | priority << 12).to_be_bytes());
            }
            bytes.extend(ethertype.to_be_bytes());
            bytes.extend(payload);
            bytes.truncate(kept);
            bytes
        },
    )
}

/// Everything that could be read as a tag, and whether an EtherType follows the last one.
pub(crate) fn read(frame: &[u8]) -> (Vec<Tag>, bool) {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut tags = Vec::new();
    loop {
        let at = 12 + 4 * tags.len();
        match (word(at), word(at + 2)) {
            (Some(kind), Some(tci)) if KINDS.contains(&kind) => {
                tags.push((kind, tci & 4095, tci >> 12));
            }
            (Some(kind), _) => return (tags, !KINDS.contains(&kind)),
            (None, _) => return (tags, false),
        }
    }
}

/// What 802.1Q says, in terms of what was read.
fn expected(vlan: &Vlan, frame: &[u8]) -> Option<Domain> {
    let real = |v: u16| (1..=4094).contains(&v).then_some(v);
    let (tags, whole) = read(frame);
    match (vlan, tags.as_slice()) {
        (Vlan::Open, _) => Some(Domain::OPEN),
        (Vlan::Qinq(v), _) => real(*v).map(Domain::service),
        (Vlan::QinqTrunk(set), [(0x88a8, v, _), ..]) if frame.len() >= 18 => {
            real(*v).filter(|v| set.has(*v)).map(Domain::service)
        }
        _ if !whole => None,
        (Vlan::Access(v), [] | [(0x8100, 0, _)]) => real(*v).map(Domain::customer),
        (Vlan::Trunk { native: Some(v), .. }, [] | [(0x8100, 0, _)]) => {
            real(*v).map(Domain::customer)
        }
        (Vlan::Trunk { tagged, .. }, [(0x8100, v, _)]) => {
            real(*v).filter(|v| tagged.has(*v)).map(Domain::customer)
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_domain_is_what_the_standard_says(vlan in vlan(), frame in frame()) {
        let got = vlan.enter(&frame);
        prop_assert_eq!(got.ok(), expected(&vlan, &frame), "{} {:x?}", vlan, read(&frame));
        prop_assert!(got.is_ok() || got == Err(Reason::Vlan));
    }

    /// What a port may send, it is also sent: by others of the same domain.
    #[test]
    fn who_may_enter_is_carried(vlan in vlan(), frame in frame()) {
        if let Ok(domain) = vlan.enter(&frame) {
            prop_assert!(vlan.carries(domain), "{} {}", vlan, domain);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_set_says_what_is_in_it(
        vids in prop::collection::vec(prop_oneof![0u16..40, 4080..=u16::MAX], 0..40),
    ) {
        let set = VidSet::new(vids.clone());
        for vid in 0..=u16::MAX {
            prop_assert_eq!(set.has(vid), vids.contains(&vid) && (1..4095).contains(&vid));
        }
        let mut said = Vec::new();
        for part in set.to_string().split('+').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            said.extend(first.parse::<u16>().unwrap()..=last.parse().unwrap());
        }
        prop_assert_eq!(VidSet::new(said.clone()), set);
        prop_assert!(said.is_sorted());
    }
}

/// Each of the 2^13 domains is carried by ports of exactly its own kind and number.
#[test]
fn domains_are_apart() {
    for bits in 0..0x2000 {
        let (domain, vid) = (Domain::from_bits(bits), bits & 0xfff);
        let (real, customer) = (vid != 0 && vid != 4095, bits < 0x1000);
        assert_eq!(domain.bits(), bits);
        assert_eq!(Vlan::Open.carries(domain), bits == 0);
        for v in [vid, 7] {
            assert_eq!(Vlan::Access(v).carries(domain), real && customer && v == vid);
            assert_eq!(Vlan::Qinq(v).carries(domain), real && !customer && v == vid);
        }
        let all = Vlan::Trunk { tagged: VidSet::all(), native: Some(0) };
        assert_eq!(all.carries(domain), real && customer);
        assert_eq!(Vlan::QinqTrunk(VidSet::all()).carries(domain), real && !customer);
    }
}

#[test]
fn a_native_vlan_may_be_tagged_only_if_it_is_in_the_set() {
    let mut tagged = vec![0; 60];
    tagged[12..16].copy_from_slice(&[0x81, 0, 0, 10]);
    let trunk = |vids: &[u16]| Vlan::Trunk { tagged: VidSet::new(vids.to_vec()), native: Some(10) };
    assert_eq!(trunk(&[20]).enter(&tagged), Err(Reason::Vlan));
    assert_eq!(trunk(&[10, 20]).enter(&tagged), Ok(Domain::customer(10)));
    assert_eq!(trunk(&[10, 20]).form(Domain::customer(10)), Some(Form::Untagged));
    assert_eq!(trunk(&[10, 20]).form(Domain::customer(20)), Some(Form::Tagged(20)));
}

#[test]
fn words() {
    let trunk = Vlan::Trunk { tagged: VidSet::new([1, 3, 4, 5, 4094]), native: Some(7) };
    assert_eq!(trunk.to_string(), "trunk=1+3-5+4094,native=7");
    assert_eq!(Vlan::QinqTrunk(VidSet::all()).to_string(), "qinq_trunk=all");
    assert_eq!(
        (Vlan::Access(5).to_string(), Vlan::Qinq(6).to_string()),
        ("vlan=5".into(), "qinq=6".into())
    );
    let domains = [Domain::OPEN, Domain::customer(10), Domain::service(100)];
    assert_eq!(domains.map(|d| d.to_string()), ["open", "vlan 10", "service vlan 100"]);
    assert_eq!(Form::Tagged(3).to_string(), "tagged 3");
}
