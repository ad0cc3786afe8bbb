//! KVM: whether it is there, whether a processor stands behind it, and what leaving a guest costs.
//!
//! The guest runs in a child process. It tells figure by figure; one that says nothing for too long
//! is killed, and what it has told until then stays.

#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod guest;

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::figure::{Figure, Found, Missing};
use crate::failure::Failure;
use crate::output::print_json;

/// How long the guest may say nothing, beside the time for a figure.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all of it may take, beside the time for the figures.
const MOST: Duration = Duration::from_secs(20);
/// Figures that the guest takes.
const FIGURES: u32 = 9;
/// Processors of this century that run a guest's instructions themselves do ten times as many;
/// emulators far fewer.
const REAL: f64 = 100e6;
/// How long a process may take to be gone once it is killed.
const END: Duration = Duration::from_secs(2);

/// What is said of another file.
const NOT_KVM: &str = "is not KVM";

/// What the child says: a line each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// Instructions a second.
    Rate(f64),
    Figure(Figure),
    Missing(Missing),
    /// Why there is no guest.
    Failed(String),
    Done,
}

/// What KVM is on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) path: String,
    /// It opens for us.
    pub(super) opens: bool,
    /// What /proc/cpuinfo has of vmx and svm.
    pub(super) cpu_flag: Option<String>,
    /// In a guest.
    pub(super) instructions_per_s: Option<f64>,
    /// A processor runs the guest's instructions, not a program; nothing if no guest ran.
    pub(super) hardware: Option<bool>,
    /// All of this in words.
    pub(super) sentence: String,
}

impl State {
    /// Figures of exits are this host's, and no emulator's.
    pub(super) fn counts(&self) -> bool {
        self.hardware == Some(true)
    }

    fn conclude(&mut self, failure: Option<&str>) {
        self.hardware = self.instructions_per_s.map(|rate| rate >= REAL);
        let path = &self.path;
        let flag = match &self.cpu_flag {
            Some(flag) => format!("/proc/cpuinfo has {flag}"),
            None => "/proc/cpuinfo has neither vmx nor svm".into(),
        };
        let rate = self.instructions_per_s.map(millions).unwrap_or_default();
        self.sentence = match (self.hardware, failure) {
            (Some(true), _) => {
                format!(
                    "{path} opens and a processor runs its guests: {flag}, a guest counts at \
                        {rate} million instructions a second."
                )
            }
            (Some(false), _) => format!(
                "The CPU has no hardware virtualisation behind {path}: it opens, but {flag}, and a \
                 guest counts at {rate} million instructions a second, as under an emulator (a \
                 processor: 1,000 and more). Case its exits cost says nothing about KVM; use \
                 `-accel tcg` here."
            ),
            (None, Some(why)) if why.ends_with(NOT_KVM) => {
                format!("{why}: give --kvm its device, or leave it out.")
            }
            (None, Some(why)) => {
                let none = "; without one of them there is no hardware virtualisation behind it";
                let none = if self.cpu_flag.is_none() { none } else { "" };
                format!("{path} opens, but no guest runs ({why}); {flag}{none}.")
            }
            (None, None) => format!("{path} opens, but no guest has said anything; {flag}."),
        };
    }
}

/// With two digits that matter below ten.
fn millions(rate: f64) -> String {
    let millions = rate / 1e6;
    if millions < 9.95 { format!("{millions:.1}") } else { format!("{millions:.0}") }
}

/// Looks, and measures where there is something to measure.
pub(super) fn all(path: &str, seconds: f64) -> (State, Found) {
    let mut state = State { path: path.into(), cpu_flag: cpu_flag(), ..State::default() };
    let mut found = Found::default();
    if let Err(why) = opens(Path::new(path)) {
        state.sentence = format!("{why}.");
        found.miss("exits from a guest", &why);
        return (state, found);
    }
    state.opens = true;
    let failure = guest_figures(path, seconds, &mut state, &mut found).err();
    if let Some(why) = &failure {
        found.miss("exits from a guest", why);
    }
    state.conclude(failure.as_deref());
    (state, found)
}

