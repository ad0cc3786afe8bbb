//! Whole runs, two hosts on one wire.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::super::engine::run_on;
use super::super::report::Report;
use super::super::{Options, Schedule, StackError, Summary, TaskError, Workload};
use super::wire::{Fate, Wire, pair};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn client(workload: Workload) -> Options {
    let address = "vhost-user:/nowhere".parse().unwrap();
    let mut options = Options::new(address, workload, (Ipv4Addr::new(10, 0, 0, 1), 24));
    options.task.to = Some(SocketAddrV4::new(SERVER, 0));
    options.task.seconds = Some(Duration::from_secs(20));
    options
}

fn server(workload: Workload) -> Options {
    let mut options = client(workload);
    (options.ip, options.task.to) = ((SERVER, 24), None);
    options
}

fn clean() -> Fate {
    Box::new(|_| true)
}

/// Runs both; the server ends 300 ms after the client, so that it has all, also if it waits for a
/// core.
fn both(fate: Fate, served: Options, asked: &Options) -> (Summary, Result<Summary, StackError>) {
    both_on(pair(fate), served, asked)
}

fn both_on(
    (a, b): (Wire, Wire),
    mut served: Options,
    asked: &Options,
) -> (Summary, Result<Summary, StackError>) {
    let stop = Arc::new(AtomicBool::new(false));
    served.task.stop = Some(Arc::clone(&stop));
    std::thread::scope(|scope| {
        let server = scope.spawn(move || run_on(b, &served, Duration::ZERO, &mut |_| {}));
        let client = run_on(a, asked, Duration::ZERO, &mut |_| {});
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        (server.join().unwrap().unwrap(), client)
    })
}

#[test]
fn datagrams_arrive_and_gaps_are_counted() {
    for threads in [1, 2] {
        let mut sink = server(Workload::UdpSink);
        (sink.threads, sink.socket_queue) = (threads, 1000);
        let mut stream = client(Workload::UdpStream);
        (stream.task.count, stream.task.rate, stream.task.burst, stream.threads) =
            (400, 20_000, 10, threads);
        // The 100th datagram of 8 bytes is lost, and the 200th changed.
        let fate = Box::new(|frame: &mut Vec<u8>| {
            let number = u64::from_be_bytes(*frame[42..].first_chunk().unwrap());
            let ours = frame[36..38] == 7009_u16.to_be_bytes() && frame[38..40] == [0, 16];
            if ours && number == 200 {
                frame[43] ^= 1;
            }
            !(ours && number == 100)
        });
        let (got, sent) = both(fate, sink, &stream);
        assert_eq!(sent.unwrap().totals.messages, 400);
        assert_eq!(
            (got.totals.messages, got.totals.lost, got.totals.corrupt),
            (398, 2, 1),
            "{threads} thread(s)"
        );
        assert_eq!((got.totals.bytes, got.dropped), (398 * 8, 0));
    }
}

#[test]
fn long_datagrams_are_fragmented_and_put_together() {
    for size in [1473, 8000, 65_507] {
        let mut sink = server(Workload::UdpSink);
        sink.socket_queue = 1000;
        let mut stream = client(Workload::UdpStream);
        (stream.task.size, stream.task.count, stream.task.rate) = (size, 40, 400);
        let (got, sent) = both(clean(), sink, &stream);
        assert_eq!(sent.unwrap().totals.messages, 40);
        let expected = (40, 40 * u64::from(size), 0, 0);
        assert_eq!(
            (got.totals.messages, got.totals.bytes, got.totals.lost, got.totals.corrupt),
            expected
        );
    }
}

#[test]
fn tcp_delivers_every_byte_over_a_wire_that_loses_some() {
    for (threads, size) in [(1, 1460), (2, 65_536), (1, 1)] {
        let mut sink = server(Workload::TcpSink);
        (sink.task.verify, sink.threads) = (true, threads);
        let mut stream = client(Workload::TcpStream);
        (stream.task.size, stream.threads) = (size, threads);
        stream.task.count = 2_000_000 / u64::from(size).max(100);
        let mut state = 1_u64;
        let fate = Box::new(move |_: &mut Vec<u8>| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            !(state >> 33).is_multiple_of(200)
        });
        let (got, sent) = both(fate, sink, &stream);
        let sent = sent.unwrap();
        assert!(
            sent.totals.messages >= stream.task.count,
            "{} of {}",
            sent.totals.messages,
            stream.task.count
        );
        assert_eq!(
            (got.totals.bytes, got.totals.corrupt, got.totals.connections),
            (sent.totals.bytes, 0, 1)
        );
    }
}

