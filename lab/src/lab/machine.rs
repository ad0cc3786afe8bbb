//! Where a figure was taken.

use std::fs;

use serde::Serialize;

/// Stands beside every figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The CPU's model.
    pub(crate) cpu: String,
    /// Cores this program may use.
    pub(crate) cores: usize,
    /// Release of the running kernel.
    pub(crate) kernel: String,
    /// The commit this program was built from.
    pub(crate) commit: &'static str,
}

impl Machine {
    /// Asks the system; what it does not tell is `unknown`.
    pub(crate) fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let of = |field: &str| {
            let mut lines = info.lines();
            let found = lines.find_map(|l| l.strip_prefix(field)?.split_once(": "));
            found.map_or("unknown", |(_, value)| value.trim()).to_owned()
        };
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            cpu: format!("{}, model {}", of("model name"), of("model\t")),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel },
            commit: crate::COMMIT,
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, kernel, commit } = self;
        write!(f, "{cores} cores of {cpu}; Linux {kernel}; commit {commit}")
    }
}
