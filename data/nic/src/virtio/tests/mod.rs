//! The data path against a tiny guest.
mod flow;
mod guest;
mod hostile;
mod property;
mod replay;
