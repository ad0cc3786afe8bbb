//! The data path against a tiny guest.
mod flow;
mod guest;
mod hostile;
mod moderation;
mod proofs;
mod property;
mod replay;
