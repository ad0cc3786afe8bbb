//! What one switch leaves to the next of a port that VMMs connect to: a [`record::Record`] and its
//! descriptors, which [`keep::Keeping`] has held, and [`keep::find`] finds again.

pub mod keep;
pub mod record;
pub mod standing;
