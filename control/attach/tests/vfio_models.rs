//! The Realtek chips and vmxnet3 over vfio-user: what a VMM sees of them before any driver runs.

mod common;
mod vfio;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::{memfd, until};
use vfio::*;
use vfio_user::Client;
use vmlan_attach::vfio_user::{Config, Doorbell, Model, attach};
use vmlan_frame::Mac;

const PLUS: Model = Model::Rtl8139 { plus: true };
const PLAIN: Model = Model::Rtl8139 { plus: false };
const CONFIG: u32 = 7;
/// Interrupt mask and status.
const IMR: u64 = 0x3c;

fn fixture(model: Model) -> Fixture {
    Fixture::with(|config| config.model = model)
}

#[test]
fn the_client_of_cloud_hypervisor_sees_realtek_chips() {
    for (model, id, revision, msi) in [
        (Model::R8169, [0xec, 0x10, 0x69, 0x81], 0x10, 1),
        (PLUS, [0xec, 0x10, 0x39, 0x81], 0x20, 0),
        (PLAIN, [0xec, 0x10, 0x39, 0x81], 0x10, 0),
    ] {
        let f = fixture(model);
        assert_eq!(f.detail("model"), model.name());
        let mut client = Client::new(&f.path()).unwrap();
        let sizes: Vec<_> = (0..9).map(|i| client.region(i).unwrap().size).collect();
        assert_eq!(sizes, [256, 256, 0, 0, 0, 0, 0, 256, 0]);
        for region in [0, 1] {
            let region = client.region(region).unwrap();
            assert!(region.sparse_areas.is_empty(), "nothing to map");
            assert_eq!(region.flags, 3, "it is read and written, and neither mapped nor more");
        }
        let mut bytes = [0; 12];
        client.region_read(CONFIG, 0, &mut bytes).unwrap();
        assert_eq!((&bytes[..4], bytes[8]), (&id[..], revision), "{model:?}");
        assert_eq!(bytes[10..12], [0, 2], "Ethernet");
        let info = client.get_irq_info(INTX).unwrap();
        assert_eq!((info.flags, info.count), (7, 1), "EVENTFD, MASKABLE, AUTOMASKED");
        assert_eq!(client.get_irq_info(MSI).unwrap().count, msi);
        client.shutdown().unwrap();
        f.wait_free();
        assert_eq!(f.faults(), 0);
    }
}

/// How a BIOS asks: 256 bytes of I/O space in BAR 0, 256 bytes of memory in BAR 1.
#[test]
fn both_bars_have_their_size_and_kind() {
    for model in [Model::R8169, PLUS, PLAIN] {
        let f = fixture(model);
        let mut raw = f.ready();
        for (bar, want) in [
            (0x10, 0xffff_ff01_u32),
            (0x14, 0xffff_ff00),
            (0x18, 0),
            (0x1c, 0),
            (0x20, 0),
            (0x24, 0),
        ] {
            let ones = access(CONFIG, bar, 4, &[0xff; 4]);
            assert_eq!(raw.ask(WRITE, &ones, &[]), Some(0));
            let said = raw.read(CONFIG, bar, 4).unwrap();
            assert_eq!(u32::from_le_bytes(said.try_into().unwrap()), want, "{model:?} {bar:#x}");
        }
    }
}

/// Drivers use both BARs, bytes, words and what they like.
#[test]
fn accesses_of_all_sizes_reach_the_same_registers() {
    for model in [Model::R8169, PLUS, PLAIN] {
        let f = fixture(model);
        let mut raw = f.ready();
        assert_eq!(raw.ask(WRITE, &access(CONFIG, 4, 2, &[7, 0]), &[]), Some(0));
        // The address, from the EEPROM.
        for region in [0, 1] {
            assert_eq!(raw.read(region, 0, 6).unwrap(), MAC, "{model:?}");
            assert_eq!(raw.read(region, 1, 1).unwrap(), MAC[1..2]);
            assert_eq!(raw.read(region, 2, 2).unwrap(), MAC[2..4]);
            assert_eq!(raw.read(region, 1, 4).unwrap(), MAC[1..5]);
        }
        // The multicast table: eight bytes that can all be written, by either BAR.
        const MAR: u64 = 8;
        for (region, other) in [(0, 1), (1, 0)] {
            let mut want = [0_u8; 8];
            assert_eq!(raw.ask(WRITE, &access(region, MAR, 4, &want[..4]), &[]), Some(0));
            assert_eq!(raw.ask(WRITE, &access(region, MAR + 4, 4, &want[4..]), &[]), Some(0));
            for (at, size) in [(0_usize, 4_usize), (4, 4), (0, 1), (3, 1), (6, 2), (2, 4), (1, 2)] {
                let data: Vec<u8> =
                    (0..size).map(|n| u8::try_from(0x11 * (at + n + 1)).unwrap()).collect();
                want[at..at + size].copy_from_slice(&data);
                let count = u32::try_from(size).unwrap();
                let body = access(region, MAR + at as u64, count, &data);
                assert_eq!(raw.ask(WRITE, &body, &[]), Some(0));
                let said = raw.read(other, MAR, 8).unwrap();
                assert_eq!(said, want, "{model:?}: {size} bytes at MAR{at}");
            }
        }
        // Whatever is read is answered, up to the very end and no further.
        for offset in 0..256 {
            for count in [1, 2, 4, 8] {
                for region in [0, 1, CONFIG] {
                    let body = access(region, offset, count, &[]);
                    let inside = offset + u64::from(count) <= 256;
                    let want = if inside { 0 } else { libc::EINVAL.unsigned_abs() };
                    assert_eq!(raw.ask(READ, &body, &[]), Some(want), "{model:?} {offset} {count}");
                }
            }
        }
    }
}

