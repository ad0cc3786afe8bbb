//! `vmlan demo --hosts`: two network namespaces as hosts with a switch and guests each, joined by
//! `vmlan host-link`: what passes between them, and what becomes of guests that move.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::Failure;
use crate::output::print;

mod guest;
mod links;
mod scene;

use guest::{Echo, Guest, Station, is_told, too_big};
use links::Link;
use scene::Scene;

/// The guest of host 1 that stays where it is.
const PEER: Station = Station(0x10);
/// Moves, and only answers.
const SILENT: Station = Station(0x11);
/// Moves, and talks all the time, to all.
const TALKER: Station = Station(0x12);
/// Nobody.
const NOBODY: Station = Station(0x99);
/// Questions of each kind.
const QUESTIONS: u32 = 10;
/// Time between two datagrams to a guest that moves.
const BEAT: Duration = Duration::from_millis(2);
/// Datagrams that must have been answered before a move, and after it.
const ENOUGH: usize = 20;
/// Longest wait for traffic, however busy the machine: addresses are forgotten by age after 300 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// How hosts find each other, and their guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fabric {
    /// By a list of hosts, and by what frames say.
    Static,
    /// By BGP.
    Evpn,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Figures {
    commit: &'static str,
    fabric: Fabric,
    /// FRR's version, or why it is not there.
    frr: String,
    /// What TCP gets from host to host, and without a tunnel.
    links: Vec<Link>,
    mtu: Mtu,
    arp: Arp,
    /// MAC addresses of the other host that host 1 knows by BGP, and from frames.
    told: usize,
    seen: usize,
    moves: Vec<Move>,
}

/// The longest datagram, and one byte more.
#[derive(Debug, Serialize)]
struct Mtu {
    passed: u16,
    refused: u16,
    /// What its sender was told.
    told: u16,
}

/// Questions for addresses, their answers, and frames in the tunnel meanwhile.
#[derive(Debug, Serialize)]
struct Arp {
    questions: u32,
    answers: u32,
    tunnelled: u64,
    /// The same for an address that nobody has.
    unknown_tunnelled: u64,
}

/// A guest went from one host to the other.
#[derive(Debug, Serialize)]
struct Move {
    guest: &'static str,
    to_host: usize,
    /// Milliseconds from its driver's start there to the first answer.
    after_ms: f64,
    /// Datagrams that it was sent meanwhile and that were lost.
    lost: u32,
    /// Answers after the move, each with a higher number than the one before.
    in_order: usize,
}

/// Runs it.
///
/// # Errors
/// If something is missing, or something does not pass that has to.
pub(crate) fn run(fabric: &str, json: Option<&Path>) -> Result<(), Failure> {
    let frr = vmlan_harness::frr::version();
    let fabric = match (fabric, &frr) {
        ("static", _) => Fabric::Static,
        ("evpn", Err(why)) => return Err(Failure::Failed(format!("no EVPN: {why}"))),
        (_, Ok(_)) => Fabric::Evpn,
        (_, Err(why)) => {
            print(&format!("{why}: hosts find each other by a list instead of BGP\n"))?;
            Fabric::Static
        }
    };
    let mut scene = Scene::new(fabric)?;
    let mut peer = Guest::open(&scene.hosts[0].socket("peer"))?;
    let mut silent = Echo::start(&scene.hosts[1].socket("silent"), SILENT, None);
    silent.ready()?;
    reach(&scene, &mut peer, SILENT)?;
    let mtu = widths(&scene, &mut peer)?;
    let arp = questions(&mut scene, &mut peer, fabric)?;
    let links = links::measure(&mut scene)?;
    let mut moves = Vec::new();
    for to in [0, 1] {
        moves.push(go(&mut scene, &mut peer, (&mut silent, SILENT), to)?);
    }
    let (told, seen) = scene.hosts[0].learned()?;
    let mut talker = Echo::start(&scene.hosts[1].socket("talker"), TALKER, Some(PEER));
    talker.ready()?;
    for to in [0, 1] {
        moves.push(go(&mut scene, &mut peer, (&mut talker, TALKER), to)?);
    }
    let figures = Figures {
        commit: crate::COMMIT,
        fabric,
        frr: frr.unwrap_or_else(|why| why),
        links,
        mtu,
        arp,
        told,
        seen,
        moves,
    };
    print(&(picture(fabric) + &words(&figures)))?;
    let Some(path) = json else { return Ok(()) };
    let text =
        serde_json::to_string_pretty(&figures).map_err(|e| Failure::Failed(e.to_string()))?;
    crate::bench::write(path, &(text + "\n"))
}

