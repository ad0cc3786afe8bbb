//! Single integers in memory that others read and write.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// Integers that are read and written each by one access, as by an atomic.
///
/// On x86-64 that is a plain move, in assembly, so that an access whose memory is gone can go on
/// without it (`fixup.rs`): it reads 0, or writes nothing.
pub(crate) trait Integer: Copy {
    /// # Safety
    /// `p` is aligned and mapped. Others access it by atomic accesses, or from outside of this
    /// process in any way.
    unsafe fn load(p: *const Self, order: Ordering) -> Self;

    /// # Safety
    /// As for [`Integer::load`], and `p` is writable.
    unsafe fn store(p: *mut Self, value: Self, order: Ordering);
}

#[cfg(target_arch = "x86_64")]
macro_rules! integer {
    ($int:ty, $atomic:ident, $wide:ty, $class:ident, $load:literal, $no:literal, $put:literal) => {
        impl Integer for $int {
            #[inline(always)]
            unsafe fn load(p: *const Self, order: Ordering) -> Self {
                let value: $wide;
                // SAFETY: reads the caller's integer. `readonly`, but not `pure`: made once, where
                // it stands. Every load of this CPU acquires.
                unsafe {
                    std::arch::asm!(
                        concat!("2: ", $load),
                        "3:",
                        ".pushsection .text.vmlan_fixups, \"ax\", @progbits",
                        concat!("4: ", $no),
                        "jmp 3b",
                        ".popsection",
                        crate::fixup::fixup!("4b"),
                        p = in(reg) p,
                        v = lateout($class) value,
                        options(nostack, preserves_flags, readonly),
                    );
                }
                if order != Ordering::Relaxed {
                    compiler_fence(Ordering::Acquire);
                }
                #[allow(clippy::cast_possible_truncation)] // The rest is zero.
                #[allow(trivial_numeric_casts)]
                {
                    value as Self
                }
            }

            #[inline(always)]
            unsafe fn store(p: *mut Self, value: Self, order: Ordering) {
                // SAFETY: writes the caller's integer. Every store of this CPU releases.
                unsafe {
                    std::arch::asm!(
                        concat!("2: ", $put),
                        "3:",
                        crate::fixup::fixup!("3b"),
                        p = in(reg) p,
                        v = in($class) value,
                        options(nostack, preserves_flags),
                    );
                }
                if order == Ordering::SeqCst {
                    fence(Ordering::SeqCst);
                }
            }
        }
    };
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! integer {
    ($int:ty, $atomic:ident, $($_:tt)*) => {
        impl Integer for $int {
            #[inline(always)]
            unsafe fn load(p: *const Self, order: Ordering) -> Self {
                // SAFETY: the caller's promise.
                unsafe { std::sync::atomic::$atomic::from_ptr(p.cast_mut()) }.load(order)
            }

            #[inline(always)]
            unsafe fn store(p: *mut Self, value: Self, order: Ordering) {
                // SAFETY: the caller's promise.
                unsafe { std::sync::atomic::$atomic::from_ptr(p) }.store(value, order);
            }
        }
    };
}

integer!(
    u8,
    AtomicU8,
    u8,
    reg_byte,
    "mov {v}, byte ptr [{p}]",
    "mov {v}, 0",
    "mov byte ptr [{p}], {v}"
);
integer!(
    u16,
    AtomicU16,
    u32,
    reg,
    "movzx {v:e}, word ptr [{p}]",
    "mov {v:e}, 0",
    "mov word ptr [{p}], {v:x}"
);
integer!(
    u32,
    AtomicU32,
    u32,
    reg,
    "mov {v:e}, dword ptr [{p}]",
    "mov {v:e}, 0",
    "mov dword ptr [{p}], {v:e}"
);
integer!(
    u64,
    AtomicU64,
    u64,
    reg,
    "mov {v}, qword ptr [{p}]",
    "mov {v:e}, 0",
    "mov qword ptr [{p}], {v}"
);

/// An integer that is aligned and mapped for `'m`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'m, I>(*mut I, PhantomData<&'m [AtomicU8]>);

impl<I: Integer> Cell<'_, I> {
    /// The integer at `p`.
    ///
    /// # Safety
    /// It is aligned and mapped, for the lifetime of the result, and writable if it is written to.
    /// Others access it by atomic accesses, or from outside of this process in any way.
    #[inline]
    pub(crate) unsafe fn new(p: *mut I) -> Self {
        Self(p, PhantomData)
    }

    /// Reads it, once.
    #[inline(always)]
    pub(crate) fn load(self, order: Ordering) -> I {
        // SAFETY: `new`'s promise.
        unsafe { I::load(self.0, order) }
    }

    /// Writes it.
    #[inline(always)]
    pub(crate) fn store(self, value: I, order: Ordering) {
        // SAFETY: `new`'s promise.
        unsafe { I::store(self.0, value, order) }
    }
}

/// Integers that lie one behind another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cells<'m, I> {
    first: *mut I,
    n: usize,
    _run: PhantomData<&'m [AtomicU8]>,
}

impl<'m, I: Integer> Cells<'m, I> {
    /// The `n` integers from `first` on.
    ///
    /// # Safety
    /// As for [`Cell::new`], for each of them.
    #[inline]
    pub(crate) unsafe fn new(first: *mut I, n: usize) -> Self {
        Self { first, n, _run: PhantomData }
    }

    /// The integer of this number.
    #[inline]
    pub(crate) fn get(self, i: usize) -> Option<Cell<'m, I>> {
        // SAFETY: it is one of them.
        (i < self.n).then(|| unsafe { Cell::new(self.first.wrapping_add(i)) })
    }
}

impl Cell<'_, u8> {
    /// Sets bits, whatever others do to the rest.
    #[inline]
    pub(crate) fn set_bits(self, bits: u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `new`'s promise.
        unsafe {
            std::arch::asm!(
                "2: lock or byte ptr [{p}], {bits}",
                "3:",
                crate::fixup::fixup!("3b"),
                p = in(reg) self.0,
                bits = in(reg_byte) bits,
                options(nostack),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: `new`'s promise.
        unsafe { AtomicU8::from_ptr(self.0) }.fetch_or(bits, Ordering::Relaxed);
    }
}

impl Cell<'_, u32> {
    /// Replaces it by `new` if it is `old`. True if it was.
    #[inline]
    pub(crate) fn replace(self, old: u32, new: u32) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let found: u32;
            // SAFETY: `new`'s promise. Without its memory, anything but `old` is found.
            unsafe {
                std::arch::asm!(
                    "2: lock cmpxchg dword ptr [{p}], {new:e}",
                    "3:",
                    ".pushsection .text.vmlan_fixups, \"ax\", @progbits",
                    "4: not eax",
                    "jmp 3b",
                    ".popsection",
                    crate::fixup::fixup!("4b"),
                    p = in(reg) self.0,
                    new = in(reg) new,
                    inout("eax") old => found,
                    options(nostack),
                );
            }
            found == old
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            // SAFETY: `new`'s promise.
            let cell = unsafe { std::sync::atomic::AtomicU32::from_ptr(self.0) };
            cell.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }
    }
}
