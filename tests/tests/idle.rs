//! A switch with 100 guests, a TAP device and a stream peer, all connected and silent, uses no CPU time at all.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vmlan_tests::native::Native;
use vmlan_tests::{NetNs, Result, Station, Switch, usage};

const GUESTS: u8 = 100;
const SILENCE: Duration = Duration::from_secs(10);

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
            Native::connect(
                &guest(n),
                n,
                if n % 2 == 0 { ",size=64" } else { ",size=64,event_idx=off" },
            )
        })
        .collect();
    // They have all spoken, so every ring and every address has been in use.
    for guest in &mut guests {
        guest.send_next(0xee, 1, vmlan_tests::native::Sizes { least: 60, most: 60 });
    }
    wait_for_all(&mut guests);
    let stats = switch.stats()?;
    let up = stats["ports"].as_array().into_iter().flatten().filter(|port| port["up"] == true);
    assert_eq!(up.count(), usize::from(GUESTS) + 2, "all ports are up: {stats}");
    std::thread::sleep(Duration::from_millis(500));
    let pid = switch.pid();
    let before = usage::cpu(pid);
    let since = Instant::now();
    std::thread::sleep(SILENCE);
    let after = usage::cpu(pid);
    println!(
        "{} ports, {:.1?} of silence: {} ticks, {} ns in {} runs",
        ports.len(),
        since.elapsed(),
        after.ticks - before.ticks,
        after.nanos - before.nanos,
        after.runs - before.runs
    );
    assert_eq!(after.ticks - before.ticks, 0, "ticks of the process");
    assert_eq!(after.thread_ticks - before.thread_ticks, 0, "ticks of its threads");
    // A tick is 10 ms, which would hide a thread that wakes up often and does little.
    assert!(after.runs - before.runs <= 20, "{before:?} {after:?}");
    // And it was asleep, not dead.
    let got = guests[1].receive(|_, _| {});
    guests[0].send_next(0xee, 2, vmlan_tests::native::Sizes { least: 60, most: 60 });
    let end = Instant::now() + Duration::from_secs(5);
    while guests[1].receive(|_, _| {}) == 0 {
        assert!(Instant::now() < end, "a frame wakes it up ({got} before)");
    }
    drop(peer);
    switch.alive()
}

/// Until every guest's own frame was taken, and all are flooded.
fn wait_for_all(guests: &mut [Native]) {
    let end = Instant::now() + Duration::from_secs(10);
    for guest in guests {
        while guest.nic.pairs[0].tx.outstanding() > 0 {
            guest.nic.pairs[0].tx.reap();
            guest.receive(|_, _| {});
            assert!(Instant::now() < end, "guest {} cannot send", guest.id);
        }
    }
}
