//! Veth pairs in network namespaces of their own (as root): `near` is the port's interface, `far`
//! is what a cable would lead to.
use vmlan_frame::{BATCH, MIN_FRAME};

use super::*;
use crate::tests::transfer::{Host, sum, transfer};
use crate::tests::veth::{far, foreign, pair, rings, send, sleeps_while_frames_are_held, tagged};
use crate::tests::{Keep, bytes_of, counted, frame, ip, namespace, pull, push, run, wait};

fn open_near() -> Packet {
    let config = Config { label: "near".to_owned(), name: "near".to_owned() };
    let packet = open(&config, counted().1).unwrap();
    wait("up", || packet.port().is_up());
    packet
}

#[test]
fn frames_come_in_as_they_are() {
    namespace(|| {
        pair();
        // Longer frames than slots are: they take the other way.
        ip("link set far mtu 9000");
        ip("link set near mtu 9000");
        let mut packet = open_near();
        packet.close();
        ip("link set near mtu 1500");
        let packet = open_near();
        ip("link set near mtu 9000");
        let far = far();
        let lengths = [14, 15, 59, 60, 128, 129, 1514, 1900, 1990, 2048, 5000, 9014];
        let plain = lengths.map(|len| foreign(2, len));
        let q = tagged(&foreign(2, 100), [0x81, 0, 0x60, 5]);
        let ad = tagged(&foreign(2, 1500), [0x88, 0xa8, 0, 9]);
        let both = tagged(&q, [0x88, 0xa8, 0xe0, 7]);
        let long = tagged(&foreign(2, 8000), [0x81, 0, 0x0f, 0xff]);
        let sent = [plain.to_vec(), vec![q, ad, both, long]].concat();
        sent.iter().for_each(|f| send(&far, f));
        let got = bytes_of(pull(&*packet.port(), sent.len()));
        let lengths = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&got), lengths(&sent));
        assert!(got == sent);
        let (input, _) = packet.port().counters().snapshot();
        assert_eq!(input.frames, sent.len() as u64);
        assert_eq!(input.bytes, sent.iter().map(|f| f.len() as u64).sum::<u64>());
    });
}

#[test]
fn frames_go_out_as_they_are_and_do_not_come_back() {
    namespace(|| {
        pair();
        let near = open_near();
        let config = Config { label: "far".to_owned(), name: "far".to_owned() };
        let far = open(&config, counted().1).unwrap();
        let q = tagged(&foreign(2, 1514), [0x81, 0, 0x60, 5]);
        // The kernel has room beyond the MTU for a tag of 802.1Q only.
        let both = tagged(&q, [0x88, 0xa8, 0xe0, 7])[..1514].to_vec();
        let sent = [foreign(2, 14), foreign(0xff, 60), foreign(2, 1514), q, both];
        let frames = sent.each_ref().map(|f| (&f[..], Offload::NONE));
        assert_eq!(push(&*near.port(), &frames), sent.len());
        assert!(bytes_of(pull(&*far.port(), sent.len())) == sent);
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        assert_eq!(
            near.port().pull(0, &mut batch, BATCH, &mut keep),
            0,
            "its own are not received"
        );
        let long = foreign(2, 1600);
        let runt = &foreign(2, 14)[..MIN_FRAME - 1];
        assert_eq!(push(&*near.port(), &[(&long, Offload::NONE), (runt, Offload::NONE)]), 2);
        let output = &near.0.port.link.counters.output;
        assert_eq!((output.dropped(Reason::TooLong), output.dropped(Reason::Runt)), (1, 1));
    });
}

#[test]
fn the_interface_is_promiscuous_while_it_is_a_port() {
    namespace(|| {
        pair();
        let promiscuity = || {
            let mut show = std::process::Command::new("ip");
            let out = show.args(["-d", "link", "show", "near"]).output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            let mut words = text.split_whitespace().skip_while(|w| *w != "promiscuity").skip(1);
            words.next().unwrap().to_owned()
        };
        assert_eq!(promiscuity(), "0");
        let near = open_near();
        assert_eq!(promiscuity(), "1");
        drop(near);
        assert_eq!(promiscuity(), "0");
    });
}

/// The host at `address`, whose cable `far` leads to the port.
fn host(address: &str) -> Host {
    pair();
    ip(&format!("address add {address}/24 dev far"));
    let near = open_near();
    Some((near.port(), Box::new(near)))
}

#[test]
fn tcp_in_large_segments_both_ways() {
    let Some(seen) = transfer(host, host) else { return };
    for (gso, csum) in seen {
        assert!(gso > 0 && csum > 0, "{gso} to be segmented, {csum} to be summed");
    }
}