/// The most bytes that a stream to a sink has under way.
fn most_under_way(sink_window: u32, stream_window: u32) -> u32 {
    let mut sink = server(Workload::TcpSink);
    (sink.task.verify, sink.task.window) = (true, sink_window);
    let mut stream = client(Workload::TcpStream);
    (stream.task.count, stream.task.size, stream.task.window) = (8, 65_536, stream_window);
    let [acked, most] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let word = |frame: &[u8], at: usize| u32::from_be_bytes(*frame[at..].first_chunk().unwrap());
    let is_tcp = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 6;
    let (mut ends, told) = (pair(clean()), Arc::clone(&acked));
    ends.1.set_fate(Box::new(move |frame| {
        if is_tcp(frame) {
            told.store(word(frame, 42), Ordering::Relaxed);
        }
        true
    }));
    let seen = Arc::clone(&most);
    ends.0.set_fate(Box::new(move |frame| {
        let acked = acked.load(Ordering::Relaxed);
        if is_tcp(frame) && acked != 0 {
            let bytes = u32::from(u16::from_be_bytes([frame[16], frame[17]]));
            let end = word(frame, 38).wrapping_add(bytes - 20 - u32::from(frame[46] >> 4) * 4);
            // The client may not have seen yet what is acknowledged, and say something twice.
            let under_way = end.wrapping_sub(acked).cast_signed().max(0).cast_unsigned();
            seen.fetch_max(under_way, Ordering::Relaxed);
        }
        true
    }));
    let (got, sent) = both_on(ends, sink, &stream);
    assert_eq!((got.totals.bytes, got.totals.corrupt), (sent.unwrap().totals.bytes, 0));
    most.load(Ordering::Relaxed)
}

#[test]
fn no_more_than_the_window_is_under_way() {
    assert!(most_under_way(0, 0) > 4096);
    for (sink, stream) in [(4096, 0), (0, 4096), (4096, 4096)] {
        let most = most_under_way(sink, stream);
        assert!((1..=4096).contains(&most), "{sink} {stream}: {most}");
    }
}

#[test]
fn tcp_goes_on_among_flipped_bits_and_nonsense() {
    for threads in [1, 2] {
        let mut sink = server(Workload::TcpSink);
        (sink.task.verify, sink.threads) = (true, threads);
        let mut stream = client(Workload::TcpStream);
        (stream.task.count, stream.threads) = (700, threads);
        let (mut n, mut state) = (0_u32, 0x9e37_79b9_7f4a_7c15_u64);
        // By chance, and not by turns: a window that is sent again must not meet the same fate for
        // ever.
        let fate = Box::new(move |frame: &mut Vec<u8>| {
            let mut random = |below: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                usize::try_from(state >> 33).unwrap() % below
            };
            n += 1;
            let dice = if n > 10 { random(150) } else { 100 };
            if dice == 0 {
                // Headers that may be anything, to the right host.
                frame.resize(14 + random(1500), 0);
                (14..frame.len().min(60))
                    .for_each(|at| frame[at] = u8::try_from(random(256)).unwrap());
                frame[12..14].copy_from_slice(&[8, u8::from(n % 4 == 0) * 6]);
            } else if dice == 1 {
                let at = random(frame.len());
                frame[at] ^= 1 << random(8);
            }
            true
        });
        let (got, sent) = both(fate, sink, &stream);
        assert_eq!((got.totals.bytes, got.totals.corrupt), (sent.unwrap().totals.bytes, 0));
    }
}

