#![no_main]
//! The RTL8139C+: registers, both modes, in any order. Inputs: see `vmlan_nic::rtl8139::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_nic::rtl8139::fuzz::rtl8139(data);
});