/// A TCP segment of 40,000 bytes from 10.9.8.2 to 10.9.8.1, to be cut into pieces of 1448 bytes;
/// with a tag if there is one.
fn large(tag: Option<[u8; 4]>) -> (Vec<u8>, Offload) {
    let payload: Vec<u8> = (0..40_000).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
    let tcp_len = u16::try_from(20 + payload.len()).unwrap();
    let mut f = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
    f.extend([8, 0, 0x45, 0]);
    f.extend((20 + tcp_len).to_be_bytes());
    f.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 8, 2, 10, 9, 8, 1]);
    let header = !sum(&f[14..34]);
    f[24..26].copy_from_slice(&header.to_be_bytes());
    let pseudo = sum(&[&f[26..34], &[0, 6], &tcp_len.to_be_bytes()].concat());
    f.extend([0x1b, 0x58, 0x1b, 0x59, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0]);
    f.extend(pseudo.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    let shift = u16::from(tag.is_some()) * 4;
    let offload = Offload {
        needs_csum: true,
        gso: Gso::Tcp4,
        gso_size: 1448,
        hdr_len: 54 + shift,
        csum_start: 34 + shift,
        csum_offset: 16,
        ..Offload::NONE
    };
    (tag.map_or(f.clone(), |tag| tagged(&f, tag)), offload)
}

#[test]
fn a_large_segment_keeps_its_offloads_with_and_without_a_tag() {
    namespace(|| {
        pair();
        let near = open_near();
        let config = Config { label: "far".to_owned(), name: "far".to_owned() };
        let far = open(&config, counted().1).unwrap();
        for tag in [None, Some([0x81, 0, 0, 5]), Some([0x88, 0xa8, 0x20, 5])] {
            let (f, offload) = large(tag);
            push(&*near.port(), &[(&f, offload)]);
            let got = pull(&*far.port(), 1);
            assert!(got[0].0 == f, "{tag:?}: {} bytes of {}", got[0].0.len(), f.len());
            assert_eq!(got[0].1, offload, "{tag:?}");
        }
    });
}

/// A guest with jumbo frames beside an uplink without.
#[test]
fn segments_longer_than_the_mtu_are_not_sent() {
    namespace(|| {
        pair();
        let (near, far) = (open_near(), far());
        for tag in [None, Some([0x81, 0, 0, 5])] {
            let (f, offload) = large(tag);
            let cut_to = |gso_size| (&f[..], Offload { gso_size, ..offload });
            push(&*near.port(), &[cut_to(4000), cut_to(1461), cut_to(1460)]);
            let mut bytes = vec![0; 1 << 17];
            // The kernel takes tags out.
            assert_eq!(rustix::io::read(&far, &mut bytes), Ok(40_054), "the last one");
            assert!(rustix::io::read(&far, &mut bytes).is_err(), "and nothing else");
        }
        assert_eq!(near.port().counters().output.dropped(Reason::TooLong), 4);
    });
}

#[test]
fn an_interface_that_cannot_segment_gets_finished_frames() {
    namespace(|| {
        pair();
        run("ethtool", "-K near tso off gso off tx off");
        let near = open_near();
        let config = Config { label: "far".to_owned(), name: "far".to_owned() };
        let far = open(&config, counted().1).unwrap();
        for tag in [None, Some([0x81, 0, 0, 5])] {
            let (f, offload) = large(tag);
            push(&*near.port(), &[(&f, offload)]);
            let got = pull(&*far.port(), 28);
            let l3 = 14 + tag.map_or(0, |_| 4);
            let mut payload: Vec<u8> = Vec::new();
            for (piece, offload) in &got {
                assert!(!offload.needs_csum);
                let tcp = &piece[l3 + 20..];
                let len = u16::try_from(tcp.len()).unwrap().to_be_bytes();
                let pseudo = [&piece[l3 + 12..l3 + 20], &[0, 6], &len, tcp].concat();
                assert_eq!(sum(&pseudo), 0xffff, "{tag:?}");
                payload.extend(&tcp[20..]);
            }
            assert!(payload == f[l3 + 40..], "{tag:?}");
        }
    });
}

