#![no_main]
//! Addresses, keys, the configuration file, options for VMMs. Inputs: see `vmlan_config::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmlan_config::fuzz::config(data));
