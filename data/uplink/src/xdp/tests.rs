//! Veth pairs in network namespaces of their own (as root): `near` is the port's interface, `far`
//! is what a cable would lead to.
use crate::tests::transfer::{Host, transfer};
use crate::tests::veth::{far, foreign, pair, rings, send, sleeps_while_frames_are_held, tagged};
use crate::tests::{Keep, bytes_of, counted, ip, pull, push, required, run, wait};

use rustix::net::sockopt;

use super::*;

/// Runs `f` in a thread with its own network namespace and XDP; none if we may not.
fn namespace<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    crate::tests::namespace(|| allowed().then(f)).flatten()
}

/// True if there is XDP for us.
fn allowed() -> bool {
    let outcome = sys::bpf_socket_map(1);
    if let Err(e) = &outcome {
        assert!(!required("VMLAN_REQUIRE_ROOT"), "XDP tests need bpf(2): {e}");
        println!("skipped: XDP tests need bpf(2): {e}");
    }
    outcome.is_ok()
}

fn config(name: &str) -> Config {
    Config { label: name.to_owned(), name: name.to_owned(), queues: None, zero_copy: None }
}

fn open_near() -> Xdp {
    let xdp = open(config("near"), counted().1).unwrap();
    wait("up", || xdp.port().is_up());
    xdp
}

fn detail(xdp: &Xdp, key: &str) -> String {
    xdp.details().into_iter().find(|(k, _)| *k == key).unwrap().1
}

#[test]
fn frames_go_both_ways_as_they_are() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, far) = (near.port(), far());
        assert_eq!(detail(&near, "mode"), "native");
        assert_eq!(
            (detail(&near, "queues"), detail(&near, "zerocopy")),
            ("1".into(), "off".into())
        );
        let lengths = [14, 15, 59, 60, 128, 129, 1514].map(|len| foreign(2, len));
        let q = tagged(&foreign(2, 1514), [0x81, 0, 0x60, 5]);
        let both = tagged(&tagged(&foreign(2, 100), [0x81, 0, 0, 5]), [0x88, 0xa8, 0xe0, 7]);
        let sent = [lengths.to_vec(), vec![q, both]].concat();
        sent.iter().for_each(|f| send(&far, f));
        assert!(bytes_of(pull(&*port, sent.len())) == sent);
        // More than there are chunks, one batch after the other.
        let config = crate::packet::Config { label: "far".to_owned(), name: "far".to_owned() };
        let far = crate::packet::open(&config, counted().1).unwrap();
        for round in 0..500 {
            let frames: Vec<_> = sent.iter().map(|f| (&f[..], Offload::NONE)).collect();
            assert_eq!(push(&*port, &frames), sent.len());
            assert!(bytes_of(pull(&*far.port(), sent.len())) == sent, "{round}");
        }
        assert_eq!(port.counters().snapshot().1.frames, 500 * sent.len() as u64);
        let long = [foreign(2, 1515), foreign(2, 1519), tagged(&foreign(2, 1515), [0x81, 0, 0, 5])];
        let frames = [&long[0], &long[1], &long[2], &long[0][..13]].map(|f| (f, Offload::NONE));
        assert_eq!(push(&*port, &frames), 4);
        let output = &near.0.port.link.counters.output;
        assert_eq!((output.dropped(Reason::TooLong), output.dropped(Reason::Runt)), (3, 1));
    });
}

#[test]
fn a_burst_is_sent_whole() {
    namespace(|| {
        pair();
        let near = open_near();
        let config = crate::packet::Config { label: "far".to_owned(), name: "far".to_owned() };
        let far = crate::packet::open(&config, counted().1).unwrap();
        let f = foreign(2, 60);
        assert_eq!(push(&*near.port(), &vec![(&f[..], Offload::NONE); BATCH]), BATCH);
        assert_eq!(pull(&*far.port(), BATCH).len(), BATCH);
        assert_eq!(near.port().counters().drops().count(), 0);
    });
}

