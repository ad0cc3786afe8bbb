//! The few system calls that the standard library does not offer.

use std::io;

/// The effective user.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Clock ticks in a second, the unit of /proc/PID/stat.
#[must_use]
pub fn ticks_per_second() -> u32 {
    // SAFETY: sysconf takes a plain number and touches no memory.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u32::try_from(ticks).unwrap_or(100).max(1)
}

/// Asks a process to end.
///
/// # Errors
/// Those of `kill`.
pub fn terminate(pid: u32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: kill takes plain numbers and touches no memory.
    if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Puts the calling thread, and what it starts, into a network of its own; without root also into a user namespace of its own, in
/// which it is root. That takes a process with one thread.
///
/// # Errors
/// Those of `unshare`.
pub fn own_network() -> io::Result<()> {
    let root = effective_uid() == 0;
    let flags = if root { libc::CLONE_NEWNET } else { libc::CLONE_NEWNET | libc::CLONE_NEWUSER };
    // SAFETY: unshare takes plain numbers and touches no memory; neither flag parts threads from what they share in user space.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives a guest the low region of this memory, from its address 0 on.
///
/// # Errors
/// Those of `KVM_SET_USER_MEMORY_REGION`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn give_memory(
    vm: &kvm_ioctls::VmFd,
    ram: &std::sync::Arc<vmlan_transport::memory::Ram>,
) -> io::Result<()> {
    let [low, _] = ram.regions();
    let region = kvm_bindings::kvm_userspace_memory_region {
        memory_size: low.size,
        userspace_addr: low.user_addr,
        ..Default::default()
    };
    // A guest may outlive whoever made it: its memory stays mapped for as long as this process lives.
    std::mem::forget(ram.clone());
    // SAFETY: the region is mapped for good, since one owner of `ram` is never dropped, and nobody holds a Rust reference to bytes
    // in it: `Ram` is made for memory that another writes at any time.
    unsafe { vm.set_user_memory_region(region) }.map_err(io::Error::from)
}
