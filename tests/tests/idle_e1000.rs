//! 100 connected and silent e1000 guests: with trapped doorbells they cost no CPU time at all. With
//! mapped ones a worker looks at them by timer; what that costs is printed, and does not grow with
//! wake-ups for each port.

use std::time::Duration;

use vmlan_driver::wait::{Interest, Wake};
use vmlan_tests::chip_guest::E1000Guest;
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::numbered::{Progress, Sizes};
use vmlan_tests::usage::{self, Cpu};
use vmlan_tests::{Result, Switch};
use vmlan_transport::vfio_user::VfioBus;

const SILENCE: Duration = Duration::from_secs(5);
const SHORT: Sizes = Sizes { least: 60, most: 60 };

/// A switch with guests that have all spoken, and what each second of silence costs it.
struct Silent {
    switch: Switch,
    guests: Vec<E1000Guest<VfioBus>>,
    _dir: tempfile::TempDir,
}

/// For each second: clock ticks of 10 ms, nanoseconds on a CPU, times that a thread was put on one.
struct Cost {
    ticks: u64,
    nanos: f64,
    runs: f64,
}

impl Silent {
    fn new(count: u8, keys: &str) -> Result<Self> {
        let dir = tempfile::tempdir().unwrap();
        let socket = |n| dir.path().join(format!("g{n}.sock"));
        let ports: Vec<_> = (0..count)
            .map(|n| format!("g{n}=vfio-user:{},model=e1000{keys}", socket(n).display()))
            .collect();
        let switch = Switch::start(dir.path(), None, &ports)?;
        let ways = [",size=64", ",size=64,irq=msi,itr=500,rdtr=100,tidv=100"];
        let mut guests: Vec<_> = (0..count)
            .map(|n| E1000Guest::connect(&socket(n), n, ways[usize::from(n % 2)]))
            .collect();
        // They have all spoken, so every ring and every address has been in use.
        for guest in &mut guests {
            guest.send_next(0xee, 1, SHORT);
            let mut progress = Progress::default();
            while guest.nic.under_way() > 0 {
                guest.nic.reap();
                progress.note(0, || format!("guest {} cannot send", guest.id));
            }
        }
        // Interrupts held back until now come, and are taken; then all sleep as a kernel does.
        std::thread::sleep(Duration::from_millis(200));
        let rx = Interest { rx: true, tx: false };
        for guest in &mut guests {
            while guest.receive(|_, _| {}) > 0 || guest.wait(rx, Duration::ZERO) == Wake::Ready {}
        }
        std::thread::sleep(Duration::from_millis(500));
        Ok(Self { switch, guests, _dir: dir })
    }

    /// That of the first of a few stretches with no ticks and no more than so many runs a second;
    /// else of the last.
    fn cost(&self, ticks: bool, most_runs: f64) -> Cost {
        let cost = |used: &Cpu, time: Duration| {
            let each = |n: u64| f64::from(u32::try_from(n).unwrap()) / time.as_secs_f64();
            Cost {
                ticks: used.ticks,
                nanos: each(used.nanos / 1000) * 1000.0,
                runs: each(used.runs),
            }
        };
        let little = |used: &Cpu, time: Duration| {
            let cost = cost(used, time);
            (cost.ticks == 0 || ticks) && cost.runs <= most_runs
        };
        let (used, time) = usage::least(self.switch.pid(), SILENCE, little);
        cost(&used, time)
    }

    /// It was asleep, not dead.
    fn assert_awakes(&mut self) -> Result<()> {
        let (last, rest) = self.guests.split_last_mut().unwrap();
        let sender = rest.first_mut();
        let Some(sender) = sender else { return self.switch.alive() };
        sender.start_over();
        sender.send_next(last.id, 1, SHORT);
        last.start_over();
        let mut progress = Progress::default();
        while last.receive_next(last.id, SHORT) == 0 {
            progress.note(0, || "a frame wakes it up".into());
        }
        self.switch.alive()
    }
}

#[test]
fn a_hundred_silent_trapped_ports_cost_nothing() -> Result<()> {
    let mut silent = Silent::new(100, "")?;
    let stats = silent.switch.stats()?;
    let up = stats["ports"].as_array().into_iter().flatten().filter(|port| port["up"] == true);
    assert_eq!(up.count(), 100, "all ports are up: {stats}");
    let cost = silent.cost(false, 2.0);
    println!(
        "100 trapped ports: {} ticks in {SILENCE:?}, {:.0} ns/s, {:.1} runs/s",
        cost.ticks, cost.nanos, cost.runs
    );
    assert_eq!(cost.ticks, 0, "ticks of the process");
    // A tick is 10 ms, which would hide a thread that wakes up often and does little.
    assert!(cost.runs <= 2.0, "{} runs/s", cost.runs);
    silent.assert_awakes()
}

#[test]
fn silent_mapped_ports_cost_one_wakeup_for_all() -> Result<()> {
    let mut runs = Vec::new();
    for count in [1, 100] {
        let mut silent = Silent::new(count, ",doorbell=mapped,poll_idle=1ms")?;
        let Cost { nanos, runs: each, .. } = silent.cost(true, 1100.0);
        println!(
            "{count} mapped ports, poll_idle=1ms: {:.2} % of a core, {each:.0} wake-ups/s",
            nanos / 1e7
        );
        runs.push(each);
        silent.assert_awakes()?;
    }
    // One look for all in each interval, however many they are; fewer where the machine has no time
    // for more.
    assert!((1.0..=1100.0).contains(&runs[0]), "{runs:?} wake-ups/s");
    assert!(runs[1] <= 1100.0, "{runs:?} wake-ups/s");
    Ok(())
}

#[test]
fn a_longer_interval_costs_less() -> Result<()> {
    let mut silent = Silent::new(10, ",doorbell=mapped,poll_idle=20ms")?;
    let Cost { nanos, runs, .. } = silent.cost(true, 60.0);
    println!(
        "10 mapped ports, poll_idle=20ms: {:.3} % of a core, {runs:.0} wake-ups/s",
        nanos / 1e7
    );
    assert!(runs <= 60.0, "{runs} wake-ups/s");
    silent.assert_awakes()
}
