//! What one host asks of another. Every check fails with who, to whom and what was heard.

use crate::{HarnessError, LanHost, Result};
use serde_json::Value;
use std::time::Duration;

/// Lengths of the transferred files: one byte, around one segment, odd ones, and more than any
/// offload's 64 KiB.
const FILES: &[u32] = &[1, 59, 1447, 1449, 4097, 65_535, 300_007];

/// ICMP payloads: the minimum frame and its neighbours, odd ones, the largest unfragmented, and
/// fragments.
const PINGS: &[u32] = &[0, 1, 17, 18, 19, 63, 255, 511, 1001, 1471, 1472, 1473, 4001, 8999];

/// Lengths whose first echo may take longer than is waited for it.
const LATE: usize = 2;

/// An iperf3 server that is started again whenever it ends, as 3.18's does after some clients'
/// failures. Outside of guests it ends with its shell.
const IPERF3_SERVER: &str = "sh -c 'with=\"setpriv --pdeathsig KILL --\"; $with true || with=
    while :; do $with iperf3 -s; sleep 0.1; done'";

fn failed(host: &dyn LanHost, what: &str, heard: impl Into<String>) -> HarnessError {
    HarnessError::Failed { what: format!("{}: {what}", host.name()), heard: heard.into() }
}

/// Waits until `from` reaches `to` at all: ARP, learning, link up.
///
/// # Errors
/// [`HarnessError::Failed`] after two minutes.
pub fn reaches(from: &mut dyn LanHost, to: &str) -> Result<()> {
    // An echo that takes long counts too: a guest that shares a core may need seconds.
    let command = format!(
        "for w in 1 1 1 1 1 1 1 1 1 1 5 5 5 5 5 5 20 20 20 20; do
           busybox ping -c 1 -W $w {to} > /dev/null && exit 0
         done
         exit 1"
    );
    let said = from.run(&command, Duration::from_secs(240))?;
    if said.code == 0 {
        Ok(())
    } else {
        Err(failed(from, &format!("cannot reach {to}"), said.text))
    }
}

/// Echoes of every payload length that has ever been trouble; the sender's kernel checks the
/// checksum of each.
///
/// # Errors
/// [`HarnessError::Failed`] naming the lengths that did not come back.
pub fn ping_sizes(from: &mut dyn LanHost, to: &str) -> Result<()> {
    let sizes: Vec<_> = PINGS.iter().map(u32::to_string).collect();
    let command = format!(
        "for s in {}; do
           busybox ping -c 1 -W 3 -s $s {to} > /dev/null && continue
           echo late $s; busybox ping -c 3 -i 0.1 -W 10 -s $s {to} > /dev/null || echo lost $s
         done",
        sizes.join(" ")
    );
    let said = from.run(&command, Duration::from_secs(240))?;
    // On a busy machine one or another may come too late; not each time, and not many.
    if said.code == 0 && !said.text.contains("lost") && said.text.lines().count() <= LATE {
        return Ok(());
    }
    Err(failed(from, &format!("no echo from {to} for lengths"), said.text))
}

/// `from` reaches `to`, exchanges echoes of all lengths with it and fetches its files.
pub fn meet(from: &mut dyn LanHost, to: &str) -> Result<()> {
    reaches(from, to)?;
    ping_sizes(from, to)?;
    fetch(from, to)
}

/// Makes random files with their sums and serves them by HTTP, and starts an iperf3 server.
pub fn serve(host: &mut dyn LanHost) -> Result<()> {
    let files = host.files().to_owned();
    let lengths: Vec<_> = FILES.iter().map(u32::to_string).collect();
    host.sh(&format!(
        "cd {files} && for n in {}; do head -c $n /dev/urandom > f$n || exit 1; done && sha256sum \
            f* > sums",
        lengths.join(" ")
    ))?;
    host.background(&format!("busybox httpd -f -p 80 -h {files}"))?;
    host.background(IPERF3_SERVER)?;
    let both = "netstat -ltn | grep -q ':80 ' && busybox netstat -ltn | grep -q ':5201 '";
    host.sh(&format!("for i in $(seq 300); do busybox {both} && exit 0; sleep 0.1; done; exit 1"))
        .map(drop)
}

