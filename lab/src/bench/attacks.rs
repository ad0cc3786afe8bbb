//! Attackers beside two neighbours: what the neighbours keep, and how long the operator waits.
//!
//! Each attack is played by a process of another user, a thread for each peer, over ports of its
//! own. Its own use of the processor takes from the neighbours whatever the switch does, where
//! cores are few. So the comparison is with a process that uses as much and attacks nothing: what
//! is missing then was taken by way of the switch.

mod crew;
mod guest;
mod scene;
mod tricks;

use std::io;
use std::time::Instant;

use serde_json::json;
use vmlan_config::human_text::to_f64;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, number};
use super::{Run, Samples, part};
use crate::alike::Spread;
use crate::failure::Failure;
use scene::{Measured, Operator, Pair};
use tricks::Peer;

pub(super) use crew::run as run_crew;

/// An attack.
struct Attack {
    name: &'static str,
    about: &'static str,
    /// Kind of the attackers' ports, and their keys, each behind a comma.
    kind: &'static str,
    keys: &'static str,
    /// It takes a file of a FUSE daemon.
    silent: bool,
    /// What each peer does again and again.
    act: fn(&Peer<'_>) -> io::Result<()>,
}

const VHOST: Attack = Attack {
    name: "",
    about: "",
    kind: "vhost-user",
    keys: "",
    silent: false,
    act: tricks::reconnecting,
};
const VFIO: Attack = Attack { kind: "vfio-user", keys: ",model=e1000", ..VHOST };
const STREAM: Attack = Attack { kind: "stream", ..VHOST };

const ATTACKS: [Attack; 20] = [
    Attack {
        name: "shrinking-memory",
        about: "the length of a file of huge pages changes while it is mapped and used",
        act: tricks::shrinking_memory,
        ..VHOST
    },
    Attack {
        name: "silent-file",
        about: "a file of a FUSE daemon that never answers is sent along (vhost-user)",
        silent: true,
        act: tricks::silent_file,
        ..VHOST
    },
    Attack {
        name: "silent-file-vfio",
        about: "the same (vfio-user)",
        silent: true,
        act: tricks::silent_file,
        ..VFIO
    },
    Attack {
        name: "silent-file-stream",
        about: "the same (stream): refused by the kernel from Linux 6.16 on",
        silent: true,
        act: tricks::silent_file,
        ..STREAM
    },
    Attack {
        name: "queued-files",
        about: "such files lie in the backlog and in sockets when the port goes",
        silent: true,
        act: tricks::queued_files,
        ..VHOST
    },
    Attack {
        name: "lingering-socket",
        about: "TCP sockets that linger for a second when closed are sent along",
        act: tricks::lingering_socket,
        ..VHOST
    },
    Attack {
        name: "descriptor-flood",
        about: "messages with 16 descriptors each",
        act: tricks::descriptor_flood,
        ..VHOST
    },
    Attack {
        name: "doorbell-crowd",
        about: "100,000 epoll watches (all peers together) on doorbells that are exchanged",
        act: tricks::doorbell_crowd,
        ..VHOST
    },
    Attack {
        name: "doorbell-flood",
        about: "doorbells without end, and nothing to send",
        act: tricks::doorbell_flood,
        ..VHOST
    },
    Attack {
        name: "interrupt-crowd",
        about: "as many on interrupts that the worker raises",
        act: tricks::interrupt_crowd,
        ..VHOST
    },
    Attack {
        name: "giant-frames",
        about: "frames of 1 MiB to a port with from_rate=10Mbit",
        keys: ",from_rate=10Mbit",
        act: tricks::giant_frames,
        ..STREAM
    },
    Attack {
        name: "disk-memory",
        about: "guest memory in a file on a disk",
        act: tricks::disk_memory,
        ..VHOST
    },
    Attack {
        name: "hole-punching",
        about: "holes are punched into 256 MiB of memory while frames are read from it",
        act: tricks::hole_punching,
        ..VHOST
    },
    Attack {
        name: "memory-tables",
        about: "SET_MEM_TABLE without end",
        act: tricks::memory_tables,
        ..VHOST
    },
    Attack {
        name: "ring-switching",
        about: "SET_VRING_ENABLE without end",
        act: tricks::ring_switching,
        ..VHOST
    },
    Attack {
        name: "many-writes",
        about: "170 register writes in each message (REGION_WRITE_MULTI)",
        act: tricks::many_writes,
        ..VFIO
    },
    Attack {
        name: "register-writes",
        about: "one register write in each message, as many as are taken",
        act: tricks::register_writes,
        ..VFIO
    },
    Attack {
        name: "reconnecting",
        about: "connections come and go",
        act: tricks::reconnecting,
        ..VHOST
    },
    Attack {
        name: "slow-message",
        about: "messages arrive a byte at a time",
        act: tricks::slow_message,
        ..VHOST
    },
    Attack {
        name: "nothing",
        about: "no attack: guests that do nothing, which shows the noise of these figures",
        act: tricks::nothing,
        ..VHOST
    },
];

/// Peers at once.
const PEERS: [usize; 2] = [1, 20];

const KEPT: f64 = 0.95;
const SLOWER: f64 = 2.0;
const ANSWER_MS: f64 = 1000.0;

/// Longest reason in a table.
const REASON: usize = 60;

/// An attack by so many.
struct Case {
    attack: &'static Attack,
    peers: usize,
}

/// The attack of that name.
fn one(name: &str) -> Result<&'static Attack, Failure> {
    let none = || Failure::Usage(format!("'{name}' is not an attack"));
    ATTACKS.iter().find(|attack| attack.name == name).ok_or_else(none)
}