#[test]
fn link_down_costs_frames_and_is_survived() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, f) = (near.port(), foreign(2, 60));
        for ends in [["far", "near"], ["near", "far"]] {
            let before = port.counters().output.dropped(Reason::LinkDown);
            ip(&format!("link set {} down", ends[0]));
            wait("down", || !port.is_up());
            assert!(!port.arm(0), "no reason to stay awake");
            assert_eq!(near.details()[1].1, "link down");
            if ends[0] == "near" {
                assert_eq!(push(&*port, &[(&f[..], Offload::NONE); 3]), 3);
                assert_eq!(port.counters().output.dropped(Reason::LinkDown), before + 3);
            }
            ip(&format!("link set {} up", ends[0]));
            wait("up", || port.is_up());
            let far = far();
            let (_, output) = port.counters().snapshot();
            assert_eq!(push(&*port, &[(&f, Offload::NONE)]), 1);
            assert_eq!(port.counters().snapshot().1.frames, output.frames + 1, "the first one");
            send(&far, &f);
            assert!(bytes_of(pull(&*port, 1)) == [f.clone()]);
        }
    });
}

#[test]
fn a_deleted_interface_is_waited_for_without_rights() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, f) = (near.port(), foreign(2, 60));
        ip("link delete near");
        wait("gone", || near.details()[1].1.starts_with("gone"));
        assert!(!port.is_up() && !port.arm(0) && near.mtu().is_none());
        assert_eq!(push(&*port, &[(&f, Offload::NONE)]), 1);
        assert_eq!(port.counters().output.dropped(Reason::LinkDown), 1);
        wait("told", || near.details()[1].1.contains("no such interface"));
        // One of that name without MAC addresses, whose packets are no frames.
        ip("tuntap add near mode tun");
        wait("told", || near.details()[1].1.contains("no Ethernet device"));
        ip("link delete near");
        pair();
        wait("back", || port.is_up());
        assert_eq!(near.details()[1].1, "up");
        let far = far();
        send(&far, &f);
        assert!(bytes_of(pull(&*port, 1)) == [f.clone()]);
        assert_eq!(push(&*port, &[(&f, Offload::NONE)]), 1);
        assert_eq!(port.counters().snapshot().1.frames, 1);
        assert_eq!(port.counters().drops().map(|(_, n)| n).sum::<u64>(), 1);
    });
}

#[test]
fn the_mtu_is_followed() {
    namespace(|| {
        pair();
        let near = open_near();
        assert_eq!(near.mtu(), Some(1500));
        ip("link set near mtu 1400");
        wait("it", || near.mtu() == Some(1400));
    });
}

#[test]
fn what_came_too_fast_is_counted() {
    namespace(|| {
        pair();
        let near = open_near();
        let far = far();
        let f = foreign(2, 60);
        (0..3000).for_each(|_| send(&far, &f));
        let port = near.port();
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        wait("sleep", || port.pull(0, &mut batch, BATCH, &mut keep) == 0 && !port.arm(0));
        port.count_doorbells();
        port.count_doorbells();
        let lost = port.counters().input.dropped(Reason::Overrun);
        assert!(keep.frames.len() >= 1000, "{}", keep.frames.len());
        assert_eq!(keep.frames.len() as u64 + lost, 3000);
        send(&far, &f);
        assert_eq!(pull(&*port, 1).len(), 1, "the ring goes on");
    });
}

#[test]
fn a_new_frame_rings_once_it_has_been_looked_for_in_vain() {
    namespace(|| {
        pair();
        rings(&*open_near().port());
    });
}

#[test]
fn a_worker_sleeps_while_frames_are_held() {
    namespace(|| {
        pair();
        sleeps_while_frames_are_held(&*open_near().port());
    });
}

#[test]
fn a_worker_that_finds_the_lock_taken_looks_again() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, mut batch, mut keep) = (near.port(), Batch::new(), Keep::default());
        wait("sleep", || port.pull(0, &mut batch, BATCH, &mut keep) == 0 && !port.arm(0));
        let taken = lock(&near.0.port.tx);
        assert_eq!(port.pull(0, &mut batch, BATCH, &mut keep), 0);
        assert!(port.arm(0), "it may not sleep");
        drop(taken);
        wait("sleep", || port.pull(0, &mut batch, BATCH, &mut keep) == 0 && !port.arm(0));
    });
}

#[test]
fn errors_say_what_to_do() {
    namespace(|| {
        pair();
        let config = |name: &str| Config { label: String::new(), name: name.to_owned() };
        let fails = |name| open(&config(name), counted().1).unwrap_err();
        assert!(matches!(fails("nothing"), PacketError::NoDevice(..)));
        assert!(matches!(fails("lo"), PacketError::NotEthernet(..)));
        let nobody = rustix::thread::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let e = fails("near");
        assert!(matches!(e, PacketError::NotAllowed(..)), "{e}");
        assert!(e.to_string().contains("CAP_NET_RAW"), "{e}");
    });
}

