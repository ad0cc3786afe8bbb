//! Guests with one kind of NIC, the switch they are on, and the host behind a TAP device.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use vmlan_harness::linux_module::{self, Counts, Grown};
use vmlan_harness::{
    Boot, Guest, HarnessError, LanHost, NetNs, Switch, connectivity, vmlan_program,
};

use super::super::linux_guest::{From, TAP};
use super::super::paper::Way;
use super::super::sockets::{Kind, Workload, value};
use super::row::{Hardware, Row};
use super::{Measured, Place};
use crate::failure::Failure;
use vmlan_config::human_text::to_f64;

/// One end of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Host,
    /// Number 0, or 1 where there are two.
    Guest(usize),
}

/// All that runs. The guests first: they go before their switch and their namespace.
pub(super) struct Station {
    guests: Vec<Guest>,
    /// How each guest's NIC is driven now.
    driven: Vec<&'static str>,
    switch: Option<Switch>,
    host: NetNs,
}

const NAMES: [&str; 2] = ["a", "b"];
/// An address that nobody has.
const NOBODY: &str = "10.77.0.250";
/// A guest's address where it has no NIC, one that it sends to there, and a MAC address.
const ALONE: &str = "10.78.0.1";
const NOWHERE: &str = "10.78.0.2";
const NOBODYS_MAC: &str = "02:00:00:00:00:fe";
/// Beyond what a command itself takes: the machine may be busy.
const SLACK: Duration = Duration::from_secs(120);

impl Station {
    /// Boots it, in a directory of its own, whose name ends in `suffix`.
    pub(super) fn start(
        place: &Place<'_>,
        hardware: Hardware,
        suffix: &str,
    ) -> Result<Self, Failure> {
        let dir = place.dir.join(format!("{hardware:?}-{}{suffix}", place.cpus));
        std::fs::create_dir(&dir).map_err(HarnessError::file(&dir))?;
        let mut host = NetNs::new(&dir, "host", 101)?;
        let boot = |n: u8| {
            let boot = Boot::new(NAMES[usize::from(n)], n + 1).newer();
            boot.cpus(place.cpus).kvm(place.kvm)
        };
        let (switch, boots) = match hardware.from() {
            From::Qemu(model) => {
                host.sh(&format!("ip tuntap add {TAP} mode tap"))?;
                (None, vec![boot(0).tap(&host, TAP, model)])
            }
            from => {
                let sockets = NAMES.map(|name| dir.join(format!("{name}.sock")));
                let mut ports = vec![format!("host=tap:{TAP}")];
                let mut boots = Vec::new();
                for (n, socket) in (0..).zip(&sockets) {
                    ports.push(port(from, n, socket));
                    boots.push(match from {
                        From::Virtio => boot(n).vhost_user(socket),
                        _ => boot(n).vfio_user(socket),
                    });
                }
                (Some(Switch::start(&dir, Some(&host), &ports)?), boots)
            }
        };
        host.adopt(TAP)?;
        let guests = Guest::boot_all(place.image, &dir, boots)?;
        Ok(Self { driven: vec![""; guests.len()], guests, switch, host })
    }

