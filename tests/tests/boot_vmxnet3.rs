//! Linux guests with their stock vmxnet3 driver: with two pairs of queues and MSI-X (four in
//! `make soak`, and in `boot_dpdk`), with one pair and INTx, and with mapped doorbells.

use vmlan_tests::{
    LanHost, Result, connectivity, guest_tools,
    linux_nic::{self, LinuxNic},
    linux_nic_lan::{Effort, From, everything},
    linux_nic_suite::{LinuxNicSuite, chapter},
};

fn more(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    chapter("queues", || queues(scene))?;
    if scene.card.brief {
        return Ok(());
    }
    chapter("sizes", || sizes(scene))?;
    chapter("own address", || own_address(scene))
}

/// The driver has a pair of queues for each CPU, with a vector each and one for events, and flows
/// are spread over them.
fn queues(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    let LinuxNicSuite { card, guest, virtio, .. } = scene;
    let names = guest.sh("sed -n 's/.* //; /eth0/p' /proc/interrupts")?;
    let wanted: Vec<_> = match card.cpus {
        1 if card.append.contains("nomsi") => vec!["eth0".to_owned()],
        n => (0..n).map(|n| format!("eth0-rxtx-{n}")).chain([format!("eth0-event-{n}")]).collect(),
    };
    assert_eq!(names.lines().collect::<Vec<_>>(), wanted);
    let own = guest.ip().to_owned();
    connectivity::iperf(*virtio, &own, "-n 4M -P 8")?;
    connectivity::iperf(*guest, virtio.ip(), "-n 4M -P 8")?;
    // Each queue's part of the statistics begins with its number; the first number behind is that
    // of segmented or joined packets, the third of frames.
    let said = guest.sh("ethtool -S eth0")?;
    let count = |name: &str| -> Vec<u64> {
        let lines = said.lines().filter_map(|line| line.split_once(':'));
        let these = lines.filter(|(key, _)| key.trim() == name);
        these.map(|(_, value)| value.trim().parse().expect("a number")).collect()
    };
    for name in ["ucast pkts tx", "ucast pkts rx"] {
        let each = count(name);
        println!("  {name}: {each:?}");
        assert_eq!(each.len(), card.cpus as usize, "{said}");
        let used = each.iter().filter(|count| **count > 20).count();
        assert!(used > each.len() / 2, "{name}: {each:?}");
    }
    Ok(())
}

/// Buffers of one piece up to an MTU of 3,050, of several from 3,051 on; rings of other sizes; LRO
/// off and on.
fn sizes(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    let LinuxNicSuite { guest, virtio, .. } = scene;
    let own = guest.ip().to_owned();
    for (what, size) in [
        ("ip link set eth0 mtu 3050", 3022),
        ("ip link set eth0 mtu 3051", 3023),
        ("ip link set eth0 mtu 1500", 1472),
        ("ethtool -G eth0 rx 64 rx-jumbo 64 tx 64", 1472),
        ("ethtool -G eth0 rx 4096 rx-jumbo 4096 tx 4096", 1472),
        ("ethtool -G eth0 rx 1024 rx-jumbo 512 tx 512", 1472),
        ("ethtool -K eth0 lro off", 1472),
        ("ethtool -K eth0 lro on", 1472),
    ] {
        guest.sh(what)?;
        virtio.sh("ip link set eth0 mtu 9000")?;
        guest_tools::carrier(guest, true)?;
        connectivity::reaches(*guest, virtio.ip())?;
        guest.sh(&format!("busybox ping -c 3 -i 0.02 -W 9 -s {size} {}", virtio.ip()))?;
        let there = connectivity::iperf(*guest, virtio.ip(), "-n 4M")?;
        let back = connectivity::iperf(*virtio, &own, "-n 4M")?;
        let [there, back] = [there, back].map(|flow| flow.bits_per_second / 1e6);
        println!("  {what}: TCP {there:.0} and back {back:.0} Mbit/s");
    }
    virtio.sh("ip link set eth0 mtu 1500").map(drop)
}

/// An address of the guest's own outlives that the interface goes down.
fn own_address(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    let LinuxNicSuite { guest, virtio, .. } = scene;
    let before = guest_tools::mac(*guest, "eth0")?;
    for mac in ["02:00:00:00:01:77", &before] {
        let ip = guest.ip().to_owned();
        guest.sh(&format!(
            "ip link set eth0 down && /bin/ip link set eth0 address {mac} && ip link set eth0 up \
             && (ip addr add {ip}/24 dev eth0 || true)"
        ))?;
        guest_tools::carrier(guest, true)?;
        virtio.sh("/bin/ip neigh flush dev eth0")?;
        connectivity::reaches(*virtio, &ip)?;
        connectivity::reaches(*guest, virtio.ip())?;
        assert_eq!(guest_tools::mac(*guest, "eth0")?, mac);
    }
    Ok(())
}

/// The first one, and the others.
fn cards(first: &'static LinuxNic) -> [&'static LinuxNic; 3] {
    [first, &linux_nic::VMXNET3_INTX, &linux_nic::VMXNET3_MAPPED]
}

#[test]
fn stock_driver() -> Result<()> {
    everything(&cards(&linux_nic::VMXNET3), From::Switch, Effort::Short, more)
}

#[test]
#[ignore = "for minutes: reloads the driver a hundred times"]
fn many_reloads() -> Result<()> {
    everything(&cards(&linux_nic::VMXNET3_FOUR), From::Switch, Effort::Long(100), more)
}
