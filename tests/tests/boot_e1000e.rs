//! Linux guests with their stock e1000e driver: with two CPUs and MSI-X, and with mapped
//! doorbells.

use vmlan_tests::{
    LanHost, Result, connectivity, linux_nic,
    linux_nic_lan::{Effort, From, everything},
    linux_nic_suite::{LinuxNicSuite, chapter},
};

fn more(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    chapter("vectors", || vectors(scene))?;
    // Shared pages keep what the guest writes, reserved bits included.
    let excused: &[&str] = if scene.card.keys.contains("mapped") { &["register"] } else { &[] };
    chapter("self-test", || scene.self_test(excused))
}

/// One vector for frames received, one for those sent, one for the rest. None of the first two
/// costs a read of a register.
fn vectors(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    let LinuxNicSuite { guest, virtio, switch, .. } = scene;
    let names = guest.sh("sed -n 's/.* //; /eth0/p' /proc/interrupts")?;
    assert_eq!(names.lines().collect::<Vec<_>>(), ["eth0-rx-0", "eth0-tx-0", "eth0"]);
    let own = guest.ip().to_owned();
    let name = guest.name().to_owned();
    let counts = || -> Result<(u64, u64)> {
        let port = switch.port(&name)?;
        let device = &port["device"];
        let reads = device["registers"]["ICR"]["reads"].as_u64().expect("reads of ICR");
        Ok((reads, device["delivered"].as_u64().expect("messages")))
    };
    let before = counts()?;
    connectivity::iperf(*virtio, &own, "-n 4M")?;
    connectivity::iperf(*guest, virtio.ip(), "-n 4M")?;
    let after = counts()?;
    let (reads, delivered) = (after.0 - before.0, after.1 - before.1);
    println!("  {delivered} messages, {reads} reads of ICR");
    // Those for the rest say that frames found no room, as some do when the guest is late.
    assert!(delivered > 0 && reads < delivered / 5, "{delivered} messages, {reads} reads of ICR");
    Ok(())
}

const CARDS: [&linux_nic::LinuxNic; 2] = [&linux_nic::E1000E, &linux_nic::E1000E_MAPPED];

#[test]
fn stock_driver() -> Result<()> {
    everything(&CARDS, From::Switch, Effort::Short, more)
}

#[test]
#[ignore = "for minutes: reloads the driver a hundred times"]
fn many_reloads() -> Result<()> {
    everything(&CARDS, From::Switch, Effort::Long(100), more)
}
