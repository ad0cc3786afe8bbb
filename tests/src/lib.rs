//! Tests across crates: house rules, sockets, real guests in QEMU.
//!
//! Processes, network namespaces and Linux guests are the laboratory's ([`vmlan_harness`]). What is
//! here plays guests inside the test process ([`virtio_guest`], [`chip_guest`]), on a switch that
//! is a process ([`Switch`]) or inside it too ([`in_process_lan`]), and holds what several tests
//! ask of a NIC, of a hostile guest or of one that is killed.

pub use vmlan_harness::{
    Boot, Destination, Extras, Guest, HarnessError, Image, LanHost, NetNs, Process, Result, Said,
    ServiceManager, Switch, build, connectivity, find_program, frr, kernel_headers, kill9,
    linux_module, output_of, qemu, testpmd, usage, vmlan_program,
};

pub mod boot_server;
pub mod chip_guest;
pub mod chip_loop;
pub mod chip_offload;
pub mod counting_allocator;
pub mod dpdk_lan;
pub mod e1000_lan;
pub mod exchange;
pub mod gso;
pub mod guest_testpmd;
pub mod guest_tools;
pub mod held_machine;
pub mod hostile_chip;
pub mod hostile_vhost_user;
pub mod in_process_chip;
pub mod in_process_lan;
pub mod kept;
pub mod killed_guest;
pub mod linux_nic;
pub mod linux_nic_lan;
pub mod linux_nic_suite;
pub mod numbered;
pub mod random;
pub mod sleep_together;
pub mod steps;
pub mod streams;
pub mod successors;
pub mod virtio_guest;
