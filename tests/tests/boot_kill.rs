//! `kill -9` under traffic: of the switch, whose guests must not notice more than a pause, and of a
//! VM, which nobody else must notice at all. A few times here; the hundred of each are `make soak`.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use vmlan_tests::killed_guest::Descriptors;
use vmlan_tests::numbered::{STALL, settles};
use vmlan_tests::{Boot, Guest, Image, LanHost, Result, Switch, connectivity, guest_tools, usage};

/// Who listens on the vhost-user socket. QEMU 7.2 as the connecting side tries again once a second
/// and no faster, counted from the break; so only with QEMU listening is the whole pause ours: near
/// 55 ms, and else a second longer. Pauses are told, not judged.
#[derive(Clone, Copy, PartialEq)]
enum Listens {
    Qemu,
    Switch,
}

impl Listens {
    fn address(self, dir: &Path, name: &str) -> String {
        let option = if self == Listens::Qemu { ",connect" } else { "" };
        format!("{name}=vhost-user:{}{option}", dir.join(name).display())
    }

    fn boot(self, dir: &Path, name: &str, number: u8) -> Boot {
        let boot = Boot::new(name, number);
        let socket = dir.join(name);
        if self == Listens::Qemu {
            boot.vhost_user_listening(&socket)
        } else {
            boot.vhost_user(&socket)
        }
    }
}

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("vmlan-kill.").tempdir().expect("a temporary directory")
}

/// Between two echo requests of the probe, in ms.
const BEAT: f64 = 50.0;

/// When each echo so far arrived, in ms by the guest's own clock: busybox's ping prints `seq=N ...
/// time=MS ms`. So the figure is what the guest saw, whatever the host had to do meanwhile.
fn echoes(guest: &mut Guest) -> Result<Vec<f64>> {
    let text = guest.sh("grep seq= /tmp/probe || true")?;
    let number = |line: &str, key: &str| -> Option<f64> {
        line.split(key).nth(1)?.split(' ').next()?.parse().ok()
    };
    let arrival = |line: &str| Some(number(line, "seq=")? * BEAT + number(line, "time=")?);
    Ok(text.lines().filter_map(arrival).collect())
}

/// Waits for ten more echoes than the `before` there were and returns the longest pause between
/// two, in ms.
fn longest_pause(guest: &mut Guest, before: usize) -> Result<f64> {
    let since = Instant::now();
    loop {
        let heard = echoes(guest)?;
        if heard.len() > before + 10 {
            let recent = &heard[before.saturating_sub(1)..];
            return Ok(recent.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max));
        }
        assert!(since.elapsed() < STALL, "no traffic after the restart");
        sleep(Duration::from_millis(50));
    }
}

fn kill_switch(times: u32, listens: [Listens; 2]) -> Result<()> {
    let dir = temporary();
    let dir = dir.path();
    let image = Image::build(dir)?;
    let ports = [listens[0].address(dir, "vm1"), listens[1].address(dir, "vm2")];
    let mut switch = Switch::start(dir, None, &ports)?;
    let boots = [listens[0].boot(dir, "vm1", 1), listens[1].boot(dir, "vm2", 2).packed()];
    let [mut one, mut two] = Guest::boot(&image, dir, boots)?;
    connectivity::reaches(&mut one, "10.77.0.2")?;
    // One ring of each layout. Wherever the words are folded, these stay together.
    let list = switch.ask(&["port", "list", "--json"])?;
    assert!(["split", "packed"].iter().all(|layout| list.contains(layout)), "{list}");
    connectivity::serve(&mut one)?;
    connectivity::serve(&mut two)?;
    // Its link down, a guest forgets where the other is; back before that one, it would ask in
    // vain, and again after a second.
    guest_tools::neighbour(&mut one, "eth0", &mut two, "eth0")?;
    guest_tools::neighbour(&mut two, "eth0", &mut one, "eth0")?;
    // Two flows whose connections must live through all of it, and a probe that times it.
    one.sh("(iperf3 -c 10.77.0.2 -t 80000 -b 30M > /tmp/there 2>&1; echo ended >> /tmp/there) &")?;
    two.sh("(iperf3 -c 10.77.0.1 -t 80000 -b 30M > /tmp/back 2>&1; echo ended >> /tmp/back) &")?;
    one.sh("ping -i 0.05 10.77.0.2 >> /tmp/probe 2>&1 &")?;
    let up = one.uptime()?;
    longest_pause(&mut one, 0)?;
    let mut best = f64::MAX;
    for kill in 1..=times {
        one.sh("tail -n 20 /tmp/probe > /tmp/end; cat /tmp/end > /tmp/probe")?;
        let before = echoes(&mut one)?.len();
        switch.kill9();
        switch.restart()?;
        let pause = longest_pause(&mut one, before)?;
        println!("  kill {kill} of {times}: traffic paused for {pause:.0} ms");
        best = best.min(pause);
        one.sh("! grep -q ended /tmp/there || { cat /tmp/there; exit 1; }")?;
        two.sh("! grep -q ended /tmp/back || { cat /tmp/back; exit 1; }")?;
    }
    println!("  the best of them: {best:.0} ms");
    switch.answering()?;
    connectivity::fetch(&mut one, "10.77.0.2")?;
    connectivity::fetch(&mut two, "10.77.0.1")?;
    connectivity::no_checksum_errors(&mut one)?;
    connectivity::no_checksum_errors(&mut two)?;
    assert!(one.uptime()? > up, "the guest was rebooted");
    Ok(())
}

