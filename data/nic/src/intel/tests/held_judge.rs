//! Whether frames come as they must, though the switch dies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::{Batch, Offload};
use vmlan_ram::{Map, Window};

use super::guest::{Config, DATA, DEXT, EOP, FakeHost, IFCS, PciFunction, RS, TXSM, memory, tcp};
use super::{Intel, Model};
use crate::chip::held::HELD;

/// Frames of one batch: no more are repeated.
const BATCH: usize = 256;

/// Numbers by lot, always the same ones.
pub struct Random(pub u64);

impl Random {
    /// One below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Frames must come in order, by number, each once; a death allows one step back.
#[derive(Default)]
pub struct Judge {
    /// The next in order.
    pub next: u32,
    /// One more than the highest so far.
    pub high: u32,
    /// Steps back that are allowed.
    pub credit: u32,
    /// Steps back so far.
    pub repeats: usize,
    /// How each came when nobody died.
    pub first: HashMap<u32, (Vec<u8>, Offload)>,
}

impl Judge {
    /// Frame `n` has come. Those in `void` need not.
    pub fn came(&mut self, n: u32, bytes: &[u8], offload: Offload, void: &[u32]) {
        let new = (bytes.to_vec(), offload);
        while self.next < n && void.contains(&self.next) {
            self.next += 1;
        }
        assert!(n <= self.next, "{n} comes before {}", self.next);
        if n < self.next {
            assert!(self.credit > 0, "{n} comes again, not {}", self.next);
            assert!((self.next - n) as usize <= BATCH);
            self.credit -= 1;
            self.repeats += 1;
        }
        self.next = n + 1;
        self.high = self.high.max(self.next);
        let first = self.first.entry(n).or_insert_with(|| new.clone());
        assert_eq!(*first, new, "frame {n}");
    }
}

/// Takes frames, holds every n-th.
pub struct Wire<'j> {
    /// Who looks at them.
    pub judge: &'j mut Judge,
    /// 0: none.
    pub every: usize,
    /// Frames that need not come.
    pub void: &'j [u32],
}

impl vmlan_frame::Sink for Wire<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let frame = batch.frame(i).unwrap();
            if self.every > 0 && i % self.every == self.every - 1 {
                // What is behind one that is held comes again with it, if somebody dies.
                batch.hold(i);
                for later in i + 1..batch.len() {
                    batch.hold(later);
                }
                return;
            }
            let mut bytes = vec![0; frame.len];
            frame.copy_to(&mut bytes);
            let n = u32::from_le_bytes(bytes[60..64].try_into().unwrap());
            self.judge.came(n, &bytes, frame.offload, self.void);
        }
    }
}

/// All of `map`.
pub fn window(map: &Arc<Map>, len: usize) -> Window {
    map.window(0, len, 4096).unwrap()
}

/// A copy.
pub fn all(map: &Map, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    map.slice(0, len).unwrap().read(&mut bytes);
    bytes
}

/// A chip, and what it leaves.
pub fn make<M: Model>(
    config: Config,
    registers: &Arc<Map>,
    host: &Arc<FakeHost>,
) -> (Intel<M>, Arc<Map>) {
    let held = memory(HELD as u64);
    let chip = Intel::new(config, window(registers, 0x2000), host.clone());
    assert!(chip.hold(window(&held, HELD)));
    chip.renew();
    (chip, held)
}

/// Packet number `n`, which lies at `at`, and its descriptors: one for four frames has a context,
/// and one that is the first after a reset.
pub fn sent(n: u32, at: u64, fresh: bool) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut random = Random(u64::from(n) * 0x9e37_79b9 + 1);
    random.below(1);
    let mut packet = tcp(false, 60 + usize::try_from(random.below(200)).unwrap());
    packet[60..64].copy_from_slice(&n.to_le_bytes());
    let (len, mut list) = (packet.len() as u64, Vec::new());
    // One for four frames, and the first after a reset: where the checksum's range ends.
    if n.is_multiple_of(4) || fresh {
        let which = u64::from(n / 4 % 3);
        let end = if which == 0 { 0 } else { 90 + which };
        list.push((14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40 | end << 48, DEXT | 1 << 24));
    }
    let (bits, split) = (if random.below(4) > 0 { DATA | TXSM } else { 0 }, random.below(3) == 0);
    let parts = if split { vec![(0, 40), (40, len - 40)] } else { vec![(0, len)] };
    let last = parts.len() - 1;
    // Some are not reported by themselves.
    let report = if random.below(4) == 0 { 0 } else { RS };
    for (i, (offset, len)) in parts.into_iter().enumerate() {
        let end = if i == last { EOP | report } else { 0 };
        list.push((at + offset, len | bits | IFCS | end));
    }
    (packet, list)
}

/// Says where a run was that fails.
pub fn with_context<T>(context: &str, run: impl FnOnce() -> T) -> T {
    struct Said<'c>(&'c str, AtomicBool);
    impl Drop for Said<'_> {
        fn drop(&mut self) {
            if !self.1.load(Ordering::Relaxed) {
                eprintln!("failed: {}", self.0);
            }
        }
    }
    let said = Said(context, AtomicBool::new(false));
    let done = run();
    said.1.store(true, Ordering::Relaxed);
    done
}
