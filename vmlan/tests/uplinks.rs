//! TCP of a guest that leaves segments and checksums to its NIC, through the switch and an
//! interface of the host, to a host behind a cable: byte by byte. The guest is the kernel behind a
//! TAP device.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Switch, until};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const VMLAN: &str = env!("CARGO_BIN_EXE_vmlan");
const BYTES: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace that lives as long as this process.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let sleep = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let process = sleep.id().to_string();
        until("a namespace", || of(&process).is_some_and(|ns| Some(ns) != of("self")));
        Self(sleep)
    }

    fn run(&self, line: &str) {
        run_in(self.0.id(), line);
    }

    /// Moves this thread there.
    fn enter(&self) {
        let ns = std::fs::File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&ns), kind).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_in(process: u32, line: &str) {
    let mut enter = Command::new("nsenter");
    enter.args(["-t", &process.to_string(), "-n", "--", "sh", "-c", line]).stdout(Stdio::null());
    assert!(enter.status().unwrap().success(), "{line}");
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|i| u8::try_from((i * 31 + i / 977) % 256).unwrap()).collect()
}

/// Sends what arrived back, if it is what was sent. Returns what was counted before.
fn serve(listener: &TcpListener, switch: &Switch) -> [u64; 3] {
    listener.set_nonblocking(true).unwrap();
    let mut stream = None;
    until("the guest", || {
        stream = listener.accept().ok();
        stream.is_some()
    });
    let mut stream = stream.unwrap().0;
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = vec![0; BYTES];
    stream.read_exact(&mut all).unwrap();
    assert!(all == pattern(), "what arrived is what was sent");
    let counted = sent(switch);
    stream.write_all(&all).unwrap();
    let _ = stream.read(&mut [0]);
    counted
}

fn ask() {
    let mut stream = TcpStream::connect("10.9.8.2:7000").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&pattern()).unwrap();
    let mut back = vec![0; BYTES];
    stream.read_exact(&mut back).unwrap();
    assert!(back == pattern(), "what came back is what was sent");
}

/// Frames and bytes that the guest has sent, and frames that have left by the uplink.
fn sent(switch: &Switch) -> [u64; 3] {
    let stats = switch.json(&["stats"]);
    let count = |name: &str, way: &str, what: &str| {
        let ports = stats["ports"].as_array().unwrap();
        let port = ports.iter().find(|p| p["name"] == name).unwrap();
        port[way][what].as_u64().unwrap()
    };
    [count("g", "in", "frames"), count("g", "in", "bytes"), count("u", "out", "frames")]
}

/// Counts as [`sent`], when the guest has sent its bytes; `None`: that cannot be made here.
fn transfer(uplink: &str, far_set_up: &str) -> Option<[u64; 3]> {
    if Command::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
        println!("skipped: network interfaces are made by root");
        return None;
    }
    let pair = "ip link add near type veth peer name far && ethtool -K near rxvlan off && \
        ip link set near up && exec \"$@\"";
    let wrapper = ["unshare", "--net", "--", "sh", "-c", pair, "sh", VMLAN];
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::within(dir, &wrapper, &[], &["g=tap:guest0", &format!("u={uplink}")]);
    let (guest, far) = (Namespace::new(), Namespace::new());
    run_in(switch.pid(), &format!("ip link set guest0 netns {}", guest.0.id()));
    run_in(switch.pid(), &format!("ip link set far netns {}", far.0.id()));
    guest.run("ip addr add 10.9.8.1/24 dev guest0 && ip link set guest0 up");
    far.run(&format!("ip addr add 10.9.8.2/24 dev far && {far_set_up} && ip link set far up"));
    let up = |name: &str| {
        let ports = switch.json(&["port", "list"])["ports"].clone();
        ports.as_array().unwrap().iter().any(|p| p["name"] == name && p["up"] == true)
    };
    until("both ports", || up("g") && up("u"));
    let counted = std::thread::scope(|s| {
        let (listening, listens) = std::sync::mpsc::channel();
        let (far, switch) = (&far, &switch);
        let serving = s.spawn(move || {
            far.enter();
            let listener = TcpListener::bind("10.9.8.2:7000").unwrap();
            listening.send(()).unwrap();
            serve(&listener, switch)
        });
        listens.recv().unwrap();
        s.spawn(|| {
            guest.enter();
            ask();
        });
        serving.join().unwrap()
    });
    Some(counted)
}

#[test]
fn a_packet_socket_takes_segments_as_they_are() {
    let Some([frames, bytes, left]) = transfer("packet:near", "true") else { return };
    assert!(bytes / frames > 1514, "segments: {bytes} bytes in {frames} frames");
    assert!(left < bytes / 1514, "{left} frames left for {frames} with {bytes} bytes");
}

#[test]
fn xdp_gets_segments_cut_and_summed() {
    let to_far = "ethtool -K far tx off txvlan off";
    let Some([frames, bytes, left]) = transfer("xdp:near", to_far) else { return };
    assert!(bytes / frames > 1514, "segments: {bytes} bytes in {frames} frames");
    assert!(left >= bytes / 1514, "{left} frames left for {frames} with {bytes} bytes");
}
