//! The line between `vmlan upgrade` and the switch that it starts. That one says what it is going
//! to be, once all is checked that can be checked beside the running one; begins when it is told;
//! and says when it serves. Each is a line of text, this way and that.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::supervise;
use crate::switch_log::SwitchLog;
use vmlan_config::settings::Settings;
use vmlan_engine::info::ProcessInfo;

/// The option that makes a switch a successor.
pub(crate) const OPTION: &str = "--successor";

/// The `words` of a switch, for another one that has `option` in the place of those that make it a
/// successor or a supervised one.
pub(crate) fn with_option<W>(mut words: Vec<W>, option: &'static str) -> Vec<W>
where
    W: AsRef<OsStr> + From<&'static str>,
{
    words.retain(|word| ![OPTION, supervise::OPTION].map(OsStr::new).contains(&word.as_ref()));
    // Behind a `--` it would be a port.
    let end = words.iter().position(|word| word.as_ref() == "--").unwrap_or(words.len());
    words.insert(end, option.into());
    words
}

/// How long one may take to check what it is started with, and then to serve.
const CHECKS: Duration = Duration::from_secs(20);
const STARTS: Duration = Duration::from_secs(60);

const BEGIN: &str = "begin";
const SERVES: &str = "serves";

/// What a successor is going to be.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Intent {
    pub(crate) version: String,
    pub(crate) api: PathBuf,
    /// VMs' connections outlive it, too.
    pub(crate) holds: bool,
    /// It goes on with what was changed while the last one ran.
    pub(crate) keeps_changes: bool,
    pub(crate) ports: Vec<String>,
}

/// The successor's end, which is its standard input.
#[derive(Debug)]
pub(crate) struct Line(BufReader<UnixStream>);

impl Line {
    /// Says what `settings` are, and waits until it is to begin.
    pub(crate) fn wait(settings: &Settings) -> Result<Self, Failure> {
        // The terminal is that of `vmlan upgrade`, which ends. Fails for who leads a group.
        let _ = rustix::process::setsid();
        let failed = |e| Failure::Failed(format!("no `vmlan upgrade` at standard input: {e}"));
        let line = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let mut line = Self(BufReader::new(line.into()));
        let running = &settings.running;
        let intent = Intent {
            version: env!("CARGO_PKG_VERSION").into(),
            api: canonical(&running.api),
            holds: running.hold_for.is_some(),
            keeps_changes: true,
            ports: settings.plan.ports.iter().map(|port| port.name.to_string()).collect(),
        };
        let intent = serde_json::to_string(&intent).map_err(|e| failed(e.into()))?;
        say(&mut line.0, &intent).map_err(failed)?;
        match hear(&mut line.0) {
            Some(word) if word == BEGIN => Ok(line),
            _ => Err(Failure::Failed("`vmlan upgrade` has changed its mind".into())),
        }
    }

    /// To the supervisor, which waits only for [`Line::serves`].
    pub(crate) fn supervised() -> Result<Self, Failure> {
        let failed = |e| Failure::Failed(format!("no supervisor at standard input: {e}"));
        let line = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        Ok(Self(BufReader::new(line.into())))
    }

    /// It serves. Nobody may be there any more who wants to know.
    pub(crate) fn serves(mut self) {
        let _ = say(&mut self.0, SERVES);
    }
}

/// A switch that was started to take the place of the running one.
#[derive(Debug)]
pub(crate) struct Successor {
    process: Child,
    line: BufReader<UnixStream>,
}

impl Successor {
    /// Starts `program` as `old` was started.
    pub(crate) fn start(
        program: &Path,
        old: &ProcessInfo,
        log: &SwitchLog,
    ) -> Result<Self, Failure> {
        let failed =
            |e: std::io::Error| Failure::Failed(format!("cannot run {}: {e}", program.display()));
        let (ours, its) = UnixStream::pair().map_err(failed)?;
        let process = Command::new(program)
            .args(with_option(old.arguments.clone(), OPTION))
            .current_dir(&old.directory)
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::null())
            .stderr(log.file().map_err(failed)?)
            .env_remove("NOTIFY_SOCKET")
            .spawn()
            .map_err(failed)?;
        Ok(Self { process, line: BufReader::new(ours) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it is going to be. `None`: it has found something wrong, and its log says so.
    pub(crate) fn intent(&mut self) -> Option<Intent> {
        self.line.get_ref().set_read_timeout(Some(CHECKS)).ok()?;
        serde_json::from_str(&hear(&mut self.line)?).ok()
    }

    /// Has it begin.
    pub(crate) fn begin(&mut self) -> std::io::Result<()> {
        say(&mut self.line, BEGIN)
    }

    /// True once it serves; false if it has ended instead, or takes too long and was ended.
    pub(crate) fn serves(&mut self) -> bool {
        let patient = self.line.get_ref().set_read_timeout(Some(STARTS)).is_ok();
        patient && hear(&mut self.line).is_some_and(|word| word == SERVES)
    }

    /// Ends it.
    pub(crate) fn end(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A path by which a socket that is there is known to everybody.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let known = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    known.unwrap_or_else(|_| path.to_owned())
}

fn say(line: &mut BufReader<UnixStream>, text: &str) -> std::io::Result<()> {
    line.get_mut().write_all(format!("{text}\n").as_bytes())
}

/// The next line; `None`: there is none, or not in time.
fn hear(line: &mut BufReader<UnixStream>) -> Option<String> {
    let mut text = String::new();
    let read = line.read_line(&mut text).ok()?;
    (read > 0 && text.ends_with('\n')).then(|| text.trim_end().to_owned())
}
