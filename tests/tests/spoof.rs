//! Liars on a running switch: a peer that claims to be others, by every way there is, is heard by
//! nobody, and the counters say what it tried. What is honest arrives byte for byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, PacketBuilderStep};
use serde_json::Value;
use vmlan_tests::{Result, Switch};

const PATIENCE: Duration = Duration::from_secs(180);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VICTIM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ME: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const YOU: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ME6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const YOU6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// A peer of a `stream:` port: each frame after its length.
struct TestGuest(UnixStream);

impl TestGuest {
    fn connect(switch: &Switch, dir: &Path, name: &str) -> TestGuest {
        let stream = UnixStream::connect(dir.join(name)).expect("the port listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        wait("the port to be up", || port(switch, name)["up"] == true);
        TestGuest(stream)
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend(u32::try_from(frame.len()).expect("short").to_be_bytes());
            bytes.extend(frame);
        }
        self.0.write_all(&bytes).expect("the switch reads");
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("a frame");
        let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("small")];
        self.0.read_exact(&mut frame).expect("all of it");
        frame
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn port(switch: &Switch, name: &str) -> Value {
    switch.port(name).unwrap_or_default()
}

fn drops(switch: &Switch, reason: &str) -> u64 {
    port(switch, "liar")["drops"][reason].as_u64().unwrap_or_default()
}

fn udp(step: PacketBuilderStep<etherparse::IpHeaders>, from: u16, to: u16) -> Vec<u8> {
    let mut out = Vec::new();
    step.udp(from, to).write(&mut out, &[7; 32]).expect("room in memory");
    out
}

fn v4(mac: [u8; 6], from: Ipv4Addr, ports: (u16, u16)) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(mac, VICTIM).ipv4(from.octets(), YOU.octets(), 64);
    udp(packet, ports.0, ports.1)
}

fn v6(from: Ipv6Addr, ports: (u16, u16)) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(MAC, VICTIM).ipv6(from.octets(), YOU6.octets(), 255);
    udp(packet, ports.0, ports.1)
}

/// An ICMPv6 message in the place of the UDP one.
fn icmpv6(from: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut frame = v6(from, (1, 2));
    frame.truncate(54);
    frame[20] = 58;
    frame[18..20].copy_from_slice(&u16::try_from(message.len()).expect("short").to_be_bytes());
    frame.extend(message);
    frame
}

fn advertisement(target: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets(), &nonce, &[2, 1], &mac].concat()
}

fn arp(sender: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
    let begin = [&VICTIM[..], &MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    [&begin[..], &sender, &ip.octets(), &VICTIM, &YOU.octets(), &[0; 18]].concat()
}

/// A frame with bytes of it replaced.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn tagged(frame: &[u8], tags: usize) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 5].repeat(tags), &frame[12..]].concat()
}

/// 8 bytes of extension header of this kind, or of options, in front of what a frame carries.
fn extended(frame: &[u8], kind: u8, rest: [u8; 7]) -> Vec<u8> {
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    let header = [&frame[20..21], &rest].concat();
    let longer = with([&frame[..54], &header, &frame[54..]].concat(), 20, &[kind]);
    with(longer, 18, &length.to_be_bytes())
}

/// Lies, and what each is refused for.
fn lies() -> Vec<(&'static str, Vec<u8>)> {
    let options = [0, 1, 4, 0, 0, 0, 0];
    let other = v6(YOU6, (1, 2));
    let ra = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
    vec![
        ("spoofed-mac", v4(VICTIM, ME, (1, 2))),
        ("spoofed-ip", v4(MAC, YOU, (1, 2))),
        ("spoofed-ip", tagged(&v4(MAC, YOU, (1, 2)), 1)),
        ("spoofed-ip", with(v4(MAC, YOU, (1, 2)), 20, &[0x20])),
        ("spoofed-ip", with(v4(MAC, YOU, (1, 2)), 21, &[3])),
        ("spoofed-ip", with(v4(MAC, YOU, (1, 2)), 23, &[0])),
        ("spoofed-ip", other.clone()),
        ("spoofed-ip", extended(&other, 60, options)),
        ("spoofed-ip", extended(&other, 44, [0, 0, 9, 0, 0, 0, 1])),
        ("spoofed-arp", arp(MAC, YOU)),
        ("spoofed-arp", arp(VICTIM, ME)),
        ("spoofed-nd", icmpv6(ME6, &advertisement(YOU6, MAC))),
        ("spoofed-nd", icmpv6(ME6, &advertisement(ME6, VICTIM))),
        ("spoofed-nd", extended(&icmpv6(ME6, &advertisement(YOU6, MAC)), 60, options)),
        ("not-parsed", tagged(&v4(MAC, ME, (1, 2)), 2)),
        (
            "not-parsed",
            extended(&icmpv6(ME6, &advertisement(YOU6, MAC)), 44, [0, 0, 0, 0, 0, 0, 1]),
        ),
        ("not-parsed", with(v4(MAC, ME, (1, 2)), 16, &[0xff])),
        ("not-parsed", with(v4(MAC, ME, (1, 2)), 12, &[0x88, 0xb5])),
        ("dhcp-guard", v4(MAC, ME, (67, 68))),
        ("dhcp-guard", extended(&v6(ME6, (547, 546)), 60, options)),
        ("ra-guard", icmpv6(ME6, &ra)),
        ("ra-guard", extended(&icmpv6(ME6, &ra), 44, [0, 0, 1, 0, 0, 0, 1])),
    ]
}

