//! FRR's daemons in a namespace that plays a host: what Debian's package has, with files in a
//! directory of their own.

use crate::{HarnessError, NetNs, Process, Result, Stop, find_program, output_of};
use std::{fs, path::Path, time::Duration};

/// Where Debian's package has the daemons.
const PLACE: &str = "/usr/lib/frr";
/// Longest wait for what takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// FRR's version.
///
/// # Errors
/// Why it cannot be run: it is not here, or this user may not.
pub fn version() -> std::result::Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("FRR wants root".into());
    }
    let fix = "apt-get install frr";
    if !Path::new(PLACE).join("bgpd").exists() || find_program("vtysh").is_err() {
        return Err(format!("FRR is not installed ({fix})"));
    }
    let said = output_of(&format!("{PLACE}/bgpd"), &["--version"]).map_err(|e| e.to_string())?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

/// Starts zebra and bgpd in `net` with `config`, their files in a directory in `at`, which other
/// users must be able to enter: FRR's daemons are users of their own.
///
/// # Errors
/// [`HarnessError::Failed`] with FRR's words if it does not take `config`.
pub fn start(net: &NetNs, at: &Path, name: &str, config: &str) -> Result<Vec<Process>> {
    let dir = at.join(format!("frr-{name}"));
    let place = dir.display().to_string();
    fs::create_dir(&dir).map_err(HarnessError::file(&dir))?;
    let file = dir.join("frr.conf");
    fs::write(&file, config).map_err(HarnessError::file(&file))?;
    let file = file.display().to_string();
    output_of("vtysh", &["-C", "-f", &file])?;
    output_of("chown", &["-R", "frr:frr", &place])?;
    let start = |daemon: &str| -> Result<Process> {
        let (program, pid) = (format!("{PLACE}/{daemon}"), format!("{place}/{daemon}.pid"));
        let (zebra, no_port) = (format!("{place}/z.sock"), ["-A", "127.0.0.1", "-P", "0"]);
        let mut words = vec![&*program, "-f", &file, "-u", "frr", "-g", "frr"];
        words.extend(["--vty_socket", &place, "-z", &zebra, "-i", &pid]);
        words.extend(no_port);
        let log = at.join(format!("{daemon}-{name}.log"));
        Process::start(daemon, &log, &net.enter(&words))
    };
    let zebra = start("zebra")?;
    let ready = dir.join("z.sock");
    Stop::default().wait_for("zebra's socket", PATIENCE, || Ok(ready.exists().then_some(())))?;
    Ok(vec![start("bgpd")?, zebra])
}
