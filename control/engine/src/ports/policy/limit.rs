//! Buckets and limiters that go on where the last ones were.

use std::sync::Arc;
use std::time::Duration;

use vmlan_switch::policy::{Bucket, Limiter, Rate, Turns};

use vmlan_config::address::LimitTable;

/// What goes to all comes in bursts: somebody boots, and asks for ten addresses.
const STORM_BURST: Duration = Duration::from_millis(100);

/// Longest sleep of a port that waits for tokens of an uplink or of a shared limit, in nanoseconds:
/// 64 kbit/s owe 1.2 s for a jumbo frame.
pub(super) const SLEEP: u64 = 2_000_000_000;

fn rate(per_second: u64, burst: Duration) -> Rate {
    Rate { per_second, burst }
}

fn bucket(wanted: Option<Rate>, old: Option<&Bucket>, now: u64) -> Option<Bucket> {
    let go_on = |wanted| old.map(|old| old.with_rate(wanted, now));
    wanted.map(|wanted| go_on(wanted).unwrap_or_else(|| Bucket::new(wanted, now)))
}

/// A limiter as `table` asks for: `old` itself if that is the same, else one that counts and owes
/// on.
pub(super) fn limiter(
    table: LimitTable,
    old: Option<&Arc<Limiter>>,
    now: u64,
) -> Option<Arc<Limiter>> {
    if table.is_none() {
        return None;
    }
    let [bits, frames] = [table.rate, table.frames].map(|n| n.map(|n| rate(n, table.burst)));
    let Some(old) = old else {
        let (bits, frames) = (bucket(bits, None, now), bucket(frames, None, now));
        return Some(Arc::new(Limiter { bits, frames, ..Limiter::default() }));
    };
    let runs = [&old.bits, &old.frames].map(|b| b.as_ref().map(Bucket::rate));
    if runs == [bits, frames] {
        return Some(old.clone());
    }
    Some(Arc::new(Limiter {
        bits: bucket(bits, old.bits.as_ref(), now),
        frames: bucket(frames, old.frames.as_ref(), now),
        counters: old.counters.clone(),
        turns: old.turns.clone(),
    }))
}

/// The same for one that several ports share: they take turns.
pub(super) fn shared_limiter(
    table: LimitTable,
    old: Option<&Arc<Limiter>>,
    now: u64,
) -> Option<Arc<Limiter>> {
    let mut made = limiter(table, old, now)?;
    if let Some(made) = Arc::get_mut(&mut made) {
        made.turns.get_or_insert_with(|| Arc::new(Turns::patient(SLEEP)));
    }
    Some(made)
}

/// The limiter of frames to many receivers; one that is already running goes on with its tokens.
pub(super) fn storm_limit(
    per_second: Option<u64>,
    old: Option<&Arc<Bucket>>,
    now: u64,
) -> Option<Arc<Bucket>> {
    let wanted = rate(per_second?, STORM_BURST);
    match old {
        Some(old) if old.rate() == wanted => Some(old.clone()),
        _ => bucket(Some(wanted), old.map(|b| &**b), now).map(Arc::new),
    }
}