/// An error in words: it is not there, or who may open it.
fn opens(path: &Path) -> Result<(), String> {
    let place = path.display();
    let Err(e) = std::fs::File::options().read(true).write(true).open(path) else { return Ok(()) };
    Err(match e.kind() {
        ErrorKind::NotFound => format!(
            "{place} is not there: the CPU has no virtualisation, it is off in the firmware, this \
             is a VM without nesting, or kvm_intel or kvm_amd is not loaded (modprobe)"
        ),
        ErrorKind::PermissionDenied => format!("{place} may not be opened: {}", who_may(path)),
        _ => format!("{place} cannot be opened: {e}"),
    })
}

/// How to get at a file of somebody else's.
fn who_may(path: &Path) -> String {
    let Ok(about) = std::fs::metadata(path) else { return "run this as root".into() };
    if about.mode() & 0o060 != 0o060 {
        return "run this as root, its group may not either".into();
    }
    match group_name(about.gid(), &std::fs::read_to_string("/etc/group").unwrap_or_default()) {
        Some(name) => {
            format!("be in its group, {name} (usermod -a -G {name} YOU, and log in again)")
        }
        None => format!("its group is {}, which has no name here: run this as root", about.gid()),
    }
}

/// From lines of group(5).
fn group_name(gid: u32, groups: &str) -> Option<String> {
    let gid = gid.to_string();
    let mut lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find(|fields| fields.get(2) == Some(&gid.as_str())).map(|fields| fields[0].to_owned())
}

fn cpu_flag() -> Option<String> {
    flag_in(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn flag_in(cpuinfo: &str) -> Option<String> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    flags.split_whitespace().find(|flag| ["vmx", "svm"].contains(flag)).map(str::to_owned)
}

/// An error: no guest ran, or it stopped.
fn guest_figures(
    path: &str,
    seconds: f64,
    state: &mut State,
    found: &mut Found,
) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let child = Command::new(program)
        .args(["probe", "--kvm-guest", "--kvm", path, "--seconds", &seconds.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|e| format!("no process for it: {e}"))?;
    let said = listen(&mut child);
    let each = Duration::from_secs_f64(seconds);
    let result = follow(&said, PATIENCE + each, MOST + each * FIGURES, state, found);
    end(child)?;
    result
}

/// Its lines, as they come.
fn listen(child: &mut Child) -> Receiver<Line> {
    let (tell, said) = channel();
    if let Some(out) = child.stdout.take() {
        // Ends with the process.
        spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            let lines = lines.filter_map(|line| serde_json::from_str(&line).ok());
            // Nobody listens any more: it does not matter.
            let _ = lines.map(|line| tell.send(line)).find(Result::is_err);
        });
    }
    said
}

fn follow(
    said: &Receiver<Line>,
    patience: Duration,
    most: Duration,
    state: &mut State,
    found: &mut Found,
) -> Result<(), String> {
    let end = Instant::now() + most;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match said.recv_timeout(patience.min(left)) {
            Ok(Line::Rate(rate)) => state.instructions_per_s = Some(rate),
            Ok(Line::Figure(figure)) => found.figures.push(figure),
            Ok(Line::Missing(missing)) => found.missing.push(missing),
            Ok(Line::Failed(why)) => return Err(why),
            Ok(Line::Done) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                return Err("the guest did not come back, and was given up".into());
            }
            Err(RecvTimeoutError::Disconnected) => return Err("its process died".into()),
        }
    }
}

/// Whatever state it is in: a process that is killed leaves KVM_RUN.
fn end(mut child: Child) -> Result<(), String> {
    // One that has ended cannot be killed, and need not be.
    let _ = child.kill();
    let end = Instant::now() + END;
    while Instant::now() < end {
        if let Ok(Some(_)) = child.try_wait() {
            return Ok(());
        }
        sleep(Duration::from_millis(5));
    }
    Err(format!("process {} was killed and does not end", child.id()))
}

