//! Programs that the harness runs to their end, and where it finds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::{HarnessError, Result, SETUP};

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// [`HarnessError::Missing`] if the program is not there, [`HarnessError::Failed`] if it does not
/// exit 0.
pub fn output_of(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).stdin(Stdio::null()).output();
    let out = out.map_err(|_| missing(program))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let what = format!("{program} {}", args.join(" "));
    Err(HarnessError::Failed { what, heard: last_lines(&both_outputs(&out)) })
}

/// Standard output and then standard error.
pub(crate) fn both_outputs(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

/// Finds a program in `PATH` or in the directories that hold system programs, which may not be in a
/// plain user's `PATH`.
pub fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| missing(name))
}

pub(crate) fn missing(program: &str) -> HarnessError {
    HarnessError::missing(format!("{program} is missing"), SETUP)
}

/// The last lines of a log: enough to see why, short enough for a report.
pub fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "none".into();
    }
    lines[lines.len().saturating_sub(12)..].join("\n  ")
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Makes `program` the program under test, unless [`vmlan_program`] was asked before.
pub fn use_program(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// The program under test: `$VMLAN_BIN`, or a build made once for each test process, so that it is
/// never stale.
///
/// # Panics
/// If it cannot be built.
pub fn vmlan_program() -> &'static Path {
    PROGRAM.get_or_init(|| match std::env::var_os("VMLAN_BIN") {
        Some(path) => path.into(),
        None => build(&["-p", "vmlan"]).join("vmlan"),
    })
}

/// Runs `cargo build` with these words in the workspace; the folder of what it built. With
/// `--workspace` nothing is built that the workspace's tests have built: with fewer packages cargo
/// selects other features of what they depend on, and builds that once more.
///
/// # Panics
/// If it cannot be built.
pub fn build(what: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let mut cargo = Command::new(env!("CARGO"));
    let status = cargo.args(["build", "--quiet"]).args(what).current_dir(root).status();
    assert!(status.is_ok_and(|status| status.success()), "cargo build {what:?} failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    target.join("debug")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_output_or_why_there_is_none() {
        assert_eq!(output_of("echo", &["a", "b"]).unwrap(), "a b\n");
        let failed = output_of("sh", &["-c", "echo why >&2; exit 3"]).unwrap_err();
        assert_eq!(failed.to_string(), "sh -c echo why >&2; exit 3 failed: why");
        let none = output_of("no-such-program", &[]).unwrap_err();
        assert_eq!(none.to_string(), format!("no-such-program is missing: {SETUP}"));
        assert!(find_program("sh").unwrap().is_absolute());
        assert!(find_program("no-such-program").is_err());
    }

    #[test]
    fn a_log_is_cut_to_its_end() {
        let log: String = (0..20).map(|n| format!("{n}\n\n")).collect();
        assert!(last_lines(&log).starts_with("8\n  9\n"));
        assert_eq!(last_lines(" \n"), "none");
    }
}