#[test]
fn what_finds_the_devices_queue_full_is_sent_later() {
    namespace(|| {
        ip("link add lower type veth peer name far");
        ip("link add near link lower type macvlan mode private");
        ["lower", "near", "far"].iter().for_each(|name| ip(&format!("link set {name} up")));
        run("tc", "qdisc add dev lower root tbf rate 20mbit burst 3000 limit 10mb");
        let near = open_near();
        let sockets = lock(&near.0.port.attached).as_ref().unwrap().sockets.clone();
        sockopt::set_socket_send_buffer_size(&sockets[0], 32 * 1024).unwrap();
        let config = crate::packet::Config { label: "far".to_owned(), name: "far".to_owned() };
        let far = crate::packet::open(&config, counted().1).unwrap();
        let f = foreign(2, 1514);
        for _ in 0..2 {
            assert_eq!(push(&*near.port(), &vec![(&f[..], Offload::NONE); BATCH]), BATCH);
            assert!(near.0.port.left.load(Ordering::Acquire), "more than the queue takes");
            let mut got = 0;
            let (mut batch, mut keep) = (Batch::new(), Keep::default());
            wait("all", || {
                far.port().pull(0, &mut batch, BATCH, &mut keep);
                got = keep.frames.iter().filter(|(g, _)| *g == f).count();
                got >= BATCH
            });
            wait("rest", || !near.0.port.left.load(Ordering::Acquire));
        }
        assert_eq!(near.port().counters().drops().count(), 0);
    });
}

/// The host at `address`, whose cable `far` leads to the port, by `queues` queues.
fn host(queues: u16) -> impl FnOnce(&str) -> Host + Send {
    move |address| {
        if !allowed() {
            return None;
        }
        ip(&format!("link add near numrxqueues {queues} type veth peer name far"));
        run("ethtool", "-K near rxvlan off");
        ip("link set near up");
        ip("link set far up");
        // What the kernel leaves to a device, a veth pair leaves to whoever comes behind it.
        run("ethtool", "-K far tx off");
        ip(&format!("address add {address}/24 dev far"));
        if queues > 1 {
            run("ethtool", &format!("-L near rx {queues} tx 1"));
        }
        let near = open_near();
        assert_eq!(detail(&near, "queues"), queues.to_string());
        Some((near.port(), Box::new(near)))
    }
}

#[test]
fn tcp_with_finished_frames_on_one_queue_and_several() {
    for queues in [1, 4] {
        let Some(seen) = transfer(host(queues), host(1)) else { return };
        assert_eq!(seen, [(0, 0); 2], "nothing is left to do");
    }
}

#[test]
fn link_down_costs_frames_and_is_survived() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, f) = (near.port(), foreign(2, 60));
        for end in ["far", "near"] {
            let before = port.counters().output.dropped(Reason::LinkDown);
            ip(&format!("link set {end} down"));
            wait("down", || !port.is_up());
            assert!(!port.arm(0), "no reason to stay awake");
            assert_eq!(detail(&near, "state"), "link down");
            assert_eq!(push(&*port, &[(&f[..], Offload::NONE); 3]), 3);
            assert_eq!(port.counters().output.dropped(Reason::LinkDown), before + 3);
            ip(&format!("link set {end} up"));
            wait("up", || port.is_up());
            let far = far();
            let (_, output) = port.counters().snapshot();
            assert_eq!(push(&*port, &[(&f, Offload::NONE)]), 1);
            assert_eq!(port.counters().snapshot().1.frames, output.frames + 1);
            let mut got = [0; 100];
            wait("the frame", || rustix::io::read(&far, &mut got) == Ok(60));
            assert!(got[..60] == f, "and none from before");
            send(&far, &f);
            assert!(bytes_of(pull(&*port, 1)) == [f.clone()]);
        }
    });
}

#[test]
fn a_deleted_interface_is_waited_for() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, f) = (near.port(), foreign(2, 60));
        for _ in 0..2 {
            let version = port.doorbells_version();
            ip("link delete near");
            wait("gone", || detail(&near, "state").contains("no such interface"));
            assert!(!port.is_up() && !port.arm(0) && near.mtu().is_none());
            assert!(port.doorbells(0).is_empty());
            pair();
            wait("back", || port.is_up());
            assert!(port.doorbells_version() >= version + 2);
            let far = far();
            send(&far, &f);
            assert!(bytes_of(pull(&*port, 1)) == [f.clone()]);
            assert_eq!(push(&*port, &[(&f, Offload::NONE)]), 1);
            let mut got = [0; 100];
            wait("the frame", || rustix::io::read(&far, &mut got) == Ok(60));
        }
    });
}

