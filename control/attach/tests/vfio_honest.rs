//! A vfio-user client that keeps to the rules: Cloud Hypervisor's (the crate `vfio_user`), and one
//! of our own for what that cannot say.

mod common;
mod vfio;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use common::{fds_of, memfd, sealed, until};
use vfio::*;
use vfio_user::Client;
use vmlan_attach::vfio_user::{Config, Doorbell, attach};
use vmlan_frame::{Batch, Mac, Sink};

struct Nobody;
impl Sink for Nobody {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

#[test]
fn the_client_of_cloud_hypervisor_sees_an_82540em() {
    let f = Fixture::new();
    let mut client = Client::new(&f.path()).unwrap();
    let sizes: Vec<_> = (0..9).map(|i| client.region(i).unwrap().size).collect();
    assert_eq!(sizes, [128 << 10, 64, 0, 0, 0, 0, 0, 256, 0]);
    assert!(client.region(0).unwrap().sparse_areas.is_empty(), "trapped: nothing to map");
    let mut id = [0; 4];
    client.region_read(7, 0, &mut id).unwrap();
    assert_eq!(id, [0x86, 0x80, 0x0e, 0x10]);
    client.region_write(7, 4, &[6, 0]).unwrap();
    client.region_read(7, 4, &mut id[..2]).unwrap();
    assert_eq!(id[..2], [6, 0]);
    let info = client.get_irq_info(INTX).unwrap();
    assert_eq!((info.flags, info.count), (7, 1), "EVENTFD, MASKABLE, AUTOMASKED");
    let info = client.get_irq_info(MSI).unwrap();
    assert_eq!((info.flags, info.count), (9, 1), "EVENTFD, NORESIZE");
    assert_eq!(client.get_irq_info(2).unwrap().count, 0);
    let memory = sealed(4 << 20);
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    client.dma_map(1 << 20, 1 << 30, 3 << 20, memory.as_raw_fd()).unwrap();
    assert_eq!(f.detail("memory"), "4 MiB in 2 regions");
    client.dma_unmap(0, 1 << 20).unwrap();
    assert_eq!(f.detail("memory"), "3 MiB in 1 region");
    client.reset().unwrap();
    client.shutdown().unwrap();
    f.wait_free();
    until("its memory is given back", || fds_of(&memory) == 1);
    assert_eq!(f.faults(), 0);
}

#[test]
fn the_client_of_cloud_hypervisor_maps_the_ring_registers() {
    let f = Fixture::mapped();
    let client = Client::new(&f.path()).unwrap();
    let region = client.region(0).unwrap();
    let areas: Vec<_> = region.sparse_areas.iter().map(|a| (a.offset, a.size)).collect();
    assert_eq!(areas, [(0x2000, 0x2000)]);
    let file = region.file_offset.as_ref().unwrap();
    assert_eq!(file.start(), 0);
    assert!(file.file().metadata().unwrap().len() >= 0x4000);
    file.file().set_len(0).expect_err("sealed");
    file.file().set_len(1 << 20).expect_err("sealed");
}

#[test]
fn a_status_block_is_offered_where_a_kick_is_heard() {
    let f = Fixture::with(|config| config.csb = true);
    let mut client = Client::new(&f.path()).unwrap();
    let mut id = [0; 4];
    client.region_read(7, 0x2c, &mut id).unwrap();
    assert_eq!(id, [0x86, 0x80, 0x01, 0x11]);
    let memory = sealed(1 << 20);
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    for (low, csb, state) in [
        (0x1004u32, "off", "connected, but the guest's CSB at 0x1004 is not aligned to 64 bytes"),
        (0x10_0000, "off", "connected, but the guest's CSB at 0x100000 is not in its memory"),
        (0x1000, "on", "connected"),
        (0, "off", "connected"),
        (0x1000, "on", "connected"),
    ] {
        memory.write_all_at(&[1], 0x100c).unwrap();
        client.region_write(0, 0x2830, &low.to_le_bytes()).unwrap();
        // A read is answered after what was written before.
        client.region_read(0, 0x2830, &mut id).unwrap();
        assert_eq!(u32::from_le_bytes(id), low);
        assert_eq!(f.detail("csb"), csb);
        assert!(f.detail("state").starts_with(state), "{}", f.detail("state"));
    }
    // Its memory goes, and comes again.
    client.dma_unmap(0, 1 << 20).unwrap();
    assert!(f.detail("csb") == "off" && f.detail("state").contains("is not in its memory"));
    until("nobody has the memory", || fds_of(&memory) == 1);
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    assert_eq!((f.detail("csb"), f.detail("state")), ("on".into(), "connected".into()));
    assert_eq!(f.faults(), 2);
    client.reset().unwrap();
    assert_eq!(f.detail("csb"), "off");
    let config =
        Config { csb: true, doorbell: Doorbell::Mapped, ..Config::new(f.path(), Mac::default()) };
    let refused = attach(config, Arc::new(|| {})).err().unwrap();
    assert!(refused.to_string().contains("csb=on does not go with doorbell=mapped"), "{refused}");
}

#[test]
fn interrupts_of_cloud_hypervisor() {
    let f = Fixture::new();
    let mut client = Client::new(&f.path()).unwrap();
    let line = eventfd();
    client.set_irqs(INTX, EVENTFD | TRIGGER, 0, 1, &[raw(&line)]).unwrap();
    client.set_irqs(INTX, NONE | TRIGGER, 0, 1, &[]).unwrap();
    assert_eq!(count(&line), 1, "triggered by hand");
    assert_eq!(f.detail("interrupts"), "INTx");
    client.set_irqs(INTX, NONE | TRIGGER, 0, 0, &[]).unwrap();
    client.set_irqs(INTX, NONE | TRIGGER, 0, 1, &[]).unwrap();
    assert_eq!((count(&line), f.detail("interrupts")), (0, "none".to_owned()), "disabled");
}

/// Makes the chip assert its pin, as a driver's self-test does.
fn assert_pin(raw: &mut Raw) {
    raw.set(e1000::IMS, 4);
    raw.set(e1000::ICS, 4);
}

#[test]
fn intx_masks_itself_and_comes_again_if_its_cause_stands() {
    let f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    let line = eventfd();
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    assert_pin(&mut client);
    assert_eq!(count(&line), 1);
    client.set(e1000::ICS, 4);
    assert_eq!(count(&line), 0, "it has masked itself");
    assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
    assert_eq!(count(&line), 1, "the cause still stands");
    assert_ne!(client.get(e1000::ICR) & 4, 0);
    assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
    assert_eq!(count(&line), 0, "the cause has gone");
    client.set(e1000::ICS, 4);
    assert_eq!(count(&line), 1);
    assert_eq!(f.detail("interrupt-writes"), "3");
}

#[test]
fn intx_is_unmasked_by_an_eventfd_as_kvm_does() {
    let f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    let (line, unmask) = (eventfd(), eventfd());
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    assert_eq!(client.set_irqs(NONE | MASK, INTX, 1, &[]), Some(0));
    assert_eq!(client.set_irqs(EVENTFD | UNMASK, INTX, 1, &[raw(&unmask)]), Some(0));
    assert_pin(&mut client);
    assert_eq!(count(&line), 0, "masked");
    for _ in 0..3 {
        std::io::Write::write_all(&mut &unmask, &1u64.to_ne_bytes()).unwrap();
        until("unmasked", || count(&line) == 1);
    }
    // Nobody has read it: so it must be looked at by its edges, and must not keep the thread awake.
    // Other tests of this process may keep theirs, but not all the time.
    let used = || {
        let before = cpu();
        std::thread::sleep(Duration::from_millis(300));
        cpu() - before
    };
    let least = (0..10).map(|_| used()).find(|used| *used < Duration::from_millis(100));
    assert!(least.is_some(), "it never sleeps");
    assert_eq!(client.set_irqs(EVENTFD | UNMASK, INTX, 1, &[]), Some(0));
    std::io::Write::write_all(&mut &unmask, &1u64.to_ne_bytes()).unwrap();
    client.get(e1000::STATUS);
    assert_eq!(count(&line), 0, "taken away");
}

fn cpu() -> Duration {
    vmlan_transport::sys::process_cpu()
}

#[test]
fn msi_goes_before_intx_and_is_not_masked() {
    let f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    let (line, message) = (eventfd(), eventfd());
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, MSI, 1, &[raw(&message)]), Some(0));
    assert_eq!(f.detail("interrupts"), "MSI");
    for _ in 0..3 {
        assert_pin(&mut client);
        assert_eq!((count(&line), count(&message)), (0, 1));
        client.get(e1000::ICR);
    }
    assert_eq!(client.set_irqs(NONE | TRIGGER, MSI, 0, &[]), Some(0));
    assert_pin(&mut client);
    assert_eq!((count(&line), count(&message)), (1, 0));
}

