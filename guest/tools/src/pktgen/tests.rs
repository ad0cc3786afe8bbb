mod capture;
mod sequence;

use std::sync::Arc;
use std::time::Duration;

use super::frame::{self, STAMP_AT, Verdict};
use super::histogram::Histogram;
use super::rate_limit::RateLimiter;
use super::report::Interval;
use super::*;

fn options(size: u32) -> Options {
    let mut options = Options::new("vhost-user:/x".parse().unwrap(), Function::Tx);
    options.size = size;
    options
}

fn stamped(size: u32, number: u64, offload: bool) -> Vec<u8> {
    let mut bytes = frame::build(&options(size), size, 3, offload);
    let stamp = frame::stamp(frame::body_sum(&bytes), 7, number);
    bytes[STAMP_AT..STAMP_AT + stamp.len()].copy_from_slice(&stamp);
    bytes
}

#[test]
fn a_stamped_frame_is_good_and_every_changed_bit_is_seen() {
    for size in [60, 61, 67, 301] {
        let good = stamped(size, 0x0102_0304_0506, false);
        assert_eq!(
            frame::verify(&good, false),
            Verdict::Good { queue: 7, number: 0x0102_0304_0506 }
        );
        assert_ne!(frame::verify(&good[..good.len() - 1], false), frame::verify(&good, false));
        // Not covered: MAC addresses, and the UDP checksum, where zero means none.
        for bit in (12 * 8..good.len() * 8).filter(|bit| !(40..42).contains(&(bit / 8))) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(frame::verify(&bad, false), Verdict::Good { .. }), "bit {bit}");
        }
    }
}

#[test]
fn a_completed_udp_checksum_is_checked() {
    for size in [60, 61, 1000] {
        let mut bytes = stamped(size, 9, true);
        assert_eq!(
            frame::verify(&bytes, false),
            Verdict::Corrupt,
            "only the pseudo header is in it"
        );
        assert!(matches!(frame::verify(&bytes, true), Verdict::Good { .. }));
        // What a device does for csum_start 34, csum_offset 6.
        let sum = !frame::internet_sum(&bytes[34..], 0);
        bytes[40..42].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(frame::verify(&bytes, false), Verdict::Good { .. }));
        bytes[41] ^= 1;
        assert_eq!(frame::verify(&bytes, false), Verdict::Corrupt);
    }
}

#[test]
fn frames_are_what_a_host_would_send() {
    let bytes = frame::build(&options(1514), 1514, 0, false);
    assert_eq!(
        bytes[..14],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0x76, 0x6d, 0, bytes[10], bytes[11], 8, 0]
    );
    assert_eq!(frame::internet_sum(&bytes[14..34], 0), 0xffff, "the IP header's checksum holds");
    assert_eq!((bytes[16..18].to_vec(), bytes[38..40].to_vec()), (vec![5, 220], vec![5, 200]));
    // RFC 1071, section 3.
    assert_eq!(frame::internet_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
}

#[test]
fn ranges_are_walked_through() {
    let mut options = options(60);
    options.dst_ip = "10.0.0.254".parse().unwrap()..="10.0.1.1".parse().unwrap();
    options.src_port = 65_534..=65_535;
    let seen: Vec<_> =
        (0..5).map(|n| frame::build(&options, 60, n, false)[32..36].to_vec()).collect();
    let row = |a, b, p| vec![a, b, 0xff, p];
    let expected =
        [row(0, 254, 0xfe), row(0, 255, 0xff), row(1, 0, 0xfe), row(1, 1, 0xff), row(0, 254, 0xfe)];
    assert_eq!(seen, expected);
}

#[test]
fn turned_round_frames_are_still_good() {
    let own = "02:00:00:00:00:09".parse::<Mac>().unwrap();
    let mut bytes = stamped(99, 5, true);
    let sender = bytes[6..12].to_vec();
    assert!(frame::turn_round(&mut bytes, own));
    assert_eq!((bytes[..6].to_vec(), &bytes[6..12]), (sender, &own.0[..]), "a group is no sender");
    assert_eq!(frame::verify(&bytes, false), Verdict::Good { queue: 7, number: 5 });
    assert_eq!(frame::internet_sum(&bytes[14..34], 0), 0xffff);
    let (dst, src) = (bytes[..6].to_vec(), bytes[6..12].to_vec());
    assert!(frame::turn_round(&mut bytes, own));
    assert_eq!((bytes[..6].to_vec(), bytes[6..12].to_vec()), (src, dst));
    assert!(!frame::turn_round(&mut frame::announcement(own), own), "not IPv4");
    assert!(!frame::turn_round(&mut [0; 13], own));
}

