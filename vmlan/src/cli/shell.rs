//! What the command line tells others of itself: shells that complete it, and man(1).

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;

use super::{ApiArgs, Cli};
use crate::exit::Failure;
use vmlan_api::PortList;

/// Arguments of `vmlan man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Where the pages go, one for each command
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Answers a shell that completes a command line (`COMPLETE=bash vmlan`), and ends. Otherwise does
/// nothing.
pub(super) fn complete() {
    CompleteEnv::with_factory(Cli::command).complete();
}

/// Names of ports of the running switch that begin with what was typed; none if none answers.
pub(super) fn port_names(typed: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<_> = std::env::args_os().collect();
    // The command line to be completed is our own from its name on. It may name the switch.
    let api = words.iter().position(|word| word == "--api").and_then(|at| words.get(at + 1));
    let asked = ApiArgs { api: api.map(PathBuf::from) };
    let list: Option<PortList> = asked.client().ok().and_then(|api| api.get("/v1/ports").ok());
    let ports = list.map(|list| list.ports).unwrap_or_default();
    let typed = typed.to_string_lossy();
    let matching = ports.into_iter().filter(|port| port.name.starts_with(&*typed));
    matching.map(|port| CompletionCandidate::new(port.name).help(Some(port.kind.into()))).collect()
}

/// Writes the manual: `vmlan.1`, `vmlan-switch.1`, ...
pub(super) fn manual(args: &ManArgs) -> Result<(), Failure> {
    let failed = |e| Failure::Failed(format!("{}: cannot write: {e}", args.dir.display()));
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_page() {
        let dir = tempfile::tempdir().unwrap();
        manual(&ManArgs { dir: dir.path().into() }).unwrap();
        for name in ["vmlan.1", "vmlan-switch.1", "vmlan-port-add.1"] {
            let page = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(page.contains(".SH NAME"), "{name}: {page}");
        }
        assert!(!dir.path().join("vmlan-man.1").exists(), "hidden");
    }
}