#[test]
fn tags_move_what_is_behind_them() {
    let offload = Offload { needs_csum: true, csum_start: 34, csum_offset: 16, ..Offload::NONE };
    let f = frame(2, 100);
    let message = [&[0; TAG][..], &vnet_header::emit(&offload), &f].concat();
    let n = message.len() - TAG;
    let mut room = message.clone();
    let (start, end, said) = place(&mut room, n, None).unwrap();
    assert_eq!((&room[start..end], said), (&f[..], offload));
    let tag = [0x81, 0, 0, 5];
    let (start, end, said) = place(&mut room, n, Some(tag)).unwrap();
    assert!(room[start..end] == tagged(&f, tag));
    assert_eq!(said, Offload { csum_start: 38, ..offload });
    for n in 0..vnet_header::LEN + MACS {
        assert_eq!(place(&mut message.clone(), n, Some(tag)), Err(Reason::Runt), "{n} bytes");
    }
    let high = Offload { csum_start: u16::MAX - 1, ..offload };
    let mut room = [&[0; TAG][..], &vnet_header::emit(&high), &f].concat();
    assert_eq!(place(&mut room, n, Some(tag)).unwrap().2.csum_start, u16::MAX);
}

#[test]
fn random_headers_do_no_harm() {
    let mut random = crate::tests::Random(7);
    let mut batch = Batch::new();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut room = vec![0; TAG + random.below(200)];
        random.fill(&mut room);
        if let Some(kind) = room.get_mut(TAG + 1) {
            *kind &= 0x85;
        }
        let (n, tag) = (room.len() - TAG, (random.below(2) == 0).then_some([0x81, 0, 0, 5]));
        let placed = place(&mut room, n, tag).and_then(|(start, end, offload)| {
            batch.clear();
            let mut own = Batch::take(&mut batch);
            let added = own.add(&[vmlan_ram::Slice::from_bytes(&room[start..end])], offload);
            own.give_back(&mut batch);
            added
        });
        let count = if placed.is_ok() { &mut taken } else { &mut refused };
        *count += 1;
    }
    assert!(taken > 100 && refused > 100, "{taken} {refused}");
}

#[test]
fn a_frame_that_headers_cannot_describe_does_not_stop_those_behind_it() {
    namespace(|| {
        let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        sys::tun_attach(tun.as_fd(), "near", flags).unwrap();
        sys::tun_set_header(tun.as_fd(), vnet_header::LEN_FOR_IOCTL).unwrap();
        ip("link set near up");
        let near = open_near();
        let port = near.port();
        // A UDP datagram to be sent as fragments of 1000 bytes.
        let mut f = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
        f.extend([8, 0, 0x45, 0, 0x07, 0xec, 0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 8, 2, 10, 9, 8, 1]);
        let header = !sum(&f[14..34]);
        f[24..26].copy_from_slice(&header.to_be_bytes());
        f.extend([0x1b, 0x58, 0x1b, 0x59, 0x07, 0xd8, 0, 0]);
        f.extend([5; 2000]);
        let mut undescribed = vec![1, 3, 42, 0, 0xe8, 3, 34, 0, 6, 0, 0, 0];
        undescribed.extend(f);
        let plain = foreign(2, 60);
        let message = [&vnet_header::emit(&Offload::NONE)[..], &plain].concat();
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        for _ in 0..2 {
            let before = keep.frames.len();
            assert_eq!(rustix::io::write(&tun, &undescribed).unwrap(), undescribed.len());
            wait("a plain frame", || {
                assert_eq!(rustix::io::write(&tun, &message).unwrap(), message.len());
                port.pull(0, &mut batch, BATCH, &mut keep);
                keep.frames.len() > before
            });
        }
        assert!(keep.frames.iter().all(|(f, _)| *f == plain));
        port.count_doorbells();
        assert!(port.counters().input.dropped(Reason::Overrun) >= 2);
    });
}

#[test]
fn a_frame_missing_beside_the_ring_is_no_other_frame() {
    namespace(|| {
        pair();
        ip("link set far mtu 9000");
        let near = open_near();
        ip("link set near mtu 9000");
        let (port, far) = (near.port(), far());
        let marker = foreign(4, 3000);
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        for n in 1..3 {
            [5000, 6000].iter().for_each(|len| send(&far, &foreign(2, *len)));
            let mut taken = [0; 9100];
            rustix::io::read(&near.0.port.socket, &mut taken).unwrap();
            wait("the frames behind it", || {
                port.pull(0, &mut batch, BATCH, &mut keep);
                let errors = port.counters().input.dropped(Reason::DeviceError);
                errors == n && {
                    send(&far, &marker);
                    keep.frames.iter().any(|(f, _)| *f == marker)
                }
            });
            assert!(keep.frames.drain(..).all(|(f, _)| f == marker));
        }
    });
}