#[test]
fn short_and_foreign_frames_are_none_of_ours() {
    let good = stamped(60, 1, false);
    for len in 0..60 {
        assert_eq!(frame::verify(&good[..len], false), Verdict::Other);
    }
    assert_eq!(frame::verify(&frame::announcement(Mac([2; 6])), false), Verdict::Other);
}

#[test]
fn a_mac_is_read_and_written() {
    let mac: Mac = "02:ab:0:00:00:1f".parse().unwrap();
    assert_eq!(mac.to_string(), "02:ab:00:00:00:1f");
    for bad in ["", "02:00", "02:00:00:00:00:00:00", "02:00:00:00:00:1g", "002:0:0:0:0:0", ":::::"]
    {
        assert!(bad.parse::<Mac>().is_err(), "{bad}");
    }
}

#[test]
fn the_rate_is_kept_over_time_and_stalls_are_not_made_up_for() {
    for (rate, burst) in [(10, 256), (10_000, 256), (1_000_000, 64), (3, 1)] {
        let mut pace = RateLimiter::new(rate, burst);
        let (mut now, mut sent) = (0, 0);
        while now < 10_000_000_000 {
            let allowed = pace.allow(now, burst);
            pace.spend(allowed);
            sent += u64::from(allowed);
            let pause = pace.until(now);
            assert!(allowed > 0 || pause > Duration::ZERO, "no progress");
            now += u64::try_from(pause.as_nanos()).unwrap().max(100);
        }
        assert!(sent.abs_diff(10 * rate) <= 1 + rate / 500, "{rate}/s: {sent} in 10 s");
        assert!(u64::from(pace.allow(now + 60_000_000_000, u32::MAX)) <= 1 + rate / 100);
    }
    let unlimited = RateLimiter::new(0, 256).allow(0, 77);
    assert_eq!(unlimited, 77);
}

#[test]
fn percentiles_have_three_digits() {
    let mut histogram = Histogram::new();
    assert!(histogram.latency().is_none());
    let mut even = Histogram::new();
    for ns in 1..=100_000 {
        if ns % 2 == 0 { even.add(ns) } else { histogram.add(ns) }
    }
    histogram.merge(&even);
    let latency = histogram.latency().unwrap();
    assert_eq!((latency.samples, latency.min_ns, latency.max_ns), (100_000, 1, 100_000));
    assert!((latency.mean_ns - 50_000.0).abs() < 50.0);
    for (got, exact) in [
        (latency.p50_ns, 50_000),
        (latency.p90_ns, 90_000),
        (latency.p99_ns, 99_000),
        (latency.p999_ns, 99_900),
        (latency.p9999_ns, 99_990),
    ] {
        assert!(got.abs_diff(exact) <= exact / 1000, "{got} for {exact}");
    }
    let mut one = Histogram::new();
    one.add(u64::MAX);
    assert_eq!(one.latency().unwrap().max_ns, u64::MAX);
}

#[test]
fn options_are_checked() {
    assert_eq!(options(59).check(), Err(OptionsError::Size(59)));
    assert_eq!(Options { burst: 0, ..options(60) }.check(), Err(OptionsError::Burst));
    #[allow(clippy::reversed_empty_ranges)]
    let wrong = Options { src_port: 9..=8, ..options(60) };
    assert_eq!(wrong.check(), Err(OptionsError::Range("source ports")));
    let sizes = |least, most| Options { least_size: Some(least), ..options(most) }.check();
    assert_eq!(sizes(59, 1514), Err(OptionsError::Size(59)));
    assert_eq!(sizes(100, 99), Err(OptionsError::Range("sizes")));
    assert_eq!(sizes(60, 60), Ok(()));
    let mut options = options(60);
    assert!(options.set_function("pingseq").is_err() && options.set_function("sleep").is_err());
    options.set_function("rxseq").unwrap();
    assert!(options.verify && options.announce && options.function == Function::Rx);
}

#[test]
fn a_report_reads_as_pkt_gen_users_expect() {
    let interval = Interval {
        frames: 4_567_890,
        bytes: 4_567_890 * 60,
        micros: 1_000_123,
        batches: 71_374,
        min_space: 12,
        doorbells: 5,
        interrupts: 6,
        round_trip_ns: None,
    };
    assert_eq!(
        Report::Interval(interval).to_string(),
        "main_thread [0] 4.567 Mpps (4.568 Mpkts 2.192 Gbps in 1000123 usec) 64.00 avg_batch 12 \
         min_space 5 kicks 6 irqs"
    );
}

fn on(address: &str, function: Function) -> Options {
    Options::new(address.parse().unwrap(), function)
}