#[test]
fn another_switch_is_gone_on_with() {
    for threads in [1, 2] {
        let mut rr = client(Workload::UdpRr);
        (rr.task.count, rr.threads) = (300, threads);
        let (mut a, b) = pair(clean());
        let gone = a.gone();
        let mut n = 0;
        a.set_fate(Box::new(move |_| {
            n += 1;
            // With this request, the switch dies.
            if n == 100 {
                gone.store(true, Ordering::Relaxed);
            }
            n != 100
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let mut responder = server(Workload::Responder);
        responder.task.stop = Some(Arc::clone(&stop));
        let mut lines = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(move || run_on(b, &responder, Duration::ZERO, &mut |_| {}).unwrap());
            let summary = run_on(a, &rr, Duration::ZERO, &mut |report| {
                lines.push(report.to_string());
            });
            stop.store(true, Ordering::Relaxed);
            let summary = summary.unwrap();
            assert_eq!(
                (summary.totals.messages, summary.totals.lost, summary.reconnects),
                (300, 1, 1)
            );
        });
        let said = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(said("the switch is gone") && said("connected again"), "{lines:?}");
    }
}

#[test]
fn requests_are_answered_one_by_one() {
    for workload in [Workload::UdpRr, Workload::TcpRr] {
        for (threads, size, count) in [(1, 1, 500), (2, 1, 500), (1, 1400, 50)] {
            let mut responder = server(Workload::Responder);
            responder.threads = threads;
            let mut rr = client(workload);
            (rr.task.count, rr.task.size, rr.threads) = (count, size, threads);
            let (got, asked) = both(clean(), responder, &rr);
            let asked = asked.unwrap();
            // The first one is not measured.
            assert_eq!(
                (asked.totals.messages, asked.totals.lost, got.totals.messages),
                (count, 0, count + 1)
            );
            let latency = asked.totals.latency.unwrap();
            assert_eq!(latency.samples, count);
            assert!(latency.min_ns > 0 && latency.p50_ns <= latency.p999_ns);
            assert_eq!(asked.totals.bytes, count * u64::from(size));
        }
    }
}

#[test]
fn requests_keep_their_rate_and_lost_ones_are_counted() {
    let mut rr = client(Workload::UdpRr);
    (rr.task.rate, rr.task.count) = (1000, 200);
    let mut n = 0;
    let fate = Box::new(move |frame: &mut Vec<u8>| {
        let request = frame[36..38] == 7007_u16.to_be_bytes();
        n += u32::from(request);
        !(request && n == 30)
    });
    let (_, asked) = both(fate, server(Workload::Responder), &rr);
    let asked = asked.unwrap();
    assert_eq!((asked.totals.messages, asked.totals.lost), (200, 1));
    // 200 requests at 1,000 a second, and a second of waiting for the lost one; the machine may be
    // slow, but not fast.
    assert!(asked.totals.seconds >= 1.1, "{} s", asked.totals.seconds);
}

#[test]
fn a_socket_queue_is_bounded_and_the_application_goes_on() {
    for threads in [1, 2] {
        let mut sink = server(Workload::LivelockSink);
        (sink.threads, sink.task.app_ns, sink.socket_queue) = (threads, 1_000_000, 16);
        let mut stream = client(Workload::UdpStream);
        (stream.task.count, stream.task.burst) = (4000, 100);
        stream.task.rate = 10_000;
        let (got, sent) = both(clean(), sink, &stream);
        assert_eq!(sent.unwrap().totals.messages, 4000);
        // An application that takes a millisecond for each gets some hundred of them in 0.4 s, and
        // not one more. The time ends with the last frame; what is in the socket's queue then is
        // taken after it.
        let most = (got.totals.seconds * 1000.0) + 2.0 + 16.0;
        let messages = f64::from(u32::try_from(got.totals.messages).unwrap());
        assert!(
            got.totals.messages >= 20 && messages <= most,
            "{} in {} s",
            got.totals.messages,
            got.totals.seconds
        );
        assert!(got.arrived <= 4001, "the greeting and the datagrams");
        let waiting = got.arrived - got.dropped - got.totals.messages;
        assert!(waiting <= 17, "{waiting} are neither dropped nor taken");
        let schedule = if threads == 1 { Schedule::InTurns } else { Schedule::Parallel };
        assert_eq!(got.schedule, schedule);
    }
}

#[test]
fn a_peer_that_is_not_there_is_named() {
    for workload in [Workload::UdpStream, Workload::TcpStream, Workload::UdpRr, Workload::TcpRr] {
        let mut options = client(workload);
        options.task.patience = Duration::from_millis(200);
        let (a, _b) = pair(clean());
        let error = run_on(a, &options, Duration::ZERO, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("no answer from 10.0.0.2:70"), "{error}");
        // Also when the time to run is up before the patience is.
        (options.task.patience, options.task.seconds) =
            (options.task.seconds.unwrap(), Some(options.task.patience));
        let (a, _b) = pair(clean());
        let error = run_on(a, &options, Duration::ZERO, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("no answer from 10.0.0.2:70"), "{error}");
    }
    // There is a host, and nobody listens.
    let (_, asked) = both(clean(), server(Workload::UdpSink), &client(Workload::TcpStream));
    let error = asked.unwrap_err().to_string();
    assert!(error.contains("10.0.0.2:7009 closed the connection"), "{error}");
}

#[test]
fn reports_come_at_their_time() {
    let mut stream = client(Workload::UdpStream);
    stream.task.seconds = Some(Duration::from_millis(300));
    stream.task.report_every = Duration::from_millis(50);
    let (a, b) = pair(clean());
    let mut sink = server(Workload::UdpSink);
    sink.task.idle_exit = Some(Duration::from_secs(1));
    std::thread::scope(|scope| {
        let sink = scope.spawn(move || run_on(b, &sink, Duration::ZERO, &mut |_| {}));
        let (mut lines, mut messages) = (Vec::new(), 0);
        let summary = run_on(a, &stream, Duration::ZERO, &mut |report| {
            if let Report::Interval(interval) = report {
                messages += interval.work.messages;
            }
            lines.push(report.to_string());
        });
        assert!(lines[0].starts_with("connected, ") && lines[0].ends_with(" is 10.0.0.1"));
        assert!((2..=6).contains(&lines.len()), "{lines:?}");
        assert!(messages > 0 && messages <= summary.unwrap().totals.messages);
        // Silence ends the sink.
        sink.join().unwrap().unwrap();
    });
}

#[test]
fn a_run_that_ends_in_its_warm_up_has_measured_nothing() {
    let mut responder = server(Workload::Responder);
    responder.task.warmup = Duration::from_secs(19);
    let mut rr = client(Workload::UdpRr);
    (rr.task.count, rr.task.warmup) = (50, responder.task.warmup);
    let (got, asked) = both(clean(), responder, &rr);
    for run in [got, asked.unwrap()] {
        assert_eq!((run.totals.messages, run.totals.latency, run.frames_sent), (0, None, 0));
    }
}

#[test]
fn wrong_options_name_the_mend() {
    let with = |change: fn(&mut Options)| {
        let mut options = client(Workload::UdpStream);
        change(&mut options);
        options.check().unwrap_err().to_string()
    };
    for (text, word) in [
        (with(|o| o.task.to = None), "--to IP"),
        (with(|o| o.task.to = Some(SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 2), 0))), "--gateway"),
        (with(|o| o.task.to = Some(SocketAddrV4::new(Ipv4Addr::BROADCAST, 0))), "host"),
        (with(|o| o.ip.1 = 0), "10.0.0.1/24"),
        (with(|o| o.task.size = 65_508), "65507"),
        (with(|o| (o.task.workload, o.task.size) = (Workload::TcpRr, 1401)), "1400"),
        (with(|o| o.mtu = 100), "576"),
        (with(|o| o.task.window = 1000), "1024"),
        (with(|o| o.threads = 3), "1 (driver"),
        (with(|o| o.task.burst = 0), "a burst of 0"),
        (with(|o| o.task.warmup = Duration::from_secs(20)), "a warm-up of 20s"),
        (with(|o| o.budget = 0), "a budget of 0"),
    ] {
        assert!(text.contains(word), "{text}");
    }
    let error = "udp".parse::<Workload>().unwrap_err();
    assert_eq!(error, TaskError::Workload("udp".into()));
    for (name, workload) in Workload::ALL {
        assert_eq!((name.parse(), workload.name()), (Ok(workload), name));
    }
    let mut long = client(Workload::UdpStream);
    (long.task.size, long.mtu) = (65_507, 576);
    let (_, sent) = both(clean(), server(Workload::UdpSink), &long);
    let error = sent.unwrap_err();
    assert!(matches!(error, StackError::Slots { slots: 64, frames: 119 }), "{error}");
    let mut options = client(Workload::UdpStream);
    options.mtu = 2040;
    let (a, _b) = pair(clean());
    let error = run_on(a, &options, Duration::ZERO, &mut |_| {}).unwrap_err();
    assert!(matches!(error, StackError::Room { room: 2048, mtu: 2040 }), "{error}");
}
