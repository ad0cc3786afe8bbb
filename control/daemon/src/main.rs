//! vmlan: a LAN for virtual machines.
fn main() {}
