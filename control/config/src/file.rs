//! The configuration file: TOML with the same words as the command line.
//!
//! ```toml
//! [switch]
//! workers = 2                     # threads that move frames
//! api = "/run/vmlan/api.sock"
//! api-mode = "0600"
//! spin = 20                       # microseconds a worker looks for frames before it sleeps
//! ageing = 300                    # seconds an address is remembered
//! full-wait = 100                 # microseconds a sender waits for a full receiver
//! fdb-entries = 65536             # addresses the table can hold
//! sandbox = "on"                  # rights that are not needed are given up
//! allow-dir = ["/srv/captures"]   # where sockets and files may be made while it runs
//!
//! [port.vm1]
//! address = "vhost-user:/run/vm1.sock,queues=2"
//! from_rate = "1Gbit"             # keys may stand beside the address as well
//!
//! [port.vm2]                      # the same, in parts
//! kind = "vhost-user"
//! place = "/run/vm2.sock"
//! queues = 2
//!
//! [port.capture]
//! kind = "pcap"
//! place = "/tmp/vm1.pcapng"
//! ports = ["vm1", "vm2"]          # or "vm1+vm2"
//!
//! [port.vm3]
//! kind = "vhost-user"
//! place = "/run/vm3.sock"
//! macs = ["52:54:00:00:00:03"]    # what the port may do: the same words, lists as arrays
//! trunk = [1, "10-20"]
//! to_rate = "2.5Gbit"
//! from_limit = "tenant1"
//!
//! [limit.tenant1]                 # shared by all ports that name it
//! rate = "1Gbit"
//! frames = "100k"
//!
//! [group.web]                     # exists even without a member
//!
//! [sflow]
//! collector = "10.0.0.9:6343"
//! sampling = 1000
//! ```
//!
//! Every error names file and line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::address::{AddressError, LimitTable, NamedAddress, PortName, SflowTable, rule_name};

mod lines;
mod message;
mod switch;
mod table;
#[cfg(test)]
mod tests;
use lines::{Lines, line_of, line_of_key};
use message::plain_message;
pub use switch::{OnOff, Range, SwitchTable};
use table::{Fields, pairs, port};

/// What a configuration file says. What it leaves out is `None`.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Config {
    pub switch: SwitchTable,
    /// `[port.NAME]`, sorted by name.
    pub ports: Vec<NamedAddress>,
    pub limits: BTreeMap<PortName, LimitTable>,
    pub groups: BTreeSet<PortName>,
    pub sflow: Option<SflowTable>,
    lines: Lines,
}

/// A short file, for `--help`.
pub const EXAMPLE: &str = r#"[switch]
workers = 2
[port.vm1]
kind = "vhost-user"
place = "/tmp/vm1.sock"
macs = ["52:54:00:00:00:01"]
from_limit = "tenant1"
[port.capture]
address = "pcap:/tmp/vm1.pcapng,ports=vm1"
[limit.tenant1]
rate = "1Gbit"
"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    switch: SwitchTable,
    #[serde(default)]
    port: BTreeMap<String, Spanned<Fields>>,
    #[serde(default)]
    limit: BTreeMap<String, Spanned<Fields>>,
    #[serde(default)]
    group: BTreeMap<String, Spanned<Fields>>,
    sflow: Option<Spanned<Fields>>,
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ConfigError {
    #[error("{path}:{line}: {message}", path = path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("{path}:{line}: {table}: {source}", path = path.display())]
    Table { path: PathBuf, line: usize, table: String, source: Box<TableError> },
}

