use super::super::capture::{Capture, CaptureError};

/// Writes numbers in one byte order or the other.
struct Writer {
    bytes: Vec<u8>,
    big: bool,
}

impl Writer {
    fn word(&mut self, value: u32) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn short(&mut self, value: u16) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.word(kind);
        self.word(0);
        body(self);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let total = u32::try_from(self.bytes.len() + 4 - start).unwrap();
        self.word(total);
        let total = self.bytes[self.bytes.len() - 4..].to_vec();
        self.bytes[start + 4..start + 8].copy_from_slice(&total);
    }
}

fn frame(fill: u8, len: usize) -> Vec<u8> {
    vec![fill; len]
}

/// Two frames, 1.5 s apart: 100 bytes, and 42 of 1,000 bytes.
fn classic(big: bool, magic: u32, fraction: u32, link: u32) -> Vec<u8> {
    let mut out = Writer { bytes: Vec::new(), big };
    for word in [magic, 0x0004_0002, 0, 0, 65_535, link] {
        out.word(word);
    }
    for (seconds, fraction, len, original, fill) in
        [(7, 0, 100, 100, 1), (8, fraction, 42, 1000, 2)]
    {
        for word in [seconds, fraction, len, original] {
            out.word(word);
        }
        out.bytes.extend(frame(fill, len as usize));
    }
    out.bytes
}

fn sound(file: &[u8]) {
    let capture = Capture::parse(file).unwrap();
    assert_eq!((capture.len(), capture.longest(), capture.snapped()), (2, 100, 1));
    assert_eq!(capture.frame(0), (&frame(1, 100)[..], 0));
    let (short, due) = capture.frame(1);
    assert_eq!((&short[..42], &short[42..], due), (&frame(2, 42)[..], &[0; 18][..], 1_500_000_000));
    assert_eq!(capture.period(), 3_000_000_000);
}

#[test]
fn pcap_is_read_in_both_orders_and_both_units() {
    for big in [false, true] {
        sound(&classic(big, 0xa1b2_c3d4, 500_000, 1));
        sound(&classic(big, 0xa1b2_3c4d, 500_000_000, 1));
    }
}

/// The same frames, the second in a section of its own with another byte order and clock.
fn next_generation(big: bool, option: u8, stamps: [u64; 2]) -> Vec<u8> {
    let mut out = Writer { bytes: Vec::new(), big };
    for (n, stamp) in stamps.into_iter().enumerate() {
        out.block(0x0a0d_0d0a, |out| {
            out.word(0x1a2b_3c4d);
            out.short(1);
            (0..5).for_each(|_| out.short(0xffff));
        });
        out.block(1, |out| {
            out.short(1);
            out.short(0);
            out.word(0);
            out.short(9);
            out.short(1);
            out.bytes.extend([option, 0, 0, 0]);
            out.word(0);
        });
        out.block(0x0bad, |out| out.word(7));
        let (len, original, fill) = [(100, 100, 1), (42, 1000, 2)][n];
        out.block(6, |out| {
            let (high, low) = (stamp >> 32, stamp & 0xffff_ffff);
            for word in [0, high, low, len, original] {
                out.word(u32::try_from(word).unwrap());
            }
            out.bytes.extend(frame(fill, usize::try_from(len).unwrap()));
        });
        out.big = !out.big;
    }
    out.bytes
}

#[test]
fn pcapng_is_read_with_each_clock_and_several_sections() {
    for big in [false, true] {
        sound(&next_generation(big, 9, [7_000_000_000, 8_500_000_000]));
        sound(&next_generation(big, 3, [7_000, 8_500]));
        sound(&next_generation(big, 0x81, [14, 17]));
    }
}

#[test]
fn a_simple_packet_block_has_neither_time_nor_interface() {
    let mut file = next_generation(false, 9, [7, 8]);
    let mut out = Writer { bytes: Vec::new(), big: true };
    out.block(3, |out| {
        out.word(60);
        out.bytes.extend(frame(3, 60));
    });
    file.extend(&out.bytes);
    assert_eq!(Capture::parse(&file).unwrap().frame(2).0, frame(3, 60));
}

#[test]
fn what_is_no_capture_is_refused_and_never_believed() {
    let said = |file: &[u8]| Capture::parse(file).unwrap_err();
    assert!(matches!(said(b""), CaptureError::Format));
    assert!(matches!(said(b"\x7fELF...."), CaptureError::Format));
    assert!(matches!(said(&classic(false, 0xa1b2_c3d4, 0, 113)), CaptureError::Link(113)));
    assert!(matches!(said(&classic(false, 0xa1b2_c3d4, 0, 1)[..24]), CaptureError::Empty));
    let files = [classic(true, 0xa1b2_c3d4, 0, 1), next_generation(false, 9, [0, 1])];
    for file in files {
        // Cut anywhere but between two records, or with any byte changed: an error or frames, never
        // a panic.
        let whole: Vec<_> =
            (0..file.len()).filter(|len| Capture::parse(&file[..*len]).is_ok()).collect();
        assert!(whole.len() <= 4, "{whole:?}");
        for at in 0..file.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = file.clone();
                changed[at] = value;
                if let Ok(capture) = Capture::parse(&changed) {
                    (0..capture.len()).for_each(|n| assert!(capture.frame(n).0.len() >= 60));
                }
            }
        }
    }
}
