//! Linux guests with their stock drivers outlive the switch: one that makes way, which they do not
//! notice, and one that is killed, after which all are as they were but a vmxnet3, whose driver
//! sets it up again. Their TCP connections go on, byte for byte.
//!
//! What that driver says after a kill is told and not judged.

use std::path::Path;
use std::time::Duration;

use vmlan_tests::kept::{assert_kept, kept};
use vmlan_tests::random::Random;
use vmlan_tests::streams::{self, Stream};
use vmlan_tests::{Boot, Guest, Image, LanHost, Result, Switch, connectivity};

/// Names of guests and ports, numbers, models.
const GUESTS: [(&str, u8, &str); 3] =
    [("e1", 1, "e1000"), ("r2", 2, "r8169"), ("v3", 3, "vmxnet3")];

const STREAMS: [Stream; 4] = [(0, 1, 7001), (1, 0, 7010), (0, 2, 7002), (2, 0, 7020)];

/// What drivers say of chips that have failed.
const TROUBLES: &str = "Tx Unit Hang|NETDEV WATCHDOG|PCI error|resetting";

fn port(dir: &Path, (name, number, model): (&str, u8, &str)) -> String {
    let (place, mac) = (dir.join(name), Boot::mac(number));
    format!("{name}=vfio-user:{},model={model},mac={mac}", place.display())
}

/// All streams go on.
fn flow(guests: &mut [Guest], when: &str) -> Result<()> {
    streams::flow(&mut hosts(guests), &STREAMS, when)
}

fn hosts(guests: &mut [Guest]) -> Vec<&mut dyn LanHost> {
    guests.iter_mut().map(|guest| guest as &mut dyn LanHost).collect()
}

/// What the drivers of the e1000 and the r8169 have said of the cable: nothing more, for they go on
/// as they were.
fn links(guests: &mut [Guest]) -> Result<Vec<String>> {
    let said = "dmesg | grep eth0";
    guests[..2].iter_mut().map(|guest| guest.sh(said)).collect()
}

fn complaints(guests: &mut [Guest]) -> Result<String> {
    let mut all = String::new();
    for guest in guests {
        all += &guest.sh(&format!("dmesg | grep -E '{TROUBLES}' || true"))?;
    }
    Ok(all)
}

/// How long it is until a client is believed not to have killed its switch, and more.
const TRIAL: Duration = Duration::from_millis(1200);

/// If there are so many kills, streams are looked at after some of them only.
const MANY: u32 = 20;
const SOME: u32 = 20;

/// How often a switch makes way, and how often it is killed.
type Ends = (u32, u32);

fn outlive(
    dir: &Path,
    switch: &mut Switch,
    guests: &mut [Guest],
    (hands_over, dies): Ends,
) -> Result<()> {
    for (from, to) in [(0, 1), (0, 2)] {
        let ip = guests[to].ip().to_owned();
        connectivity::reaches(&mut guests[from], &ip)?;
    }
    streams::start(&mut hosts(guests), &STREAMS)?;
    flow(guests, "at first")?;
    let before = kept(switch);
    for times in 1..=hands_over {
        assert_eq!(switch.terminate()?, Some(0));
        switch.restart()?;
        switch.answering()?;
        flow(guests, &format!("after SIGTERM {times}"))?;
    }
    let list = switch.ask(&["port", "list", "--json"])?;
    let how = format!("adopted {hands_over} times, the last one exactly");
    assert_eq!(list.matches(&how).count(), 3, "{list}");
    assert_kept(switch, &before);
    assert_eq!(complaints(guests)?.trim(), "", "a guest has noticed");
    let heard = links(guests)?;
    let mut random = Random(0x5eed);
    for times in 1..=dies {
        switch.kill9();
        switch.restart()?;
        switch.answering()?;
        if dies < MANY || times % SOME == 0 {
            flow(guests, &format!("after kill -9 {times}"))?;
        } else {
            std::thread::sleep(TRIAL + Duration::from_micros(random.below(500_000)));
        }
        if times % SOME == 0 {
            println!("{times} times kill -9");
            assert_eq!(links(guests)?, heard, "the cable was pulled");
        }
        let list = switch.ask(&["port", "list", "--json"])?;
        assert_eq!(list.matches("as it was when its switch was killed").count(), 2, "{list}");
    }
    assert_eq!(links(guests)?, heard, "the cable was pulled");
    assert_eq!(complaints(&mut guests[..2])?.trim(), "", "a guest whose chip is as it was noticed");
    assert_kept(switch, &before);
    streams::compare(&mut hosts(guests), &STREAMS)?;
    println!("{}", complaints(guests)?);
    for (name, ..) in GUESTS {
        let said = std::fs::read_to_string(dir.join(format!("{name}.qemu"))).unwrap_or_default();
        assert!(!said.contains("unexpected reply"), "{said}");
    }
    Ok(())
}

