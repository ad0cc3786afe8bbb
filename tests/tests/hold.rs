//! `kill -9` of a switch that has its VMs held: their emulated NICs live. Each goes on where it
//! was. An e1000e whose receive descriptors have several buffers is reset: frames pass again once
//! its driver has set it up. A switch without that is the control.

use std::time::Duration;

use vmlan_driver::chip::Chip;
use vmlan_driver::e1000::{Intel, Intel82574};
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_tests::held_machine::{Machine, dies_at, pass, pass_while};
use vmlan_tests::numbered::settles;
use vmlan_tests::{Result, Switch, kill9, output_of};
use vmlan_transport::{Bus as _, Model};

fn ports(dir: &std::path::Path, options: &[&str]) -> Vec<String> {
    ports_with(dir, options, "")
}

fn ports_with(dir: &std::path::Path, options: &[&str], keys: &str) -> Vec<String> {
    let port = |name| format!("{name}=vfio-user:{}{keys}", dir.join(name).display());
    let ports = ["a", "b"].map(port);
    options.iter().map(|&option| option.to_owned()).chain(ports).collect()
}

/// How a switch ends, and with which code.
type End = fn(&mut Switch) -> Result<Option<i32>>;

/// The drivers go on as if nothing had happened: their rings, interrupts and link are as they were.
/// Frames of one batch may come again. A register has this bit, or has not, as long as there is a
/// link.
fn no_driver_notices<C: Chip>(keys: &str, more: &str, link: (u32, u32, bool)) -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ports_with(dir.path(), &["--hold-for", "60"], keys);
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = Machine::of(C::MODEL, &dir.path().join("a"), 1, more);
    let mut b = Machine::of(C::MODEL, &dir.path().join("b"), 2, more);
    let (mut sends, mut receives) = (a.drive::<C>(), b.drive::<C>());
    let (kills, each) = (8, 3000);
    for kill in 0..kills {
        let first = kill * each;
        // Somewhere in the midst of it.
        let at = first + 500 + kill * 7919 % 2000;
        let dies = dies_at(&mut switch, at);
        pass_while(&mut sends, &mut receives, first..first + each, dies);
        switch.answering()?;
        // Until the next may die, too.
        std::thread::sleep(Duration::from_millis(1500));
    }
    let list = switch.ask(&["port", "list", "--json"])?;
    let how = "adopted 8 times, the last one as it was when its switch was killed";
    assert_eq!(list.matches(how).count(), 2, "{list}");
    drop((sends, receives));
    let (register, bit, set) = link;
    for one in [&mut a, &mut b] {
        assert_eq!(one.bus.read32(register).unwrap_or(0) & bit != 0, set);
    }
    switch.ask(&["stop", "--for-good"])?;
    Ok(())
}

/// STATUS, and its bit LU.
const STATUS: (u32, u32, bool) = (8, 2, true);
/// The 8139's MSR, and its bit LINKB.
const MSR: (u32, u32, bool) = (0x58, 4, false);

#[test]
fn no_driver_notices_kill_9() -> Result<()> {
    no_driver_notices::<Intel>("", "", STATUS)?;
    no_driver_notices::<Intel>(",doorbell=mapped", ",doorbell=mapped", STATUS)?;
    no_driver_notices::<Intel>(",csb=on", ",csb=on", STATUS)
}

#[test]
fn no_driver_of_an_r8169_notices_kill_9() -> Result<()> {
    no_driver_notices::<Rings<Gigabit>>(",model=r8169", "", (0x6c, 2, true))?;
    no_driver_notices::<Rings<Gigabit>>(",model=r8169,csb=on", ",csb=on", (0x6c, 2, true))
}

#[test]
fn no_driver_of_an_rtl8139_notices_kill_9() -> Result<()> {
    no_driver_notices::<Rings<Plus>>(",model=rtl8139", "", MSR)?;
    no_driver_notices::<Rings<Plus>>(",model=rtl8139,csb=on", ",csb=on", MSR)
}

#[test]
fn no_driver_of_an_rtl8139_in_classic_mode_notices_kill_9() -> Result<()> {
    no_driver_notices::<Classic>(",model=rtl8139,plus=off", "", MSR)
}

/// Its receive descriptors have several buffers: RFCTL.EXSTEN, RCTL.DTYP. If its switch is killed,
/// it is reset.
fn split(machine: &mut Machine) {
    for (register, bit) in [(0x5008, 1 << 15), (0x100, 1 << 10)] {
        let before = machine.bus.read32(register).expect("it answers");
        machine.bus.write32(register, before | bit).expect("it takes it");
    }
    // That was posted.
    machine.bus.read32(8).expect("it answers");
}

