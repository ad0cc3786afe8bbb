//! What a gateway says is believed as far as it may be: whoever has taken it over says it, too.

use std::collections::BTreeMap;
use std::time::Instant;

use vmlan_config::address::PortName;
use vmlan_config::gateway::{GatewayCounters, Lease, Setup};
use vmlan_frame::{LogLimit, Mac};

/// Counters of a sort that are kept: no gateway has half as many.
const COUNTERS: usize = 64;

/// Longest text of it that is shown, in characters.
const TEXT: usize = 300;

/// Seconds that an address is given for at most: as long as one of IPv6 is remembered.
const LONGEST: u64 = 86_400;

/// What it says, and what of that was dropped, in the log; no flood of lines.
pub(super) struct Log {
    limit: LogLimit,
    since: Instant,
}

impl Log {
    /// No line yet.
    pub(super) fn new() -> Self {
        Self { limit: LogLimit::default(), since: Instant::now() }
    }

    /// `what` was dropped.
    pub(super) fn doubt(&mut self, name: &PortName, what: &str) {
        self.say(log::Level::Warn, name, &format!("the gateway has told {what}: dropped"));
    }

    /// A line of its own.
    pub(super) fn say(&mut self, level: log::Level, name: &PortName, text: &str) {
        let text = shortened(text);
        match self.limit.allow(self.since.elapsed()) {
            None => {}
            Some(0) => log::log!(level, "port {name}: {text}"),
            Some(n) => log::log!(level, "port {name}: {text} ({n} lines before were left out)"),
        }
    }
}

/// What is shown of a text.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(TEXT).collect()
}

/// The same lease, for no longer than the gateway may give one.
pub(super) fn limited(lease: Lease, now: u64, setup: &Setup) -> Lease {
    let most = now.saturating_add(u64::from(setup.lease).max(LONGEST));
    Lease { expires: lease.expires.min(most), ..lease }
}

/// True if its texts are what they are to be. They are shown, and told to the next gateway: this
/// bounds their length as well.
pub(super) fn is_sound(lease: &Lease) -> bool {
    // As the switch writes it: there is one text for each.
    let mac = lease.mac.parse().is_ok_and(|mac: Mac| mac.to_string() == lease.mac);
    let port = lease.port.parse::<PortName>().is_ok();
    mac && port && lease.hostname.as_deref().is_none_or(is_host_name)
}

/// As gateways take them from guests.
fn is_host_name(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=63).contains(&text.len()) && text.bytes().all(good)
}

/// Those that may be kept: their names become labels of metrics. False if there were others.
pub(super) fn counters(all: GatewayCounters) -> (GatewayCounters, bool) {
    let mut were_all = true;
    let mut kept = |map: BTreeMap<String, u64>| -> BTreeMap<String, u64> {
        let count = map.len();
        let kept: BTreeMap<_, _> =
            map.into_iter().filter(|(name, _)| is_plain(name)).take(COUNTERS).collect();
        were_all &= kept.len() == count;
        kept
    };
    let counters = GatewayCounters {
        flows: kept(all.flows),
        opened: kept(all.opened),
        refused: kept(all.refused),
        answered: kept(all.answered),
    };
    (counters, were_all)
}

