//! What the parts have in common: guests at a switch, a window of time, and what is said about
//! goals.

use std::time::Duration;

use vmlan_transport::Mac;

use crate::failure::Failure;
use crate::native::{FloodGuest, Lab, Plug, Setup, Span, technique};
use vmlan_config::human_text::to_f64;

/// Time for rings to fill and buckets to empty.
const SETTLE: Duration = Duration::from_millis(100);

/// Address of the `n`th guest.
pub(super) fn mac(n: usize) -> Mac {
    let [.., high, low] = n.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

/// Guests on virtio-net ports of these names; guest `n` sends to the one that `to` says.
pub(super) fn guests(names: &[String], to: impl Fn(usize) -> usize) -> Vec<FloodGuest> {
    let guest = |(n, port): (usize, &String)| FloodGuest {
        port: port.clone(),
        mac: mac(n),
        to: mac(to(n)),
    };
    names.iter().enumerate().map(guest).collect()
}

/// A switch with virtio-net ports of these names.
pub(super) fn lab(
    setup: &Setup,
    names: &[String],
    keys: &str,
    more: &[&str],
) -> Result<Lab, Failure> {
    let technique = technique::one("virtio")?;
    let plug = |name| Plug { name, technique, keys };
    let plugs: Vec<_> = names.iter().map(|name| plug(name.as_str())).collect();
    Lab::start(setup, &plugs, more)
}

/// `p0`, `p1`, ...
pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

/// Lets things settle, then measures for `time`.
pub(super) fn window(lab: &mut Lab, pids: &[u32], time: Duration) -> Result<Span, Failure> {
    lab.pause(SETTLE)?;
    Span::of(lab, pids, time)
}

/// Jain's index: 1 if all have the same, 1/n if one has all.
pub(super) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    if squares > 0.0 { sum * sum / (to_f64(shares.len() as u64) * squares) } else { 0.0 }
}

/// How far the share furthest off is from its weight's part of all: 0.02 is 2 %.
pub(super) fn furthest(shares: &[f64], weights: &[u16]) -> f64 {
    let (sum, of): (f64, f64) = (shares.iter().sum(), weights.iter().map(|w| f64::from(*w)).sum());
    let off = |(share, weight): (&f64, &u16)| (share / (sum * f64::from(*weight) / of) - 1.0).abs();
    let all = shares.iter().zip(weights).map(off);
    all.fold(0.0, |most, off| if off.is_finite() { most.max(off) } else { f64::INFINITY })
}

/// For the column beside a figure.
pub(super) fn verdict(met: Option<bool>) -> String {
    met.map_or("-", |met| if met { "met" } else { "missed" }).into()
}

/// `1.23 %`
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.2} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(jain(&[3.0, 3.0, 3.0]), 1.0);
        near(jain(&[4.0, 0.0]), 0.5);
        near(jain(&[]), 0.0);
        near(furthest(&[10.0, 20.0, 40.0], &[1, 2, 4]), 0.0);
        near(furthest(&[11.0, 20.0, 39.0], &[1, 2, 4]), 0.1);
        assert!(furthest(&[0.0, 0.0], &[1, 1]).is_infinite());
        assert_eq!(mac(258), Mac([2, 0, 0, 0, 1, 2]));
        assert_eq!(percent(Some(0.0123)), "1.23 %");
    }
}
