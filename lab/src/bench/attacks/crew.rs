//! The attackers' process, and the one that wants the processor as much and attacks nothing.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Gid, Pid, Resource, Rlimit, Signal, Uid};
use rustix::process::{getrlimit, kill_process, setrlimit};
use serde::{Deserialize, Serialize};
use vmlan_config::human_text::to_f64;
use vmlan_harness::usage::{CpuTime, sleeps, wanted};
use vmlan_harness::{Launch, Process, SilentFile};

use super::Attack;
use super::tricks::Peer;
use crate::failure::Failure;
use crate::native::{PATIENCE, Setup, Stop};

/// Nobody, who owns nothing.
const NOBODY: u32 = 65534;

/// The shortest and the longest time between two sleeps of a burner.
const CYCLE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(100)];

/// Of the time. Whoever is to want a processor for less wants none.
const LEAST: f64 = 0.0001;

/// Threads that want a processor for less, of the time of the one that wants it most, are not
/// counted: one that looks now and then whether it is to end.
const ASIDE: f64 = 0.05;

/// What it prints when it begins.
const READY: &str = "ready";

/// What a crew is told, on its command line.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::bench) struct Orders {
    attack: String,
    /// A peer for each of these sockets.
    sockets: Vec<PathBuf>,
    /// The processor is to be wanted as much instead.
    burn: Option<Demand>,
}

/// What a crew demands of the processors: what it is given is the scheduler's decision. How it
/// sleeps counts as well: whoever wants a core always keeps it for longer than one who wakes up for
/// a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) struct Demand {
    /// Threads that do anything.
    pub(super) threads: usize,
    /// The part of the time that each of them has a processor or waits for one.
    pub(super) wants: f64,
    /// Sleeps of each in a second, of its own accord.
    pub(super) sleeps: f64,
}

/// What a crew has done so far.
pub(super) struct Done {
    /// CPU time, of threads that have ended too.
    cpu: Duration,
    /// Sleeps of threads that run.
    sleeps: u64,
    /// How long each of those wanted a processor.
    wanted: BTreeMap<u32, Duration>,
    at: Instant,
}

impl Done {
    /// Cores used since `before`.
    pub(super) fn cores(&self, before: &Self) -> f64 {
        self.cpu.saturating_sub(before.cpu).as_secs_f64() / (self.at - before.at).as_secs_f64()
    }

    /// What was demanded since `before`.
    pub(super) fn since(&self, before: &Self) -> Demand {
        let time = (self.at - before.at).as_secs_f64();
        let grown = |(id, now): (&u32, &Duration)| {
            let then = before.wanted.get(id).copied().unwrap_or_default();
            now.saturating_sub(then).as_secs_f64() / time
        };
        let wants: Vec<_> = self.wanted.iter().map(grown).collect();
        let most = wants.iter().copied().fold(0.0, f64::max);
        let busy: Vec<_> = wants.into_iter().filter(|w| *w > ASIDE * most).collect();
        let threads = to_f64(busy.len().max(1) as u64);
        let sleeps = to_f64(self.sleeps.saturating_sub(before.sleeps));
        Demand {
            threads: busy.len(),
            wants: (busy.iter().sum::<f64>() / threads).min(1.0),
            sleeps: sleeps / time / threads,
        }
    }
}

/// What a crew does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    Attackers,
    /// Want as much.
    Burners(Demand),
}

/// One that was started. While it rests its process is stopped, and what it holds stays.
pub(super) struct Crew(Process);

impl Crew {
    /// Starts one, with a peer at each socket, and waits until it begins.
    pub(super) fn start(
        setup: &Setup,
        attack: &Attack,
        sockets: &[PathBuf],
        role: Role,
        log: &Path,
    ) -> Result<Self, Failure> {
        let burn = match role {
            Role::Attackers => None,
            Role::Burners(as_much) => Some(as_much),
        };
        let orders = Orders { attack: attack.name.into(), sockets: sockets.to_vec(), burn };
        let orders = serde_json::to_string(&orders).map_err(|e| Failure::Failed(e.to_string()))?;
        let program = std::env::current_exe()
            .map_err(|e| Failure::Failed(format!("the attackers cannot be started: {e}")))?;
        let words = ["bench", "attacks", "--crew", &orders];
        // SIGTERM, and not at once SIGKILL: it has a daemon to end (`SilentFile::end`).
        let crew = Launch::new("the attackers", program).args(words).grace(PATIENCE).spawn(log)?;
        let mut crew = Self(crew);
        crew.0.expect(&setup.stop, "the attackers", PATIENCE, |said| said.contains(READY))?;
        Ok(crew)
    }

