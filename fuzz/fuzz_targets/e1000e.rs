#![no_main]
//! The 82574L: registers, DMA, both sides, in any order. Inputs: see `vmlan_nic::e1000e::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_nic::e1000e::fuzz::e1000e(data);
});
