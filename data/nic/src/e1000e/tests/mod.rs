//! What an 82574L does that an 82540EM does not. What both do is tested there.
#![allow(clippy::cast_possible_truncation)]

mod interrupts;
mod known_faults;
mod queues;
mod receive;
mod registers;
mod replay;

use crate::chip::Controlled;
use crate::intel::guest::{GuestOf, HEAD, HIGH, LEN, RD, TAIL};

/// A guest with this chip.
type Guest = GuestOf<super::I82574>;

const CTRL_EXT: u64 = 0x18;
const ICR: u64 = 0xc0;
const ICS: u64 = 0xc8;
const IMS: u64 = 0xd0;
const IMC: u64 = 0xd8;
const EIAC: u64 = 0xdc;
const IAM: u64 = 0xe0;
const IVAR: u64 = 0xe4;
const EITR: u64 = 0xe8;
const RCTL: u64 = 0x100;
const PSRCTL: u64 = 0x2170;
const RXCSUM: u64 = 0x5000;
const RFCTL: u64 = 0x5008;
const MRQC: u64 = 0x5818;

const RXQ0: u32 = 1 << 20;
const RXQ1: u32 = 1 << 21;
const TXQ0: u32 = 1 << 22;
const OTHER: u32 = 1 << 24;
const LSC: u32 = 4;
const EXTEN: u32 = 1 << 15;
/// RCTL: on, broadcasts; of long frames, and of packet split.
const ON: u32 = 2 | 1 << 15;
const LPE: u32 = 1 << 5;
const SPLIT: u32 = 1 << 10;

/// MSI-X as Linux sets it up: vector 0 for frames received, 1 for those sent, 2 for the rest.
fn with_vectors() -> Guest {
    let guest = Guest::new();
    guest.chip.write_config(0xa2, &[0, 0x80]);
    guest.set(IVAR, 0x800a_0908);
    guest.set(EIAC, RXQ0 | TXQ0);
    guest.set(IAM, u32::MAX);
    guest.set(CTRL_EXT, 1 << 24 | 1 << 31);
    guest.set(IMS, RXQ0 | TXQ0 | OTHER | LSC);
    guest
}

/// Messages sent since the last call.
fn sent(guest: &Guest) -> Vec<u16> {
    std::mem::take(&mut *guest.host.sent.lock().unwrap())
}

/// The receive ring anew, with `units` units of 16 bytes, and a tail.
fn receive_ring(guest: &Guest, at: u64, units: u32, tail: u32) {
    guest.set(RD, at as u32);
    guest.set(RD + HIGH, 0);
    guest.set(RD + LEN, 16 * units);
    guest.set(RD + HEAD, 0);
    guest.set(RD + TAIL, tail);
}
