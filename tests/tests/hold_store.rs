//! As `hold`, with a service manager in the holder's place: a switch that is its service finds in
//! its store what the one before has left. The harness plays it.

use std::sync::Arc;

use vmlan_tests::held_machine::{Machine, pass};
use vmlan_tests::numbered::settles;
use vmlan_tests::{Result, ServiceManager, Switch, output_of};
use vmlan_transport::Bus as _;

/// Two ports, and room for them and no more.
fn start(dir: &std::path::Path) -> Result<(Arc<ServiceManager>, Switch)> {
    start_with(dir, 4, &["a", "b"])
}

fn start_with(
    dir: &std::path::Path,
    room: usize,
    ports: &[&str],
) -> Result<(Arc<ServiceManager>, Switch)> {
    let manager = Arc::new(ServiceManager::new(dir, room)?);
    let ports = ports.iter().map(|name| port(dir, name));
    let words: Vec<_> = ["--hold-for", "60"].map(str::to_owned).into_iter().chain(ports).collect();
    let switch = Switch::start_service(dir, &manager, &words)?;
    Ok((manager, switch))
}

fn port(dir: &std::path::Path, name: &str) -> String {
    format!("{name}=vfio-user:{}", dir.join(name).display())
}

fn list(switch: &Switch) -> Result<String> {
    switch.ask(&["port", "list", "--json"])
}

#[test]
fn frames_pass_again_after_kill_9_and_after_a_restart() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let (manager, mut switch) = start(dir.path())?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    for _ in 0..3 {
        {
            let (mut sends, mut receives) = (a.set_up(), b.set_up());
            pass(&mut sends, &mut receives, 0, 500);
            // `systemctl restart`: no driver notices.
            assert_eq!(switch.terminate()?, Some(0));
            switch.restart()?;
            pass(&mut sends, &mut receives, 500, 500);
            switch.answering()?;
            assert_eq!(list(&switch)?.matches("exactly").count(), 2, "{}", list(&switch)?);
            switch.kill9();
        }
        switch.restart()?;
        assert!(!a.is_reset() && !b.is_reset());
        switch.answering()?;
        let how = "as it was when its switch was killed";
        assert_eq!(list(&switch)?.matches(how).count(), 2, "{}", list(&switch)?);
        assert_eq!(manager.kept().len(), 4, "two descriptors for each port");
        // Until the next may die, too.
        std::thread::sleep(std::time::Duration::from_millis(1500));
    }
    assert!(!dir.path().join("api.sock.hold").exists(), "there is no holder beside it");
    // A port too many is served, and said not to be held.
    switch.ask(&["port", "add", &port(dir.path(), "c")])?;
    let said = || list(&switch).is_ok_and(|list| list.contains("FileDescriptorStoreMax="));
    assert!(settles(said), "{}", list(&switch)?);
    switch.ask(&["port", "del", "c"])?;
    // `vmlan stop` cannot know that it will be started again: it says nothing of holding.
    assert!(!switch.ask(&["stop"])?.contains("held"));
    assert!(settles(|| a.bus.read32(8).is_err()), "its VMs' NICs end with it");
    assert!(settles(|| manager.kept().is_empty()));
    Ok(())
}

#[test]
fn a_store_that_is_let_go_takes_the_vms_along() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let (manager, mut switch) = start(dir.path())?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    drop(a.set_up());
    assert_eq!(switch.terminate()?, Some(0));
    manager.let_go();
    assert!(settles(|| a.bus.read32(8).is_err()), "`systemctl stop`");
    // What comes next begins anew.
    switch.restart()?;
    switch.answering()?;
    assert!(!list(&switch)?.contains("adopted"), "{}", list(&switch)?);
    drop(Machine::new(&dir.path().join("a"), 1).set_up());
    output_of("kill", &["-INT", &switch.pid().to_string()])?;
    assert!(settles(|| manager.kept().is_empty()), "Ctrl-C ends it for good");
    Ok(())
}

/// A port that was added is in the store, and that it was.
#[test]
fn a_port_that_was_added_outlives_its_switch() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let (manager, mut switch) = start_with(dir.path(), 6, &["a"])?;
    switch.ask(&["port", "add", &port(dir.path(), "b")])?;
    let mut a = Machine::new(&dir.path().join("a"), 1);
    let mut b = Machine::new(&dir.path().join("b"), 2);
    let (mut sends, mut receives) = (a.set_up(), b.set_up());
    for n in 0..3 {
        pass(&mut sends, &mut receives, 500 * n, 500);
        assert_eq!(switch.terminate()?, Some(0));
        switch.restart()?;
    }
    pass(&mut sends, &mut receives, 1500, 500);
    switch.answering()?;
    assert_eq!(list(&switch)?.matches("exactly").count(), 2, "{}", list(&switch)?);
    assert_eq!(manager.kept().len(), 6, "two descriptors for each port, two for the change");
    switch.ask(&["port", "del", "b"])?;
    assert!(settles(|| manager.kept().len() == 2));
    Ok(())
}