fn honest() -> Vec<Vec<u8>> {
    vec![
        v4(MAC, ME, (1, 2)),
        tagged(&v4(MAC, ME, (1, 2)), 1),
        v6(ME6, (1, 2)),
        arp(MAC, ME),
        icmpv6(ME6, &advertisement(ME6, MAC)),
        v4(MAC, ME, (68, 67)),
    ]
}

fn switch(dir: &Path, keys: &str) -> Result<(Switch, TestGuest, TestGuest)> {
    let ports = [
        format!("liar=stream:{}{keys}", dir.join("liar").display()),
        format!("victim=stream:{}", dir.join("victim").display()),
    ];
    let switch = Switch::start(dir, None, &ports)?;
    let liar = TestGuest::connect(&switch, dir, "liar");
    let victim = TestGuest::connect(&switch, dir, "victim");
    Ok((switch, liar, victim))
}

#[test]
fn who_lies_is_heard_by_nobody_and_the_counters_say_why() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let keys = ",macs=02:00:00:00:00:01,ips=10.0.0.1+2001:db8::1,dhcp_guard=on,ra_guard=on";
    let (switch, mut liar, mut victim) = switch(dir.path(), keys)?;
    let (lies, honest) = (lies(), honest());
    // Honest frames before, between and after, so that lies are judged in the middle of batches.
    let mut sent = Vec::new();
    for round in 0..20 {
        for (i, (_, lie)) in lies.iter().enumerate() {
            sent.push(lie.clone());
            sent.push(honest[(i + round) % honest.len()].clone());
        }
    }
    liar.send(&sent);
    for frame in sent.iter().skip(1).step_by(2) {
        assert_eq!(&victim.receive(), frame);
    }
    for (reason, _) in &lies {
        let expected = 20 * lies.iter().filter(|(r, _)| r == reason).count() as u64;
        wait(reason, || drops(&switch, reason) >= expected);
        assert_eq!(drops(&switch, reason), expected, "{reason}");
    }
    // The same words from the one that is asked and not sent through.
    for (reason, lie) in &lies {
        let hex: String = lie.iter().map(|b| format!("{b:02x}")).collect();
        let told = switch.ask(&["explain", "--port", "liar", &hex])?;
        assert!(told.contains(reason), "{reason}: {told}");
    }
    assert_eq!(port(&switch, "victim")["drops"].as_object().map(serde_json::Map::len), Some(0));
    Ok(())
}

#[test]
fn claims_change_while_frames_pass() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (switch, mut liar, mut victim) = switch(dir.path(), ",macs=first")?;
    let first = v4(MAC, ME, (1, 2));
    let second = v4([2, 0, 0, 0, 0, 7], YOU, (3, 4));
    liar.send(&[first.clone(), second.clone(), arp(VICTIM, ME), first.clone()]);
    assert_eq!([victim.receive(), victim.receive()], [first.clone(), first.clone()]);
    wait("two refusals", || drops(&switch, "spoofed-mac") + drops(&switch, "spoofed-arp") == 2);
    // The next client is another one.
    drop(liar);
    wait("the port to be down", || port(&switch, "liar")["up"] == false);
    let mut liar = TestGuest::connect(&switch, dir.path(), "liar");
    liar.send(&[second.clone(), first.clone(), second.clone()]);
    assert_eq!([victim.receive(), victim.receive()], [second.clone(), second.clone()]);
    wait("one more", || drops(&switch, "spoofed-mac") == 2);
    switch.ask(&["port", "set", "liar", "macs=any", "ips=10.0.0.1"])?;
    liar.send(&[second.clone(), first.clone()]);
    assert_eq!(victim.receive(), first);
    wait("an address", || drops(&switch, "spoofed-ip") == 1);
    switch.ask(&["port", "set", "liar", "ips=none"])?;
    liar.send(&[first.clone(), arp(MAC, ME)]);
    wait("none at all", || drops(&switch, "spoofed-ip") == 2);
    switch.ask(&["port", "set", "liar", "ips="])?;
    liar.send(&[second.clone(), first.clone()]);
    assert_eq!([victim.receive(), victim.receive()], [second, first]);
    Ok(())
}
