//! Linux guests with their stock drivers outlive the switch: one that makes way, which they do not
//! notice, and one that is killed, after which their drivers set the chips up again. Their TCP
//! connections go on, byte for byte.
//!
//! What the drivers say after a kill is told and not judged: Linux' e1000 complains ("Tx Unit
//! Hang") if more than a second passes until it has seen that the cable is out.

use std::path::Path;

use vmlan_tests::numbered::settles;
use vmlan_tests::{Boot, Guest, Image, LanHost, Result, Switch, connectivity};

/// Names of guests and ports, numbers, models.
const GUESTS: [(&str, u8, &str); 3] =
    [("e1", 1, "e1000"), ("r2", 2, "r8169"), ("v3", 3, "vmxnet3")];

/// Streams of bytes: from whom to whom, and the port.
const STREAMS: [(usize, usize, u16); 4] = [(0, 1, 7001), (1, 0, 7010), (0, 2, 7002), (2, 0, 7020)];

/// What drivers say of chips that have failed.
const TROUBLES: &str = "Tx Unit Hang|NETDEV WATCHDOG|PCI error|resetting";

/// How much of a stream is to arrive before it is believed to go on.
const SOME: u64 = 16 << 10;

fn port(dir: &Path, (name, number, model): (&str, u8, &str)) -> String {
    let (place, mac) = (dir.join(name), Boot::mac(number));
    format!("{name}=vfio-user:{},model={model},mac={mac}", place.display())
}

/// Streams numbered blocks of random bytes until `/tmp/stop` is there, slowly: both ends keep what
/// they had in memory. The receiver keeps its own direction open until the end.
fn stream(guests: &mut [Guest], (from, to, port): (usize, usize, u16)) -> Result<()> {
    let ip = guests[to].ip().to_owned();
    let receive = format!("sleep 100000 | busybox nc -l -p {port} > /tmp/got.{port}");
    guests[to].background(&format!("sh -c '{receive}'"))?;
    let listens = format!("busybox netstat -ltn | grep -q ':{port} '");
    guests[to].sh(&format!("while ! {listens}; do sleep 0.1; done"))?;
    guests[from].sh("test -e /tmp/block || head -c 8000 /dev/urandom > /tmp/block")?;
    let send = format!(
        "while [ ! -e /tmp/stop ]; do n=$((n+1)); echo $n; cat /tmp/block; sleep 0.5; done | \
         tee /tmp/sent.{port} | busybox nc {ip} {port}"
    );
    guests[from].background(&format!("sh -c '{send}'"))
}

fn size(guest: &mut Guest, file: &str) -> Result<u64> {
    let said = guest.sh(&format!("wc -c < {file}"))?;
    Ok(said.trim().parse().expect("a number"))
}

/// What whoever has to find out why wants to see of a guest.
const LOOK: &str =
    "dmesg | grep -v '<.*>\\|buffer_info' | tail -n 30; cat /sys/class/net/eth0/carrier
    cat /sys/class/net/eth0/queues/tx-0/tx_timeout; grep eth0 /proc/interrupts
    ethtool -d eth0 | head -n 60; grep . /sys/class/net/eth0/statistics/[rt]x_*";

/// All streams go on.
fn flow(switch: &Switch, guests: &mut [Guest], when: &str) -> Result<()> {
    for (_, to, port) in STREAMS {
        let file = format!("/tmp/got.{port}");
        let before = size(&mut guests[to], &file)?;
        let more = || size(&mut guests[to], &file).is_ok_and(|now| now >= before + SOME);
        if !settles(more) {
            for guest in &mut *guests {
                let said = guest.sh(LOOK).unwrap_or_else(|fault| fault.to_string());
                println!("--- {}\n{said}", guest.name());
            }
            println!("--- switch\n{}\n{}", switch.ask(&["stats"])?, switch.log());
            panic!("{when}: the stream to {} stands still", GUESTS[to].0);
        }
    }
    Ok(())
}

/// All streams end, and what has arrived is what was sent.
fn compare(guests: &mut [Guest]) -> Result<()> {
    for guest in &mut *guests {
        guest.sh("touch /tmp/stop")?;
    }
    for (from, to, port) in STREAMS {
        let mut sum =
            |at: usize, file: &str| guests[at].sh(&format!("md5sum < /tmp/{file}.{port}")).ok();
        let same = || sum(to, "got").is_some_and(|got| sum(from, "sent") == Some(got));
        assert!(settles(same), "{} did not get what {} sent", GUESTS[to].0, GUESTS[from].0);
    }
    Ok(())
}

fn complaints(guests: &mut [Guest]) -> Result<String> {
    let mut all = String::new();
    for guest in guests {
        all += &guest.sh(&format!("dmesg | grep -E '{TROUBLES}' || true"))?;
    }
    Ok(all)
}

fn outlive(dir: &Path, switch: &mut Switch, guests: &mut [Guest]) -> Result<()> {
    for (from, to) in [(0, 1), (0, 2)] {
        let ip = guests[to].ip().to_owned();
        connectivity::reaches(&mut guests[from], &ip)?;
    }
    for each in STREAMS {
        stream(guests, each)?;
    }
    flow(switch, guests, "at first")?;
    for times in 1..=3 {
        assert_eq!(switch.terminate()?, Some(0));
        switch.restart()?;
        switch.answering()?;
        flow(switch, guests, &format!("after SIGTERM {times}"))?;
    }
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches("adopted 3 times, the last one exactly").count(), 3, "{list}");
    assert_eq!(complaints(guests)?.trim(), "", "a guest has noticed");
    for times in 1..=2 {
        switch.kill9();
        switch.restart()?;
        switch.answering()?;
        flow(switch, guests, &format!("after kill -9 {times}"))?;
    }
    compare(guests)?;
    println!("{}", complaints(guests)?);
    for (name, ..) in GUESTS {
        let said = std::fs::read_to_string(dir.join(format!("{name}.qemu"))).unwrap_or_default();
        assert!(!said.contains("unexpected reply"), "{said}");
    }
    Ok(())
}

#[test]
fn guests_outlive_the_switch() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("vmlan-hold.").tempdir().expect("a directory");
    let dir = dir.path();
    let image = Image::build(dir)?;
    let ports = GUESTS.map(|guest| port(dir, guest));
    let options = ["--hold-for=60".to_owned()].into_iter().chain(ports).collect::<Vec<_>>();
    let mut switch = Switch::start(dir, None, &options)?;
    let boots = GUESTS.map(|(name, n, _)| Boot::new(name, n).vfio_user(&dir.join(name)));
    let mut guests = Guest::boot(&image, dir, boots)?;
    let end = outlive(dir, &mut switch, &mut guests);
    if end.is_err() {
        println!("{}", switch.log());
    }
    end
}
