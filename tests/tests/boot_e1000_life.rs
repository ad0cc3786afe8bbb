//! Violence against an e1000 under traffic: its driver unloaded and loaded, its guest rebooted, its
//! QEMU killed. A few times here; the many are `make soak`.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use vmlan_tests::killed_guest::Descriptors;
use vmlan_tests::numbered::STALL;
use vmlan_tests::{
    Boot, Guest, LanHost, Result, connectivity,
    e1000_lan::{E1000, E1000Lan},
    guest_tools, linux_nic,
};

const GUEST: &str = "10.77.0.1";
const VIRTIO: &str = "10.77.0.2";

struct Times {
    /// Between two frames for the e1000. Each costs its guest an interrupt and, as nobody listens,
    /// mostly an answer, which under TCG is most of what the guest does.
    gap: Duration,
    reload: u32,
    reboot: u32,
    kill: u32,
}

/// All three, one after the other, while the virtio guest's kernel sends at the e1000.
fn life(kind: E1000, times: &Times) -> Result<()> {
    let mut lan = E1000Lan::start(kind)?;
    let end = survives(&mut lan, times);
    if end.is_err() {
        println!("{}", lan.last_lines());
    }
    end
}

fn survives(lan: &mut E1000Lan, times: &Times) -> Result<()> {
    connectivity::serve(&mut lan.virtio)?;
    connectivity::reaches(&mut lan.host, VIRTIO)?;
    guest_tools::generate(&mut lan.virtio, &Boot::mac(1), GUEST, 60, times.gap)?;
    reload(lan, times.reload)?;
    reboot(lan, times.reboot)?;
    kill(lan, times.kill)?;
    guest_tools::stop_generator(&mut lan.virtio)?;
    connectivity::serve(&mut lan.e1000)?;
    connectivity::ping_sizes(&mut lan.e1000, VIRTIO)?;
    connectivity::fetch(&mut lan.e1000, VIRTIO)?;
    connectivity::fetch(&mut lan.virtio, GUEST)?;
    lan.switch.alive()
}

/// The driver goes and comes while frames arrive, and while the guest itself sends whenever it can.
fn reload(lan: &mut E1000Lan, times: u32) -> Result<()> {
    let guest = &mut lan.e1000;
    guest
        .background("sh -c 'while :; do ping -q -i 0.005 -c 100 10.77.0.2; usleep 10000; done'")?;
    let since = Instant::now();
    for time in 1..=times {
        guest_tools::reload(guest, "e1000", "")?;
        // Mostly it goes again at once, at whatever the chip is about then.
        if time % 5 == 0 || time == times {
            connectivity::reaches(guest, VIRTIO)?;
        }
        lan.switch.alive()?;
    }
    let each = since.elapsed() / times;
    println!("  driver reloaded {times} times under traffic, {each:.1?} each");
    let rate = guest_tools::grown_to(guest, linux_nic::E1000.heard, 1, || {
        sleep(Duration::from_secs(1));
        Ok(())
    })?;
    println!("  and then it receives {rate} frames a second");
    assert!(rate > 0, "nothing arrives any more");
    Ok(())
}

/// The guest resets the machine with the NIC in full use.
fn reboot(lan: &mut E1000Lan, times: u32) -> Result<()> {
    for _ in 0..times {
        let since = Instant::now();
        lan.e1000.reboot()?;
        connectivity::reaches(&mut lan.e1000, VIRTIO)?;
        println!("  guest rebooted and reachable in {:.1?}", since.elapsed());
        lan.switch.alive()?;
    }
    Ok(())
}

/// `kill -9` of QEMU while its guest sends; nobody else loses a frame, nothing is left behind, and
/// the port takes a new QEMU.
fn kill(lan: &mut E1000Lan, times: u32) -> Result<()> {
    let (dir, port) = (lan.dir(), lan.kind);
    let mut descriptors = Descriptors::of(&lan.switch);
    for kill in 1..=times {
        // As much as leaves room in the ring of the one whom it shares with the probe, also while
        // that one waits for a core.
        lan.e1000.background("iperf3 -c 10.77.0.2 -u -b 10M -t 1000")?;
        let probe = "busybox ping -i 0.05 -c 40 10.77.0.2 > probe 2>&1";
        lan.host.background(&format!("sh -c 'cd {} && {probe}'", lan.host.files()))?;
        sleep(Duration::from_millis(700));
        lan.e1000.kill9();
        let left = |lan: &E1000Lan| lan.switch.port("e1").map(|port| port["up"] == false);
        let since = Instant::now();
        while !left(lan)? {
            assert!(since.elapsed() < STALL, "the port is still up");
            sleep(Duration::from_millis(20));
        }
        let gone = since.elapsed();
        let [again] = Guest::boot(&lan.image, &dir, [port.boot(&dir)])?;
        lan.e1000 = again;
        connectivity::reaches(&mut lan.e1000, VIRTIO)?;
        let probe = format!("{}/probe", lan.host.files());
        let probed = lan.host.sh(&format!("until grep received {probe}; do sleep 0.1; done"))?;
        assert!(probed.contains("40 packets received"), "others lost frames: {probed}");
        let open = descriptors.check(&lan.switch, &format!("kill {kill}, with a new guest"));
        println!("  kill {kill} of {times}: gone after {gone:.0?}, {open} descriptors");
    }
    Ok(())
}

const FEW: Times = Times { gap: Duration::from_millis(5), reload: 4, reboot: 1, kill: 1 };
const MANY: Times = Times { gap: Duration::from_millis(1), reload: 200, reboot: 20, kill: 20 };

#[test]
fn trapped_doorbells() -> Result<()> {
    life(E1000::Trapped, &FEW)
}

#[test]
fn mapped_doorbells() -> Result<()> {
    life(E1000::Mapped, &FEW)
}

#[test]
#[ignore = "soak: minutes"]
fn many_times() -> Result<()> {
    life(E1000::Trapped, &MANY)?;
    life(E1000::Mapped, &MANY)
}

#[test]
#[ignore = "a control experiment: the same on QEMU's own e1000"]
fn the_checks_pass_on_qemu_own_e1000() -> Result<()> {
    life(E1000::Qemu, &FEW)
}
