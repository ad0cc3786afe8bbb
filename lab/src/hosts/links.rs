//! The tunnel beside a plain bridge: the same guests' TCP over both, in turn. What differs is that
//! frames are wrapped.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use vmlan_harness::{Process, output_of, vmlan_program};

use super::scene::Scene;
use crate::failure::Failure;

/// Rounds over each.
const ROUNDS: usize = 5;
/// How often a program may fail before it has failed.
const TIMES: u32 = 20;
/// For a program to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// What carries frames from host to host, and the switches' ports of those who talk over it.
const LINKS: [(&str, &str); 2] = [("VXLAN", "rr"), ("plain TAP", "plain/rr")];

/// TCP between guests of two hosts.
#[derive(Debug, Serialize)]
pub(super) struct Link {
    pub(super) link: &'static str,
    /// Microseconds of a request and its answer, by the median of each round; rounds in order.
    pub(super) tcp_rr_us: Vec<f64>,
    pub(super) transactions: u64,
    /// Of a stream.
    pub(super) mbit_per_s: Vec<f64>,
}

/// Both, round by round.
pub(super) fn measure(scene: &mut Scene) -> Result<Vec<Link>, Failure> {
    let new = |link| Link { link, tcp_rr_us: vec![], transactions: 0, mbit_per_s: vec![] };
    let mut links: Vec<_> = LINKS.iter().map(|(name, _)| new(*name)).collect();
    for _ in 0..ROUNDS {
        for (link, (_, port)) in links.iter_mut().zip(LINKS) {
            scene.check()?;
            let rr = tcp(scene, port, "responder", "tcp-rr")?;
            let stream = tcp(scene, port, "tcp-sink", "tcp-stream")?;
            let nanos = rr["latency"]["p50_ns"].as_f64();
            let found = (nanos, rr["messages"].as_u64(), stream["mbit_per_s"].as_f64());
            let (Some(nanos), Some(count), Some(rate)) = found else {
                return Err(Failure::Failed(format!("tcp-rr said {rr}, tcp-stream {stream}")));
            };
            link.tcp_rr_us.push(nanos / 1000.0);
            link.transactions += count;
            link.mbit_per_s.push(rate);
        }
    }
    Ok(links)
}

/// A second of a workload, from a guest of host 1 to one of host 2, by programs of their own.
fn tcp(scene: &Scene, port: &str, serves: &str, asks: &str) -> Result<Value, Failure> {
    let vmlan = vmlan_program().display().to_string();
    let words = |host: usize, ip: &str, what: &[&str]| -> Vec<String> {
        let socket = format!("vhost-user:{}", scene.hosts[host].socket(port).display());
        let ip = format!("{ip}/24");
        let all = [vmlan.as_str(), "stack", "-i", &socket, "--ip", &ip, "--mtu", "1450", "-f"];
        all.iter().chain(what).map(|word| (*word).to_owned()).collect()
    };
    // The port may still have to notice that the guest of the last round has gone.
    let mut server = again(scene, || {
        let log = scene.hosts[1].socket("server.log");
        let _ = std::fs::remove_file(&log);
        let mut server = Process::start(serves, &log, &words(1, "10.0.0.34", &[serves]))?;
        let connected = || std::fs::read_to_string(&log).is_ok_and(|s| s.contains("connected"));
        server.wait("to be connected", PATIENCE, connected)?;
        Ok(server)
    })?;
    let asked = words(0, "10.0.0.33", &[asks, "--to", "10.0.0.34", "-T", "1", "--json"]);
    let asked: Vec<_> = asked.iter().map(String::as_str).collect();
    let said = again(scene, || output_of(asked[0], &asked[1..]))?;
    server.alive()?;
    serde_json::from_str(said.trim())
        .map_err(|e| Failure::Failed(format!("{asks} said {said}: {e}")))
}

/// Does it until it succeeds, a few times.
fn again<T>(
    scene: &Scene,
    mut what: impl FnMut() -> vmlan_harness::Result<T>,
) -> Result<T, Failure> {
    for _ in 0..TIMES {
        if let Ok(done) = what() {
            return Ok(done);
        }
        scene.check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(what()?)
}

/// Median, least and most.
pub(super) fn spread(rounds: &[f64]) -> [f64; 3] {
    let mut all = rounds.to_vec();
    all.sort_by(f64::total_cmp);
    let at = |at: usize| all.get(at).copied().unwrap_or_default();
    [at(all.len() / 2), at(0), at(all.len().saturating_sub(1))]
}
