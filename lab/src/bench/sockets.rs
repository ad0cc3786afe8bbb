//! Sockets in guests (`vmlan stack`), with another guest or the host as the peer.

use std::net::Ipv4Addr;

use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::native::host::{self, Peer};
use crate::native::pair::News;
use crate::native::{Lab, Plug, Setup, Technique, Window};
use std::time::Duration;
use vmlan_harness::Pin;

/// The guest on port `a`.
pub(super) const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// What is measured, and in which unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Thousands of datagrams a second that the receiving application got.
    Datagrams,
    /// Mbit/s of payload that it got.
    Stream,
    /// Thousands of transactions a second over TCP...
    Requests,
    /// ...and over UDP.
    UdpRequests,
    /// Thousands of frames a second from a Linux guest's own packet generator, below its sockets.
    Frames,
}

/// A workload of `vmlan stack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Bytes of a datagram's payload, a write or a request.
    pub(super) bytes: u32,
}

impl Workload {
    pub(super) fn client(self) -> &'static str {
        match self.kind {
            Kind::Datagrams => "udp-stream",
            Kind::Stream => "tcp-stream",
            Kind::Requests => "tcp-rr",
            Kind::UdpRequests => "udp-rr",
            Kind::Frames => "pktgen",
        }
    }

    pub(super) fn server(self) -> &'static str {
        match self.kind {
            Kind::Datagrams | Kind::Frames => "udp-sink",
            Kind::Stream => "tcp-sink",
            Kind::Requests | Kind::UdpRequests => "responder",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self.kind {
            Kind::Stream => "Mbit/s",
            Kind::Datagrams | Kind::Requests | Kind::UdpRequests | Kind::Frames => "k/s",
        }
    }
}

/// What has been seen.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// In the workload's unit, at the receiver.
    pub(super) value: f64,
    /// The same at the sender.
    pub(super) sent: f64,
    /// By the switch.
    #[serde(flatten)]
    pub(super) window: Window,
}

fn field(said: &Value, name: &str) -> Result<f64, Failure> {
    said.get(name)
        .and_then(Value::as_f64)
        .ok_or_else(|| Failure::Failed(format!("a guest's summary has no {name}")))
}

/// From a guest's summary.
pub(super) fn value(kind: Kind, said: &Value) -> Result<f64, Failure> {
    match kind {
        Kind::Stream => field(said, "mbit_per_s"),
        _ => Ok(field(said, "messages_per_s")? / 1000.0),
    }
}

/// Seconds after the first message that a guest does not count: less than the laboratory's own.
pub(super) fn warm_up(setup: &Setup) -> String {
    format!("{:.2}", setup.warm_up.as_secs_f64() * 0.75)
}

/// A measurement to make.
pub(super) struct Job<'a> {
    pub(super) setup: &'a Setup,
    pub(super) technique: &'static Technique,
    pub(super) workload: Workload,
    /// Of each guest.
    pub(super) threads: u8,
    /// Bytes that a TCP connection between guests may have under way; 0: the usual number.
    pub(super) window: u32,
    pub(super) time: Duration,
    pub(super) news: News<'a>,
}