fn is_plain(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use vmlan_config::gateway::{MAX_MESSAGE, ToGateway};

    use super::super::{link, remember};
    use super::*;

    fn lease() -> Lease {
        Lease {
            ip: [10, 77, 0, 20].into(),
            mac: "52:54:00:00:00:01".into(),
            port: "vm1".into(),
            hostname: Some("guest-1.a_b".into()),
            expires: 1 << 40,
        }
    }

    #[test]
    fn a_lease_is_of_a_nic_at_a_port() {
        let taken = |lease| remember(&Setup::default(), &mut BTreeMap::new(), lease);
        assert_eq!(taken(lease()), Ok(true));
        assert_eq!(taken(Lease { hostname: None, ..lease() }), Ok(true));
        assert_eq!(taken(Lease { ip: [10, 78, 0, 1].into(), ..lease() }), Ok(false));
        let long = "x".repeat(100_000);
        for mac in ["", "52:54:00:00:00", "52:54:00:00:00:+1", "52-54-00-00-00-01", &long] {
            assert!(taken(Lease { mac: mac.into(), ..lease() }).is_err(), "{mac:.20}");
        }
        for port in ["", "vm 1", "vm\n1", "-vm", &long] {
            assert!(taken(Lease { port: port.into(), ..lease() }).is_err(), "{port:.20}");
        }
        for host in ["", "a b", "a\"", "\u{1b}[0m", "ä", &"x".repeat(64), &long] {
            let hostname = Some(host.to_owned());
            assert!(taken(Lease { hostname, ..lease() }).is_err(), "{host:.20}");
        }
    }

    #[test]
    fn the_longest_leases_fit_into_what_tells_them_to_the_next_gateway() {
        let mut leases = BTreeMap::new();
        let setup = Setup::default();
        for n in 0..1024u16 {
            let longest = Lease {
                ip: format!("fd00:77::{:x}:1234:1234:{:x}", n | 0x8000, n | 0x8000)
                    .parse()
                    .unwrap(),
                port: "p".repeat(32),
                hostname: Some("h".repeat(63)),
                expires: u64::MAX,
                ..lease()
            };
            let forged = Lease { hostname: Some("h".repeat(2_000)), ..longest.clone() };
            for lease in [longest, forged] {
                let _ = remember(&setup, &mut leases, lease);
            }
        }
        assert!(leases.len() > link::LEASES);
        let leases: Vec<_> = leases.into_values().collect();
        for some in leases.chunks(link::LEASES) {
            let message = serde_json::to_vec(&ToGateway::Leases(some.to_vec())).unwrap();
            assert!(message.len() <= MAX_MESSAGE, "{} bytes", message.len());
        }
    }

    #[test]
    fn leases_that_have_ended_make_room_for_others() {
        let mut leases = BTreeMap::new();
        let setup = Setup::default();
        let nth = |n: u32| std::net::Ipv6Addr::from_bits((0xfd00_0077 << 96) + u128::from(n));
        let lease = |n, expires| Lease { ip: nth(n).into(), expires, ..lease() };
        for n in 2..20_000 {
            let taken = remember(&setup, &mut leases, lease(n, u64::from(n)));
            assert_eq!(taken, Ok(true), "{n}");
        }
        assert_eq!(leases.len(), super::super::LEASES);
        assert!(leases.contains_key(&nth(19_999).into()) && !leases.contains_key(&nth(2).into()));
    }

    #[test]
    fn nobody_has_an_address_for_ever() {
        let mut leases = BTreeMap::new();
        let setup = Setup { lease: 600, ..Setup::default() };
        remember(&setup, &mut leases, Lease { expires: u64::MAX, ..lease() }).unwrap();
        let left = leases.values().next().unwrap().expires - super::super::now();
        assert!((LONGEST - 60..=LONGEST).contains(&left), "{left} seconds");
        let short = Lease { expires: 700, ..lease() };
        assert_eq!(limited(short.clone(), 100, &setup), short);
    }

    #[test]
    fn counters_are_few_and_have_plain_names() {
        let of = |names: &[&str]| GatewayCounters {
            refused: names.iter().map(|name| ((*name).to_owned(), 1)).collect(),
            ..GatewayCounters::default()
        };
        let good = ["no-ping-permission", "tcp6", &"x".repeat(32)];
        assert_eq!(counters(of(&good)), (of(&good), true));
        for bad in ["", "a\"} 1\nvmlan_forged{b=\"", "a\\", "A", "ä", "a b", &"x".repeat(33)] {
            assert_eq!(counters(of(&[&good[..], &[bad]].concat())), (of(&good), false), "{bad}");
        }
        let many: BTreeMap<_, _> = (0..10_000).map(|n| (format!("n{n}"), 1)).collect();
        let all = GatewayCounters {
            flows: many.clone(),
            opened: many.clone(),
            refused: many.clone(),
            answered: many,
        };
        let (kept, were_all) = counters(all);
        let sizes = [kept.flows, kept.opened, kept.refused, kept.answered].map(|map| map.len());
        assert_eq!((sizes, were_all), ([64; 4], false));
    }
}