    pub(super) fn rest(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.pid()).ok().and_then(Pid::from_raw);
        // Not reaped yet, so the id is its own; if it has ended, `alive` says so.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }

    pub(super) fn done(&self) -> Done {
        let pid = self.0.pid();
        Done {
            cpu: CpuTime::of(pid).unwrap_or_default().total(),
            sleeps: sleeps(pid).unwrap_or(0),
            wanted: wanted(pid).unwrap_or_default().into_iter().collect(),
            at: Instant::now(),
        }
    }

    pub(super) fn alive(&mut self) -> Result<(), Failure> {
        Ok(self.0.alive()?)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // A stopped process does not see SIGTERM.
        self.go_on();
    }
}

/// The process itself. It ends by SIGTERM, or when whoever started it has gone.
///
/// # Errors
/// If the orders are wrong, or what the attack needs is not to be had.
pub(in crate::bench) fn run(orders: &str) -> Result<(), Failure> {
    let orders: Orders = serde_json::from_str(orders)
        .map_err(|e| Failure::Usage(format!("--crew is for `vmlan bench attacks` itself: {e}")))?;
    let attack = super::one(&orders.attack)?;
    let silent = if attack.silent && orders.burn.is_none() { SilentFile::new() } else { None };
    if attack.silent && orders.burn.is_none() && silent.is_none() {
        return Err(Failure::Failed("a FUSE file takes root: run it as root".into()));
    }
    let (stop, parent) = (Stop::on_signals()?, rustix::process::getppid());
    become_nobody().map_err(|e| Failure::Failed(format!("cannot become another user: {e}")))?;
    println!("{READY}");
    let _ = std::io::stdout().flush();
    let peers = orders.sockets.len();
    std::thread::scope(|s| {
        match orders.burn {
            Some(demand) => (0..demand.threads).for_each(|_| {
                s.spawn(move || burn(demand));
            }),
            None => orders.sockets.iter().for_each(|path| {
                let silent = silent.as_ref();
                s.spawn(move || attack_for_ever(attack, &Peer { path, silent, peers }));
            }),
        }
        while stop.check().is_ok() && rustix::process::getppid() == parent {
            std::thread::sleep(Duration::from_millis(10));
        }
        silent.iter().for_each(SilentFile::end);
        // The peers know no end.
        std::process::exit(0)
    })
}

/// Root gives itself up: a crew is to have another user than the switch. Its threads to come
/// inherit that.
fn become_nobody() -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
    }
    Ok(())
}

fn attack_for_ever(attack: &Attack, peer: &Peer<'_>) {
    loop {
        // Refused, hung up on, nobody there: once more.
        if (attack.act)(peer).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Wants a core for so much of the time: has it, or waits for it.
fn burn(Demand { wants, sleeps, .. }: Demand) {
    // As the control of attackers who only wait: it must not use what they do not.
    if wants < LEAST {
        return;
    }
    let [least, most] = CYCLE.map(|time| time.as_secs_f64());
    let cycle = (1.0 / sleeps.max(f64::MIN_POSITIVE)).clamp(least, most);
    let awake = Duration::from_secs_f64(cycle * wants.min(1.0));
    let asleep = Duration::from_secs_f64(cycle).saturating_sub(awake);
    loop {
        let begin = Instant::now();
        while begin.elapsed() < awake {
            (0..100).for_each(|_| std::hint::spin_loop());
        }
        std::thread::sleep(asleep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_use_nothing_of_the_processor_ends_at_once() {
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            burn(Demand::default());
            ended.send(())
        });
        assert!(end.recv_timeout(PATIENCE).is_ok(), "it burns for ever");
    }

    /// A thread that looks now and then whether it is to end is no attacker.
    #[test]
    fn what_is_demanded_is_what_threads_wanted() {
        let (at, ms) = (Instant::now(), Duration::from_millis);
        let done = |sleeps, wanted: &[(u32, u64)], later| Done {
            cpu: ms(0),
            sleeps,
            wanted: wanted.iter().map(|(id, n)| (*id, ms(*n))).collect(),
            at: at + ms(later),
        };
        let before = done(10, &[(1, 5), (2, 100), (3, 100)], 0);
        let after = done(30, &[(1, 6), (2, 300), (3, 300), (4, 200)], 200);
        assert_eq!(after.since(&before), Demand { threads: 3, wants: 1.0, sleeps: 100.0 / 3.0 });
        let idle = done(10, &[(1, 5), (2, 100), (3, 100)], 200);
        assert_eq!(idle.since(&before), Demand::default());
    }
}
