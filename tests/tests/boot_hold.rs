//! Linux with its stock e1000 in QEMU outlives the switch: one that makes way, which it does not
//! notice, and one that is killed, after which its driver sets the chip up again.

use vmlan_tests::{Boot, Guest, Image, LanHost, Result, Switch, connectivity, guest_tools};

/// Of the guest's kernel, about a chip that has stopped.
fn complaints(guest: &mut Guest) -> Result<String> {
    let text = guest.sh("dmesg | grep -e 'NETDEV WATCHDOG' -e 'Tx Unit Hang' || true")?;
    Ok(text)
}

/// The connections of `iperf3` stand, and bytes pass.
fn flows(one: &mut Guest, two: &mut Guest) -> Result<()> {
    connectivity::fetch(one, "10.77.0.2")?;
    connectivity::fetch(two, "10.77.0.1")?;
    one.sh("! grep -q ended /tmp/there || { cat /tmp/there; exit 1; }")?;
    Ok(())
}

#[test]
fn linux_with_an_e1000_outlives_the_switch() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("vmlan-hold.").tempdir().expect("a directory");
    let dir = dir.path();
    let image = Image::build(dir)?;
    let ports = [
        "--hold-for=60".to_owned(),
        format!("e1=vfio-user:{},mac={}", dir.join("e1").display(), Boot::mac(1)),
        format!("vm2=vhost-user:{},connect", dir.join("vm2").display()),
    ];
    let mut switch = Switch::start(dir, None, &ports)?;
    let boots = [
        Boot::new("e1", 1).newer().vfio_user(&dir.join("e1")),
        Boot::new("vm2", 2).vhost_user_listening(&dir.join("vm2")),
    ];
    let [mut one, mut two] = Guest::boot(&image, dir, boots)?;
    connectivity::reaches(&mut one, "10.77.0.2")?;
    connectivity::serve(&mut one)?;
    connectivity::serve(&mut two)?;
    guest_tools::neighbour(&mut one, "eth0", &mut two, "eth0")?;
    guest_tools::neighbour(&mut two, "eth0", &mut one, "eth0")?;
    one.sh("(iperf3 -c 10.77.0.2 -t 80000 -b 5M > /tmp/there 2>&1; echo ended >> /tmp/there) &")?;
    flows(&mut one, &mut two)?;
    for _ in 0..3 {
        assert_eq!(switch.terminate()?, Some(0));
        switch.restart()?;
        flows(&mut one, &mut two)?;
    }
    assert_eq!(complaints(&mut one)?.trim(), "", "it has noticed");
    for _ in 0..2 {
        switch.kill9();
        switch.restart()?;
        flows(&mut one, &mut two)?;
    }
    println!("  after two kills: {}", complaints(&mut one)?);
    let list = switch.ask(&["port", "list", "--json"])?;
    assert!(list.contains("adopted 5 times, the last one with a reset chip"), "{list}");
    connectivity::no_checksum_errors(&mut one)
}
