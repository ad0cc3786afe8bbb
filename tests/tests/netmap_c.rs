//! Programs in C on `libvmlan_netmap`, as netmap's own are: compiled against its headers without a
//! warning, linked with the static and with the shared library, over a switch. Rates are nobody's
//! business here.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::STALL;
use vmlan_tests::{LanHost, NetNs, Process, build, connectivity, output_of};
use vmlan_tools::netmap::{Interest, Port};
use vmlan_transport::Model;

const HERE: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const THERE: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Where the library is, built once.
fn library() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| build(&["--workspace", "--examples", "--lib"]))
}

/// Compiles one of the programs in guest/netmap-c/tests/c into `dir`.
fn compile(dir: &Path, name: &str, shared: bool) -> String {
    let text = |path: PathBuf| path.display().to_string();
    let (source, include) = (root().join("guest/netmap-c/tests/c"), "guest/netmap-c/include");
    let (source, out) = (text(source.join(format!("{name}.c"))), text(dir.join(name)));
    let include = format!("-I{}", text(root().join(include)));
    let place = text(library().to_owned());
    let warnings = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-pthread"];
    let mut args = [&warnings[..], &[&include, &source, "-o", &out]].concat();
    let (search, run, whole) =
        (format!("-L{place}"), format!("-Wl,-rpath,{place}"), format!("{place}/libvmlan_netmap.a"));
    if shared {
        args.extend([search.as_str(), &run, "-lvmlan_netmap"]);
    } else {
        args.extend([whole.as_str(), "-lgcc_s", "-lpthread", "-lm", "-ldl"]);
    }
    output_of("cc", &args).unwrap();
    out
}

/// A program that has said that it is ready.
fn start(dir: &Path, program: &str, args: &[&str]) -> Process {
    let argv: Vec<_> = [program].iter().chain(args).map(|&arg| arg.to_owned()).collect();
    start_all(dir, program, &argv)
}

fn start_all(dir: &Path, program: &str, argv: &[String]) -> Process {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let log = dir.join(format!("said{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    let mut process = Process::start(program, &log, argv).unwrap();
    let is_ready = || std::fs::read_to_string(&log).unwrap_or_default().contains("ready");
    process.wait("to be ready", STALL, is_ready).unwrap();
    process
}

/// Its last words, once it has ended well.
fn end(mut process: Process) -> String {
    assert!(process.ended_within(STALL), "{}", process.log());
    process.finish().unwrap()
}

fn frame(from: [u8; 6], to: [u8; 6], number: u16) -> Vec<u8> {
    let mut bytes = [&to[..], &from[..], &[0x88, 0xb5]].concat();
    let len = 60 + usize::from(number) * 37 % 1455;
    bytes.extend((0..len - 14).map(|at| (at.wrapping_add(number.into()) % 251).to_le_bytes()[0]));
    bytes
}

fn send(port: &mut Port, frame: &[u8]) {
    while port.tx(0).push(frame).is_err() {
        let room = Interest { rx: false, tx: true };
        assert!(port.poll(room, STALL).unwrap().tx);
    }
    port.txsync().unwrap();
}

fn receive(port: &mut Port) -> Vec<u8> {
    loop {
        if let Some(frame) = port.rx(0).pop() {
            return frame.to_vec();
        }
        let frames = Interest { rx: true, tx: false };
        assert!(port.poll(frames, STALL).unwrap().rx, "nothing comes");
    }
}

fn open(address: &str) -> Port {
    Port::open_for(&address.parse().unwrap(), None, STALL).unwrap()
}

/// Kinds of ports for C programs.
const NICS: [(&str, Option<Model>); 4] = [
    ("virtio", None),
    ("csb", Some(Model::E1000)),
    ("e1000", Some(Model::E1000)),
    ("r8169", Some(Model::R8169)),
];

/// Adds a port of a kind; its address for a driver.
fn plug(lan: &mut Lan, name: &str, (kind, model): (&str, Option<Model>)) -> String {
    let Some(model) = model else {
        return format!("vhost-user:{}", lan.add(name, 1).display());
    };
    let csb = kind == "csb";
    let path = lan.add_chip(name, model, |config| config.csb = csb);
    let keys = if csb { ",csb=on" } else { "" };
    format!("vfio-user:{},model={model},promisc{keys}", path.display())
}

#[test]
fn structures_are_as_the_library_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "layout", false);
    output_of(&program, &[]).unwrap();
}

