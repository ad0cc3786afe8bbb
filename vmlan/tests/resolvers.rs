//! The list of servers of names is replaced while a gateway runs, as programs that manage it do,
//! on a host of namespaces. The guest is the kernel behind a TAP device.

mod common;

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use common::{Switch, until};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const VMLAN: &str = env!("CARGO_BIN_EXE_vmlan");
/// A question for the address of `example.org`.
const QUESTION: &[u8] = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
    \x07example\x03org\x00\x00\x01\x00\x01";

/// The namespace of the guest, which ends with this.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sockets at these addresses in the network of this process.
fn sockets<const N: usize>(process: u32, addresses: [&'static str; N]) -> [UdpSocket; N] {
    let made = std::thread::spawn(move || {
        let ns = std::fs::File::open(format!("/proc/{process}/ns/net")).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&ns), kind).unwrap();
        addresses.map(|address| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
    });
    made.join().unwrap()
}

fn run_in(process: u32, line: &str) {
    let mut enter = Command::new("nsenter");
    enter.args(["-t", &process.to_string(), "-n", "--", "sh", "-c", line]);
    assert!(enter.status().unwrap().success(), "{line}");
}

/// Replaces the list, in one step.
fn write(etc: &Path, server: &str) {
    std::fs::write(etc.join("new"), format!("nameserver {server}\n")).unwrap();
    std::fs::rename(etc.join("new"), etc.join("resolv.conf")).unwrap();
}

#[test]
fn names_are_asked_of_the_servers_that_the_host_has_now() {
    if Command::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
        println!("skipped: namespaces are made by root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("etc");
    std::fs::create_dir(&etc).unwrap();
    for file in ["passwd", "group"] {
        std::fs::copy(Path::new("/etc").join(file), etc.join(file)).unwrap();
    }
    write(&etc, "127.0.0.2");
    let mounted =
        format!("ip link set lo up && mount --bind {} /etc && exec \"$@\"", etc.display());
    let wrapper = ["unshare", "--net", "--mount", "--", "sh", "-c", &mounted, "sh", VMLAN];
    let ports = ["g=tap:guest0", "net=nat:10.77.0.0/24,ipv6=off"];
    let switch = Switch::within(dir, &wrapper, &[], &ports);
    let sleep = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
    let guest = Guest(sleep);
    let of = |process: u32| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    until("a namespace", || of(guest.0.id()) != of(std::process::id()));
    run_in(switch.pid(), &format!("ip link set guest0 netns {}", guest.0.id()));
    let up = "ip addr add 10.77.0.50/24 dev guest0 && ip link set guest0 up";
    run_in(guest.0.id(), up);
    let [asks] = sockets(guest.0.id(), ["10.77.0.50:0"]);
    let servers = sockets(switch.pid(), ["127.0.0.2:53", "127.0.0.3:53"]);
    let answered_by = |n: usize| {
        let mut room = [0; 512];
        // Answers to what was asked before.
        while asks.recv(&mut room).is_ok() {}
        until("an answer", || {
            let _ = asks.send_to(QUESTION, "10.77.0.1:53");
            std::thread::sleep(Duration::from_millis(100));
            while let Ok((len, from)) = servers[n].recv_from(&mut room) {
                room[2] |= 0x80;
                servers[n].send_to(&room[..len], from).unwrap();
            }
            std::thread::sleep(Duration::from_millis(100));
            // And no failure, which the gateway itself tells.
            asks.recv(&mut room).is_ok_and(|len| len == QUESTION.len() && room[3] & 15 == 0)
        });
    };
    answered_by(0);
    write(&etc, "127.0.0.3");
    answered_by(1);
    write(&etc, "127.0.0.2");
    answered_by(0);
}
