//! Real devices in network namespaces of their own (as root), and sockets that play a device.
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;

use rustix::event::epoll;
use vmlan_frame::{Gso, MIN_FRAME, Offload};
use vmlan_ram::Slice;

use super::*;
use crate::tests::transfer::{Host, sum, transfer};
use crate::tests::{Keep, counted, frame, ip, push, required, wait};

/// Runs `f` in a thread with its own network namespace and TAP devices; none if we may not.
fn namespace<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    crate::tests::namespace(|| allowed().then(f)).flatten()
}

/// True if there are TAP devices for us.
fn allowed() -> bool {
    let outcome = std::fs::metadata("/dev/net/tun");
    if let Err(e) = &outcome {
        assert!(!required("VMLAN_REQUIRE_ROOT"), "TAP tests need /dev/net/tun: {e}");
        println!("skipped: TAP tests need /dev/net/tun: {e}");
    }
    outcome.is_ok()
}

/// Opens `vmlan0` here, with an address on the host's side.
fn host(address: &str, queues: u16, offload: bool) -> Tap {
    let config = Config { queues, offload, ..Config::new("vmlan0") };
    let tap = open(config, counted().1).unwrap();
    assert!(tap.port().is_up(), "what we create is up at once");
    ip(&format!("address add {address}/24 dev vmlan0"));
    tap
}

/// A port whose device is a socket: messages have bounds there too.
fn fake() -> (TapPort, UnixDatagram) {
    let (ours, kernel) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let port = TapPort::new(Config::new("fake"), counted().1).unwrap();
    let queues = vec![Arc::new(OwnedFd::from(ours))];
    port.install(device::Device { queues, offloads: Offloads::ALL });
    port.link.up.store(true, Ordering::SeqCst);
    (port, kernel)
}

fn message(frame: &[u8]) -> Vec<u8> {
    [&[0; vnet_header::LEN], frame].concat()
}

fn pull_now(port: &TapPort, limit: usize) -> Keep {
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    port.pull(0, &mut batch, limit, &mut keep);
    keep
}

#[test]
fn names_and_queues_are_checked() {
    for name in ["", "a/b", "tap%d", "a b", "0123456789abcdef", "..", "ä"] {
        assert!(matches!(device::check(&Config::new(name)), Err(TapError::BadName(_))), "{name}");
    }
    for queues in [0, 257, u16::MAX] {
        let config = Config { queues, ..Config::new("vmlan0") };
        assert!(matches!(device::check(&config), Err(TapError::BadQueues(_))));
    }
    assert!(device::check(&Config::new("vmlan0")).is_ok());
}

