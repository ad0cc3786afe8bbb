//! What processes and the machine use, from /proc (proc(5)).

use std::fs::{read_dir, read_to_string};
use std::time::{Duration, Instant};

use crate::{HarnessError, Result};

/// CPU time that all threads of a process, living and gone, have used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user space.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

impl CpuTime {
    /// Of process `pid`, in steps of a clock tick (mostly 10 ms).
    ///
    /// # Errors
    /// [`HarnessError::Io`] when the process is gone.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = read_to_string(&path).map_err(HarnessError::io(format!("read {path}")))?;
        let unclear = || HarnessError::Garbled { what: path, heard: text.clone() };
        let (user, system) = ticks(&text).ok_or_else(unclear)?;
        Ok(Self { user: duration(user), system: duration(system) })
    }

    /// Both together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }
}

/// CPU time to the nanosecond, of the threads of a process that still run; `None` if the process is
/// gone.
pub fn run_time(pid: u32) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for thread in read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread that ends meanwhile is not a living one.
        let Ok(sched) = read_to_string(thread.path().join("schedstat")) else { continue };
        sum += Duration::from_nanos(on_cpu(&sched)?);
    }
    Some(sum)
}

/// How long each thread of a process, those that still run, wanted a CPU so far, had it or waited
/// for it; `None` if the process is gone.
pub fn wanted(pid: u32) -> Option<Vec<(u32, Duration)>> {
    let mut all = Vec::new();
    for thread in read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
        let sched = read_to_string(thread.path().join("schedstat")).ok();
        let ns = sched.and_then(|text| {
            let mut columns = text.split_whitespace().map(str::parse::<u64>);
            Some(columns.next()?.ok()?.saturating_add(columns.next()?.ok()?))
        });
        // A thread that ends meanwhile is not a living one.
        all.extend(id.zip(ns.map(Duration::from_nanos)));
    }
    Some(all)
}

/// Times that threads of a process, those that still run, went to sleep of their own accord; `None`
/// if the process is gone.
pub fn sleeps(pid: u32) -> Option<u64> {
    let tasks = read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    // A thread that ends meanwhile is not a living one.
    let all = tasks.filter_map(|task| read_to_string(task.path().join("status")).ok());
    Some(all.map(|text| field(&text, "voluntary_ctxt_switches:")).sum())
}

/// What the threads of a process, those that still run, have used of the CPU: to the nanosecond,
/// for in ticks of 10 ms a microsecond can be a whole one; and in times that they went to sleep of
/// their own accord, not in times that they were put on a CPU, which neighbours can take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// On a CPU.
    pub time: Duration,
    /// Times that one went to sleep: as often it was woken.
    pub wakeups: u64,
}

impl Cpu {
    /// Of process `pid` so far; `None` if it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { time: run_time(pid)?, wakeups: sleeps(pid)? })
    }
}

/// What a process has used of the CPU so far.
///
/// # Panics
/// When the process is gone.
pub fn cpu(pid: u32) -> Cpu {
    Cpu::of(pid).expect("a living process")
}

/// What a process has used of the CPU in each of a few stretches of `silence`, until it was
/// `little`: what was still under way when the first began, or is the machine's doing, is not in
/// all of them. Returns the last, and how long it took.
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
        // A thread that has ended takes what it used along.
        let used = Cpu {
            time: after.time.saturating_sub(before.time),
            wakeups: after.wakeups.saturating_sub(before.wakeups),
        };
        tries -= 1;
        if little(&used, time) || tries == 0 {
            return (used, time);
        }
        println!("{used:?} in {time:.1?}: once more");
    }
}

/// CPU time that the whole machine has spent working so far, stolen and idle time left out.
///
/// # Errors
/// [`HarnessError::Io`] when /proc is not mounted.
pub fn machine_busy() -> Result<Duration> {
    let text = read_to_string("/proc/stat").map_err(HarnessError::io("read /proc/stat"))?;
    let unclear = || HarnessError::Garbled { what: "/proc/stat".into(), heard: text.clone() };
    busy(&text).map(duration).ok_or_else(unclear)
}

/// CPU time that the hypervisor gave to others while this machine had work to do.
///
/// # Errors
/// [`HarnessError::Io`] when /proc is not mounted.
pub fn machine_stolen() -> Result<Duration> {
    let text = read_to_string("/proc/stat").map_err(HarnessError::io("read /proc/stat"))?;
    let unclear = || HarnessError::Garbled { what: "/proc/stat".into(), heard: text.clone() };
    columns(&text).and_then(|all| all.get(7).copied()).map(duration).ok_or_else(unclear)
}

/// CPU time of this process and of all that it has started: what lives, and what it has waited for.
///
/// # Errors
/// [`HarnessError::Io`] when /proc is not mounted.
pub fn family_time() -> Result<Duration> {
    let all = read_dir("/proc").map_err(HarnessError::io("read /proc"))?.flatten();
    // One that ends meanwhile is in its parent's account.
    let stats = all.filter_map(|dir| read_to_string(dir.path().join("stat")).ok());
    let all: Vec<_> = stats.filter_map(|stat| Relative::parse(&stat)).collect();
    Ok(duration(family_ticks(std::process::id(), &all)))
}

