//! What tests have threads of the real program try. Release builds do not have it.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::thread::Thread;
use crate::trap::try_call;

/// `VMLAN_TEST_MISBEHAVE=worker:kill:77` makes the first worker kill process 77; a number is needed
/// only where it says something.
pub(crate) fn as_told(kind: Thread) {
    let Ok(told) = std::env::var("VMLAN_TEST_MISBEHAVE") else { return };
    let mut words = told.split(':');
    if words.next() != Some(kind.name()) {
        return;
    }
    let what = words.next().unwrap_or_default();
    let victim = words.next().and_then(|pid| pid.parse().ok()).unwrap_or(1);
    let what_came_of_it = misbehave(what, victim);
    // Whoever is still here was not stopped.
    eprintln!("misbehaved: {what}: {what_came_of_it:?}");
}

fn misbehave(what: &str, victim: usize) -> io::Result<()> {
    let page = 4096;
    let mut byte = 0u8;
    let own = [(&raw mut byte).expose_provenance(), 1];
    let theirs = [page, 1];
    let own = own.as_ptr().expose_provenance();
    let theirs = theirs.as_ptr().expose_provenance();
    let path = c"/bin/true".as_ptr().expose_provenance();
    let list = [path, 0];
    let list = list.as_ptr().expose_provenance();
    let size = |constant: libc::c_int| usize::try_from(constant).unwrap_or(0);
    match what {
        "open" => File::open("/etc/hostname").map(drop),
        "write" => std::fs::write("/etc/vmlan-was-here", ""),
        "memory" => File::open(format!("/proc/{victim}/mem")).map(drop),
        "connect" => UnixStream::connect("/run/systemd/notify").map(drop),
        "tcp" => TcpStream::connect("127.0.0.1:22").map(drop),
        "exec" => try_call(libc::SYS_execve, [path, list, 0, 0, 0, 0]),
        "fork" => try_call(libc::SYS_clone, [size(libc::SIGCHLD), 0, 0, 0, 0, 0]),
        "trace" => try_call(libc::SYS_ptrace, [16, victim, 0, 0, 0, 0]),
        "read" => try_call(libc::SYS_process_vm_readv, [victim, own, 1, theirs, 1, 0]),
        "kill" => try_call(libc::SYS_kill, [victim, size(libc::SIGKILL), 0, 0, 0, 0]),
        "own" => try_call(libc::SYS_fcntl, [0, size(libc::F_SETOWN), victim, 0, 0, 0]),
        "pidfd" => try_call(libc::SYS_pidfd_open, [victim, 0, 0, 0, 0, 0]),
        "ring" => try_call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0]),
        "code" => {
            let rights = size(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
            let flags = size(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            try_call(libc::SYS_mmap, [0, page, rights, flags, usize::MAX, 0])
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
