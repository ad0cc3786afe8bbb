#![no_main]
//! What policies let pass about who a frame is from, against another parser. Inputs: see
//! `vmlan_switch::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_switch::fuzz::claims(data);
});
