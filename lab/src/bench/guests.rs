//! The paper's figures 4, 5, 9, 10 and 11, and the slides' tables, with Linux guests: what their
//! ordinary sockets (`vmlan load`) get from each NIC. Where a processor stands behind /dev/kvm the
//! guests run on it; else QEMU runs them by TCG, where an exit costs little: then the accesses and
//! interrupts for 1,000 frames say what a technique does, not the rates.

mod row;
mod station;
mod table;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use serde::Serialize;
use serde_json::json;
use vmlan_harness::{Extras, Image, linux_module, use_program};

use super::paper::{Scene, WORKLOADS, Way};
use super::report::{Report, cells};
use super::slides::SIZES;
use super::sockets::{Kind, Workload};
use super::{Pairing, Run, Samples};
use crate::alike;
use crate::failure::Failure;
use crate::native::{Cores, progress};
use crate::probe::kvm_is_hardware;
use row::{Hardware, ROWS, Row};
use station::{Host, Station};

/// Beside the paper's columns: the slides' requests over UDP, and frames without a socket.
const OTHERS: [Workload; 3] = [
    Workload { name: "UDPRR", kind: Kind::UdpRequests, bytes: 1 },
    Workload { name: "pktgen60", kind: Kind::Frames, bytes: 60 },
    Workload { name: "pktgen1500", kind: Kind::Frames, bytes: 1500 },
];

/// A cell of a table.
struct Case {
    scene: Scene,
    row: &'static Row,
    workload: Workload,
    /// Of the slides' tables: datagrams of one size.
    slides: bool,
}

/// What one has shown.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    /// In the workload's unit, at the receiver.
    value: f64,
    /// The same at the sender.
    sent: f64,
    /// Register accesses (virtio-net: doorbells) for 1,000 frames, if the NIC is on our switch.
    accesses_per_kframe: Option<f64>,
    interrupts_per_kframe: Option<f64>,
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let (kvm, why) = kvm_is_hardware();
    run.guests = format!("Linux guests ({})", if kvm { "KVM" } else { "TCG" });
    run.pairing = pairing(run.pairing, run.setup.cores);
    if run.pairing == Pairing::Rounds {
        run.guests += ", compared by rounds alone";
    }
    run.setup.cores = Cores::Free;
    eprintln!("{}: {why}", run.guests);
    let program = std::env::current_exe()
        .map_err(|e| Failure::Failed(format!("cannot find out which program this is: {e}")))?;
    use_program(program.clone());
    let dir = tempfile::tempdir().map_err(|e| Failure::Failed(format!("no directory: {e}")))?;
    progress("building the module and the guests' image");
    let module = linux_module::build(dir.path())?;
    let files: Vec<_> = module.iter().map(|m| (linux_module::IN_GUEST, m.as_path())).collect();
    let programs = [program.as_path()];
    let extras = Extras { programs: &programs, files: &files, ..Extras::default() };
    let image = Image::build_with(dir.path(), extras)?;
    if module.is_none() {
        run.failures.push("rows of the module: it cannot be built here".into());
    }
    let rows = wanted(run, module.is_some())?;
    let cpus = run.args.axis(&[1, 2][..], &[1]);
    let (mut cases, mut samples) = (Vec::new(), Vec::new());
    for (done, &cpus) in cpus.iter().enumerate() {
        let mine = cases_of(run, &rows, cpus);
        let place = Place { image: &image, dir: dir.path(), kvm, cpus: cpus.into() };
        let left = (run.args.axis(&[1, 2][..], &[1]).len() - done) as f64;
        samples.extend(run.within(1.0 / left, |run| measure(run, &place, &mine))?);
        cases.extend(mine);
    }
    let pairs = if run.pairing == Pairing::Rounds { alike::ANY_NOTE } else { alike::NOTE };
    report(&cases.iter().zip(samples).collect::<Vec<_>>(), kvm, &[&why, pairs])
}

/// Nobody pins a virtual machine: of more than two cores, the two that are read need not be its.
fn pairing(asked: Pairing, read: Cores) -> Pairing {
    match asked {
        Pairing::Cores if read != Cores::Free => Pairing::Rounds,
        asked => asked,
    }
}

