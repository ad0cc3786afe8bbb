//! DPDK's drivers of our NICs (`net_vmxnet3`, `net_e1000_em`) in a Linux guest.

use std::{ops::Range, time::Instant};

use vmlan_tests::{
    LanHost, Result, connectivity,
    dpdk_lan::{
        CARDS, DpdkLan, Flow, LEFT, NOBODY, NOBODY_TEXT, RIGHT_TEXT, Running, VMXNET3, flow, mac,
    },
    guest_tools,
    linux_nic_suite::chapter,
    numbered::STALL,
};
use vmlan_transport::Mac;

/// With an MTU of 9000.
const LONGEST: u32 = 9014;

/// All three have a link, the speed that they should, and their addresses; the cable goes and
/// comes, which the driver hears by an interrupt.
fn link(lan: &mut DpdkLan) -> Result<()> {
    for card in lan.cards.clone() {
        let (name, port) = (CARDS[card].0.driver, card - lan.cards.start);
        let speed = match CARDS[card].0.speed {
            1000 => "1 Gbps",
            _ => "10 Gbps",
        };
        let own = mac(card);
        let said = lan.say(&format!("show port info {port}"))?;
        for words in [&format!("Link speed: {speed}"), &format!("MAC address: {own}")] {
            assert!(said.contains(words), "no {words}: {said}");
        }
        for state in ["down", "up"] {
            lan.switch.ask(&["port", "set", name, &format!("link={state}")])?;
            let since = Instant::now();
            while !lan
                .say(&format!("show port info {port}"))?
                .contains(&format!("Link status: {state}"))
            {
                assert!(since.elapsed() < STALL, "{name} does not see its link {state}");
            }
        }
    }
    Ok(())
}

/// Frames that testpmd makes itself, of three pieces each: as many as its ring of 512 holds, since
/// it drops what finds no room.
fn transmit(lan: &mut DpdkLan) -> Result<()> {
    const FRAMES: u64 = 5 * 32;
    lan.say_all(&["stop", "set fwd rxonly", "set txpkts 64,500,950"])?;
    for card in lan.cards.clone() {
        let before = lan.counted(card)?;
        let receiver = lan.receiver("rx", FRAMES);
        lan.say(&format!("set portlist {}", card - lan.cards.start))?;
        lan.say("start tx_first 5")?;
        let got = receiver.end();
        lan.say("stop")?;
        assert_eq!((got.frames, got.bytes, got.malformed), (FRAMES, FRAMES * 1514, 0), "{got}");
        lan.settle(card, &before, [1, 3], [FRAMES, FRAMES * 1514], false)?;
    }
    let all: Vec<_> = (0..lan.cards.len()).map(|port| port.to_string()).collect();
    lan.say(&format!("set portlist {}", all.join(",")))?;
    lan.say_all(&["set fwd mac retry", "start"])
}

/// Everything that each of them receives leaves by the next.
fn forward(lan: &mut DpdkLan, longest: u32) -> Result<()> {
    lan.cards.clone().try_for_each(|card| lan.pass(card, flow(longest)))
}

/// Frames of up to 9,014 bytes, in buffers of 4,096. A frame of several pieces for which
/// `net_vmxnet3` has some descriptors left and too few, it drops, and says that it was sent
/// (`tx_q0_drop_total`): so it has enough for all of a flow.
fn jumbo(lan: &mut DpdkLan) -> Result<()> {
    lan.say_all(&["stop", "port stop all"])?;
    lan.say_of_each(&["port config mtu # 9000"])?;
    lan.say(&format!("port config {} txq 0 ring_size 4096", VMXNET3 - lan.cards.start))?;
    lan.say_all(&["port start all", "start"])?;
    let flow = Flow { count: 1000, ..flow(LONGEST) };
    lan.cards.clone().try_for_each(|card| lan.pass(card, flow))
}