#[test]
fn bool_data_acts_where_it_is_true() {
    let f = Fixture::new();
    let mut client = f.ready();
    let line = eventfd();
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    for (byte, times) in [(0u8, 0), (1, 1), (0xff, 1)] {
        let mut body = halves(&[21, BOOL | TRIGGER, INTX, 0, 1]);
        body.push(byte);
        assert_eq!(client.ask(SET_IRQS, &body, &[]), Some(0));
        assert_eq!(count(&line), times);
    }
}

#[test]
fn posted_writes_are_done_in_order_and_answered_by_nothing() {
    let f = Fixture::new();
    let mut client = f.ready();
    for i in 0..1000 {
        client.post(e1000::TDLEN, i * 128);
    }
    assert_eq!(client.get(e1000::TDLEN), (999 * 128) & 0xf_ff80);
    let mut body = words(&[3]);
    for (register, value) in [(e1000::TDBAL, 0x1000u32), (e1000::TDBAH, 1), (e1000::TDLEN, 4096)] {
        body.extend(access(0, register, 4, &value.to_le_bytes()));
        body.extend([0; 4]);
    }
    client.send(WRITE_MULTI, NO_REPLY, &body, &[]);
    let reply = client.call(WRITE_MULTI, &body, &[]).unwrap();
    assert_eq!((reply.error, reply.long(0)), (0, 3));
    assert_eq!(client.get(e1000::TDBAL), 0x1000);
    assert_eq!(client.get(e1000::TDBAH), 1);
    assert_eq!(client.get(e1000::TDLEN), 4096);
    assert_eq!(f.faults(), 0);
}

