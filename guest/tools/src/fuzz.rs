//! The body of the fuzz target `capture`: a file that is to be replayed (`pkt-gen -P`). Kept inputs
//! are replayed as a plain test.
//!
//! An input is a file.

use crate::pktgen::Capture;

/// Reads one file.
///
/// # Panics
/// If what was taken is not what a sender may rely on.
pub fn capture(file: &[u8]) {
    let capture = match Capture::parse(file) {
        Ok(capture) => capture,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    assert!(!capture.is_empty() && capture.snapped() <= capture.len());
    let (mut before, mut bytes) = (0, 0);
    for n in 0..capture.len() {
        let (frame, due) = capture.frame(n);
        assert!((60..=capture.longest() as usize).contains(&frame.len()));
        assert!(due >= before, "frame {n} is due before the one before it");
        // Those that are short are filled up.
        before = due;
        bytes += frame.len().saturating_sub(60);
    }
    assert!(bytes <= file.len(), "more frames than the file has bytes for");
    assert!(capture.period() > 0 && capture.period() >= before);
}

#[cfg(test)]
#[test]
fn kept_inputs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/capture");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(files.len() >= 8, "the seeds are gone from {corpus}");
    for file in files {
        capture(&std::fs::read(file.unwrap().path()).unwrap());
    }
}