/// UDP checksums that the sender leaves to the first NIC's device, testpmd to the second's; it
/// finds no wrong one.
fn checksums(lan: &mut DpdkLan) -> Result<()> {
    lan.say_all(&["stop", "port stop all"])?;
    let found = ["port config # rx_offload udp_cksum on", "port config # rx_offload tcp_cksum on"];
    lan.say_of_each(&found)?;
    lan.say_of_each(&["csum set udp hw #", "csum set tcp hw #"])?;
    // Of IP's vmxnet3 knows nothing.
    for port in 0..VMXNET3.saturating_sub(lan.cards.start) {
        lan.say(&format!("port config {port} rx_offload ipv4_cksum on"))?;
        lan.say(&format!("csum set ip hw {port}"))?;
    }
    lan.say_all(&["port start all", "set fwd csum retry", "start"])?;
    for card in lan.cards.clone() {
        lan.pass(card, Flow { checksums: true, ..flow(1514) })?;
    }
    let said = lan.say("stop")?;
    for wrong in ["Bad-ipcsum: 0", "Bad-l4csum: 0"] {
        let (found, of) = (said.matches(wrong).count(), said.matches(&wrong[..11]).count());
        assert!(found == of && found > 0, "{said}");
    }
    lan.say("set fwd mac retry").map(drop)
}

/// Of 100 frames to `to` a card receives `wanted`, by the driver's account and the chip's.
fn hears(lan: &mut DpdkLan, card: usize, to: Mac, wanted: u64, what: &str) -> Result<()> {
    let before = lan.counted(card)?;
    lan.sent(to, Flow { count: 100, ..flow(60) });
    // The end of them.
    lan.sent(mac(card), Flow { count: 1, ..flow(60) });
    grows(lan, card, &before.0, wanted + 1, what)
}

/// Waits until a card has received so many frames, and no more.
fn grows(lan: &mut DpdkLan, card: usize, from: &[Vec<u64>; 3], by: u64, what: &str) -> Result<()> {
    let since = Instant::now();
    loop {
        let after = lan.counted(card)?;
        let [driver, chip] = [0, 1].map(|who| after.0[who][0] - from[who][0]);
        if driver >= by || since.elapsed() > STALL {
            assert_eq!((driver, chip), (by, by), "{}: {what}", CARDS[card].0.driver);
            return Ok(());
        }
    }
}

/// Frames to others, to groups, and to an address that it was given.
fn filters(lan: &mut DpdkLan) -> Result<()> {
    let group = Mac([1, 0, 0x5e, 2, 2, 5]);
    lan.say_all(&["set fwd rxonly", "start"])?;
    for card in lan.cards.clone() {
        let port = card - lan.cards.start;
        for (command, to, wanted) in [
            ("set promisc # off", NOBODY, 0),
            ("set promisc # on", NOBODY, 100),
            ("set promisc # off", NOBODY, 0),
            ("set allmulti # off", group, 0),
            ("set allmulti # on", group, 100),
            ("set allmulti # off", group, 0),
        ] {
            lan.say(&command.replace('#', &port.to_string()))?;
            hears(lan, card, to, wanted, command)?;
        }
        let before = lan.counted(card)?.0;
        lan.say(&format!("mac_addr set {port} {NOBODY_TEXT}"))?;
        lan.sent(NOBODY, Flow { count: 100, ..flow(60) });
        grows(lan, card, &before, 100, "mac_addr set")?;
        lan.say(&format!("mac_addr set {port} {}", mac(card)))?;
        hears(lan, card, mac(card), 100, "its address is back")?;
    }
    lan.say("stop").map(drop)
}

/// Tags that the chips take and set; VLANs that a card is not in stay out.
fn vlans(lan: &mut DpdkLan) -> Result<()> {
    let names: Vec<_> = lan.cards.clone().map(|card| CARDS[card].0.driver).collect();
    for name in &names {
        lan.switch.ask(&["port", "set", name, "trunk=5+6"])?;
    }
    for name in ["left", "right"] {
        lan.switch.ask(&["port", "set", name, "vlan=5"])?;
    }
    lan.say("port stop all")?;
    lan.say_of_each(&["vlan set strip on #", "vlan set filter on #", "tx_vlan set # 5"])?;
    lan.say("port start all")?;
    lan.say_of_each(&["set promisc # off", "rx_vlan add 5 #", "rx_vlan add 6 #"])?;
    lan.say_all(&["set fwd mac retry", "start"])?;
    for card in lan.cards.clone() {
        lan.pass(card, Flow { tagged: true, ..flow(1514) })?;
    }
    lan.say_of_each(&["rx_vlan rm 5 #"])?;
    for card in lan.cards.clone() {
        let before = lan.counted(card)?.0;
        lan.sent(mac(card), Flow { count: 100, ..flow(60) });
        lan.switch.ask(&["port", "set", "left", "vlan=6"])?;
        lan.sent(mac(card), Flow { count: 1, ..flow(60) });
        lan.switch.ask(&["port", "set", "left", "vlan=5"])?;
        grows(lan, card, &before, 1, "a VLAN that it has left")?;
    }
    lan.say_all(&["stop", "port stop all"])?;
    lan.say_of_each(&["vlan set strip off #", "vlan set filter off #", "tx_vlan reset #"])?;
    lan.say("port start all")?;
    lan.say_of_each(&["set promisc # off"])?;
    names.iter().try_for_each(|name| lan.switch.ask(&["port", "set", name, "trunk="]).map(drop))?;
    for name in ["left", "right"] {
        lan.switch.ask(&["port", "set", name, "vlan="])?;
    }
    Ok(())
}