/// Fetches every file of [`serve`] over TCP and compares the sums. By `nc`, reading the head line
/// by line: a static busybox's wget looks up the service name, and glibc's name service crashes
/// there.
///
/// # Errors
/// [`HarnessError::Failed`] naming the files that came wrong.
pub fn fetch(to: &mut dyn LanHost, from: &str) -> Result<()> {
    let command = format!(
        "get() {{ printf 'GET /%s HTTP/1.0\r\n\r\n' $1 | busybox nc -w 10 {from} 80 | {{
           while read -r head && [ ${{#head}} -gt 1 ]; do :; done; cat; }} > $1; }}
         d=$(mktemp -d) && cd $d && get sums && for f in $(cut -c67- sums); do get $f; done
         busybox sha256sum -c sums > sums.said 2>&1; code=$?; grep -v OK sums.said; wc -l < sums; \
         rm -r $d; exit $code"
    );
    let said = to.run(&command, Duration::from_secs(300))?;
    let whole = said.text.trim() == FILES.len().to_string();
    if said.code == 0 && whole {
        return Ok(());
    }
    let what = format!("checksummed transfer from {from} (exit code {})", said.code);
    Err(failed(to, &what, said.text))
}

/// One iperf3 run's outcome.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    /// Received, bits per second.
    pub bits_per_second: f64,
    /// UDP only: datagrams lost, per cent.
    pub lost_percent: f64,
}

/// iperf3 from `from` to the server on `to`, with options as iperf3 has them: they say how many
/// bytes (`-n`) or how long (`-t`).
///
/// # Errors
/// [`HarnessError::Failed`] with iperf3's own error.
pub fn iperf(from: &mut dyn LanHost, to: &str, options: &str) -> Result<Flow> {
    const PATIENCE: Duration = Duration::from_secs(300);
    let command = format!("iperf3 -J -c {to} {options}");
    let mut said = from.run(&command, PATIENCE)?;
    // A server that still puts the last run away refuses the next, on a busy machine also by a
    // reset, and more than once; and one that has ended is started again. With -J iperf3's exit
    // code may be 0 all the same.
    let refused = ["is busy", "control message", "control socket has closed", "Connection refused"];
    for _ in 0..60 {
        if !refused.iter().any(|why| said.text.contains(why)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        said = from.run(&command, PATIENCE)?;
    }
    let report: Value = serde_json::from_str(&said.text).unwrap_or_default();
    let end = &report["end"];
    let sum = if end["sum_received"].is_object() { &end["sum_received"] } else { &end["sum"] };
    match sum["bits_per_second"].as_f64() {
        Some(bits_per_second) if said.code == 0 => {
            let lost_percent = end["sum"]["lost_percent"].as_f64().unwrap_or(0.0);
            Ok(Flow { bits_per_second, lost_percent })
        }
        _ => Err(failed(from, &command, said.text)),
    }
}

/// TCP with `tcp`, as [`iperf`] has it, and 1 MB of UDP. Some of both has to arrive; how fast is
/// printed and not judged.
///
/// # Errors
/// [`HarnessError::Failed`] with what was heard.
pub fn flows(what: &str, from: &mut dyn LanHost, to: &str, tcp: &str) -> Result<()> {
    let tcp = iperf(from, to, tcp)?;
    let udp = iperf(from, to, "-u -b 20M -l 1401 -n 1M")?;
    println!(
        "  {what}: TCP {:.0} Mbit/s, UDP {:.1} Mbit/s with {:.1} % lost",
        tcp.bits_per_second / 1e6,
        udp.bits_per_second / 1e6,
        udp.lost_percent
    );
    if tcp.bits_per_second > 0.0 && udp.bits_per_second > 0.0 {
        return Ok(());
    }
    Err(failed(from, &format!("a flow to {to}"), format!("TCP {tcp:?}, UDP {udp:?}")))
}

/// Checksum errors the host's kernel has counted on receipt, over all protocols: 0 on a sound
/// LAN.
///
/// # Errors
/// [`HarnessError::Failed`] with the kernel's own table if there is any.
pub fn no_checksum_errors(host: &mut dyn LanHost) -> Result<()> {
    let table = host.sh("cat /proc/net/snmp")?;
    let mut found = 0;
    for (names, values) in table.lines().zip(table.lines().skip(1)) {
        let columns = names.split(' ').zip(values.split(' '));
        let errors = columns.filter(|(name, _)| *name == "InCsumErrors");
        found += errors.filter_map(|(_, value)| value.parse::<u64>().ok()).sum::<u64>();
    }
    if found == 0 { Ok(()) } else { Err(failed(host, "received wrong checksums", table)) }
}

/// The offloads that matter, as `ethtool -k` calls them.
pub const ALL: &[&str] = &["tx-checksumming", "tcp-segmentation-offload"];

/// Turns every offload of a guest's NIC on or off and makes sure those that matter obeyed.
///
/// # Errors
/// [`HarnessError::Failed`] with what `ethtool -k` says.
pub fn offloads(guest: &mut dyn LanHost, on: bool) -> Result<()> {
    some_offloads(guest, on, ALL)
}

/// Turns every offload of a guest's NIC on or off and makes sure that `these` obeyed.
///
/// # Errors
/// [`HarnessError::Failed`] with what `ethtool -k` says.
pub fn some_offloads(guest: &mut dyn LanHost, on: bool, these: &[&str]) -> Result<()> {
    let want = if on { "on" } else { "off" };
    // Some are fixed on some NICs, so each is set for itself and the outcome is looked at.
    let set = "for o in tx sg tso gso gro rx; do ethtool -K eth0 $o";
    let state = guest.sh(&format!("{set} {want} > /dev/null 2>&1; done; ethtool -k eth0"))?;
    let obeyed =
        |name: &str| state.lines().any(|line| line.trim().starts_with(&format!("{name}: {want}")));
    if these.iter().all(|name| obeyed(name)) {
        return Ok(());
    }
    Err(failed(guest, &format!("offloads would not go {want}"), state))
}
