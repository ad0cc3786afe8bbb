//! The shared status block's flags, device side.
