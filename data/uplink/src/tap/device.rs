//! Getting hold of a TAP device (kernel: `Documentation/networking/tuntap.rst`).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use vmlan_frame::Offloads;

use super::Config;
use crate::{sys, vnet_header};

const MAX_QUEUES: u16 = 256; // The most queues a TAP device has (kernel: `MAX_TAP_QUEUES`).

/// Why a TAP device could not be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TapError {
    #[error(
        "`{0}` is not a valid interface name: use 1 to 15 characters, none of them `/`, `%`, `:` \
         or blank"
    )]
    BadName(String),
    #[error("queues={0}: a tap device has 1 to 256 queues")]
    BadQueues(u16),
    #[error("/dev/net/tun: load the module `tun`, or give this process access to the device")]
    NoTun(#[source] io::Error),
    #[error(
        "tap `{name}`: this user may not; run once: sudo ip tuntap add {name} mode tap user {user} \
         {multi_queue}vnet_hdr && sudo ip link set {name} up"
    )]
    NotAllowed {
        name: String,
        /// Who we are: by name, or by number if that has none. `$USER` of a root shell is root.
        user: String,
        /// `multi_queue ` if that is needed.
        multi_queue: &'static str,
        source: io::Error,
    },
    #[error(
        "tap `{name}`: {user} uses it, and a device made without multi_queue serves one program: \
         stop that program or choose another interface"
    )]
    Busy { name: String, user: String, source: io::Error },
    #[error(
        "tap `{0}`: exists and is not a tap device, or was made without multi_queue (then use \
         queues=1)"
    )]
    NotTap(String, #[source] io::Error),
    #[error("tap `{0}`")]
    Io(String, #[source] io::Error),
}

impl TapError {
    fn new(config: &Config, e: io::Error) -> Self {
        let name = config.name.clone();
        match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let multi_queue = if config.queues > 1 { "multi_queue " } else { "" };
                Self::NotAllowed { name, user: user(), multi_queue, source: e }
            }
            Some(libc::EBUSY) => {
                let user = holder(&name).unwrap_or_else(|| "another program".to_owned());
                Self::Busy { name, user, source: e }
            }
            Some(libc::EINVAL) => Self::NotTap(name, e),
            _ => Self::Io(name, e),
        }
    }
}

/// The effective user, as `ip tuntap` takes it.
fn user() -> String {
    let id = rustix::process::geteuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_of(&users, &id).map_or(id.clone(), str::to_owned)
}

/// A process that holds TAP device `name`: a descriptor of `/dev/net/tun` says in its fdinfo which
/// interface it is attached to. Only root may look at the processes of others.
fn holder(name: &str) -> Option<String> {
    let line = format!("iff:\t{name}");
    let numbers = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.file_name());
    let mut processes = numbers.filter_map(|number| number.to_str()?.parse::<u32>().ok());
    let process = processes.find(|process| {
        let infos = fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
        let mut texts = infos.filter_map(|info| fs::read_to_string(info.path()).ok());
        texts.any(|text| text.lines().any(|l| l == line))
    })?;
    if process == std::process::id() {
        return Some("another port of this program".to_owned());
    }
    let program = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some(format!("{} (process {process})", program.trim_end()))
}

/// passwd(5): name, password, number.
fn name_of<'u>(users: &'u str, id: &str) -> Option<&'u str> {
    let mut lines = users.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == id).then_some(name)
    })
}

/// A device we are attached to.
pub(super) struct Device {
    pub(super) queues: Vec<Arc<OwnedFd>>,
    /// What the kernel takes from us.
    pub(super) offloads: Offloads,
}

pub(super) fn check(config: &Config) -> Result<(), TapError> {
    let name = &config.name;
    let bad = |c: char| !c.is_ascii_graphic() || matches!(c, '/' | '%' | ':');
    if name.is_empty()
        || name.len() >= libc::IFNAMSIZ
        || name.contains(bad)
        || name.starts_with('.')
    {
        return Err(TapError::BadName(name.clone()));
    }
    if !(1..=MAX_QUEUES).contains(&config.queues) {
        return Err(TapError::BadQueues(config.queues));
    }
    Ok(())
}