#[test]
fn frames_pass_again_after_a_reset() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ports_with(dir.path(), &["--hold-for", "60"], ",model=e1000e");
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let [mut a, mut b] = [("a", 1), ("b", 2)]
        .map(|(name, id)| Machine::of(Model::E1000e, &dir.path().join(name), id, ""));
    let details = |switch: &Switch| switch.ask(&["port", "list", "--json"]);
    for kill in 0..3 {
        {
            let (mut sends, mut receives) = (a.drive::<Intel82574>(), b.drive::<Intel82574>());
            pass(&mut sends, &mut receives, 0, 500);
            assert!(details(&switch)?.contains("\"held\":\"yes"), "{}", details(&switch)?);
        }
        [&mut a, &mut b].into_iter().for_each(split);
        switch.kill9();
        switch.restart()?;
        assert!(a.is_reset() && b.is_reset(), "kill {kill}");
        switch.answering()?;
        let list = details(&switch)?;
        assert_eq!(list.matches("with a reset chip").count(), 2, "{list}");
        // Until the next may die, too.
        std::thread::sleep(Duration::from_millis(1500));
    }
    pass(&mut a.drive::<Intel82574>(), &mut b.drive::<Intel82574>(), 0, 500);
    // Ctrl-C ends it for good.
    output_of("kill", &["-INT", &switch.pid().to_string()])?;
    assert!(settles(|| a.bus.read32(8).is_err()), "a switch that ends takes its VMs' NICs along");
    assert!(settles(|| !dir.path().join("api.sock.hold").exists()), "its holder ends with it");
    Ok(())
}

/// SIGTERM: the drivers go on as if nothing had happened, and no frame is lost or comes twice.
#[test]
fn no_driver_notices_a_switch_that_makes_way() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut switch = Switch::start(dir.path(), None, &ports(dir.path(), &["--hold-for", "60"]))?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    let (mut sends, mut receives) = (a.set_up(), b.set_up());
    for times in 0..10 {
        pass(&mut sends, &mut receives, 700 * times, 700);
        assert_eq!(switch.terminate()?, Some(0));
        switch.restart()?;
    }
    pass(&mut sends, &mut receives, 7000, 700);
    switch.answering()?;
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 10 times, the last one exactly").count(), 2, "{list}");
    Ok(())
}

/// The process that serves.
fn server(switch: &Switch) -> u32 {
    let children = output_of("pgrep", &["-x", "-P", &switch.pid().to_string(), "vmlan"]);
    children.ok().and_then(|pid| pid.trim().parse().ok()).unwrap_or_default()
}

/// Nobody starts it again by hand.
#[test]
fn a_supervised_switch_comes_back_by_itself() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ports(dir.path(), &["--supervise", "--hold-for", "60"]);
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    let (mut sends, mut receives) = (a.set_up(), b.set_up());
    for kill in 0..3 {
        // What was on its way when the last one died may come again.
        let mut deaths = 1;
        let numbers = 500 * kill..500 * kill + 500;
        pass_while(&mut sends, &mut receives, numbers, |_| std::mem::take(&mut deaths));
        kill9(&[server(&switch)]);
        // Until the next may die, too.
        std::thread::sleep(Duration::from_millis(2500));
    }
    let mut first = 1500;
    let mut deaths = 1;
    let numbers = first..first + 500;
    pass_while(&mut sends, &mut receives, numbers, |_| std::mem::take(&mut deaths));
    first += 500;
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 3 times, the last one as it was when").count(), 2, "{list}");
    // One that is told to end hands over, and so does one whose supervisor is killed.
    let killed = |switch: &mut Switch| {
        let stat = format!("/proc/{}/stat", server(switch));
        switch.kill9();
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(settles(|| !lives()), "it has outlived its supervisor");
        Ok(None)
    };
    let ends: [End; 2] = [Switch::terminate, killed];
    for end in ends {
        pass(&mut sends, &mut receives, first, 500);
        end(&mut switch)?;
        switch.restart()?;
        first += 500;
    }
    pass(&mut sends, &mut receives, first, 500);
    switch.answering()?;
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 5 times, the last one exactly").count(), 2, "{list}");
    switch.ask(&["stop", "--for-good"]).map(drop)
}

/// SIGTERM's hand-over for `vmlan upgrade`, also where the next program does not come up.
#[test]
fn no_driver_notices_an_upgrade() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let switch = Switch::start(dir.path(), None, &ports(dir.path(), &["--hold-for", "60"]))?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    let (mut sends, mut receives) = (a.set_up(), b.set_up());
    for times in 0..10 {
        pass(&mut sends, &mut receives, 700 * times, 700);
        let said = switch.ask(&["upgrade"])?;
        assert!(said.starts_with("upgraded: "), "{said}");
    }
    pass(&mut sends, &mut receives, 7000, 700);
    let next = dir.path().join("next");
    let api = dir.path().join("api.sock");
    let intent = format!(r#"{{"api":"{}","holds":true,"ports":["a","b"]}}"#, api.display());
    let script = format!("#!/bin/sh\necho '{intent}' >&0\nread begin <&0\nexit 1\n");
    std::fs::write(&next, script).expect("a file");
    output_of("chmod", &["700", &next.to_string_lossy()])?;
    let failed = switch.ask(&["upgrade", "--binary", &next.to_string_lossy()]);
    let failed = failed.expect_err("it ends at once").to_string();
    assert!(failed.contains("the old program serves again"), "{failed}");
    pass(&mut sends, &mut receives, 7700, 700);
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 11 times, the last one exactly").count(), 2, "{list}");
    switch.ask(&["stop", "--for-good"]).map(drop)
}

