//! Child processes: pinned, logged, and ended with their owner.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cpu::Pin;
use crate::program::{last_lines, missing};
use crate::stop::Stop;
use crate::{HarnessError, Result};

/// How often a wait looks.
const TICK: Duration = Duration::from_millis(5);

/// How to start a process.
#[derive(Debug)]
pub struct Launch {
    name: String,
    /// Each runs the next; all of them `exec`, so that the process keeps its id.
    wrappers: Vec<OsString>,
    argv: Vec<OsString>,
    environment: Vec<(OsString, Option<OsString>)>,
    pin: Pin,
    grace: Duration,
    has_input: bool,
    own_group: bool,
    output: Option<PathBuf>,
}

impl Launch {
    /// `program`, called `name` in messages.
    pub fn new(name: &str, program: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.into(),
            wrappers: Vec::new(),
            argv: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            pin: Pin::Free,
            grace: Duration::ZERO,
            has_input: false,
            own_group: false,
            output: None,
        }
    }

    /// Appends arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable, or removes it.
    #[must_use]
    pub fn env(mut self, key: &str, value: Option<&OsStr>) -> Self {
        self.environment.push((key.into(), value.map(OsStr::to_owned)));
        self
    }

    /// The kernel kills it when whoever started it is killed: `setpriv --pdeathsig KILL`. That
    /// follows the *thread* which starts it, so this must not be a short-lived one.
    #[must_use]
    pub fn dies_with_us(self) -> Self {
        self.wrapped(["setpriv", "--pdeathsig", "KILL", "--"])
    }

    /// It is started by this command line, which ends where its own begins, and stays the same
    /// process.
    #[must_use]
    pub fn wrapped(mut self, command: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.wrappers.extend(command.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Writes what it prints line by line, although nobody is at a terminal.
    #[must_use]
    pub fn line_buffered(self) -> Self {
        self.wrapped(["stdbuf", "-oL"])
    }

    /// Where it runs.
    #[must_use]
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// How long it may take to end when asked to, before it is killed. Without this it is killed at
    /// once.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// [`Process::say`] writes to its input.
    #[must_use]
    pub fn with_input(mut self) -> Self {
        self.has_input = true;
        self
    }

    /// A terminal's Ctrl-C does not reach it: it is ended in order.
    #[must_use]
    pub fn own_group(mut self) -> Self {
        self.own_group = true;
        self
    }

    /// Standard output goes to this file instead of the log; [`Process::finish`] returns it.
    #[must_use]
    pub fn output(mut self, file: PathBuf) -> Self {
        self.output = Some(file);
        self
    }

    /// Starts it; what it prints is appended to `log`.
    ///
    /// # Errors
    /// [`HarnessError::File`] for the log, [`HarnessError::Missing`] when the first program of the
    /// command line is not there, [`HarnessError::Io`] when it cannot be started or pinned.
    pub fn spawn(self, log: &Path) -> Result<Process> {
        let append = || File::options().create(true).append(true).open(log);
        let errors = append().map_err(HarnessError::file(log))?;
        let read = errors.metadata().map_err(HarnessError::file(log))?.len();
        let printed = match &self.output {
            Some(file) => File::create(file).map_err(HarnessError::file(file))?,
            None => errors.try_clone().map_err(HarnessError::file(log))?,
        };
        let mut words = self.wrappers.iter().chain(&self.argv);
        let program = words.next().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(words).stdout(printed).stderr(errors);
        command.stdin(if self.has_input { Stdio::piped() } else { Stdio::null() });
        for (key, value) in &self.environment {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if self.own_group {
            command.process_group(0);
        }
        let child = self.pin.around(|| command.spawn()).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing(&program.to_string_lossy()),
            _ => HarnessError::io(format!("start {}", self.name))(error),
        })?;
        let (name, log) = (self.name, log.to_owned());
        Ok(Process { name, child, log, read, output: self.output, grace: self.grace })
    }
}

/// A child process with its output in a log file; ended and reaped when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Up to where [`Process::expect`] has read the log.
    read: u64,
    output: Option<PathBuf>,
    grace: Duration,
}

impl Process {
    /// Starts `argv` so that it dies with us, both outputs appended to `log`.
    pub fn start(name: &str, log: &Path, argv: &[String]) -> Result<Self> {
        Self::plain(name, argv).spawn(log)
    }

    /// As [`Process::start`], with an input that [`Process::say`] writes to.
    pub fn start_dialogue(name: &str, log: &Path, argv: &[String]) -> Result<Self> {
        Self::plain(name, argv).with_input().spawn(log)
    }