/// QEMU posts writes to memory and waits for those to I/O ports.
#[test]
fn posted_writes_are_seen_by_the_next_read() {
    for model in [Model::R8169, PLUS, PLAIN] {
        let f = fixture(model);
        let mut raw = f.ready();
        assert_eq!(raw.ask(WRITE, &access(CONFIG, 4, 2, &[7, 0]), &[]), Some(0));
        for value in [0x1_u16, 0x2a, 0] {
            raw.send(WRITE, NO_REPLY, &access(1, IMR, 2, &value.to_le_bytes()), &[]);
            assert_eq!(raw.read(1, IMR, 2).unwrap(), value.to_le_bytes(), "{model:?}");
        }
        let device = f.door.port().device().unwrap();
        let imr = device.registers.iter().find(|access| access.register == "IMR").unwrap();
        assert_eq!((imr.reads, imr.writes), (3, 3), "by name");
    }
}

#[test]
fn a_status_block_is_offered_by_chips_with_rings() {
    for model in [Model::R8169, PLUS] {
        let f = Fixture::with(|config| (config.model, config.csb) = (model, true));
        let mut raw = f.ready();
        assert_eq!(raw.config16(0x2e), 0x1101, "{model:?}");
        assert_eq!(f.detail("csb"), "off");
    }
    assert_ne!(fixture(PLUS).ready().config16(0x2e), 0x1101);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let f = Fixture::new();
    let refused = |model, doorbell, csb| {
        let path = f.dir.path().join("other.sock");
        let config = Config { model, doorbell, csb, ..Config::new(path, Mac::default()) };
        attach(config, Arc::new(|| {})).err().map(|error| error.to_string()).unwrap_or_default()
    };
    for model in [Model::R8169, PLUS, PLAIN] {
        let said = refused(model, Doorbell::Mapped, false);
        let name = model.name();
        let wanted = format!("doorbell=mapped does not go with model={name}: leave one out");
        assert_eq!(said, wanted);
    }
    let said = refused(Model::E1000e, Doorbell::Trapped, true);
    assert!(said.contains("csb=on does not go with model=e1000e"), "{said}");
    assert_eq!(refused(Model::Vmxnet3, Doorbell::Mapped, false), "");
    let said = refused(Model::Vmxnet3, Doorbell::Trapped, true);
    assert!(said.contains("csb=on does not go with model=vmxnet3"), "{said}");
    let said = refused(PLAIN, Doorbell::Trapped, true);
    assert!(said.contains("csb=on does not go with plus=off"), "{said}");
    assert_eq!(refused(PLUS, Doorbell::Trapped, true), "");
}

/// The next client finds nothing of the last one's.
#[test]
fn each_client_finds_a_new_machine() {
    for model in [Model::R8169, PLUS, PLAIN] {
        let f = fixture(model);
        for _ in 0..2 {
            let mut raw = f.ready();
            assert_eq!(raw.config16(4), 0, "{model:?}");
            assert_eq!(raw.ask(WRITE, &access(CONFIG, 4, 2, &[7, 0]), &[]), Some(0));
            assert_eq!(raw.read(1, IMR, 2).unwrap(), [0, 0]);
            assert_eq!(raw.ask(WRITE, &access(1, IMR, 2, &[0x2a, 0]), &[]), Some(0));
        }
        let mut raw = f.ready();
        assert_eq!(raw.ask(WRITE, &access(CONFIG, 4, 2, &[7, 0]), &[]), Some(0));
        assert_eq!(raw.ask(WRITE, &access(1, IMR, 2, &[0x2a, 0]), &[]), Some(0));
        assert_eq!(raw.ask(RESET, &[], &[]), Some(0));
        assert_eq!(raw.config16(4), 0, "reset");
    }
}

