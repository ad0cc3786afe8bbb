//! Benchmarks: the switch alone, and vmlan beside its peers.