#[test]
fn frames_come_back_from_an_echo() {
    let dir = tempfile::tempdir().unwrap();
    for (n, nic) in NICS.into_iter().enumerate() {
        let mut lan = Lan::new(1, FULL_WAIT);
        let (a, b) = (plug(&mut lan, "a", ("virtio", None)), plug(&mut lan, "b", nic));
        let program = compile(dir.path(), "echo", n % 2 == 1);
        let echo = start(dir.path(), &program, &[&format!("netmap:{b}"), "60"]);
        let mut port = open(&a);
        for number in 0..60 {
            send(&mut port, &frame(HERE, THERE, number));
            assert_eq!(receive(&mut port), frame(THERE, HERE, number), "{}", nic.0);
        }
        let said = end(echo);
        assert!(said.contains("tx 60 rx 60 "), "{}: {said}", nic.0);
    }
}

#[test]
fn a_bridge_exchanges_buffers_and_copies_nothing() {
    const EACH: u16 = 100;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "swap", false);
    for nics in [[NICS[0], NICS[0]], [NICS[1], NICS[0]], [NICS[2], NICS[3]]] {
        let mut lans = [Lan::new(1, FULL_WAIT), Lan::new(1, FULL_WAIT)];
        let [near, far] = [0, 1].map(|n| {
            let lan = &mut lans[n];
            (plug(lan, "host", NICS[0]), plug(lan, "bridge", nics[n]))
        });
        let count = (2 * EACH).to_string();
        let bridge = start(dir.path(), &program, &[&near.1, &far.1, &count]);
        let (mut a, mut b) = (open(&near.0), open(&far.0));
        for number in 0..EACH {
            send(&mut a, &frame(HERE, THERE, number));
            assert_eq!(receive(&mut b), frame(HERE, THERE, number), "{nics:?}");
            send(&mut b, &frame(THERE, HERE, number));
            assert_eq!(receive(&mut a), frame(THERE, HERE, number), "{nics:?}");
        }
        let said = end(bridge);
        // Each frame came in by one copy and went out by one; the program exchanged the rest.
        let line = "tx 100 rx 100 tx_copies 100 rx_copies 100 swapped 200 resets 0";
        assert_eq!(said.matches(line).count(), 2, "{nics:?}: {said}");
    }
}

#[test]
fn lies_cost_a_reset_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "liar", true);
    for nic in NICS {
        let mut lan = Lan::new(1, FULL_WAIT);
        let (a, b) = (plug(&mut lan, "a", ("virtio", None)), plug(&mut lan, "b", nic));
        let mut port = open(&a);
        let liar = start(dir.path(), &program, &[&b]);
        let said = end(liar);
        let sent = said.lines().find_map(|line| line.strip_prefix("sent ")).unwrap();
        for number in 0..sent.parse().unwrap() {
            let got = receive(&mut port);
            assert_eq!((got.len(), got[14]), (60, number), "{}", nic.0);
        }
        let more = port.poll(Interest { rx: true, tx: false }, Duration::from_millis(50)).unwrap();
        assert!(!more.rx, "{}: what was refused was sent", nic.0);
    }
}

/// The port's lines of what a program said, with its numbers by name.
fn numbers(said: &str, port: &str) -> std::collections::BTreeMap<String, u64> {
    let line = said.lines().find_map(|line| line.strip_prefix(port)).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect()
}