    /// Has the NICs of those that take part driven so.
    pub(super) fn drive(&mut self, row: &Row, way: Way) -> Result<(), Failure> {
        let parts = if way == Way::Switch { 2 } else { 1 };
        for (guest, driven) in self.guests.iter_mut().zip(&mut self.driven).take(parts) {
            if *driven == row.name {
                continue;
            }
            *driven = "";
            if !row.has_nic() {
                // It asks nobody by ARP. The guest's NIC stays as it is.
                guest.sh(&format!(
                    "ip link set dummy0 up && {{ ip addr show dev dummy0 | grep -q {ALONE} ||
                     ip addr add {ALONE}/24 dev dummy0; }}"
                ))?;
                return Ok(());
            }
            if let Some((driver, options)) = row.driver {
                linux_module::load(guest, driver, options)?;
            }
            let on = if row.offloads { "on" } else { "off" };
            // A driver need not have all of them.
            let each = format!("for f in tso gso gro; do ethtool -K eth0 $f {on}; done; true");
            guest.sh(&each)?;
            connectivity::reaches(guest, self.host.ip())?;
            *driven = row.name;
        }
        Ok(())
    }

    fn end(&mut self, host: Host) -> &mut dyn LanHost {
        match host {
            Host::Host => &mut self.host,
            Host::Guest(n) => &mut self.guests[n],
        }
    }

    fn counts(&self) -> Result<Option<Counts>, HarnessError> {
        self.switch.as_ref().map(|switch| Counts::read(switch, NAMES[0])).transpose()
    }

    /// Runs one workload; what the receiver got, and what guest `a` cost meanwhile.
    pub(super) fn measure(
        &mut self,
        row: &Row,
        workload: Workload,
        [from, to]: [Host; 2],
        (time, warm_up): (Duration, Duration),
    ) -> Result<Measured, Failure> {
        if workload.kind == Kind::Frames {
            return self.generate(row, workload.bytes, time, warm_up);
        }
        let [warm_up, span] = spans(time, warm_up);
        let server = match row.has_nic() {
            true => Some(Server::start(self.end(to), to, workload, &warm_up)?),
            false => None,
        };
        let ip = if row.has_nic() { self.end(to).ip() } else { NOWHERE }.to_owned();
        let (client, bytes, kind) = (workload.client(), workload.bytes, workload.kind);
        let command = format!(
            "{} load -f {client} --to {ip} -l {bytes} {span} {warm_up} -w 60 --json 2> /dev/null",
            program(from)
        );
        let before = self.counts()?;
        let said = self.end(from).run(&command, time + SLACK);
        let after = self.counts()?;
        let served = server.map(|server| server.end(self.end(to))).transpose();
        let said = said?;
        if said.code != 0 {
            return Err(HarnessError::Failed { what: command, heard: said.text }.into());
        }
        let (sent, served) = (value(kind, &json(&said.text)?)?, served?);
        let served = served.filter(|_| workload.server() != "responder");
        let value = served.map_or(Ok(sent), |served| value(kind, &served))?;
        if value <= 0.0 {
            return Err(Failure::Failed("nothing arrived".into()));
        }
        Ok(measured([sent, value], before.zip(after).filter(|_| row.has_nic())))
    }

    /// The same with frames of `bytes` from the packet generator of guest `a`. The host's stack
    /// drops them: they are for its NIC, but not for its address.
    fn generate(
        &mut self,
        row: &Row,
        bytes: u32,
        time: Duration,
        warm_up: Duration,
    ) -> Result<Measured, Failure> {
        let (device, mac) = match row.has_nic() {
            true => ("eth0", host_mac(&mut self.host)?),
            false => ("dummy0", NOBODYS_MAC.into()),
        };
        let [guest, ..] = self.guests.as_mut_slice() else {
            return Err(Failure::Failed("no guest".into()));
        };
        guest.sh(&format!(
            "cd /proc/net/pktgen && echo rem_device_all > kpktgend_0
             echo add_device {device} > kpktgend_0
             for set in 'count 0' 'pkt_size {bytes}' 'delay 0' 'dst {NOBODY}' 'dst_mac {mac}'; do
               echo \"$set\" > {device} || exit 1
             done
             echo start > pgctrl 2> /dev/null &"
        ))?;
        std::thread::sleep(warm_up);
        let mut look = || Ok::<_, Failure>((Instant::now(), self.arrived()?, self.counts()?));
        let begin = look();
        std::thread::sleep(time);
        let end = look();
        // Whatever was seen: it would disturb the next cell. Its thread says "Starting" until it
        // has seen the wish to stop.
        let stop = format!(
            "cd /proc/net/pktgen && echo stop > pgctrl && n=0
             until grep -q pps {device} || [ $n -ge 100 ]; do sleep 0.05; n=$((n + 1)); done
             cat {device}"
        );
        let said = self.guests.first_mut().map(|guest| guest.sh(&stop)).transpose()?;
        let said = said.unwrap_or_default();
        let rate = said.split_whitespace().find_map(|word| word.strip_suffix("pps"));
        let sent = rate.and_then(|pps| pps.parse::<f64>().ok());
        let heard = || HarnessError::Garbled { what: "pktgen".into(), heard: said.clone() };
        let ((begin, got, before), (end, more, after)) = (begin?, end?);
        let took = end - begin;
        let sent = sent.ok_or_else(heard)? / 1000.0;
        if !row.has_nic() {
            return Ok(measured([sent; 2], None));
        }
        let value = to_f64(more.saturating_sub(got)) / took.as_secs_f64() / 1000.0;
        if value <= 0.0 {
            return Err(Failure::Failed("nothing arrived".into()));
        }
        Ok(measured([sent, value], before.zip(after)))
    }

    /// Frames that the host has got from its TAP device.
    fn arrived(&mut self) -> Result<u64, Failure> {
        let command = format!("ip -s -j link show {TAP}");
        let said = json(&self.host.sh(&command)?)?;
        let frames = said[0]["stats64"]["rx"]["packets"].as_u64();
        Ok(frames
            .ok_or_else(|| HarnessError::Garbled { what: command, heard: said.to_string() })?)
    }
}