/// Names and what they do, for the help.
pub(super) fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    ATTACKS.iter().map(|attack| (attack.name, attack.about))
}

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let all: Vec<_> = ATTACKS.iter().map(|attack| (attack.name, 1, attack)).collect();
    let wanted = part::wanted(&all, &run.args.part)?;
    let cases: Vec<_> = wanted
        .into_iter()
        .flat_map(|(_, _, attack)| PEERS.map(|peers| Case { attack, peers }))
        .collect();
    let name = |case: &Case| format!("{}, {} peer(s)", case.attack.name, case.peers);
    // What is compared is measured in turns within a cell, and each cell once.
    let pairs = std::mem::replace(&mut run.rounds, 1);
    let (ends, mut left) = (run.ends, u32::try_from(cases.len()).unwrap_or(u32::MAX));
    let samples = run.unpaired(|run| {
        run.rounds(
            &cases,
            name,
            |_, seen| words(seen),
            |cell| {
                // An equal part of what is left, so that the last cells have time as well.
                let now = Instant::now();
                let until = now + ends.saturating_duration_since(now) / left.max(1);
                left = left.saturating_sub(1);
                scene::measure(cell, pairs, until)
            },
        )
    });
    run.rounds = pairs;
    report(&cases.iter().zip(samples?).collect::<Vec<_>>(), run.setup.switch.as_deref())
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

const NOTES: [&str; 3] = [
    "Neighbours: two native virtio-net guests, `vmlan pkt-gen` tx to rx with 60-byte frames, then \
     ping to pong with 2,000 requests a second; one worker, which serves the attackers' ports too \
     (reach=none: their frames go nowhere). Attackers: one process, of user nobody if the bench is \
     run as root, with a thread and a port for each peer, which attack without a pause.",
    "Each pair is a window beside the attackers, and after it one beside a control: a process of \
     the same user and niceness, at ports of a switch that nobody attacks, with as many busy \
     threads as the attackers had in that window, each of which wants a processor for as much of \
     the time (has one, or waits for one) and sleeps as often. cores: what the attackers had, \
     and what the control had. Without the control the figure on a machine with few cores would \
     be the attackers' own use of them, which the host's scheduler has to bound. rate and p99 \
     are medians of such ratios, quartiles in brackets. missed: the better quartile misses the \
     goal too; unclear: only the median does.",
    "Operator, while the attack goes on: the longest of five requests for counters, `port del` of \
     an attacked port, SIGTERM until the process has gone. start: kill -9, and the same switch \
     again at the same sockets until its API answers.",
];