/// Until the two hosts reach each other: BGP takes seconds.
fn reach(scene: &Scene, peer: &mut Guest, to: Station) -> Result<(), Failure> {
    scene.wait("the other host", || {
        peer.send(&PEER.datagram(to, 0, 64))?;
        let answer = peer.receive(Duration::from_millis(50))?;
        Ok(answer.is_some_and(|frame| PEER.number(&frame).is_some()))
    })
}

/// What a datagram of this many bytes comes to: the answer's length, or the MTU that its sender is
/// told.
fn widths(scene: &Scene, peer: &mut Guest) -> Result<Mtu, Failure> {
    let mut next = 1;
    let mut send = |payload: u16| -> Result<(u32, Option<u16>), Failure> {
        let mut said = None;
        scene.wait("an answer", || {
            next += 1;
            peer.send(&PEER.datagram(SILENT, next, payload))?;
            while let Some(frame) = peer.receive(Duration::from_millis(50))? {
                let passed = PEER.number(&frame).filter(|n| *n == next).map(|n| (n, None));
                said = passed.or(too_big(&frame).map(|mtu| (0, Some(mtu)))).or(said);
            }
            Ok(said.is_some())
        })?;
        Ok(said.unwrap_or_default())
    };
    // Over IPv4, with 1500 bytes between the hosts.
    let (passed, refused) = (1422, 1423);
    let told = match (send(passed)?, send(refused)?) {
        ((_, None), (_, Some(mtu))) => mtu,
        other => return Err(Failure::Failed(format!("{passed} and {refused} bytes: {other:?}"))),
    };
    Ok(Mtu { passed, refused, told })
}

/// Asks for the address of a guest of the other host, then for one that nobody has.
fn questions(scene: &mut Scene, peer: &mut Guest, fabric: Fabric) -> Result<Arp, Failure> {
    let [one, _] = &mut scene.hosts;
    let mut knows = fabric == Fabric::Static;
    let end = Instant::now() + PATIENCE;
    while !knows && Instant::now() < end {
        knows = one.sh("ip neigh show dev br100")?.contains("10.0.0.17 ");
        std::thread::sleep(Duration::from_millis(100));
    }
    if !knows {
        return Err(Failure::Failed("BGP tells nobody which address the guest has".into()));
    }
    let mut ask = |ip: Station| -> Result<(u32, u64), Failure> {
        let before = one.tunnelled()?;
        let mut answers = 0;
        for _ in 0..QUESTIONS {
            peer.send(&PEER.asks(ip))?;
            while let Some(frame) = peer.receive(Duration::from_millis(50))? {
                answers += u32::from(is_told(&frame, ip));
            }
        }
        Ok((answers, one.tunnelled()? - before))
    };
    let (answers, tunnelled) = ask(SILENT)?;
    let (_, unknown_tunnelled) = ask(NOBODY)?;
    Ok(Arp { questions: QUESTIONS, answers, tunnelled, unknown_tunnelled })
}

