#![no_main]
//! A vhost-user front end against one connection's state. Inputs: see `vmlan_attach::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_attach::fuzz::vhost_user(data));