fn report(all: &Results<'_>, switch: Option<&std::path::Path>) -> Result<Report, Failure> {
    let keys = |case: &Case| json!({ "attack": case.attack.name, "peers": case.peers });
    let mut notes: Vec<_> = NOTES.map(str::to_owned).into();
    notes.extend(switch.map(|path| format!("The switch is that of {}.", path.display())));
    for attack in ATTACKS.iter().filter(|one| all.iter().any(|(c, _)| c.attack.name == one.name)) {
        notes.push(format!("- {}: {}", attack.name, attack.about));
    }
    Ok(Report {
        title: "Attacks: what neighbours keep".into(),
        notes,
        tables: vec![neighbours(all), operators(all)],
        figure: figure(all),
        cells: cells(all.iter().map(|(case, samples)| (keys(case), samples.clone())))?,
        ratios: Vec::new(),
    })
}

/// Ratios of one cell.
fn spread(seen: &Measured, value: fn(&Pair) -> f64) -> Option<Spread> {
    Spread::of(seen.pairs.iter().map(value).collect())
}

/// The cell itself: each was measured once.
fn only(samples: &Samples<Measured>) -> Option<&Measured> {
    samples.0.iter().flatten().next()
}

fn neighbours(all: &Results<'_>) -> Table {
    let heads = ["attack", "peers", "rate", "p99, times", "pairs", "cores", "verdict"];
    let title = format!(
        "Neighbours beside attackers, over beside the control (goals: rate {KEPT} at least, p99 \
         {SLOWER} times at most, answers within a second)"
    );
    let mut table = Table::new(title, &heads);
    for (case, samples) in all {
        let seen = only(samples);
        let ratio = |value| seen.and_then(|seen| spread(seen, value));
        let words = |spread: Option<Spread>| spread.map_or("-".into(), |spread| spread.words());
        table.rows.push(vec![
            case.attack.name.into(),
            case.peers.to_string(),
            words(ratio(Pair::kept)),
            words(ratio(Pair::slower)),
            seen.map_or(0, |seen| seen.pairs.len()).to_string(),
            [Pair::cpu_attackers, Pair::cpu_control]
                .map(|value| number(ratio(value).map(|spread| spread.ranks[2])))
                .join(", "),
            seen.map_or("not measured".into(), verdict),
        ]);
    }
    table
}

fn operators(all: &Results<'_>) -> Table {
    let heads = ["attack", "peers", "stats", "port del", "SIGTERM", "start"];
    let mut table = Table::new("The operator's waits, in milliseconds", &heads);
    for (case, samples) in all {
        let ms = |value: fn(&Operator) -> f64| {
            number(only(samples).and_then(|seen| Some(value(seen.operator.as_ref()?))))
        };
        table.rows.push(vec![
            case.attack.name.into(),
            case.peers.to_string(),
            ms(|o| o.stats_ms),
            ms(|o| o.del_ms),
            ms(|o| o.term_ms),
            ms(|o| o.restart_ms),
        ]);
    }
    table
}

/// What is missed, if anything.
fn verdict(seen: &Measured) -> String {
    if let Some(why) = &seen.broke {
        return format!("broken: {}", why.chars().take(REASON).collect::<String>());
    }
    // The median, and the quartile nearer to the goal.
    let judged = |value, at: usize| {
        spread(seen, value).and_then(|spread| Some([spread.median()?, spread.ranks[at]]))
    };
    let (Some(kept), Some(slower), Some(operator)) =
        (judged(Pair::kept, 3), judged(Pair::slower, 1), &seen.operator)
    else {
        return "too few pairs".into();
    };
    let goals = [
        (kept.map(|kept| kept < KEPT), "rate"),
        (slower.map(|slower| slower > SLOWER), "p99"),
        ([operator.answer_ms() > ANSWER_MS; 2], "operator"),
    ];
    let of = |word: &str, wanted: [bool; 2]| {
        let all = goals.iter().filter(|(missed, _)| *missed == wanted).map(|(_, what)| *what);
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| format!("{word}: {}", all.join(", ")))
    };
    let all: Vec<_> =
        [of("missed", [true; 2]), of("unclear", [true, false])].into_iter().flatten().collect();
    if all.is_empty() { "met".into() } else { all.join("; ") }
}

