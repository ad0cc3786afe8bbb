//! A network namespace that plays a host on the LAN. As root a plain one, otherwise one inside a
//! user namespace.

use crate::program::both_outputs;
use crate::{HarnessError, LanHost, Process, Result, Said, output_of};
use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

const FIX: &str = "run as root, or allow user namespaces: \
    sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000";

/// A namespace, held by a sleeping process and gone when this is dropped.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    ip: String,
    files: String,
    holder: Process,
    others: Vec<Process>,
}

impl NetNs {
    /// A new namespace with loopback up. `number` gives its address, 10.77.0.`number`.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] if this user may not make one.
    pub fn new(dir: &Path, name: &str, number: u8) -> Result<NetNs> {
        let root = output_of("id", &["-u"])?.trim() == "0";
        let unshare = if root { "unshare --net" } else { "unshare --user --map-root-user --net" };
        NetNs::hold(dir, name, number, unshare.split(' ').map(str::to_owned).collect())
    }

    /// A second namespace beside this one, with the same owner, so that interfaces can be moved
    /// between them.
    pub fn sibling(&self, dir: &Path, name: &str, number: u8) -> Result<NetNs> {
        NetNs::hold(dir, name, number, self.enter(&["unshare", "--net"]))
    }

    /// Two of them as hosts, `host1` and `host2`, with a network between: 192.0.2.1 at `u1` of the
    /// one, 192.0.2.2 at `u2` of the other.
    pub fn hosts(dir: &Path) -> Result<[NetNs; 2]> {
        let mut one = NetNs::new(dir, "host1", 1)?;
        let mut two = one.sibling(dir, "host2", 2)?;
        one.sh("ip link add u1 type veth peer name u2")?;
        one.give("u2", &two)?;
        for (host, number) in [(&mut one, 1), (&mut two, 2)] {
            let (address, link) = (format!("192.0.2.{number}/24"), format!("u{number}"));
            host.sh(&format!("ip addr add {address} dev {link} && ip link set {link} up"))?;
        }
        Ok([one, two])
    }

    fn hold(dir: &Path, name: &str, number: u8, mut argv: Vec<String>) -> Result<NetNs> {
        let log = dir.join(format!("{name}.netns"));
        let held = "ip link set lo up && echo held && exec sleep infinity";
        argv.extend(["sh", "-c", held].map(str::to_owned));
        let mut holder = Process::start(&format!("namespace {name}"), &log, &argv)?;
        let heard = || std::fs::read_to_string(&log).unwrap_or_default();
        let made = holder.wait("to be made", Duration::from_secs(60), || heard().contains("held"));
        made.map_err(|e| {
            HarnessError::missing(format!("a network namespace cannot be made ({e})"), FIX)
        })?;
        let files = dir.join(format!("{name}.files"));
        std::fs::create_dir(&files).map_err(HarnessError::file(&files))?;
        let (ip, files) = (format!("10.77.0.{number}"), files.to_string_lossy().into_owned());
        Ok(NetNs { name: name.into(), ip, files, holder, others: Vec::new() })
    }

    /// `argv` as it has to be started to run inside.
    pub fn enter(&self, argv: &[&str]) -> Vec<String> {
        let pid = self.holder.pid().to_string();
        // Without root the user namespace has to be entered too; as root it is our own, which
        // cannot be re-entered.
        let same_user = same_user_namespace(&pid);
        let user: &[&str] = if same_user { &[] } else { &["--user", "--preserve-credentials"] };
        // A change of credentials clears the parent-death signal, so it is set again behind it.
        ["nsenter", "--target", &pid, "--net"]
            .iter()
            .chain(user)
            .chain(&["--", "setpriv", "--pdeathsig", "KILL", "--"])
            .chain(argv)
            .map(|&word| word.to_owned())
            .collect()
    }

    /// Gives an interface of this namespace the host's address.
    pub fn adopt(&mut self, interface: &str) -> Result<()> {
        let ip = self.ip.clone();
        self.sh(&format!("ip addr add {ip}/24 dev {interface} && ip link set {interface} up"))
            .map(drop)
    }

    /// Moves an interface to another namespace.
    pub fn give(&mut self, interface: &str, other: &NetNs) -> Result<()> {
        self.sh(&format!("ip link set {interface} netns {}", other.holder.pid())).map(drop)
    }
}

fn same_user_namespace(pid: &str) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    of(pid) == of("self")
}

impl LanHost for NetNs {
    fn name(&self) -> &str {
        &self.name
    }

    fn ip(&self) -> &str {
        &self.ip
    }

    fn files(&self) -> &str {
        &self.files
    }

    fn background(&mut self, command: &str) -> Result<()> {
        let argv = self.enter(&["sh", "-c", &format!("exec {command}")]);
        let log = Path::new(&self.files).with_extension("background");
        self.others.push(Process::start(command, &log, &argv)?);
        Ok(())
    }

    fn run(&mut self, command: &str, within: Duration) -> Result<Said> {
        let argv = self.enter(&[
            "timeout",
            "-s",
            "KILL",
            &within.as_secs().max(1).to_string(),
            "sh",
            "-c",
            command,
        ]);
        let out = Command::new(&argv[0])
            .args(&argv[1..])
            .stdin(Stdio::null())
            .output()
            .map_err(HarnessError::file("nsenter"))?;
        let code = out.status.code().unwrap_or_else(|| 128 + out.status.signal().unwrap_or(0));
        Ok(Said { code, text: both_outputs(&out) })
    }
}
