//! What arrives, byte for byte, against what an outsider reads in it.
use proptest::prelude::*;
use vmlan_frame::{Batch, Checksum, Gso, Headers};

use super::*;
use crate::policy::VidSet;
use crate::policy::vlan::tests::{Tag, frame, read, vlan};

mod switch;

/// What came out: the frames' bytes with their offloads, and the number of list entries dealt with.
type Delivered = (Vec<(Vec<u8>, Offload)>, usize);

/// Through `Retagged`, to a receiver with room for `room` frames.
fn push(
    batch: &Batch<'_>,
    list: &[u16],
    from: (&Vlan, &[Domain]),
    to: (&Vlan, &Counters),
    mut room: usize,
) -> Delivered {
    let mut got = Vec::new();
    let done = Retagged::new().push(batch, &mut list.to_vec(), from, to, |batch, list| {
        let n = list.len().min(room);
        room -= n;
        for i in &list[..n] {
            let view = batch.frame((*i).into()).unwrap();
            let mut bytes = vec![0; view.len];
            assert_eq!(view.copy_to(&mut bytes), view.len);
            assert!(view.head.len() <= HEAD);
            got.push((bytes, view.offload));
        }
        n
    });
    (got, done)
}

/// Adds `bytes` in pieces of up to `piece` bytes.
fn add<'m>(batch: &mut Batch<'m>, bytes: &'m [u8], piece: usize, offload: Offload) {
    let pieces: Vec<_> = bytes.chunks(piece).map(Slice::from_bytes).collect();
    batch.add(&pieces, offload).unwrap();
}

