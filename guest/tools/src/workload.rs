//! What `vmlan stack` and `vmlan load` share: the workloads that netperf's users know, what a run
//! is asked to do, and what it counts. The first runs them on a stack of its own, the second on
//! the kernel's sockets.

mod datagrams;
mod pattern;
mod requests;
mod summary;
mod tally;
mod task;

pub(crate) use self::datagrams::{Gaps, number};
pub(crate) use self::pattern::{Pattern, byte};
pub(crate) use self::requests::{Requests, Unanswered};
pub use self::summary::{Interval, Totals};
pub(crate) use self::tally::{Counts, Tally};
pub use self::task::{ECHO_PORT, SINK_PORT, Task, TaskError, Workload};
