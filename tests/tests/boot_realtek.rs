//! Linux guests with their stock r8169, 8139cp and 8139too drivers.

use vmlan_tests::{
    LanHost, Result, connectivity, linux_nic,
    linux_nic_lan::{Effort, From, everything},
    linux_nic_suite::LinuxNicSuite,
};

/// The driver's `ethtool -C` reaches the chip and is read back from it; all arrives nevertheless.
/// How many interrupts are held is not judged: under TCG they come more slowly than the longest
/// time that the chip knows.
fn moderation(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    if scene.card.driver != "r8169" {
        return Ok(());
    }
    for micros in [150, 0] {
        let set = format!("ethtool -C eth0 rx-usecs {micros} tx-usecs {micros}");
        scene.guest.sh(&format!("{set} rx-frames 0 tx-frames 0"))?;
        let said = scene.guest.sh("ethtool -c eth0 | sed -n 's/^rx-usecs:[^0-9]*//p'")?;
        let back: u32 = said.trim().parse().expect("a number");
        // Rounded up to units of the chip's.
        assert!((micros..micros + 11).contains(&back), "{back} for {micros}");
        let read = |scene: &LinuxNicSuite<'_>| -> Result<[u64; 3]> {
            let port = scene.switch.port(scene.guest.name())?;
            let device = &port["device"];
            Ok(["raised", "held", "delivered"].map(|name| device[name].as_u64().unwrap_or(0)))
        };
        let before = read(scene)?;
        let ip = scene.guest.ip().to_owned();
        connectivity::iperf(scene.virtio, &ip, "-n 4M")?;
        let after = read(scene)?;
        let [raised, held, delivered] = [0, 1, 2].map(|at| after[at] - before[at]);
        println!("  {back} us: {raised} interrupts raised, {held} held, {delivered} delivered");
    }
    Ok(())
}

const CARDS: [&linux_nic::LinuxNic; 3] =
    [&linux_nic::R8169, &linux_nic::RTL8139_PLUS, &linux_nic::RTL8139];

#[test]
fn stock_drivers() -> Result<()> {
    everything(&CARDS, From::Switch, Effort::Short, moderation)
}

#[test]
#[ignore = "for minutes: reloads the drivers a hundred times"]
fn many_reloads() -> Result<()> {
    everything(&CARDS, From::Switch, Effort::Long(100), moderation)
}

#[test]
#[ignore = "a control experiment: the same checks on QEMU's own rtl8139"]
fn the_checks_pass_on_qemu_own_rtl8139() -> Result<()> {
    everything(&[&linux_nic::QEMU_RTL8139], From::Qemu("rtl8139"), Effort::Long(50), moderation)
}
