//! What honest front ends do, with two that are not ours to bend: the crate `vhost` (Cloud
//! Hypervisor's), and our own user-space driver, which shares no code with this back end.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::mirror::*;
use common::*;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmlan_driver::virtio::VirtioNet;
use vmlan_frame::{Batch, Offloads};
use vmlan_transport::address::VhostUser;
use vmm_sys_util::eventfd::EventFd;

fn frontend(f: &Fixture) -> Frontend {
    let mut front = Frontend::connect(f.path(), 4).unwrap();
    front.set_owner().unwrap();
    let features = front.get_features().unwrap();
    front.set_features(features & (VERSION_1 | F_PROTOCOL | 1 << 15)).unwrap();
    let offered = front.get_protocol_features().unwrap();
    assert_eq!(offered.bits(), PROTOCOL_ALL);
    front.set_protocol_features(offered).unwrap();
    front.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
    front
}

fn regions(guest: &Guest) -> Vec<VhostUserMemoryRegionInfo> {
    let region = |r: &vmlan_transport::memory::Region| VhostUserMemoryRegionInfo {
        guest_phys_addr: r.guest_phys,
        memory_size: r.size,
        userspace_addr: r.user_addr,
        mmap_offset: r.offset,
        mmap_handle: guest.ram.raw_fd(),
    };
    guest.ram.regions().iter().map(region).collect()
}

fn start(front: &mut Frontend, guest: &Guest, ring: usize, log: Option<u64>) -> [EventFd; 2] {
    let [desc, used, avail] = guest.ring_addr(u32::try_from(ring).unwrap());
    front.set_vring_num(ring, 64).unwrap();
    front.set_vring_base(ring, 0).unwrap();
    let config = VringConfigData {
        queue_max_size: 64,
        queue_size: 64,
        flags: u32::from(log.is_some()),
        desc_table_addr: desc,
        used_ring_addr: used,
        avail_ring_addr: avail,
        log_addr: log,
    };
    front.set_vring_addr(ring, &config).unwrap();
    let fds = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
    front.set_vring_kick(ring, &fds[0]).unwrap();
    front.set_vring_call(ring, &fds[1]).unwrap();
    front.set_vring_err(ring, &fds[1]).unwrap();
    front.set_vring_enable(ring, true).unwrap();
    fds
}

#[test]
fn the_vhost_crate_sets_a_port_up_and_moves_frames() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut front = frontend(&f);
    assert_eq!(front.get_queue_num().unwrap(), 4);
    assert_eq!(front.get_max_mem_slots().unwrap(), 64);
    front.set_mem_table(&regions(&guest)).unwrap();
    let [_, rx_call] = start(&mut front, &guest, 0, None);
    assert!(f.is_up());
    let [_, tx_call] = start(&mut front, &guest, 1, None);
    assert_eq!(f.door.vhost_port().kicks().len(), 2);
    let high = guest.ram.guest_phys(1 << 20);
    guest.post(0, 0, high, 2048, true);
    guest
        .ram
        .write((1 << 20) + 4096 + 12, b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x88\xb5 hello, world");
    guest.post(1, 0, high + 4096, 12 + 27, false);
    let (done, seen) = bounce(&*f.door.port(), &mut Batch::new(), false);
    assert_eq!((done, seen.len(), seen[0].len()), (1, 1, 27));
    assert_eq!((guest.used_idx(0), guest.used_idx(1)), (1, 1));
    let mut got = [0; 27];
    guest.ram.read((1 << 20) + 12, &mut got);
    assert_eq!(got[..], seen[0]);
    assert!(rx_call.read().unwrap() > 0 && tx_call.read().unwrap() > 0);
    assert_eq!(front.get_vring_base(0).unwrap(), 1);
    assert_eq!(front.get_vring_base(1).unwrap(), 1);
    assert!(!f.is_up());
    assert_eq!(f.door.vhost_port().kicks().len(), 0);
    assert_eq!(f.faults(), 0);
}

