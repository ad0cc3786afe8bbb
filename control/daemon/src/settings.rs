//! What a switch is started with: the configuration file, overridden and added to by the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::{Address, Kind, NamedAddress, PortName, parse_mode};
use crate::api::default_path;
use crate::config::{Config, RANGES, SwitchTable};
use crate::exit::Failure;

/// What a switch is started with.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) workers: usize,
    pub(crate) spin: Duration,
    pub(crate) api: PathBuf,
    pub(crate) api_mode: u32,
    pub(crate) options: vmlan_switch::Options,
    pub(crate) ports: Vec<NamedAddress>,
}

impl Settings {
    /// `table` holds what the command line says and goes before what `config` says.
    pub(crate) fn new(
        config: Config,
        table: SwitchTable,
        ports: Vec<NamedAddress>,
    ) -> Result<Self, Failure> {
        let file = config.switch;
        let api = match table.api.or(file.api) {
            Some(path) => path,
            None => default_path()?,
        };
        let mode = table.api_mode.or(file.api_mode).unwrap_or_else(|| "0600".into());
        let wrong_mode =
            || Failure::Usage(format!("api-mode={mode}: an octal mode like 0660 is wanted"));
        let api_mode = parse_mode(&mode).ok_or_else(wrong_mode)?;
        let number = |key, given: Option<u32>, otherwise| {
            let n = given.unwrap_or(otherwise);
            let range = RANGES.into_iter().find(|(name, ..)| *name == key);
            let (_, least, most) = range.unwrap_or((key, 0, u32::MAX));
            let wrong =
                || Failure::Usage(format!("{key}={n}: a number from {least} to {most} is wanted"));
            (least..=most).contains(&n).then_some(n).ok_or_else(wrong)
        };
        let workers = number("workers", table.workers.or(file.workers).map(u32::from), 1)?;
        let spin = number("spin", table.spin.or(file.spin), 20)?;
        let ageing = number("ageing", table.ageing.or(file.ageing), 300)?;
        let mut options = vmlan_switch::Options {
            ageing: Duration::from_secs(ageing.into()),
            ..Default::default()
        };
        if let Some(wait) = table.full_wait.or(file.full_wait) {
            let wait = number("full-wait", Some(wait), wait)?;
            options.full_wait = Duration::from_micros(wait.into());
        }
        if let Some(n) = table.fdb_entries.or(file.fdb_entries) {
            let n = number("fdb-entries", Some(n), n)?;
            options.fdb_entries = n as usize;
        }
        let ports: Vec<_> = config.ports.into_iter().chain(ports).collect();
        check_names(&ports)?;
        for port in &ports {
            watched(port, ports.iter().map(|p| (&p.name, p.address.kind())))
                .map_err(|text| Failure::Usage(format!("port {}: {text}", port.name)))?;
        }
        Ok(Self {
            workers: workers as usize,
            spin: Duration::from_micros(spin.into()),
            api,
            api_mode,
            options,
            ports,
        })
    }
}

/// No name and no place may come twice: found out before anything is opened.
fn check_names(ports: &[NamedAddress]) -> Result<(), Failure> {
    for (i, port) in ports.iter().enumerate() {
        let place = |a: &Address| (a.kind(), a.place().to_owned());
        for other in &ports[..i] {
            if other.name == port.name {
                let text = format!("port {}: the name is given twice: choose another", port.name);
                return Err(Failure::Usage(text));
            }
            if place(&other.address) == place(&port.address) {
                let text = format!(
                    "port {}: '{}' is the place of port {} already: give it its own",
                    port.name,
                    port.address.place(),
                    other.name
                );
                return Err(Failure::Usage(text));
            }
        }
    }
    Ok(())
}

/// What a capture file is told to watch must be there: a name mistyped would make an empty file.
///
/// # Errors
/// The name that is not among `ports`, and those that are.
pub(crate) fn watched<'p>(
    file: &NamedAddress,
    ports: impl Iterator<Item = (&'p PortName, Kind)>,
) -> Result<(), String> {
    let there: Vec<_> =
        ports.filter(|(_, kind)| *kind != Kind::Pcap).map(|(name, _)| name.as_str()).collect();
    let mut wanted = file.address.ports().unwrap_or_default().iter();
    let Some(missing) = wanted.find(|name| !there.contains(&name.as_str())) else { return Ok(()) };
    let mend = match there.as_slice() {
        [] => "add it first, or leave ports= out to watch all that come".to_owned(),
        names => format!("the ports are {}", names.join(", ")),
    };
    Err(format!("ports={missing}: there is no such port: {mend}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn settings(file: &str, table: SwitchTable, ports: &[&str]) -> Result<Settings, String> {
        let config = Config::parse(file, Path::new("f")).unwrap();
        let ports = ports.iter().map(|p| p.parse().unwrap()).collect();
        Settings::new(config, table, ports).map_err(|e| e.to_string())
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let file = "[switch]\nworkers = 2\nspin = 5\napi = '/f'\n[port.a]\naddress = 'tap:a'\n";
        let table = SwitchTable { workers: Some(3), ..SwitchTable::default() };
        let s = settings(file, table, &["b=tap:b"]).unwrap();
        assert_eq!((s.workers, s.spin, s.api_mode), (3, Duration::from_micros(5), 0o600));
        assert_eq!(s.ports.len(), 2);
    }

    #[test]
    fn doubles_and_wild_numbers_are_refused() {
        let api = || SwitchTable { api: Some("/a".into()), ..SwitchTable::default() };
        let ports = |p: &[&str]| settings("[port.a]\naddress = 'tap:a'\n", api(), p).unwrap_err();
        assert!(ports(&["a=tap:b"]).contains("port a: the name is given twice"));
        assert!(ports(&["b=tap:a"]).contains("'a' is the place of port a already"));
        for (table, said) in [
            (SwitchTable { workers: Some(0), ..api() }, "workers=0: a number from 1 to 64"),
            (SwitchTable { ageing: Some(0), ..api() }, "ageing=0"),
            (SwitchTable { spin: Some(u32::MAX), ..api() }, "spin=4294967295"),
            (SwitchTable { api_mode: Some("9".into()), ..api() }, "api-mode=9: an octal mode"),
        ] {
            let error = settings("", table, &[]).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