/// The bytes behind the tags that are not payload at a port with `vlan`, and those tags.
fn own_tags(vlan: &Vlan, frame: &[u8]) -> (Vec<Tag>, Vec<u8>) {
    let count = match vlan {
        Vlan::Open | Vlan::Qinq(_) => 0,
        Vlan::QinqTrunk(_) => 1,
        Vlan::Access(_) | Vlan::Trunk { .. } => read(frame).0.len(),
    };
    let mut rest = frame.to_vec();
    rest.drain(12..12 + 4 * count);
    (read(frame).0[..count].to_vec(), rest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// A frame gets only where its domain is carried, in exactly the form that is expected there,
    /// and nobody at the far end of a trunk can read it as one of another VLAN.
    #[test]
    fn broadcast_domains_never_mix(from in vlan(), to in vlan(), piece in 14usize..300,
                                   frames in prop::collection::vec(frame(), 1..20)) {
        let mut batch = Batch::new();
        frames.iter().for_each(|f| add(&mut batch, f, piece, Offload::NONE));
        let entered: Vec<_> = frames.iter().map(|f| from.enter(f)).collect();
        let domains: Vec<_> = entered.iter().map(|d| d.unwrap_or_default()).collect();
        let list: Vec<u16> = (0..frames.len()).filter(|i| entered[*i].is_ok_and(|d| to.carries(d)))
            .map(|i| i as u16).collect();
        let counters = Counters::default();
        let (got, done) = push(&batch, &list, (&from, &domains), (&to, &counters), usize::MAX);
        prop_assert_eq!((got.len(), done), (list.len(), list.len()));
        for (i, (bytes, _)) in list.iter().zip(&got) {
            let domain = domains[usize::from(*i)];
            let (sent_tags, sent) = own_tags(&from, &frames[usize::from(*i)]);
            let (tags, rest) = own_tags(&to, bytes);
            prop_assert_eq!(&rest, &sent, "nothing else changes");
            let priority = sent_tags.first().map_or(0, |t| t.2);
            let vid = domain.bits() & 0xfff;
            let wanted = match to.form(domain).unwrap() {
                Form::Payload | Form::Untagged => vec![],
                Form::Tagged(v) => vec![(0x8100, v, priority)],
                Form::Service(v) => vec![(0x88a8, v, priority)],
            };
            prop_assert_eq!(&tags, &wanted);
            prop_assert!(wanted.iter().all(|t| t.1 == vid));
            // The other end of the wire, were it one of ours with the same settings, and any other:
            // all tags there are, are ours.
            prop_assert_eq!(to.enter(bytes), Ok(domain));
            if domain.bits() < 0x1000 && domain != Domain::OPEN {
                prop_assert_eq!(read(bytes), (wanted, true));
            }
        }
    }

    /// Whatever room there is, what is dealt with is a prefix of the list, each frame once.
    #[test]
    fn a_full_receiver_gets_a_prefix(
        to in vlan(),
        room in 0usize..40,
        tagged in prop::collection::vec(any::<bool>(), 1..40),
    ) {
        let from = Vlan::Trunk { tagged: VidSet::all(), native: Some(1) };
        let frames: Vec<Vec<u8>> = tagged.iter().enumerate().map(|(i, tagged)| {
            let mut f = vec![i as u8; 300];
            let kind = if *tagged { &[0x81, 0, 0, 2, 8, 0] } else { &[8, 0, 0, 0, 0, 0] };
            f[12..18].copy_from_slice(kind);
            f
        }).collect();
        let mut batch = Batch::new();
        frames.iter().for_each(|f| add(&mut batch, f, 100, Offload::NONE));
        let domains: Vec<_> = frames.iter().map(|f| from.enter(f).unwrap()).collect();
        let carried = |i: &u16| to.carries(domains[usize::from(*i)]);
        let list: Vec<u16> = (0..frames.len() as u16).filter(carried).collect();
        let (got, done) = push(&batch, &list, (&from, &domains), (&to, &Counters::default()), room);
        prop_assert_eq!(done, list.len().min(room));
        let numbers: Vec<_> = got.iter().map(|(f, _)| u16::from(f[0])).collect();
        prop_assert_eq!(&numbers[..], &list[..done]);
    }
}

/// A TCP segment over IPv4 or IPv6 behind `tags`, its sum still to be done; `gso`: to be cut into
/// segments of 100 bytes.
fn tcp(tags: &[[u8; 4]], v6: bool, payload: usize, gso: bool) -> (Vec<u8>, Offload) {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    tags.iter().for_each(|t| f.extend(t));
    f.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    let (l3, size) = (f.len(), u16::try_from(20 + payload).unwrap());
    if v6 {
        f.extend([0x60, 0, 0, 0, (size >> 8) as u8, size as u8, 6, 64]);
        f.extend([0xfd; 32]);
    } else {
        let total = (size + 20).to_be_bytes();
        f.extend([0x45, 0, total[0], total[1], 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let mut sum = Checksum::new();
        sum.add(&f[l3..]);
        let sum = sum.finish().to_be_bytes();
        f[l3 + 10..l3 + 12].copy_from_slice(&sum);
    }
    let l4 = f.len();
    f.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let headers = Headers::parse(&f, f.len());
    let pseudo = Checksum::pseudo_header(&f, &headers, usize::from(size)).unwrap().folded();
    f[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
    f.extend((0..payload).map(|i| (i * 7) as u8));
    let kind = if v6 { Gso::Tcp6 } else { Gso::Tcp4 };
    let offload = Offload {
        needs_csum: true,
        csum_start: l4 as u16,
        csum_offset: 16,
        gso: if gso { kind } else { Gso::None },
        gso_size: if gso { 100 } else { 0 },
        ..Offload::NONE
    };
    (f, offload)
}

/// Finishes what is left to do, as a receiver without offloads would have it done.
fn finish(bytes: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    batch
        .add_parts(
            &bytes[..bytes.len().min(HEAD)],
            [Slice::from_bytes(&bytes[bytes.len().min(HEAD)..])],
            offload,
        )
        .unwrap();
    let mut out = Batch::new();
    assert!(
        !Finisher::new(batch.frame(0).unwrap(), Offloads::NONE).unwrap().fill(&mut out).unwrap()
    );
    let bytes = |i| {
        let view: FrameView<'_, '_> = out.frame(i).unwrap();
        let mut bytes = vec![0; view.len];
        view.copy_to(&mut bytes);
        bytes
    };
    (0..out.len()).map(bytes).collect()
}

/// TCP's checksum, over everything, is right.
fn sum_is_right(frame: &[u8], tags: usize, v6: bool) -> bool {
    let l3 = 14 + 4 * tags;
    let l4 = l3 + if v6 { 40 } else { 20 };
    let mut sum: u32 = 6 + u32::try_from(frame.len() - l4).unwrap();
    let addresses = if v6 { &frame[l3 + 8..l4] } else { &frame[l3 + 12..l4] };
    for part in [addresses, &frame[l4..]] {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

const PROVIDER: [u8; 4] = [0x88, 0xa8, 0, 100];
const TEN: [u8; 4] = [0x81, 0, 0xe0, 10];
const INNER: [u8; 4] = [0x81, 0, 0, 30];

fn trunk() -> Vlan {
    Vlan::Trunk { tagged: VidSet::new([10, 20]), native: Some(20) }
}

/// From, the tags there, to, the tags there.
type Way = (Vlan, Vec<[u8; 4]>, Vlan, Vec<[u8; 4]>);

fn ways() -> Vec<Way> {
    let (customer, provider) = (Vlan::Qinq(100), Vlan::QinqTrunk(VidSet::all()));
    let (access, priority) = (Vlan::Access(10), [0x81, 0, 0xe0, 0]);
    let ten = [0x81, 0, 0, 10];
    vec![
        (access.clone(), vec![], trunk(), vec![ten]),
        (access.clone(), vec![priority], trunk(), vec![TEN]),
        (access.clone(), vec![priority], access.clone(), vec![]),
        (trunk(), vec![TEN], access, vec![]),
        (trunk(), vec![TEN], trunk(), vec![TEN]),
        (customer.clone(), vec![], provider.clone(), vec![PROVIDER]),
        (customer.clone(), vec![TEN], provider.clone(), vec![PROVIDER, TEN]),
        (customer.clone(), vec![TEN, INNER], provider.clone(), vec![PROVIDER, TEN, INNER]),
        (provider.clone(), vec![PROVIDER], customer.clone(), vec![]),
        (provider, vec![PROVIDER, TEN], customer, vec![TEN]),
    ]
}

/// Unfinished checksums and segments come out right whatever the tags become, done by us or by the
/// receiver.
#[test]
fn offloads_move_with_the_tag() {
    for (from, tags, to, after) in ways() {
        for (v6, payload, gso) in [
            (false, 10, false),
            (true, 900, false),
            (false, 60, true),
            (false, 950, true),
            (true, 3001, true),
        ] {
            let (frame, offload) = tcp(&tags, v6, payload, gso);
            let mut batch = Batch::new();
            add(&mut batch, &frame, 70, offload);
            let domain = from.enter(&frame).unwrap();
            let counters = Counters::default();
            let (got, done) = push(&batch, &[0], (&from, &[domain]), (&to, &counters), usize::MAX);
            let name = format!("{from} to {to}, {tags:x?}, v6 {v6}, {payload} bytes, gso {gso}");
            assert_eq!((done, counters.drops().count()), (1, 0), "{name}");
            let finished: Vec<_> = got.iter().flat_map(|(f, o)| finish(f, *o)).collect();
            let segments = if gso { payload.div_ceil(100) } else { 1 };
            assert_eq!(finished.len(), segments, "{name}");
            let mut received: Vec<u8> = Vec::new();
            for f in &finished {
                assert_eq!(f[12..12 + 4 * after.len()], after.concat(), "{name}");
                assert!(sum_is_right(f, after.len(), v6), "{name}");
                received.extend(&f[14 + 4 * after.len() + if v6 { 60 } else { 40 }..]);
            }
            assert_eq!(received, frame[frame.len() - payload..], "{name}");
            // With three tags nobody downstream would find the headers again.
            assert_eq!(got[0].1.needs_csum, after.len() < 3, "{name}");
        }
    }
}

/// An unfinished checksum so far back that the tag would push its field out of the snapshot.
#[test]
fn a_checksum_at_the_end_of_the_snapshot_is_done_first() {
    let mut frame: Vec<u8> = (0..250).collect();
    frame[12..14].copy_from_slice(&[0x12, 0x34]);
    frame[126..128].copy_from_slice(&[0, 0]);
    let offload = Offload { needs_csum: true, csum_start: 100, csum_offset: 26, ..Offload::NONE };
    let mut batch = Batch::new();
    add(&mut batch, &frame, 250, offload);
    let (from, counters) = (Vlan::Access(10), Counters::default());
    let (got, _) = push(&batch, &[0], (&from, &[Domain::customer(10)]), (&trunk(), &counters), 1);
    assert!(!got[0].1.needs_csum);
    let mut sum = Checksum::new();
    sum.add(&got[0].0[104..]);
    assert_eq!(sum.folded(), 0xffff);
    assert_eq!(got[0].0[12..18], [0x81, 0, 0, 10, 0x12, 0x34]);
}

#[test]
fn what_becomes_too_long_is_dropped_and_the_rest_goes_on() {
    let (long, short) = (vec![0; MAX_FRAME - 3], vec![1; 60]);
    let mut batch = Batch::new();
    for f in [&short, &long, &short, &long] {
        add(&mut batch, f, 4000, Offload::NONE);
    }
    let from = Vlan::Access(10);
    let domains = [Domain::customer(10); 4];
    let lens = |to: &Vlan, counters: &Counters, room| {
        let (got, done) = push(&batch, &[0, 1, 2, 3], (&from, &domains), (to, counters), room);
        (got.iter().map(|g| g.0.len()).collect::<Vec<_>>(), done)
    };
    let counters = Counters::default();
    assert_eq!(lens(&trunk(), &counters, 9), (vec![64, 64], 4));
    assert_eq!(counters.output.dropped(Reason::TooLong), 2);
    let counters = Counters::default();
    assert_eq!(lens(&trunk(), &counters, 1), (vec![64], 2), "the second is over, the third waits");
    assert_eq!(counters.output.dropped(Reason::TooLong), 1);
    assert_eq!(lens(&trunk(), &counters, 0), (vec![], 0));
    let counters = Counters::default();
    assert_eq!(lens(&from, &counters, 9), (vec![60, MAX_FRAME - 3, 60, MAX_FRAME - 3], 4));
    assert_eq!(lens(&Vlan::Access(11), &counters, 9), (vec![], 4), "should anybody ask");
    assert_eq!(counters.output.dropped(Reason::Vlan), 4);
}

/// More pieces than one batch holds, since each frame gets one more: sent in parts.
#[test]
fn a_batch_full_of_pieces_is_sent_in_parts() {
    let frame = [3; 128 + 15];
    let mut batch = Batch::new();
    while batch.has_room(16) {
        let mut pieces = vec![Slice::from_bytes(&frame[..128])];
        pieces.extend(frame[128..].chunks(1).map(Slice::from_bytes));
        batch.add(&pieces, Offload::NONE).unwrap();
    }
    let list: Vec<u16> = (0..batch.len() as u16).collect();
    assert_eq!(list.len(), 256);
    let domains = [Domain::customer(10); 256];
    let (got, done) =
        push(&batch, &list, (&Vlan::Access(10), &domains), (&trunk(), &Counters::default()), 300);
    assert_eq!((got.len(), done), (256, 256));
    assert!(got.iter().all(|g| g.0.len() == 147 && g.0[16..] == frame[12..]));
}

/// A port of several lanes takes what one of them has room for, and says which that was.
#[test]
fn a_list_is_left_in_the_order_in_which_the_port_took_it() {
    let frame = vec![0; 60];
    let mut batch = Batch::new();
    (0..8).for_each(|_| add(&mut batch, &frame, 60, Offload::NONE));
    let (from, to) = (Vlan::Access(10), trunk());
    let domains = [from.enter(&frame).unwrap(); 8];
    let mut list = [7, 1, 0, 5, 6];
    let mut seen = 0;
    let done = Retagged::new().push(
        &batch,
        &mut list,
        (&from, &domains),
        (&to, &Counters::default()),
        |batch, list| {
            assert_eq!(batch.frame(0).unwrap().len, 64, "it has a tag");
            assert_eq!(list, [0, 1, 2, 3, 4]);
            list.copy_from_slice(&[0, 2, 3, 1, 4]);
            seen += 1;
            3
        },
    );
    assert_eq!((done, list, seen), (3, [7, 0, 5, 1, 6], 1));
}

/// Nothing is copied if nothing changes: the batch itself is handed on, list and all.
#[test]
fn frames_that_stay_as_they_are_go_at_once() {
    let frame = vec![0; 60];
    let mut batch = Batch::new();
    (0..3).for_each(|_| add(&mut batch, &frame, 60, Offload::NONE));
    let same = |from: &Vlan, to: &Vlan| {
        let domains = [from.enter(&frame).unwrap(); 3];
        let mut lent = false;
        let to = (to, &Counters::default());
        Retagged::new().push(&batch, &mut [2, 0], (from, &domains), to, |b, list| {
            lent = std::ptr::eq(b.frame(0).unwrap().head, batch.frame(0).unwrap().head);
            assert!(!lent || list == [2, 0]);
            list.len()
        });
        lent
    };
    assert!(same(&Vlan::Open, &Vlan::Open) && same(&Vlan::Qinq(1), &Vlan::Qinq(1)));
    assert!(same(&Vlan::Access(20), &Vlan::Access(20)) && same(&Vlan::Access(20), &trunk()));
    assert!(!same(&Vlan::Access(10), &trunk()));
}