#[test]
fn the_vhost_crate_adds_and_removes_memory_under_running_rings() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut front = frontend(&f);
    let regions = regions(&guest);
    for region in &regions {
        assert_eq!(front.add_mem_region(region).unwrap(), None);
    }
    let _a = start(&mut front, &guest, 0, None);
    let _b = start(&mut front, &guest, 1, None);
    front.remove_mem_region(&regions[1]).unwrap();
    assert!(f.is_up(), "the rings are in the other region");
    front.add_mem_region(&regions[1]).unwrap();
    front.remove_mem_region(&regions[0]).unwrap();
    assert!(!f.is_up(), "now they are gone");
    assert_eq!(bounce(&*f.door.port(), &mut Batch::new(), false).0, 0);
    assert_eq!(f.detail("memory"), "1 MiB");
    front.remove_mem_region(&regions[0]).unwrap_err();
}

#[test]
fn inflight_region_is_made_kept_and_taken_back() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut front = frontend(&f);
    let ask = VhostUserInflight::new(0, 0, 4, 64);
    let (got, file) = front.get_inflight_fd(&ask).unwrap();
    assert_eq!((got.num_queues, got.queue_size, got.mmap_offset), (4, 64, 0));
    assert!(got.mmap_size >= 4 * (16 + 16 * 64));
    assert_eq!(file.metadata().unwrap().len(), got.mmap_size);
    assert!(file.set_len(0).is_err(), "sealed");
    front.set_inflight_fd(&got, file.as_raw_fd()).unwrap();
    front.set_mem_table(&regions(&guest)).unwrap();
    let _a = start(&mut front, &guest, 0, None);
    let _b = start(&mut front, &guest, 1, None);
    guest.post(1, 0, guest.ram.guest_phys(1 << 20), 80, false);
    assert_eq!(bounce(&*f.door.port(), &mut Batch::new(), true).0, 0, "held");
    assert_eq!(header(&file, 1), [1, 64, 0, 0]);
    guest.post(0, 0, guest.ram.guest_phys((1 << 20) + 8192), 2048, true);
    assert_eq!(bounce(&*f.door.port(), &mut Batch::new(), false).0, 1);
    assert_eq!(header(&file, 1), [1, 64, 0, 1], "version, desc_num, last_batch_head, used_idx");
    assert_eq!(header(&file, 0), [1, 64, 0, 1]);
    drop(front);
    until("free", || f.detail("state").contains("waiting"));
    let mut front = frontend(&f);
    front.set_inflight_fd(&got, file.as_raw_fd()).unwrap();
    front.set_mem_table(&regions(&guest)).unwrap();
    let _b = start(&mut front, &guest, 1, None);
    assert_eq!(front.get_vring_base(1).unwrap(), 1, "goes on where the used index stands");
}

/// version, desc_num, last_batch_head, used_idx of a ring's part.
fn header(file: &File, ring: u64) -> [u16; 4] {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, ring * (16 + 16 * 64u64).next_multiple_of(64) + 8).unwrap();
    [0, 2, 4, 6].map(|i| u16::from_le_bytes([bytes[i], bytes[i + 1]]))
}

#[test]
fn the_dirty_log_marks_what_is_written_and_only_while_asked() {
    use std::os::unix::fs::FileExt;
    let f = Fixture::new();
    let guest = Guest::new();
    let mut front = frontend(&f);
    let base = VERSION_1 | F_PROTOCOL | 1 << 15;
    front.set_mem_table(&regions(&guest)).unwrap();
    let _a = start(&mut front, &guest, 0, None);
    let _b = start(&mut front, &guest, 1, None);
    // The high region starts at 4 GiB and has 1 MiB: bits up to 0x100100, in 128 KiB and a bit.
    let log = sealed(0x2_1000);
    let region = VhostUserDirtyLogRegion {
        mmap_size: 0x2_1000,
        mmap_offset: 0,
        mmap_handle: log.as_raw_fd(),
    };
    let page = |gpa: u64| {
        let mut byte = [0];
        log.read_exact_at(&mut byte, gpa / 4096 / 8).unwrap();
        byte[0] >> (gpa / 4096 % 8) & 1 == 1
    };
    let high = guest.ram.guest_phys(1 << 20);
    let send = |n: u16| {
        guest.post(0, n, high + 8192, 2048, true);
        guest.post(1, n, high, 80, false);
        assert_eq!(bounce(&*f.door.port(), &mut Batch::new(), false).0, 1);
    };
    front.set_log_base(0, Some(region)).unwrap();
    send(0);
    assert!(!page(high + 8192), "not asked to log yet");
    front.set_features(base | 1 << 26).unwrap();
    let used = [0, 1].map(|r| guest.ring_at(r) as u64 + 8192);
    for ring in [0, 1] {
        let [desc, used_at, avail] = guest.ring_addr(u32::try_from(ring).unwrap());
        let config = VringConfigData {
            queue_max_size: 64,
            queue_size: 64,
            flags: 1,
            desc_table_addr: desc,
            used_ring_addr: used_at,
            avail_ring_addr: avail,
            log_addr: Some(used[ring]),
        };
        front.set_vring_addr(ring, &config).unwrap();
    }
    assert_eq!(f.detail("migrating"), "yes");
    send(1);
    assert!(page(high + 8192), "the received frame");
    assert!(page(used[0]) && page(used[1]), "the used rings");
    assert!(!page(high), "what was only read");
    front.set_features(base).unwrap();
    assert_eq!(f.detail("migrating"), "");
    assert!(f.is_up());
}

