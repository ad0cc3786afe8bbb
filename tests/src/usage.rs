//! What a process uses, from `/proc`.

use std::fs::{read_dir, read_to_string};

/// CPU time of all threads, living and gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Clock ticks (of 10 ms) in user mode and in the kernel: utime + stime of `/proc/PID/stat`.
    pub ticks: u64,
    /// The same, summed over the living threads one by one.
    pub thread_ticks: u64,
    /// Times that a thread was put on a CPU (`schedstat`), living threads.
    pub runs: u64,
    /// Nanoseconds on a CPU (`schedstat`), living threads.
    pub nanos: u64,
}

fn ticks(stat: &str) -> u64 {
    // The name may hold anything; what follows its closing parenthesis are fields 3 and on.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let word = |n: usize| fields.split_whitespace().nth(n).and_then(|w| w.parse::<u64>().ok());
    word(11).zip(word(12)).map_or(0, |(user, system)| user + system)
}

/// CPU time of a process.
///
/// # Panics
/// When the process is gone.
#[must_use]
pub fn cpu(pid: u32) -> Cpu {
    let stat = read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
    let mut sum = Cpu { ticks: ticks(&stat), thread_ticks: 0, runs: 0, nanos: 0 };
    for thread in read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| read_to_string(thread.path().join(name)).unwrap_or_default();
        sum.thread_ticks += ticks(&read("stat"));
        let sched = read("schedstat");
        let mut words = sched.split_whitespace().map(|w| w.parse::<u64>().unwrap_or(0));
        sum.nanos += words.next().unwrap_or(0);
        sum.runs += words.nth(1).unwrap_or(0);
    }
    sum
}

/// Resident memory of a process, in KiB, shared guest memory not counted (`RssAnon`).
#[must_use]
pub fn rss_kib(pid: u32) -> u64 {
    status(pid, "RssAnon:")
}

/// Address space of a process, in KiB (`VmSize`): guest memory that stays mapped shows here.
#[must_use]
pub fn mapped_kib(pid: u32) -> u64 {
    status(pid, "VmSize:")
}

fn status(pid: u32, key: &str) -> u64 {
    let text = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
