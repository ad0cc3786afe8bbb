//! `vmlan explain`: what would become of a frame, and why.

use std::io::Read as _;
use std::net::IpAddr;

use clap::Args;
use clap_complete::ArgValueCompleter;
use hyper::Method;
use vmlan_frame::Mac;

use super::ApiArgs;
use super::shell::port_names;
use crate::exit::Failure;
use crate::output::{print, print_json, with_api};
use vmlan_api::WhatIf;
use vmlan_engine::explain::Explained;
use vmlan_engine::explain::frame::{Inside, Wanted, parse_hex, to_hex};

/// The longest hex that is read from standard input: many times what the switch takes.
const MAX_HEX: u64 = 1 << 20;

/// Arguments of `vmlan explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// The port that would send it
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(port_names))]
    port: String,
    /// Source MAC address
    #[arg(long, value_name = "MAC", required_unless_present = "hex", conflicts_with = "hex")]
    src: Option<String>,
    /// Destination MAC address
    #[arg(long, value_name = "MAC", required_unless_present = "hex", conflicts_with = "hex")]
    dst: Option<String>,
    /// VLAN tag; several: the outermost first
    #[arg(long, value_name = "VID", conflicts_with = "hex")]
    vlan: Vec<u16>,
    /// Source IP address (with no other option: of an echo request). Without it the frame is of
    /// EtherType 0x88b5, for experiments, which a port with ips= may not send
    #[arg(long, value_name = "ADDRESS", requires = "ip_dst", conflicts_with = "hex")]
    ip_src: Option<IpAddr>,
    /// Destination IP address
    #[arg(long, value_name = "ADDRESS", requires = "ip_src", conflicts_with = "hex")]
    ip_dst: Option<IpAddr>,
    /// An ARP request for the destination
    #[arg(long, group = "inside", requires = "ip_src", conflicts_with = "hex")]
    arp: bool,
    /// UDP
    #[arg(long, value_name = "SPORT:DPORT", group = "inside", requires = "ip_src")]
    udp: Option<String>,
    /// TCP
    #[arg(long, value_name = "SPORT:DPORT", group = "inside", requires = "ip_src")]
    tcp: Option<String>,
    /// ICMPv6; 135 and 136: a solicitation of the destination, an advertisement of the source
    #[arg(long, value_name = "TYPE", group = "inside", requires = "ip_src")]
    icmpv6: Option<u8>,
    /// Its length in bytes [default: what it needs, 60 at least]
    #[arg(long, value_name = "BYTES", conflicts_with = "hex")]
    len: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The frame in hex; -: from standard input
    #[arg(value_name = "HEX")]
    hex: Option<String>,
}

pub(super) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let frame = args.frame().map_err(Failure::Usage)?;
    let question = WhatIf { port: args.port.clone(), frame: to_hex(&frame) };
    let told: Explained = args.api.client()?.send(&Method::POST, "/v1/explain", &question)?;
    if args.json {
        return print_json(&told);
    }
    print(&with_api(&told.table(), args.api.api.as_deref()))
}

impl ExplainArgs {
    fn frame(&self) -> Result<Vec<u8>, String> {
        match self.hex.as_deref() {
            None => self.wanted()?.build(),
            Some("-") => {
                let mut text = String::new();
                let read = std::io::stdin().take(MAX_HEX).read_to_string(&mut text);
                read.map_err(|e| format!("standard input cannot be read: {e}"))?;
                parse_hex(&text)
            }
            Some(hex) => parse_hex(hex),
        }
    }

    fn wanted(&self) -> Result<Wanted, String> {
        let inside = match (&self.udp, &self.tcp, self.icmpv6) {
            (Some(both), _, _) => Inside::Udp(ports("udp", both)?.0, ports("udp", both)?.1),
            (_, Some(both), _) => Inside::Tcp(ports("tcp", both)?.0, ports("tcp", both)?.1),
            (_, _, Some(kind)) => Inside::Icmpv6(kind),
            _ if self.arp => Inside::Arp,
            _ => Inside::Nothing,
        };
        if let Some(vid) = self.vlan.iter().find(|vid| **vid > 4095) {
            return Err(format!("--vlan {vid}: a number from 0 to 4095 is wanted"));
        }
        Ok(Wanted {
            src: mac("src", self.src.as_deref())?,
            dst: mac("dst", self.dst.as_deref())?,
            vlans: self.vlan.clone(),
            ips: self.ip_src.zip(self.ip_dst),
            inside,
            len: self.len,
        })
    }
}

fn mac(option: &str, text: Option<&str>) -> Result<Mac, String> {
    let parsed = text.unwrap_or_default().parse();
    parsed.map_err(|e: vmlan_frame::ParseMacError| format!("--{option}: {e}"))
}

fn ports(option: &str, text: &str) -> Result<(u16, u16), String> {
    let both = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    both.ok_or_else(|| format!("--{option} {text}: SPORT:DPORT is wanted, like 1024:53"))
}
