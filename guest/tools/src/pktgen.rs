//! Traffic tools: what users of netmap's `pkt-gen` know as `-f tx|rx|ping|pong|txseq|rxseq`, on a
//! [`VirtioNet`](vmlan_driver::virtio::VirtioNet) or an [`E1000`](vmlan_driver::e1000::E1000).
//!
//! ```no_run
//! use vmlan_tools::pktgen::{self, Function, Options};
//! let mut options = Options::new("vhost-user:/run/vm1.sock".parse().unwrap(), Function::Tx);
//! options.seconds = Some(std::time::Duration::from_secs(5));
//! let summary = pktgen::run(&options, &mut |report| eprintln!("{report}")).unwrap();
//! println!("{:.0} frames/s", summary.frames_per_s);
//! ```
//! The engine prints nothing: all it has to say goes through the callback, which runs in the loop
//! that moves frames and must not block. It keeps going when the back end dies, waiting
//! [`Options::patience`] for a new one.

mod capture;
mod engine;
mod frame;
mod histogram;
mod options;
mod rate_limit;
mod report;
mod sequence;
mod summary;
#[cfg(test)]
mod tests;

pub use capture::{Capture, CaptureError};
pub use engine::run;
pub(crate) use histogram::Histogram;
pub use histogram::Latency;
pub use options::{Function, Options, OptionsError};
pub(crate) use rate_limit::RateLimiter;
pub(crate) use report::scaled;
pub use report::{Interval, Report};
pub(crate) use sequence::Sequences;
pub use summary::Summary;

use vmlan_driver::nic::NicError;
pub use vmlan_driver::nic::{Connected, Registers};
pub use vmlan_transport::{Mac, MacError};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PktGenError {
    #[error("wrong options")]
    Options(#[from] OptionsError),
    #[error("the NIC failed")]
    Device(#[from] NicError),
    #[error("-a: processor {cpu} cannot be used: `nproc` and `taskset -p $$` show which there are")]
    Cpu { cpu: u16, source: std::io::Error },
    #[error("interrupted while it waited for the NIC: nothing was sent or received")]
    Interrupted,
}