/// What is wrong with a table.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TableError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(
        "'{0}' stands in the address already: leave it out, or write kind, place and keys and no \
            address"
    )]
    Both(&'static str),
    #[error(
        "group is the one group of the host that owns the socket file: did you mean 'member' \
            (groups that the port belongs to)?"
    )]
    GroupList,
    #[error(
        "'{0}' is missing: say address = \"KIND:PLACE...\", or kind = \"...\" and place = \"...\""
    )]
    Missing(&'static str),
    #[error("{0} wants text in quotes")]
    NotText(&'static str),
    #[error("{0}: write a list like [\"{1}\", \"{2}\"] or text like \"{1}+{2}\"")]
    NotList(String, &'static str, &'static str),
    #[error("{0}: write true, false, a number or text in quotes")]
    NotValue(String),
    #[error("'{0}' is not a key of a group: leave it out, and write member = \"{1}\" at its ports")]
    Group(String, String),
}

impl Config {
    /// Parses `text`; `path` is for messages.
    ///
    /// # Errors
    /// [`ConfigError`], which names file and line and says what to do.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|e| ConfigError::Syntax {
            path: path.into(),
            line: line_of(text, e.span().map_or(0, |s| s.start)),
            message: plain_message(e.message(), text, e.span().map_or(0, |s| s.start)),
        })?;
        check_numbers(&file.switch, text, path)?;
        let mut config = Self { lines: Lines::new(text, path), ..Self::default() };
        for (name, table) in file.port {
            let named = config.read_table(&format!("port {name}"), table, |f| port(&name, f))?;
            config.ports.push(named);
        }
        for (given, table) in file.limit {
            let limit = config.read_table(&format!("limit {given}"), table, |fields| {
                Ok((rule_name(&given)?, LimitTable::new(&pairs(fields)?)?))
            })?;
            config.limits.extend([limit]);
        }
        for (given, table) in file.group {
            let read = |fields: Fields| match fields.into_keys().next() {
                Some(key) => Err((Some(key.clone()), TableError::Group(key, given.clone()))),
                None => Ok(rule_name(&given)?),
            };
            let group = config.read_table(&format!("group {given}"), table, read)?;
            config.groups.insert(group);
        }
        if let Some(table) = file.sflow {
            let read = |fields| Ok(SflowTable::new(&pairs(fields)?)?);
            config.sflow = Some(config.read_table("[sflow]", table, read)?);
        }
        config.switch = file.switch;
        Ok(config)
    }

    /// Reads one table, and remembers where it and its keys stand.
    fn read_table<T>(
        &mut self,
        table: &str,
        fields: Spanned<Fields>,
        read: impl FnOnce(Fields) -> Result<T, table::TableFailure>,
    ) -> Result<T, ConfigError> {
        self.lines.add(table, &fields);
        read(fields.into_inner()).map_err(|(key, source)| ConfigError::Table {
            path: self.lines.path().into(),
            line: self.lines.find(table, key.as_deref()).unwrap_or(1),
            table: table.into(),
            source: Box::new(source),
        })
    }

    /// The line of a port; one that does not stand here comes after all.
    pub fn line_of_port(&self, port: &PortName) -> usize {
        self.lines.find(&format!("port {port}"), None).unwrap_or(usize::MAX)
    }

    /// `FILE:LINE` of a port, or of one of its keys; `None`: the port does not stand here.
    pub fn place_of_port(&self, port: &PortName, key: Option<&str>) -> Option<String> {
        let line = self.lines.find(&format!("port {port}"), key)?;
        Some(format!("{}:{line}", self.lines.path().display()))
    }

    /// `FILE:LINE` of a key of `[switch]`.
    pub fn place_in_switch(&self, key: &str) -> String {
        let line = self.lines.find("switch", Some(key)).unwrap_or(1);
        format!("{}:{line}", self.lines.path().display())
    }
}

/// Numbers of `[switch]` that are out of range.
fn check_numbers(switch: &SwitchTable, text: &str, path: &Path) -> Result<(), ConfigError> {
    let mut wrong = switch.numbers().into_iter().filter_map(|(range, n)| {
        let message = range.check(n?).err()?;
        Some((range.key, message))
    });
    let Some((key, message)) = wrong.next() else { return Ok(()) };
    let line = line_of_key(text, key).unwrap_or(1);
    Err(ConfigError::Syntax { path: path.into(), line, message })
}
