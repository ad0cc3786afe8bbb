//! The table against a plain map, and against those who want the same slot.
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn mac(n: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, n])
}

const TEN: Domain = Domain::customer(10);

#[test]
fn what_is_learned_is_told_to_who_wants_to_hear() {
    let fdb = Fdb::new(64, 8);
    let (a, port) = (mac, id);
    fdb.learn(a(1), Domain::OPEN, port(0));
    fdb.want_news(true);
    let news = |mac, domain, to, from: Option<usize>| FdbNews {
        mac,
        domain,
        port: port(to),
        from: from.map(port),
    };
    let vlan = Domain::customer(7);
    fdb.learn(a(1), Domain::OPEN, port(0));
    fdb.learn(a(1), Domain::OPEN, port(1));
    fdb.learn(a(2), vlan, port(0));
    fdb.add_static(a(3), vlan, port(0)).unwrap();
    fdb.learn(a(3), vlan, port(1));
    let mut told = Vec::new();
    assert_eq!(fdb.take_news(&mut told), 0);
    assert_eq!(told, [news(a(1), Domain::OPEN, 1, Some(0)), news(a(2), vlan, 0, None)]);
    (0..2000).for_each(|i| _ = fdb.learn(a(1), Domain::OPEN, port(i % 2)));
    told.clear();
    let missed = fdb.take_news(&mut told);
    assert_eq!((told.len(), missed), (1024, 2000 - 1024));
    fdb.want_news(false);
    fdb.learn(a(1), Domain::OPEN, port(2));
    told.clear();
    fdb.take_news(&mut told);
    assert_eq!(told, []);
}

#[test]
fn addresses_age_move_and_are_capped() {
    let fdb = Fdb::new(64, 3);
    fdb.learn(mac(1), Domain::OPEN, id(0));
    assert_eq!((0..29).map(|_| fdb.tick()).last(), Some(1));
    fdb.learn(mac(1), Domain::OPEN, id(1));
    assert_eq!(fdb.lookup(mac(1), Domain::OPEN), Some(id(1)), "a real move");
    assert_eq!((0..30).map(|_| fdb.tick()).last(), Some(0));
    assert_eq!(fdb.lookup(mac(1), Domain::OPEN), None);
    (1..=10).for_each(|n| _ = fdb.learn(mac(n), Domain::OPEN, id(0)));
    assert_eq!(fdb.list().len(), 3);
    assert_eq!(fdb.unlearned(), 7);
    fdb.flush_port(id(0));
    (1..=3).for_each(|n| _ = fdb.learn(mac(n), Domain::OPEN, id(0)));
    assert_eq!(fdb.list().len(), 3, "the cap was given back");
}

/// The keys of a table's hash are drawn. By one table in 200, an address in 100,000 finds both its
/// sets full; so the best of three is judged.
#[test]
fn four_slots_for_each_address_are_enough() {
    let address = |n: u32| Mac::from_bits(0x0200_0000_0000 | u64::from(n));
    let port = |n: u32| id(n as usize % 64);
    let unlearned = |_| {
        let fdb = Fdb::new(4 * 100_000, u32::MAX);
        (1..=100_000).for_each(|n| _ = fdb.learn(address(n), Domain::OPEN, port(n)));
        let known = (1..=100_000).filter_map(|n| Some((n, fdb.lookup(address(n), Domain::OPEN)?)));
        assert_eq!(known.map(|(n, at)| assert_eq!(at, port(n))).count(), fdb.list().len());
        assert_eq!(fdb.list().len() as u64 + fdb.unlearned(), 100_000);
        fdb.unlearned()
    };
    assert_eq!((0..3).map(unlearned).min(), Some(0));
}

#[test]
fn a_full_table_evicts_nobody() {
    let fdb = Fdb::new(16, u32::MAX);
    let macs: Vec<_> = (1..=200).map(mac).collect();
    macs.iter().for_each(|m| _ = fdb.learn(*m, Domain::OPEN, id(1)));
    let first: Vec<_> = fdb.list();
    macs.iter().rev().for_each(|m| _ = fdb.learn(*m, Domain::OPEN, id(2)));
    for e in first {
        assert!(fdb.lookup(e.mac, Domain::OPEN).is_some(), "{} was evicted", e.mac);
    }
}

