#![no_main]
//! Header parser, offload check, checksums and segmentation. Inputs: see `vmlan_frame::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_frame::fuzz::frame(data));