fn guests_outlive(ends: Ends) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("vmlan-hold.").tempdir().expect("a directory");
    let dir = dir.path();
    let image = Image::build(dir)?;
    let ports = GUESTS.map(|guest| port(dir, guest));
    let options = ["--hold-for=60".to_owned()].into_iter().chain(ports).collect::<Vec<_>>();
    let mut switch = Switch::start(dir, None, &options)?;
    // They keep what they have sent and got: 16 KB/s each way of each stream.
    let memory = if ends.0 + ends.1 > MANY { 1024 } else { 256 };
    let boots =
        GUESTS.map(|(name, n, _)| Boot::new(name, n).memory(memory).vfio_user(&dir.join(name)));
    let mut guests = Guest::boot(&image, dir, boots)?;
    let end = outlive(dir, &mut switch, &mut guests, ends);
    if end.is_err() {
        println!("{}", switch.log());
    }
    end
}

#[test]
fn guests_outlive_the_switch() -> Result<()> {
    guests_outlive((2, 3))
}

/// Guests on vhost-user ports whose QEMU never connects again, one with split virtqueues and one
/// with packed ones: their connections are held.
#[test]
fn virtio_guests_outlive_the_switch() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("vmlan-hold.").tempdir().expect("a directory");
    let dir = dir.path();
    let image = Image::build(dir)?;
    let port = |name: &str| format!("{name}=vhost-user:{}", dir.join(name).display());
    let words = ["--hold-for=60".to_owned(), port("s1"), port("p2")];
    let mut switch = Switch::start(dir, None, &words)?;
    let boot = |name: &str, n| Boot::new(name, n).vhost_user_once(&dir.join(name));
    let [one, two] = Guest::boot(&image, dir, [boot("s1", 1), boot("p2", 2).packed()])?;
    let guests = &mut [one, two][..];
    let streams = [(0, 1, 7001), (1, 0, 7010)];
    let ip = guests[1].ip().to_owned();
    connectivity::reaches(&mut guests[0], &ip)?;
    streams::start(&mut hosts(guests), &streams)?;
    streams::flow(&mut hosts(guests), &streams, "at first")?;
    let list = switch.ask(&["port", "list", "--json"])?;
    assert!(["split", "packed"].iter().all(|layout| list.contains(layout)), "{list}");
    let before = kept(&switch);
    let carriers = "cat /sys/class/net/eth0/carrier_changes";
    let carriers = |guests: &mut [Guest]| -> Result<Vec<_>> {
        guests.iter_mut().map(|guest| guest.sh(carriers)).collect()
    };
    let seen = carriers(guests)?;
    for times in 1..=4 {
        if times == 1 {
            assert_eq!(switch.terminate()?, Some(0));
        } else {
            switch.kill9();
        }
        switch.restart()?;
        switch.answering()?;
        streams::flow(&mut hosts(guests), &streams, &format!("after end {times}"))?;
    }
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 4 times").count(), 2, "{list}");
    assert_eq!(carriers(guests)?, seen, "a guest's link has fallen");
    assert_eq!(complaints(guests)?.trim(), "", "a guest has noticed");
    assert_kept(&switch, &before);
    streams::compare(&mut hosts(guests), &streams)
}

#[test]
#[ignore = "soak: half an hour"]
fn guests_outlive_a_thousand_deaths() -> Result<()> {
    let kills = std::env::var("VMLAN_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    guests_outlive((kills / 10, kills))
}