/// A guest that sends from an address all the time while it is being pinned to another port.
#[test]
fn a_pinned_address_cannot_be_learned_beside_its_pin() {
    for domain in [Domain::OPEN, TEN] {
        pin_while_learned(domain);
    }
}

fn pin_while_learned(domain: Domain) {
    let fdb = Fdb::new(4, u32::MAX);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fdb.learn(mac(1), domain, id(1));
            }
        });
        let mut stolen = 0;
        for _ in 0..25_000 {
            fdb.add_static(mac(1), domain, id(0)).unwrap();
            // The learner removes its own entry, if it was writing one; as long as that may take.
            let end = Instant::now() + Duration::from_secs(300);
            stolen += 1;
            while Instant::now() < end {
                if fdb.list().len() == 1 {
                    stolen -= 1;
                    break;
                }
                std::thread::yield_now();
            }
            if stolen > 0 {
                break;
            }
            fdb.remove(mac(1), domain);
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(stolen, 0);
    });
}

#[test]
fn domains_do_not_know_of_each_other() {
    let fdb = Fdb::new(4, 9);
    fdb.learn(mac(1), Domain::OPEN, id(0));
    fdb.learn(mac(1), TEN, id(1));
    fdb.add_static(mac(1), Domain::service(10), id(2)).unwrap();
    assert_eq!(fdb.learn(mac(1), TEN, id(3)), Learned::Pass, "pinned elsewhere only");
    assert_eq!(fdb.learn(mac(1), Domain::service(10), id(3)), Learned::Refused);
    let lives = |d| fdb.lookup(mac(1), d);
    assert_eq!([Domain::OPEN, TEN, Domain::service(10)].map(lives), [0, 3, 2].map(|p| Some(id(p))));
    assert_eq!(lives(Domain::customer(11)), None);
    let group = Mac::new([3, 0, 0, 0, 0, 1]);
    assert!(fdb.get(group, Domain::OPEN).is_none() && !fdb.remove(group, Domain::OPEN));
    assert!(!fdb.remove(mac(1), Domain::customer(11)) && fdb.remove(mac(1), TEN));
    let mut left: Vec<_> = fdb.list().iter().map(|e| (e.domain, e.port, e.age)).collect();
    left.sort();
    let service = Domain::service(10);
    assert_eq!(left, [(Domain::OPEN, id(0), Some(0)), (service, id(2), None)]);
}

/// Four threads with a domain and a port each, in a table that is far too small for them: no entry
/// ever has another one's domain.
#[test]
fn a_slot_that_changes_hands_takes_its_domain_along() {
    let fdb = Fdb::new(8, u32::MAX);
    std::thread::scope(|s| {
        for n in 0..4u16 {
            let (fdb, domain) = (&fdb, Domain::customer(n));
            s.spawn(move || {
                let mut x = u32::from(n) + 1;
                for _ in 0..500_000 {
                    x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let m = mac((x >> 28) as u8 + 1);
                    if x & 1 << 20 == 0 {
                        fdb.learn(m, domain, id(n.into()));
                    } else {
                        fdb.remove(m, domain);
                    }
                }
            });
        }
    });
    for e in fdb.list() {
        assert_eq!(usize::from(e.domain.bits()), e.port.index(), "{e:?}");
        assert_eq!(fdb.lookup(e.mac, e.domain), Some(e.port));
    }
    (0..4).for_each(|p| fdb.flush_port(id(p)));
    assert!(fdb.list().is_empty() && fdb.entries().count() == 0);
    assert!(fdb.counts.iter().all(|c| c.load(Ordering::Relaxed) == 0));
}

#[derive(Clone, Debug)]
enum Op {
    Learn(u8, Domain, u8),
    Static(u8, Domain, u8),
    Remove(u8, Domain),
    Flush(u8),
    Tick,
}

const DOMAINS: [Domain; 3] = [Domain::OPEN, TEN, Domain::service(10)];