/// A port that was added while the switch ran outlives it like those that it was started with.
#[test]
fn ports_that_were_added_outlive_the_switch() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let all = ports(dir.path(), &["--hold-for", "60"]);
    let mut switch = Switch::start(dir.path(), None, &all[..all.len() - 1])?;
    switch.ask(&["port", "add", &all[all.len() - 1]])?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    let (mut sends, mut receives) = (a.set_up(), b.set_up());
    let killed: End = |switch| {
        // Until its trial is over.
        std::thread::sleep(Duration::from_millis(1500));
        switch.kill9();
        Ok(None)
    };
    for (n, end) in (0..).zip([killed, Switch::terminate, killed]) {
        pass(&mut sends, &mut receives, 1000 * n, 500);
        end(&mut switch)?;
        switch.restart()?;
        let mut deaths = 1;
        let numbers = 1000 * n + 500..1000 * n + 1000;
        pass_while(&mut sends, &mut receives, numbers, |_| std::mem::take(&mut deaths));
    }
    let said = switch.ask(&["upgrade"])?;
    assert!(said.starts_with("upgraded: "), "{said}");
    pass(&mut sends, &mut receives, 3000, 500);
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 4 times, the last one exactly").count(), 2, "{list}");
    switch.ask(&["stop", "--for-good"]).map(drop)
}

/// A next switch that finds something in its way leaves all to the one after it.
#[test]
fn a_start_that_fails_loses_nothing() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let good = ports(dir.path(), &["--hold-for", "60"]);
    let mut switch = Switch::start(dir.path(), None, &good)?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    let (mut sends, mut receives) = (a.set_up(), b.set_up());
    pass(&mut sends, &mut receives, 0, 700);
    assert_eq!(switch.terminate()?, Some(0));
    let bad = format!("c=stream:{}", dir.path().join("none").join("c").display());
    let bad = good.iter().cloned().chain([bad]).collect::<Vec<_>>();
    let fails = || {
        let failed = Switch::start(dir.path(), None, &bad).map(drop);
        let failed = failed.expect_err("there is no such directory").to_string();
        assert!(failed.contains("port c: "), "{failed}");
    };
    fails();
    switch.restart()?;
    pass(&mut sends, &mut receives, 700, 700);
    switch.answering()?;
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 2 times, the last one exactly").count(), 2, "{list}");
    // Nor does one that goes on after a kill.
    switch.kill9();
    fails();
    switch.restart()?;
    let mut deaths = 1;
    pass_while(&mut sends, &mut receives, 1400..2100, |_| std::mem::take(&mut deaths));
    switch.answering()?;
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 4 times, the last one exactly").count(), 2, "{list}");
    Ok(())
}

/// A chip that was reset is not taken for one that is as it was.
#[test]
fn a_start_that_fails_keeps_a_reset_for_the_next() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let good = ports_with(dir.path(), &["--hold-for", "60"], ",model=e1000e");
    let mut switch = Switch::start(dir.path(), None, &good)?;
    let mut a = Machine::of(Model::E1000e, &dir.path().join("a"), 1, "");
    drop(a.drive::<Intel82574>());
    split(&mut a);
    let bad = format!("c=stream:{}", dir.path().join("none").join("c").display());
    let bad = good.iter().cloned().chain([bad]).collect::<Vec<_>>();
    switch.kill9();
    let failed = Switch::start(dir.path(), None, &bad).map(drop);
    assert!(failed.is_err(), "there is no such directory");
    switch.restart()?;
    switch.answering()?;
    // By SIGTERM, and killed, before its driver knows.
    for times in 3..5 {
        let list = switch.ask(&["port", "list", "--json"])?;
        let how = format!("adopted {} times, the last one with a reset", times - 1);
        assert_eq!(list.matches(&how).count(), 1, "{list}");
        if times == 3 {
            assert_eq!(switch.terminate()?, Some(0));
        } else {
            switch.kill9();
        }
        switch.restart()?;
        switch.answering()?;
    }
    Ok(())
}

#[test]
fn without_a_holder_the_nic_is_dead() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut switch = Switch::start(dir.path(), None, &ports(dir.path(), &[]))?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    assert!(!a.is_reset() || a.bus.read32(8).is_ok());
    switch.kill9();
    switch.restart()?;
    switch.answering()?;
    assert!(a.bus.read32(8).is_err());
    Ok(())
}