/// Waits until the switch holds no more mapped memory than `most` KiB, and returns its own in KiB.
/// Guests' pages are not its own: how many of them it has touched depends on where guests put their
/// frames.
fn own_memory(switch: &Switch, most: u64) -> u64 {
    let mapped = || usage::mapped_kib(switch.pid());
    assert!(settles(|| mapped() <= most), "{} KiB are mapped, not {most}", mapped());
    usage::rss_kib(switch.pid())
}

fn kill_vm(times: u32) -> Result<()> {
    let dir = temporary();
    let dir = dir.path();
    let image = Image::build(dir)?;
    let ports = ["vm1", "vm2", "vm3"].map(|name| Listens::Switch.address(dir, name));
    let mut switch = Switch::start(dir, None, &ports)?;
    let stay =
        [("vm1", 1), ("vm2", 2)].map(|(name, number)| Listens::Switch.boot(dir, name, number));
    let [mut one, mut two] = Guest::boot(&image, dir, stay)?;
    connectivity::reaches(&mut one, "10.77.0.2")?;
    connectivity::serve(&mut two)?;
    let mut descriptors = Descriptors::of(&switch);
    // A guest has 256 MiB: what was mapped of a dead one would show.
    let (mut memory, most) = (0, usage::mapped_kib(switch.pid()) + (192 << 10));
    for kill in 1..=times {
        let [mut victim] = Guest::boot(&image, dir, [Listens::Switch.boot(dir, "vm3", 3)])?;
        connectivity::reaches(&mut victim, "10.77.0.2")?;
        // As much as leaves room in the ring of the one whom it shares with the probe, also while
        // that one waits for a core.
        victim.background("iperf3 -c 10.77.0.2 -u -b 10M -t 1000")?;
        one.sh("ping -i 0.05 -c 40 10.77.0.2 > /tmp/probe 2>&1 &")?;
        sleep(Duration::from_millis(700));
        victim.kill9();
        drop(victim);
        let lost = one.run(
            "while pidof ping > /dev/null; do sleep 0.1; done; grep received /tmp/probe",
            Duration::from_secs(60),
        )?;
        assert!(lost.text.contains("40 packets received"), "others lost frames: {}", lost.text);
        let open = descriptors.check(&switch, &format!("kill {kill}"));
        let own = own_memory(&switch, most);
        // The first round may still fill caches and arenas.
        memory = if kill == 1 { own } else { memory };
        println!("  kill {kill} of {times}: {open} descriptors, {own} KiB");
        std::fs::remove_file(dir.join("vm3.agent")).expect("the dead guest's agent socket");
    }
    let own = own_memory(&switch, most);
    assert!(own < memory + 2048, "memory grew from {memory} to {own} KiB");
    switch.alive()?;
    connectivity::fetch(&mut one, "10.77.0.2")
}

#[test]
fn the_switch_is_killed_and_each_side_connects_again() -> Result<()> {
    kill_switch(4, [Listens::Qemu, Listens::Switch])
}

#[test]
fn a_vm_is_killed() -> Result<()> {
    kill_vm(2)
}

#[test]
#[ignore = "soak: minutes"]
fn the_switch_is_killed_a_hundred_times() -> Result<()> {
    kill_switch(100, [Listens::Qemu; 2])
}

#[test]
#[ignore = "soak: a quarter of an hour"]
fn a_vm_is_killed_a_hundred_times() -> Result<()> {
    kill_vm(100)
}
