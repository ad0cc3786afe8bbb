//! The socket file: made, replaced, removed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use vmlan_keeper::{Asked, Keeper, KeeperError, Kept};

/// Connections that may wait to be accepted. Only one is served at a time; the others are closed.
const BACKLOG: i32 = 8;

/// Permission bits when only a group was asked for: its members may connect.
const GROUP_MODE: u32 = 0o660;

/// Where a socket is to be, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Place<'c> {
    /// Its file.
    pub path: &'c Path,
    /// Permission bits. Default: what the umask leaves, or 0660 with a group.
    pub mode: Option<u32>,
    /// Its group, by name or number.
    pub group: Option<&'c str>,
}

/// What log lines call a port: by its name, or by its socket if it has none.
pub fn port_name(name: Option<&str>, path: &Path) -> String {
    match name {
        Some(name) => format!("port {name}"),
        None => path.display().to_string(),
    }
}

/// Why there is no socket to listen on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SocketError {
    #[error("`{}` exists and is not a socket: remove it or choose another path", .0.display())]
    InTheWay(PathBuf),
    #[error("another process listens on `{}`: stop it or choose another path", .0.display())]
    InUse(PathBuf),
    #[error("there is no group `{0}`: name one of /etc/group or give its number")]
    NoGroup(String),
    #[error(
        "cannot make the socket `{}`: make its directory `{}` first",
        path.display(),
        parent(path).display()
    )]
    NoDirectory { path: PathBuf, source: io::Error },
    #[error("this user may not make the socket `{}`: choose another path", .path.display())]
    NotWritable { path: PathBuf, source: io::Error },
    #[error("cannot {what} `{}`", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_owned();
    move |source| SocketError::Io { what, path, source }
}

/// Why the file could not be made, as far as that tells what to do.
fn not_made(path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_owned();
    move |source| match source.raw_os_error() {
        Some(libc::ENOENT) if !parent(&path).exists() => SocketError::NoDirectory { path, source },
        // ENOENT: a directory in which nothing can be made, like /proc.
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT) => {
            SocketError::NotWritable { path, source }
        }
        _ => SocketError::Io { what: "make the socket", path, source },
    }
}

/// The directory `path` is in.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file of a socket, which is removed on drop, if it is still ours.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: somebody else may have put a file of their own in its place.
    id: (u64, u64),
}

/// Listens at `place`: a keeper has the listener, and had it before anybody could connect. The file
/// appears whole: with its permissions set and somebody listening.
pub fn listen(place: Place<'_>) -> Result<(Keeper, SocketFile), SocketError> {
    let path = place.path;
    check_path(path).map_err(failed("listen on", path))?;
    check_free(path)?;
    let temp = temp_name(path);
    let sock = unix_socket().map_err(failed("make a socket for", path))?;
    bind(&sock, &temp).map_err(not_made(path))?;
    let made = Keeper::new(Some(sock)).map_err(failed("start a keeper for", path));
    let made = made.and_then(|keeper| Ok((finish(&keeper, &temp, place)?, keeper)));
    if made.is_err() {
        let _ = fs::remove_file(&temp);
    }
    let (id, keeper) = made?;
    Ok((keeper, SocketFile { path: path.to_owned(), id }))
}

/// Says why nobody could listen at `place`; with `own`, but for the socket that is there now.
///
/// # Errors
/// Those of [`listen`], but for the keeper's.
pub fn could_listen(place: Place<'_>, own: bool) -> Result<(), SocketError> {
    let path = place.path;
    check_path(path).map_err(failed("listen on", path))?;
    if !own {
        check_free(path)?;
    }
    let temp = temp_name(path);
    let sock = unix_socket().map_err(failed("make a socket for", path))?;
    bind(&sock, &temp).map_err(not_made(path))?;
    let permitted = permit(&temp, place);
    let _ = fs::remove_file(&temp);
    permitted.map(drop)
}

impl SocketFile {
    /// Its device and inode.
    pub fn id(&self) -> (u64, u64) {
        self.id
    }
}

