//! The processes of a demo, and the directory they meet in. All gone when dropped.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::api::Client;
use crate::exit::Failure;
use crate::stats::{PortStats, Stats};
use crate::sys;

/// Longest wait for a process to be ready.
const PATIENCE: Duration = Duration::from_secs(15);

/// A running switch with the ports `a` and `b`, without guests.
pub(super) struct Lab {
    // Dropped in this order: the switch ends before its directory goes.
    switch: Process,
    dir: Directory,
    interrupted: Arc<AtomicBool>,
}

impl Lab {
    pub(super) fn start() -> Result<Self, Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone())
                .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
        }
        let dir = Directory::new()?;
        let port = |name: &str| format!("{name}=vhost-user:{}", dir.socket(name).display());
        let api = dir.socket("api").display().to_string();
        let switch =
            Process::start(&dir, "switch", &["switch", "--api", &api, &port("a"), &port("b")])?;
        let mut lab = Self { switch, dir, interrupted };
        let ready = lab.dir.socket("api");
        lab.wait(|_| ready.exists(), "the switch to be ready")?;
        Ok(lab)
    }

    /// Starts `vmlan pkt-gen` on a port.
    pub(super) fn guest(&self, port: &str, args: &[&str]) -> Result<Process, Failure> {
        let address = format!("vhost-user:{}", self.dir.socket(port).display());
        let words = [&["pkt-gen", "-i", &address, "--json"], args].concat();
        Process::start(&self.dir, port, &words)
    }

    /// Counters of the ports `a` and `b`.
    pub(super) fn stats(&self) -> Result<[PortStats; 2], Failure> {
        let stats: Stats = Client::new(&self.dir.socket("api")).get("/v1/stats")?;
        let ports = stats.ports.try_into();
        ports.map_err(|_| {
            Failure::Failed("the switch of the demo has other ports than a and b".into())
        })
    }

    pub(super) fn switch(&self) -> u32 {
        self.switch.pid()
    }

    /// Waits until `ready`, as long as everybody lives.
    pub(super) fn wait(
        &mut self,
        mut ready: impl FnMut(&Self) -> bool,
        what: &str,
    ) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        while !ready(self) {
            self.pause(Duration::from_millis(20))?;
            if Instant::now() > end {
                return Err(Failure::Failed(format!("waited {} s for {what}", PATIENCE.as_secs())));
            }
        }
        Ok(())
    }

    /// Lets time pass; an error if the switch died or the user has had enough.
    pub(super) fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        sleep(time);
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::Failed("interrupted".into()));
        }
        self.switch.alive()
    }
}

/// A directory of our own below the one for temporary files; removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("vmlan-demo-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| {
            Failure::Failed(format!("{}: {e}: set TMPDIR to another place", path.display()))
        })?;
        Ok(Self(path))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.log"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of it is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process of ours. Asked to end, and made to, when dropped.
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    output: PathBuf,
}

impl Process {
    fn start(dir: &Directory, name: &str, args: &[&str]) -> Result<Self, Failure> {
        let failed = |e| Failure::Failed(format!("{name}: cannot be started: {e}"));
        let (log, output) = (dir.log(name), dir.0.join(format!("{name}.out")));
        let child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(args)
            .env("VMLAN_LOG", "warn")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::null())
            .stdout(File::create(&output).map_err(failed)?)
            .stderr(File::create(&log).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        Ok(Self { name: name.into(), child, log, output })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error with its last words if it has died.
    pub(super) fn alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(&status.to_string())),
            Err(e) => Err(self.ended(&e.to_string())),
        }
    }

    fn ended(&self, how: &str) -> Failure {
        let last = last_line(&self.log);
        Failure::Failed(format!("{} ended ({how}): {last}", self.name))
    }

    /// Asks it to end; what it printed.
    pub(super) fn finish(mut self) -> Result<String, Failure> {
        let status = self.stop().ok_or_else(|| self.ended("it had to be killed"))?;
        if !status.success() {
            return Err(self.ended(&status.to_string()));
        }
        Ok(fs::read_to_string(&self.output).unwrap_or_default())
    }

    /// None if it had to be killed.
    fn stop(&mut self) -> Option<ExitStatus> {
        let end = Instant::now() + Duration::from_secs(5);
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