#[test]
fn what_came_too_fast_is_counted() {
    namespace(|| {
        pair();
        let near = open_near();
        let (port, far, f) = (near.port(), far(), foreign(2, 60));
        let (mut batch, mut keep) = (Batch::new(), Keep::default());
        for _ in 0..2 {
            (0..4000).for_each(|_| send(&far, &f));
            while port.pull(0, &mut batch, BATCH, &mut keep) > 0 {}
        }
        let lost = || {
            port.count_doorbells();
            port.counters().input.dropped(Reason::Overrun)
        };
        // A veth pair has a queue of its own before XDP, which drops by itself.
        assert!(keep.frames.len() >= 2048 && lost() > 0, "{} {}", keep.frames.len(), lost());
        assert!(keep.frames.len() as u64 + lost() <= 8000);
        assert_eq!(lost(), lost(), "nothing twice");
        let before = keep.frames.len();
        send(&far, &f);
        wait("the next", || port.pull(0, &mut batch, BATCH, &mut keep) > 0);
        assert_eq!(keep.frames.len(), before + 1, "the ring goes on");
    });
}

#[test]
fn the_program_goes_with_the_port_and_another_ones_is_left_alone() {
    namespace(|| {
        pair();
        let fails = |c| open(c, counted().1).unwrap_err();
        let mut near = open_near();
        assert!(matches!(fails(config("near")), XdpError::Attached(..)));
        run("ethtool", "-K far rxvlan off");
        let index = netdevice::name_to_index(sys::packet_socket().unwrap(), "far").unwrap();
        let queue = queue::open(index, 0, 2048, Copying::Always).unwrap();
        assert!(matches!(fails(config("far")), XdpError::Busy(..)));
        drop(queue);
        let only = Config { queues: Some(1), zero_copy: Some(false), ..config("far") };
        let far = open(only.clone(), counted().1).unwrap();
        assert_eq!(detail(&far, "zerocopy"), "off");
        drop(far);
        near.close();
        drop(near);
        let map = sys::bpf_socket_map(1).unwrap();
        let program = sys::bpf_load_xdp(&program(map.as_fd())).unwrap();
        let socket = sys::packet_socket().unwrap();
        let index = netdevice::name_to_index(&socket, "near").unwrap();
        let link = once_free(
            |time| {
                std::thread::sleep(time);
                false
            },
            || sys::bpf_link_xdp(program.as_fd(), index, 0),
        )
        .unwrap();
        let e = fails(config("near"));
        assert!(matches!(e, XdpError::Attached(..)), "{e}");
        assert!(e.to_string().contains("ip link set dev near xdp off"));
        drop(link);
        drop(open_near());
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
        let fails = |c| open(c, counted().1).unwrap_err();
        assert!(matches!(fails(config("nothing")), XdpError::NoDevice(..)));
        assert!(matches!(fails(config("lo")), XdpError::NotEthernet(..)));
        run("ethtool", "-K near rxvlan on");
        let e = fails(config("near"));
        assert!(matches!(e, XdpError::TakesTags(..)), "{e}");
        assert!(e.to_string().contains("ethtool -K near rxvlan off"), "{e}");
        run("ethtool", "-K near rxvlan off");
        let zero_copy = Config { zero_copy: Some(true), ..config("near") };
        assert!(matches!(fails(zero_copy), XdpError::NoZeroCopy(..)));
        ip("link set near mtu 9000");
        let e = fails(config("near"));
        assert!(matches!(e, XdpError::Mtu { mtu: 9000, .. }), "{e}");
        ip("link set near mtu 1500");
        let nobody = rustix::thread::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let e = fails(config("near"));
        assert!(matches!(e, XdpError::NotAllowed(..)), "{e}");
        assert!(e.to_string().contains("CAP_BPF"), "{e}");
    });
}

#[test]
fn longer_frames_take_longer_chunks() {
    assert_eq!([68, 1500, 1770].map(queue::chunk), [Some(2048); 3]);
    assert_eq!([1771, LONGEST_MTU].map(queue::chunk), [Some(4096); 2]);
    assert_eq!([LONGEST_MTU + 1, u32::MAX].map(queue::chunk), [None; 2]);
}
