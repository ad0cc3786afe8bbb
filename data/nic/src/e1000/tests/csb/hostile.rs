//! Guests that break every rule of the block.