/// The child: `vmlan probe --kvm-guest`.
pub(super) fn guest(path: &str, time: Duration) -> Result<(), Failure> {
    // Should nobody end us: a guest that does not come back must not live for ever.
    spawn(move || {
        sleep(MOST + time * FIGURES);
        std::process::exit(1);
    });
    // Nobody to tell: then there is nothing to do either.
    let say = |line: &Line| {
        if print_json(line).is_err() {
            std::process::exit(1);
        }
    };
    match measure(path, time, &mut { say }) {
        Ok(()) => say(&Line::Done),
        Err(why) => say(&Line::Failed(why)),
    }
    // Not by returning: a thread may still be in a guest that does not come back.
    std::process::exit(0)
}

#[cfg(target_arch = "x86_64")]
use guest::measure;

#[cfg(not(target_arch = "x86_64"))]
fn measure(_: &str, _: Duration, _: &mut dyn FnMut(&Line)) -> Result<(), String> {
    Err("our guest is made for x86-64".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(rate: Option<f64>, flag: Option<&str>) -> State {
        State {
            path: "/dev/kvm".into(),
            opens: true,
            cpu_flag: flag.map(str::to_owned),
            instructions_per_s: rate,
            ..State::default()
        }
    }

    #[test]
    fn an_emulator_is_called_one() {
        let mut fake = state(Some(1.1e6), None);
        fake.conclude(None);
        assert!(fake.hardware == Some(false) && !fake.counts());
        assert!(
            fake.sentence.starts_with("The CPU has no hardware virtualisation behind /dev/kvm")
        );
        assert!(
            fake.sentence.contains("neither vmx nor svm") && fake.sentence.contains(" 1.1 million")
        );
        let mut real = state(Some(2.7e9), Some("vmx"));
        real.conclude(None);
        assert!(real.counts() && real.sentence.contains("2700 million"), "{}", real.sentence);
    }

    #[test]
    fn a_guest_that_does_not_run_proves_nothing() {
        let mut state = state(None, None);
        state.conclude(Some("the guest did not come back, and was given up"));
        assert!(state.hardware.is_none() && !state.counts());
        assert!(state.sentence.contains("given up") && state.sentence.contains("no hardware"));
    }

    #[test]
    fn a_silent_guest_is_given_up_with_what_it_said() {
        let (tell, said) = channel();
        tell.send(Line::Rate(5e6)).unwrap();
        let (mut state, mut found) = (State::default(), Found::default());
        let wait = Duration::from_millis(5);
        let why = follow(&said, wait, wait * 100, &mut state, &mut found).unwrap_err();
        assert!(why.contains("given up") && state.instructions_per_s == Some(5e6), "{why}");
        drop(tell);
        let why = follow(&said, wait, wait, &mut state, &mut found).unwrap_err();
        assert!(why.contains("died"), "{why}");
    }

    #[test]
    fn a_process_that_does_not_end_is_ended() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let began = Instant::now();
        end(child).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_is_not_there_is_told() {
        let (state, found) = all("/nowhere/kvm", 0.01);
        assert!(!state.opens && state.hardware.is_none());
        assert!(state.sentence.contains("/nowhere/kvm is not there"), "{}", state.sentence);
        assert!(found.figures.is_empty() && found.missing.len() == 1);
    }

    #[test]
    fn groups_and_flags_are_found_by_name() {
        let groups = "root:x:0:\nkvm:x:994:me,you\n";
        assert_eq!(group_name(994, groups).as_deref(), Some("kvm"));
        assert_eq!(group_name(99, groups), None);
        assert_eq!(flag_in("x: 1\nflags\t\t: fpu svm lm\n").as_deref(), Some("svm"));
        assert_eq!(flag_in("flags\t\t: fpu svml\n"), None);
    }
}
