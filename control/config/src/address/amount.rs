//! Amounts with units: rates, counts, times. What is written down means the same when it is read
//! again.

use std::fmt;
use std::time::Duration;

/// Units: word and worth. A unit whose word ends another's comes after it.
type Units = [(&'static str, u64)];

const RATES: &Units = &[("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)];
const COUNTS: &Units = &[("", 1), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
const TIMES: &Units = &[("us", 1), ("ms", 1_000), ("s", 1_000_000)];

/// Slowest and fastest rate there can be, in bits a second.
pub(super) const RATE: (u64, u64) = (64_000, 400_000_000_000);
/// Fewest and most frames a second.
pub(super) const COUNT: (u64, u64) = (1, 1_000_000_000);

/// `u64::from_str` takes a leading '+'; a contract should have one way to write a number.
pub(super) fn digits(text: &str) -> Option<u64> {
    let good = (1..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    good.then(|| text.parse().ok())?
}

/// A number with at most one decimal point, times `unit`, if that is whole.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let whole = digits(whole)?.checked_mul(unit)?;
    let Some(fraction) = fraction else { return Some(whole) };
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = digits(fraction)?.checked_mul(unit)?;
    part.is_multiple_of(scale).then(|| whole.checked_add(part / scale))?
}

/// `2.5Gbit`, in range.
pub(super) fn parse_rate(text: &str) -> Option<u64> {
    let (number, unit) = RATES.iter().find_map(|(u, n)| Some((text.strip_suffix(u)?, *n)))?;
    decimal(number, unit).filter(|bits| (RATE.0..=RATE.1).contains(bits))
}

/// `10k`, in range.
pub(super) fn parse_count(text: &str) -> Option<u64> {
    let units = COUNTS.iter().rev();
    let (number, unit) = units.into_iter().find_map(|(u, n)| Some((text.strip_suffix(u)?, *n)))?;
    decimal(number, unit).filter(|count| (COUNT.0..=COUNT.1).contains(count))
}

/// `50us`, `1ms`, `1s`.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    let (number, unit) = TIMES.iter().find_map(|(u, n)| Some((text.strip_suffix(u)?, *n)))?;
    Some(Duration::from_micros(digits(number)?.checked_mul(unit)?))
}

/// In the largest unit that divides it.
fn whole(f: &mut fmt::Formatter<'_>, units: &Units, amount: u64) -> fmt::Result {
    let fits = units.iter().rev().find(|(_, unit)| amount.is_multiple_of(*unit));
    let (word, unit) = fits.unwrap_or(&("", 1));
    write!(f, "{}{word}", amount / unit)
}

/// Bits a second, in the largest unit of which there is one: `2.5Gbit`.
pub struct Rate(pub(crate) u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = RATES.iter().rev().find(|(_, unit)| self.0 >= *unit);
        let (word, unit) = fits.unwrap_or(&RATES[0]);
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        if rest == 0 {
            return write!(f, "{whole}{word}");
        }
        let width = unit.ilog10() as usize;
        let fraction = format!("{rest:0width$}");
        write!(f, "{whole}.{}{word}", fraction.trim_end_matches('0'))
    }
}

/// Frames a second: `10k`.
pub struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        whole(f, COUNTS, self.0)
    }
}

/// `1ms`.
pub struct Time(pub(crate) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs().saturating_mul(1_000_000);
        whole(f, TIMES, seconds.saturating_add(self.0.subsec_micros().into()))
    }
}
