//! The data path against a tiny guest.
mod flow;
mod guest;
mod hostile;
mod migration;
mod moderation;
mod packed;
mod proofs;
mod property;
mod replay;
