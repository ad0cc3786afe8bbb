//! Tests across crates: houserules, sockets, real guests in QEMU.
