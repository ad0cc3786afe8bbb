//! `[switch]`: how the switch itself runs.

use std::path::PathBuf;

use serde::Deserialize;

use crate::cpu_list::CpuList;

/// The table `[switch]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SwitchTable {
    /// Worker threads.
    pub workers: Option<u16>,
    /// The CPUs that they run on, one on each.
    pub cpus: Option<CpuList>,
    /// Where the API listens.
    pub api: Option<PathBuf>,
    /// Permission bits of the API's socket, in octal.
    pub api_mode: Option<String>,
    /// Microseconds a worker looks for frames before it sleeps.
    pub spin: Option<u32>,
    /// Seconds an address is remembered.
    pub ageing: Option<u32>,
    /// Microseconds a sender waits for a full receiver.
    pub full_wait: Option<u32>,
    /// Addresses the forwarding table can hold.
    pub fdb_entries: Option<u32>,
    /// Seconds for which VMs' connections outlive the switch.
    pub hold_for: Option<u32>,
    /// Whether the switch gives up the rights that it does not need.
    pub sandbox: Option<OnOff>,
    /// Directories in which sockets and capture files may be made later.
    #[serde(default)]
    pub allow_dir: Vec<PathBuf>,
}

/// A choice of `on` and `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum OnOff {
    On,
    Off,
}

impl OnOff {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl std::str::FromStr for OnOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let both = [Self::On, Self::Off].into_iter();
        let found = both.into_iter().find(|word| word.name() == text);
        found.ok_or_else(|| "`on` or `off` is wanted".to_owned())
    }
}

/// What a number of `[switch]` can be.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Range {
    pub key: &'static str,
    pub least: u32,
    pub most: u32,
}

impl Range {
    /// `workers`
    pub const WORKERS: Self = Self { key: "workers", least: 1, most: 64 };
    /// `spin`
    pub const SPIN: Self = Self { key: "spin", least: 0, most: 1_000_000 };
    /// `ageing`
    pub const AGEING: Self = Self { key: "ageing", least: 1, most: 1_000_000 };
    /// `full-wait`
    pub const FULL_WAIT: Self = Self { key: "full-wait", least: 0, most: 10_000_000 };
    /// `fdb-entries`
    pub const FDB_ENTRIES: Self = Self { key: "fdb-entries", least: 64, most: 1 << 26 };

    /// `hold-for`
    pub const HOLD_FOR: Self = Self { key: "hold-for", least: 1, most: 86_400 };

    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WORKERS,
        Self::SPIN,
        Self::AGEING,
        Self::FULL_WAIT,
        Self::FDB_ENTRIES,
        Self::HOLD_FOR,
    ];

    /// The number, if it is in range.
    ///
    /// # Errors
    /// What is wanted instead.
    pub fn check(self, n: u32) -> Result<u32, String> {
        let Self { key, least, most } = self;
        let wrong = || format!("{key}={n}: a number from {least} to {most} is wanted");
        (least..=most).contains(&n).then_some(n).ok_or_else(wrong)
    }
}

impl SwitchTable {
    /// Its numbers, each with what it can be.
    pub fn numbers(&self) -> [(Range, Option<u32>); 6] {
        [
            (Range::WORKERS, self.workers.map(u32::from)),
            (Range::SPIN, self.spin),
            (Range::AGEING, self.ageing),
            (Range::FULL_WAIT, self.full_wait),
            (Range::FDB_ENTRIES, self.fdb_entries),
            (Range::HOLD_FOR, self.hold_for),
        ]
    }
}