/// The process ids of the kernel threads that take over network work when it becomes too much for
/// the interrupted process.
pub fn ksoftirqd() -> Vec<u32> {
    let Ok(all) = read_dir("/proc") else { return Vec::new() };
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("ksoftirqd/"))
        })
        .collect()
}

/// Resident memory of a process, in KiB, shared guest memory not counted (`RssAnon`); 0 if it is
/// gone.
pub fn rss_kib(pid: u32) -> u64 {
    status(pid, "RssAnon:")
}

/// Address space of a process, in KiB (`VmSize`): guest memory that stays mapped shows here. 0 if
/// it is gone.
pub fn mapped_kib(pid: u32) -> u64 {
    status(pid, "VmSize:")
}

/// The descriptors that a process has open; 0 if it is gone.
pub fn descriptors(pid: u32) -> usize {
    read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Where each thread of a process is: a line with its name, and what it sleeps in.
pub fn threads(pid: u32) -> String {
    let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let all = tasks.map(|task| {
        let read = |name| read_to_string(task.path().join(name)).unwrap_or_default();
        format!("\n  {} {} {}", read("comm").trim(), read("wchan").trim(), read("syscall").trim())
    });
    all.collect()
}

fn status(pid: u32, key: &str) -> u64 {
    field(&read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(), key)
}

fn field(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Fields 14 and 15, utime and stime. The name in field 2 may hold spaces and brackets: fields are
/// counted from the last bracket.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// What is asked of any process.
struct Relative {
    pid: u32,
    parent: u32,
    /// Its own, and of its children that were waited for.
    ticks: u64,
}

impl Relative {
    /// Fields 1, 4 and 14 to 17: utime, stime, cutime, cstime.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, fields) = (stat.split(' ').next()?, stat.rsplit_once(')')?.1);
        let fields: Vec<_> = fields.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok());
        Some(Self {
            pid: pid.parse().ok()?,
            parent: fields[1].parse().ok()?,
            ticks: ticks.sum::<Option<_>>()?,
        })
    }
}

/// Of `first` and its descendants.
fn family_ticks(first: u32, all: &[Relative]) -> u64 {
    let (mut members, mut done) = (vec![first], 0);
    while let Some(&parent) = members.get(done) {
        done += 1;
        for child in all.iter().filter(|one| one.parent == parent) {
            // Numbers are used again while /proc is read: there may be a circle.
            if !members.contains(&child.pid) {
                members.push(child.pid);
            }
        }
    }
    all.iter().filter(|one| members.contains(&one.pid)).map(|one| one.ticks).sum()
}

/// Time on the CPU, before that in the queue and the number of slices
/// (Documentation/scheduler/sched-stats.rst).
fn on_cpu(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Columns: user nice system idle iowait irq softirq steal guest guest_nice.
fn columns(stat: &str) -> Option<Vec<u64>> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    Some(line.split_whitespace().map_while(|field| field.parse().ok()).collect())
}

fn busy(stat: &str) -> Option<u64> {
    let columns = columns(stat)?;
    [0, 1, 2, 5, 6].iter().map(|&i| columns.get(i)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 9 0 0 0 123 45 0 0 20 0 1 0 7 8 9";
        assert_eq!(ticks(stat), Some((123, 45)));
        assert_eq!(ticks("42 (short"), None);
        assert!(Relative::parse("42 (a) S 1 2").is_none());
        assert_eq!(on_cpu("700 800 9\n"), Some(700));
        assert_eq!(on_cpu(""), None);
    }

    #[test]
    fn a_family_is_whoever_was_started_and_lives_or_was_waited_for() {
        let stats = [(9, 1, 1000), (12, 11, 4), (10, 9, 1), (13, 1, 2000), (11, 10, 2)];
        let all = stats.map(|(pid, parent, own)| {
            let stat = format!("{pid} (a b) S {parent} 0 0 0 -1 0 0 0 0 0 {own} 10 100 0 20 0 1");
            Relative::parse(&stat).unwrap()
        });
        assert_eq!(family_ticks(10, &all), 3 * 110 + 7);
        assert_eq!(family_ticks(12, &all), 114);
    }

    #[test]
    fn idle_and_stolen_time_are_not_work() {
        let stat = "cpu  10 20 30 1000 2000 1 2 3000 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy(stat), Some(63));
        assert_eq!(columns(stat).unwrap()[7], 3000);
    }

    #[test]
    fn our_own_time_grows_with_our_work() {
        let pid = std::process::id();
        let used = || CpuTime::of(pid).unwrap().total();
        let (before, exact, machine) = (used(), run_time(pid).unwrap(), machine_busy().unwrap());
        let mut sum = 0u64;
        while used() < before + Duration::from_millis(30) {
            sum = (0..100_000).fold(sum, |s, n: u64| std::hint::black_box(s ^ n));
        }
        assert!(run_time(pid).unwrap() > exact && machine_busy().unwrap() >= machine);
        assert!(rss_kib(pid) > 0 && mapped_kib(pid) > 0 && descriptors(pid) > 0);
        assert!(!threads(pid).is_empty());
    }

    #[test]
    fn a_process_that_is_gone_uses_nothing() {
        let gone = u32::MAX;
        assert!(CpuTime::of(gone).is_err() && run_time(gone).is_none());
        assert_eq!((rss_kib(gone), mapped_kib(gone), descriptors(gone)), (0, 0, 0));
        assert_eq!(threads(gone), "");
    }
}
