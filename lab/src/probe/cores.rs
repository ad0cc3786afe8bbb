//! Between cores: waking somebody by an eventfd, and handing a cache line over.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity};
use vmlan_transport::sys::pin_to_cpu;

use super::figure::{Found, Samples};

/// Long enough for whoever was rung to be asleep again.
const GAP: Duration = Duration::from_micros(50);
/// Round trips of a cache line in one sample.
const TRIPS: u32 = 200;
/// In the cache line: the other side shall end.
pub(super) const OVER: u64 = u64::MAX;

/// The cores that are measured between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    /// The guest's, so to speak.
    pub(crate) here: u16,
    /// The worker's, if there is a second one.
    pub(crate) there: Option<u16>,
}

impl Cores {
    /// The first and the last that this program may use.
    pub(crate) fn find() -> Self {
        let all = sched_getaffinity(None).ok();
        let mut may = (0..CpuSet::MAX_CPU)
            .filter(|core| all.as_ref().is_some_and(|all| all.is_set(*core)))
            .filter_map(|core| u16::try_from(core).ok());
        Self { here: may.next().unwrap_or(0), there: may.next_back() }
    }

    /// Where the other side runs.
    pub(super) fn far(self) -> u16 {
        self.there.unwrap_or(self.here)
    }
}

/// Why there is no figure between two cores.
pub(super) const ONE_CORE: &str = "this program may use one core only";

/// A thread on this core. One that cannot be pinned says so by failing.
pub(super) fn on_core<T: Send + 'static>(
    core: u16,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<std::io::Result<T>>> {
    Builder::new().name("probe".into()).spawn(move || {
        pin_to_cpu(core)?;
        vmlan_transport::sys::exact_timers();
        Ok(work())
    })
}

/// Runs `work` on this core, and waits for it.
pub(super) fn run_on<T: Send + 'static>(
    core: u16,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    joined(on_core(core, work).map_err(|e| e.to_string())?)
}

pub(super) fn joined<T>(thread: JoinHandle<std::io::Result<T>>) -> Result<T, String> {
    match thread.join() {
        Ok(done) => done.map_err(|e| format!("a thread could not be pinned: {e}")),
        Err(_) => Err("a thread failed".into()),
    }
}

/// Eventfds, on two cores and on one.
pub(super) fn wake(cores: Cores, time: Duration) -> Found {
    let mut found = Found::default();
    let across = "eventfd wake-up, from core to core";
    match cores.there {
        Some(there) => one_wake(&mut found, (cores.here, there), time, ["ring", across, "wake"]),
        None => found.miss(across, ONE_CORE),
    }
    let same = "eventfd wake-up, on one core";
    one_wake(&mut found, (cores.here, cores.here), time, ["ring-one-core", same, "wake-one-core"]);
    found
}

/// From the write until the write is done, and until the sleeping reader runs.
fn one_wake(found: &mut Found, (a, b): (u16, u16), time: Duration, names: [&str; 3]) {
    let ringing = if a == b {
        "eventfd written, its reader asleep on the same core"
    } else {
        "eventfd written, its reader asleep on another core"
    };
    match ring(a, b, time) {
        Ok((ring, wake)) => {
            found.add(names[0], ringing, ring);
            found.add(names[2], names[1], wake);
        }
        Err(why) => found.miss(names[1], why),
    }
}

/// What both threads know.
struct Bell {
    there: File,
    back: File,
    start: Instant,
    /// When the reader ran, in nanoseconds since the start; [`OVER`] from the writer: the end.
    woken: AtomicU64,
    over: std::sync::atomic::AtomicBool,
}

