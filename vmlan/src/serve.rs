//! `vmlan switch`: starts everything, runs until told to stop, takes everything down.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vmlan_switch::Switch;

use crate::exit::Failure;
use crate::output::program;
use crate::successor::{self, Line};
use crate::systemd::{self, Given};
use crate::{log_format, supervise};
use vmlan_api::{Claim, Server};
use vmlan_config::address::Kind;
use vmlan_config::api_path::default_path;
use vmlan_config::file::OnOff;
use vmlan_config::settings::{Plan, Running, Settings, Supervision};
use vmlan_engine::action::Action;
use vmlan_engine::control_thread::{self, End};
use vmlan_engine::info::{PortInfo, ProcessInfo};
use vmlan_engine::ports::Ports;
use vmlan_engine::worker::Workers;
use vmlan_frame::error_chain;
use vmlan_keeper::hold::{Hold, Holder, Store};
use vmlan_sandbox::Places;

/// A second request to stop within this time of the first is the same one: timeout(1) signals its
/// child and then its process group, and a shell and its terminal may do the same.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Runs a switch until SIGTERM or SIGINT.
///
/// # Errors
/// If anything that `settings` asks for cannot be opened. What was made is removed again.
pub(crate) fn run(settings: Settings) -> Result<(), Failure> {
    let supervision = settings.running.supervision;
    if supervision == Supervision::Supervisor {
        return supervise::run(&settings);
    }
    let mut given =
        Given::take().map_err(|e| Failure::Failed(format!("the service manager's socket: {e}")))?;
    let api = given.api.take();
    let store = given.store().map_err(|e| Failure::Failed(error_chain(&e)))?;
    let process = process(&settings.running, api.is_some(), store.is_some());
    // Before keepers are forked: by the sender's limit the kernel decides whether descriptors of
    // this user are passed on.
    let open_files = raise_open_files();
    // While there is one thread, and nothing open that its children would hold; and while a switch
    // that is to be replaced still serves.
    vmlan_keeper::start_starter(&[c"vmlan", c"gateway", c"--line"], vmlan_engine::resolvers::FILE)
        .map_err(|e| Failure::Failed(format!("cannot start the gateways' starter: {e}")))?;
    vmlan_keeper::start(settings.running.sandbox == OnOff::On)
        .map_err(|e| Failure::Failed(format!("cannot start the keepers' process: {e}")))?;
    let line = match supervision {
        Supervision::Supervised => {
            supervise::depend(false)?;
            Some(Line::supervised()?)
        }
        _ => settings.running.successor.then(|| Line::wait(&settings)).transpose()?,
    };
    let hold = hold(&settings.running, store)?;
    log_format::init();
    match open_files {
        Ok(limit) => log::debug!("up to {limit} open files"),
        Err(e) => log::warn!("the limit of open files stays low: {e}"),
    }
    let (sender, actions) = channel();
    // Before anything exists that would be left behind by a signal.
    let signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
    let handle = signals.handle();
    let Settings { running, plan } = settings;
    let begun = start(&running, &plan, api, signals, &sender, hold.clone());
    let done = begun.map(|(mut ports, server)| {
        systemd::ready();
        line.into_iter().for_each(Line::serves);
        if supervision == Supervision::Supervised {
            // Had that ended before, this process would have.
            let _ = supervise::depend(true);
        }
        // Threads of ports to come inherit its filter.
        vmlan_sandbox::enter(vmlan_sandbox::Thread::Control);
        let end = control_thread::run(&mut ports, &running, &process, &actions);
        systemd::stopping();
        log::info!("stopping");
        if end == End::HandOver {
            ports.hand_over();
        }
        // First nobody may ask for anything any more, then the ports go.
        drop(server);
        drop(ports);
        if let (Some(hold), End::Stop) = (hold, end) {
            hold.end();
        }
    });
    handle.close();
    done
}