impl Job<'_> {
    /// The words that start a guest's side of the workload.
    fn words(&self, ip: &str, workload: &str, more: &[&str]) -> Vec<String> {
        let warm_up = warm_up(self.setup);
        let first = ["stack", "--json", "--ip", ip, "-f", workload, "--warmup", &warm_up];
        [&first[..], more].concat().into_iter().map(str::to_owned).collect()
    }

    /// From the guest on `a` to that on `b`.
    pub(super) fn guest_to_guest(self) -> Result<Measured, Failure> {
        let lab = Lab::pair(self.setup, self.technique, "")?;
        self.between_guests(lab)
    }

    /// The same, but not by the switch: each guest is alone with a tap port in a VLAN of its own,
    /// and the kernel's bridge is between the two TAP devices.
    pub(super) fn guest_to_guest_over_taps(self) -> Result<Measured, Failure> {
        let plug = |name| Plug { name, technique: self.technique, keys: "" };
        let lab = Lab::start(self.setup, &[plug("a"), plug("b")], &host::TWO_PORTS)?;
        for (port, vlan) in [("a", "1"), ("b", "2")] {
            lab.set(port, &[("vlan", vlan)])?;
        }
        host::bridge()?;
        self.between_guests(lab)
    }

    fn between_guests(self, mut lab: Lab) -> Result<Measured, Failure> {
        let [threads, bytes, window] =
            [self.threads.into(), self.workload.bytes, self.window].map(|n| n.to_string());
        let to = host::ADDRESS.to_string();
        let [here, there] = [GUEST, host::ADDRESS].map(|ip| format!("{ip}/24"));
        let both = ["--threads", &threads, "--window", &window];
        let b = lab.ready_guest("b", &self.words(&there, self.workload.server(), &both))?;
        let client = [&both[..], &["-l", &bytes, "--to", &to]].concat();
        let a = lab.ready_guest("a", &self.words(&here, self.workload.client(), &client))?;
        let seen = lab.measure(vec![a, b], self.time, self.news, &mut || ())?;
        let [a, b] = [&seen.said[0], &seen.said[1]];
        let kind = self.workload.kind;
        let sent = value(kind, a)?;
        let answered = matches!(kind, Kind::Requests | Kind::UdpRequests);
        let value = if answered { sent } else { value(kind, b)? };
        checked(Measured { value, sent, window: seen.window })
    }

    /// From the guest on `a` to this program's own sockets.
    pub(super) fn guest_to_host(self) -> Result<Measured, Failure> {
        let (threads, bytes) = (self.threads.to_string(), self.workload.bytes.to_string());
        let mut lab = self.beside_host()?;
        let mut peer = Peer::server(self.host_pin())?;
        let (to, here) = (host::ADDRESS.to_string(), format!("{GUEST}/24"));
        let client = ["--threads", &threads, "-l", &bytes, "--to", &to];
        let a = lab.ready_guest("a", &self.words(&here, self.workload.client(), &client))?;
        let seen = lab.measure(vec![a], self.time, self.news, &mut || peer.mark())?;
        let sent = value(self.workload.kind, &seen.said[0])?;
        let value = match self.workload.kind {
            Kind::Datagrams | Kind::Frames => peer.rates().messages / 1000.0,
            Kind::Stream => peer.rates().mbit,
            Kind::Requests | Kind::UdpRequests => sent,
        };
        checked(Measured { value, sent, window: seen.window })
    }

    /// From this program's socket to the guest on `a`: datagrams or a stream.
    pub(super) fn host_to_guest(self) -> Result<Measured, Failure> {
        let threads = self.threads.to_string();
        let mut lab = self.beside_host()?;
        let here = format!("{GUEST}/24");
        let a = self.words(&here, self.workload.server(), &["--threads", &threads]);
        let a = lab.ready_guest("a", &a)?;
        let bytes = usize::try_from(self.workload.bytes).unwrap_or(0);
        let is_stream = self.workload.kind == Kind::Stream;
        let pin = self.host_pin();
        let mut peer = match is_stream {
            true => Peer::writer(pin, GUEST, bytes),
            false => Peer::sender(pin, GUEST, bytes)?,
        };
        let seen = lab.measure(vec![a], self.time, self.news, &mut || peer.mark())?;
        let value = value(self.workload.kind, &seen.said[0])?;
        let rates = peer.rates();
        let sent = if is_stream { rates.mbit } else { rates.messages / 1000.0 };
        checked(Measured { value, sent, window: seen.window })
    }

    /// The host is where the guest on `b` would be.
    fn host_pin(&self) -> Pin {
        self.setup.cores.of(Some("b"))
    }

    fn beside_host(&self) -> Result<Lab, Failure> {
        let plug = Plug { name: "a", technique: self.technique, keys: "" };
        let lab = Lab::start(self.setup, &[plug], &[host::PORT])?;
        host::plug_in()?;
        Ok(lab)
    }
}

fn checked(seen: Measured) -> Result<Measured, Failure> {
    if seen.value > 0.0 { Ok(seen) } else { Err(Failure::Failed("nothing arrived".into())) }
}

/// For the line of a measurement that is done.
pub(super) fn show(workload: Workload, seen: &Measured) -> String {
    format!(
        "{:.1} {} (sent {:.1}), {:.0} accesses and {:.1} interrupts for 1,000 frames",
        seen.value,
        workload.unit(),
        seen.sent,
        seen.window.accesses_per_kframe,
        seen.window.interrupts_per_kframe
    )
}
