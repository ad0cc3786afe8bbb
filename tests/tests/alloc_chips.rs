//! No allocation for a frame on a chip's path, nor for a register access: not by the workers, not
//! by the ports' threads that serve the accesses. (The driver that plays the guest, with its VMM,
//! may allocate for an access.)

use std::path::{Path, PathBuf};

use vmlan_attach::vfio_user::Doorbell;
use vmlan_driver::chip::{Chip, Offload, Segmentation};
use vmlan_driver::e1000;
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_driver::vmxnet3::Vmware;
use vmlan_tests::chip_guest::ChipGuest;
use vmlan_tests::chip_loop::add;
use vmlan_tests::counting_allocator::{Counting, assert_no_allocation, spare_this_thread};
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan, explain_ports};
use vmlan_tests::numbered::{Progress, frame, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::Bus;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Frame = (Offload, Vec<u8>);

/// `a` sends all of `frames`, `rounds` times, and `take` takes `expected` for each round.
fn rounds<C: Chip>(
    a: &mut ChipGuest<C, impl Bus>,
    frames: &[Frame],
    rounds: u64,
    expected: u64,
    mut take: impl FnMut() -> u64,
) {
    for round in 0..rounds {
        let (mut next, mut got, mut progress) = (0, 0, Progress::default());
        while got < expected {
            let begin = next;
            while frames.get(next).is_some_and(|(offload, bytes)| a.send(*offload, bytes)) {
                next += 1;
            }
            a.flush();
            a.receive(|_, _| {});
            let now = take();
            got += now;
            progress.note(now + (next - begin) as u64, || {
                format!("{got} of {expected}, {round}, sent {next}: {:#?}", explain_ports())
            });
        }
        assert_eq!(got, expected, "frames of round {round}");
    }
}

fn plain(len: usize, count: u64) -> Vec<Frame> {
    (0..count).map(|n| (Offload::default(), frame(mac(2, 0), mac(1, 0), n, len))).collect()
}

/// An IPv4 packet for segmentation, headers as a driver leaves them; its checksums nobody looks at
/// here.
fn large(payload: usize) -> Frame {
    let mut bytes = frame(mac(2, 0), mac(1, 0), 1, 54 + payload);
    bytes[16..18].fill(0);
    bytes[23] = 6;
    bytes[46] = 0x50;
    let segmentation = Some(Segmentation { mss: 1440, header: 54 });
    let (checksum, ip) = (Some((34, 50)), Some((14, 33)));
    (Offload { checksum, ip, tcp: true, segmentation, vlan: None }, bytes)
}

/// One test for all, since the count is for the whole process.
#[test]
fn no_frame_costs_an_allocation() {
    spare_this_thread();
    let mut lan = Lan::new(2, FULL_WAIT);
    let trapped =
        [lan.add_e1000_with("a", Doorbell::Trapped), lan.add_e1000_with("b", Doorbell::Trapped)];
    let mapped =
        [lan.add_e1000_with("c", Doorbell::Mapped), lan.add_e1000_with("d", Doorbell::Mapped)];
    let virtio = lan.add("v", 1);
    for ([at_a, at_b], keys) in [
        (&mapped, ""),
        (&mapped, ",batch,interrupts=idle,segment=100,size=1024"),
        (&mapped, ",itr=400,rdtr=30,radv=60,tidv=30,tadv=60"),
        (&trapped, ",writes=posted"),
        (&trapped, ",irq=msi,batch,unmask=message"),
    ] {
        plain_frames::<e1000::Intel>(at_a, at_b, keys);
    }
    segments::<e1000::Intel>(&mapped, &virtio);
    let gigabit = ["g", "h"].map(|name| add::<Rings<Gigabit>>(&mut lan, name));
    let plus = ["p", "q"].map(|name| add::<Rings<Plus>>(&mut lan, name));
    let classic = ["o", "n"].map(|name| add::<Classic>(&mut lan, name));
    let newer = ["i", "j"].map(|name| add::<e1000::Intel82574>(&mut lan, name));
    let vmware = ["w", "x"].map(|name| add::<Vmware>(&mut lan, name));
    for keys in [",writes=posted", ",csb", ",batch,irq=msi,mitigate=0x5151,segment=100"] {
        plain_frames::<Rings<Gigabit>>(&gigabit[0], &gigabit[1], keys);
    }
    plain_frames::<Rings<Plus>>(&plus[0], &plus[1], ",writes=posted,segment=100");
    plain_frames::<Rings<Plus>>(&plus[0], &plus[1], ",csb");
    plain_frames::<Classic>(&classic[0], &classic[1], ",buffer=8192,writes=posted");
    segments::<Rings<Gigabit>>(&gigabit, &virtio);
    for keys in ["", ",writes=posted,fence=off,irq=intx", ",batch,irq=msi,buffer=256,segment=128"] {
        plain_frames::<Vmware>(&vmware[0], &vmware[1], keys);
    }
    segments::<Vmware>(&vmware, &virtio);
    for keys in ["", ",writes=posted,irq=intx", ",batch,irq=msi,buffer=256,segment=128"] {
        plain_frames::<e1000::Intel82574>(&newer[0], &newer[1], keys);
    }
    segments::<e1000::Intel82574>(&newer, &virtio);
}

fn plain_frames<C: Chip>(at_a: &Path, at_b: &Path, keys: &str) {
    let mut a = ChipGuest::<C, _>::connect(at_a, 1, keys);
    let mut b = ChipGuest::<C, _>::connect(at_b, 2, keys);
    b.introduce();
    for len in [60, 300, 1514] {
        let frames = plain(len, 100);
        assert_no_allocation(&format!("frames move, {}{keys}", C::MODEL), |n| {
            rounds(&mut a, &frames, n, 100, || b.receive(|_, _| {}));
        });
    }
}

fn segments<C: Chip>(at: &[PathBuf; 2], virtio: &Path) {
    let mut a = ChipGuest::<C, _>::connect(&at[0], 1, ",tso,csum,batch");
    let frames: Vec<_> = (0..10).map(|_| large(30_000)).collect();
    let mut b = ChipGuest::<C, _>::connect(&at[1], 2, ",csum");
    b.introduce();
    assert_no_allocation("segments are made for a chip", |n| {
        rounds(&mut a, &frames, n, 210, || b.receive(|_, _| {}));
    });
    drop(b);
    let mut v = VirtioGuest::connect(virtio, 2, ",guest_tso=on");
    v.introduce();
    a.receive(|_, _| {});
    assert_no_allocation("a chip's packets arrive whole", |n| {
        rounds(&mut a, &frames, n, 10, || v.receive(|_, _| {}));
    });
    let back: Vec<_> = (0..100).map(|n| frame(mac(1, 0), mac(2, 0), n, 1000)).collect();
    assert_no_allocation("a virtio guest sends to a chip", |n| {
        for _ in 0..n {
            let (mut sent, mut got, mut progress) = (0, 0, Progress::default());
            while got < 100 {
                while sent < 100 && v.send(0, NetHeader::default(), &back[sent]) {
                    sent += 1;
                }
                v.flush();
                let now = a.receive(|_, _| {});
                got += now;
                progress.note(now, || format!("{got} of 100"));
            }
        }
    });
}
