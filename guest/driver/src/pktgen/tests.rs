use std::time::Duration;

use super::frame::{self, STAMP_AT, Verdict};
use super::histogram::Histogram;
use super::pace::Pace;
use super::report::Interval;
use super::*;

fn options(size: u32) -> Options {
    let mut options = Options::new("vhost-user:/x".parse().unwrap(), Function::Tx);
    options.size = size;
    options
}

fn stamped(size: u32, number: u64, offload: bool) -> Vec<u8> {
    let mut bytes = frame::build(&options(size), 3, offload);
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
    let bytes = frame::build(&options(1514), 0, false);
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
    let seen: Vec<_> = (0..5).map(|n| frame::build(&options, n, false)[32..36].to_vec()).collect();
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
        let mut pace = Pace::new(rate, burst);
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
    let unlimited = Pace::new(0, 256).allow(0, 77);
    assert_eq!(unlimited, 77);
}

#[test]
fn percentiles_are_within_six_per_cent() {
    let mut histogram = Histogram::new();
    assert!(histogram.latency().is_none());
    for ns in 1..=100_000 {
        histogram.add(ns);
    }
    let latency = histogram.latency().unwrap();
    assert_eq!((latency.samples, latency.min_ns, latency.max_ns), (100_000, 1, 100_000));
    for (got, exact) in
        [(latency.p50_ns, 50_000), (latency.p90_ns, 90_000), (latency.p99_ns, 99_000)]
    {
        assert!(got >= exact && got - exact <= exact * 7 / 100, "{got} for {exact}");
    }
    let mut one = Histogram::new();
    one.add(u64::MAX);
    assert_eq!(one.latency().unwrap().p99_ns, u64::MAX);
}

#[test]
fn options_are_checked() {
    assert_eq!(options(59).check(), Err(OptionsError::Size(59)));
    assert_eq!(Options { burst: 0, ..options(60) }.check(), Err(OptionsError::Burst));
    #[allow(clippy::reversed_empty_ranges)]
    let wrong = Options { src_port: 9..=8, ..options(60) };
    assert_eq!(wrong.check(), Err(OptionsError::Range("source ports")));
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
    };
    assert_eq!(
        Report::Interval(interval).to_string(),
        "main_thread [0] 4.567 Mpps (4.568 Mpkts 2.192 Gbps in 1000123 usec) 64.00 avg_batch 12 min_space 5 kicks 6 irqs"
    );
}
