//! One attack: two neighbours beside attackers, and beside a crew that wants the processor as much,
//! in turns; then the operator.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::crew::{Crew, Demand, Role};
use super::{Attack, Case};
use crate::bench::rounds::Cell;
use crate::failure::Failure;
use crate::native::pair::{News, Task};
use crate::native::{Lab, Plug, Scratch, Setup, technique};

/// Requests a second of the ping pair.
const PINGS: &str = "2000";
/// Times that the operator asks for counters.
const ASKED: u32 = 5;
/// Attackers are at it for so long before neighbours are looked at.
const LEAD: Duration = Duration::from_millis(20);

/// Pairs that make a median.
const FEWEST: u16 = 3;

/// What the neighbours got.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Neighbours {
    pub(super) frames_per_s: f64,
    /// Of round trips, in microseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Cores that the switch used.
    pub(super) cpu_switch: f64,
    /// Cores that the crew used.
    pub(super) cpu_crew: f64,
    pub(super) demand_crew: Demand,
}

/// One window beside each crew.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Pair {
    pub(super) attacked: Neighbours,
    pub(super) control: Neighbours,
}

impl Pair {
    /// Of the neighbours' rate.
    pub(super) fn kept(&self) -> f64 {
        self.attacked.frames_per_s / self.control.frames_per_s
    }

    pub(super) fn slower(&self) -> f64 {
        self.attacked.p99 / self.control.p99
    }

    pub(super) fn cpu_attackers(&self) -> f64 {
        self.attacked.cpu_crew
    }

    pub(super) fn cpu_control(&self) -> f64 {
        self.control.cpu_crew
    }
}

/// How long the operator waited, in milliseconds: for counters, at most; for a port to be removed;
/// for a new switch after kill -9; for the end after SIGTERM.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Operator {
    pub(super) stats_ms: f64,
    pub(super) del_ms: f64,
    pub(super) restart_ms: f64,
    pub(super) term_ms: f64,
}

impl Operator {
    /// The longest that is judged.
    pub(super) fn answer_ms(&self) -> f64 {
        self.stats_ms.max(self.del_ms).max(self.term_ms)
    }
}

/// All of one attack.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measured {
    pub(super) pairs: Vec<Pair>,
    pub(super) operator: Option<Operator>,
    /// What the attack has broken; nothing was measured after it.
    pub(super) broke: Option<String>,
}

/// The control comes after the attackers, whose demand of that very window it is to have: what they
/// demand changes when the switch holds them off. After `until` there are no more pairs than make a
/// median.
pub(super) fn measure(
    cell: Cell<'_, Case>,
    pairs: u16,
    until: Instant,
) -> Result<Measured, Failure> {
    let Cell { what, setup, time, news, .. } = cell;
    // Crews, which come later, end before the switches do: whoever they have parked is let go.
    let mut control = Stage::new(setup, what)?;
    let mut stage = Stage::new(setup, what)?;
    let mut crew = stage.crew(setup, what, Role::Attackers)?;
    let mut seen = Measured::default();
    let harm = |error: &Failure, crew: &mut Crew| -> Result<String, Failure> {
        setup.stop.check()?;
        crew.alive()?;
        Ok(error.to_string())
    };
    for n in 0..pairs {
        if n >= FEWEST && Instant::now() >= until {
            break;
        }
        crew.go_on();
        let attacked = match stage.window(&crew, time, news) {
            Ok(neighbours) => neighbours,
            Err(e) => {
                seen.broke = Some(harm(&e, &mut crew)?);
                return Ok(seen);
            }
        };
        crew.rest();
        let burners = control.crew(setup, what, Role::Burners(attacked.demand_crew))?;
        let pair = Pair { attacked, control: control.window(&burners, time, news)? };
        seen.pairs.push(pair);
    }
    crew.go_on();
    match operate(&mut stage.lab) {
        Ok(operator) => seen.operator = Some(operator),
        Err(e) => seen.broke = Some(harm(&e, &mut crew)?),
    }
    crew.alive()?;
    Ok(seen)
}

