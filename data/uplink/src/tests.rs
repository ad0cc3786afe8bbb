//! What the tests of all kinds share.

pub(crate) mod transfer;
pub(crate) mod veth;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vmlan_frame::{Batch, Changed, Offload, Port, Sink};
use vmlan_ram::Slice;

/// Runs `f` in a thread with its own network namespace; none if we may not have one.
pub(crate) fn namespace<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|s| s.spawn(|| own_namespace().then(f)).join().unwrap())
}

/// Moves this thread to a new network namespace, if it may.
pub(crate) fn own_namespace() -> bool {
    let outcome = crate::sys::unshare_net();
    if let Err(e) = &outcome {
        assert!(!required("VMLAN_REQUIRE_ROOT"), "tests of devices need root: {e}");
        println!("skipped: tests of devices need root: {e}");
    }
    outcome.is_ok()
}

pub(crate) fn ip(args: &str) {
    run("ip", args);
}

pub(crate) fn run(program: &str, args: &str) {
    let status = Command::new(program).args(args.split(' ')).status().unwrap();
    assert!(status.success(), "{program} {args}");
}

/// Keeps what it is given, and holds what it is told to.
#[derive(Default)]
pub(crate) struct Keep {
    pub(crate) frames: Vec<(Vec<u8>, Offload)>,
    /// Frames beginning with this byte are held.
    pub(crate) hold: Option<u8>,
    pub(crate) batches: usize,
    /// Frames of the longest batch.
    pub(crate) most: usize,
    /// Frames and bytes that the port dropped by itself.
    pub(crate) skipped: (usize, u64),
}

impl Sink for Keep {
    fn skipped(&mut self, frames: usize, bytes: u64) {
        self.skipped.0 += frames;
        self.skipped.1 += bytes;
    }

    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.batches += 1;
        self.most = self.most.max(batch.len());
        for i in 0..batch.len() {
            let frame = batch.frame(i).unwrap();
            let mut bytes = vec![0; frame.len];
            assert_eq!(frame.copy_to(&mut bytes), frame.len);
            let offload = frame.offload;
            if self.hold == Some(bytes[0]) {
                batch.hold(i);
            } else {
                self.frames.push((bytes, offload));
            }
        }
    }
}

/// Counts calls of `changed`.
pub(crate) fn counted() -> (Arc<AtomicUsize>, Changed) {
    let n = Arc::new(AtomicUsize::new(0));
    let m = Arc::clone(&n);
    let count = move || {
        m.fetch_add(1, Ordering::SeqCst);
    };
    (n, Arc::new(count))
}

/// Waits up to twenty seconds.
pub(crate) fn wait(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(20), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Pulls until `n` frames came.
pub(crate) fn pull(port: &dyn Port, n: usize) -> Vec<(Vec<u8>, Offload)> {
    let (mut batch, mut keep) = (Batch::new(), Keep::default());
    wait(&format!("{n} frames"), || {
        port.pull(0, &mut batch, 256, &mut keep);
        keep.frames.len() >= n
    });
    keep.frames
}

/// Pushes frames that lie in one piece; returns what `push` does.
pub(crate) fn push(port: &dyn Port, frames: &[(&[u8], Offload)]) -> usize {
    let mut batch = Batch::new();
    for (bytes, offload) in frames {
        let cut = bytes.len().min(vmlan_frame::HEAD);
        let body = [Slice::from_bytes(&bytes[cut..])];
        batch.add_parts(&bytes[..cut], body, *offload).unwrap();
    }
    let mut list: Vec<u16> = (0..u16::try_from(frames.len()).unwrap()).collect();
    port.push(&batch, &mut list)
}

/// A frame of `len` bytes that begins with `first` and goes on with a pattern.
pub(crate) fn frame(first: u8, len: usize) -> Vec<u8> {
    let pattern = (0..len).map(|i| u8::try_from(i * 7 % 251).unwrap());
    let mut bytes: Vec<u8> = pattern.collect();
    bytes[0] = first;
    bytes
}

/// True if `variable` is set to 1: then what is missing is a failure.
pub(crate) fn required(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|v| v == "1")
}

/// xorshift64: the same numbers each time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|b| *b = self.next().to_le_bytes()[3]);
    }
}

pub(crate) fn bytes_of(frames: Vec<(Vec<u8>, Offload)>) -> Vec<Vec<u8>> {
    frames.into_iter().map(|(bytes, _)| bytes).collect()
}
