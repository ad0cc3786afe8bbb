//! Accesses that go on without their memory: the last resort of the SIGBUS handler.
//!
//! Zeros cannot always be put in the place of a file that shrank: a process may have no mapping
//! left, or no memory for one. Then the access itself ends. Each instruction that touches guest
//! memory is listed, with a place to go on at ([`fixup`], after the kernel's exception table). What
//! should have been read is then zero, what should have been written is lost, and the map is
//! poisoned as ever. It costs nothing until then.
//!
//! The C library's `memmove` cannot be listed, but the call of it is. It keeps nothing on the
//! stack (its assembly for x86-64, in glibc and in musl), so its return address says where it was
//! called from. Other architectures than x86-64 have no such list.

/// Where an instruction that faults goes on. All offsets are from their own place.
#[repr(C)]
#[derive(Debug)]
struct Fixup {
    /// The instructions from here...
    start: i32,
    /// ...to before here,
    end: i32,
    /// go on here.
    landing: i32,
}

/// Text for `asm!`: what faults between the labels 2 and 3 goes on at `landing`.
#[cfg(target_arch = "x86_64")]
macro_rules! fixup {
    ($landing:literal) => {
        concat!(
            ".pushsection vmlan_fixups, \"aR\", @progbits\n",
            ".balign 4\n",
            ".long 2b - .\n",
            ".long 3b - .\n",
            ".long ",
            $landing,
            " - .\n",
            ".popsection",
        )
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use fixup;

/// Lets the interrupted access go on without its memory. False: it is none of ours.
///
/// # Safety
/// `context` is what the kernel gave to the handler of a fault in this thread.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn go_on(context: *mut libc::c_void) -> bool {
    use crate::cell::Integer;
    use std::sync::atomic::Ordering;
    // SAFETY: a handler with SA_SIGINFO gets a ucontext, which is its own to change.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let get = |at: i32| usize::try_from(at).ok().and_then(|at| registers.get(at).copied());
    let (Some(ip), Some(sp)) = (get(libc::REG_RIP), get(libc::REG_RSP)) else { return false };
    let (ip, sp) = (ip.cast_unsigned(), sp.cast_unsigned());
    let found = landing(ip).map(|at| (at, sp)).or_else(|| {
        let top = usize::try_from(sp).ok()?;
        // SAFETY: the interrupted code's stack.
        let back = unsafe { u64::load(std::ptr::without_provenance(top), Ordering::Relaxed) };
        Some((landing(back.wrapping_sub(1))?, sp.wrapping_add(8)))
    });
    let Some((ip, sp)) = found else { return false };
    for (at, value) in [(libc::REG_RIP, ip), (libc::REG_RSP, sp)] {
        if let Some(register) = usize::try_from(at).ok().and_then(|at| registers.get_mut(at)) {
            *register = value.cast_signed();
        }
    }
    true
}

/// Where the instruction at `ip` goes on, if it is listed.
#[cfg(target_arch = "x86_64")]
fn landing(ip: u64) -> Option<u64> {
    unsafe extern "C" {
        #[link_name = "__start_vmlan_fixups"]
        static FIRST: Fixup;
        #[link_name = "__stop_vmlan_fixups"]
        static END: Fixup;
    }
    let at = |offset: &i32| {
        let here = std::ptr::from_ref(offset).addr() as u64;
        here.wrapping_add_signed(i64::from(*offset))
    };
    // SAFETY: the linker makes both symbols, around the entries that `fixup` puts between them,
    // which nobody changes.
    let list = unsafe {
        let (first, end) = (&raw const FIRST, &raw const END);
        std::slice::from_raw_parts(first, (end.addr() - first.addr()) / size_of::<Fixup>())
    };
    let hit = |f: &&Fixup| ip >= at(&f.start) && ip < at(&f.end);
    list.iter().find(hit).map(|f| at(&f.landing))
}

/// As for x86-64, where nothing is listed.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn go_on(_: *mut libc::c_void) -> bool {
    false
}