#[test]
fn header_round_trips() {
    for gso in [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp] {
        let o = Offload {
            needs_csum: true,
            gso,
            ecn: gso == Gso::Tcp4,
            gso_size: 1448,
            hdr_len: 66,
            csum_start: 34,
            csum_offset: 16,
            csum_valid: false,
        };
        assert_eq!(vnet_header::parse(&vnet_header::emit(&o)), Ok(o));
    }
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    assert_eq!(vnet_header::parse(&vnet_header::emit(&valid)), Ok(valid));
    for kind in (0..=255u8).filter(|k| ![0, 1, 4, 5].contains(&(k & 0x7f))) {
        let h = [0, kind, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(vnet_header::parse(&h), Err(Reason::BadOffload), "kind {kind}");
    }
}

#[test]
fn a_message_shorter_than_its_header() {
    let (port, kernel) = fake();
    for len in 0..vnet_header::LEN + MIN_FRAME {
        kernel.send(&vec![0; len]).unwrap();
        assert_eq!(pull_now(&port, 256).frames.len(), 0, "{len} bytes");
    }
    let input = &port.link.counters.input;
    assert_eq!(input.dropped(Reason::Runt), (vnet_header::LEN + MIN_FRAME) as u64);
    kernel.send(&message(&frame(1, MIN_FRAME))).unwrap();
    assert_eq!(pull_now(&port, 256).frames[0].0, frame(1, MIN_FRAME));
}

#[test]
fn headers_that_lie_cost_their_frame() {
    let (port, kernel) = fake();
    let lies: [[u8; vnet_header::LEN]; 4] = [
        [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        [0, 3, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 34, 0, 16, 0],
    ];
    for h in &lies {
        kernel.send(&[&h[..], &frame(1, 200)].concat()).unwrap();
    }
    kernel.send(&message(&frame(2, 200))).unwrap();
    assert_eq!(pull_now(&port, 256).frames.len(), 1);
    assert_eq!(port.link.counters.drops().map(|(_, n)| n).sum::<u64>(), 4);
}

#[test]
fn no_errno_ends_more_than_its_frame() {
    let (port, kernel) = fake();
    let f = frame(1, 60);
    drop(kernel);
    for _ in 0..3 {
        assert_eq!(push(&port, &[(&f, Offload::NONE), (&f, Offload::NONE)]), 2);
    }
    assert_eq!(port.link.counters.output.dropped(Reason::DeviceError), 6);
    for (errno, reason) in [
        (libc::EIO, Reason::LinkDown),
        (libc::EBADFD, Reason::LinkDown),
        (libc::EINVAL, Reason::DeviceError),
        (libc::EAGAIN, Reason::ReceiverFull),
        (libc::ENOMEM, Reason::DeviceError),
        (libc::ENOBUFS, Reason::ReceiverFull),
        (libc::EFAULT, Reason::DeviceError),
    ] {
        assert_eq!(port.link.refused(&io::Error::from_raw_os_error(errno)), reason);
    }
}

/// Reading an epoll descriptor fails with EINVAL, as reading a TAP device does when a frame cannot
/// be described. That ends too, so the worker goes on looking; it does not do so for ever.
#[test]
fn errors_of_reading_cost_frames_and_neither_the_device_nor_the_worker() {
    let (port, _kernel) = fake();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    port.install(device::Device { queues: vec![Arc::new(epoll)], offloads: Offloads::ALL });
    assert!(pull_now(&port, 256).frames.is_empty());
    assert_eq!(port.link.counters.input.dropped(Reason::DeviceError), BATCH as u64);
    assert!(port.arm(0), "there may be frames behind them");
    let looks = (0..1000).take_while(|_| pull_now(&port, 256).frames.is_empty() && port.arm(0));
    assert_eq!(looks.count(), ERRORS - 1);
    // A doorbell is worth one more look.
    pull_now(&port, 256);
    assert!(!port.arm(0));
    let errors = port.link.counters.input.dropped(Reason::DeviceError);
    assert_eq!(errors, (BATCH * (ERRORS + 2)) as u64);
    assert!(!port.link.gone.load(Ordering::SeqCst));
}

#[test]
fn a_frame_the_kernel_refuses() {
    namespace(|| {
        let tap = host("10.9.8.1", 1, true);
        let port = tap.port();
        let f = frame(0xfe, 60);
        let bad = Offload { needs_csum: true, csum_start: 60_000, ..Offload::NONE };
        assert_eq!(push(&*port, &[(&f, bad), (&f, Offload::NONE)]), 2);
        assert_eq!(port.counters().output.dropped(Reason::DeviceError), 1);
        assert_eq!(port.counters().snapshot().1.frames, 1, "the next one is taken");
    });
}

#[test]
fn link_down_costs_frames_and_is_survived() {
    namespace(|| {
        let tap = host("10.9.8.1", 1, true);
        let port = tap.port();
        let f = frame(0xfe, 60);
        ip("link set vmlan0 down");
        wait("down", || !port.is_up());
        assert_eq!(push(&*port, &[(&f[..], Offload::NONE); 3]), 3);
        assert_eq!(port.counters().output.dropped(Reason::LinkDown), 3);
        assert!(!port.arm(0), "no reason to stay awake");
        assert_eq!(tap.details()[1].1, "link down");
        ip("link set vmlan0 up");
        wait("up", || port.is_up());
        assert_eq!(push(&*port, &[(&f, Offload::NONE)]), 1);
        assert_eq!(port.counters().snapshot().1.frames, 1);
    });
}

#[test]
fn a_device_stays_as_long_as_somebody_has_its_queues() {
    namespace(|| {
        let mut tap = host("10.9.8.1", 2, true);
        let kept = tap.queues().0;
        tap.close();
        drop(tap);
        let copies = || kept.iter().map(|queue| queue.try_clone().unwrap()).collect::<Vec<_>>();
        let with = |name, queues| Config { queues, ..Config::new(name) };
        let pipes = || (0..2).map(|_| std::io::pipe().unwrap().0.into()).collect();
        let others = [
            (with("vmlan1", 2), copies()),
            (with("vmlan0", 1), copies()),
            (with("vmlan0", 3), copies()),
            (with("vmlan0", 2), pipes()),
            (with("vmlan0", 2), Vec::new()),
        ];
        for (config, queues) in others {
            assert!(adopt(config, queues, counted().1).is_none());
        }
        ip("address show dev vmlan0 to 10.9.8.1");
        let tap = adopt(with("vmlan0", 2), copies(), counted().1).unwrap();
        let port = tap.port();
        assert!(port.is_up());
        assert_eq!(push(&*port, &[(&frame(0xfe, 60), Offload::NONE)]), 1);
        assert_eq!(port.counters().snapshot().1.frames, 1);
        // A deleted one is no device any more, whoever has its queues.
        drop((tap, port));
        ip("link delete vmlan0");
        assert!(adopt(with("vmlan0", 2), copies(), counted().1).is_none());
    });
}

#[test]
fn a_deleted_device_is_made_again() {
    namespace(|| {
        let (changes, changed) = counted();
        let tap = open(Config::new("vmlan0"), changed).unwrap();
        let port = tap.port();
        let (old, version) = (port.doorbells(0), port.doorbells_version());
        let before = changes.load(Ordering::SeqCst);
        ip("link delete vmlan0");
        wait("the new one", || port.doorbells_version() >= version + 2 && port.is_up());
        assert!(changes.load(Ordering::SeqCst) > before, "workers were told");
        assert!(!Arc::ptr_eq(&old[0], &port.doorbells(0)[0]));
        let watched = Arc::downgrade(&old[0]);
        assert_eq!(watched.strong_count(), 2, "a worker is not the last that has it");
        drop(old);
        wait("its end", || watched.strong_count() == 0);
        assert_eq!(push(&*port, &[(&frame(0xfe, 60), Offload::NONE)]), 1);
        assert_eq!(port.counters().snapshot().1.frames, 1);
    });
}

#[test]
fn a_name_taken_meanwhile_is_told_and_waited_for() {
    namespace(|| {
        let tap = host("10.9.8.1", 1, true);
        let port = tap.port();
        ip("link set vmlan0 down");
        ip("link set vmlan0 name other0");
        ip("link add vmlan0 type bridge");
        ip("link delete other0");
        wait("told", || tap.details()[1].1.contains("not a tap device"));
        assert!(!port.is_up() && !port.arm(0));
        assert_eq!(push(&*port, &[(&frame(1, 60), Offload::NONE)]), 1);
        assert_eq!(port.counters().output.dropped(Reason::LinkDown), 1);
        ip("link delete vmlan0");
        wait("back", || port.is_up());
        assert_eq!(tap.details()[1].1, "up");
    });
}

fn free(name: &str) -> bool {
    let socket = UnixDatagram::unbound().unwrap();
    sys::link_flags(socket.as_fd(), name).is_err()
}

#[test]
fn short_long_and_scattered_frames() {
    namespace(|| {
        let tap = host("10.9.8.1", 1, true);
        let port = tap.port();
        for len in [14, 15, 59, 60, 128, 129, 1514, vmlan_frame::MAX_FRAME] {
            assert_eq!(push(&*port, &[(&frame(0xfe, len), Offload::NONE)]), 1, "{len}");
        }
        let f = frame(0xfe, 1000);
        let mut batch = Batch::new();
        batch.add_parts(&f[..14], f[14..].chunks(1).map(Slice::from_bytes), Offload::NONE).unwrap();
        batch.add_parts(&f[..13], [], Offload::NONE).unwrap();
        assert_eq!(port.push(&batch, &mut [0, 1]), 2);
        assert_eq!(port.counters().snapshot().1.frames, 9);
        assert_eq!(port.counters().output.dropped(Reason::Runt), 1);
    });
}

#[test]
fn scattered_frames_arrive_whole() {
    let (port, kernel) = fake();
    let f = frame(3, 1000);
    let mut batch = Batch::new();
    for size in [1, 100, 986] {
        let pieces = f[14..].chunks(size).map(Slice::from_bytes);
        batch.add_parts(&f[..14], pieces, Offload::NONE).unwrap();
    }
    assert_eq!(port.push(&batch, &mut [0, 1, 2]), 3);
    for _ in 0..3 {
        let mut got = [0; 2000];
        let n = kernel.recv(&mut got).unwrap();
        assert_eq!(got[..n], message(&f));
    }
}

#[test]
fn held_frames_stay_and_let_the_worker_sleep() {
    let (port, kernel) = fake();
    kernel.send(&message(&frame(1, 100))).unwrap();
    kernel.send(&message(&frame(2, 100))).unwrap();
    let (mut batch, mut keep) = (Batch::new(), Keep { hold: Some(1), ..Keep::default() });
    assert_eq!(port.pull(0, &mut batch, 256, &mut keep), 1);
    assert!(!port.arm(0));
    kernel.send(&message(&frame(3, 100))).unwrap();
    keep.hold = None;
    assert_eq!(port.pull(0, &mut batch, 256, &mut keep), 2);
    let order: Vec<u8> = keep.frames.iter().map(|(f, _)| f[0]).collect();
    assert_eq!(order, [2, 1, 3]);
}

#[test]
fn a_limit_is_kept_and_the_rest_keeps_the_worker_awake() {
    let (port, kernel) = fake();
    for i in 0..6 {
        kernel.send(&message(&frame(i, 100))).unwrap();
    }
    assert_eq!(pull_now(&port, 4).frames.len(), 4);
    assert!(port.arm(0), "two are waiting");
    assert_eq!(pull_now(&port, 4).frames.len(), 2);
    assert!(!port.arm(0));
}

#[test]
fn closing_takes_our_device_away_and_leaves_others() {
    namespace(|| {
        let mut tap = host("10.9.8.1", 2, true);
        assert_eq!(tap.port().doorbells(0).len(), 2);
        tap.close();
        assert!(!tap.port().is_up());
        wait("gone", || free("vmlan0"));
        ip("tuntap add vmlan0 mode tap multi_queue vnet_hdr");
        let tap = open(Config::new("vmlan0"), counted().1).unwrap();
        assert!(!tap.port().is_up(), "its owner decides when it is up");
        drop(tap);
        assert!(!free("vmlan0"), "its owner's device stays");
        ip("tuntap add plain0 mode tap");
        let two = Config { queues: 2, ..Config::new("plain0") };
        assert!(matches!(open(two, counted().1), Err(TapError::NotTap(..))));
        let _one = open(Config::new("plain0"), counted().1).unwrap();
        let busy = open(Config::new("plain0"), counted().1).unwrap_err();
        assert!(matches!(busy, TapError::Busy { .. }));
        let says = "another port of this program uses it, and a device made without multi_queue";
        assert!(busy.to_string().contains(says), "{busy}");
    });
}

#[test]
fn an_ordinary_user_may_use_a_device_made_for_them_and_is_told_how() {
    namespace(|| {
        ip("tuntap add mine0 mode tap user 65534 multi_queue vnet_hdr");
        ip("tuntap add theirs0 mode tap user 65533 multi_queue vnet_hdr");
        ip("link set mine0 up");
        let nobody = rustix::thread::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        if let Err(e) = std::fs::File::options().write(true).open("/dev/net/tun") {
            assert!(!required("VMLAN_REQUIRE_ROOT"), "/dev/net/tun is closed to users: {e}");
            println!("skipped: /dev/net/tun is closed to users: {e}");
            return;
        }
        for queues in [1, 4] {
            let config = Config { queues, ..Config::new("mine0") };
            let tap = open(config, counted().1).unwrap();
            assert!(tap.port().is_up());
            assert_eq!(push(&*tap.port(), &[(&frame(0xfe, 60), Offload::NONE)]), 1);
            assert_eq!(tap.port().counters().snapshot().1.frames, 1);
        }
        for name in ["theirs0", "new0"] {
            let e = open(Config { queues: 2, ..Config::new(name) }, counted().1).unwrap_err();
            let fix = format!("ip tuntap add {name} mode tap user nobody multi_queue vnet_hdr");
            assert!(e.to_string().contains(&fix), "{e}");
        }
    });
}

#[test]
fn random_messages_do_no_harm() {
    let (port, kernel) = fake();
    let mut random = crate::tests::Random(7);
    for round in 0..2000 {
        let mut bytes = vec![0; random.below(if round % 50 == 0 { 80_000 } else { 300 })];
        random.fill(&mut bytes);
        if let Some(kind) = bytes.get_mut(1) {
            *kind &= 0x85;
        }
        kernel.send(&bytes).unwrap();
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        port.pull(0, &mut batch, 1 + random.below(256), &mut keep);
    }
    let (input, _) = port.link.counters.snapshot();
    let dropped: u64 = port.link.counters.drops().map(|(_, n)| n).sum();
    assert_eq!(input.frames + dropped, 2000, "every message became a frame or a counted drop");
    assert!(input.frames > 100 && dropped > 100);
}

#[test]
fn tcp_with_offloads_on_and_off() {
    for (queues, offloads) in
        [(1, [true, true]), (1, [false, false]), (1, [true, false]), (4, [false, true])]
    {
        let joined = |offload| {
            move |address: &str| -> Host {
                let tap = allowed().then(|| host(address, queues, offload))?;
                Some((tap.port(), Box::new(tap)))
            }
        };
        let Some(seen) = transfer(joined(offloads[0]), joined(offloads[1])) else { return };
        for (on, (gso, csum)) in offloads.iter().zip(seen) {
            assert_eq!(*on, gso > 0, "segmentation left to us: {gso} frames, {offloads:?}");
            assert_eq!(*on, csum > 0, "checksums left to us: {csum} frames, {offloads:?}");
        }
    }
}

/// A UDP datagram from 10.9.8.2 to port 7001 of 10.9.8.1; the checksum field holds `csum` of the
/// pseudo-header's sum and the datagram's.
fn udp(payload: &[u8], csum: impl Fn(u16, u16) -> u16) -> Vec<u8> {
    let udp_len = u16::try_from(8 + payload.len()).unwrap();
    let mut f = [[0xff; 6], [0x52, 0x54, 0, 0, 0, 2]].concat();
    f.extend([8, 0, 0x45, 0]);
    f.extend((20 + udp_len).to_be_bytes());
    f.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 8, 2, 10, 9, 8, 1]);
    let header = !sum(&f[14..34]);
    f[24..26].copy_from_slice(&header.to_be_bytes());
    let pseudo = [&f[26..34], &[0, 17], &udp_len.to_be_bytes()].concat();
    f.extend([0x1b, 0x58, 0x1b, 0x59]);
    f.extend(udp_len.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    let field = csum(sum(&pseudo), sum(&[&pseudo[..], &f[34..]].concat()));
    f[40..42].copy_from_slice(&field.to_be_bytes());
    f
}

#[test]
fn the_kernel_finishes_our_checksums_and_checks_the_others() {
    namespace(|| {
        let tap = host("10.9.8.1", 1, true);
        let port = tap.port();
        let socket = UdpSocket::bind("10.9.8.1:7001").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let partial = Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::NONE };
        let wrong = udp(b"wrong", |_, full| !full ^ 1);
        let full = udp(b"full", |_, full| !full);
        let unfinished = udp(b"partial", |pseudo, _| pseudo);
        push(&*port, &[(&wrong, Offload::NONE), (&full, Offload::NONE), (&unfinished, partial)]);
        let mut buf = [0; 100];
        for expected in [&b"full"[..], b"partial"] {
            let n = socket.recv(&mut buf).unwrap();
            assert_eq!(&buf[..n], expected);
        }
    });
}

