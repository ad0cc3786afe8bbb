//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng-02), in the host's byte order, which the
//! section header tells.

use vmlan_frame::{FrameView, Reason};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFDROP: u16 = 5;

const INBOUND: u32 = 1; // Bits 0 and 1 of `epb_flags`: the direction, seen from the interface.
const OUTBOUND: u32 = 2;

/// Longest packet block beyond its data: fixed parts, padding, flags, a comment of up to 32 bytes.
pub(super) const OVERHEAD: usize = 128;

/// Section header (4.1).
pub(super) fn section(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |out| {
        u32s(out, &[BYTE_ORDER_MAGIC]);
        u16s(out, &[1, 0]);
        // Length of the section: not given.
        out.extend_from_slice(&u64::MAX.to_ne_bytes());
        option(out, SHB_USERAPPL, b"vmlan");
        option(out, OPT_END, b"");
    });
}

/// Interface description (4.2): Ethernet, times in nanoseconds.
pub(super) fn interface(out: &mut Vec<u8>, name: &str, snaplen: u32) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        u16s(out, &[LINKTYPE_ETHERNET, 0]);
        u32s(out, &[snaplen]);
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, b"");
    });
}

/// Interface statistics (4.6): frames that were lost to the capture.
pub(super) fn statistics(out: &mut Vec<u8>, interface: u32, time: u64, lost: u64) {
    block(out, INTERFACE_STATISTICS, |out| {
        u32s(out, &[interface]);
        timestamp(out, time);
        option(out, ISB_IFDROP, &lost.to_ne_bytes());
        option(out, OPT_END, b"");
    });
}

/// Enhanced packet (4.3): up to `snaplen` bytes of a frame, its direction, and why it was dropped.
pub(super) fn packet(
    out: &mut Vec<u8>,
    (interface, time, snaplen): (u32, u64, usize),
    outgoing: bool,
    frame: &FrameView<'_, '_>,
    dropped: Option<Reason>,
) {
    let captured = frame.len.min(snaplen);
    block(out, ENHANCED_PACKET, |out| {
        u32s(out, &[interface]);
        timestamp(out, time);
        u32s(out, &[length(captured), length(frame.len)]);
        let start = out.len();
        out.resize(start + captured, 0);
        frame.copy_to(out.get_mut(start..).unwrap_or_default());
        pad(out);
        option(out, EPB_FLAGS, &(if outgoing { OUTBOUND } else { INBOUND }).to_ne_bytes());
        if let Some(reason) = dropped {
            comment(out, reason);
        }
        option(out, OPT_END, b"");
    });
}

fn comment(out: &mut Vec<u8>, reason: Reason) {
    let (word, name) = (b"dropped: ", reason.name().as_bytes());
    u16s(out, &[OPT_COMMENT, short(word.len() + name.len())]);
    out.extend_from_slice(word);
    out.extend_from_slice(name);
    pad(out);
}

/// A block: type, length, body, length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    u32s(out, &[kind, 0]);
    body(out);
    let total = length(out.len() + 4 - start).to_ne_bytes();
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&total);
    }
    out.extend_from_slice(&total);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..value.len().min(255)).unwrap_or_default();
    u16s(out, &[code, short(value.len())]);
    out.extend_from_slice(value);
    pad(out);
}

/// Everything is a multiple of four bytes, and so is every block's start in a buffer.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// High half first, in either byte order (4.3).
fn timestamp(out: &mut Vec<u8>, time: u64) {
    let [a, b, c, d, e, f, g, h] = time.to_be_bytes();
    u32s(out, &[u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]);
}

/// The length of an option: 255 bytes at most, by whoever makes it.
fn short(n: usize) -> u16 {
    debug_assert!(n <= 255, "an option of {n} bytes");
    let [.., high, low] = n.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The length of a block or a frame, which is far below 4 GiB.
fn length(n: usize) -> u32 {
    debug_assert!(u32::try_from(n).is_ok(), "a block of {n} bytes");
    let [.., a, b, c, d] = n.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn u32s(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
}

fn u16s(out: &mut Vec<u8>, values: &[u16]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
}
