#![no_main]
//! DHCP messages of guests. Inputs: see `vmlan_gateway::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_gateway::fuzz::dhcp(data));
