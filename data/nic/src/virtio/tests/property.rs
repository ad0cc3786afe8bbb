//! Any ring contents: bounded, no panic, no buffer used that was not made available, none twice.
