//! The processes beside a switch, or a test: spawners and keepers.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// What a process's first spawner has forked: all of them are of its session, whoever lives still.
#[derive(Clone, Copy, Debug)]
pub struct Family(u32);

impl Family {
    /// That of process `parent`. To be asked while its first spawner lives.
    pub fn of(parent: u32) -> Option<Self> {
        let is_first = |pid: &u32| field(*pid, 1) == Some(parent) && is_called(*pid, "spawner");
        all_processes().find(is_first).map(Self)
    }

    /// Its processes `vmlan-NAME`.
    pub fn named(self, name: &str) -> Vec<u32> {
        let is = |pid: &u32| field(*pid, 3) == Some(self.0) && is_called(*pid, name) && lives(*pid);
        all_processes().filter(is).collect()
    }
}

/// Ends processes by SIGKILL, and waits for it.
pub fn kill9(pids: &[u32]) {
    for pid in pids {
        // It may have ended by itself.
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
    while pids.iter().any(|pid| lives(*pid)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_called(pid: u32, name: &str) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    comm.is_ok_and(|comm| comm.trim().strip_prefix("vmlan-") == Some(name))
}

fn stat(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// A field of /proc/PID/stat, counted from the state.
fn field(pid: u32, n: usize) -> Option<u32> {
    stat(pid)?.split(' ').nth(n)?.parse().ok()
}

/// True until it is a zombie, which has its name still.
fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with('Z'))
}

fn all_processes() -> impl Iterator<Item = u32> {
    let dirs = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    dirs.filter_map(|dir| dir.file_name().to_str()?.parse().ok())
}