#[test]
fn the_host_leaves_udp_checksums_to_us_only_if_asked() {
    for offload in [true, false] {
        namespace(move || {
            let tap = host("10.9.8.1", 1, offload);
            ip("neighbor add 10.9.8.2 lladdr 52:54:00:00:00:02 dev vmlan0");
            let socket = UdpSocket::bind("10.9.8.1:7001").unwrap();
            socket.send_to(b"hello", "10.9.8.2:7000").unwrap();
            let ours = |f: &[u8]| f.len() == 47 && f[12..14] == [8, 0];
            let port = tap.port();
            let (mut batch, mut keep) = (Batch::new(), Keep::default());
            wait("the datagram", || {
                port.pull(0, &mut batch, 256, &mut keep);
                keep.frames.iter().any(|(f, _)| ours(f))
            });
            let (f, o) = keep.frames.iter().find(|(f, _)| ours(f)).unwrap();
            assert_eq!(o.needs_csum, offload);
            let pseudo = [&f[26..34], &[0, 17, 0, 13]].concat();
            if offload {
                assert_eq!((o.csum_start, o.csum_offset), (34, 6));
                assert_eq!(f[40..42], sum(&pseudo).to_be_bytes());
            } else {
                assert_eq!(sum(&[&pseudo[..], &f[34..]].concat()), 0xffff);
            }
        });
    }
}
