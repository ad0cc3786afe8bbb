//! `vmlan pkt-gen`: a guest on a port, with the options users of netmap's pkt-gen know.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use vmlan_driver::Place;
use vmlan_driver::pktgen::{self, Function, Mac, Options};

use crate::cli::{print, print_json};
use crate::exit::{Failure, chain};

/// Arguments of `vmlan pkt-gen`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example (two shells, after `vmlan switch a=vhost-user:/tmp/a.sock b=vhost-user:/tmp/b.sock`):\n  \
    vmlan pkt-gen -i vhost-user:/tmp/b.sock -f rx -s 52:54:00:00:00:0b\n  \
    vmlan pkt-gen -i vhost-user:/tmp/a.sock -f tx -d 52:54:00:00:00:0b -l 60 -T 5\n\n\
    Seen from the other side of vhost-user: this plays the VMM and the guest's driver. Further keys of the \
    address: queues=, size=, server=on, and virtio features such as event_idx=off, mrg=off, csum=on.\n\n\
    On an e1000's port (vfio-user:PATH) its keys are writes=waited|posted, doorbell=auto|trapped|mapped, \
    interrupts=always|idle, size=, batch=on, itr=, tidv=, tadv=, rdtr=, radv= (the registers' units) and more."
)]
pub(crate) struct PktGenArgs {
    /// The port, seen from the guest: vhost-user:PATH or vfio-user:PATH[,KEY=VALUE...]
    #[arg(short = 'i', value_name = "ADDRESS")]
    address: String,
    /// What to do: tx, rx, ping or pong (txseq numbers the frames, rxseq checks them)
    #[arg(short = 'f', value_name = "FUNCTION")]
    function: String,
    /// Bytes of a frame, without FCS
    #[arg(short = 'l', value_name = "SIZE", default_value_t = 60)]
    size: u32,
    /// Frames to send or receive; 0: no limit
    #[arg(short = 'n', value_name = "COUNT", default_value = "0")]
    count: String,
    /// Frames a second, like 10k or 1.5M; 0: no limit
    #[arg(short = 'R', value_name = "RATE", default_value = "0")]
    rate: String,
    /// Most frames of one batch
    #[arg(short = 'b', value_name = "BURST", default_value_t = 256)]
    burst: u32,
    /// Destination MAC address [default: broadcast]
    #[arg(short = 'd', short_alias = 'D', value_name = "MAC")]
    dst_mac: Option<String>,
    /// Source MAC address
    #[arg(short = 's', short_alias = 'S', value_name = "MAC")]
    src_mac: Option<String>,
    /// Seconds to run [default: no limit]
    #[arg(short = 'T', value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Destination IPv4 address, or a range A-B that the frames walk through
    #[arg(long, value_name = "IP[-IP]")]
    dst_ip: Option<String>,
    /// Source IPv4 address, or a range
    #[arg(long, value_name = "IP[-IP]")]
    src_ip: Option<String>,
    /// Destination UDP port, or a range
    #[arg(long, value_name = "PORT[-PORT]")]
    dst_port: Option<String>,
    /// Source UDP port, or a range
    #[arg(long, value_name = "PORT[-PORT]")]
    src_port: Option<String>,
    /// Microseconds to poll before sleeping on the interrupt
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 20)]
    spin: u32,
    /// Seconds to wait for the switch, at the start and if it goes away
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    /// Stop when nothing came for so many seconds, once something has come
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<f64>,
    /// Leave the UDP checksum to the device (with csum=on in the address)
    #[arg(long)]
    offload_checksum: bool,
    /// Print the summary as JSON, and the lines of each second to standard error
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Wrong options, or the port cannot be reached.
pub(crate) fn run(args: &PktGenArgs) -> Result<(), Failure> {
    let mut options = options(args)?;
    options.check().map_err(|e| Failure::Usage(e.to_string()))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
    }
    options.stop = Some(stop);
    let summary = pktgen::run(&options, &mut |report| {
        // A reader that went away must not end the run.
        if args.json {
            eprintln!("{report}");
        } else {
            let _ = print(&format!("{report}\n"));
        }
    });
    let summary =
        summary.map_err(|e| Failure::Failed(format!("{}: {}", args.address, chain(&e))))?;
    if args.json { print_json(&summary) } else { print(&format!("{summary}\n")) }
}

