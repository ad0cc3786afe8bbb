//! What `vmlan host-link` prints, and what it refuses.

mod common;

use common::{fails, vmlan};

const LINK: [&str; 6] = ["host-link", "lan0", "--vni", "100", "--local", "192.0.2.1"];

fn printed(more: &[&str]) -> String {
    let out = vmlan(&[&LINK[..], more].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn all_that_is_printed_can_be_pasted_into_a_shell() {
    let text = printed(&["--peer", "192.0.2.9", "--evpn", "--user", "me"]);
    let words = ["#", "ip link ", "bridge "];
    assert!(text.lines().all(|line| words.iter().any(|w| line.starts_with(w))), "{text}");
    assert!(text.contains("tuntap add lan0 mode tap user me vnet_hdr"), "{text}");
    let frr = printed(&["--peer", "192.0.2.9", "--evpn", "--frr"]);
    assert!(frr.lines().all(|line| text.contains(&format!("#   {line}\n"))), "{text}");
}

#[test]
fn frr_understands_its_configuration() {
    if std::process::Command::new("vtysh").arg("-h").output().is_err() {
        println!("skipped: FRR is not installed (apt-get install frr)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("frr.conf");
    let check = |text: String| {
        std::fs::write(&file, &text).unwrap();
        let out = std::process::Command::new("vtysh").arg("-C").arg("-f").arg(&file).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stdout));
    };
    check(printed(&["--evpn", "--peer", "192.0.2.2,192.0.2.3", "--frr"]));
    check(printed(&["--evpn", "--reflector", "192.0.2.0/24", "--peer", "192.0.2.3", "--frr"]));
    let six = ["host-link", "lan0", "--vni", "1", "--local", "2001:db8::1", "--evpn", "--frr"];
    let more = ["--router-id", "10.0.0.1", "--peer", "2001:db8::2", "--asn", "4200000000"];
    check(String::from_utf8(vmlan(&[&six[..], &more].concat()).stdout).unwrap());
}

#[test]
fn mistakes_are_named() {
    let wrong = |more: &[&str], said: &[&str]| fails(&[&LINK[..], more].concat(), 2, said);
    wrong(&[], &["--peer", "at least one"]);
    wrong(&["--peer", "192.0.2.1"], &["twice, or this host"]);
    wrong(&["--peer", "192.0.2.2", "--frr"], &["--evpn"]);
    wrong(&["--peer", "192.0.2.2", "--apply", "--remove"], &["--apply", "--remove"]);
    wrong(&["--peer", "192.0.2.2", "--underlay-mtu", "68"], &["1330"]);
    fails(
        &[
            "host-link",
            "l",
            "--vni",
            "1",
            "--local",
            "2001:db8::1",
            "--peer",
            "2001:db8::2",
            "--evpn",
        ],
        2,
        &["--router-id"],
    );
    fails(
        &["host-link", "$(id)", "--vni", "1", "--local", "10.0.0.1", "--peer", "10.0.0.2"],
        2,
        &["TAP device"],
    );
}
