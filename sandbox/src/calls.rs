//! Which system calls threads may make: short lists, found by tracing all tests and by reading.
//! `docs/security.md` has them with their reasons.

/// What a thread is for. Each kind has its own list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The first thread: opens and closes ports.
    Control,
    /// Moves frames.
    Worker,
    /// Interrupts workers.
    Watchdog,
    /// Serves the socket of a VM.
    Port,
    /// Looks after a TAP device.
    Tap,
    /// Looks after a `stream:` port's peers.
    Stream,
    /// Writes a capture file.
    Pcap,
    /// Sends samples.
    Sflow,
    /// Serves the API.
    Api,
    /// Waits for signals.
    Signals,
}

/// A system call and with which arguments it is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) name: &'static str,
    pub(crate) only: Only,
}

/// Conditions of a call, on the argument of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Only {
    /// With any arguments.
    Always,
    /// One of these values, in 32 bits.
    Is(u8, &'static [u64]),
    /// This process.
    OwnProcess(u8),
    /// A null pointer.
    Null(u8),
    /// The bits of the first mask are those of the second.
    Bits(u8, u64, u64),
}

/// `calls![SYS_read, SYS_write]`: with any arguments.
macro_rules! calls {
    ($($name:ident),* $(,)?) => {
        &[$(only!($name, Only::Always)),*]
    };
}

macro_rules! only {
    ($name:ident, $only:expr) => {
        Call { number: libc::$name, name: stringify!($name), only: $only }
    };
}

/// A constant of libc as the kernel sees the argument.
const fn bits(constant: libc::c_int) -> u64 {
    constant.cast_unsigned() as u64
}

/// `PR_GET_AUXV`: rustix asks where the vDSO is, when it first reads a clock.
const GET_AUXV: u64 = 0x4155_5856;

const MADE_BY_MMAP: Only = Only::Bits(2, bits(libc::PROT_EXEC), 0);

/// Threads of this process, in no new namespace.
const THREADS: u64 = bits(libc::CLONE_THREAD);
const CLONE_MASK: u64 = THREADS
    | bits(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET)
    | bits(libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP);

/// Every thread: its stack and heap, locks, clocks, what is open already, its start and its end.
/// No memory becomes code, and no signal goes to another process.
const EVERY: &[Call] = &[
    only!(SYS_mmap, MADE_BY_MMAP),
    only!(SYS_mprotect, MADE_BY_MMAP),
    only!(SYS_tgkill, Only::OwnProcess(0)),
    only!(SYS_prlimit64, Only::Null(2)),
    only!(
        SYS_prctl,
        Only::Is(0, &[bits(libc::PR_SET_NAME), bits(libc::PR_SET_TIMERSLACK), GET_AUXV])
    ),
];

const EVERY_ALWAYS: &[Call] = calls![
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_close,
    SYS_fcntl,
    SYS_futex,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_exit,
    SYS_exit_group,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getpid,
    SYS_gettid,
    SYS_getrandom,
    // The handler of SIGTERM and SIGINT, which run on any thread, tells the one that waits.
    SYS_sendto,
    SYS_restart_syscall,
];

/// Waiting for descriptors.
const EVENTS: &[Call] =
    calls![SYS_ppoll, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2];