fn options(args: &PktGenArgs) -> Result<Options, Failure> {
    let address: Place = args.address.parse().map_err(|e| usage("-i", &e))?;
    let mut options = Options::new(address, Function::Tx);
    options.set_function(&args.function).map_err(|e| usage("-f", &e))?;
    options.size = args.size;
    options.count = number("-n", &args.count)?;
    options.rate = number("-R", &args.rate)?;
    options.burst = args.burst;
    options.spin = Duration::from_micros(args.spin.into());
    options.patience = seconds("-w", args.wait)?;
    options.seconds = args.seconds.map(|s| seconds("-T", s)).transpose()?;
    options.idle_exit = args.idle_exit.map(|s| seconds("--idle-exit", s)).transpose()?;
    options.offload_checksum = args.offload_checksum;
    if let Some(text) = &args.dst_mac {
        options.dst_mac = text.parse::<Mac>().map_err(|e| usage("-d", &e))?;
    }
    if let Some(text) = &args.src_mac {
        options.src_mac = text.parse::<Mac>().map_err(|e| usage("-s", &e))?;
    }
    range::<Ipv4Addr>("--dst-ip", args.dst_ip.as_deref(), &mut options.dst_ip)?;
    range::<Ipv4Addr>("--src-ip", args.src_ip.as_deref(), &mut options.src_ip)?;
    range("--dst-port", args.dst_port.as_deref(), &mut options.dst_port)?;
    range("--src-port", args.src_port.as_deref(), &mut options.src_port)?;
    Ok(options)
}

fn usage(flag: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{flag}: {error}"))
}

fn seconds(flag: &str, value: f64) -> Result<Duration, Failure> {
    let wrong = |_| usage(flag, &format!("{value} is no time: write seconds like 5 or 0.5"));
    Duration::try_from_secs_f64(value).map_err(wrong)
}

/// `250`, `10k`, `1.5M`, `1G`
fn number(flag: &str, text: &str) -> Result<u64, Failure> {
    let wrong = || usage(flag, &format!("'{text}' is no number: write one like 1000, 10k or 1.5M"));
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => return text.parse().map_err(|_| wrong()),
    };
    let n = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    if !(0.0..=1e18).contains(&n) {
        return Err(wrong());
    }
    // Checked to fit above; a fraction of a frame is of no use.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    {
        Ok(n as u64)
    }
}

fn range<T: FromStr + Copy>(
    flag: &str,
    text: Option<&str>,
    to: &mut RangeInclusive<T>,
) -> Result<(), Failure> {
    let Some(text) = text else { return Ok(()) };
    let wrong = || usage(flag, &format!("'{text}' is neither one value nor a range FIRST-LAST"));
    let one = |t: &str| t.parse::<T>().map_err(|_| wrong());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    *to = one(first)?..=one(last)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{number, range};

    #[test]
    fn numbers_take_units_and_nonsense_is_refused() {
        assert_eq!(number("-R", "0"), Ok(0));
        assert_eq!(number("-R", "10k"), Ok(10_000));
        assert_eq!(number("-R", "1.5M"), Ok(1_500_000));
        for bad in ["", "k", "-1", "1x", "1e400M", "nanM", "1.5"] {
            assert!(number("-R", bad).is_err(), "{bad}");
        }
        let mut ports = 1..=1u16;
        range("--dst-port", Some("5-9"), &mut ports).unwrap();
        assert_eq!(ports, 5..=9);
        assert!(range("--dst-port", Some("5-99999"), &mut ports).is_err());
    }
}
