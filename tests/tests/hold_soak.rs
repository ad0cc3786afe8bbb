//! Soak: a switch that holds its VMs dies a thousand times under load, and is upgraded a hundred
//! times; and it dies each second for an hour, while others come, go and change what is in force.
//! Native drivers notice nothing, and nothing of it stays behind.
//!
//! The longest pauses are told and not judged.

use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::virtio::VirtioNet;
use vmlan_tests::held_machine::{Machine, Nic, pass_while};
use vmlan_tests::kept::{assert_kept, kept};
use vmlan_tests::numbered::{Stops, settles};
use vmlan_tests::random::Random;
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch, output_of, usage, vmlan_program};
use vmlan_transport::Bus as _;

/// Frames that are passed in one go: some milliseconds.
const GO: u64 = 4000;
/// Of those, the last ones, among which nobody dies: what comes again comes before them.
const REST: u64 = 600;

/// How long it is until a client is believed not to have killed its switch, and more.
const TRIAL: Duration = Duration::from_millis(1200);

/// Frames without end, and the longest time in which none was sent.
struct Load<'a, 'b> {
    ends: [&'a mut Nic<'b>; 2],
    next: u64,
    moved: (u64, Instant),
    longest: Duration,
    /// Frames that came again, or goes in which some did.
    steps: u32,
}

impl<'a, 'b> Load<'a, 'b> {
    fn new(from: &'a mut Nic<'b>, to: &'a mut Nic<'b>) -> Self {
        let (moved, longest) = ((0, Instant::now()), Duration::ZERO);
        Self { ends: [from, to], next: 0, moved, longest, steps: 0 }
    }

    /// `dies` has the switch die, or does not: true if it has.
    fn go(&mut self, mut dies: impl FnMut() -> bool) {
        let Self { ends: [from, to], moved, longest, .. } = self;
        let (first, end) = (self.next, self.next + GO);
        moved.1 = Instant::now();
        let steps = pass_while(from, to, first..end, |sent| {
            if sent > moved.0 {
                *longest = moved.1.elapsed().max(*longest);
                *moved = (sent, Instant::now());
            }
            u32::from(sent + REST < end && dies())
        });
        (self.next, self.steps) = (end, self.steps + steps);
    }
}

/// Frames pass, and at `at` the switch is killed and started again.
fn die_at(load: &mut Load<'_, '_>, switch: &mut Switch, at: Instant) {
    let mut dead = false;
    while !dead {
        load.go(|| {
            let now = !dead && Instant::now() >= at;
            if now {
                dead = true;
                switch.kill9();
                switch.restart().expect("the next one");
            }
            now
        });
    }
}

/// Reads a register without end; `longest` is the longest time that it took, in microseconds.
fn spin(machine: &mut Machine, over: &AtomicBool, longest: &AtomicU64) {
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        machine.bus.read32(8).expect("an answer");
        let took = u64::try_from(begin.elapsed().as_micros()).expect("not for ever");
        longest.fetch_max(took, Ordering::Relaxed);
        std::thread::yield_now();
    }
}

/// What [`spin`] found, in milliseconds.
fn ms(longest: &AtomicU64) -> f64 {
    longest.load(Ordering::Relaxed) as f64 / 1e3
}

fn start(dir: &Path, keys: &str) -> Result<Switch> {
    let port = |name| format!("{name}=vfio-user:{}{keys}", dir.join(name).display());
    let words = ["--hold-for", "60"].map(str::to_owned);
    Switch::start(dir, None, &[&words[..], &["a", "b", "c"].map(port)].concat())
}