/// While its server is paused QEMU merges posted writes, up to 200 in a message of 4,824 bytes.
#[test]
fn the_longest_merge_of_posted_writes_that_qemu_makes_is_served() {
    let f = Fixture::new();
    let mut client = f.ready();
    let mut body = words(&[200]);
    for i in 0..200u32 {
        body.extend(access(0, e1000::TDLEN, 4, &(i * 128).to_le_bytes()));
        body.extend([0; 4]);
    }
    assert_eq!(message(0, WRITE_MULTI, NO_REPLY, &body).len(), 4824);
    for _ in 0..20 {
        client.send(WRITE_MULTI, NO_REPLY, &body, &[]);
    }
    assert_eq!(client.get(e1000::TDLEN), 199 * 128);
    assert_eq!(f.faults(), 0);
}

#[test]
fn many_commands_in_one_piece_are_answered_in_order() {
    let f = Fixture::new();
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    let mut bytes = Vec::new();
    for id in 0..400 {
        bytes.extend(message(id, READ, 0, &access(7, 0, 4, &[])));
    }
    client.bytes(&bytes, &[]).unwrap();
    // The descriptor comes right behind, and belongs to its own message.
    client
        .bytes(&message(400, DMA_MAP, 0, &dma_map(0, 0, 1 << 20)), &[memory.as_raw_fd()])
        .unwrap();
    client.bytes(&message(401, DMA_UNMAP, 0, &dma_unmap(0, 0, 1 << 20)), &[]).unwrap();
    for id in 0..402 {
        let reply = client.reply().unwrap();
        assert_eq!((reply.id, reply.error), (id, 0));
    }
    assert_eq!(fds_of(&memory), 1);
}

#[test]
fn argsz_decides_whether_capabilities_and_the_descriptor_come() {
    let f = Fixture::mapped();
    let mut client = f.ready();
    let info = |argsz: u32, index: u32| {
        let mut body = halves(&[argsz, 0, index, 0]);
        body.extend([0; 16]);
        body
    };
    let short = client.call(REGION_INFO, &info(32, 0), &[]).unwrap();
    assert_eq!((short.body.len(), short.word(0), short.fds.len()), (32, 64, 0));
    let full = client.call(REGION_INFO, &info(64, 0), &[]).unwrap();
    assert_eq!((full.body.len(), full.word(0), full.fds.len()), (64, 64, 1));
    assert_eq!((full.word(4), full.word(12)), (0xf, 32), "flags, first capability");
    assert_eq!((full.long(16), full.long(24)), (128 << 10, 0), "size, offset");
    assert_eq!(full.body[32..48], *halves(&[1 | 1 << 16, 0, 1, 0]));
    assert_eq!((full.long(48), full.long(56)), (0x2000, 0x2000));
    for index in 1..9 {
        let reply = client.call(REGION_INFO, &info(4096, index), &[]).unwrap();
        assert_eq!((reply.error, reply.body.len(), reply.fds.len()), (0, 32, 0), "{index}");
    }
    let reply = client.call(IO_FDS, &halves(&[16, 0, 0, 0]), &[]).unwrap();
    assert_eq!(reply.body, halves(&[16, 0, 0, 0]), "none");
}