/// A switch, with ports for attackers where another user may reach them.
struct Stage {
    lab: Lab,
    dir: Scratch,
    sockets: Vec<PathBuf>,
}

impl Stage {
    fn new(setup: &Setup, case: &Case) -> Result<Self, Failure> {
        let dir = Scratch::new()?;
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open)
            .map_err(|e| Failure::Failed(format!("{}: {e}", dir.path().display())))?;
        let sockets: Vec<_> = (0..case.peers).map(|n| dir.socket(&format!("x{n}"))).collect();
        let Attack { kind, keys, .. } = case.attack;
        let port = |(n, path): (usize, &PathBuf)| {
            format!("x{n}={kind}:{},mode=666,reach=none{keys}", path.display())
        };
        let ports: Vec<_> = sockets.iter().enumerate().map(port).collect();
        let ports: Vec<_> = ports.iter().map(String::as_str).collect();
        let virtio = technique::one("virtio")?;
        let plugs = ["a", "b"].map(|name| Plug { name, technique: virtio, keys: "" });
        Ok(Self { lab: Lab::start(setup, &plugs, &ports)?, dir, sockets })
    }

    fn crew(&self, setup: &Setup, case: &Case, role: Role) -> Result<Crew, Failure> {
        Crew::start(setup, case.attack, &self.sockets, role, &self.dir.log("crew"))
    }

    /// Frames a second, then round trips.
    fn window(
        &mut self,
        crew: &Crew,
        time: Duration,
        news: News<'_>,
    ) -> Result<Neighbours, Failure> {
        self.lab.pause(LEAD)?;
        let before = crew.done();
        let rate = self.lab.pkt_gen(Task { bytes: 60, ping: false, sender: &[] }, time, news)?;
        let task = Task { bytes: 60, ping: true, sender: &["-R", PINGS] };
        let trips = self.lab.pkt_gen(task, time, news)?;
        let after = crew.done();
        let demand_crew = after.since(&before);
        let latency = |field: &str| trips.said.first()?.get("latency")?.get(field)?.as_f64();
        let us = |field: &str| -> Result<f64, Failure> {
            let none = || Failure::Failed("no round trip ended".into());
            latency(field).map(|ns| ns / 1000.0).ok_or_else(none)
        };
        Ok(Neighbours {
            frames_per_s: rate.window.frames_per_s,
            p50: us("p50_ns")?,
            p99: us("p99_ns")?,
            cpu_switch: rate.window.cpu_switch,
            cpu_crew: after.cores(&before),
            demand_crew,
        })
    }
}

/// What an operator does while the attack goes on.
fn operate(lab: &mut Lab) -> Result<Operator, Failure> {
    let ms = |begin: Instant| begin.elapsed().as_secs_f64() * 1000.0;
    let mut seen = Operator::default();
    for _ in 0..ASKED {
        let begin = Instant::now();
        lab.stats()?;
        seen.stats_ms = seen.stats_ms.max(ms(begin));
        lab.pause(LEAD)?;
    }
    let begin = Instant::now();
    lab.remove("x0")?;
    seen.del_ms = ms(begin);
    let begin = Instant::now();
    lab.kill_and_start_again()?;
    seen.restart_ms = ms(begin);
    // The attackers are at it again.
    lab.pause(Duration::from_millis(200))?;
    let begin = Instant::now();
    lab.end()?;
    seen.term_ms = ms(begin);
    Ok(seen)
}

/// For tests of the report.
#[cfg(test)]
pub(super) fn simulated(kept: f64, slower: f64, answer_ms: f64, pairs: usize) -> Measured {
    let control = Neighbours { frames_per_s: 1e6, p50: 20.0, p99: 50.0, ..Default::default() };
    let attacked = Neighbours { frames_per_s: 1e6 * kept, p99: 50.0 * slower, ..control };
    let operator = Operator { del_ms: answer_ms, restart_ms: 100.0, ..Default::default() };
    let pairs = vec![Pair { attacked, control }; pairs];
    Measured { pairs, operator: Some(operator), broke: None }
}
