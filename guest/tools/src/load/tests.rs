//! Over the loopback of this machine. The echoes, whose ports are fixed, are in
//! tests/tests/load.rs.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{LoadError, Options, Report, run};
use crate::workload::{Task, Totals, Workload};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Longer than any run takes that goes well.
const STALL: Duration = Duration::from_secs(60);

/// A port that was free a moment ago, of UDP and TCP.
fn port() -> u16 {
    loop {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if UdpSocket::bind((HERE, port)).is_ok() {
            return port;
        }
    }
}

fn task(workload: Workload) -> Task {
    let mut task = Task::new(workload);
    task.seconds = Some(STALL);
    task
}

fn ask(task: Task, segment: bool) -> Result<Totals, LoadError> {
    run(&Options { task, segment }, &mut |_| {})
}

/// Both; the server is told to stop when it has `all` bytes.
fn both(served: Task, mut asked: Task, segment: bool, all: u64) -> (Totals, Totals) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut served = Task { port: port(), stop: Some(Arc::clone(&stop)), ..served };
    served.report_every = Duration::from_millis(5);
    asked.to = Some(SocketAddrV4::new(HERE, served.port));
    let (told, ready) = channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut bytes = 0;
            let mut report = |report| match report {
                Report::Ready(_) => told.send(()).unwrap(),
                Report::Interval(interval) => {
                    bytes += interval.bytes;
                    if bytes >= all {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            };
            run(&Options { task: served, segment: false }, &mut report).unwrap()
        });
        ready.recv_timeout(STALL).unwrap();
        let client = ask(asked, segment).unwrap();
        (server.join().unwrap(), client)
    })
}

/// Few enough for the socket's buffer: none is lost, however long the receiver waits for a core.
#[test]
fn datagrams_of_any_size_arrive_and_are_counted_by_the_receiver() {
    for (size, burst, count, segment) in [
        (1, 1, 64, false),
        (8, 1, 64, false),
        (8, 32, 64, false),
        (1460, 16, 32, false),
        (1400, 16, 32, true),
        (8, 64, 64, true),
        (9000, 1, 8, false),
        (65_507, 1, 1, false),
    ] {
        let mut stream = task(Workload::UdpStream);
        (stream.size, stream.burst, stream.count) = (size, burst, count);
        let bytes = count * u64::from(size);
        let (got, sent) = both(task(Workload::UdpSink), stream, segment, bytes);
        assert_eq!((sent.messages, sent.bytes), (count, bytes), "{size} by {burst}: {sent}");
        assert_eq!((got.messages, got.bytes), (count, bytes), "{size} by {burst}: {got}");
        assert_eq!((got.lost, got.out_of_order), (0, 0), "{size} by {burst}: {got}");
    }
}

/// A server that is ready: its port, and what comes of it.
fn serve(task: Task) -> (u16, JoinHandle<Totals>) {
    let port = port();
    let options = Options { task: Task { port, ..task }, segment: false };
    let (told, ready) = channel();
    let mut report = move |report| told.send(report).unwrap_or(());
    let server = std::thread::spawn(move || run(&options, &mut report).unwrap());
    assert!(matches!(ready.recv_timeout(STALL).unwrap(), Report::Ready(_)));
    (port, server)
}

#[test]
fn a_missing_datagram_is_counted() {
    let (port, got) = serve(Task { count: 3, ..task(Workload::UdpSink) });
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    for number in [4_u64, 7, 6] {
        // The empty one is nothing but a hello.
        for payload in [&[][..], &number.to_be_bytes()] {
            socket.send_to(payload, (HERE, port)).unwrap();
        }
    }
    let got = got.join().unwrap();
    assert_eq!((got.messages, got.lost, got.out_of_order), (3, 1, 1), "{got}");
}

#[test]
fn the_numbers_of_each_sender_are_looked_at_alone() {
    let (port, got) = serve(Task { count: 11, ..task(Workload::UdpSink) });
    let senders = [(); 3].map(|()| UdpSocket::bind((HERE, 0)).unwrap());
    let send = |sender: usize, number: u64| {
        senders[sender].send_to(&number.to_be_bytes(), (HERE, port)).unwrap();
    };
    // Of the second one, 2 is lost. The last one's number 0 is lost, and does not show.
    for (sender, number) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 3), (0, 3), (1, 4)] {
        send(sender, number);
    }
    (1..=3).for_each(|number| send(2, number));
    let got = got.join().unwrap();
    assert_eq!((got.messages, got.lost, got.out_of_order), (11, 1, 0), "{got}");
}

#[test]
fn every_byte_of_tcp_arrives() {
    for (size, window) in [(1460, 0), (16_384, 0), (65_536, 8192), (1, 0)] {
        let mut sink = task(Workload::TcpSink);
        (sink.verify, sink.window) = (true, window);
        let mut stream = task(Workload::TcpStream);
        (stream.size, stream.window, stream.count) = (size, window, 500);
        let bytes = u64::from(size) * 500;
        let (got, sent) = both(sink, stream, false, bytes);
        assert_eq!(sent.bytes, bytes, "{size}: {sent}");
        assert_eq!((got.bytes, got.corrupt, got.connections), (bytes, 0, 1), "{size}: {got}");
    }
}

#[test]
fn connections_beyond_the_most_are_closed_and_the_others_served_on() {
    let (port, got) = serve(Task { count: 2, ..task(Workload::TcpSink) });
    let call = || TcpStream::connect((HERE, port)).unwrap();
    let ended = |call: &mut TcpStream| {
        call.set_read_timeout(Some(STALL)).unwrap();
        call.read(&mut [0]).unwrap() == 0
    };
    let mut first = call();
    let mut more: Vec<_> = (0..69).map(|_| call()).collect();
    // 63 beside the listener.
    assert!(more[62..].iter_mut().all(ended));
    first.write_all(b"1").unwrap();
    for call in &mut more[..62] {
        call.shutdown(Shutdown::Write).unwrap();
        assert!(ended(call));
    }
    // There is room again, and still somebody who listens.
    call().write_all(b"2").unwrap();
    let got = got.join().unwrap();
    assert_eq!((got.messages, got.connections), (2, 64), "{got}");
}

#[test]
fn whoever_is_not_there_is_named() {
    for workload in [Workload::UdpStream, Workload::TcpStream, Workload::UdpRr, Workload::TcpRr] {
        let to = SocketAddrV4::new(HERE, port());
        let patience = Duration::from_millis(50);
        let error = ask(Task { to: Some(to), patience, ..task(workload) }, false).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&to.to_string()) && text.contains("vmlan load -f"), "{text}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let sink = Task { port: taken.local_addr().unwrap().port(), ..task(Workload::TcpSink) };
    let error = ask(sink, false).unwrap_err();
    assert!(error.to_string().contains("TCP port"), "{error}");
}

#[test]
fn what_cannot_be_done_is_refused() {
    let to = Some(SocketAddrV4::new(HERE, 1));
    let stream = Task { to, ..task(Workload::UdpStream) };
    let refused = |task: Task, segment| ask(task, segment).unwrap_err().to_string();
    assert!(refused(task(Workload::UdpStream), false).contains("--to"));
    assert!(refused(task(Workload::LivelockSink), false).contains("vmlan stack"));
    assert!(refused(stream.clone(), true).contains("--gso"));
    assert!(refused(Task { burst: 65, ..stream.clone() }, true).contains("65 datagrams"));
    let long = Task { burst: 64, size: 1460, ..stream.clone() };
    assert!(refused(long, true).contains("65507 bytes"));
    assert!(refused(Task { size: 65_508, ..stream }, false).contains("65508"));
}