#[test]
fn the_client_of_cloud_hypervisor_sees_a_vmxnet3() {
    let f = fixture(Model::Vmxnet3);
    assert_eq!((f.detail("model"), f.detail("csb")), ("vmxnet3".into(), "not offered".into()));
    let mut client = Client::new(&f.path()).unwrap();
    let sizes: Vec<_> = (0..9).map(|i| client.region(i).unwrap().size).collect();
    assert_eq!(sizes, [4096, 4096, 16384, 0, 0, 0, 0, 256, 0]);
    let areas = |bar| -> Vec<_> {
        let region = client.region(bar).unwrap();
        region.sparse_areas.iter().map(|area| (area.offset, area.size)).collect()
    };
    assert_eq!([areas(0), areas(1), areas(2)], [vec![], vec![], vec![(0x2000, 0x1000)]]);
    let mut bytes = [0; 12];
    client.region_read(CONFIG, 0, &mut bytes).unwrap();
    assert_eq!((&bytes[..4], &bytes[8..]), (&[0xad, 0x15, 0xb0, 7][..], &[1, 0, 0, 2][..]));
    for (index, want) in [(INTX, (7, 1)), (MSI, (9, 1)), (MSIX, (1, 25))] {
        let info = client.get_irq_info(index).unwrap();
        assert_eq!((info.flags, info.count), want);
    }
    // The pending bits are the VMM's to keep.
    let mut pending = [0xff; 4];
    client.region_read(2, 0x1000, &mut pending).unwrap();
    assert_eq!(pending, [0; 4]);
    let lines: Vec<_> = (0..25).map(|_| eventfd()).collect();
    let fds: Vec<_> = lines.iter().map(raw).collect();
    client.set_irqs(MSIX, EVENTFD | TRIGGER, 0, 25, &fds).unwrap();
    assert_eq!(f.detail("interrupts"), "MSI-X");
    client.set_irqs(MSIX, NONE | TRIGGER, 23, 2, &[]).unwrap();
    let counts: Vec<_> = lines.iter().map(count).collect();
    assert_eq!(counts, [vec![0; 23], vec![1; 2]].concat());
    client.set_irqs(MSIX, NONE | TRIGGER, 0, 0, &[]).unwrap();
    assert_eq!(f.detail("interrupts"), "none");
    client.shutdown().unwrap();
    f.wait_free();
    assert_eq!(f.faults(), 0);
}

/// Vectors, and the ring registers' pages if they are mapped. Its cable moves: vector 2.
#[test]
fn the_client_of_cloud_hypervisor_sees_an_e1000e() {
    for doorbell in [Doorbell::Trapped, Doorbell::Mapped] {
        let f = Fixture::with(|config| {
            (config.model, config.doorbell) = (Model::E1000e, doorbell);
        });
        assert_eq!((f.detail("model"), f.detail("csb")), ("e1000e".into(), "not offered".into()));
        let mut client = Client::new(&f.path()).unwrap();
        let sizes: Vec<_> = (0..9).map(|i| client.region(i).unwrap().size).collect();
        assert_eq!(sizes, [0x2_0000, 0, 32, 0x4000, 0, 0, 0, 256, 0]);
        let areas: Vec<_> = client.region(0).unwrap().sparse_areas.iter().collect();
        let areas: Vec<_> = areas.iter().map(|area| (area.offset, area.size)).collect();
        let mapped = vec![(0x2000, 0x2000)];
        assert_eq!(areas, if doorbell == Doorbell::Mapped { mapped } else { vec![] });
        assert!(client.region(3).unwrap().sparse_areas.is_empty(), "the table is the VMM's");
        for (index, want) in [(INTX, (7, 1)), (MSI, (9, 1)), (MSIX, (1, 5))] {
            let info = client.get_irq_info(index).unwrap();
            assert_eq!((info.flags, info.count), want);
        }
        let lines: Vec<_> = (0..3).map(|_| eventfd()).collect();
        // One by one, in any order.
        for (n, line) in [2, 0, 1].map(|n: u32| (n, &lines[n as usize])) {
            client.set_irqs(MSIX, EVENTFD | TRIGGER, n, 1, &[raw(line)]).unwrap();
        }
        client.region_write(CONFIG, 0xa2, &[0, 0x80]).unwrap();
        for (at, value) in [(0u64, 1u32 << 6), (0xe4, 0x000a_0000), (0xd0, 1 << 24)] {
            client.region_write(0, at, &value.to_le_bytes()).unwrap();
        }
        let mut icr = [0; 4];
        client.region_read(0, 0xc0, &mut icr).unwrap();
        let _ = count(&lines[2]);
        f.door.set_link(false);
        until("a message", || count(&lines[2]) > 0);
        client.region_read(0, 0xc0, &mut icr).unwrap();
        assert_eq!(u32::from_le_bytes(icr) & 0x7fff_ffff, 1 << 24 | 4, "OTHER, LSC");
        assert_eq!(lines[..2].iter().map(count).sum::<u64>(), 0);
        client.shutdown().unwrap();
        f.wait_free();
        assert_eq!(f.faults(), 0);
    }
}

