//! Puts the commit into the program, for `--version` and for the figures it writes.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=VMLAN_COMMIT={commit}");
    // Not run again for every edit: only when a commit is made (the reflog grows), if git could say
    // where that is; or this file changes.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    println!("cargo::rerun-if-changed={}", log.as_deref().unwrap_or("no such file"));
    println!("cargo::rerun-if-changed=build.rs");
}
