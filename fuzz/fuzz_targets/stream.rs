#![no_main]
//! Bytes of a `stream:` peer, cut into frames. Inputs: see `vmlan_uplink::stream::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_uplink::stream::fuzz::stream(data));
