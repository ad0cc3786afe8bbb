//! Child processes: pinned, logged, and ended by pid when their owner is dropped.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::stop::Stop;
use super::{Error, scratch::Scratch};

const GRACE: Duration = Duration::from_secs(2);

/// How to start one.
#[derive(Debug)]
pub struct Launch {
    name: String,
    command: Command,
}

impl Launch {
    /// `program`, pinned to `core` unless it places its threads itself, inside the network namespace `netns` if one is given.
    ///
    /// `setpriv --pdeathsig` ends the child even when we are killed with SIGKILL; its own process group keeps the
    /// terminal's Ctrl-C away from it, so that it is ended in order. All wrappers exec: the pid stays ours.
    pub fn new(name: &str, program: &Path, core: Option<usize>, netns: Option<&Path>) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(netns) = netns {
            let mut option = OsString::from("--net=");
            option.push(netns);
            command.arg("nsenter").arg(option);
        }
        if let Some(core) = core {
            command.args(["taskset", "-c", &core.to_string()]);
        }
        command.args(["stdbuf", "-oL"]).arg(program);
        command.process_group(0);
        Self { name: name.to_owned(), command }
    }

    /// Appends arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: &Path) -> Self {
        self.command.env(key, value);
        self
    }

    /// Starts it; what it prints goes to a fresh log in `scratch`.
    ///
    /// # Errors
    /// [`Error::Io`] when the log or the process cannot be created.
    pub fn spawn(mut self, scratch: &Scratch) -> Result<Process, Error> {
        let path = scratch.log(&self.name);
        let failed = || format!("start {} with log {}", self.name, path.display());
        let log = File::create(&path).map_err(Error::io(failed()))?;
        let twin = log.try_clone().map_err(Error::io(failed()))?;
        self.command.stdin(Stdio::piped()).stdout(log).stderr(twin);
        let mut child = self.command.spawn().map_err(Error::io(failed()))?;
        let stdin = child.stdin.take();
        Ok(Process { child, stdin, name: self.name, log: path, read: 0 })
    }
}

/// A running child. Dropping it ends it: end of input, SIGTERM, and SIGKILL after [`GRACE`].
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    name: String,
    log: PathBuf,
    read: u64,
}

impl Process {
    /// Its process id; `taskset` and the other wrappers exec, so this is the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// [`Error::Failed`] when it has ended by itself.
    pub fn alive(&mut self) -> Result<(), Error> {
        match self.child.try_wait().map_err(Error::io(format!("wait for {}", self.name)))? {
            None => Ok(()),
            Some(status) => Err(Error::Failed(format!("{} ended early, {status}", self.name))),
        }
    }

    /// Writes a line to its console.
    ///
    /// # Errors
    /// [`Error::Io`] when it no longer reads.
    pub fn say(&mut self, line: &str) -> Result<(), Error> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        writeln!(stdin, "{line}").map_err(Error::io(format!("talk to {}", self.name)))
    }

    /// Waits until what it printed since the last call that succeeded satisfies `done`, and returns that text.
    ///
    /// # Errors
    /// [`Error::Failed`] naming `what` when it ended or `limit` passed.
    pub fn expect(
        &mut self,
        stop: &Stop,
        what: &str,
        limit: Duration,
        done: impl Fn(&str) -> bool,
    ) -> Result<String, Error> {
        let mut text = Vec::new();
        let from = self.read;
        let what = format!("{what} from {}", self.name);
        let found = stop.wait_for(&what, limit, || {
            self.read_log(from, &mut text)?;
            let printed = String::from_utf8_lossy(&text);
            if done(&printed) {
                return Ok(Some(printed.into_owned()));
            }
            self.alive().map(|()| None)
        })?;
        self.read = from + text.len() as u64;
        Ok(found)
    }

    fn read_log(&self, from: u64, text: &mut Vec<u8>) -> Result<(), Error> {
        let read = || -> std::io::Result<usize> {
            let mut file = File::open(&self.log)?;
            file.seek(SeekFrom::Start(from + text.len() as u64))?;
            file.read_to_end(text)
        };
        let mut read = read;
        read().map(|_| ()).map_err(Error::io(format!("read {}", self.log.display())))
    }

    /// Whether it has ended by itself within `time`.
    pub fn ended_within(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn signal(&self, signal: Signal) {
        // The child has not been waited for, so its pid cannot belong to another process. ESRCH only
        // means that it has just ended.
        if let Some(pid) = Pid::from_child(&self.child).into() {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.take());
        self.signal(Signal::TERM);
        if !self.ended_within(GRACE) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Runs a helper program to its end and returns its standard output.
///
/// # Errors
/// [`Error::Io`] when it cannot start, [`Error::Failed`] with its last words when it fails.
pub fn output(program: &str, args: &[&str]) -> Result<String, Error> {
    let what = format!("run {program} {}", args.join(" "));
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(what.clone()))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(Error::Failed(format!(
        "cannot {what}: {}",
        said.lines().last().unwrap_or("no reason given")
    )))
}

/// Finds `program` in `PATH` or in the folders that hold system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|m| m.is_file()))
}
