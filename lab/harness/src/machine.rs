//! Where a figure was taken.

use std::{fmt, fs};

use serde::Serialize;

/// Stands beside every figure.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The CPU's model.
    pub cpu: String,
    /// Cores this program may use.
    pub cores: usize,
    /// Release of the running kernel.
    pub kernel: String,
    /// The commit that was measured.
    pub commit: String,
}

impl Machine {
    /// Asks the system; what it does not tell is `unknown`.
    pub fn read(commit: impl Into<String>) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            cpu: format!("{}, model {}", field(&info, "model name"), field(&info, "model\t")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel },
            commit: commit.into(),
        }
    }
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let found = info.lines().find_map(|line| line.strip_prefix(name)?.split_once(": "));
    found.map_or("unknown", |(_, value)| value.trim())
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, commit } = self;
        write!(f, "{cores} cores of {cpu}; Linux {kernel}; commit {commit}")
    }
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn the_model_is_not_its_name() {
        let info = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: A CPU\n";
        assert_eq!((field(info, "model\t"), field(info, "model name")), ("143", "A CPU"));
        assert_eq!(field("", "model name"), "unknown");
    }
}