/// The rows that were asked for, and can be measured.
fn wanted(run: &Run<'_>, module: bool) -> Result<Vec<&'static Row>, Failure> {
    let (args, all) = (run.args, ROWS.iter());
    if let Some(odd) = args.only.iter().find(|name| !ROWS.iter().any(|row| row.name == **name)) {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        return Err(Failure::Usage(format!("--only {odd}: there are {}", names.join(", "))));
    }
    let is_wanted = |row: &&Row| match args.only.is_empty() {
        true => !args.short || row.short,
        false => args.only.iter().any(|name| name == row.name),
    };
    Ok(all.filter(|row| module || !row.needs_module()).filter(is_wanted).collect())
}

/// By rows, so that a driver is loaded once for all that is measured with it.
fn cases_of(run: &Run<'_>, rows: &[&'static Row], cpus: u8) -> Vec<Case> {
    let short = run.args.short;
    let usual: Vec<_> = WORKLOADS.into_iter().chain(OTHERS).collect();
    let brief: Vec<_> = usual
        .iter()
        .copied()
        .filter(|w| ["UDP8", "TCP", "TCPRR", "pktgen60"].contains(&w.name))
        .collect();
    let workloads = if short { brief } else { usual };
    let mut cases = Vec::new();
    for &row in rows {
        let fits = |w: &Workload| row.has_nic() || matches!(w.kind, Kind::Datagrams | Kind::Frames);
        for way in row.ways() {
            let scene = Scene { way, threads: cpus };
            let case = |workload, slides| Case { scene, row, workload, slides };
            let streams = |w: &Workload| match w.kind {
                Kind::Stream => true,
                Kind::Frames => way == Way::Host,
                _ => way != Way::FromHost,
            };
            cases.extend(
                workloads.iter().copied().filter(fits).filter(streams).map(|w| case(w, false)),
            );
            if !short && cpus == 1 && row.slides.is_some() && way != Way::Switch {
                let size = |bytes| Workload { name: "UDP", kind: Kind::Datagrams, bytes };
                cases.extend(SIZES.into_iter().map(|bytes| case(size(bytes), true)));
            }
        }
    }
    cases
}

/// Where guests come from.
struct Place<'a> {
    image: &'a Image,
    dir: &'a Path,
    kvm: bool,
    cpus: u32,
}

fn measure(
    run: &mut Run<'_>,
    place: &Place<'_>,
    cases: &[Case],
) -> Result<Vec<Samples<Measured>>, Failure> {
    // `None`: it did not boot.
    let mut stations: BTreeMap<Hardware, Option<Station>> = BTreeMap::new();
    for case in cases {
        let hardware = case.row.hardware;
        if let Entry::Vacant(entry) = stations.entry(hardware) {
            progress(&format!("booting guests with {}, {} CPU(s)", hardware.name(), place.cpus));
            // On a busy machine a guest may give up.
            let booted = Station::start(place, hardware, "")
                .or_else(|_| Station::start(place, hardware, "-again"));
            run.setup.stop.check()?;
            if let Err(why) = &booted {
                run.failures.push(format!("{}: {why}", hardware.name()));
            }
            entry.insert(booted.ok());
        }
    }
    let name = |c: &Case| table::label(c);
    let show = |c: &Case, seen: &Measured| table::show(c, seen);
    run.rounds(cases, name, show, |cell| {
        let Case { scene, row, workload, .. } = *cell.what;
        let Some(station) = stations.get_mut(&row.hardware).and_then(Option::as_mut) else {
            return Err(Failure::Failed("its guests did not boot".into()));
        };
        station.drive(row, scene.way)?;
        let [from, to] = match scene.way {
            Way::FromHost => [Host::Host, Host::Guest(0)],
            Way::Switch => [Host::Guest(0), Host::Guest(1)],
            Way::Host | Way::Taps => [Host::Guest(0), Host::Host],
        };
        station.measure(row, workload, [from, to], (cell.time, cell.setup.warm_up))
    })
}

fn report(all: &Results<'_>, kvm: bool, [why, pairs]: &[&str; 2]) -> Result<Report, Failure> {
    let keys = |c: &Case| {
        let Case { scene, row, workload, slides } = c;
        let (unit, bytes) = (workload.unit(), workload.bytes);
        json!({
            "way": table::way(scene.way), "cpus": scene.threads, "nic": row.name,
            "workload": workload.name, "bytes": bytes, "unit": unit, "slides": slides,
            "accel": if kvm { "KVM" } else { "TCG" },
        })
    };
    let mut notes = vec![table::NOTE.to_owned(), (*why).to_owned()];
    if !kvm {
        notes.push(table::TCG.to_owned());
    }
    notes.push((*pairs).to_owned());
    let measured = |row: &&Row| all.iter().any(|(c, _)| c.row.name == row.name);
    notes.extend(ROWS.iter().filter(measured).map(|row| format!("- {}: {}", row.name, row.note)));
    Ok(Report {
        title: "The paper's figures with Linux guests: ordinary sockets".into(),
        notes,
        tables: table::all(all),
        figure: table::figure(all),
        cells: cells(all.iter().map(|(c, s)| (keys(c), s.clone())))?,
        ratios: table::ratios(all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_between_cores_counts_only_where_guests_have_no_others() {
        assert_eq!(pairing(Pairing::Cores, Cores::Free), Pairing::Cores);
        assert_eq!(pairing(Pairing::Cores, Cores::Two), Pairing::Rounds);
        assert_eq!(pairing(Pairing::Off, Cores::Two), Pairing::Off);
    }
}