#[test]
#[ignore = "soak: half an hour"]
fn a_thousand_kills() -> Result<()> {
    let kills = std::env::var("VMLAN_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    for keys in ["", ",doorbell=mapped"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut switch = start(dir.path(), keys)?;
        let [mut a, mut b] =
            [("a", 1), ("b", 2)].map(|(name, n)| Machine::with(&dir.path().join(name), n, keys));
        let mut c = Machine::with(&dir.path().join("c"), 3, keys);
        let (mut from, mut to) = (a.set_up(), b.set_up());
        let mut load = Load::new(&mut from, &mut to);
        let (mut random, over) = (Random(0x5eed), AtomicBool::new(false));
        let mut before = None;
        let longest = AtomicU64::new(0);
        std::thread::scope(|scope| -> Result<()> {
            scope.spawn(|| spin(&mut c, &over, &longest));
            for n in 1..=kills / 2 {
                let at = Instant::now() + TRIAL + Duration::from_micros(random.below(300_000));
                die_at(&mut load, &mut switch, at);
                if n == 1 {
                    load.go(|| false);
                    switch.answering()?;
                    std::thread::sleep(TRIAL);
                    before = Some(kept(&switch));
                }
                if n % 50 == 0 {
                    println!("{keys:?}: {n} kills");
                }
            }
            over.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        load.go(|| false);
        switch.answering()?;
        let list = switch.ask(&["port", "list", "--json"])?;
        let how = format!("adopted {} times, the last one as it was when", kills / 2);
        assert_eq!(list.matches(&how).count(), 3, "{list}");
        std::thread::sleep(TRIAL);
        assert_kept(&switch, &before.expect("the first one"));
        println!(
            "{keys:?}: {} kills, {} frames, {} times some came again; longest pause of frames \
             {:.1?}, of a register's reader {:.1} ms",
            kills / 2,
            load.next,
            load.steps,
            load.longest,
            ms(&longest),
        );
        switch.ask(&["stop", "--for-good"])?;
    }
    Ok(())
}

/// Programs that are no successor: what they do, in `sh`. `intent` is what one would say first.
const REFUSED: [&str; 5] = [
    "exit 1",
    "echo nonsense >&0; read begin <&0",
    "kill -9 $$",
    "echo '{\"api\":\"/nowhere\",\"holds\":true,\"ports\":[\"x\"]}' >&0; read begin <&0; exit 0",
    "echo 'INTENT' >&0; read begin <&0; exit 1",
];

/// The paths of such programs, for the successor of `switch`.
fn refused(dir: &Path, switch: &Switch) -> Vec<String> {
    let api = switch.api_path().display();
    let intent = format!(r#"{{"api":"{api}","holds":true,"ports":["a","b","c"]}}"#);
    let programs = (0..).zip(REFUSED).map(|(n, what)| {
        let path = dir.join(format!("next{n}"));
        let script = format!("#!/bin/sh\n{}\n", what.replace("INTENT", &intent));
        std::fs::write(&path, script).expect("a file");
        output_of("chmod", &["700", &path.to_string_lossy()]).expect("chmod");
        path.display().to_string()
    });
    programs.collect()
}

#[test]
#[ignore = "soak: minutes"]
fn a_hundred_upgrades_and_as_many_that_are_refused() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let switch = start(dir.path(), "")?;
    let [mut a, mut b] =
        [("a", 1), ("b", 2)].map(|(name, n)| Machine::new(&dir.path().join(name), n));
    let mut c = Machine::new(&dir.path().join("c"), 3);
    let (mut from, mut to) = (a.set_up(), b.set_up());
    let mut load = Load::new(&mut from, &mut to);
    let over = AtomicBool::new(false);
    let refused = refused(dir.path(), &switch);
    let mut before = None;
    // Those that fail after all has been handed over are gone on from, too.
    let mut adopted = 0;
    let (longest, refusals) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| spin(&mut c, &over, &longest));
        for n in 1..=100 {
            let upgrade = scope.spawn(|| switch.ask(&["upgrade"]));
            while !upgrade.is_finished() {
                load.go(|| false);
            }
            let said = upgrade.join().expect("upgrade")?;
            assert!(said.starts_with("upgraded: "), "{said}");
            adopted += 1;
            if n == 1 {
                before = Some(kept(&switch));
            }
            let which = n % REFUSED.len();
            let binary = &refused[which];
            let planned = longest.swap(0, Ordering::Relaxed);
            let upgrade = scope.spawn(|| switch.ask(&["upgrade", "--binary", binary]));
            while !upgrade.is_finished() {
                load.go(|| false);
            }
            let failed = upgrade.join().expect("upgrade").expect_err("it is no successor");
            refusals.fetch_max(longest.swap(planned, Ordering::Relaxed), Ordering::Relaxed);
            if n <= REFUSED.len() {
                println!("{}: {failed}", REFUSED[which]);
            }
            adopted += u32::from(failed.to_string().contains("the old program serves again"));
        }
        over.store(true, Ordering::Relaxed);
        println!(
            "100 upgrades, 20 refused at each of 5 steps, {} frames; longest pause of frames \
             {:.1?}, of a register's reader {:.1} ms, at a refusal {:.1} ms",
            load.next,
            load.longest,
            ms(&longest),
            ms(&refusals)
        );
        Ok(())
    })?;
    assert_eq!(load.steps, 0, "no frame comes twice");
    let list = switch.ask(&["port", "list", "--json"])?;
    let how = format!("adopted {adopted} times, the last one exactly");
    assert_eq!(list.matches(&how).count(), 3, "{list}");
    assert_kept(&switch, &before.expect("the first one"));
    switch.ask(&["stop", "--for-good"]).map(drop)
}

