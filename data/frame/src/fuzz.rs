//! The body of the fuzz target `frame`: parser, offload check, finisher. Kept inputs are replayed
//! as a plain test.
//!
//! An input is a claim of 12 bytes and a frame:
//!
//! | byte | meaning |
//! | --- | --- |
//! | 0 | bit 0 `needs_csum`, 1 `csum_valid`, 2 and 3 kind of segmentation, 4 `ecn` |
//! | 1 | what the receiver takes ([`crate::Offloads::bits`]) |
//! | 2 | bytes of each piece of memory the frame lies in, less one |
//! | 3 | payload appended, in units of 256 bytes |
//! | 4 to 11 | `gso_size`, `hdr_len`, `csum_start`, `csum_offset`, big-endian |
#![allow(clippy::indexing_slicing)]

use std::cell::RefCell;

use vmlan_ram::Slice;

use crate::{
    BATCH, Batch, Finisher, FrameView, Gso, HEAD, Headers, MAX_FRAME, Network, Offload, Offloads,
    flow_hash,
};

/// Bytes of the claim before the frame.
pub const CLAIM: usize = 12;

/// Feeds `data` through everything in this crate that reads a guest's bytes.
///
/// # Panics
/// If a frame comes out that does not follow from the frame that went in.
pub fn frame(data: &[u8]) {
    let Some((claim, bytes)) = data.split_at_checked(CLAIM) else { return };
    let appended = (0..251).cycle().take(usize::from(claim[3]) * 256);
    let bytes: Vec<u8> = bytes.iter().copied().chain(appended).collect();
    let headers = Headers::parse(&bytes[..bytes.len().min(HEAD)], bytes.len());
    assert!(headers.header_len <= HEAD && headers.l4 <= HEAD && headers.l3 <= HEAD);
    let _ = flow_hash(&bytes[..bytes.len().min(HEAD)], bytes.len());
    contents(&headers, &bytes[..bytes.len().min(HEAD)], bytes.len());
    let pieces: Vec<Slice<'_>> =
        bytes.chunks(usize::from(claim[2]) + 1).map(Slice::from_bytes).collect();
    SPARE.with_borrow_mut(|[spare, out]| {
        let mut batch = Batch::take(spare);
        if batch.add(&pieces, offload(claim)).is_ok()
            && let Some(view) = batch.frame(0)
        {
            assert_eq!(copy(&view), bytes, "a batch changes nothing");
            finish(&view, &bytes, Offloads::from_bits(claim[1]), out);
        }
        batch.give_back(spare);
    });
}

/// What policies ask for lies inside the packet, and only one kind of it is there.
fn contents(headers: &Headers, head: &[u8], len: usize) {
    let (arp, neighbour) = (headers.arp(head, len), headers.neighbour(head));
    assert!(arp.is_none() || (neighbour.is_none() && headers.network == Network::Other));
    if let Some(message) = neighbour {
        assert!(headers.understood(len) && headers.ports(head).is_none());
        assert!(message.link_layers().count() * 8 <= HEAD - headers.l4);
    }
    assert!(!headers.later || (headers.fragment && headers.l4 == 0));
}

thread_local! {
    /// Storage of the batches, reused as a worker does.
    static SPARE: RefCell<[Batch<'static>; 2]> = RefCell::new([Batch::new(), Batch::new()]);
}

fn offload(claim: &[u8]) -> Offload {
    let word = |at: usize| u16::from_be_bytes([claim[at], claim[at + 1]]);
    Offload {
        needs_csum: claim[0] & 1 != 0,
        csum_valid: claim[0] & 2 != 0,
        gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp][usize::from(claim[0] >> 2 & 3)],
        ecn: claim[0] & 16 != 0,
        gso_size: word(4),
        hdr_len: word(6),
        csum_start: word(8),
        csum_offset: word(10),
    }
}

fn copy(view: &FrameView<'_, '_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len];
    assert_eq!(view.copy_to(&mut bytes), view.len);
    bytes
}

/// What went in, and what the checks know of it.
struct Given<'a> {
    bytes: &'a [u8],
    offload: Offload,
    headers: Headers,
    takes: Offloads,
}

fn finish(view: &FrameView<'_, '_>, bytes: &[u8], takes: Offloads, spare: &mut Batch<'static>) {
    let headers = Headers::parse(view.head, view.len);
    let given = Given { bytes, offload: view.offload, headers, takes };
    let mut finisher = Finisher::new(*view, takes).unwrap_or_else(|r| unreachable!("{r:?}"));
    let (mut frames, mut payload) = (0, Vec::new());
    let mut more = true;
    while more {
        let mut out = Batch::take(spare);
        more = finisher.fill(&mut out).unwrap_or_else(|r| unreachable!("{r:?}"));
        assert!(!out.is_empty() && out.len() <= BATCH);
        for frame in (0..out.len()).filter_map(|i| out.frame(i)) {
            given.explains(&frame, &mut payload);
            frames += 1;
        }
        out.give_back(spare);
    }
    assert_eq!(frames, finisher.count());
    if !takes.covers(view.offload.needs()) && view.offload.gso != Gso::None {
        assert_eq!(payload, bytes[headers.header_len..], "all of the payload, once, in order");
    }
}

impl Given<'_> {
    fn explains(&self, frame: &FrameView<'_, '_>, payload: &mut Vec<u8>) {
        let out = copy(frame);
        if self.takes.covers(self.offload.needs()) {
            assert!(out == self.bytes && frame.offload == self.offload);
            return;
        }
        assert!(self.takes.covers(frame.offload.needs()));
        if self.offload.gso == Gso::None {
            return self.explains_sum(&out);
        }
        let (h, l4) = (&self.headers, self.headers.l4);
        assert!(out.len() <= MAX_FRAME);
        assert!(out.len() <= h.header_len + usize::from(self.offload.gso_size));
        assert_eq!(out[..h.l3], self.bytes[..h.l3]);
        assert_eq!(h.addresses(&out), h.addresses(self.bytes));
        assert_eq!(out[l4..l4 + 4], self.bytes[l4..l4 + 4], "ports");
        let segment = Headers::parse(&out[..out.len().min(HEAD)], out.len());
        assert!(segment.parsed && h.l3 + segment.ip_len == out.len());
        let rest = add(pseudo(h, &out), &out[l4..]);
        if h.network == Network::Ipv4 {
            assert_eq!(add(0, &out[h.l3..l4]), 0xffff);
        }
        if !frame.offload.needs_csum {
            assert_eq!(rest, 0xffff);
        }
        payload.extend_from_slice(&out[h.header_len..]);
    }

    fn explains_sum(&self, out: &[u8]) {
        let start = usize::from(self.offload.csum_start);
        let field = start + usize::from(self.offload.csum_offset);
        let stored = u32::from(u16::from_be_bytes([out[field], out[field + 1]]));
        let mut same = out.to_vec();
        same[field..field + 2].copy_from_slice(&self.bytes[field..field + 2]);
        assert_eq!(same, self.bytes, "only the checksum field changes");
        assert_eq!(add(stored, &self.bytes[start..]), 0xffff);
    }
}

/// The plainest possible sum (RFC 1071), as a reference.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        let word = u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

fn pseudo(h: &Headers, bytes: &[u8]) -> u32 {
    let Some((source, destination)) = h.addresses(bytes) else { return 0 };
    let words = [h.protocol.into(), bytes.len() - h.l4].map(|n: usize| n.to_be_bytes());
    words.iter().fold(add(add(0, source), destination), |sum, word| add(sum, word))
}