/// What this switch says of itself. A service that has `stored` something loses it when it ends for
/// another reason than to be started again, which it does not know.
fn process(running: &Running, given: bool, stored: bool) -> ProcessInfo {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let arguments = std::env::args_os().skip(1).map(text);
    let own = [successor::OPTION, supervise::OPTION];
    ProcessInfo {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        hold_for: running.hold_for.filter(|_| !stored).map(|time| time.as_secs()),
        service: given || systemd::is_service(),
        while_held: running.while_held,
        fleeting: None,
        directory: std::env::current_dir().map(|dir| text(dir.into())).unwrap_or_default(),
        arguments: arguments.filter(|word| !own.contains(&word.as_str())).collect(),
    }
}

/// Where the holder is that belongs to the API at `api`.
fn holder_path(api: &Path) -> PathBuf {
    let mut path = api.as_os_str().to_owned();
    path.push(".hold");
    path.into()
}

/// Who has ports for the next switch, with what the one before has left: the service manager, if it
/// has a store, or the holder, which is started if there is none.
fn hold(running: &Running, store: Option<Store>) -> Result<Option<Arc<dyn Hold>>, Failure> {
    let confined = running.sandbox == OnOff::On;
    let failed = |e| Failure::Failed(error_chain(&e));
    Ok(match (running.hold_for, store) {
        (Some(_), Some(store)) => Some(Arc::new(store)),
        (Some(time), None) => {
            let holder = Holder::find(&holder_path(&running.api), time, confined);
            Some(Arc::new(holder.map_err(failed)?))
        }
        (None, store) => {
            // It was held before, and is not to be any more.
            store.iter().for_each(Hold::end);
            None
        }
    })
}

fn start(
    running: &Running,
    plan: &Plan,
    given: Option<UnixListener>,
    signals: Signals,
    sender: &Sender<Action>,
    hold: Option<Arc<dyn Hold>>,
) -> Result<(Ports, Server), Failure> {
    let failed = |what: &str, e: std::io::Error| Failure::Failed(format!("cannot {what}: {e}"));
    may_run_on(running)?;
    vmlan_ram::sigbus::install().map_err(|e| failed("handle SIGBUS", e))?;
    let first = if running.while_held { Some(first_client()?) } else { None };
    let claim = match given {
        Some(listener) => Claim::inherited(listener, &running.api)?,
        None => Claim::new(&running.api, running.api_mode)?,
    };
    if running.sandbox == OnOff::On {
        // No thread exists yet: all of them inherit it.
        vmlan_sandbox::start(&places(running, plan));
    }
    stop_on_signal(signals, sender.clone(), hold.is_some())?;
    let switch = Switch::new(running.options.clone());
    let cpus = running.cpus.numbers();
    let workers = Workers::start_on(running.workers, cpus, running.spin, switch.clone())
        .map_err(|e| failed("start the workers", e))?;
    let changed = sender.clone();
    let mut ports = Ports::new(workers, switch, move || {
        // The control thread is gone only when everything is being closed.
        let _ = changed.send(Action::PortChanged);
    })
    .with_gateways_in(running.api.parent().unwrap_or(Path::new(".")));
    if let Some(hold) = hold {
        ports = ports.with_hold(hold).map_err(|e| Failure::Failed(error_chain(&e)))?;
    }
    ports.begin(plan).map_err(|failed| failed.first())?;
    ports.forget_unclaimed();
    let program = program_at(&running.api);
    let lines: Vec<_> = ports.list().iter().map(|port| line(port, &program)).collect();
    let begun = claim.publish().map_err(Failure::from).and_then(|socket| {
        Server::start(socket, first, sender.clone()).map_err(|e| failed("start the API", e))
    });
    match begun {
        Ok(server) => {
            say(&running.api, &lines, &program);
            Ok((ports, server))
        }
        Err(failure) => {
            // Another may be started that does better.
            ports.hand_over();
            Err(failure)
        }
    }
}

