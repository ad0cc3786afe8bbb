//! What no switch can do better: the cache lines of a frame, moved between two cores, and nothing
//! else.
//!
//! ```text
//!  first core: both guests                          last core: the switch
//!    reads what came, writes what is sent             reads what is sent, writes what came
//!         └── tail: so many batches are given ──►        │
//!         ◄── head: so many are done ────────────────────┘
//! ```
//!
//! Every batch has lines of its own in rings of [`FRAMES`] frames, as many as [`Lines`] says. Head
//! and tail are two of them; where rings have neither, they are two lines a batch too many.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use super::cores::{Cores, ONE_CORE, OVER, Word, enough, joined, line_ns, on_core, run_on};
use super::figure::{Found, Samples};
use crate::alike;
use crate::failure::Failure;

mod lines;

use lines::Lines;
pub(crate) use lines::{Guest, Ring};

/// Frames of a batch, and of a ring.
const BATCH: usize = 64;
const FRAMES: usize = 1024;
const BATCHES: usize = FRAMES / BATCH;
/// Rounds through a ring in one sample.
const LAPS: usize = 4;
/// From buffer to buffer, in lines: 2 KiB and one, as our driver lays them.
const STRIDE: usize = 33;

/// How a core goes through its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It asks for a line when it has the one before.
    Serial,
    /// It asks for as many at once as it can.
    Overlapped,
}

impl Way {
    const ALL: [Self; 2] = [Self::Serial, Self::Overlapped];

    fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Overlapped => "overlapped",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Serial => "one line after the other",
            Self::Overlapped => "lines overlapped",
        }
    }
}

/// Each kind of ring, and testpmd's, in both ways; each between two readings of the line.
pub(super) fn all(cores: Cores, time: Duration) -> Found {
    let mut found = Found::default();
    let plain = Ring::ALL.map(|ring| (ring, Guest::Plain));
    for (ring, guest) in plain.into_iter().chain([(Ring::Split, Guest::Testpmd)]) {
        for way in Way::ALL {
            let (kind, by) = match guest {
                Guest::Testpmd => ("testpmd", ", testpmd"),
                _ => (ring.name(), ""),
            };
            let name = format!("limit-{kind}-{}", way.name());
            let what = format!("lines of a 60-byte frame, {}{by}: {}", ring.words(), way.words());
            let read = || line_ns().map_err(Failure::Failed);
            let once = || moved(cores, Lines::of(ring, guest, BATCH), way, time);
            match alike::cell(read, || once().map_err(Failure::Failed)) {
                Ok((samples, about)) => {
                    found.add_in(about.class, &name, &what, samples.undisturbed());
                }
                Err(why) => found.miss(&what, why),
            }
        }
    }
    found
}

/// Frames a second that the lines of such frames permit between the first and the last core, if
/// they are asked for together.
///
/// # Errors
/// If there is one core only, or other work leaves the two no time together.
pub(crate) fn frames_per_s(ring: Ring, guest: Guest) -> Result<f64, String> {
    const TIME: Duration = Duration::from_millis(10);
    let lines = Lines::of(ring, guest, BATCH);
    let samples = enough(|| moved(Cores::find(), lines, Way::Overlapped, TIME))?;
    samples.low().map(per_s).ok_or_else(|| ONE_CORE.into())
}

/// Of so many nanoseconds each.
fn per_s(ns: f64) -> f64 {
    1e9 / ns
}

/// What of the limit is reached: frames for each CPU second of a switch, of those that its core
/// could move. No limit, no share.
pub(crate) fn share(frames_per_cpu_s: f64, limit: Option<f64>) -> f64 {
    limit.map_or(f64::NAN, |limit| frames_per_cpu_s / limit)
}

/// A cache line.
#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; 8]);

/// Lines of all batches.
struct Part {
    lines: Vec<Line>,
    /// Of a batch: so many groups, each of so many lines, from group to group so far.
    groups: usize,
    size: usize,
    stride: usize,
}

impl Part {
    fn new(groups: usize, size: usize, stride: usize) -> Self {
        let count = if size == 0 { 0 } else { BATCHES * groups * stride };
        Self { lines: (0..count).map(|_| Line::default()).collect(), groups, size, stride }
    }