#[cfg(target_arch = "x86_64")]
const EVENTS_OLD: &[Call] = calls![SYS_poll, SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const EVENTS_OLD: &[Call] = &[];

/// Bytes of sockets that are there.
const SOCKETS: &[Call] = calls![
    SYS_accept4,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_sendto,
    SYS_sendmsg,
    SYS_readv,
    SYS_shutdown,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
];

/// `FIONBIO`, and what a TAP device is asked.
const IOCTL: Call = only!(SYS_ioctl, Only::Is(1, &[libc::FIONBIO]));
const TAP_IOCTL: Call = only!(
    SYS_ioctl,
    Only::Is(
        1,
        &[
            libc::TUNSETIFF,
            libc::TUNGETIFF,
            libc::TUNSETVNETHDRSZ,
            libc::TUNSETOFFLOAD,
            libc::SIOCGIFFLAGS,
            libc::SIOCSIFFLAGS,
        ]
    )
);

/// UNIX sockets only.
const UNIX_SOCKET: Call = only!(SYS_socket, Only::Is(0, &[bits(libc::AF_UNIX)]));
const SOCKET: Call = only!(
    SYS_socket,
    Only::Is(
        0,
        &[bits(libc::AF_UNIX), bits(libc::AF_INET), bits(libc::AF_INET6), bits(libc::AF_NETLINK)]
    )
);

/// Opening what exists, without writing: which files, Landlock says.
const READ_ONLY: Only =
    Only::Bits(2, bits(libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC), bits(libc::O_RDONLY));
const EXISTING: Only = Only::Bits(2, bits(libc::O_CREAT | libc::O_TRUNC), 0);

/// Looking at files.
const LOOK: &[Call] = calls![
    SYS_statx,
    SYS_fstat,
    SYS_newfstatat,
    SYS_fstatfs,
    SYS_readlinkat,
    SYS_lseek,
    SYS_getdents64,
];
#[cfg(target_arch = "x86_64")]
const LOOK_OLD: &[Call] = calls![SYS_readlink, SYS_stat, SYS_lstat];
#[cfg(not(target_arch = "x86_64"))]
const LOOK_OLD: &[Call] = &[];

/// Removing a socket's file.
const UNLINK: &[Call] = calls![SYS_unlinkat];
#[cfg(target_arch = "x86_64")]
const UNLINK_OLD: &[Call] = calls![SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const UNLINK_OLD: &[Call] = &[];

/// Where a peer's memory shrank, what took its place is given back by whoever unmaps it.
const WORKER: &[Call] =
    calls![SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_sendmsg, SYS_readv, SYS_fallocate];
#[cfg(target_arch = "x86_64")]
const WORKER_OLD: &[Call] = calls![SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const WORKER_OLD: &[Call] = &[];

/// A VM's memory, its doorbells and timers.
const PORT: &[Call] = &[
    UNIX_SOCKET,
    IOCTL,
    only!(SYS_openat, READ_ONLY),
    only!(SYS_rt_sigaction, Only::Is(0, &[bits(libc::SIGUSR1)])),
    only!(SYS_connect, Only::Always),
    only!(SYS_socketpair, Only::Is(0, &[bits(libc::AF_UNIX)])),
    only!(SYS_eventfd2, Only::Always),
    only!(SYS_memfd_create, Only::Always),
    only!(SYS_ftruncate, Only::Always),
    only!(SYS_fallocate, Only::Always),
    only!(SYS_timer_create, Only::Always),
    only!(SYS_timer_settime, Only::Always),
    only!(SYS_timer_delete, Only::Always),
    only!(SYS_timerfd_create, Only::Always),
    only!(SYS_timerfd_settime, Only::Always),
];

/// A port's thread starts another one with a lower weight where its peer uses much.
const STARTS: &[Call] = &[
    only!(SYS_clone, Only::Bits(0, CLONE_MASK, THREADS)),
    only!(SYS_clone3, Only::Always),
    only!(SYS_rseq, Only::Always),
    only!(SYS_set_robust_list, Only::Always),
    only!(SYS_setpriority, Only::Always),
];

const TAP: &[Call] =
    &[UNIX_SOCKET, TAP_IOCTL, only!(SYS_openat, EXISTING), only!(SYS_geteuid, Only::Always)];

const API: &[Call] = &[IOCTL, only!(SYS_eventfd2, Only::Always)];

/// Of the first thread alone. What the threads it starts may do, it may do too: they inherit its
/// filter.
const CONTROL: &[Call] = &[
    SOCKET,
    only!(SYS_prctl, Only::Is(0, &[bits(libc::PR_SET_NO_NEW_PRIVS), bits(libc::PR_GET_NAME)])),
];

const CONTROL_ALWAYS: &[Call] = calls![
    SYS_openat,
    SYS_bind,
    SYS_listen,
    SYS_renameat,
    SYS_renameat2,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchownat,
    SYS_fchown,
    SYS_seccomp,
    SYS_capget,
    SYS_capset,
];
#[cfg(target_arch = "x86_64")]
const CONTROL_OLD: &[Call] =
    calls![SYS_open, SYS_rename, SYS_chmod, SYS_chown, SYS_lchown, SYS_access];
#[cfg(not(target_arch = "x86_64"))]
const CONTROL_OLD: &[Call] = &[];

/// Names for the log, of calls that no thread may make.
const NEVER: &[Call] = calls![
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_kill,
    SYS_mount,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_io_uring_setup,
    SYS_userfaultfd,
    SYS_setuid,
    SYS_setresuid,
    SYS_keyctl,
    SYS_wait4,
];
#[cfg(target_arch = "x86_64")]
const NEVER_OLD: &[Call] = calls![SYS_fork, SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_OLD: &[Call] = &[];

impl Thread {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Control,
        Self::Worker,
        Self::Watchdog,
        Self::Port,
        Self::Tap,
        Self::Stream,
        Self::Pcap,
        Self::Sflow,
        Self::Api,
        Self::Signals,
    ];

    /// What the log and the documentation call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Worker => "worker",
            Self::Watchdog => "watchdog",
            Self::Port => "port",
            Self::Tap => "tap",
            Self::Stream => "stream",
            Self::Pcap => "pcap",
            Self::Sflow => "sflow",
            Self::Api => "api",
            Self::Signals => "signals",
        }
    }

    /// Its calls beyond those of every thread.
    fn own(self) -> Vec<&'static [Call]> {
        match self {
            Self::Control => {
                let others = Self::ALL.into_iter().filter(|kind| *kind != Self::Control);
                let inherited = others.flat_map(Self::own);
                inherited.chain([CONTROL, CONTROL_ALWAYS, CONTROL_OLD]).collect()
            }
            Self::Worker => vec![WORKER, WORKER_OLD],
            Self::Port | Self::Stream => {
                let plain = [EVENTS, EVENTS_OLD, SOCKETS, LOOK, LOOK_OLD, UNLINK, UNLINK_OLD];
                plain.into_iter().chain([PORT, STARTS]).collect()
            }
            Self::Tap => vec![EVENTS, EVENTS_OLD, LOOK, LOOK_OLD, TAP],
            Self::Sflow => vec![calls![SYS_connect, SYS_sendto, SYS_getsockname]],
            Self::Api => vec![EVENTS, EVENTS_OLD, SOCKETS, API],
            Self::Signals => vec![calls![SYS_recvfrom]],
            Self::Watchdog | Self::Pcap => Vec::new(),
        }
    }

    /// What such a thread may do.
    pub(crate) fn calls(self) -> impl Iterator<Item = Call> {
        self.own().into_iter().chain([EVERY, EVERY_ALWAYS]).flatten().copied()
    }
}

/// The name of a system call, if it is one of those that are named here.
pub(crate) fn name_of(number: i64) -> Option<&'static str> {
    // A signal handler asks: nothing is allocated.
    let all = [
        EVERY,
        EVERY_ALWAYS,
        EVENTS,
        EVENTS_OLD,
        SOCKETS,
        LOOK,
        LOOK_OLD,
        UNLINK,
        UNLINK_OLD,
        WORKER,
        WORKER_OLD,
        PORT,
        STARTS,
        TAP,
        API,
        CONTROL,
        CONTROL_ALWAYS,
        CONTROL_OLD,
        NEVER,
        NEVER_OLD,
    ];
    let found = all.into_iter().flatten().find(|call| call.number == number)?;
    found.name.strip_prefix("SYS_")
}
