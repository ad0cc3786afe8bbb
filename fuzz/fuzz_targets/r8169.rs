#![no_main]
//! The RTL8169SB: registers, both transmit rings, the receive ring, in any order. Inputs: see
//! `vmlan_nic::r8169::fuzz`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmlan_nic::r8169::fuzz::r8169(data);
});
