#![no_main]
//! States of chips that no chip has written, and what becomes of a chip that takes one. Inputs: see
//! `vmlan_nic::chip::fuzz::state`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_nic::chip::fuzz::state::chip_state(data);
});
