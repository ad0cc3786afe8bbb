//! User-space NIC drivers for tests, demos and packet programs.