/// Nanoseconds of a register's read.
fn read_cost(options: &[&str]) -> Result<f64> {
    const READS: u32 = 20_000;
    let dir = tempfile::tempdir().expect("a directory");
    let port = format!("a=vfio-user:{}", dir.path().join("a").display());
    let words: Vec<_> = options.iter().chain([&&*port]).map(|word| (*word).to_owned()).collect();
    let switch = Switch::start(dir.path(), None, &words)?;
    let mut machine = Machine::new(&dir.path().join("a"), 1);
    let begin = Instant::now();
    (0..READS).for_each(|_| _ = machine.bus.read32(8).expect("an answer"));
    let cost = begin.elapsed().as_secs_f64() * 1e9 / f64::from(READS);
    switch.ask(&["stop"])?;
    Ok(cost)
}

/// What `cost` says of a switch that is not held and of one that is, in turn; told and not judged.
fn compare(unit: &str, cost: impl Fn(&[&str]) -> Result<f64>) -> Result<()> {
    const ROUNDS: usize = 15;
    let mut all = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        let mut ways = [(&[][..], 0.0), (&["--hold-for", "60"][..], 0.0)];
        for n in [round % 2, 1 - round % 2] {
            ways[n].1 = cost(ways[n].0)?;
        }
        let [(_, plain), (_, held)] = ways;
        let told = [plain, held, held - plain, held / plain];
        all.iter_mut().zip(told).for_each(|(all, one)| all.push(one));
    }
    for (what, all) in ["not held", "held", "difference", "ratio"].iter().zip(&mut all) {
        all.sort_by(f64::total_cmp);
        let [low, middle, high] = [1, 2, 3].map(|quarter| all[quarter * ROUNDS / 4]);
        println!("{what}: {middle:.3} [{low:.3}, {high:.3}] {unit}, {ROUNDS} rounds");
    }
    Ok(())
}

#[test]
#[ignore = "a measurement of a minute"]
fn what_a_registers_read_costs() -> Result<()> {
    compare("ns", read_cost)
}

/// Frames that a guest sends to nobody in a second.
fn rate(options: &[&str], kind: &str, keys: &str) -> Result<f64> {
    let dir = tempfile::tempdir().expect("a directory");
    let place = format!("{kind}:{}", dir.path().join("a").display());
    let port = format!("a={place}{keys}");
    let words: Vec<_> = options.iter().chain([&&*port]).map(|word| (*word).to_owned()).collect();
    let switch = Switch::start(dir.path(), None, &words)?;
    let words = ["pkt-gen", "-i", &place, "-f", "tx", "-T", "1", "--json"];
    let said = output_of(&vmlan_program().to_string_lossy(), &words)?;
    let (_, rate) = said.split_once("\"frames_per_s\":").expect("a rate");
    let rate = rate.split(',').next().and_then(|rate| rate.parse().ok()).expect("a number");
    switch.ask(&["stop"])?;
    Ok(rate)
}

#[test]
#[ignore = "a measurement of minutes"]
fn what_a_frame_costs() -> Result<()> {
    for (kind, keys) in [("vfio-user", ",doorbell=mapped"), ("vfio-user", ""), ("vhost-user", "")] {
        println!("{kind}{keys}");
        compare("frames/s", |options| rate(options, kind, keys))?;
    }
    Ok(())
}

/// Asks whoever serves now. An error is as good: the switch may be dead.
fn ask(dir: &Path, words: &[&str]) -> Result<String> {
    let api = dir.join("api.sock").display().to_string();
    output_of(&vmlan_program().to_string_lossy(), &[words, &["--api", &api]].concat())
}

/// A guest with virtio-net comes, greets everybody and goes.
fn virtio_guest(dir: &Path, n: u32) {
    let keys = ["", ",packed=on"][n as usize % 2];
    VirtioGuest::connect(&dir.join("v"), 4, keys).introduce();
}

/// A VM with an emulated NIC comes, its driver begins, and it goes.
fn emulated_guest(dir: &Path, _: u32) {
    Machine::new(&dir.join("w"), 5).set_up();
}

