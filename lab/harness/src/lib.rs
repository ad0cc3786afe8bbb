//! The laboratory's harness: what tests and benches start, measure and end.
//!
//! Three nouns: a [`Guest`] is a Linux VM in stock QEMU (TCG, no KVM, no root), a [`NetNs`] is a
//! network namespace that plays the host, and a [`Switch`] is the `vmlan switch` process under
//! test. Guest and namespace are both a [`LanHost`]: something with an address that runs shell
//! commands. [`connectivity`] holds what one host asks of another.
//!
//! Everything that is started ends with its owner: by `Drop`, and by the parent-death signal if the
//! owner itself is killed. What is missing on the machine is reported as one line that says what to
//! do, mostly `scripts/setup.sh test`.
//!
//! It depends on none of our crates: it starts the program as a user would.
#![forbid(unsafe_code)]

pub mod connectivity;
mod cpu;
mod error;
mod family;
pub mod frr;
mod lan_host;
mod lingering_socket;
pub mod linux_module;
mod machine;
mod netns;
mod process;
mod program;
mod scratch;
mod service_manager;
mod silent_file;
mod stop;
mod switch;
pub mod testpmd;
pub mod usage;
pub mod vm;

pub use cpu::Pin;
pub use error::{HarnessError, Result, SETUP};
pub use family::{Family, kill9};
pub use lan_host::{LanHost, Said};
pub use lingering_socket::lingering_socket;
pub use machine::Machine;
pub use netns::NetNs;
pub use process::{Launch, Process};
pub use program::{build, find_program, last_lines, output_of, use_program, vmlan_program};
pub use scratch::Scratch;
pub use service_manager::ServiceManager;
pub use silent_file::SilentFile;
pub use stop::Stop;
pub use switch::Switch;
pub use vm::{Boot, Destination, Extras, Guest, Image, kernel_headers, qemu};
