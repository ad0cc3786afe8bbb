//! What the process may still open and make: Landlock.
//!
//! Rules hold for files, not for names: a rule for `/etc/group` ends when somebody replaces that
//! file. Directories that are allowed are allowed with all that is below them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

/// What configuration and command line name.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Sockets that are made: more may be made in their directories.
    pub sockets: Vec<PathBuf>,
    /// Capture files: these may be written, and no others beside them.
    pub captures: Vec<PathBuf>,
    /// Directories in which sockets and files may be made later.
    pub allowed: Vec<PathBuf>,
}

/// Where things may be made, as far as Landlock is in force.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// `None`: anywhere, there is no Landlock.
    below: Option<Vec<PathBuf>>,
    /// A directory of /proc that is forgotten under memory pressure comes back without its rule.
    _pinned: Vec<PathFd>,
}

/// Files that are read while the switch runs, and why.
const READ: &[&str] = &[
    // `group=` and the user's name in hints.
    "/etc/group",
    "/etc/passwd",
    // Gateways: whom this host asks for names.
    "/etc/resolv.conf",
    // Which networks it has a way to, and who listened where a full backlog keeps everybody out. A
    // rule for one file in there is of no use: each look at it makes another inode.
    "/proc/self/net",
    // How often a guest rang: the count of an eventfd.
    "/proc/self/fdinfo",
];

/// What a socket needs of its directory: it is bound beside its place and renamed.
fn socket_rights() -> BitFlags<AccessFs> {
    AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadDir
}

/// What a capture file needs.
fn write_rights() -> BitFlags<AccessFs> {
    AccessFs::WriteFile | AccessFs::Truncate
}

/// Where things may be made by default: where programs keep their sockets.
fn usual() -> impl Iterator<Item = PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()).map(PathBuf::from);
    let run = ["/run/vmlan", "/tmp"].map(PathBuf::from);
    runtime.into_iter().chain([std::env::temp_dir()]).chain(run)
}

/// Restricts this thread, and those it starts, to `places` and the usual ones.
///
/// # Errors
/// What is missing, in words.
pub(crate) fn restrict(places: &Places) -> Result<Files, String> {
    let failed = |e: landlock::RulesetError| format!("Landlock ({e})");
    let mut pinned = Vec::new();
    let mut rules = ruleset(scope()).map_err(failed)?;
    let mut add = |path: &Path, rights: BitFlags<AccessFs>| -> Result<(), String> {
        // What is not there needs no rule.
        let Ok(fd) = PathFd::new(path) else { return Ok(()) };
        (&mut rules).add_rule(PathBeneath::new(&fd, rights)).map_err(failed)?;
        pinned.push(fd);
        Ok(())
    };
    for file in READ {
        add(Path::new(file), AccessFs::ReadFile.into())?;
    }
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    add(Path::new("/dev/net/tun"), device)?;
    let free: Vec<_> = usual().chain(places.allowed.iter().cloned()).collect();
    for dir in &free {
        add(dir, socket_rights() | write_rights() | AccessFs::MakeReg)?;
    }
    let beside: Vec<_> = places.sockets.iter().map(|path| parent(path)).collect();
    for dir in &beside {
        add(dir, socket_rights())?;
    }
    for capture in &places.captures {
        if make(capture).is_ok() {
            add(capture, write_rights())?;
        }
    }
    let status = rules.restrict_self().map_err(failed)?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err("Landlock (the kernel has none, or none is enabled)".to_owned());
    }
    let mut below: Vec<_> =
        free.iter().chain(&beside).filter_map(|dir| dir.canonicalize().ok()).collect();
    below.dedup();
    Ok(Files { below: Some(below), _pinned: pinned })
}

/// What may be reached of other processes: nothing, but by abstract sockets if the service
/// manager's is one.
fn scope() -> BitFlags<Scope> {
    let notify = std::env::var_os("NOTIFY_SOCKET");
    let abstract_notify = notify.is_some_and(|name| name.as_encoded_bytes().starts_with(b"@"));
    let mut scope = Scope::from_all(ABI::V6);
    if abstract_notify {
        scope.remove(Scope::AbstractUnixSocket);
    }
    scope
}

/// All that Landlock knows is forbidden, for a process that needs none of it. `None`: there is no
/// Landlock.
pub(crate) fn nothing() -> Option<RulesetCreated> {
    ruleset(Scope::from_all(ABI::V6)).ok()
}

/// All files are forbidden, as far as this kernel knows how.
pub(crate) fn no_files() -> Result<(), landlock::RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .scope(Scope::from_all(ABI::V6))?;
    rules.create()?.restrict_self().map(drop)
}

/// All that Landlock knows is forbidden, as far as this kernel's knows it.
fn ruleset(scope: BitFlags<Scope>) -> Result<RulesetCreated, landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(scope)?
        .create()
}

/// Makes a capture file, unless it is there: a rule is for a file that is.
fn make(capture: &Path) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    options.open(capture)
}

/// The directory `path` is in.
fn parent(path: &Path) -> PathBuf {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new(".")).to_owned()
}

impl Files {
    /// Why nothing can be made at `path`.
    pub(crate) fn forbids(&self, path: &Path) -> Option<String> {
        let below = self.below.as_ref()?;
        let dir = parent(path).canonicalize().ok()?;
        if below.iter().any(|allowed| dir.starts_with(allowed)) {
            return None;
        }
        let dir = dir.display();
        Some(format!(
            "the sandbox keeps the switch from making anything in `{dir}`: start it with \
             `--allow-dir {dir}`, or choose a place below {}",
            std::env::temp_dir().display()
        ))
    }
}