    #[inline(always)]
    fn each(&self, batch: usize, mut touch: impl FnMut(&Line)) {
        let len = self.groups * self.stride;
        if self.size == 0 {
            return;
        }
        for group in self.lines[batch * len..][..len].chunks_exact(self.stride) {
            group.iter().take(self.size).for_each(&mut touch);
        }
    }
}

struct Field {
    tail: Word,
    head: Word,
    to_switch: Part,
    to_guest: Part,
    both: Part,
    sent: Part,
    received: Part,
}

impl Field {
    fn new(lines: Lines) -> Self {
        let ring = |count| Part::new(count, usize::from(count > 0), 1);
        let buffers = |size| Part::new(BATCH, size, STRIDE);
        Self {
            tail: Word::new(0),
            head: Word::new(0),
            // Without tail and head.
            to_switch: ring(lines.to_switch.saturating_sub(1)),
            to_guest: ring(lines.to_guest.saturating_sub(1)),
            both: ring(lines.both),
            sent: buffers(lines.sent),
            received: buffers(lines.received),
        }
    }

    #[inline(always)]
    fn guest(&self, batch: u64, by: &mut impl Touch) {
        read([&self.to_guest, &self.received], batch, by);
        write([&self.to_switch, &self.both, &self.sent], batch, by);
    }

    #[inline(always)]
    fn switch(&self, batch: u64, by: &mut impl Touch) {
        read([&self.to_switch, &self.sent], batch, by);
        write([&self.both, &self.to_guest, &self.received], batch, by);
    }
}

#[inline(always)]
fn read<const N: usize>(parts: [&Part; N], batch: u64, by: &mut impl Touch) {
    for part in parts {
        part.each(place(batch), |line| by.read(line));
    }
}

#[inline(always)]
fn write<const N: usize>(parts: [&Part; N], batch: u64, by: &mut impl Touch) {
    for part in parts {
        part.each(place(batch), |line| by.write(line, batch));
    }
}

fn place(batch: u64) -> usize {
    usize::try_from(batch % BATCHES as u64).unwrap_or(0)
}

trait Touch: Default {
    fn read(&mut self, line: &Line);
    fn write(&mut self, line: &Line, value: u64);
    fn end(self) -> u64;
}

/// Where the next line is looked at depends on what was in the last one; and whoever writes waits
/// until the line is its own. What is written is far below 2^63, which only we know.
#[derive(Default)]
struct Chain(u64);

impl Touch for Chain {
    #[inline(always)]
    fn read(&mut self, Line([one, other, ..]): &Line) {
        self.0 = if self.0 >> 63 == 0 { one } else { other }.load(Acquire);
    }
    #[inline(always)]
    fn write(&mut self, line: &Line, value: u64) {
        let Line(words) = line;
        self.0 = words[usize::from(self.0 >> 63 != 0)].swap(value, AcqRel);
    }
    fn end(self) -> u64 {
        self.0
    }
}

/// Nothing depends on anything: the core asks for as many lines at once as it can.
#[derive(Default)]
struct Free(u64);

impl Touch for Free {
    #[inline(always)]
    fn read(&mut self, Line([word, ..]): &Line) {
        self.0 = self.0.wrapping_add(word.load(Relaxed));
    }
    #[inline(always)]
    fn write(&mut self, Line([word, ..]): &Line, value: u64) {
        word.store(value, Relaxed);
    }
    fn end(self) -> u64 {
        self.0
    }
}

/// Moves the lines of batches for `time`; samples of one frame.
fn moved(cores: Cores, lines: Lines, way: Way, time: Duration) -> Result<Samples, String> {
    let there = cores.there.ok_or(ONE_CORE)?;
    let field = Arc::new(Field::new(lines));
    match way {
        Way::Serial => between::<Chain>(field, (cores.here, there), time),
        Way::Overlapped => between::<Free>(field, (cores.here, there), time),
    }
}

