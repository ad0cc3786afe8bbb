//! The attackers' process, and the one that uses as much of the processor and attacks nothing.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Gid, Pid, Resource, Rlimit, Signal, Uid};
use rustix::process::{getrlimit, kill_process, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use vmlan_config::human_text::to_f64;
use vmlan_harness::usage::{CpuTime, sleeps};
use vmlan_harness::{Launch, Process, SilentFile};

use super::Attack;
use super::tricks::Peer;
use crate::failure::Failure;
use crate::native::{PATIENCE, Setup, Stop};

/// Nobody, who owns nothing.
const NOBODY: u32 = 65534;

/// One peer's attack may have threads of its own: fewer burners could not use as much.
const MOST_CORES: usize = 2;

/// How long a burner works between two sleeps, at least and at most.
const STRETCH: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(5)];

/// Of a core. Whoever is to use less uses nothing.
const LEAST: f64 = 0.0001;

/// What it prints when it begins.
const READY: &str = "ready";

/// What a crew is told, on its command line.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::bench) struct Orders {
    attack: String,
    /// A peer for each of these sockets.
    sockets: Vec<PathBuf>,
    /// As much of the processor is to be used instead.
    burn: Option<Use>,
}

/// What a crew uses of the processor. How it sleeps counts as well: whoever wants a core always
/// keeps it for longer than one who wakes up for a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) struct Use {
    pub(super) cores: f64,
    /// Sleeps of its threads in a second, of their own accord.
    pub(super) sleeps: f64,
}

/// What a crew does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    Attackers,
    /// Use as much.
    Burners(Use),
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

    /// CPU time so far, of threads that have ended too; and sleeps, of those that run.
    pub(super) fn used(&self) -> (Duration, u64) {
        let pid = self.0.pid();
        (CpuTime::of(pid).unwrap_or_default().total(), sleeps(pid).unwrap_or(0))
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
            Some(Use { cores, sleeps }) => (0..peers.max(MOST_CORES)).for_each(|_| {
                let share = cores / to_f64(peers.max(MOST_CORES) as u64);
                let [least, most] = STRETCH.map(|time| time.as_secs_f64());
                let stretch = Duration::from_secs_f64(
                    (cores / sleeps.max(f64::MIN_POSITIVE)).clamp(least, most),
                );
                s.spawn(move || burn(share, stretch));
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

/// Uses so much of a core, in stretches. What it could not have at once it takes later.
fn burn(share: f64, stretch: Duration) {
    // As the control of attackers who only wait: it must not use what they do not.
    if share < LEAST {
        return;
    }
    let (begin, mut until) = (Instant::now(), Duration::ZERO);
    loop {
        until += stretch;
        while cpu_time() < until {
            (0..1000).for_each(|_| std::hint::spin_loop());
        }
        let due = until.div_f64(share.min(1.0));
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_use_nothing_of_the_processor_ends_at_once() {
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            burn(0.0, STRETCH[0]);
            ended.send(())
        });
        assert!(end.recv_timeout(PATIENCE).is_ok(), "it burns for ever");
    }
}
