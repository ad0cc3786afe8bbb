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
//!
//! [port.vm1]
//! address = "vhost-user:/run/vm1.sock,queues=2"
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
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Table};

use crate::address::{Address, AddressError, Kind, NamedAddress, PortName};

/// What a configuration file says. What it leaves out is `None`.
#[derive(Debug, Default)]
pub struct Config {
    /// `[switch]`
    pub switch: SwitchTable,
    /// `[port.NAME]`, sorted by name.
    pub ports: Vec<NamedAddress>,
}

/// A short file, for `--help`.
pub(crate) const EXAMPLE: &str = r#"[switch]
workers = 2
[port.vm1]
address = "vhost-user:/tmp/vm1.sock"
[port.capture]
kind = "pcap"
place = "/tmp/vm1.pcapng"
ports = ["vm1"]
"#;

/// Numbers of `[switch]`, each with the least and the most it can be.
pub(crate) const RANGES: [(&str, u32, u32); 5] = [
    ("workers", 1, 64),
    ("spin", 0, 1_000_000),
    ("ageing", 1, 1_000_000),
    ("full-wait", 0, 10_000_000),
    ("fdb-entries", 64, 1 << 26),
];

/// The table `[switch]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SwitchTable {
    /// Worker threads.
    pub workers: Option<u16>,
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    switch: SwitchTable,
    #[serde(default)]
    port: BTreeMap<String, Spanned<Table>>,
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    #[error("{path}: {source}: give a file that can be read", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}:{line}: {message}", path = path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("{path}:{line}: port {name}: {source}", path = path.display())]
    Port { path: PathBuf, line: usize, name: String, source: PortTableError },
}

