#![no_main]
//! DNS messages of guests and of servers. Inputs: see `vmlan_gateway::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_gateway::fuzz::dns(data));