    fn plain(name: &str, argv: &[String]) -> Launch {
        let (program, args) = argv.split_first().expect("a program to start");
        Launch::new(name, program).args(args).dies_with_us()
    }

    /// The process id: wrappers `exec`, so this is the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the process has ended.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] with the end of its log.
    pub fn alive(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(&status.to_string())),
            Err(error) => Err(self.ended(&error.to_string())),
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    /// Whether it has ended by itself within `time`.
    pub fn ended_within(&mut self, time: Duration) -> bool {
        self.status_within(time).is_some()
    }

    /// Writes one line to the input of a process that has one.
    ///
    /// # Errors
    /// [`HarnessError::Io`] if it no longer reads.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe);
        let said = input.map_err(Into::into).and_then(|input| writeln!(input, "{line}"));
        said.map_err(HarnessError::io(format!("write to {}", self.name)))
    }

    /// Waits until `ready` holds.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] or [`HarnessError::Deadline`], with the end of its log.
    pub fn wait(
        &mut self,
        what: &str,
        within: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        self.wait_for(&Stop::default(), what, within, |_| Ok(ready().then_some(())))
    }

    /// Waits until what it printed since the last call that succeeded satisfies `done`, and returns
    /// that text.
    ///
    /// # Errors
    /// [`HarnessError::Ended`], [`HarnessError::Deadline`], or [`HarnessError::Interrupted`].
    pub fn expect(
        &mut self,
        stop: &Stop,
        what: &str,
        within: Duration,
        done: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut new = Vec::new();
        let text = self.wait_for(stop, what, within, |process| {
            process.read_log(&mut new)?;
            let text = String::from_utf8_lossy(&new);
            Ok(done(&text).then(|| text.into_owned()))
        })?;
        self.read += new.len() as u64;
        Ok(text)
    }

    fn wait_for<T>(
        &mut self,
        stop: &Stop,
        what: &str,
        within: Duration,
        mut ready: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let found = stop.wait_for(what, within, || match ready(self)? {
            Some(value) => Ok(Some(value)),
            None => self.alive().map(|()| None),
        });
        found.map_err(|error| match error {
            HarnessError::Deadline { .. } => self.late(what, within),
            other => other,
        })
    }

    fn read_log(&self, new: &mut Vec<u8>) -> Result<()> {
        let mut read = || -> std::io::Result<usize> {
            let mut file = File::open(&self.log)?;
            file.seek(SeekFrom::Start(self.read + new.len() as u64))?;
            file.read_to_end(new)
        };
        read().map(drop).map_err(HarnessError::file(&self.log))
    }

    /// SIGKILL, and reaped: when this returns the process is gone, its descriptors closed.
    pub fn kill9(&mut self) {
        // Both fail only if it is gone already, which is what was asked for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGKILL, and reaped, if it can be killed at all: a thread that a peer has parked in the
    /// kernel keeps its process from ending.
    ///
    /// # Errors
    /// [`HarnessError::Deadline`] if it is still there then.
    pub fn kill9_within(&mut self, time: Duration) -> Result<()> {
        let _ = self.child.kill();
        let gone = self.status_within(time).map(drop);
        gone.ok_or_else(|| self.late("to be gone after SIGKILL", time))
    }

    /// SIGTERM, then waits for the exit code; `None` if a signal ended it.
    ///
    /// # Errors
    /// [`HarnessError::Deadline`] if it does not end in time.
    pub fn terminate(&mut self, within: Duration) -> Result<Option<i32>> {
        self.ask_to_end();
        let status = self.status_within(within);
        status.map(|status| status.code()).ok_or_else(|| self.late("a clean shutdown", within))
    }

    /// Asks it to end if it has not yet; what it printed on standard output.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] if it failed, or had to be killed.
    pub fn finish(mut self) -> Result<String> {
        let status = self.end().ok_or_else(|| self.ended("it had to be killed"))?;
        if !status.success() {
            return Err(self.ended(&status.to_string()));
        }
        let file = self.output.as_ref().unwrap_or(&self.log);
        std::fs::read_to_string(file).map_err(HarnessError::file(file))
    }

    /// Where its outputs go.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The whole log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn status_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + time;
        loop {
            let status = self.status();
            if status.is_some() || Instant::now() >= end {
                return status;
            }
            sleep(TICK);
        }
    }

    fn ask_to_end(&mut self) {
        drop(self.child.stdin.take());
        // Not reaped yet, so its id cannot belong to another process. An error means that it has
        // just ended.
        if self.status().is_none() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Ends it; `None` if it had to be killed.
    fn end(&mut self) -> Option<ExitStatus> {
        if !self.grace.is_zero() {
            self.ask_to_end();
        }
        let status = self.status_within(self.grace);
        if status.is_none() {
            self.kill9();
        }
        status
    }

    fn late(&self, what: &str, within: Duration) -> HarnessError {
        let what = format!("{}: {what}", self.name);
        HarnessError::Deadline { what, seconds: within.as_secs(), heard: last_lines(&self.log()) }
    }

    fn ended(&self, status: &str) -> HarnessError {
        let heard = last_lines(&self.log());
        HarnessError::Ended { what: self.name.clone(), status: status.into(), heard }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Launch {
        Launch::new("shell", "sh").args(["-c", script]).dies_with_us().own_group()
    }

    #[test]
    fn what_it_prints_is_read_as_it_comes() {
        let scratch = Scratch::new().unwrap();
        let log = scratch.log("cat");
        let mut cat = shell("exec cat").with_input().spawn(&log).unwrap();
        let stop = Stop::default();
        for word in ["one", "two"] {
            cat.say(word).unwrap();
            let text = cat.expect(&stop, "an echo", LONG, |text| text.contains('\n')).unwrap();
            assert_eq!(text, format!("{word}\n"), "only what is new");
        }
        let late = cat.expect(&stop, "more", Duration::ZERO, |_| false).unwrap_err();
        assert!(late.to_string().contains("shell: more: nothing within 0 s"), "{late}");
        cat.alive().unwrap();
        assert!(!cat.has_ended());
        // Whichever it notices first: the end of its input, or the signal.
        assert!(matches!(cat.terminate(LONG).unwrap(), Some(0) | None));
        assert!(cat.has_ended() && cat.say("three").is_err());
        let gone = cat.wait("anything", LONG, || false).unwrap_err();
        assert!(matches!(&gone, HarnessError::Ended { heard, .. } if heard == "one\n  two"));
        assert_eq!(cat.log(), "one\ntwo\n");
    }

    #[test]
    fn output_and_log_are_apart_and_the_end_is_judged() {
        let scratch = Scratch::new().unwrap();
        let run = |script| {
            let output = scratch.path().join("output");
            shell(script).output(output).grace(LONG).spawn(&scratch.log("run")).unwrap()
        };
        let mut good = run("echo figure; echo words >&2");
        assert!(good.ended_within(LONG));
        assert_eq!(good.finish().unwrap(), "figure\n");
        let mut bad = run("echo figure; echo why >&2; exit 3");
        assert!(bad.ended_within(LONG));
        let said = bad.finish().unwrap_err().to_string();
        assert_eq!(said, "shell ended (exit status: 3); last output: why");
        let script = "trap 'echo asked; exit 0' TERM; echo up >&2; while :; do sleep 0.01; done";
        let mut until_asked = run(script);
        until_asked.expect(&Stop::default(), "it", LONG, |text| text.contains("up")).unwrap();
        assert_eq!(until_asked.finish().unwrap(), "asked\n");
    }

    #[test]
    fn who_does_not_listen_is_killed() {
        let scratch = Scratch::new().unwrap();
        let deaf = "trap '' TERM; echo deaf; while :; do sleep 0.01; done";
        let launch = shell(deaf).grace(Duration::from_millis(20));
        let mut process = launch.spawn(&scratch.log("deaf")).unwrap();
        process.expect(&Stop::default(), "it", LONG, |text| text.contains("deaf")).unwrap();
        assert!(process.finish().unwrap_err().to_string().contains("it had to be killed"));
    }

    #[test]
    fn dropped_it_is_gone_and_what_is_missing_is_named() {
        let scratch = Scratch::new().unwrap();
        let log = scratch.log("sleep");
        let process = Process::start("sleep", &log, &["sleep", "1000"].map(str::to_owned)).unwrap();
        let pid = process.pid();
        drop(process);
        assert!(crate::usage::CpuTime::of(pid).is_err());
        let none = Launch::new("x", "no-such-program").spawn(&log).unwrap_err();
        assert!(none.to_string().starts_with("no-such-program is missing"), "{none}");
    }

    #[test]
    fn cores_environment_and_lines() {
        let scratch = Scratch::new().unwrap();
        let launch = shell("echo $MARK; nproc")
            .line_buffered()
            .pin(Pin::First)
            .env("MARK", Some(OsStr::new("marked")))
            .env("OMP_NUM_THREADS", None)
            .grace(LONG);
        let mut process = launch.spawn(&scratch.log("cores")).unwrap();
        assert!(process.ended_within(LONG));
        assert_eq!(process.finish().unwrap(), "marked\n1\n");
    }
}
