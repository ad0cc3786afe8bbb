//! A TAP device that a switch with `--hold-for` has made outlives it, `kill -9` included: the same
//! device, with what the host has set on it. Without that it goes with the switch.

use std::path::Path;

use serde_json::Value;
use vmlan_tests::numbered::settles;
use vmlan_tests::{LanHost as _, NetNs, Result, Switch, output_of, vmlan_program};

/// What the host knows of its device.
fn link(host: &mut NetNs) -> Option<Value> {
    let said = host.sh("ip -j -s addr show dev vmlan0").ok()?;
    serde_json::from_str::<Value>(&said).ok()?.get(0).cloned()
}

/// Number and addresses of the device: of another one they are others.
fn identity(host: &mut NetNs) -> Option<(u64, Vec<String>, u64)> {
    let link = link(host)?;
    let addresses = link["addr_info"].as_array()?.iter().filter(|a| a["family"] == "inet");
    let addresses = addresses.filter_map(|a| Some(a["local"].as_str()?.to_owned())).collect();
    Some((link["ifindex"].as_u64()?, addresses, link["mtu"].as_u64()?))
}

fn ports(dir: &Path, options: &[&str], queues: u16) -> Vec<String> {
    let vm = format!("vm=vhost-user:{}", dir.join("vm").display());
    let tap = format!("host=tap:vmlan0,queues={queues}");
    options.iter().map(|&word| word.to_owned()).chain([tap, vm]).collect()
}

/// Frames go both ways, through the queues that the switch has now.
fn passes(host: &mut NetNs, switch: &Switch, dir: &Path) -> Result<()> {
    let frames = |switch: &Switch, side: &str| {
        switch.port("host").ok().and_then(|port| port[side]["frames"].as_u64()).unwrap_or(0)
    };
    let before = frames(switch, "in");
    // Nobody has that address: it asks who has.
    let _ = host.run("busybox ping -c 1 -W 1 10.77.0.99", std::time::Duration::from_secs(60))?;
    assert!(settles(|| frames(switch, "in") > before), "{}", switch.stats()?);
    let received = |host: &mut NetNs| {
        link(host).and_then(|link| link["stats64"]["rx"]["packets"].as_u64()).unwrap_or(0)
    };
    let before = received(host);
    let vm = format!("vhost-user:{}", dir.join("vm").display());
    let words = ["pkt-gen", "-i", &vm, "-f", "tx", "-n", "10", "-D", "ff:ff:ff:ff:ff:ff"];
    output_of(&vmlan_program().to_string_lossy(), &words)?;
    assert!(settles(|| received(host) >= before + 10), "{:?}", link(host));
    Ok(())
}

fn held(switch: &Switch) -> Result<Value> {
    let list: Value = serde_json::from_str(&switch.ask(&["port", "list", "--json"])?).unwrap();
    Ok(list["ports"][0]["details"]["held"].clone())
}

#[test]
fn the_host_keeps_its_device() -> Result<()> {
    for queues in [1, 3] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut host = NetNs::new(dir.path(), "host", 1)?;
        let words = ports(dir.path(), &["--hold-for", "60"], queues);
        let mut switch = Switch::start(dir.path(), Some(&host), &words)?;
        host.adopt("vmlan0")?;
        host.sh("ip addr add 10.78.0.1/24 dev vmlan0 && ip link set vmlan0 mtu 1400")?;
        let was = identity(&mut host).expect("a device");
        assert!(was.1.contains(&"10.77.0.1".to_owned()) && was.2 == 1400, "{was:?}");
        assert_eq!(held(&switch)?, "yes");
        passes(&mut host, &switch, dir.path())?;
        for round in 0..6 {
            if round % 2 == 0 {
                switch.kill9();
            } else {
                assert_eq!(switch.terminate()?, Some(0));
            }
            assert_eq!(identity(&mut host).as_ref(), Some(&was), "while nobody serves");
            switch.restart()?;
            switch.answering()?;
            assert_eq!(identity(&mut host).as_ref(), Some(&was), "{}", switch.log());
            passes(&mut host, &switch, dir.path())?;
        }
        // One that is deleted and made anew is what is held then.
        host.sh("ip link delete vmlan0")?;
        assert!(settles(|| identity(&mut host).is_some_and(|now| now.0 != was.0)));
        host.adopt("vmlan0")?;
        let now = identity(&mut host).expect("a device");
        // What the port's thread has attached to is held by the control thread.
        assert!(settles(|| held(&switch).is_ok_and(|held| held == "yes")), "{}", switch.log());
        switch.kill9();
        switch.restart()?;
        switch.answering()?;
        assert_eq!(identity(&mut host), Some(now));
        // With other keys it is another device; one that was not asked for any more goes.
        switch.ask(&["port", "del", "host"])?;
        assert!(settles(|| link(&mut host).is_none()));
        switch.ask(&["stop", "--for-good"])?;
    }
    Ok(())
}

#[test]
fn it_goes_with_a_switch_that_ends_for_good_or_holds_nothing() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut host = NetNs::new(dir.path(), "host", 1)?;
    let mut switch = Switch::start(dir.path(), Some(&host), &ports(dir.path(), &[], 1))?;
    assert!(link(&mut host).is_some());
    assert_eq!(held(&switch)?, Value::Null);
    switch.kill9();
    assert!(settles(|| link(&mut host).is_none()), "the control: it is lost");
    let words = ports(dir.path(), &["--hold-for", "60"], 1);
    let mut switch = Switch::start(dir.path(), Some(&host), &words)?;
    assert!(link(&mut host).is_some());
    switch.kill9();
    // The next one wants another device in its place, and a second queue is no queue of the first.
    let words = ports(dir.path(), &["--hold-for", "60"], 2);
    let switch = Switch::start(dir.path(), Some(&host), &words)?;
    assert!(link(&mut host).is_some());
    passes(&mut host, &switch, dir.path())?;
    switch.ask(&["stop", "--for-good"])?;
    assert!(settles(|| link(&mut host).is_none()));
    Ok(())
}