/// All CPUs that were asked for are there; says so if workers have to share some.
fn may_run_on(running: &Running) -> Result<(), Failure> {
    let Ok(may) = sched_getaffinity(None) else { return Ok(()) };
    let all: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu)).collect();
    let there = |cpu: &&usize| all.contains(cpu);
    if let Some(missing) = running.cpus.numbers().iter().find(|cpu| !there(cpu)) {
        let all: Vec<_> = all.iter().map(usize::to_string).collect();
        return Err(Failure::Failed(format!(
            "cpus={}: the switch cannot run on CPU {missing}; it can on {}",
            running.cpus,
            all.join(",")
        )));
    }
    if running.workers > all.len() {
        log::warn!(
            "{} workers share {} CPUs and wait for each other: --workers {} is faster",
            running.workers,
            all.len(),
            all.len()
        );
    }
    Ok(())
}

/// The client at standard input. It is of a terminal whose keys are for the VM, not for the switch.
fn first_client() -> Result<UnixStream, Failure> {
    // Fails for who leads a group, whose terminal is nobody else's.
    let _ = rustix::process::setsid();
    let client = std::io::stdin().as_fd().try_clone_to_owned();
    Ok(client.map_err(|e| Failure::Failed(format!("no client at standard input: {e}")))?.into())
}

/// Raises the soft limit of open files to the hard one: each VM needs about a dozen. Returns the
/// limit.
fn raise_open_files() -> std::io::Result<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    // None: there is no limit.
    Ok(maximum.unwrap_or(u64::MAX))
}

/// What the sandbox lets ports make that are there from the start, and those that come later.
fn places(running: &Running, plan: &Plan) -> Places {
    let made = |captures: bool| {
        let ports = plan.ports.iter().map(|port| &port.address);
        let ports = ports.filter(move |address| (address.kind() == Kind::Pcap) == captures);
        ports.filter_map(|address| address.makes()).map(Path::to_owned)
    };
    Places {
        sockets: made(false).chain([running.api.clone()]).collect(),
        captures: made(true).collect(),
        allowed: running.allow_dir.clone(),
    }
}

/// With a holder, SIGTERM is a service manager that starts this switch again, or another one in its
/// place. SIGINT ends it for good in any case.
fn stop_on_signal(mut signals: Signals, sender: Sender<Action>, held: bool) -> Result<(), Failure> {
    let failed = |e| Failure::Failed(format!("cannot handle signals: {e}"));
    let wait = move || {
        vmlan_sandbox::enter(vmlan_sandbox::Thread::Signals);
        let mut signals = signals.forever();
        let Some(signal) = signals.next() else { return };
        let handed_over = held && signal == SIGTERM;
        if sender.send(if handed_over { Action::HandOver } else { Action::Stop }).is_err() {
            return;
        }
        let first = Instant::now();
        if signals.any(|_| first.elapsed() >= SAME_REQUEST) {
            log::warn!("asked to stop again: ending at once, sockets may be left behind");
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
    Ok(())
}

/// How the other commands are called, so that they reach the switch at `api`.
fn program_at(api: &Path) -> String {
    let is_default = default_path().is_ok_and(|usual| usual == api);
    program((!is_default).then_some(api))
}

/// How to attach to a port.
fn line(port: &PortInfo, program: &str) -> String {
    let how = match port.kind.as_str() {
        k if k == Kind::Tap.name() => {
            "the host's side is a network interface of that name".to_owned()
        }
        k if [Kind::Packet, Kind::Xdp].map(Kind::name).contains(&k) => {
            "all that comes in there, and a way out".to_owned()
        }
        k if k == Kind::Pcap.name() => "open it with tshark -r or Wireshark".to_owned(),
        k if k == Kind::Nat.name() => "guests get addresses from it".to_owned(),
        _ => format!("attach a VM: {program} vm-args {}", port.name),
    };
    format!("port {}  {}  ({how})", port.name, port.address)
}

fn say(api: &Path, lines: &[String], program: &str) {
    let mut out = std::io::stdout().lock();
    let ports = match lines {
        [] => format!(
            "no ports were given: add one with `{program} port add vm1=vhost-user:/tmp/vm1.sock`"
        ),
        lines => lines.join("\n"),
    };
    let text = format!("{ports}\napi {}\n", api.display());
    // Nobody may be reading. The switch runs anyway.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