/// TCP of two Linux hosts by way of testpmd, both ways where it has several cards; its sums are
/// left to the cards. Segmentation is not asked for: testpmd wants the IP header's sum with it,
/// which `net_vmxnet3` refuses, and `net_e1000_em` offers none.
fn tcp(lan: &mut DpdkLan) -> Result<()> {
    let there = lan.cards.start;
    let back = lan.next(there);
    let macs = [guest_tools::mac(&mut lan.a, "vmlan0")?, guest_tools::mac(&mut lan.b, "vmlan1")?];
    for (name, mac) in ["a", "b"].iter().zip(&macs) {
        lan.switch.ask(&["port", "set", name, &format!("macs={mac}")])?;
    }
    let (to_b, to_a) = (lan.next(there), lan.next(back));
    for (card, peer) in [(to_a, &macs[0]), (to_b, &macs[1])] {
        lan.say(&format!("set eth-peer {} {peer}", card - lan.cards.start))?;
    }
    let (ip_a, ip_b) = (lan.a.ip().to_owned(), lan.b.ip().to_owned());
    // Of a single card everything that it sends goes to the same.
    let to_a = if lan.cards.len() > 1 { mac(back).to_string() } else { macs[0].clone() };
    let neighbour = |ip: &str, mac: &str, interface: &str| {
        format!("/bin/ip neigh replace {ip} lladdr {mac} dev {interface} nud permanent")
    };
    lan.a.sh(&neighbour(&ip_b, &mac(there).to_string(), "vmlan0"))?;
    lan.b.sh(&neighbour(&ip_a, &to_a, "vmlan1"))?;
    lan.say_all(&["set fwd csum retry", "start"])?;
    lan.say_of_each(&["set promisc # off"])?;
    connectivity::serve(&mut lan.b)?;
    connectivity::serve(&mut lan.a)?;
    connectivity::fetch(&mut lan.a, &ip_b)?;
    connectivity::fetch(&mut lan.b, &ip_a)?;
    let up = connectivity::iperf(&mut lan.a, &ip_b, "-n 8M")?.bits_per_second / 1e6;
    let down = connectivity::iperf(&mut lan.a, &ip_b, "-n 8M -R")?.bits_per_second / 1e6;
    println!("  TCP {up:.0} and back {down:.0} Mbit/s");
    connectivity::no_checksum_errors(&mut lan.a)?;
    connectivity::no_checksum_errors(&mut lan.b)?;
    lan.say("stop")?;
    lan.say_of_each(&[&format!("set eth-peer # {RIGHT_TEXT}")])?;
    lan.say("set fwd mac retry").map(drop)
}

/// Ports stop and start while frames for them arrive; then testpmd is killed and starts again. No
/// frame is lost after it.
fn restarts(lan: &mut DpdkLan) -> Result<()> {
    for card in lan.cards.clone() {
        let port = card - lan.cards.start;
        let mut sender = lan.options("left", "tx", LEFT, mac(card));
        sender.size = 1514;
        let sender = Running::start(sender);
        for _ in 0..5 {
            lan.say_all(&["start", "stop"])?;
            lan.say_all(&[&format!("port stop {port}"), &format!("port start {port}")])?;
        }
        if card + 1 == lan.cards.end {
            lan.say("start")?;
            lan.testpmd.kill9(&mut lan.guest)?;
        }
        sender.stop();
    }
    lan.restart()?;
    forward(lan, 1514)
}

