//! 100 connected and silent guests of each chip: with trapped doorbells the switch sleeps. With
//! mapped ones a worker looks at them by timer; what that costs is printed, and does not grow with
//! wake-ups for each port.

use std::time::Duration;

use vmlan_driver::chip::Chip;
use vmlan_driver::e1000::{Intel, Intel82574};
use vmlan_driver::vmxnet3::Vmware;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_tests::chip_guest::ChipGuest;
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::numbered::{Progress, Sizes};
use vmlan_tests::usage::{self, Cpu};
use vmlan_tests::{Result, Switch};
use vmlan_transport::vfio_user::VfioBus;

const SILENCE: Duration = Duration::from_secs(5);
const SHORT: Sizes = Sizes { least: 60, most: 60 };

/// A switch with guests that have all spoken, and what each second of silence costs it.
struct Silent<C: Chip> {
    switch: Switch,
    guests: Vec<ChipGuest<C, VfioBus>>,
    _dir: tempfile::TempDir,
}

/// Percent of a core, and wake-ups a second.
#[derive(Clone, Copy, Debug)]
struct Cost {
    percent: f64,
    wakeups: f64,
}

fn cost(used: &Cpu, time: Duration) -> Cost {
    let wakeups = f64::from(u32::try_from(used.wakeups).unwrap()) / time.as_secs_f64();
    Cost { percent: used.time.as_secs_f64() / time.as_secs_f64() * 100.0, wakeups }
}

impl<C: Chip> Silent<C> {
    /// `ways`: how every other one is driven.
    fn new(count: u8, keys: &str, ways: [&str; 2]) -> Result<Self> {
        let dir = tempfile::tempdir().unwrap();
        let socket = |n| dir.path().join(format!("g{n}.sock"));
        let ports: Vec<_> =
            (0..count).map(|n| format!("g{n}=vfio-user:{},{keys}", socket(n).display())).collect();
        let switch = Switch::start(dir.path(), None, &ports)?;
        let mut guests: Vec<_> = (0..count)
            .map(|n| ChipGuest::connect(&socket(n), n, ways[usize::from(n % 2)]))
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

    /// That of the first of a few stretches with no more than `most`; else of the last.
    fn cost(&self, most: Cost) -> Cost {
        let little = |used: &Cpu, time: Duration| {
            let Cost { percent, wakeups } = cost(used, time);
            percent <= most.percent && wakeups <= most.wakeups
        };
        let (used, time) = usage::least(self.switch.pid(), SILENCE, little);
        let cost = cost(&used, time);
        assert!(little(&used, time), "{cost:?}, and not {most:?}");
        cost
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

/// Moderated or not.
const OF_INTEL: [&str; 2] = [",size=64", ",size=64,irq=msi,itr=500,rdtr=100,tidv=100"];

fn a_hundred_cost_nothing<C: Chip>(keys: &str, ways: [&str; 2]) -> Result<()> {
    let mut silent = Silent::<C>::new(100, keys, ways)?;
    let stats = silent.switch.stats()?;
    let up = stats["ports"].as_array().into_iter().flatten().filter(|port| port["up"] == true);
    assert_eq!(up.count(), 100, "all ports are up: {stats}");
    // What a few wake-ups cost nowhere, and somebody who does not sleep soon uses.
    let Cost { percent, wakeups } = silent.cost(Cost { percent: 1.0, wakeups: 2.0 });
    println!("100 trapped ports, {keys}: {percent:.4} % of a core, {wakeups:.1} wake-ups/s");
    silent.assert_awakes()
}

#[test]
fn a_hundred_silent_trapped_ports_cost_nothing() -> Result<()> {
    a_hundred_cost_nothing::<Intel>("model=e1000", OF_INTEL)?;
    a_hundred_cost_nothing::<Intel82574>("model=e1000e", [",size=64", ",size=64,irq=intx"])?;
    a_hundred_cost_nothing::<Vmware>("model=vmxnet3", [",size=64", ",size=64,irq=intx"])
}

fn cost_one_wakeup_for_all<C: Chip>(count: u8, keys: &str, ways: [&str; 2]) -> Result<()> {
    let mut silent = Silent::<C>::new(count, keys, ways)?;
    // One look for all in each interval, however many they are; fewer where the machine has no time
    // for more.
    let Cost { percent, wakeups } = silent.cost(Cost { percent: 100.0, wakeups: 1100.0 });
    println!("{count} mapped ports, {keys}: {percent:.2} % of a core, {wakeups:.0} wake-ups/s");
    assert!(wakeups >= 1.0, "nobody looks");
    silent.assert_awakes()
}

#[test]
fn silent_mapped_ports_cost_one_wakeup_for_all() -> Result<()> {
    let keys = "model=e1000,doorbell=mapped,poll_idle=1ms";
    cost_one_wakeup_for_all::<Intel>(1, keys, OF_INTEL)?;
    cost_one_wakeup_for_all::<Intel>(100, keys, OF_INTEL)?;
    let keys = "model=vmxnet3,doorbell=mapped,poll_idle=1ms";
    cost_one_wakeup_for_all::<Vmware>(100, keys, [",size=64", ",size=64,irq=intx"])
}

#[test]
fn a_longer_interval_costs_less() -> Result<()> {
    let mapped = "model=e1000,doorbell=mapped,poll_idle=20ms";
    let mut silent = Silent::<Intel>::new(10, mapped, OF_INTEL)?;
    let Cost { percent, wakeups } = silent.cost(Cost { percent: 100.0, wakeups: 60.0 });
    println!("10 mapped ports, poll_idle=20ms: {percent:.3} % of a core, {wakeups:.0} wake-ups/s");
    silent.assert_awakes()
}
