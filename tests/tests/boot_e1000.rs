//! A Linux guest with its stock e1000 driver, beside a virtio guest and the host: everything but
//! the violent, which is `boot_e1000_life.rs`. Throughputs are printed and never judged.

use std::time::Instant;
use vmlan_tests::{
    Result, connectivity,
    e1000_lan::{E1000, E1000Lan},
    linux_nic_suite::chapter,
};

/// Everything, with `excused` of the five self-tests allowed to fail.
fn everything(kind: E1000, excused: &[&str]) -> Result<()> {
    let since = Instant::now();
    let mut lan = E1000Lan::start(kind)?;
    println!("  {kind:?}: booted in {:.1?}", since.elapsed());
    let end = chapters(&mut lan, excused);
    if end.is_err() {
        println!("{}", lan.last_lines());
    }
    end
}

fn chapters(lan: &mut E1000Lan, excused: &[&str]) -> Result<()> {
    chapter("every pair", || lan.scene().every_pair())?;
    chapter("self-test", || lan.scene().self_test(excused))?;
    chapter("statistics", || lan.scene().statistics())?;
    // The rest is the same whichever way doorbells go: judged once.
    let all = lan.kind != E1000::Mapped;
    chapter("offloads on", || lan.scene().traffic(true, all))?;
    if all {
        chapters_of_any_doorbell(lan)?;
    }
    chapter("every pair again", || lan.scene().every_pair())?;
    lan.switch.alive()?;
    lan.scene().no_complaints()
}

fn chapters_of_any_doorbell(lan: &mut E1000Lan) -> Result<()> {
    chapter("offloads off", || lan.scene().traffic(false, true))?;
    connectivity::offloads(&mut lan.e1000, true)?;
    // QEMU's own cuts its frames itself, and a stream port has no cable.
    if lan.kind != E1000::Qemu {
        chapter("segmentation offload", || lan.scene().unsegmented())?;
        chapter("link", || lan.scene().link(2))?;
    }
    chapter("multicast", || lan.scene().multicast())?;
    chapter("promiscuous mode", || lan.scene().promiscuous())?;
    chapter("VLAN", || lan.scene().vlan())?;
    chapter("jumbo frames", || lan.scene().jumbo(true))
}

#[test]
fn trapped_doorbells() -> Result<()> {
    everything(E1000::Trapped, &[])
}

/// The shared pages keep what the guest writes, low reserved bits included, and that is what the
/// register test looks at.
#[test]
fn mapped_doorbells() -> Result<()> {
    everything(E1000::Mapped, &["register"])
}

#[test]
#[ignore = "a control experiment: QEMU's own e1000, which fails two of the self-tests"]
fn the_checks_pass_on_qemu_own_e1000() -> Result<()> {
    everything(E1000::Qemu, &["register", "interrupt", "loopback", "link", "eeprom"])
}