#[test]
fn a_disabled_transmit_ring_is_emptied_and_its_frames_thrown_away() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    assert_eq!(raw.enable(0, false), Some(0));
    assert_eq!(raw.enable(1, false), Some(0));
    assert!(!f.is_up());
    guest.post(1, 0, guest.ram.guest_phys(1 << 20), 80, false);
    let (_, seen) = bounce(&*f.door.port(), &mut Batch::new(), false);
    assert!(seen.is_empty(), "nobody sees it");
    assert_eq!(guest.used_idx(1), 1, "but the guest has its buffer back");
    assert_eq!(raw.enable(0, true), Some(0));
    assert_eq!(raw.enable(1, true), Some(0));
    guest.post(1, 1, guest.ram.guest_phys(1 << 20), 80, false);
    guest.post(0, 0, guest.ram.guest_phys(1 << 20) + 8192, 2048, true);
    assert_eq!(bounce(&*f.door.port(), &mut Batch::new(), false).1.len(), 1);
}

#[test]
fn without_protocol_features_a_started_ring_is_enabled() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.connect();
    raw.send(3, 1, &[], &[]);
    raw.send(2, 1, &words(&[VERSION_1]), &[]);
    let mut body = halves(&[2, 0]);
    for r in guest.ram.regions() {
        body.extend(words(&[r.guest_phys, r.size, r.user_addr, r.offset]));
    }
    raw.send(5, 1, &body, &[guest.ram.raw_fd(); 2]);
    let [desc, used, avail] = guest.ring_addr(0);
    raw.send(8, 1, &halves(&[0, NUM]), &[]);
    let mut body = halves(&[0, 0]);
    body.extend(words(&[desc, used, avail, 0]));
    raw.send(9, 1, &body, &[]);
    raw.send(12, 1, &words(&[0]), &[guest.kick_fd()]);
    assert!(raw.get(1, &[]).is_some());
    assert!(f.is_up());
}

#[test]
fn send_rarp_announces_the_guest() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let port = f.door.port();
    assert!(!port.arm(0));
    let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    let mut body = mac.to_vec();
    body.extend([0; 2]);
    // Workers have been told of all that came before.
    let told = || f.changes.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    let before = told();
    for _ in 0..100 {
        assert_eq!(raw.ask(19, &body, &[]), Some(0));
    }
    until("workers are told to look", || told() > before);
    assert!(port.arm(0), "there is something to pull");
    let (_, seen) = bounce(&*port, &mut Batch::new(), true);
    assert_eq!(seen.len(), 1, "once");
    assert_eq!(seen[0][..6], [0xff; 6]);
    assert_eq!(seen[0][6..12], mac);
    assert_eq!(seen[0][12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    assert_eq!((&seen[0][22..28], &seen[0][32..38]), (&mac[..], &mac[..]));
    assert!(!port.arm(0));
}

#[test]
fn status_mtu_and_reset_are_kept_and_forgotten() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    assert_eq!(raw.ask(39, &words(&[0xf]), &[]), Some(0));
    assert_eq!(raw.get(40, &[]), Some(0xf));
    assert_eq!(raw.ask(39, &words(&[0x100]), &[]), Some(1));
    for (mtu, answer) in [(67, 1), (68, 0), (9216, 0), (9217, 1), (u64::MAX, 1)] {
        assert_eq!(raw.ask(20, &words(&[mtu]), &[]), Some(answer), "MTU {mtu}");
    }
    assert_eq!(f.detail("mtu"), "9216");
    assert!(f.is_up());
    assert_eq!(raw.ask(39, &words(&[0]), &[]), Some(0));
    assert!(!f.is_up(), "status 0 is a reset");
    assert!(f.door.port().is_connected(), "by the same peer");
    guest.start_ring(&mut raw, 0);
    assert!(f.is_up());
    assert_eq!(raw.ask(34, &[], &[]), Some(0));
    assert!(!f.is_up(), "RESET_DEVICE");
    assert_eq!(f.door.port().offloads(), Offloads::NONE);
    assert!(f.door.port().is_connected());
    drop(raw);
    until("the peer is gone", || !f.door.port().is_connected());
}

