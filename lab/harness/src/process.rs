//! Child processes that cannot outlive their test.

use crate::{HarnessError, Result, SETUP};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread::sleep,
    time::{Duration, Instant},
};

/// A child process with its output in a log file; killed and reaped on drop.
///
/// It is started through `setpriv --pdeathsig KILL`: if the test is itself killed, the kernel takes the child down. The
/// signal follows the *thread* that spawned it, so spawn from the test's own thread and not from a short-lived one.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `argv` with both outputs appended to `log`.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] if the program is not there, [`HarnessError::File`] for the log.
    pub fn start(name: &str, log: &Path, argv: &[String]) -> Result<Process> {
        Process::spawn(name, log, argv, Stdio::null())
    }

    /// As [`Process::start`], with an input that [`Process::say`] writes to.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start_dialogue(name: &str, log: &Path, argv: &[String]) -> Result<Process> {
        Process::spawn(name, log, argv, Stdio::piped())
    }

    fn spawn(name: &str, log: &Path, argv: &[String], input: Stdio) -> Result<Process> {
        let out =
            File::options().create(true).append(true).open(log).map_err(HarnessError::file(log))?;
        let err = out.try_clone().map_err(HarnessError::file(log))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .args(argv)
            .stdin(input)
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|_| HarnessError::Missing { what: "setpriv".into(), fix: SETUP })?;
        Ok(Process { name: name.into(), log: log.into(), child })
    }

    /// Writes one line to the input of a process begun with [`Process::start_dialogue`].
    ///
    /// # Errors
    /// [`HarnessError::File`] if it no longer listens.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe);
        let said = input.map_err(Into::into).and_then(|input| writeln!(input, "{line}"));
        said.map_err(HarnessError::file(&self.name))
    }

    /// The process id.
    #[must_use]
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

    /// SIGKILL, and reaped: when this returns the process is gone, its descriptors closed.
    pub fn kill9(&mut self) {
        // Both fail only if it is gone already, which is what was asked for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, then waits for the exit code.
    ///
    /// # Errors
    /// [`HarnessError::Deadline`] if it does not end in time.
    pub fn terminate(&mut self, within: Duration) -> Result<Option<i32>> {
        output_of("kill", &["-TERM", &self.pid().to_string()])?;
        let end = Instant::now() + within;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Ok(status.code());
            }
            if Instant::now() > end {
                return Err(self.late("a clean shutdown", within));
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Polls `ready` until it holds, the process dies or the deadline passes.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] or [`HarnessError::Deadline`].
    pub fn wait(
        &mut self,
        what: &str,
        within: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let end = Instant::now() + within;
        while !ready() {
            self.alive()?;
            if Instant::now() > end {
                return Err(self.late(what, within));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Where its outputs go.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The whole log so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn late(&self, what: &str, within: Duration) -> HarnessError {
        let what = format!("{}: {what}", self.name);
        HarnessError::Deadline { what, seconds: within.as_secs(), heard: last_words(&self.log()) }
    }

    fn ended(&self, status: &str) -> HarnessError {
        let heard = last_words(&self.log());
        HarnessError::Ended { what: self.name.clone(), status: status.into(), heard }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Where each thread of a process is: its name, and what it sleeps in.
#[must_use]
pub fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let all = tasks.map(|task| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("\n  {} {} {}", read("comm").trim(), read("wchan").trim(), read("syscall").trim())
    });
    all.collect()
}

/// The last lines of a log: enough to see why, short enough for a test report.
#[must_use]
pub fn last_words(log: &str) -> String {
    let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n  ")
}

/// Runs a host command to its end and returns its standard output.
///
/// # Errors
/// [`HarnessError::Missing`] if the program is not there, [`HarnessError::Failed`] if it does not exit 0.
pub fn output_of(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|_| HarnessError::Missing { what: program.into(), fix: SETUP })?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let heard = last_words(&String::from_utf8_lossy(&[out.stdout, out.stderr].concat()));
    Err(HarnessError::Failed { what: format!("{program} {}", args.join(" ")), heard })
}

/// The program under test: `$VMLAN_BIN`, or a release build made once for each test process, so that it is never stale.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn vmlan_program() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("VMLAN_BIN") {
        Some(path) => path.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace").to_owned();
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "-p", "vmlan"])
        .current_dir(&root)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cargo build --release -p vmlan failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    target.join("release/vmlan")
}