/// What is wrong with a table `[port.NAME]`.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PortTableError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("say either address = \"KIND:PLACE...\" or kind, place and keys, not both")]
    Both,
    #[error(
        "'{0}' is missing: say address = \"KIND:PLACE...\", or kind = \"...\" and place = \"...\""
    )]
    Missing(&'static str),
    #[error("{0} wants text in quotes")]
    NotText(&'static str),
    #[error("ports: write [\"vm1\", \"vm2\"] or \"vm1+vm2\"")]
    NotNames,
    #[error("{0}: write true, false, a number or text in quotes")]
    NotValue(String),
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`], which names file, line and mend.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(&text, path)
    }

    /// Parses `text`; `path` is for messages.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|e| ConfigError::Syntax {
            path: path.into(),
            line: line_of(text, e.span().map_or(0, |s| s.start)),
            message: mend(e.message(), text, e.span().map_or(0, |s| s.start)),
        })?;
        let mut ports = Vec::new();
        for (name, table) in file.port {
            let at = table.span().start;
            let named = port(&name, table.into_inner()).map_err(|source| ConfigError::Port {
                path: path.into(),
                line: line_of(text, at),
                name,
                source,
            })?;
            ports.push(named);
        }
        Ok(Self { switch: file.switch, ports })
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|b| *b == b'\n').count()
}

/// toml's message in one line and in words of this file: it speaks of Rust's types.
fn mend(message: &str, text: &str, offset: usize) -> String {
    let line = text.lines().nth(line_of(text, offset) - 1).unwrap_or_default();
    let key = line.split_once('=').map_or("", |(key, _)| key.trim());
    let wanted = if let Some((_, least, most)) = RANGES.into_iter().find(|(name, ..)| *name == key)
    {
        format!("write {key} = a number from {least} to {most}")
    } else if message.contains("expected a map") || message.contains("expected struct") {
        r#"write [switch] and [port.NAME] on lines of their own, and below: address = "KIND:PLACE""#
            .into()
    } else if message.contains("expected a string") || message.contains("expected path string") {
        format!("write {key} = text in quotes")
    } else if message.contains("expected `switch` or `port`") {
        r#"write [port.NAME] and below: address = "KIND:PLACE""#.into()
    } else {
        return message.replace('\n', ", ");
    };
    let what = message.split(", expected").next().unwrap_or_default().replace('\n', ", ");
    format!("{what}: {wanted}")
}

fn port(name: &str, mut table: Table) -> Result<NamedAddress, PortTableError> {
    let name: PortName = name.parse()?;
    if let Some(address) = take_text(&mut table, "address")? {
        if !table.is_empty() {
            return Err(PortTableError::Both);
        }
        return Ok(NamedAddress { name, address: address.parse()? });
    }
    let kind: Kind =
        take_text(&mut table, "kind")?.ok_or(PortTableError::Missing("kind"))?.parse()?;
    let place = take_text(&mut table, "place")?.ok_or(PortTableError::Missing("place"))?;
    let mut address = Address::new(kind, &place)?;
    for (key, value) in table {
        let text = match value {
            toml::Value::Boolean(on) => if on { "on" } else { "off" }.to_owned(),
            toml::Value::Integer(n) => n.to_string(),
            toml::Value::String(text) => text,
            toml::Value::Array(names) if key == "ports" => {
                let names: Option<Vec<_>> = names.iter().map(toml::Value::as_str).collect();
                names.ok_or(PortTableError::NotNames)?.join("+")
            }
            _ => return Err(PortTableError::NotValue(key)),
        };
        address.set(&key, Some(&text))?;
    }
    Ok(NamedAddress { name, address: address.checked()? })
}

fn take_text(table: &mut Table, key: &'static str) -> Result<Option<String>, PortTableError> {
    match table.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(PortTableError::NotText(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("vmlan.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_file_says_the_same_with_the_same_words() {
        let config = parse(
            "[switch]\nworkers = 2\napi = '/run/x.sock'\nfull-wait = 50\n\
             [port.b]\nkind = 'vhost-user'\nplace = '/run/b.sock'\nqueues = 2\nconnect = true\nmode = '0660'\n\
             [port.a]\naddress = 'vhost-user:/run/a.sock,queues=2'\n",
        )
        .unwrap();
        assert_eq!(config.switch.workers, Some(2));
        assert_eq!(config.switch.full_wait, Some(50));
        let ports: Vec<_> =
            config.ports.iter().map(|p| format!("{}={}", p.name, p.address)).collect();
        assert_eq!(
            ports,
            [
                "a=vhost-user:/run/a.sock,queues=2",
                "b=vhost-user:/run/b.sock,connect,mode=0660,queues=2"
            ]
        );
        assert!(parse("").unwrap().ports.is_empty());
        let nic = parse(
            "[port.n]\nkind = 'vfio-user'\nplace = '/n'\nmodel = 'e1000'\ndoorbell = 'mapped'\n\
             poll_idle = '500us'\nirq_rate_max = 8000\nlink = 'down'\nmac = '02:00:00:00:00:01'\n",
        );
        assert_eq!(
            nic.unwrap().ports[0].address.to_string(),
            "vfio-user:/n,doorbell=mapped,irq_rate_max=8000,link=down,mac=02:00:00:00:00:01,model=e1000,poll_idle=500us"
        );
        assert_eq!(parse(EXAMPLE).unwrap().ports.len(), 2);
        let list = "[port.c]\nkind = 'pcap'\nplace = '/c'\nports = ['vm1', 'vm2']\n";
        assert_eq!(parse(list).unwrap().ports[0].address.to_string(), "pcap:/c,ports=vm1+vm2");
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, said) in [
            ("[switch]\nworker = 2\n", "vmlan.toml:2: unknown field `worker`"),
            (
                "[switch]\nworkers = 'two'\n",
                "vmlan.toml:2: invalid type: string \"two\": write workers = a number from 1 to 64",
            ),
            (
                "[switch]\nworkers = -1\n",
                "vmlan.toml:2: invalid value: integer `-1`: write workers = a number",
            ),
            (
                "[switch]\napi = 1\n",
                "vmlan.toml:2: invalid type: integer `1`: write api = text in quotes",
            ),
            ("[switch]\napi-mode = 1\n", "write api-mode = text in quotes"),
            ("port = 'vm1'\n", "[port.NAME] on lines of their own"),
            (
                "[port]\nvm1 = 'tap:x'\n",
                "vmlan.toml:2: invalid type: string \"tap:x\": write [switch] and [port.NAME]",
            ),
            ("vm1 = 'tap:x'\n", "vmlan.toml:1: unknown field `vm1`: write [port.NAME]"),
            ("switch = 2\n", "vmlan.toml:1: invalid type: integer `2`: write [switch]"),
            ("[ports.a]\naddress = 'tap:x'\n", "unknown field `ports`: write [port.NAME]"),
            ("[port.c]\nkind = 'pcap'\nplace = 'x'\nports = ['a', 1]\n", "port c: ports: write ["),
            (
                "\n[port.a]\naddress = 'tpa:x'\n",
                "port a: 'tpa' is no kind of port: did you mean 'tap'?",
            ),
            ("[port.a]\nkind = 'tap'\nplace = 'x'\nqueue = 2\n", "did you mean 'queues'?"),
            ("[port.a]\nkind = 'tap'\n", "'place' is missing"),
            ("[port.a]\naddress = 'tap:x'\nqueues = 2\n", "not both"),
            ("[port.a]\naddress = 7\n", "text in quotes"),
            ("[port.a]\nkind = 'tap'\nplace = 'x'\nqueues = [1]\n", "queues: write"),
            (
                "[port.n]\nkind = 'vfio-user'\nplace = '/n'\npoll_idle = 1\n",
                "port n: poll_idle=1: a time from 50us to 1s, like 1ms, is wanted",
            ),
            ("[port.'a b']\naddress = 'tap:x'\n", "is no name for a port"),
            ("[port.a]\n[port.a]\n", "duplicate key"),
            ("[switch\n", "vmlan.toml:1: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
