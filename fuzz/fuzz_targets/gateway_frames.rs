#![no_main]
//! Frames of guests into a gateway. Inputs: see `vmlan_gateway::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_gateway::fuzz::frames(data));
