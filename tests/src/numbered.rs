//! Numbered frames: every byte follows from a frame's number, so that a receiver can tell that what
//! came is the next one expected, byte for byte. And what tests wait by: progress, deadlines, a
//! state that settles.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long nothing may move before a test gives up: a safety net for hangs, and nothing is judged
/// by it. So it is minutes, which no machine needs however slow or busy it is.
pub const STALL: Duration = Duration::from_secs(180);
/// From this length on frames are IPv4 with UDP, whose ports tell the flow.
pub const UDP_FROM: usize = 50;

/// A MAC address.
pub type MacBytes = [u8; 6];

/// The MAC address of flow `flow` of guest `guest`.
pub fn mac(guest: u8, flow: u8) -> MacBytes {
    [0x52, 0x54, 0, 0, guest, flow]
}

/// A frame of `len` bytes, all of which follow from the arguments. From [`UDP_FROM`] bytes on it is
/// UDP over IPv4.
pub fn frame(to: MacBytes, from: MacBytes, n: u64, len: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(from[5]) << 56 | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = vec![0; len];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    for chunk in bytes[14..].chunks_mut(8) {
        chunk.copy_from_slice(&random()[..chunk.len()]);
    }
    if len >= UDP_FROM {
        let ip = u16::try_from(len - 14).expect("at most 64 KiB").to_be_bytes();
        let udp = u16::try_from(len - 34).expect("at most 64 KiB").to_be_bytes();
        let port = [0x40, from[5]];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34].copy_from_slice(&[
            0x45, 0, ip[0], ip[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, from[4], 1, 10, 0, to[4], 1,
        ]);
        bytes[34..42].copy_from_slice(&[port[0], port[1], port[0], port[1], udp[0], udp[1], 0, 0]);
    }
    bytes
}

/// Lengths of the frames of a flow, by number: all from `least` to `most`, in an order that mixes
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Shortest, in bytes.
    pub least: usize,
    /// Longest, in bytes.
    pub most: usize,
}

impl Sizes {
    /// The length of frame `n`.
    pub fn of(self, n: u64) -> usize {
        let span = self.most - self.least + 1;
        // A prime that divides no span used here, so every length comes once in each `span` frames.
        let step = usize::try_from(n).expect("64 bits").wrapping_mul(7919);
        self.least + step % span
    }

    /// How many frames have every length once.
    pub fn all(self) -> u64 {
        (self.most - self.least + 1) as u64
    }
}

/// The frames that are to come, of each flow.
#[derive(Debug, Default)]
pub struct Expected {
    next: HashMap<MacBytes, u64>,
    /// Short frames arrive with zeros up to 60 bytes: there is an e1000 on the way.
    pub padded: bool,
}

impl Expected {
    /// Forgets what was expected, for the next round.
    pub fn start_over(&mut self) {
        self.next.clear();
    }

    /// Judges a frame that came to guest `id`; false if it is not for `dst`: frames for others come
    /// until the switch knows where those are, and a NIC does not pass them on.
    ///
    /// # Panics
    /// When it is not the next of its flow, byte for byte.
    pub fn judge(&mut self, id: u8, dst: MacBytes, bytes: &[u8], sizes: Sizes) -> bool {
        if bytes[..6] != dst {
            return false;
        }
        let from: MacBytes = bytes[6..12].try_into().expect("six bytes");
        let n = self.next.entry(from).or_insert(0);
        let mut good = frame(dst, from, *n, sizes.of(*n));
        if self.padded && good.len() < 60 {
            good.resize(60, 0);
        }
        assert!(bytes == good, "guest {id}: frame {n} of {from:x?} {}", difference(bytes, &good));
        *n += 1;
        true
    }
}

/// Ends the whole test if a count that grows with each frame stands still for long: a guest whose
/// register access is never answered sleeps in a system call, and so would the test for ever. Ends
/// with what is returned.
#[must_use]
pub fn watch_over(frames: Arc<AtomicU64>, state: impl Fn() -> String + Send + 'static) -> Watched {
    let over = Arc::new(AtomicBool::new(false));
    let watched = Watched(Arc::clone(&over));
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        while !over.load(Ordering::Relaxed) {
            let now = frames.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > STALL + STALL / 4 {
                eprintln!("hung after {seen} frames: {}", state());
                std::process::exit(101);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    watched
}

/// As long as it lives, somebody watches.
#[derive(Debug)]
pub struct Watched(Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether it comes to hold, of a state that somebody else is still on the way to.
pub fn settles(mut state: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + STALL;
    while !state() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn difference(got: &[u8], good: &[u8]) -> String {
    let at = got.iter().zip(good).position(|(a, b)| a != b);
    let (got_len, len) = (got.len(), good.len());
    format!("is not what was sent: {got_len} bytes for {len}, first difference at {at:?}")
}

/// Sets its flag when dropped: a thread that fails tells the others to end.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A deadline that moves on while there is progress.
pub struct Progress(Instant);

impl Default for Progress {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Progress {
    /// `moved` frames went on; with none for [`STALL`] the test fails with `state`.
    ///
    /// # Panics
    /// Then.
    pub fn note(&mut self, moved: u64, state: impl FnOnce() -> String) {
        if moved > 0 {
            self.0 = Instant::now();
            return;
        }
        assert!(self.0.elapsed() < STALL, "nothing moves any more: {}", state());
        std::thread::sleep(Duration::from_micros(20));
    }
}