/// Why a socket that another switch has made is of no use.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum LostSocket {
    #[error("its socket's file was removed or replaced")]
    File,
    #[error("what was held as its listener does not listen")]
    NoListener,
    #[error("it has no keeper")]
    Keeper(#[from] KeeperError),
    #[error("its descriptors cannot be used")]
    Io(#[from] io::Error),
}

/// Goes on with the keeper of a switch that has died and one of its connections, and listening at
/// `path`, whose file is `id`, if there is a listener. The keeper was `asked`.
///
/// # Errors
/// [`LostSocket`].
pub fn adopt(
    (path, id): (&Path, (u64, u64)),
    line: OwnedFd,
    listener: Option<OwnedFd>,
    sock: Option<(u8, OwnedFd)>,
    asked: Asked,
) -> Result<(Keeper, Option<SocketFile>, Option<Kept>), LostSocket> {
    let Some(listener) = listener else {
        let (keeper, kept) = Keeper::adopt(line, None, sock, asked)?;
        return Ok((keeper, None, kept));
    };
    if !fs::symlink_metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == id) {
        return Err(LostSocket::File);
    }
    if !rustix::net::sockopt::socket_acceptconn(&listener).is_ok_and(|listens| listens) {
        return Err(LostSocket::NoListener);
    }
    // Whoever looks whose it is finds this process.
    rustix::net::listen(&listener, BACKLOG).map_err(io::Error::from)?;
    let (keeper, kept) = Keeper::adopt(line, Some(listener), sock, asked)?;
    Ok((keeper, Some(SocketFile { path: path.to_owned(), id }), kept))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A socket on which nobody listens is a leftover, and may be replaced; anything else may not.
fn check_free(path: &Path) -> Result<(), SocketError> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("look at", path))?,
    };
    if !meta.file_type().is_socket() {
        return Err(SocketError::InTheWay(path.to_owned()));
    }
    match knock(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(sock) if is_orphaned(&sock) => Ok(()),
        // EAGAIN: a listener whose backlog is full.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock && is_left_over(path) => Ok(()),
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(SocketError::InUse(path.to_owned())),
        // EPROTOTYPE: a socket of another kind.
        Err(e) => Err(failed("look who listens on", path)(e)),
    }
}

/// True if all who have listened at `path` have ended. A keeper that hangs has a listener still;
/// while its backlog is full nobody can connect and see whose it is, but its first name says that.
fn is_left_over(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let mut makers = makers(&table, path).peekable();
    makers.peek().is_some() && makers.all(has_ended)
}

/// The processes that have made the listeners for `path`, of the kernel's table of UNIX sockets.
fn makers(table: &str, path: &Path) -> impl Iterator<Item = Option<Pid>> {
    /// In the fourth column.
    const LISTENS: u32 = 1 << 16;
    let mark = format!("{:x}", mark(path));
    table.lines().filter_map(move |line| {
        let flags = line.split_whitespace().nth(3)?;
        let name = line.rsplit('/').next()?.strip_prefix('.')?;
        let mut parts = name.split('.');
        let (pid, _, last) = (parts.next()?, parts.next()?, parts.next()?);
        let listens = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LISTENS != 0);
        let pid = || i32::from_str_radix(pid, 16).ok().and_then(Pid::from_raw);
        (listens && last == mark).then(pid)
    })
}

/// Of a path, for [`temp_name`] (FNV-1a).
fn mark(path: &Path) -> u32 {
    let next = |mark: u32, byte: &u8| (mark ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    path.as_os_str().as_bytes().iter().fold(0x811c_9dc5, next)
}

/// Sets the permissions, listens, and then gives the socket the name that others know.
fn finish(keeper: &Keeper, temp: &Path, place: Place<'_>) -> Result<(u64, u64), SocketError> {
    let id = permit(temp, place)?;
    let listening = keeper.listener().map(|sock| rustix::net::listen(sock, BACKLOG));
    listening.transpose().map_err(|e| failed("listen on", place.path)(e.into()))?;
    fs::rename(temp, place.path).map_err(failed("make the socket", place.path))?;
    Ok(id)
}

/// Sets the permissions of the socket `temp`; returns its device and inode.
///
/// The directory may belong to the guest's user, who can replace `temp` by a link to a file of ours
/// at any moment. So the permissions are set by the descriptor of what was checked.
fn permit(temp: &Path, place: Place<'_>) -> Result<(u64, u64), SocketError> {
    let file = open_path(temp).map(fs::File::from).map_err(failed("look at", temp))?;
    let meta = file.metadata().map_err(failed("look at", temp))?;
    if !meta.file_type().is_socket() {
        return Err(SocketError::InTheWay(temp.to_owned()));
    }
    let made = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if let Some(group) = place.group {
        chown(&made, None, Some(group_id(group)?))
            .map_err(failed("set the group of", place.path))?;
    }
    if let Some(mode) = place.mode.or(place.group.is_some().then_some(GROUP_MODE)) {
        let mode = fs::Permissions::from_mode(mode & 0o777);
        fs::set_permissions(&made, mode).map_err(failed("set the mode of", place.path))?;
    }
    Ok((meta.dev(), meta.ino()))
}

/// A name beside `path`, no longer than it needs to be: the limit is 107 bytes. The kernel keeps it
/// for as long as anybody has the listener ([`makers`]).
fn temp_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{:x}.{n:x}.{:x}", std::process::id(), mark(path)))
}

