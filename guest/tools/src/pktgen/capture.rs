//! Frames out of a capture file: pcap (microseconds or nanoseconds, either byte order) and pcapng
//! (draft-ietf-opsawg-pcapng). Nothing in the file is believed before it is checked.

use std::io;
use std::path::Path;
use vmlan_transport::numbers::{limit64, narrow32};

const ETHERNET: u32 = 1; // LINKTYPE_ETHERNET.
const LEAST: usize = 60; // No Ethernet frame is shorter, without FCS: NICs fill up to it.
const HEADER: usize = 14; // Bytes of an Ethernet header.
const NANOS: u128 = 1_000_000_000;

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CaptureError {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error("this is not a capture: a file in the format pcap or pcapng is expected")]
    Format,
    #[error("there is no frame in this capture")]
    Empty,
    #[error("its frames are of link type {0}, and only Ethernet (1) can be sent")]
    Link(u32),
    #[error("the capture is cut off in the record at byte {0}: is it still being written?")]
    Cut(usize),
    #[error("the record at byte {0} is broken: it contradicts itself")]
    Broken(usize),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    start: usize,
    len: u32,
    /// Nanoseconds since the first frame.
    due: u64,
}

/// The frames of a capture, in memory, as they are sent: those below 60 bytes are filled up with
/// zeros.
#[derive(Debug, Default)]
pub struct Capture {
    bytes: Vec<u8>,
    records: Vec<Record>,
    first: Option<u64>,
    snapped: usize,
}

impl Capture {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        Self::parse(&std::fs::read(path)?)
    }

    /// Reads what a file holds.
    pub fn parse(file: &[u8]) -> Result<Self, CaptureError> {
        let mut capture = Self::default();
        let magic = file.first_chunk::<4>().ok_or(CaptureError::Format)?;
        match u32::from_le_bytes(*magic) {
            0xa1b2_c3d4 => capture.classic(Reader { file, swapped: false }, 1000)?,
            0xa1b2_3c4d => capture.classic(Reader { file, swapped: false }, 1)?,
            0xd4c3_b2a1 => capture.classic(Reader { file, swapped: true }, 1000)?,
            0x4d3c_b2a1 => capture.classic(Reader { file, swapped: true }, 1)?,
            0x0a0d_0d0a => capture.next_generation(file)?,
            _ => return Err(CaptureError::Format),
        }
        if capture.is_empty() { Err(CaptureError::Empty) } else { Ok(capture) }
    }

    /// How many frames.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Is there no frame? Never true for a capture that was opened.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of the longest frame.
    pub fn longest(&self) -> u32 {
        self.records.iter().map(|record| record.len).max().unwrap_or(0)
    }

    /// Frames of which the capture holds only the beginning.
    pub fn snapped(&self) -> usize {
        self.snapped
    }

    /// A frame, and the nanoseconds after the first one at which it was captured.
    ///
    /// # Panics
    /// For a number that is not below [`Self::len`].
    pub fn frame(&self, n: usize) -> (&[u8], u64) {
        let Record { start, len, due } = self.records[n];
        (&self.bytes[start..start + len as usize], due)
    }

    /// Nanoseconds from the first frame to the next lap's first: the recorded time and one mean
    /// gap.
    pub fn period(&self) -> u64 {
        let last = self.records.last().map_or(0, |record| record.due);
        let gaps = (self.records.len() as u64).saturating_sub(1);
        last.saturating_add(last.checked_div(gaps).unwrap_or(0)).max(1)
    }

    fn add(&mut self, frame: &[u8], original: u32, nanos: u128) {
        let nanos = limit64(nanos);
        let first = *self.first.get_or_insert(nanos);
        let before = self.records.last().map_or(0, |record| record.due);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.bytes.resize(start + frame.len().max(LEAST), 0);
        let len = narrow32((self.bytes.len() - start) as u64);
        self.snapped += usize::from((frame.len() as u64) < u64::from(original));
        // Clocks are set back at times; the order in the file is what counts.
        self.records.push(Record { start, len, due: nanos.saturating_sub(first).max(before) });
    }

    fn classic(&mut self, file: Reader<'_>, unit: u128) -> Result<(), CaptureError> {
        let link = file.word(20).ok_or(CaptureError::Cut(0))? & 0xffff;
        if link != ETHERNET {
            return Err(CaptureError::Link(link));
        }
        let mut at = 24;
        while at < file.file.len() {
            let cut = CaptureError::Cut(at);
            let head = [0, 4, 8, 12].map(|field| file.word(at + field));
            let [Some(seconds), Some(fraction), Some(len), Some(original)] = head else {
                return Err(cut);
            };
            let frame = file.slice(at + 16, len).ok_or(cut)?;
            if frame.len() < HEADER {
                return Err(CaptureError::Broken(at));
            }
            let nanos = u128::from(seconds) * NANOS + u128::from(fraction) * unit;
            self.add(frame, original, nanos);
            at += 16 + frame.len();
        }
        Ok(())
    }

    fn next_generation(&mut self, file: &[u8]) -> Result<(), CaptureError> {
        let mut section = Section { swapped: false, interfaces: Vec::new() };
        let mut at = 0;
        while at < file.len() {
            section.look_at_order(file, at);
            let reader = Reader { file, swapped: section.swapped };
            let (Some(kind), Some(total)) = (reader.word(at), reader.word(at + 4)) else {
                return Err(CaptureError::Cut(at));
            };
            if total < 12 || total % 4 != 0 {
                return Err(CaptureError::Broken(at));
            }
            let block = reader.slice(at, total).ok_or(CaptureError::Cut(at))?;
            let body = Reader { file: &block[8..block.len() - 4], ..reader };
            self.block(&mut section, kind, body).ok_or(CaptureError::Broken(at))??;
            at += block.len();
        }
        Ok(())
    }

    /// One block; None when it contradicts itself.
    fn block(
        &mut self,
        section: &mut Section,
        kind: u32,
        body: Reader<'_>,
    ) -> Option<Result<(), CaptureError>> {
        match kind {
            1 => section.interfaces.push(Interface::read(body)?),
            3 => {
                let interface = *section.interfaces.first()?;
                let original = body.word(0)?;
                let most = if interface.snap == 0 { u32::MAX } else { interface.snap };
                return self.captured(interface, body.slice(4, original.min(most))?, original, 0);
            }
            // The obsolete Packet Block has a drop count beside a short interface number.
            2 | 6 => {
                let number = if kind == 2 { body.short(0)?.into() } else { body.word(0)? };
                let interface = *section.interfaces.get(number as usize)?;
                let stamp = u64::from(body.word(4)?) << 32 | u64::from(body.word(8)?);
                let nanos = u128::from(stamp) * NANOS / u128::from(interface.per_second);
                let frame = body.slice(20, body.word(12)?)?;
                return self.captured(interface, frame, body.word(16)?, nanos);
            }
            _ => {}
        }
        Some(Ok(()))
    }

    fn captured(
        &mut self,
        interface: Interface,
        frame: &[u8],
        original: u32,
        nanos: u128,
    ) -> Option<Result<(), CaptureError>> {
        if interface.link != ETHERNET {
            return Some(Err(CaptureError::Link(interface.link)));
        }
        if frame.len() < HEADER {
            return None;
        }
        self.add(frame, original, nanos);
        Some(Ok(()))
    }
}

