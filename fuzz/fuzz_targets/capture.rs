#![no_main]
//! Capture files that pkt-gen replays. Inputs: see `vmlan_tools::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_tools::fuzz::capture(data));
