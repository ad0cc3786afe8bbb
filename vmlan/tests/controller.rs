//! The example controller keeps two switches in step.

mod common;

use std::path::Path;
use std::process::{Child, Command};

use common::{Guest, Switch, until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/controller.py");
const VM: &str = "vm1=vhost-user:@/vm1.sock";

/// Killed when dropped.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_guest_has_its_rights_on_the_host_where_it_is() {
    if Command::new("python3").arg("-V").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let hosts = [Switch::start(&[VM]), Switch::start(&[VM])];
    let policies = hosts[0].path("policies.json");
    let keys = r#"{"vm1": {"macs": "52:54:00:00:00:01", "from_rate": "100Mbit"}}"#;
    std::fs::write(&policies, keys).unwrap();
    let mut command = Command::new("python3");
    command.arg(Path::new(SCRIPT)).arg(&policies).args(hosts.iter().map(Switch::api));
    let said = hosts[0].path("said");
    command.stdout(std::fs::File::create(&said).unwrap());
    let _controller = Controller(command.spawn().unwrap());
    let has_rights = |host: &Switch| {
        let list = host.json(&["port", "list"]);
        let address = list["ports"][0]["address"].as_str().unwrap().to_owned();
        let keys = ["macs=52:54:00:00:00:01", "from_rate=100Mbit"].map(|k| address.contains(k));
        assert_eq!(keys[0], keys[1], "both or none: {address}");
        keys[0]
    };
    let frames =
        |host: &Switch| host.json(&["stats"])["ports"][0]["in"]["frames"].as_u64().unwrap();
    for (here, there) in [(0, 1), (1, 0), (0, 1)] {
        let address = hosts[here].here("vhost-user:@/vm1.sock");
        let sends = ["-f", "tx", "-R", "1000", "-S", "52:54:00:00:00:01"];
        let guest = Guest::start(&[&["-i", &address], &sends[..]].concat());
        let moved = || has_rights(&hosts[here]) && !has_rights(&hosts[there]);
        until("the policy to follow", moved);
        until("frames", || frames(&hosts[here]) > 0);
        drop(guest);
    }
    // Each host has counted what the guest has sent there.
    let sent: u64 = hosts.iter().map(frames).sum();
    let address = hosts[1].here("vhost-user:@/vm1.sock");
    let _guest = Guest::start(&["-i", &address, "-f", "rx"]);
    let sum = |line: &str| line.split(": ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    let sums = || std::fs::read_to_string(&said).unwrap().lines().filter_map(sum).max();
    until("the sum", || sums() >= Some(sent));
}