/// What is said once for a part of a pcapng file.
struct Section {
    swapped: bool,
    interfaces: Vec<Interface>,
}

impl Section {
    /// A section header tells the byte order of all that follows, and its interfaces are new ones.
    fn look_at_order(&mut self, file: &[u8], at: usize) {
        let native = Reader { file, swapped: false };
        if native.word(at) == Some(0x0a0d_0d0a) {
            self.swapped = native.word(at + 8) == Some(0x4d3c_2b1a);
            self.interfaces.clear();
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u32,
    snap: u32,
    per_second: u64,
}

impl Interface {
    fn read(body: Reader<'_>) -> Option<Self> {
        let mut interface =
            Self { link: body.short(0)?.into(), snap: body.word(4)?, per_second: 1_000_000 };
        let mut at = 8;
        while let (Some(code), Some(len)) = (body.short(at), body.short(at + 2)) {
            if code == 0 {
                break;
            }
            // if_tsresol: a power of ten, or with the top bit of two.
            if (code, len) == (9, 1) {
                let value = u32::from(*body.file.get(at + 4)?);
                let two = value & 0x80 != 0;
                let base: u64 = if two { 2 } else { 10 };
                interface.per_second = base.checked_pow(value & 0x7f)?;
            }
            at += 4 + usize::from(len).next_multiple_of(4);
        }
        Some(interface)
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    file: &'a [u8],
    swapped: bool,
}

impl<'a> Reader<'a> {
    fn word(&self, at: usize) -> Option<u32> {
        let word = u32::from_le_bytes(*self.file.get(at..)?.first_chunk()?);
        Some(if self.swapped { word.swap_bytes() } else { word })
    }

    fn short(&self, at: usize) -> Option<u16> {
        let short = u16::from_le_bytes(*self.file.get(at..)?.first_chunk()?);
        Some(if self.swapped { short.swap_bytes() } else { short })
    }

    fn slice(&self, at: usize, len: u32) -> Option<&'a [u8]> {
        self.file.get(at..)?.get(..len as usize)
    }
}
