//! What happens at a call that is not allowed: SIGSYS, one line, the end. The only file of this
//! crate with `unsafe` in it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::EXIT_CODE;
use crate::calls::name_of;

thread_local! {
    /// No destructor and no lazy start: a signal handler may read it.
    static NAME: Cell<&'static str> = const { Cell::new("") };
}

/// Lines go to the journal, which takes a priority before them.
static JOURNAL: AtomicBool = AtomicBool::new(false);

/// What the log calls the calling thread.
pub(crate) fn name_thread(name: &'static str) {
    NAME.with(|cell| cell.set(name));
}

/// Who is told of a call, if not the log. It allocates nothing.
static REPORT: OnceLock<fn(i32)> = OnceLock::new();

/// Has `report` told of a call, in a process that has no log.
pub(crate) fn report_to(report: fn(i32)) {
    let _ = REPORT.set(report);
}

/// `siginfo_t` of SIGSYS (sigaction(2)); libc has no access to these fields.
#[repr(C)]
struct SysInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    address: *const c_void,
    call: c_int,
    arch: u32,
}

/// Installs the handler for the whole process.
///
/// # Errors
/// That of `sigaction`.
pub(crate) fn install() -> io::Result<()> {
    JOURNAL.store(std::env::var_os("JOURNAL_STREAM").is_some(), Ordering::Relaxed);
    // SAFETY: an all-zero sigaction is a valid value of this plain C struct. The handler has the
    // SA_SIGINFO signature and is async-signal-safe.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsys as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigsys(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo and context to an SA_SIGINFO handler, and for
    // SIGSYS the siginfo has this layout.
    let (call, context) = unsafe { ((*info.cast::<SysInfo>()).call, &mut *context.cast()) };
    if asks_what_glibc_asks(call, context) {
        return answer(context, -i64::from(libc::EACCES));
    }
    match REPORT.get() {
        Some(report) => report(call),
        None => log_line(call),
    }
    // SAFETY: it is async-signal-safe, and any thread may call it.
    unsafe { libc::_exit(EXIT_CODE) };
}

fn log_line(call: c_int) {
    let mut line = Line::default();
    if JOURNAL.load(Ordering::Relaxed) {
        line.add("<2>");
    }
    line.add("sandbox: a ");
    line.add(NAME.with(Cell::get));
    line.add(" thread called ");
    line.add(name_of(call));
    line.add(" (");
    line.number(call);
    line.add("), which no such thread needs: the switch ends, it may have been taken over\n");
    // SAFETY: `line` is readable; the call is async-signal-safe, and any thread may make it.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

/// A line made without allocating.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }
}

impl Line {
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
        }
    }

    fn number(&mut self, n: c_int) {
        let mut digits = [0; 10];
        let (mut rest, mut first) = (n.unsigned_abs(), digits.len());
        while first == digits.len() || rest > 0 {
            first -= 1;
            digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        self.add(std::str::from_utf8(&digits[first..]).unwrap_or_default());
    }
}

/// Files that glibc's allocator may look at when a thread frees much memory, or needs an arena of
/// its own (glibc before 2.35 counts processors by them). It does without.
const GLIBC: [&CStr; 4] = [
    c"/proc/sys/vm/overcommit_memory",
    c"/sys/devices/system/cpu/online",
    c"/proc/stat",
    c"/proc/cpuinfo",
];

fn asks_what_glibc_asks(call: c_int, context: &libc::ucontext_t) -> bool {
    if i64::from(call) != libc::SYS_openat {
        return false;
    }
    let path = path_argument(context);
    // SAFETY: the second argument of openat is a string of the caller's; an honest one can be read.
    // One that cannot ends the process, as this call is about to.
    !path.is_null() && GLIBC.contains(&unsafe { CStr::from_ptr(path) })
}

#[cfg(target_arch = "x86_64")]
fn path_argument(context: &libc::ucontext_t) -> *const c_char {
    let register = context.uc_mcontext.gregs[libc::REG_RSI as usize];
    std::ptr::with_exposed_provenance(usize::try_from(register.cast_unsigned()).unwrap_or_default())
}

#[cfg(target_arch = "x86_64")]
fn answer(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
}

#[cfg(target_arch = "aarch64")]
fn path_argument(context: &libc::ucontext_t) -> *const c_char {
    std::ptr::with_exposed_provenance(context.uc_mcontext.regs[1] as usize)
}

#[cfg(target_arch = "aarch64")]
fn answer(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.regs[0] = result.cast_unsigned();
}

/// What a test has a thread try. The call is one that must not work.
///
/// # Errors
/// That of the system.
#[cfg(debug_assertions)]
pub(crate) fn try_call(number: i64, [a, b, c, d, e, f]: [usize; 6]) -> io::Result<()> {
    // SAFETY: `misbehave` passes pointers to what lives until this returns, and asks for nothing
    // that changes this process's memory but one byte of its own.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
