//! The control experiment: the boot tests' own checks over a plain wire, with no vmlan in between.
//! When a boot test fails and this passes, the switch is at fault; when this fails too, look at the
//! harness or the machine. `cargo test -p vmlan-tests --test without_vmlan -- --ignored`

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use vmlan_tests::{
    Boot, Guest, Image, LanHost, NetNs, Process, connectivity,
    testpmd::{BURST, BURSTS, Testpmd, Vdev},
};

/// Joins the two ends of a `-netdev stream` pair; frames carry their length, so bytes are all it
/// needs to move.
fn wire(dir: &Path) {
    let ends = ["a", "b"].map(|name| UnixListener::bind(dir.join(name)).expect("a socket"));
    thread::spawn(move || {
        let [a, b] = ends.map(|end| end.accept().expect("QEMU connects").0);
        let back = [a.try_clone().expect("a clone"), b.try_clone().expect("a clone")];
        thread::spawn(move || pump(a, b));
        let [a, b] = back;
        pump(b, a);
    });
}

fn pump(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = vec![0; 1 << 17];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

#[test]
#[ignore = "a control experiment, for when a boot test fails"]
fn the_checks_pass_over_a_plain_wire() -> vmlan_tests::Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = Image::build(dir.path())?;
    wire(dir.path());
    let boots = [
        Boot::new("one", 1).stream(&dir.path().join("a"), "virtio-net-pci"),
        Boot::new("two", 2).stream(&dir.path().join("b"), "e1000"),
    ];
    let [mut one, mut two] = Guest::boot(&image, dir.path(), boots)?;
    connectivity::reaches(&mut one, "10.77.0.2")?;
    connectivity::ping_sizes(&mut one, "10.77.0.2")?;
    connectivity::serve(&mut one)?;
    connectivity::serve(&mut two)?;
    for on in [true, false] {
        connectivity::offloads(&mut two, on)?;
        connectivity::fetch(&mut one, "10.77.0.2")?;
        connectivity::fetch(&mut two, "10.77.0.1")?;
        let what = format!("offloads {on}");
        connectivity::flows(&what, &mut one, "10.77.0.2", "-n 16M")?;
        connectivity::flows(&what, &mut two, "10.77.0.1", "-n 16M")?;
    }
    connectivity::no_checksum_errors(&mut one)?;
    connectivity::no_checksum_errors(&mut two)
}

#[test]
#[ignore = "a control experiment, for when a boot test fails"]
fn the_checks_pass_between_two_namespaces() -> vmlan_tests::Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut host = NetNs::new(dir.path(), "host", 101)?;
    let mut other = host.sibling(dir.path(), "other", 102)?;
    host.sh("ip link add v0 type veth peer name v1")?;
    host.give("v1", &other)?;
    host.adopt("v0")?;
    other.adopt("v1")?;
    connectivity::reaches(&mut host, "10.77.0.102")?;
    connectivity::ping_sizes(&mut host, "10.77.0.102")?;
    connectivity::serve(&mut host)?;
    connectivity::serve(&mut other)?;
    connectivity::fetch(&mut host, "10.77.0.102")?;
    connectivity::fetch(&mut other, "10.77.0.101")?;
    connectivity::flows("between namespaces", &mut host, "10.77.0.102", "-n 16M")?;
    connectivity::no_checksum_errors(&mut other)
}

/// DPDK's own vhost between two sockets; it listens, or as a client connects.
fn dpdk_vhost(dir: &Path, sockets: &[PathBuf; 2], client: bool) -> vmlan_tests::Result<Process> {
    let words = "dpdk-testpmd --lcores 0@1,1@1 --main-lcore 0 --no-pci --no-huge --no-shconf \
                 --no-telemetry -m 256";
    let mut argv: Vec<String> = words.split(' ').map(str::to_owned).collect();
    for (number, socket) in sockets.iter().enumerate() {
        let vdev =
            format!("net_vhost{number},iface={},client={}", socket.display(), u8::from(client));
        argv.extend(["--vdev".into(), vdev]);
    }
    let own = "-- -i --auto-start --nb-cores=1 --forward-mode=io --total-num-mbufs=16384";
    argv.extend(own.split(' ').map(str::to_owned));
    let log = dir.join("vhost.log");
    let mut vhost = Process::start_dialogue("DPDK vhost", &log, &argv)?;
    let ready = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("core forward"));
    vhost.wait("to forward", Duration::from_secs(20), || {
        if client { ready() } else { sockets.iter().all(|socket| socket.exists()) }
    })?;
    Ok(vhost)
}

#[test]
#[ignore = "a control experiment, for when the testpmd test fails"]
fn testpmd_bounces_through_its_own_vhost() -> vmlan_tests::Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let sockets = ["vu0", "vu1"].map(|name| dir.path().join(name));
    let _vhost = dpdk_vhost(dir.path(), &sockets, false)?;
    let ports = sockets.map(|socket| Vdev { socket, server: false, options: "" });
    let mut testpmd = Testpmd::start(dir.path(), &ports, 1)?;
    // The vhost side forwards only once it has seen the link.
    thread::sleep(Duration::from_secs(2));
    testpmd.bounce(60)?;
    while testpmd.counted()?[0].rx < 1_000_000 {
        thread::sleep(Duration::from_millis(100));
    }
    testpmd.stop()?;
    let [zero, one] = testpmd.counted()?;
    println!("{zero:?} {one:?}");
    assert_eq!(zero.tx + one.tx, zero.rx + one.rx + 2 * BURST * BURSTS);
    Ok(())
}

#[test]
#[ignore = "a control experiment, for when a boot test fails"]
fn guests_talk_through_dpdk_vhost() -> vmlan_tests::Result<()> {
    for client in [false, true] {
        println!("client {client}");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let dir = dir.path();
        let image = Image::build(dir)?;
        let sockets = ["vm1", "vm2"].map(|name| dir.join(name));
        let _vhost = dpdk_vhost(dir, &sockets, client)?;
        let boots = [("vm1", 1), ("vm2", 2)].map(|(name, number)| {
            let boot = Boot::new(name, number);
            if client {
                boot.vhost_user_listening(&dir.join(name))
            } else {
                boot.vhost_user(&dir.join(name))
            }
        });
        let [mut one, mut two] = Guest::boot(&image, dir, boots)?;
        connectivity::reaches(&mut one, "10.77.0.2")?;
        connectivity::serve(&mut two)?;
        connectivity::offloads(&mut one, false)?;
        connectivity::fetch(&mut one, "10.77.0.2")?;
    }
    Ok(())
}
