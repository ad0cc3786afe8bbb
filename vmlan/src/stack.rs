//! `vmlan stack`: a guest on a port with a small UDP and TCP stack, and what netperf's users run on
//! one.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use clap::Args;
use vmlan_tools::stack::{self, Options, Schedule};
use vmlan_transport::Mac;

use crate::exit::Failure;
use crate::output::{print, print_json, print_progress};
use crate::pktgen::{number, seconds, usage};
use crate::process;
use vmlan_frame::error_chain;

/// Arguments of `vmlan stack`.
#[derive(Debug, Args)]
#[command(after_help = "Example (two shells, after `vmlan switch a=vhost-user:/tmp/a.sock \
        b=vfio-user:/tmp/b.sock`):\n  \
    vmlan stack -i vhost-user:/tmp/a.sock --ip 10.0.0.2/24 -f responder\n  \
    vmlan stack -i vfio-user:/tmp/b.sock --ip 10.0.0.1/24 -f udp-stream --to 10.0.0.2 -l 8 -T 5\n  \
    vmlan stack -i vfio-user:/tmp/b.sock --ip 10.0.0.1/24 -f tcp-rr --to 10.0.0.2 -T 5 --json\n\n\
    udp-sink, tcp-sink and responder serve, udp-stream, tcp-stream, udp-rr and tcp-rr talk to \
    them.\n\
    UDP and TCP port 7007 answers requests, 7009 is a sink; the peer may be any host of the LAN,\n\
    like a Linux behind a tap: port. Keys of the address: see `vmlan pkt-gen --help`.")]
pub(crate) struct StackArgs {
    /// The port, seen from the guest: vhost-user:PATH or vfio-user:PATH[,KEY=VALUE...]; inside a VM
    /// pci:0000:00:03.0[,KEY=VALUE...]
    #[arg(short = 'i', value_name = "ADDRESS")]
    address: String,
    /// Our address and the network's bits, like 10.0.0.1/24
    #[arg(long, value_name = "IP/BITS")]
    ip: String,
    /// udp-stream, udp-sink, tcp-stream, tcp-sink, udp-rr, tcp-rr, responder, or livelock-sink: a
    /// udp-sink that counts what arrives and what the application gets under more load than it can
    /// take
    #[arg(short = 'f', value_name = "WORKLOAD")]
    workload: String,
    /// Whom to talk to [default port: 7007 for requests, 7009 for streams]
    #[arg(long, value_name = "IP[:PORT]")]
    to: Option<String>,
    /// The port to serve [default: 7009]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// The way out of the network
    #[arg(long, value_name = "IP")]
    gateway: Option<Ipv4Addr>,
    /// Our MAC address [default: the NIC's own (all but virtio-net), or one made from the IP
    /// address]
    #[arg(short = 's', long, value_name = "MAC")]
    mac: Option<String>,
    /// Most bytes of an IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// Bytes of a datagram's payload, a write or a request [default: 8 (UDP), 1460 (TCP), 1
    /// (requests)]
    #[arg(short = 'l', value_name = "SIZE", default_value_t = 0, hide_default_value = true)]
    size: u32,
    /// TCP: bytes of the send buffer of a stream, and of the receive buffer of a sink [default:
    /// 262144]
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    window: u32,
    /// Messages to send or receive; 0: no limit
    #[arg(short = 'n', value_name = "COUNT", default_value = "0")]
    count: String,
    /// Datagrams or requests a second, like 10k or 1.5M; 0: no limit
    #[arg(short = 'R', value_name = "RATE", default_value = "0")]
    rate: String,
    /// Datagrams given to the driver at once
    #[arg(short = 'b', value_name = "BURST", default_value_t = 1)]
    burst: u32,
    /// Seconds to run, once the port is reached [default: no limit]
    #[arg(short = 'T', value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Seconds after the first message that are not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// 1: driver and application take turns, as on one processor; 2: each has a thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u8,
    /// interrupts-first: the driver comes before the application for as long as frames come, as
    /// in a kernel without NAPI; in-turns: after a budget of frames it is the application's turn,
    /// as with NAPI [default: livelock-sink on a NIC that interrupts: interrupts-first; otherwise
    /// in-turns]
    #[arg(long, value_name = "WHO", value_parser = ["interrupts-first", "in-turns"])]
    schedule: Option<String>,
    /// Nanoseconds the application spends on a datagram (udp-sink, livelock-sink)
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 0)]
    app_ns: u64,
    /// Datagrams that may wait for the application
    #[arg(long, value_name = "N", default_value_t = 256)]
    socket_queue: u16,
    /// Frames a driver that polls takes before it is the application's turn
    #[arg(long, value_name = "N", default_value_t = 64)]
    budget: u16,
    /// tcp-sink: compare every byte with what tcp-stream sends
    #[arg(long)]
    verify: bool,
    /// Microseconds to poll before sleeping on the interrupt
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 20)]
    spin: u32,
    /// Seconds to wait for the switch and for the peer
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    /// Stop when nothing came for so many seconds, once something has come
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<f64>,
    /// Print the summary as JSON, and the lines of each second to standard error
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Wrong options, or the port or the peer cannot be reached.
pub(crate) fn run(args: &StackArgs) -> Result<(), Failure> {
    let mut options = options(args)?;
    options.check().map_err(|e| Failure::Usage(e.to_string()))?;
    vmlan_transport::sys::exact_timers();
    options.stop = Some(process::on_signals()?);
    let summary = stack::run(&options, &mut |report| print_progress(args.json, &report));
    let summary =
        summary.map_err(|e| Failure::Failed(format!("{}: {}", args.address, error_chain(&e))))?;
    if args.json { print_json(&summary) } else { print(&format!("{summary}\n")) }
}

fn options(args: &StackArgs) -> Result<Options, Failure> {
    let address = args.address.parse().map_err(|e| usage("-i", &e))?;
    let workload = args.workload.parse().map_err(|e| usage("-f", &e))?;
    let mut options = Options::new(address, workload, network(&args.ip)?);
    options.to = args.to.as_deref().map(peer).transpose()?;
    options.port = args.port;
    options.gateway = args.gateway;
    if let Some(text) = &args.mac {
        options.mac = Some(text.parse::<Mac>().map_err(|e| usage("--mac", &e))?);
    }
    options.mtu = args.mtu;
    options.size = args.size;
    options.window = args.window;
    options.count = number("-n", &args.count)?;
    options.rate = number("-R", &args.rate)?;
    options.burst = args.burst;
    options.seconds = args.seconds.map(|s| seconds("-T", s)).transpose()?;
    options.warmup = seconds("--warmup", args.warmup)?;
    options.threads = args.threads;
    options.schedule = args.schedule.as_deref().map(|who| match who {
        "in-turns" => Schedule::InTurns,
        _ => Schedule::InterruptsFirst,
    });
    options.app_ns = args.app_ns;
    options.socket_queue = args.socket_queue;
    options.budget = args.budget;
    options.verify = args.verify;
    options.spin = Duration::from_micros(args.spin.into());
    options.patience = seconds("-w", args.wait)?;
    options.idle_exit = args.idle_exit.map(|s| seconds("--idle-exit", s)).transpose()?;
    Ok(options)
}

fn network(text: &str) -> Result<(Ipv4Addr, u8), Failure> {
    let wrong =
        || usage("--ip", &format!("'{text}' is not a valid address: write one like 10.0.0.1/24"));
    let (ip, bits) = text.split_once('/').unwrap_or((text, "24"));
    Ok((ip.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?))
}

/// `10.0.0.2` or `10.0.0.2:5001`; port 0 is the workload's usual one.
fn peer(text: &str) -> Result<SocketAddrV4, Failure> {
    let wrong =
        |_| usage("--to", &format!("'{text}' is not a valid address: write one like 10.0.0.2"));
    if text.contains(':') {
        return text.parse().map_err(wrong);
    }
    Ok(SocketAddrV4::new(text.parse().map_err(wrong)?, 0))
}