fn measured([sent, value]: [f64; 2], counts: Option<(Counts, Counts)>) -> Measured {
    let grown = counts.map(|(before, after)| Grown::between(before, after));
    Measured {
        value,
        sent,
        accesses_per_kframe: grown.as_ref().map(Grown::accesses),
        interrupts_per_kframe: grown.as_ref().map(Grown::interrupts),
    }
}

/// `vmlan load`'s words for a warm-up, and for a run in which `time` is left to be measured.
fn spans(time: Duration, warm_up: Duration) -> [String; 2] {
    let run = time.max(Duration::from_millis(100)) + warm_up;
    [("--warmup", warm_up), ("-T", run)].map(|(key, t)| format!("{key} {:.2}", t.as_secs_f64()))
}

/// The address of the host's TAP device.
fn host_mac(host: &mut NetNs) -> Result<String, Failure> {
    let said = host.sh(&format!("ip -j link show {TAP}"))?;
    let mac = json(&said)?[0]["address"].as_str().map(str::to_owned);
    Ok(mac.ok_or_else(|| HarnessError::Garbled {
        what: format!("ip link show {TAP}"),
        heard: said,
    })?)
}

fn port(from: From, n: u8, socket: &Path) -> String {
    let (name, path, mac) = (NAMES[usize::from(n)], socket.display(), Boot::mac(n + 1));
    match from {
        From::Ours(keys) => format!("{name}=vfio-user:{path},{keys},mac={mac}"),
        _ => format!("{name}=vhost-user:{path}"),
    }
}

/// How the program is called there.
fn program(host: Host) -> String {
    match host {
        Host::Host => vmlan_program().display().to_string(),
        Host::Guest(_) => "vmlan".into(),
    }
}

fn json(text: &str) -> Result<Value, Failure> {
    let heard = || HarnessError::Garbled { what: "vmlan load".into(), heard: text.into() };
    let line = text.lines().last().ok_or_else(heard)?;
    Ok(serde_json::from_str(line).map_err(|_| heard())?)
}

/// The receiving end.
struct Server {
    pid: String,
    /// What it says at its end.
    said: String,
}

impl Server {
    fn start(
        host: &mut dyn LanHost,
        at: Host,
        workload: Workload,
        warm_up: &str,
    ) -> Result<Self, Failure> {
        let (said, ready) = (format!("{}/served", host.files()), format!("{}/ready", host.files()));
        let serve = format!("{} load -f {} {warm_up} --json", program(at), workload.server());
        let wait = format!("until grep -q ready {ready}; do sleep 0.05; done");
        let pid = host.sh(&format!("{serve} > {said} 2> {ready} & echo $!; {wait}"))?;
        Ok(Self { pid: pid.trim().to_owned(), said })
    }

    /// Ends it; its summary.
    fn end(self, host: &mut dyn LanHost) -> Result<Value, Failure> {
        let Self { pid, said } = self;
        let gone = format!("while kill -0 {pid} 2> /dev/null; do sleep 0.05; done");
        // What is still in its socket's buffer is taken first.
        json(&host.sh(&format!("sleep 0.1; kill -INT {pid}; {gone}; cat {said}"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_longer_than_its_warm_up_by_what_is_measured() {
        for (ms, run) in [(0, "-T 0.50"), (200, "-T 0.60"), (400, "-T 0.80"), (2000, "-T 2.40")] {
            let spans = spans(Duration::from_millis(ms), Duration::from_millis(400));
            assert_eq!(spans, ["--warmup 0.40", run]);
        }
    }
}
