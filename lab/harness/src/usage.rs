//! What a process uses, from `/proc`.

use std::fs::{read_dir, read_to_string};
use std::time::{Duration, Instant};

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

/// What a process has used of the CPU in each of a few stretches of `silence`, until it was `little`: what was still under way
/// when the first began, or is the machine's doing, is not in all of them. Returns the last, and how long it took.
///
/// # Panics
/// When the process is gone.
pub fn least(
    pid: u32,
    silence: Duration,
    little: impl Fn(&Cpu, Duration) -> bool,
) -> (Cpu, Duration) {
    let mut tries = 3;
    loop {
        let (before, since) = (cpu(pid), Instant::now());
        std::thread::sleep(silence);
        let (after, time) = (cpu(pid), since.elapsed());
        let used = Cpu {
            ticks: after.ticks - before.ticks,
            thread_ticks: after.thread_ticks - before.thread_ticks,
            runs: after.runs - before.runs,
            nanos: after.nanos - before.nanos,
        };
        tries -= 1;
        if little(&used, time) || tries == 0 {
            return (used, time);
        }
        println!("{used:?} in {time:.1?}: once more");
    }
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