#[test]
fn stores_to_mapped_registers_are_what_trapped_reads_see() {
    let f = Fixture::mapped();
    let mut client = f.ready();
    let mut body = halves(&[64, 0, 0, 0]);
    body.extend([0; 16]);
    let reply = client.call(REGION_INFO, &body, &[]).unwrap();
    let pages = std::fs::File::from(reply.fds.into_iter().next().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&pages, &0x1234_5000u32.to_le_bytes(), e1000::TDBAL)
        .unwrap();
    assert_eq!(client.get(e1000::TDBAL), 0x1234_5000);
    drop(client);
    // The next client has a file of its own: the first may have kept its.
    let mut next = f.ready();
    assert_eq!(next.get(e1000::TDBAL), 0);
    std::os::unix::fs::FileExt::write_all_at(&pages, &0x6666_6000u32.to_le_bytes(), e1000::TDBAL)
        .unwrap();
    assert_eq!(next.get(e1000::TDBAL), 0, "written by the one before");
    next.set(e1000::TDBAL, 0x2000);
    assert_eq!(next.get(e1000::TDBAL), 0x2000);
}

#[test]
fn memory_that_is_not_shared_is_named() {
    let f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    assert_eq!(client.ask(DMA_MAP, &dma_map(0, 0, 64 << 20), &[]), Some(0), "no descriptor");
    let line = eventfd();
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    assert_eq!(f.detail("memory"), "0 MiB in 0 regions, 64 MiB more not shared");
    // What a driver does to transmit from there: first of all, link up.
    client.set(0, 0x40);
    until("link", || client.get(e1000::STATUS) & 2 != 0);
    client.set(e1000::TDBAL, 0x10_0000);
    client.set(e1000::TDLEN, 4096);
    client.set(e1000::TCTL, 2);
    client.set(e1000::TDT, 1);
    let port = f.door.port();
    assert_eq!(port.pull(0, &mut Batch::new(), 256, &mut Nobody), 0);
    let said = "guest memory is not shared: give the VM's memory backend share=on";
    assert_eq!(f.detail("state"), format!("stopped: {said}"));
    assert_eq!(client.unmap(0, 64 << 20), Some(0));
}

#[test]
fn the_cable_is_pulled_and_plugged_in() {
    let f = Fixture::with(|config| config.link = false);
    let mut client = f.ready();
    client.enable();
    // CTRL: set link up (SDM 13.4.1), as drivers do after a reset.
    client.set(0, 0x40);
    let up = |client: &mut Raw| client.get(e1000::STATUS) & 2 != 0;
    assert!(!up(&mut client));
    f.door.set_link(true);
    until("link up", || up(&mut client));
    f.door.set_link(false);
    until("link down", || !up(&mut client));
    assert_eq!(f.detail("link"), "down");
}

#[test]
fn the_next_vmm_finds_a_nic_as_after_power_on() {
    let f = Fixture::new();
    let mut first = f.ready();
    first.enable();
    first.set(e1000::IMS, 4);
    drop(first);
    let mut second = f.ready();
    assert_eq!((second.config16(4) & 6, second.get(e1000::IMS)), (0, 0));
    let mut reset = || {
        second.enable();
        assert_eq!(second.ask(RESET, &[], &[]), Some(0));
        second.config16(4) & 6
    };
    assert_eq!(reset(), 0);
    assert_eq!(f.door.port().doorbells(0).len(), 1);
    assert!(f.door.port().poll_interval().is_none(), "trapped");
}

#[test]
fn a_mapped_port_is_polled_while_a_vmm_is_connected() {
    let f = Fixture::mapped();
    let port = f.door.port();
    assert_eq!(port.poll_interval(), None);
    let client = f.ready();
    assert_eq!(port.poll_interval(), Some(Duration::from_millis(1)));
    drop(client);
    f.wait_free();
    assert_eq!(port.poll_interval(), None);
}