#[test]
fn threads_and_processors_are_checked_before_anything_is_reached() {
    let said = |change: &dyn Fn(&mut Options), address| {
        let mut options = on(address, Function::Tx);
        change(&mut options);
        options.check().unwrap_err().to_string()
    };
    let two = |options: &mut Options| options.threads = 2;
    assert!(said(&two, "vhost-user:/x").contains("the NIC has 1: add queues=2 to its address"));
    assert!(said(&two, "vfio-user:/x").contains("an e1000 has one"));
    assert!(said(&|o| o.threads = 0, "vhost-user:/x").contains("-p 0"));
    assert!(said(&|o| (o.cpu, o.cpus) = (Some(2), Some(2)), "vhost-user:/x").contains("0 to 1"));
    let queues = "vhost-user:/x,queues=4";
    let slow = |o: &mut Options| (o.threads, o.rate) = (4, 3);
    assert!(said(&slow, queues).contains("-R and -p"));
    let mut ping = Options { threads: 2, ..on(queues, Function::Ping) };
    assert!(ping.check().is_err());
    ping.function = Function::Pong;
    assert_eq!(ping.check(), Ok(()));
    let pinned = Options { cpu: Some(1), cpus: Some(2), ..ping };
    assert_eq!([0, 1, 2].map(|n| pinned.cpu_of(n)), [Some(1), Some(0), Some(1)]);
    let open = Options { cpus: None, ..pinned };
    assert_eq!([0, 1].map(|n| open.cpu_of(n)), [Some(1), Some(2)]);
}

#[test]
fn a_replay_takes_no_options_of_built_frames() {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    file.extend(
        [0; 12]
            .into_iter()
            .chain([1, 0, 0, 0])
            .chain([0; 8])
            .chain([14, 0, 0, 0])
            .chain([14, 0, 0, 0]),
    );
    file.extend([7; 14]);
    let capture = Arc::new(Capture::parse(&file).unwrap());
    let tx = Options { replay: Some(capture), ..options(60) };
    assert_eq!(tx.check(), Ok(()));
    let refused = |options: Options, word: &str| {
        let said = options.check().unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    };
    refused(Options { function: Function::Ping, ..tx.clone() }, "-P and -f ping");
    refused(Options { sequence: true, ..tx.clone() }, "-P and -f txseq");
    refused(Options { offload_checksum: true, ..tx.clone() }, "--offload-checksum");
    refused(Options { least_size: Some(60), ..tx.clone() }, "two -l");
    refused(Options { recorded_timing: true, rate: 9, ..tx }, "-P and -R");
    refused(Options { recorded_timing: true, ..options(60) }, "--recorded-timing");
}

#[test]
fn random_ends_are_spread_and_stay_in_their_ranges() {
    let mut options = Options { random_src: true, random_dst: true, ..options(60) };
    options.dst_ip = "10.0.0.4".parse().unwrap()..="10.0.0.7".parse().unwrap();
    options.dst_port = 100..=109;
    assert!(options.varies(u64::MAX));
    let heads: Vec<_> = (0..1000).map(|n| frame::head(&options, 60, n, false)).collect();
    let kinds = |at: std::ops::Range<usize>| {
        heads
            .iter()
            .map(|head| head[at.clone()].to_vec())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert!(kinds(26..30).len() > 990 && kinds(34..36).len() > 950, "sources are any");
    assert_eq!((kinds(30..34).len(), kinds(36..38).len()), (4, 10), "all of the range");
    assert!(kinds(30..34).iter().all(|ip| (4..=7).contains(&ip[3])));
    assert!(heads.iter().all(|head| frame::internet_sum(&head[14..34], 0) == 0xffff));
}

#[test]
fn ranges_longer_than_the_ring_are_walked_frame_by_frame() {
    let mut options = options(60);
    options.dst_port = 1000..=1255;
    assert!(options.varies(255) && !options.varies(256));
    options.least_size = Some(60);
    options.size = 1514;
    let sizes: Vec<_> = (0..2000).map(|n| options.size_of(n)).collect();
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!((60..70).contains(least) && (1505..=1514).contains(most));
    let mean = sizes.iter().sum::<u32>() / 2000;
    assert!((750..820).contains(&mean), "{mean}");
}

#[test]
fn a_stamp_holds_with_new_addresses() {
    let mut options = options(301);
    options.src_port = 1..=60_000;
    let mut bytes = frame::build(&options, 301, 0, false);
    let pattern = frame::pattern_sum(&bytes);
    let head = frame::head(&options, 301, 59_999, false);
    bytes[..head.len()].copy_from_slice(&head);
    let stamp = frame::stamp(pattern ^ frame::head_sum(&head), 3, 8);
    bytes[STAMP_AT..STAMP_AT + stamp.len()].copy_from_slice(&stamp);
    assert_eq!(frame::verify(&bytes, false), Verdict::Good { queue: 3, number: 8 });
    assert_eq!(bytes[34..36], 60_000_u16.to_be_bytes());
}