fn op() -> impl Strategy<Value = Op> {
    let (m, p) = (1u8..20, 0u8..4);
    let d = || prop::sample::select(&DOMAINS[..]);
    prop_oneof![
        8 => (m.clone(), d(), p.clone()).prop_map(|(m, d, p)| Op::Learn(m, d, p)),
        1 => (m.clone(), d(), p.clone()).prop_map(|(m, d, p)| Op::Static(m, d, p)),
        1 => (m, d()).prop_map(|(m, d)| Op::Remove(m, d)),
        1 => p.prop_map(Op::Flush),
        2 => Just(Op::Tick),
    ]
}

proptest! {
    /// The table against a plain map, with room for everything.
    #[test]
    fn agrees_with_a_simple_model(ops in prop::collection::vec(op(), 0..300)) {
        let fdb = Fdb::new(4096, u32::MAX);
        let mut model = std::collections::HashMap::<(u8, Domain), (u8, Option<u8>)>::new();
        for o in ops {
            match o {
                Op::Learn(m, d, p) => {
                    let e = *model.entry((m, d)).or_insert((p, Some(0)));
                    let refused = e.1.is_none() && e.0 != p;
                    let wanted = if refused { Learned::Refused } else { Learned::Pass };
                    prop_assert_eq!(fdb.learn(mac(m), d, id(p.into())), wanted);
                    if e.1.is_some() {
                        model.insert((m, d), (p, Some(0)));
                    }
                }
                Op::Static(m, d, p) => {
                    fdb.add_static(mac(m), d, id(p.into())).unwrap();
                    model.insert((m, d), (p, None));
                }
                Op::Remove(m, d) => {
                    prop_assert_eq!(fdb.remove(mac(m), d), model.remove(&(m, d)).is_some());
                }
                Op::Flush(p) => {
                    fdb.flush_port(id(p.into()));
                    model.retain(|_, e| e.0 != p);
                }
                Op::Tick => {
                    fdb.tick();
                    model.values_mut().for_each(|e| e.1 = e.1.map(|a| a + 1));
                    model.retain(|_, e| e.1.is_none_or(|a| a < 30));
                }
            }
            for (m, d) in (0..21).flat_map(|m| DOMAINS.map(|d| (m, d))) {
                let want = model.get(&(m, d)).map(|e| id(e.0.into()));
                prop_assert_eq!(fdb.lookup(mac(m), d), want);
            }
        }
        let mut list: Vec<_> =
            fdb.list().iter().map(|e| (e.mac, e.domain, e.port, e.age)).collect();
        let mut want: Vec<_> =
            model.iter().map(|((m, d), (p, age))| (mac(*m), *d, id((*p).into()), *age)).collect();
        list.sort();
        want.sort();
        prop_assert_eq!(list, want);
    }
}

/// Every port, tick and kind of entry, with each bit of an address set alone: nothing is lost, no
/// field reaches into another, and no entry looks like a slot that is free or being filled.
#[test]
fn entries_keep_all_that_is_put_into_them() {
    let macs = (0..48).filter(|bit| *bit != 40).map(|bit| 1 << bit);
    let macs: Vec<u64> = macs.chain([0xfeff_ffff_ffff]).collect();
    for bits in 0..MAX_PORTS * usize::from(TICKS) * 4 {
        let (port, rest) = (id(bits % MAX_PORTS), bits / MAX_PORTS);
        let tick = u8::try_from(rest % usize::from(TICKS)).unwrap();
        let pinned = if rest / usize::from(TICKS) % 2 == 0 { 0 } else { STATIC };
        let domain = if rest / usize::from(TICKS) / 2 == 0 { Domain::OPEN } else { TEN };
        for mac in macs.iter().map(|bits| Mac::from_bits(*bits)) {
            let word = entry(mac, domain, port, tick) | pinned;
            assert_eq!((port_of(word), tick_of(word), word & STATIC), (port, tick, pinned));
            assert_eq!(key_of(word), key(mac, domain));
            let group = key_of(word) & GROUP;
            assert_eq!((key_of(word) & !GROUP, group != 0), (mac.bits(), domain == TEN));
            assert!(is_entry(word), "{word:#x} is a free slot");
        }
    }
}
