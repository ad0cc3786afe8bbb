#![no_main]
//! Both sides of virtio-net over arbitrary guest memory. Inputs: see `vmlan_nic::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_nic::fuzz::virtqueue(data));
