//! The processes of a laboratory and the directory they meet in; all gone when dropped.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::pin::Pin;
use crate::failure::Failure;
use crate::sys;

/// How long a process may take to end when asked to.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A directory of our own below the one for temporary files; removed when dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Result<Self, Failure> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("vmlan-lab-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| {
            Failure::Failed(format!("{}: {e}: set TMPDIR to another place", path.display()))
        })?;
        Ok(Self(path))
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of it is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process of ours that runs this same program. Asked to end, and made to, when dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    output: PathBuf,
}

impl Process {
    pub(super) fn start(
        dir: &Directory,
        name: &str,
        args: &[&str],
        pin: Pin,
    ) -> Result<Self, Failure> {
        let failed = |e| Failure::Failed(format!("{name}: cannot be started: {e}"));
        let file = |kind| dir.0.join(format!("{name}.{kind}"));
        let (log, output) = (file("log"), file("out"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(args)
            .env("VMLAN_LOG", "warn")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::null())
            .stdout(File::create(&output).map_err(failed)?)
            .stderr(File::create(&log).map_err(failed)?);
        let child = pin.around(|| command.spawn()).map_err(failed)?;
        Ok(Self { name: name.into(), child, log, output })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error with its last words if it has died.
    pub(crate) fn alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(&status.to_string())),
            Err(e) => Err(self.ended(&e.to_string())),
        }
    }

    /// Has it ended of itself?
    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn ended(&self, how: &str) -> Failure {
        let last = last_line(&self.log);
        Failure::Failed(format!("{} ended ({how}): {last}", self.name))
    }

    /// Asks it to end if it has not yet; what it printed.
    pub(crate) fn finish(mut self) -> Result<String, Failure> {
        let status = self.stop().ok_or_else(|| self.ended("it had to be killed"))?;
        if !status.success() {
            return Err(self.ended(&status.to_string()));
        }
        Ok(fs::read_to_string(&self.output).unwrap_or_default())
    }

    /// None if it had to be killed.
    fn stop(&mut self) -> Option<ExitStatus> {
        let end = Instant::now() + LAST_WORDS;
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        // Not reaped yet, so the id is still its own.
        let _ = sys::terminate(self.pid());
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}