/// A port is added, used and removed. It goes with the switch that it was added to.
fn port(dir: &Path, _: u32) {
    let path = dir.join("x");
    let address = format!("vhost-user:{}", path.display());
    if ask(dir, &["port", "add", &format!("x={address}")]).is_ok() {
        let guest = VirtioNet::connect(&address.parse().expect("an address"), TRIAL);
        drop(guest);
    }
    let gone = settles(|| {
        let _ = ask(dir, &["port", "del", "x"]);
        ask(dir, &["port", "list"]).is_ok_and(|list| !list.contains(&address))
    });
    assert!(gone, "port x stays");
}

/// What a port may do is changed, and taken back.
fn policy(dir: &Path, n: u32) {
    let (port, key) = (["v", "w"][n as usize % 2], n as usize / 2 % 4);
    let change = ["weight=7", "from_rate=10Mbit", "broadcast_frames=100", "ips=10.0.0.3"][key];
    let back = ["weight=", "from_rate=", "broadcast_frames=", "ips="][key];
    let _ = ask(dir, &["port", "set", port, change]).and(ask(dir, &["port", "set", port, back]));
}

/// Something that is done while the switch dies, for the so-manieth time.
type Deed = fn(&Path, u32);

const DEEDS: [(&str, Deed); 4] = [
    ("virtio guests", virtio_guest),
    ("emulated guests", emulated_guest),
    ("ports added and removed", port),
    ("changes of policies", policy),
];

/// One of them, again and again; none begins while `gate` is closed.
fn again_and_again(
    dir: &Path,
    deed: Deed,
    gate: &RwLock<()>,
    (over, done): (&AtomicBool, &AtomicU32),
) {
    let _stops = Stops(over);
    while !over.load(Ordering::Relaxed) {
        let open = gate.read().expect("the gate");
        deed(dir, done.load(Ordering::Relaxed));
        drop(open);
        done.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "soak: an hour"]
fn an_hour_in_which_others_come_and_go() -> Result<()> {
    let seconds = std::env::var("VMLAN_SECONDS").ok().and_then(|n| n.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(3600));
    let dir = tempfile::tempdir().expect("a directory");
    let kinds = [("a", "vfio-user"), ("b", "vfio-user"), ("v", "vhost-user"), ("w", "vfio-user")];
    let ports = kinds.map(|(n, kind)| format!("{n}={kind}:{}", dir.path().join(n).display()));
    let hold = ["--hold-for", "60"].map(str::to_owned);
    let mut switch = Switch::start(dir.path(), None, &[&hold[..], &ports[..]].concat())?;
    let [mut a, mut b] = ["a", "b"].map(|n| Machine::new(&dir.path().join(n), n.as_bytes()[0] & 3));
    let (mut from, mut to) = (a.set_up(), b.set_up());
    let mut load = Load::new(&mut from, &mut to);
    let (gate, over, done) = (RwLock::new(()), AtomicBool::new(false), DEEDS.map(|_| 0.into()));
    let mut random = Random(0x5eed);
    let (mut kills, mut before, mut rss) = (0, None, 0);
    std::thread::scope(|scope| -> Result<()> {
        for ((_, deed), done) in DEEDS.iter().zip(&done) {
            let (gate, over, dir) = (&gate, &over, dir.path());
            scope.spawn(move || again_and_again(dir, *deed, gate, (over, done)));
        }
        let _stops = Stops(&over);
        while Instant::now() < end && !over.load(Ordering::Relaxed) {
            let at = Instant::now() + TRIAL + Duration::from_micros(random.below(300_000));
            die_at(&mut load, &mut switch, at);
            kills += 1;
            // The first ones have opened what is opened once.
            if kills % 200 == 20 {
                let _closed = gate.write().expect("the gate");
                switch.answering()?;
                std::thread::sleep(TRIAL);
                assert_kept(&switch, before.get_or_insert_with(|| kept(&switch)));
                rss = usage::rss_kib(switch.pid());
                println!("{kills} kills, {} frames, {done:?}, {rss} KiB", load.next);
            }
        }
        Ok(())
    })?;
    load.go(|| false);
    switch.answering()?;
    std::thread::sleep(TRIAL);
    assert_kept(&switch, &before.expect("twenty kills"));
    let list = switch.ask(&["port", "list", "--json"])?;
    let how = format!("adopted {kills} times, the last one as it was when");
    assert_eq!(list.matches(&how).count(), 2, "{list}");
    println!(
        "{kills} kills, {} frames, {} times some came again; longest pause of frames {:.1?}",
        load.next, load.steps, load.longest
    );
    for ((what, _), done) in DEEDS.iter().zip(&done) {
        println!("{what}: {done:?}");
        assert!(done.load(Ordering::Relaxed) > kills, "{what} came to a halt");
    }
    switch.ask(&["stop", "--for-good"]).map(drop)
}
