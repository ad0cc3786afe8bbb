#![no_main]
//! A whole switch: two hostile peers, an operator, and two honest guests that must not notice.
//! Inputs: see `vmlan_engine::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_engine::fuzz::switch(data));