#[test]
fn offloads_follow_what_the_guest_negotiated() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let port = f.door.port();
    assert_eq!(port.offloads(), Offloads::NONE);
    let csum_tso4 = 1 << 1 | 1 << 7;
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL | csum_tso4]), &[]), Some(0));
    assert_eq!(port.offloads(), Offloads::CSUM.with(Offloads::TSO4));
    drop(raw);
    until("forgotten", || port.offloads() == Offloads::NONE);
}

#[test]
fn the_driver_bounces_frames_in_every_shape_of_ring() {
    for more in SHAPES {
        let f = Fixture::new();
        let port = f.door.port();
        let address = address(&f, more);
        let mut nic = with_worker(&*port, || {
            let mut nic = VirtioNet::connect(&address, Duration::from_secs(10)).unwrap();
            round_trip(&mut nic, 3000);
            nic
        });
        assert!(nic.pairs[0].tx.outstanding() <= nic.pairs[0].tx.slots());
        nic.pairs[0].tx.reap();
        assert_eq!(nic.pairs[0].tx.outstanding(), 0, "{more}");
        assert_eq!(f.faults(), 0, "{more}");
    }
}

#[test]
fn the_driver_goes_on_after_the_switch_is_gone_and_back() {
    let f = Fixture::new();
    let address = address(&f, ",queues=2");
    let dir = f.dir;
    let config = vmlan_attach::vhost_user::Config {
        path: address.path.clone(),
        queues: 2,
        ..Default::default()
    };
    drop(f.door);
    let open = || vmlan_attach::vhost_user::attach(config.clone(), Arc::new(|| {})).unwrap();
    let mut door = open();
    let mut nic = VirtioNet::connect(&address, Duration::from_secs(10)).unwrap();
    for round in 0..20 {
        let port = door.port();
        with_worker(&*port, || round_trip(&mut nic, 500));
        assert_eq!(port.counters().faults.get(), 0);
        drop(door);
        assert!(!nic.is_connected(), "round {round}");
        door = open();
        nic.reconnect(Duration::from_secs(10)).unwrap();
        assert_eq!(nic.reconnects(), round + 1);
    }
    drop(dir);
}

#[test]
fn a_port_that_connects_finds_its_front_end_and_finds_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmm.sock");
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = log.clone();
    let config = vmlan_attach::vhost_user::Config {
        path: path.clone(),
        connect: true,
        ..Default::default()
    };
    let door =
        vmlan_attach::vhost_user::attach(config, Arc::new(move || seen.lock().unwrap().push(())))
            .unwrap();
    let listen = format!("vhost-user:{},listen", path.display()).parse::<VhostUser>().unwrap();
    for _ in 0..3 {
        let mut nic = VirtioNet::connect(&listen, Duration::from_secs(10)).unwrap();
        with_worker(&*door.port(), || round_trip(&mut nic, 500));
        drop(nic);
        until("gone", || !door.port().is_up());
    }
    assert_eq!(door.port().counters().faults.get(), 0);
    assert!(!log.lock().unwrap().is_empty(), "workers are told");
}

#[test]
fn the_control_thread_gets_in_while_a_worker_is_busy() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    guest.start(&mut raw);
    let port = f.door.port();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut batch = Batch::new();
            while !stop.load(Ordering::Relaxed) {
                bounce(&*port, &mut batch, false);
            }
        });
        for _ in 0..200 {
            let r = guest.ram.regions()[1];
            let body = words(&[0, r.guest_phys, r.size, r.user_addr, r.offset]);
            // It would wait for its answer for 10 s.
            assert_eq!(raw.ask(38, &body, &[]), Some(0));
            assert_eq!(raw.ask(37, &body, &[guest.ram.raw_fd()]), Some(0));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
