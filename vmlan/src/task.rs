//! What `vmlan stack` and `vmlan load` take alike.

use std::net::SocketAddrV4;

use clap::Args;
use vmlan_tools::workload::Task;

use crate::exit::Failure;
use crate::pktgen::{number, seconds, usage};
use crate::process;

/// A workload and its bounds.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// udp-stream, udp-sink, tcp-stream, tcp-sink, udp-rr, tcp-rr, responder, or (stack alone)
    /// livelock-sink: a udp-sink that counts what arrives and what the application gets under more
    /// load than it can take
    #[arg(short = 'f', value_name = "WORKLOAD")]
    workload: String,
    /// Whom to talk to [default port: 7007 for requests, 7009 for streams]
    #[arg(long, value_name = "IP[:PORT]")]
    to: Option<String>,
    /// The port to serve [default: 7009]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Bytes of a datagram's payload, a write or a request [default: 8 (UDP), 1460 (TCP), 1
    /// (requests)]
    #[arg(short = 'l', value_name = "SIZE", default_value_t = 0, hide_default_value = true)]
    size: u32,
    /// TCP: bytes of the send buffer of a stream, and of the receive buffer of a sink [default:
    /// stack: 262144, load: what the kernel finds good]
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    window: u32,
    /// Messages to send or receive; 0: no limit
    #[arg(short = 'n', value_name = "COUNT", default_value = "0")]
    count: String,
    /// Datagrams or requests a second, like 10k or 1.5M; 0: no limit
    #[arg(short = 'R', value_name = "RATE", default_value = "0")]
    rate: String,
    /// Datagrams given to the driver (stack), or to the kernel by one sendmmsg (load), at once
    #[arg(short = 'b', value_name = "BURST", default_value_t = 1)]
    burst: u32,
    /// Seconds to run, once the port is reached [default: no limit]
    #[arg(short = 'T', value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Seconds after the first message that are not measured; less than -T
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// Nanoseconds the application spends on a datagram (udp-sink, livelock-sink)
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 0)]
    app_ns: u64,
    /// tcp-sink: compare every byte with what tcp-stream sends
    #[arg(long)]
    verify: bool,
    /// Seconds to wait for the switch and for the peer
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    /// Stop when nothing came for so many seconds, once something has come
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<f64>,
    /// Print the summary as JSON, and the lines of each second to standard error
    #[arg(long)]
    pub(crate) json: bool,
}

impl TaskArgs {
    /// What was asked for; a signal ends it.
    ///
    /// # Errors
    /// Wrong options.
    pub(crate) fn task(&self) -> Result<Task, Failure> {
        let mut task = Task::new(self.workload.parse().map_err(|e| usage("-f", &e))?);
        task.to = self.to.as_deref().map(peer).transpose()?;
        task.port = self.port;
        task.size = self.size;
        task.window = self.window;
        task.count = number("-n", &self.count)?;
        task.rate = number("-R", &self.rate)?;
        task.burst = self.burst;
        task.seconds = self.seconds.map(|s| seconds("-T", s)).transpose()?;
        task.warmup = seconds("--warmup", self.warmup)?;
        task.app_ns = self.app_ns;
        task.verify = self.verify;
        task.patience = seconds("-w", self.wait)?;
        task.idle_exit = self.idle_exit.map(|s| seconds("--idle-exit", s)).transpose()?;
        task.stop = Some(process::on_signals()?);
        Ok(task)
    }
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
