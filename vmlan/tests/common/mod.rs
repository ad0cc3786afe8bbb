//! Runs the program, and cleans up after it.
#![allow(dead_code)] // each test file uses its own part

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub mod schema;

const VMLAN: &str = env!("CARGO_BIN_EXE_vmlan");

/// Runs a command to its end.
pub fn vmlan(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[impl AsRef<std::ffi::OsStr>]) -> Command {
    let mut command = Command::new(VMLAN);
    command.args(args).stdin(Stdio::null()).env_remove("NOTIFY_SOCKET").env("VMLAN_LOG", "warn");
    command
}

/// Runs a command that has to fail with `code` and one line that holds all of `said`.
pub fn fails(args: &[&str], code: i32, said: &[&str]) {
    let out = vmlan(args);
    let error = String::from_utf8_lossy(&out.stderr);
    let lines: Vec<_> = error.lines().filter(|l| !l.starts_with('[')).collect();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {error}");
    assert_eq!(lines.len(), 1, "{args:?}: one line is wanted: {error}");
    for word in said {
        assert!(lines[0].contains(word), "{args:?}: no '{word}' in: {error}");
    }
    assert!(lines[0].starts_with("vmlan: "), "{error}");
}

/// `vmlan switch` with `@` for the directory.
fn words(dir: &Path, args: &[&str], ports: &[&str]) -> Vec<String> {
    let api = dir.join("api.sock");
    let words = ["switch", "--api", api.to_str().unwrap()].into_iter().chain(args.iter().copied());
    words.chain(ports.iter().copied()).map(|w| w.replace('@', dir.to_str().unwrap())).collect()
}

/// A switch with its API in a directory of its own; killed if it does not end by itself.
pub struct Switch {
    child: Child,
    pub dir: tempfile::TempDir,
    pub said: Vec<String>,
}

impl Switch {
    /// `ports` are addresses with `@` for the directory.
    pub fn start(ports: &[&str]) -> Self {
        Self::with(&[], ports, &[])
    }

    pub fn with(args: &[&str], ports: &[&str], env: &[(&str, &Path)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(&words(dir.path(), args, ports));
        for (key, value) in env {
            command.env(key, value);
        }
        Self::spawn(command, dir)
    }

    /// Started by another program, which becomes it: `wrapper` is that program and its words. Its
    /// log is the file `log` in `dir`.
    pub fn within(dir: tempfile::TempDir, wrapper: &[&str], args: &[&str], ports: &[&str]) -> Self {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(words(dir.path(), args, ports));
        command.env_remove("NOTIFY_SOCKET").env("VMLAN_LOG", "warn").stdin(Stdio::null());
        let log = std::fs::File::options().create(true).append(true).open(dir.path().join("log"));
        command.stderr(log.unwrap());
        Self::spawn(command, dir)
    }

    /// Its directory, after its end.
    pub fn into_dir(mut self) -> tempfile::TempDir {
        self.wait();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    fn spawn(mut command: Command, dir: tempfile::TempDir) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        // Its last line names the API; then it is ready.
        let mut said = Vec::new();
        for line in out.lines().map_while(Result::ok) {
            let last = line.starts_with("api ");
            said.push(line);
            if last {
                break;
            }
        }
        assert!(said.last().is_some_and(|l| l.starts_with("api ")), "{said:?}");
        Self { child, dir, said }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn api(&self) -> String {
        self.path("api.sock").to_str().unwrap().to_owned()
    }

    /// An address with `@` for the directory.
    pub fn here(&self, text: &str) -> String {
        text.replace('@', self.dir.path().to_str().unwrap())
    }

    /// Runs another command against it.
    pub fn run(&self, args: &[&str]) -> Output {
        vmlan(&[args, &["--api", &self.api()]].concat())
    }

    /// Runs another command that has to succeed; what it printed.
    pub fn ask(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[args, &["--json"]].concat())).unwrap()
    }

    pub fn fails(&self, args: &[&str], code: i32, said: &[&str]) {
        fails(&[args, &["--api", &self.api()]].concat(), code, said);
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }

    /// The exit code, waited for.
    pub fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(180);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the switch does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Names of all files in its directory.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that serves: it may not be the one that was started.
pub fn pid(switch: &Switch) -> u64 {
    serving(switch).expect("nobody serves")
}

/// The process that serves once it is another one than `before`.
pub fn next(switch: &Switch, before: u64) -> u64 {
    let mut now = None;
    until("the next switch", || {
        now = serving(switch).filter(|pid| *pid != before);
        now.is_some()
    });
    now.unwrap()
}

/// The process that says that it serves. `None`: there is none, or it is dying.
fn serving(switch: &Switch) -> Option<u64> {
    use std::io::{Read as _, Write as _};
    let mut socket = std::os::unix::net::UnixStream::connect(switch.path("api.sock")).ok()?;
    let ask = b"GET /v1/process HTTP/1.1\r\nhost: vmlan\r\nconnection: close\r\n\r\n";
    socket.write_all(ask).ok()?;
    let mut said = String::new();
    socket.read_to_string(&mut said).ok()?;
    let process: serde_json::Value = serde_json::from_str(said.split("\r\n\r\n").nth(1)?).ok()?;
    process["pid"].as_u64()
}

/// How often a thread of a process slept of its own will.
pub fn sleeps(pid: u32, thread: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let read = |dir: &Path, name| std::fs::read_to_string(dir.join(name)).unwrap();
    let of = |dir: PathBuf| (read(&dir, "comm").trim() == thread).then(|| read(&dir, "status"));
    let status = tasks.map(|t| t.unwrap().path()).find_map(of).expect("no such thread");
    let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
    line.rsplit('\t').next().unwrap().parse().unwrap()
}

/// Polls until `ready`.
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(180);
    while !ready() {
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A guest that runs beside the test.
pub struct Guest(Child);

impl Guest {
    pub fn start(args: &[&str]) -> Self {
        let words = [&["pkt-gen"], args].concat();
        Self(command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
