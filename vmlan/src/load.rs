//! `vmlan load`: the workloads of `vmlan stack` on the kernel's sockets.

use clap::Args;
use vmlan_frame::error_chain;
use vmlan_tools::load::{self, Options};

use crate::exit::Failure;
use crate::output::{print, print_json, print_progress};
use crate::task::TaskArgs;

/// Arguments of `vmlan load`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example (in a guest with 10.0.0.2, and in another one or on the host):\n  \
    vmlan load -f responder\n  \
    vmlan load -f udp-stream --to 10.0.0.2 -l 8 -T 5\n  \
    vmlan load -f udp-stream --to 10.0.0.2 -l 1460 -b 32 --gso -T 5\n  \
    vmlan load -f tcp-stream --to 10.0.0.2 -l 16384 -T 5     as netperf's TCP_STREAM\n  \
    vmlan load -f tcp-rr --to 10.0.0.2 -T 5 --json\n\n\
    udp-sink, tcp-sink and responder serve, udp-stream, tcp-stream, udp-rr and tcp-rr talk to \
    them.\n\
    UDP and TCP port 7007 answers requests, 7009 is a sink. The receiver counts: what a stream \
    says\n\
    of itself is what it handed to the kernel. `vmlan stack` does the same on a NIC of its own."
)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    task: TaskArgs,
    /// A burst (-b, at most 64) is one send, which the kernel or the NIC cuts (UDP_SEGMENT)
    #[arg(long)]
    gso: bool,
}

/// Runs it.
///
/// # Errors
/// Wrong options, or the peer cannot be reached.
pub(crate) fn run(args: &LoadArgs) -> Result<(), Failure> {
    let json = args.task.json;
    let options = Options { task: args.task.task()?, segment: args.gso };
    options.check().map_err(|e| Failure::Usage(e.to_string()))?;
    vmlan_transport::sys::exact_timers();
    let totals = load::run(&options, &mut |report| print_progress(json, &report));
    let totals = totals.map_err(|e| Failure::Failed(error_chain(&e)))?;
    if json {
        return print_json(&totals);
    }
    let latency = totals.latency.map(|latency| format!("\nround trip us: {latency}"));
    print(&format!("{totals}{}\n", latency.unwrap_or_default()))
}
