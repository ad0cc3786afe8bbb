//! Copies from, to and between memory that others change at the same time.
//!
//! For Rust a plain read of bytes that a guest, its VMM or another peer may store to meanwhile is a
//! data race, which is undefined behaviour whatever the CPU does. So on x86-64 every copy is made
//! by assembly. The compiler does not see the accesses: it cannot repeat, split or drop them, and
//! it believes nothing about the bytes but what the copy holds. What the assembly does is what
//! relaxed atomic loads and stores of single bytes would do, some of them twice. So a race gives
//! any mixture of old and new bytes, and nothing worse.
//!
//! Short copies (headers, descriptors, frames up to 128 bytes) are overlapping moves from both
//! ends: no loop and no call. All loads come before all stores, so overlapping runs are copied
//! correctly. Longer copies call the C library's `memmove`, as Rust's own copy would, but from
//! assembly.
//!
//! Nanoseconds for a copy out of a cached, misaligned run (Xeon, Sapphire Rapids):
//!
//! | way | 60 bytes | 1,514 bytes | 65,536 bytes |
//! | --- | --- | --- | --- |
//! | plain moves and `memcpy`: a data race | 1.7 | 12.5 | 1,624 |
//! | moves and `memmove` in assembly: this file | 1.3 | 11.2 | 1,577 |
//! | `rep movsb` | 3.3 | 17.4 | 1,567 |
//! | relaxed atomic words, bytes at both ends | 4.9 | 77 | 3,219 |
//! | volatile words, bytes at both ends | 5.0 | 77 | 3,224 |
//! | relaxed atomic bytes | 11 | 260 | 22,680 |
//!
//! A copy whose memory is gone zeros what it was to fill, as far as that is there
//! (`fixup.rs`).
//!
//! Other architectures copy by atomic bytes: as right, and slow.

#[cfg(target_arch = "x86_64")]
use crate::fixup::fixup;

/// Copies `n` bytes from `src` to `dst`, each by an atomic access as far as Rust is concerned.
///
/// # Safety
/// Both runs must be mapped, `dst` writable. Others may access them by atomic accesses, or from
/// outside of this process in any way.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    use std::arch::asm;

    /// Loads from the given places of `src`, then stores to the same places of `dst`.
    macro_rules! moves {
        ($mov:literal, $class:ident, $($reg:ident $place:literal)+) => {
            asm!(
                "2:",
                $(concat!($mov, " {", stringify!($reg), "}, [{src}", $place, "]"),)+
                $(concat!($mov, " [{dst}", $place, "], {", stringify!($reg), "}"),)+
                "3:",
                fixup!("{gone}"),
                src = in(reg) src,
                dst = in(reg) dst,
                n = in(reg) n,
                $($reg = out($class) _,)+
                gone = label {
                // SAFETY: the caller's run, or what is left of it.
                unsafe { zero(dst, n) }
            },
                options(nostack, preserves_flags),
            )
        };
    }

    // SAFETY: each arm accesses 0..n of both runs only, by the bounds of its pattern.
    unsafe {
        match n {
            33..=64 => moves!("movups", xmm_reg,
                a "" b " + 16" c " + {n} - 32" d " + {n} - 16"),
            129.. => copy_long(src, dst, n),
            65..=128 => moves!("movups", xmm_reg,
                a "" b " + 16" c " + 32" d " + 48"
                e " + {n} - 64" f " + {n} - 48" g " + {n} - 32" h " + {n} - 16"),
            17..=32 => moves!("movups", xmm_reg, a "" b " + {n} - 16"),
            8..=16 => moves!("mov", reg, a "" b " + {n} - 8"),
            _ => copy_long(src, dst, n),
        }
    }
}

/// As [`copy`], by a call.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_long(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: `memmove` is called with the C ABI's registers, a stack aligned for it, and all that
    // it may change named. The runs are the caller's.
    unsafe {
        std::arch::asm!(
            "2: call [rip + {memmove}@GOTPCREL]",
            "3:",
            fixup!("{gone}"),
            memmove = sym libc::memmove,
            in("rdi") dst,
            in("rsi") src,
            in("rdx") n,
            lateout("rax") _,
            gone = label {
                // SAFETY: the caller's run, or what is left of it.
                unsafe { zero(dst, n) }
            },
            clobber_abi("C"),
        );
    }
}

/// Zeros what a copy whose memory is gone may have left as it was: the bytes of somebody else.
///
/// # Safety
/// `dst` is `n` bytes and writable; or gone as well.
#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
unsafe fn zero(dst: *mut u8, n: usize) {
    // SAFETY: the caller's bytes.
    unsafe {
        std::arch::asm!(
            "2: rep stosb",
            "3:",
            fixup!("3b"),
            inout("rcx") n => _,
            inout("rdi") dst => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}

/// As for x86-64.
///
/// # Safety
/// As for x86-64.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
pub(crate) unsafe fn copy_by_bytes(src: *const u8, dst: *mut u8, n: usize) {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    for i in 0..n {
        // SAFETY: the caller's promise; nothing accesses these bytes but atomically.
        unsafe {
            let byte = AtomicU8::from_ptr(src.cast_mut().wrapping_add(i)).load(Relaxed);
            AtomicU8::from_ptr(dst.wrapping_add(i)).store(byte, Relaxed);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use copy_by_bytes as copy;