/// A guest ends on its host and starts on the other, while it is sent a datagram each 2 ms.
fn go(
    scene: &mut Scene,
    peer: &mut Guest,
    (guest, station): (&mut Echo, Station),
    to: usize,
) -> Result<Move, Failure> {
    let (name, talks) = if station == TALKER { ("talker", Some(PEER)) } else { ("silent", None) };
    let mut stream = Stream { sent: 0, answers: Vec::new() };
    stream.go_on(scene, peer, station, ENOUGH)?;
    guest.end()?;
    // What it has answered before is not taken for an answer from there.
    while peer.receive(BEAT)?.is_some() {}
    let (first, before) = (stream.sent, stream.answers.len());
    *guest = Echo::start(&scene.hosts[to].socket(name), station, talks);
    let ready = guest.ready()?;
    stream.go_on(scene, peer, station, 1)?;
    let after_ms = ready.elapsed().as_secs_f64() * 1e3;
    let answered = stream.answers.last().copied().unwrap_or_default();
    stream.go_on(scene, peer, station, ENOUGH)?;
    let after = &stream.answers[before..];
    if let Some(pair) = after.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(Failure::Failed(format!("{name}: {} came after {}", pair[1], pair[0])));
    }
    let lost = answered - first - 1;
    Ok(Move { guest: name, to_host: to + 1, after_ms, lost, in_order: after.len() })
}

/// Datagrams with numbers, and the numbers of those that were answered.
struct Stream {
    sent: u32,
    answers: Vec<u32>,
}

impl Stream {
    /// Until so many more are answered.
    fn go_on(
        &mut self,
        scene: &Scene,
        peer: &mut Guest,
        to: Station,
        more: usize,
    ) -> Result<(), Failure> {
        let (wanted, end) = (self.answers.len() + more, Instant::now() + PATIENCE);
        while self.answers.len() < wanted {
            scene.check()?;
            if Instant::now() >= end {
                return Err(Failure::Failed("no traffic after a move".into()));
            }
            self.sent += 1;
            peer.send(&PEER.datagram(to, self.sent, 64))?;
            let next = Instant::now() + BEAT;
            while let Some(frame) = peer.receive(next.saturating_duration_since(Instant::now()))? {
                self.answers.extend(PEER.number(&frame));
            }
        }
        Ok(())
    }
}

fn picture(fabric: Fabric) -> String {
    let (bgp, by) = match fabric {
        Fabric::Evpn => ("zebra, bgpd ◄───── BGP, l2vpn evpn ─────► zebra, bgpd", "told by BGP"),
        Fabric::Static => ("a list of hosts, and what frames say", "learned from frames"),
    };
    format!(
        "\n  host 1: 192.0.2.1                                       host 2: 192.0.2.2\n\
         \x20 guest ─ switch ─ tap lan0 ─ br100 ─ vx100 ═ UDP 4789 ═ vx100 ─ br100 ─ lan0 ─ switch \
         ─ guest\n                        {bgp}\n\n\
         Addresses are {by}. Each host is a network namespace, each guest drives a virtio NIC.\n"
    )
}

/// The figures, for people.
fn words(f: &Figures) -> String {
    let mut text = String::new();
    for link in &f.links {
        let ([rr, rr_least, rr_most], [rate, least, most]) =
            (links::spread(&link.tcp_rr_us), links::spread(&link.mbit_per_s));
        let _ = writeln!(
            text,
            "TCP from host to host by {}: a request and its answer {rr:.0} us ({rr_least:.0} to \
             {rr_most:.0}), a stream {rate:.0} Mbit/s ({least:.0} to {most:.0}), of {} rounds in \
             turn.",
            link.link,
            link.tcp_rr_us.len()
        );
    }
    let _ = write!(
        text,
        "{} bytes of UDP pass; {} are answered by ICMP \"fragmentation needed\", MTU {}.\n\
         {} ARP questions for a guest of the other host: {} answers, {} frames in the tunnel; for \
         an unknown address: {} frames.\n\
         Addresses of the other host that host 1 knows: {} by BGP, {} from frames.\n",
        f.mtu.passed,
        f.mtu.refused,
        f.mtu.told,
        f.arp.questions,
        f.arp.answers,
        f.arp.tunnelled,
        f.arp.unknown_tunnelled,
        f.told,
        f.seen,
    );
    for m in &f.moves {
        let _ = writeln!(
            text,
            "A {} guest moves to host {}: traffic again {:.0} ms after its driver is ready, {} \
             datagrams lost (one each 2 ms).",
            if m.guest == "silent" { "silent" } else { "talking" },
            m.to_host,
            m.after_ms,
            m.lost
        );
    }
    text + "One look. The same on real hosts: docs/hosts.md\n"
}