/// Two stacks of the kernel meet over the switch, each behind a program that forwards between a NIC
/// and its host rings.
#[test]
fn the_kernels_stack_uses_a_nic_through_host_rings() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "host", false);
    let mut hosts = [1, 2].map(|n| NetNs::new(dir.path(), &format!("h{n}"), n).unwrap());
    // One chip in each, since all have the same address here, which the stack takes over.
    let rounds = [
        ([NICS[0], NICS[2]], ["two", "one"]),
        ([NICS[1], NICS[0]], ["one", "two"]),
        ([NICS[0], NICS[3]], ["marks", "two"]),
        ([NICS[2], NICS[0]], ["marks", "marks"]),
    ];
    for (nics, ways) in rounds {
        let mut lan = Lan::new(1, FULL_WAIT);
        let programs = [0, 1].map(|n| {
            let address = plug(&mut lan, ["a", "b"][n], nics[n]) + ",host=nm7";
            let argv = hosts[n].enter(&[&program, ways[n], &address]);
            let running = start_all(dir.path(), &program, &argv);
            hosts[n].adopt("nm7").unwrap();
            running
        });
        let [one, two] = &mut hosts;
        connectivity::serve(two).unwrap();
        connectivity::meet(one, two.ip()).unwrap();
        for (mut program, way) in programs.into_iter().zip(ways) {
            assert_eq!(program.terminate(STALL).unwrap(), Some(0), "{}", program.log());
            let said = program.finish().unwrap();
            let (nic, host) = (numbers(&said, "nic"), numbers(&said, "host"));
            assert_eq!((nic["resets"], host["resets"]), (0, 0), "{said}");
            assert!(nic["rx"] > 100 && host["rx"] > 100, "{said}");
            if way == "two" {
                // One copy in, one out; what was in the rings at the end has not come out.
                for (from, to) in [(&nic, &host), (&host, &nic)] {
                    assert!(to["tx"] <= from["rx"] && to["tx"] + 256 > from["rx"], "{said}");
                    assert_eq!(from["rx"], from["rx_copies"], "{said}");
                    assert_eq!(to["tx"], to["tx_copies"], "{said}");
                }
                assert!(nic["swapped"] >= nic["tx"] + host["tx"], "{said}");
            }
        }
    }
}

#[test]
fn a_pipe_passes_buffers_between_two_threads() {
    let dir = tempfile::tempdir().unwrap();
    for shared in [false, true] {
        let program = compile(dir.path(), "pipe", shared);
        let said = end(start(dir.path(), &program, &[]));
        let copies = "tx 20000 rx 20000 tx_copies 0 rx_copies 0";
        assert_eq!(said.matches(copies).count(), 2, "{said}");
        // The slave has put another buffer into each slot it received and each it sent.
        assert!(said.contains(&format!("slave {copies} swapped 40000 resets 0")), "{said}");
        assert!(said.contains(&format!("master {copies} swapped 0 resets 0")), "{said}");
    }
}

#[test]
fn wrong_names_and_numbers_get_netmaps_errors() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "names", false);
    let mut lan = Lan::new(1, FULL_WAIT);
    let address = plug(&mut lan, "a", NICS[0]);
    end(start(dir.path(), &program, &[&address]));
}

#[test]
fn lies_in_host_rings_and_pipes_cost_a_reset_too() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "liar", false);
    let said = end(start(dir.path(), &program, &["netmap:lies{1", "netmap:lies}1"]));
    assert!(said.contains("tx_copies 0"), "{said}");

    let mut host = NetNs::new(dir.path(), "liar", 1).unwrap();
    host.sh("ip tuntap add nm7 mode tap && ip link set nm7 up").unwrap();
    let mut lan = Lan::new(1, FULL_WAIT);
    let name = format!("netmap:{},host=nm7^", plug(&mut lan, "a", NICS[0]));
    let argv = host.enter(&[&program, &name]);
    let said = end(start_all(dir.path(), &program, &argv));
    let sent = said.lines().find_map(|line| line.strip_prefix("sent ")).unwrap();
    assert!(said.contains(&format!("liar tx {sent} ")), "{said}");
    // The kernel has seen them, and nothing else.
    let seen = r"sed -n 's/.*nm7: *[0-9]* *\([0-9]*\).*/\1/p' /proc/net/dev";
    let seen = host.sh(seen).unwrap();
    assert_eq!(seen.trim(), sent, "{said}");
}
