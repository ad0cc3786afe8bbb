#![no_main]
//! The 82540EM: registers, DMA, both sides, in any order. Inputs: see `vmlan_nic::e1000::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_nic::e1000::fuzz::e1000(data);
});
