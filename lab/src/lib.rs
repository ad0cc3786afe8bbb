//! The laboratory: what `vmlan bench`, `vmlan demo` and `vmlan probe` do.

mod alike;
pub mod bench;
pub mod demo;
mod failure;
mod hosts;
mod native;
mod output;
pub mod probe;
mod sys;

pub use failure::Failure;

/// The commit this was built from.
pub const COMMIT: &str = env!("VMLAN_COMMIT");