/// What a driver of vmxnet3 says of itself: DriverShared at 1000h, with vector 3 for events; a
/// transmit and a receive queue at 2000h, with 32 descriptors in each ring.
const SHARED: [(u64, u32); 19] = [
    (0x1000, 0xbabe_fee1),
    (0x1010, 1),
    (0x1014, 1),
    (0x1028, 0x2000),
    (0x1034, 512),
    (0x1038, 1500),
    (0x103c, 0x0101_0000),
    (0x1050, 0x0003_0400),
    (0x2010, 0x3000),
    (0x2020, 0x4000),
    (0x2038, 32),
    (0x2040, 32),
    (0x2110, 0x5000),
    (0x2118, 0x6000),
    (0x2120, 0x7000),
    (0x2138, 32),
    (0x213c, 32),
    (0x2140, 64),
    (0x2148, 1),
];

/// The cable's moves reach the vector that is for events.
#[test]
fn a_vector_of_a_vmxnet3_is_interrupted_when_its_cable_moves() {
    const COMMAND: u64 = 0x20;
    const ACTIVATE: u32 = 0xcafe_0000;
    let f = fixture(Model::Vmxnet3);
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    assert_eq!(client.map(0, 0, 1 << 20, raw(&memory)), Some(0));
    client.enable();
    assert_eq!(client.ask(WRITE, &access(CONFIG, 0x9e, 2, &[0, 0x80]), &[]), Some(0), "MSI-X");
    for (at, value) in SHARED {
        memory.write_all_at(&value.to_le_bytes(), at).unwrap();
    }
    let mut vd = |offset, value: u32| {
        assert_eq!(client.ask(WRITE, &access(1, offset, 4, &value.to_le_bytes()), &[]), Some(0));
    };
    for (at, value) in [(0, 1), (8, 1), (0x10, 0x1000), (0x18, 0), (COMMAND, ACTIVATE)] {
        vd(at, value);
    }
    assert_eq!(client.read(1, COMMAND, 4).unwrap(), [0; 4], "it worked");
    client.set(3 * 8, 0);
    let lines: Vec<_> = (0..4).map(|_| eventfd()).collect();
    for (n, line) in lines.iter().enumerate().rev() {
        let vector = u32::try_from(n).unwrap();
        assert_eq!(client.set_vectors(EVENTFD | TRIGGER, vector, 1, &[raw(line)]), Some(0));
    }
    for up in [false, true] {
        let _ = count(&lines[3]);
        f.door.set_link(up);
        until("an event", || count(&lines[3]) > 0);
        let mut link = [0; 4];
        let get = 0xf00d_0002u32;
        assert_eq!(client.ask(WRITE, &access(1, COMMAND, 4, &get.to_le_bytes()), &[]), Some(0));
        link.copy_from_slice(&client.read(1, COMMAND, 4).unwrap());
        assert_eq!(u32::from_le_bytes(link) & 1, u32::from(up));
        // It is acknowledged.
        assert_eq!(client.ask(WRITE, &access(1, 0x40, 4, &[0xff; 4]), &[]), Some(0));
    }
    assert_eq!(lines[..3].iter().map(count).sum::<u64>(), 0, "the others have no part in it");
    // Without an eventfd at its vector it is nobody's.
    assert_eq!(client.set_vectors(EVENTFD | TRIGGER, 3, 1, &[]), Some(0));
    f.door.set_link(false);
    until("the link is down", || f.detail("link") == "down");
    assert_eq!(client.read(1, 0, 4).unwrap().len(), 4);
    assert_eq!(count(&lines[3]), 0);
}