fn between<T: Touch>(
    field: Arc<Field>,
    (here, there): (u16, u16),
    time: Duration,
) -> Result<Samples, String> {
    let theirs = field.clone();
    let switch = on_core(there, move || serve::<T>(&theirs)).map_err(|e| e.to_string())?;
    let ours = field.clone();
    let samples = run_on(here, move || give::<T>(&ours, time));
    field.tail.0.store(OVER, Relaxed);
    joined(switch)?;
    samples
}

/// The switch's life.
fn serve<T: Touch>(field: &Field) {
    let (mut by, mut head) = (T::default(), 0);
    loop {
        let tail = field.tail.0.load(Acquire);
        if tail == OVER {
            break;
        }
        if tail == head {
            spin_loop();
        }
        while head != tail {
            field.switch(head, &mut by);
            head += 1;
            field.head.0.store(head, Release);
        }
    }
    black_box(by.end());
}

/// The guests'. The rings are full whenever the switch is slower.
fn give<T: Touch>(field: &Field, time: Duration) -> Samples {
    const ROUND: usize = LAPS * FRAMES;
    let (mut by, mut tail, mut known) = (T::default(), 0, 0);
    let frames = u32::try_from(ROUND).unwrap_or(u32::MAX);
    let samples = Samples::take(frames, time, || {
        for _ in 0..LAPS * BATCHES {
            while tail - known == BATCHES as u64 {
                known = field.head.0.load(Acquire);
                spin_loop();
            }
            field.guest(tail, &mut by);
            tail += 1;
            field.tail.0.store(tail, Release);
        }
    });
    black_box(by.end());
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_batch_is_touched_by_both() {
        let lines = Lines { to_switch: 3, to_guest: 2, both: 4, sent: 2, received: 1 };
        let field = Field::new(lines);
        let (mut guest, mut switch) = (Free::default(), Free::default());
        field.guest(5, &mut guest);
        field.switch(5, &mut switch);
        // What the guest wrote and the switch does not write; head and tail are not among it.
        assert_eq!(switch.end(), 5 * (2 + 64 * 2));
        let mut again = Free::default();
        field.guest(5, &mut again);
        assert_eq!(again.end(), 5 * (1 + 64));
        let written = |part: &Part| part.lines.iter().filter(|l| l.0[0].load(Relaxed) == 5).count();
        let parts = [&field.to_switch, &field.to_guest, &field.both, &field.sent, &field.received];
        assert_eq!(parts.map(written), [2, 1, 4, 128, 64]);
    }

    #[test]
    fn batches_share_no_line_and_chains_end_where_they_began() {
        let field = Field::new(Lines::of(Ring::Csb, Guest::Plain, BATCH));
        let mut chain = Chain::default();
        (0..BATCHES as u64).for_each(|batch| field.guest(batch, &mut chain));
        for batch in 0..BATCHES as u64 {
            let mut reads = Free::default();
            field.sent.each(place(batch), |line| reads.read(line));
            assert_eq!(reads.end(), batch * BATCH as u64);
        }
        assert_eq!(place(BATCHES as u64 + 3), 3);
        assert_eq!(chain.end() >> 63, 0);
    }

    #[test]
    fn the_limit_is_per_second_and_a_share_of_none_is_none() {
        assert!((per_s(20.0) - 5e7).abs() < 1e-3);
        assert!((share(1e7, Some(5e7)) - 0.2).abs() < 1e-12);
        assert!(share(1e7, None).is_nan());
    }

    #[test]
    fn it_comes_to_an_end_and_one_core_is_told() {
        let cores = Cores::find();
        let lines = Lines::of(Ring::Split, Guest::Testpmd, BATCH);
        for way in Way::ALL {
            match moved(cores, lines, way, Duration::from_millis(2)) {
                Ok(samples) => assert!(cores.there.is_some() && samples.len() > 0),
                Err(why) => assert_eq!((cores.there, why.as_str()), (None, ONE_CORE)),
            }
        }
        let one = moved(Cores { here: 0, there: None }, lines, Way::Serial, Duration::ZERO);
        assert_eq!(one.err().as_deref(), Some(ONE_CORE));
    }
}
