#![no_main]
//! HTTP and JSON of the API's clients. Inputs: see `vmlan_api::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_api::fuzz::api(data));
