#![no_main]
//! A vfio-user client and its guest against one connection's state. Inputs: see
//! `vmlan_attach::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_attach::fuzz::vfio_user(data));