/// For the progress.
fn words(seen: &Measured) -> String {
    let ratio = |value| spread(seen, value).map_or("-".into(), |spread| spread.words());
    let waits = seen.operator.map(|operator| operator.answer_ms());
    format!(
        "rate {}, p99 {} times, operator {} ms: {}",
        ratio(Pair::kept),
        ratio(Pair::slower),
        number(waits),
        verdict(seen)
    )
}

fn figure(all: &Results<'_>) -> Figure {
    let mut names: Vec<String> = Vec::new();
    for (case, _) in all {
        if !names.iter().any(|name| name == case.attack.name) {
            names.push(case.attack.name.into());
        }
    }
    let series = |value: fn(&Pair) -> f64, factor: f64| {
        let of = |peers| {
            let mine = all.iter().filter(move |(case, _)| case.peers == peers);
            let point = |(case, samples): &(&Case, Samples<Measured>)| {
                let at = names.iter().position(|name| name == case.attack.name)?;
                let middle = spread(only(samples)?, value)?.ranks[2];
                Some((to_f64(at as u64), middle * factor))
            };
            (format!("{peers} peer(s)"), mine.filter_map(point).collect())
        };
        PEERS.map(of).into()
    };
    let panel = |title: &str, y: &str, series| Panel {
        title: title.into(),
        x: X::Groups(names.clone()),
        y: y.into(),
        log: false,
        series,
    };
    Figure {
        title: "vmlan bench attacks: neighbours beside attackers, and beside as much work".into(),
        columns: 1,
        panels: vec![
            panel("frames a second, of the control's", "per cent", series(Pair::kept, 100.0)),
            panel("p99 of a round trip, times the control's", "times", series(Pair::slower, 1.0)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, peers: usize) -> Case {
        Case { attack: one(name).unwrap(), peers }
    }

    #[test]
    fn verdicts_name_what_is_missed() {
        let cases = [
            case("silent-file", 1),
            case("many-writes", 20),
            case("reconnecting", 1),
            case("shrinking-memory", 1),
        ];
        let broke = Some("switch ended (signal: 7 (SIGBUS))".into());
        let seen = [
            scene::simulated(0.97, 1.5, 30.0, 5),
            scene::simulated(0.9, 2.5, 1500.0, 5),
            scene::simulated(1.0, 1.0, 1.0, 2),
            Measured { broke, ..Measured::default() },
        ];
        let samples = seen.map(|seen| Samples(vec![Some(seen)], vec![None]));
        let all: Vec<_> = cases.iter().zip(samples).collect();
        let report = report(&all, None).unwrap();
        let row = |table: usize, row: usize| report.tables[table].rows[row].join(" | ");
        let met = "silent-file | 1 | 0.97 [0.97, 0.97] | 1.50 [1.50, 1.50] | 5 | 0.00, 0.00 | met";
        assert_eq!(row(0, 0), met);
        assert_eq!(row(1, 0), "silent-file | 1 | 0.00 | 30.0 | 0.00 | 100");
        assert!(row(0, 1).ends_with("missed: rate, p99, operator"), "{}", row(0, 1));
        assert!(row(0, 2).ends_with("too few pairs"), "{}", row(0, 2));
        assert!(row(0, 3).ends_with("broken: switch ended (signal: 7 (SIGBUS))"), "{}", row(0, 3));
        assert!(report.figure.svg("").unwrap().contains("many-writes"));
    }

    #[test]
    fn attacks_have_names_of_their_own() {
        for (n, attack) in ATTACKS.iter().enumerate() {
            assert!(!attack.name.is_empty() && !attack.about.is_empty());
            assert!(ATTACKS[..n].iter().all(|other| other.name != attack.name));
        }
        assert!(matches!(one("magic"), Err(Failure::Usage(_))));
    }
}
