//! `vmlan stack`: a guest on a port with a small UDP and TCP stack, and what netperf's users run on
//! one.

use std::net::Ipv4Addr;
use std::time::Duration;

use clap::Args;
use vmlan_tools::stack::{self, Options, Schedule};
use vmlan_transport::Mac;

use crate::exit::Failure;
use crate::output::{print, print_json, print_progress};
use crate::pktgen::usage;
use crate::task::TaskArgs;
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
    #[command(flatten)]
    task: TaskArgs,
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
    /// 1: driver and application take turns, as on one processor; 2: each has a thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u8,
    /// interrupts-first: the driver comes before the application for as long as frames come, as
    /// in a kernel without NAPI; in-turns: after a budget of frames it is the application's turn,
    /// as with NAPI [default: livelock-sink on a NIC that interrupts: interrupts-first; otherwise
    /// in-turns]
    #[arg(long, value_name = "WHO", value_parser = ["interrupts-first", "in-turns"])]
    schedule: Option<String>,
    /// Datagrams that may wait for the application
    #[arg(long, value_name = "N", default_value_t = 256)]
    socket_queue: u16,
    /// Frames a driver that polls takes before it is the application's turn
    #[arg(long, value_name = "N", default_value_t = 64)]
    budget: u16,
    /// Microseconds to poll before sleeping on the interrupt
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 20)]
    spin: u32,
}

/// Runs it.
///
/// # Errors
/// Wrong options, or the port or the peer cannot be reached.
pub(crate) fn run(args: &StackArgs) -> Result<(), Failure> {
    let options = options(args)?;
    options.check().map_err(|e| Failure::Usage(e.to_string()))?;
    vmlan_transport::sys::exact_timers();
    let json = args.task.json;
    let summary = stack::run(&options, &mut |report| print_progress(json, &report));
    let summary =
        summary.map_err(|e| Failure::Failed(format!("{}: {}", args.address, error_chain(&e))))?;
    if json { print_json(&summary) } else { print(&format!("{summary}\n")) }
}

fn options(args: &StackArgs) -> Result<Options, Failure> {
    let address = args.address.parse().map_err(|e| usage("-i", &e))?;
    let task = args.task.task()?;
    let mut options = Options::new(address, task.workload, network(&args.ip)?);
    options.task = task;
    options.gateway = args.gateway;
    if let Some(text) = &args.mac {
        options.mac = Some(text.parse::<Mac>().map_err(|e| usage("--mac", &e))?);
    }
    options.mtu = args.mtu;
    options.threads = args.threads;
    options.schedule = args.schedule.as_deref().map(|who| match who {
        "in-turns" => Schedule::InTurns,
        _ => Schedule::InterruptsFirst,
    });
    options.socket_queue = args.socket_queue;
    options.budget = args.budget;
    options.spin = Duration::from_micros(args.spin.into());
    Ok(options)
}

fn network(text: &str) -> Result<(Ipv4Addr, u8), Failure> {
    let wrong =
        || usage("--ip", &format!("'{text}' is not a valid address: write one like 10.0.0.1/24"));
    let (ip, bits) = text.split_once('/').unwrap_or((text, "24"));
    Ok((ip.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?))
}
