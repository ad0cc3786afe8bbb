//! CPU time from /proc (proc(5)).

use std::fs;

use super::Error;

/// CPU time of a process so far, all its threads together, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    /// In user space.
    pub user: f64,
    /// In the kernel on its behalf.
    pub system: f64,
}

impl Cpu {
    /// Both together.
    pub fn total(self) -> f64 {
        self.user + self.system
    }

    /// Of process `pid`: fields `utime` and `stime` of /proc/PID/stat.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has ended.
    pub fn of(pid: u32) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
        let (user, system) =
            parse(&text).ok_or_else(|| Error::Failed(format!("{path} makes no sense")))?;
        Ok(Self { user: seconds(user), system: seconds(system) })
    }
}

/// CPU time that the whole machine has spent working so far (stolen and idle time left out), in seconds.
///
/// # Errors
/// [`Error::Io`] when /proc is not mounted.
pub fn machine_busy() -> Result<f64, Error> {
    let text = fs::read_to_string("/proc/stat").map_err(Error::io("read /proc/stat"))?;
    let busy =
        parse_busy(&text).ok_or_else(|| Error::Failed("/proc/stat makes no sense".into()))?;
    Ok(seconds(busy))
}

/// The pids of the kernel threads that take over network work when it becomes too much for the interrupted process.
pub fn ksoftirqd() -> Vec<u32> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("ksoftirqd/"))
        })
        .collect()
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

// The command name in field 2 may hold spaces and brackets: fields are counted from the last bracket.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

// Columns: user nice system idle iowait irq softirq steal guest guest_nice.
fn parse_busy(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().map(|&i| columns.get(i)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 9 0 0 0 123 45 0 0 20 0 1 0 7 8 9";
        assert_eq!(parse(stat), Some((123, 45)));
        assert_eq!(parse("42 (short"), None);
    }

    #[test]
    fn idle_and_stolen_time_are_no_work() {
        let stat = "cpu  10 20 30 1000 2000 1 2 3000 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_busy(stat), Some(63));
    }
}
