#![no_main]
//! VMware's vmxnet3: what its driver shares, commands, rings, in any order. Inputs: see
//! `vmlan_nic::vmxnet3::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_nic::vmxnet3::fuzz::vmxnet3(data);
});