impl Bell {
    fn new() -> std::io::Result<Self> {
        let make = || Ok::<_, std::io::Error>(File::from(eventfd(0, EventfdFlags::CLOEXEC)?));
        Ok(Self {
            there: make()?,
            back: make()?,
            start: Instant::now(),
            woken: AtomicU64::new(0),
            over: false.into(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The reader's life.
    fn answer(&self) {
        while wait(&self.there) {
            self.woken.store(self.now(), Release);
            if self.over.load(Acquire) || !signal(&self.back) {
                return;
            }
        }
    }

    /// The writer's.
    fn ask(&self, time: Duration) -> (Samples, Samples) {
        let (mut ring, mut wake) = (Samples::new(1), Samples::new(1));
        let end = self.start.elapsed() + time;
        while self.start.elapsed() < end && !wake.is_full() {
            sleep(GAP);
            let before = self.now();
            if !signal(&self.there) {
                break;
            }
            let after = self.now();
            if !wait(&self.back) {
                break;
            }
            ring.add(Duration::from_nanos(after - before));
            wake.add(Duration::from_nanos(self.woken.load(Acquire).saturating_sub(before)));
        }
        self.over.store(true, Release);
        signal(&self.there);
        (ring, wake)
    }
}

fn signal(fd: &File) -> bool {
    (&*fd).write_all(&1_u64.to_ne_bytes()).is_ok()
}

fn wait(fd: &File) -> bool {
    (&*fd).read_exact(&mut [0; 8]).is_ok()
}

fn ring(a: u16, b: u16, time: Duration) -> Result<(Samples, Samples), String> {
    let bell = Arc::new(Bell::new().map_err(|e| format!("no eventfd: {e}"))?);
    let theirs = bell.clone();
    let reader = on_core(b, move || theirs.answer()).map_err(|e| e.to_string())?;
    let ours = bell.clone();
    let samples = run_on(a, move || ours.ask(time));
    // Whatever has happened to the writer: the reader must not sleep for ever.
    bell.over.store(true, Release);
    signal(&bell.there);
    joined(reader)?;
    samples
}

/// A word that two cores write in turn.
pub(super) fn line(cores: Cores, time: Duration) -> Found {
    let mut found = Found::default();
    let what = "cache line handed from core to core";
    let Some(there) = cores.there else {
        found.miss(what, ONE_CORE);
        return found;
    };
    match hand_over(cores.here, there, time) {
        Ok(samples) => found.add("line", what, samples),
        Err(why) => found.miss(what, why),
    }
    found
}

/// Nanoseconds that a cache line takes from the first to the last core that this program may use.
///
/// # Errors
/// If there is one core only, or other work leaves the two no time together.
pub(crate) fn line_ns() -> Result<f64, String> {
    const TIME: Duration = Duration::from_millis(5);
    let cores = Cores::find();
    let there = cores.there.ok_or(ONE_CORE)?;
    let all = enough(|| hand_over(cores.here, there, TIME))?;
    all.low().ok_or_else(|| ONE_CORE.into())
}

/// Stretches of samples until there are so many that some were not disturbed.
///
/// # Errors
/// Those of `stretch`, and if other work leaves no time for it.
pub(super) fn enough(
    mut stretch: impl FnMut() -> Result<Samples, String>,
) -> Result<Samples, String> {
    /// Stretches, time for them on a busy machine, and samples that suffice.
    const TRIES: u32 = 40;
    const PATIENCE: Duration = Duration::from_secs(2);
    const ENOUGH: usize = 100;
    let (mut all, start) = (stretch()?, Instant::now());
    for _ in (1..TRIES).take_while(|_| start.elapsed() < PATIENCE) {
        if all.len() >= ENOUGH {
            break;
        }
        all.append(stretch()?);
    }
    match all.len() >= ENOUGH {
        true => Ok(all),
        false => Err("other work leaves the two cores no time together".into()),
    }
}

/// Alone in its line, and in the pair of lines that a prefetcher takes together.
#[repr(align(128))]
pub(super) struct Word(pub(super) AtomicU64);

impl Word {
    pub(super) fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
}

/// Even numbers are for the far side to answer, with the next odd one.
fn hand_over(a: u16, b: u16, time: Duration) -> Result<Samples, String> {
    let word = Arc::new(Word::new(1));
    let theirs = word.clone();
    let other = on_core(b, move || {
        loop {
            match theirs.0.load(Acquire) {
                OVER => return,
                n if n % 2 == 0 => theirs.0.store(n + 1, Release),
                _ => std::hint::spin_loop(),
            }
        }
    });
    let other = other.map_err(|e| e.to_string())?;
    let ours = word.clone();
    let samples = run_on(a, move || {
        let mut n = 1;
        Samples::take(2 * TRIPS, time, || {
            for _ in 0..TRIPS {
                ours.0.store(n + 1, Release);
                n += 2;
                while ours.0.load(Acquire) != n {
                    std::hint::spin_loop();
                }
            }
        })
    });
    word.0.store(OVER, Relaxed);
    joined(other)?;
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_come_to_an_end() {
        let cores = Cores::find();
        let (time, figures) = (Duration::from_millis(2), |found: &Found| found.figures.len());
        assert_eq!(figures(&wake(Cores { there: None, ..cores }, time)), 2);
        let there = cores.there.map_or(0, |_| 2);
        assert_eq!(figures(&wake(cores, time)), 2 + there);
        assert_eq!(figures(&line(cores, time)), there / 2);
    }

    #[test]
    fn one_core_is_told() {
        let found = line(Cores { here: 0, there: None }, Duration::ZERO);
        assert_eq!((found.figures.len(), found.missing[0].why.as_str()), (0, ONE_CORE));
    }
}
