//! The running switch: worker threads, the table of ports, and the control thread that changes it.
//!
//! ```text
//!  API thread            control thread               workers
//!  ... ─Action─► [ apply ] ─► [ ports ] ─► [ worker ]
//!                one at a time   open, close   move frames
//! ```

pub mod action;
pub mod control_thread;
pub mod events;
pub mod explain;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod info;
pub mod ports;
pub mod resolvers;
pub mod stats;
pub mod worker;

pub use vmlan_uplink::socket_mode;
