//! Who is believed, and who not.
#![allow(clippy::cast_possible_truncation)]

mod agree;
mod discovery;
mod frames;
mod guards;
mod names;
mod packets;

use vmlan_frame::{HEAD, Reason};

use crate::fuzz::settings;

/// The settings of [`crate::fuzz`] by name.
const ANY: u8 = 0;
const FIRST: u8 = 1;
const LISTED: u8 = 2;
const TWO: u8 = 3;
const IPS: u8 = 4;
const DHCP: u8 = 8;
const RA: u8 = 16;

/// What a port with the settings `bits` is told of this frame.
fn judge(bits: u8, frame: &[u8]) -> Result<(), Reason> {
    let head = &frame[..frame.len().min(HEAD)];
    let verdict = settings(bits).check(head, frame.len());
    assert_eq!(crate::fuzz::claims(&[&[bits], frame].concat()), verdict.is_ok());
    verdict
}

/// Asserts that a frame passes under all settings named.
#[track_caller]
fn passes(settings: &[u8], frame: &[u8]) {
    for bits in settings {
        assert_eq!(judge(*bits, frame), Ok(()), "settings {bits:#x}: {frame:02x?}");
    }
}

/// Asserts that a frame is refused for `reason` under all settings named.
#[track_caller]
fn refused(settings: &[u8], frame: &[u8], reason: Reason) {
    for bits in settings {
        assert_eq!(judge(*bits, frame), Err(reason), "settings {bits:#x}: {frame:02x?}");
    }
}