/// Binds to `temp`. If that path is too long for a socket, it goes through the descriptor of the
/// directory: `temp` may be a little longer than the final name.
fn bind(sock: &OwnedFd, temp: &Path) -> io::Result<()> {
    if check_path(temp).is_ok() {
        return bind_to(sock.as_fd(), temp);
    }
    let (Some(dir), Some(name)) = (temp.parent(), temp.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = fs::File::open(dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    bind_to(sock.as_fd(), &short)
}

fn group_id(group: &str) -> Result<u32, SocketError> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let text = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut lines = text.lines().map(|line| line.split(':'));
    let id = lines.find_map(|mut f| (f.next() == Some(group)).then(|| f.nth(1)?.parse().ok())?);
    id.ok_or_else(|| SocketError::NoGroup(group.to_owned()))
}

/// Connects to whoever listens on `path`, without waiting.
///
/// # Errors
/// That of `connect`, or of the keeper.
pub fn dial(path: &Path, keeper: &Keeper) -> Result<Kept, KeeperError> {
    let sock = keeper.hold(unix_socket().map_err(KeeperError::Gone)?)?;
    connect(sock.as_fd(), path).map_err(KeeperError::Gone)?;
    Ok(sock)
}

/// Connects to see whether anybody listens on `path`. Whoever accepts can send nothing: this
/// process would have to close it.
fn knock(path: &Path) -> io::Result<OwnedFd> {
    let sock = unix_socket()?;
    rustix::net::shutdown(&sock, Shutdown::Read)?;
    connect(sock.as_fd(), path)?;
    Ok(sock)
}

/// True if the process that listens at the far end of `sock` has ended. Its keeper, if that hangs,
/// may have its listener still.
fn is_orphaned(sock: &OwnedFd) -> bool {
    has_ended(rustix::net::sockopt::socket_peercred(sock).map(|peer| peer.pid).ok())
}

fn has_ended(process: Option<Pid>) -> bool {
    let test = process.map(rustix::process::test_kill_process);
    matches!(test, Some(Err(rustix::io::Errno::SRCH)))
}

/// A UNIX stream socket, non-blocking and close-on-exec.
fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The address of a socket file. A path has at most 107 bytes (unix(7)).
fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > 107 || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has 1 to 107 bytes, none of them zero",
        ));
    }
    Ok(SocketAddrUnix::new(path)?)
}

fn check_path(path: &Path) -> io::Result<()> {
    address(path).map(drop)
}

/// Gives `sock` the file `path`, which must not exist.
fn bind_to(sock: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::net::bind(sock, &address(path)?)?)
}

/// Connects `sock` to `path` without waiting: a UNIX socket is connected at once or not at all.
fn connect(sock: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(sock, &address(path)?)?)
}

/// A descriptor that only names the file at `path` (O_PATH): a link itself, not what it points to.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let path = none.join("s");
        let error = listen(Place { path: &path, mode: None, group: None }).unwrap_err().to_string();
        let said = format!("make its directory `{}` first", none.display());
        assert!(error.contains(&said), "{error}");
        assert_eq!(parent(Path::new("s")), Path::new("."));
    }

    #[test]
    fn a_closed_listener_leaves_its_path_to_others_though_somebody_has_it_still() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let place = Place { path: &path, mode: None, group: None };
        let (keeper, file) = listen(place).unwrap();
        let other_name = dir.path().join("t");
        fs::hard_link(&path, &other_name).unwrap();
        keeper.close();
        drop(file);
        assert_eq!(knock(&other_name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let (new, _file) = listen(place).unwrap();
        drop(keeper);
        assert!(knock(&path).is_ok() && new.accept().is_ok());
    }

    #[test]
    fn the_makers_of_listeners_are_known_by_their_first_names() {
        let (path, other) = (Path::new("/run/vm 1.sock"), Path::new("/run/vm2.sock"));
        let line = |flags: &str, name: String| {
            format!("0: 00000002 00000000 {flags} 0001 01 5 /run/{name}\n")
        };
        let (listens, connected) = ("00010000", "00000000");
        let table = [
            "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned(),
            line(listens, format!(".1f.0.{:x}", mark(path))),
            line(connected, format!(".20.0.{:x}", mark(path))),
            line(listens, format!(".21.1.{:x}", mark(other))),
            line(listens, "vm 1.sock".into()),
            line(listens, ".x.y".into()),
        ];
        let found: Vec<_> = makers(&table.concat(), path).collect();
        assert_eq!(found, [Pid::from_raw(0x1f)]);
        // A listener of ours, which lives.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _kept = listen(Place { path: &path, mode: None, group: None }).unwrap();
        let table = fs::read_to_string("/proc/self/net/unix").unwrap();
        assert_eq!(makers(&table, &path).collect::<Vec<_>>(), [Some(rustix::process::getpid())]);
        assert!(!is_left_over(&path) && !is_left_over(other));
    }

    #[test]
    fn permissions_are_never_given_to_what_a_link_names() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, temp, path] = ["victim", "temp", "s"].map(|n| dir.path().join(n));
        fs::write(&victim, "secret").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        let sock = unix_socket().unwrap();
        bind(&sock, &temp).unwrap();
        let keeper = Keeper::new(Some(sock)).unwrap();
        // What the directory's owner does meanwhile.
        fs::remove_file(&temp).unwrap();
        std::os::unix::fs::symlink(&victim, &temp).unwrap();
        let place = Place { path: &path, mode: Some(0o666), group: None };
        let done = finish(&keeper, &temp, place);
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(done, Err(SocketError::InTheWay(_))), "{done:?}");
    }
}