/// Opens or creates the device. One that we create is set up at once, if we may: it was not there
/// for anybody else to do so.
pub(super) fn open(config: &Config) -> Result<Device, TapError> {
    let fail = |e| TapError::new(config, e);
    let socket = UnixDatagram::unbound().map_err(fail)?;
    let ours = sys::link_flags(socket.as_fd(), &config.name).is_err();
    let queues = attach_all(config)?;
    let mut uso = true;
    for q in &queues {
        sys::tun_set_header(q.as_fd(), vnet_header::LEN_FOR_IOCTL).map_err(fail)?;
        uso &= set_offload(q, config.offload).map_err(fail)?;
    }
    if ours && let Err(e) = sys::link_set_up(socket.as_fd(), &config.name) {
        log::warn!("{}: created, but not set up: {e}", config.label);
    }
    Ok(Device { queues, offloads: accepted(uso) })
}

/// The device by queues of another process. `None`: they are not all of it, or of another one. What
/// they are is only believed as far as the kernel says so.
pub(super) fn adopt(config: &Config, queues: Vec<OwnedFd>) -> Option<Device> {
    if queues.len() != usize::from(config.queues) {
        return None;
    }
    let mut uso = true;
    for q in &queues {
        sys::tun_name(q.as_fd()).ok().filter(|name| *name == config.name)?;
        rustix::io::ioctl_fionbio(q, true).ok()?;
        sys::tun_set_header(q.as_fd(), vnet_header::LEN_FOR_IOCTL).ok()?;
        uso &= set_offload(q, config.offload).ok()?;
    }
    let queues = queues.into_iter().map(Arc::new).collect();
    Some(Device { queues, offloads: accepted(uso) })
}

fn attach_all(config: &Config) -> Result<Vec<Arc<OwnedFd>>, TapError> {
    let multi = config.queues > 1;
    let first = match attach(config, multi) {
        // A device made with `multi_queue` is attached with the flag only, also to one queue.
        Err(TapError::NotTap(..)) if !multi => attach(config, true)?,
        other => other?,
    };
    let mut queues = vec![first];
    for _ in 1..config.queues {
        queues.push(attach(config, multi)?);
    }
    Ok(queues)
}

fn attach(config: &Config, multi: bool) -> Result<Arc<OwnedFd>, TapError> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    let tun = options.open("/dev/net/tun").map_err(TapError::NoTun)?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    sys::tun_attach(tun.as_fd(), &config.name, flags).map_err(|e| TapError::new(config, e))?;
    Ok(Arc::new(tun.into()))
}

/// Says what we can read; returns whether the kernel knows USO (6.2 and later).
fn set_offload(queue: &OwnedFd, on: bool) -> io::Result<bool> {
    let tso = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let all = tso | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let queue = queue.as_fd();
    let uso = match sys::tun_set_offload(queue, all) {
        Ok(()) => true,
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => false,
        Err(e) => return Err(e),
    };
    match (on, uso) {
        (false, _) => sys::tun_set_offload(queue, 0)?,
        (true, false) => sys::tun_set_offload(queue, tso)?,
        (true, true) => {}
    }
    Ok(uso)
}

/// What may be written is independent of `TUNSETOFFLOAD`: with `IFF_VNET_HDR` the kernel takes any
/// header it understands.
fn accepted(uso: bool) -> Offloads {
    let uso = if uso { Offloads::USO } else { Offloads::NONE };
    Offloads::CSUM.with(Offloads::TSO4).with(Offloads::TSO6).with(Offloads::ECN).with(uso)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_is_told_what_to_run() {
        let users = "root:x:0:0::/root:/bin/sh\n\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_of(users, "1000"), Some("ann"));
        assert_eq!(name_of(users, "100"), None);
        let config = Config { queues: 2, ..Config::new("vmlan0") };
        let error = TapError::new(&config, io::Error::from_raw_os_error(libc::EPERM)).to_string();
        let said = format!(
            "sudo ip tuntap add vmlan0 mode tap user {} multi_queue vnet_hdr && \
             sudo ip link set vmlan0 up",
            user()
        );
        assert!(error.ends_with(&said) && !error.contains('$'), "{error}");
    }
}
