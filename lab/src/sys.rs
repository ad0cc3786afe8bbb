//! The few system calls that the standard library does not offer.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Puts the calling thread, and what it starts, into a network of its own; without root also into a
/// user namespace of its own, in which it is root. That takes a process with one thread.
pub fn own_network() -> io::Result<()> {
    let flags = match rustix::process::geteuid().is_root() {
        true => UnshareFlags::NEWNET,
        false => UnshareFlags::NEWNET | UnshareFlags::NEWUSER,
    };
    // SAFETY: neither flag parts threads from what they share in user space: descriptors and the
    // file system's state stay shared.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// Gives a guest the low region of this memory, from its address 0 on.
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
    // A guest may outlive whoever made it: its memory stays mapped for as long as this process
    // lives.
    std::mem::forget(ram.clone());
    // SAFETY: the region is mapped for good, since one owner of `ram` is never dropped, and nobody
    // holds a Rust reference to bytes in it: `Ram` is made for memory that another writes at any
    // time.
    unsafe { vm.set_user_memory_region(region) }.map_err(io::Error::from)
}
