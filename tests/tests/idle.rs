//! A switch with 100 guests, a TAP device and a stream peer, all connected and silent, sleeps.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vmlan_tests::numbered::{STALL, settles};
use vmlan_tests::usage::{self, Cpu};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{LanHost, NetNs, Result, Switch};

const GUESTS: u8 = 100;
const SILENCE: Duration = Duration::from_secs(10);
/// What a few wake-ups cost nowhere, and somebody who does not sleep soon uses.
const LITTLE: Duration = Duration::from_millis(100);

#[test]
fn a_hundred_silent_ports_cost_nothing() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let mut host = NetNs::new(dir.path(), "host", 9)?;
    // Or the kernel itself talks on the new interface: router solicitations, multicast reports.
    host.sh("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")?;
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let guest = |n| socket(&format!("g{n}"));
    let mut ports: Vec<_> =
        (0..GUESTS).map(|n| format!("g{n}=vhost-user:{}", guest(n).display())).collect();
    ports.push("host=tap:idle0".into());
    ports.push(format!("peer=stream:{}", socket("peer").display()));
    let mut switch = Switch::start(dir.path(), Some(&host), &ports)?;
    host.sh("ip link set idle0 up")?;
    let peer = UnixStream::connect(socket("peer")).unwrap();
    let mut guests: Vec<_> = (0..GUESTS)
        .map(|n| {
            VirtioGuest::connect(
                &guest(n),
                n,
                if n % 2 == 0 { ",size=64" } else { ",size=64,event_idx=off" },
            )
        })
        .collect();
    // They have all spoken, so every ring and every address has been in use.
    for guest in &mut guests {
        guest.send_next(0xee, 1, vmlan_tests::numbered::Sizes { least: 60, most: 60 });
    }
    wait_for_all(&mut guests);
    let mut stats = switch.stats()?;
    let all_up = settles(|| {
        stats = switch.stats().unwrap_or_default();
        let all = stats["ports"].as_array().into_iter().flatten();
        all.filter(|port| port["up"] == true).count() == usize::from(GUESTS) + 2
    });
    assert!(all_up, "all ports are up: {stats}");
    std::thread::sleep(Duration::from_millis(500));
    let nothing = |used: &Cpu, _| used.wakeups <= 20 && used.time < LITTLE;
    let (used, time) = usage::least(switch.pid(), SILENCE, nothing);
    println!(
        "{} ports, {time:.1?} of silence: {} wake-ups, {:.1?} of a CPU",
        ports.len(),
        used.wakeups,
        used.time
    );
    assert!(nothing(&used, time), "{used:?}");
    // And it was asleep, not dead.
    let got = guests[1].receive(|_, _| {});
    guests[0].send_next(0xee, 2, vmlan_tests::numbered::Sizes { least: 60, most: 60 });
    let end = Instant::now() + STALL;
    while guests[1].receive(|_, _| {}) == 0 {
        assert!(Instant::now() < end, "a frame wakes it up ({got} before)");
    }
    drop(peer);
    switch.alive()
}

/// Until every guest's own frame was taken, and all are flooded.
fn wait_for_all(guests: &mut [VirtioGuest]) {
    for guest in guests {
        let end = Instant::now() + STALL;
        while guest.nic.pairs[0].tx.outstanding() > 0 {
            guest.nic.pairs[0].tx.reap();
            guest.receive(|_, _| {});
            assert!(Instant::now() < end, "guest {} cannot send", guest.id);
        }
    }
}
