//! Which system calls threads and processes may make: short lists, found by tracing all tests and
//! by reading. `docs/security.md` has them too; a test compares.

use crate::thread::Thread;

/// A system call and with which arguments it is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) name: &'static str,
    pub(crate) only: Only,
}

/// Conditions of a call, on the argument of a number. Words are for the documentation.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Only {
    /// With any arguments.
    Always,
    /// One of these values, in 32 bits; in words.
    Is(u8, &'static [u64], &'static str),
    /// This process.
    OwnProcess(u8),
    /// A null pointer; in words.
    Null(u8, &'static str),
    /// The bits of the first mask are those of the second; in words.
    Bits(u8, u64, u64, &'static str),
}

/// Calls that belong together. Names and words are for the documentation.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    /// What for.
    pub(crate) why: &'static str,
    pub(crate) calls: &'static [Call],
}

/// A group: calls with any arguments, those that x86-64 has beside newer ones, those with
/// conditions.
macro_rules! group {
    (
        $(#[$doc:meta])* $group:ident, $name:literal, $why:literal,
        [$($any:ident),* $(,)?], old [$($old:ident),* $(,)?],
        [$($call:ident: $only:expr),* $(,)?]
    ) => {
        $(#[$doc])*
        pub(crate) static $group: Group = Group {
            name: $name,
            why: $why,
            calls: &[
                $(Call { number: libc::$any, name: stringify!($any), only: Only::Always },)*
                $(
                    #[cfg(target_arch = "x86_64")]
                    Call { number: libc::$old, name: stringify!($old), only: Only::Always },
                )*
                $(Call { number: libc::$call, name: stringify!($call), only: $only },)*
            ],
        };
    };
}

/// A constant of libc as the kernel sees the argument.
const fn bits(constant: libc::c_int) -> u64 {
    constant.cast_unsigned() as u64
}

const NOT_CODE: Only = Only::Bits(2, bits(libc::PROT_EXEC), 0, "not executable");

const UNIX: Only = Only::Is(0, &[bits(libc::AF_UNIX)], "UNIX");

const NAMESPACES: u64 = bits(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID)
    | bits(libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP);
const THREAD: u64 = bits(libc::CLONE_THREAD);
const SHARED: u64 = THREAD | bits(libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT);

/// Opening what exists, without writing: which files, Landlock says.
const READ_ONLY: Only = Only::Bits(
    2,
    bits(libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC),
    bits(libc::O_RDONLY),
    "to read",
);

/// What a descriptor's flags, seals and copies need. Not `F_SETOWN`, by which the kernel signals
/// others.
const FCNTL: &[u64] = &[
    bits(libc::F_DUPFD_CLOEXEC),
    bits(libc::F_GETFD),
    bits(libc::F_SETFD),
    bits(libc::F_GETFL),
    bits(libc::F_SETFL),
    bits(libc::F_ADD_SEALS),
    bits(libc::F_GET_SEALS),
];

group!(
    EVERY,
    "base",
    "stack and heap, locks, clocks, the log, doorbells, its start and its end",
    [
        SYS_read,
        SYS_write,
        SYS_writev,
        SYS_close,
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
        SYS_restart_syscall,
    ],
    old [],
    [
        SYS_mmap: NOT_CODE,
        SYS_mprotect: NOT_CODE,
        SYS_fcntl: Only::Is(1, FCNTL, "flags, seals, copies"),
        SYS_tgkill: Only::OwnProcess(0),
        SYS_prlimit64: Only::Null(2, "to read"),
        // A crash is to end the process as what it is: handlers that cannot help put the default
        // action back.
        SYS_rt_sigaction: Only::Is(
            0,
            &[bits(libc::SIGBUS), bits(libc::SIGSEGV), bits(libc::SIGABRT)],
            "of crashes"
        ),
        SYS_prctl: Only::Is(
            0,
            &[bits(libc::PR_SET_NAME), bits(libc::PR_SET_TIMERSLACK)],
            "name, timer slack"
        ),
        // The handler of SIGTERM and SIGINT, which run on any thread, tells the one that waits.
        SYS_sendto: Only::Null(4, "where it is connected to"),
    ]
);

group!(
    EVENTS,
    "events",
    "waiting for descriptors",
    [SYS_ppoll, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2],
    old [SYS_poll, SYS_epoll_wait],
    []
);

group!(
    SOCKETS,
    "sockets",
    "bytes of sockets that are there",
    [
        SYS_accept4,
        SYS_recvfrom,
        SYS_recvmsg,
        SYS_sendmsg,
        SYS_readv,
        SYS_shutdown,
        SYS_getsockopt,
        SYS_setsockopt,
        SYS_getsockname,
        SYS_getpeername,
    ],
    old [],
    [SYS_ioctl: Only::Is(1, &[libc::FIONBIO, libc::FIONREAD], "FIONBIO, FIONREAD")]
);

group!(
    LOOK,
    "look",
    "what a descriptor is: a VM's memory, a socket's file, a TAP device",
    [
        SYS_statx,
        SYS_fstat,
        SYS_newfstatat,
        SYS_fstatfs,
        SYS_readlinkat,
        SYS_lseek,
        SYS_getdents64,
    ],
    old [SYS_readlink, SYS_stat, SYS_lstat],
    []
);

group!(
    /// Where a peer's memory shrank, what took its place is given back by whoever unmaps it.
    WORKER,
    "doorbells",
    "sleeping until a doorbell rings; a timer for interrupts that are held back; giving back zeros \
        that took the place of lost memory; finding out whose memory is slow",
    [
        SYS_epoll_ctl,
        SYS_epoll_pwait,
        SYS_epoll_pwait2,
        SYS_timerfd_settime,
        SYS_fallocate,
        SYS_pread64,
    ],
    old [SYS_epoll_wait],
    [
        SYS_recvfrom: Only::Is(2, &[0], "nothing: it wakes an XDP socket's driver"),
        SYS_getrusage: Only::Is(0, &[bits(libc::RUSAGE_THREAD)], "of its own"),
    ]
);

group!(
    PORT,
    "port",
    "a VM's memory, doorbells and timers; connecting to a VM; removing a socket's file",
    [
        SYS_connect,
        SYS_eventfd2,
        SYS_memfd_create,
        SYS_ftruncate,
        SYS_fallocate,
        SYS_timer_create,
        SYS_timer_settime,
        SYS_timer_delete,
        SYS_timerfd_create,
        SYS_timerfd_settime,
        SYS_unlinkat,
        SYS_pipe2,
        SYS_sendmmsg,
    ],
    old [SYS_unlink],
    [
        SYS_socket: UNIX,
        SYS_socketpair: UNIX,
        SYS_openat: READ_ONLY,
        SYS_rt_sigaction: Only::Is(0, &[bits(libc::SIGUSR1)], "SIGUSR1"),
    ]
);

group!(
    STARTS,
    "starts",
    "a thread of this process, with a lower weight where a peer uses much",
    // A filter cannot see the flags of `clone3`: it is answered by ENOSYS, and `clone` comes.
    [SYS_clone3, SYS_rseq, SYS_set_robust_list, SYS_setpriority],
    old [],
    [SYS_clone: Only::Bits(0, THREAD | NAMESPACES, THREAD, "threads")]
);

group!(
    TAP,
    "tap",
    "getting a TAP device back, and its link",
    [SYS_geteuid],
    old [],
    [
        SYS_socket: UNIX,
        SYS_openat: Only::Bits(2, bits(libc::O_CREAT | libc::O_TRUNC), 0, "what exists"),
        SYS_ioctl: Only::Is(
            1,
            &[
                libc::TUNSETIFF,
                libc::TUNGETIFF,
                libc::TUNSETVNETHDRSZ,
                libc::TUNSETOFFLOAD,
                libc::SIOCGIFFLAGS,
                libc::SIOCSIFFLAGS,
                libc::SIOCGIFMTU,
            ],
            "of TAP devices"
        ),
    ]
);

group!(
    PACKET,
    "packet",
    "following a network interface, and binding a packet socket to it again",
    [SYS_bind, SYS_getsockname, SYS_getsockopt, SYS_setsockopt],
    old [],
    [SYS_ioctl: Only::Is(
        1,
        &[
            libc::SIOCGIFNAME,
            libc::SIOCGIFINDEX,
            libc::SIOCGIFHWADDR,
            libc::SIOCETHTOOL,
            libc::SIOCGIFFLAGS,
            libc::SIOCGIFMTU,
        ],
        "of interfaces, to read"
    )]
);

/// Commands of bpf(2), from `linux/bpf.h`.
const BPF_MAP_CREATE: u64 = 0;
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_PROG_LOAD: u64 = 5;
const BPF_LINK_CREATE: u64 = 28;

group!(
    XDP,
    "xdp",
    "XDP sockets of an interface that comes back, and attaching the program to it",
    [],
    old [],
    [
        SYS_socket: Only::Is(0, &[bits(libc::AF_XDP)], "XDP"),
        SYS_bpf: Only::Is(
            0,
            &[BPF_MAP_UPDATE_ELEM, BPF_LINK_CREATE],
            "an entry of a map, a link of a program"
        ),
    ]
);

group!(SFLOW, "sflow", "the collector", [SYS_connect, SYS_getsockname], old [], []);

group!(
    API,
    "api",
    "HTTP; where relative places of ports begin",
    [SYS_eventfd2, SYS_getcwd],
    old [],
    []
);

group!(SIGNALS, "signals", "a byte of the handler", [SYS_recvfrom], old [], []);

group!(
    /// Of the first thread alone. What the threads it starts may do, it may do too: they inherit
    /// its filter.
    CONTROL,
    "control",
    "making sockets and capture files; filters of threads that it starts",
    [
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
    ],
    old [SYS_open, SYS_rename, SYS_chmod, SYS_chown, SYS_lchown, SYS_access],
    [
        SYS_socket: Only::Is(
            0,
            &[
                bits(libc::AF_UNIX),
                bits(libc::AF_INET),
                bits(libc::AF_INET6),
                bits(libc::AF_NETLINK),
                bits(libc::AF_PACKET),
                bits(libc::AF_XDP)
            ],
            "UNIX, IP, links, packets, XDP"
        ),
        SYS_prctl: Only::Is(
            0,
            &[bits(libc::PR_SET_NO_NEW_PRIVS), bits(libc::PR_GET_NAME)],
            "no new privileges"
        ),
        SYS_bpf: Only::Is(0, &[BPF_MAP_CREATE, BPF_PROG_LOAD], "maps and programs of XDP"),
        // Whether the process lives that made a socket which is in the way.
        SYS_kill: Only::Is(1, &[0], "signal 0: none"),
    ]
);

group!(
    KEEPER,
    "keeper",
    "taking, looking at and closing what strangers send",
    [
        SYS_recvmsg,
        SYS_sendmsg,
        SYS_accept4,
        SYS_close,
        SYS_shutdown,
        SYS_fstat,
        SYS_newfstatat,
        SYS_statx,
        SYS_fstatfs,
        SYS_readlinkat,
        SYS_clock_gettime,
        SYS_clock_nanosleep,
        SYS_rt_sigreturn,
        SYS_restart_syscall,
        SYS_exit,
        SYS_exit_group,
    ],
    old [],
    [
        // Debug builds look whether what they close is open.
        SYS_fcntl: Only::Is(
            1,
            &[bits(libc::F_GETFD), bits(libc::F_GET_SEALS)],
            "flags and seals, to read"
        ),
        SYS_setsockopt: Only::Is(2, &[bits(libc::SO_OOBINLINE)], "SO_OOBINLINE"),
    ]
);

group!(
    /// And what a keeper does before its own filter is in force.
    SPAWNER,
    "spawner",
    "to fork keepers, whose filter comes on top",
    [
        SYS_dup3,
        SYS_close_range,
        SYS_seccomp,
        SYS_set_robust_list,
        SYS_set_tid_address,
        SYS_rt_sigprocmask,
        SYS_gettid,
    ],
    old [SYS_dup2, SYS_fork],
    [
        SYS_clone: Only::Bits(0, SHARED | NAMESPACES, 0, "processes"),
        SYS_prctl: Only::Is(
            0,
            &[bits(libc::PR_SET_NAME), bits(libc::PR_SET_NO_NEW_PRIVS)],
            "name, no new privileges"
        ),
    ]
);

group!(
    GATEWAY,
    "gateway",
    "connections and datagrams of guests, and ports of the host that lead to them",
    [SYS_connect, SYS_bind, SYS_listen, SYS_sendto],
    old [],
    [SYS_socket: Only::Is(0, &[bits(libc::AF_INET), bits(libc::AF_INET6)], "IP")]
);

group!(
    HOLDER,
    "holder",
    "taking, having and giving back descriptors, in a table on the heap",
    [
        SYS_recvmsg,
        SYS_sendmsg,
        SYS_accept4,
        SYS_close,
        SYS_shutdown,
        SYS_ppoll,
        SYS_geteuid,
        SYS_clock_gettime,
        SYS_munmap,
        SYS_mremap,
        SYS_madvise,
        SYS_brk,
        SYS_rt_sigreturn,
        SYS_restart_syscall,
        SYS_exit,
        SYS_exit_group,
    ],
    old [SYS_poll],
    [
        SYS_mmap: NOT_CODE,
        SYS_mprotect: NOT_CODE,
        // Debug builds look whether what they close is open.
        SYS_fcntl: Only::Is(1, &[bits(libc::F_GETFD)], "flags, to read"),
        SYS_getsockopt: Only::Is(2, &[bits(libc::SO_PEERCRED)], "who connects"),
    ]
);

group!(
    /// Names for the log, of calls that nobody may make.
    NEVER,
    "never",
    "",
    [
        SYS_execve,
        SYS_execveat,
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        SYS_pidfd_open,
        SYS_pidfd_getfd,
        SYS_pidfd_send_signal,
        SYS_rt_sigqueueinfo,
        SYS_mount,
        SYS_unshare,
        SYS_setns,
        SYS_io_uring_setup,
        SYS_userfaultfd,
        SYS_setuid,
        SYS_setresuid,
        SYS_keyctl,
        SYS_wait4,
    ],
    old [SYS_vfork],
    []
);

/// All of them: of threads, of processes, and of nobody.
pub(crate) static ALL: [&Group; 19] = [
    &EVERY, &EVENTS, &SOCKETS, &LOOK, &WORKER, &PORT, &STARTS, &TAP, &PACKET, &XDP, &SFLOW, &API,
    &SIGNALS, &CONTROL, &KEEPER, &SPAWNER, &GATEWAY, &HOLDER, &NEVER,
];

/// The name of a system call, if it is one of those that are named here. Allocates nothing: signal
/// handlers ask.
pub fn name_of(number: i32) -> &'static str {
    let calls = || ALL.iter().flat_map(|group| group.calls);
    let found = calls().find(|call| call.number == number.into());
    found.and_then(|call| call.name.strip_prefix("SYS_")).unwrap_or("system call")
}

impl Thread {
    /// What such a thread may do.
    pub(crate) fn calls(self) -> impl Iterator<Item = Call> {
        self.groups().into_iter().flat_map(|group| group.calls).copied()
    }
}

#[cfg(test)]
mod tests;