/// A ring of each kind, and buffers of 4,096 bytes: long frames have several.
macro_rules! sizes {
    () => {
        "--rxd=512 --txd=512 --mbuf-size=4224 --total-num-mbufs=8192 --port-topology=chained"
    };
}

type Chapter = (&'static str, fn(&mut DpdkLan) -> Result<()>);

fn all(cards: Range<usize>, options: [&'static str; 2], chapters: &[Chapter]) -> Result<()> {
    let since = Instant::now();
    let mut lan = DpdkLan::start(cards, options)?;
    println!("  booted in {:.1?}", since.elapsed());
    let end = chapters.iter().try_for_each(|(name, what)| chapter(name, || what(&mut lan)));
    if end.is_err() {
        println!("{}", lan.switch.ask(&["stats"]).unwrap_or_default());
        println!("{}", lan.switch.ask(&["port", "list"]).unwrap_or_default());
        println!("{}", lan.guest.sh("tail -n 30 /tmp/out; dmesg | tail -n 5").unwrap_or_default());
    }
    end?;
    lan.switch.alive()
}

/// MSI, for `net_e1000_em` does not say which vector of MSI-X is for the link.
const ONE_QUEUE: [&str; 2] = ["--vfio-intr=msi", sizes!()];

#[test]
fn three_cards() -> Result<()> {
    let chapters: [Chapter; 6] = [
        ("transmit", transmit),
        ("forward", |lan| forward(lan, 1514)),
        ("checksums", checksums),
        ("filters", filters),
        ("VLAN", vlans),
        ("jumbo frames", jumbo),
    ];
    all(0..CARDS.len(), ONE_QUEUE, &chapters)
}

#[test]
#[ignore = "soak: minutes"]
fn tcp_restarts_and_link() -> Result<()> {
    let chapters: [Chapter; 4] =
        [("checksums", checksums), ("TCP", tcp), ("restarts", restarts), ("link", link)];
    all(0..CARDS.len(), ONE_QUEUE, &chapters)
}

#[test]
fn vmxnet3_with_four_queues() -> Result<()> {
    all(
        VMXNET3..VMXNET3 + 1,
        ["--vfio-intr=msix", concat!(sizes!(), " --rxq=4 --txq=4 --rss-ip")],
        &[
            ("queues", queues),
            ("checksums", checksums),
            ("TCP", tcp),
            ("restarts", restarts),
            ("link", link),
        ],
    )
}

/// Flows are spread over the queues, and each queue's frames leave by its pair; a table that names
/// one queue sends all to it.
fn queues(lan: &mut DpdkLan) -> Result<()> {
    // A word of testpmd's has 127 characters at most.
    let sixteen = |first| {
        let entries: Vec<_> = (first..first + 16).map(|n| format!("({n},3)")).collect();
        format!("port config 0 rss reta {}", entries.join(","))
    };
    let all_to_3 = [0, 16, 32, 48].map(sixteen).join("\n");
    for (command, least) in [("show port info 0", 1), (&all_to_3, 0)] {
        lan.say(command)?;
        let before = each_queue(lan)?;
        lan.pass(VMXNET3, Flow { many: true, ..flow(1514) })?;
        let after = each_queue(lan)?;
        let grown: Vec<_> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        println!("  each queue's frames received, and sent: {grown:?}");
        assert_eq!(grown[..4], grown[4..], "each queue has its pair");
        assert_eq!(grown[..4].iter().sum::<u64>(), flow(0).count);
        assert!(grown.iter().all(|n| *n >= least), "{grown:?}");
        assert!(least > 0 || grown[3] == flow(0).count, "{grown:?}");
    }
    Ok(())
}

/// Frames that each queue received, and those that each sent.
fn each_queue(lan: &mut DpdkLan) -> Result<Vec<u64>> {
    let said = lan.say("show port xstats 0")?;
    let names = ["rx", "tx"].into_iter().flat_map(|way| (0..4).map(move |n| (way, n)));
    Ok(names
        .map(|(way, n)| {
            let name = format!("{way}_q{n}_packets: ");
            let line = said.lines().find_map(|line| line.strip_prefix(&name));
            line.and_then(|value| value.trim().parse().ok()).expect("a counter")
        })
        .collect())
}
