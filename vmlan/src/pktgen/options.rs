//! From words to options.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use vmlan_tools::pktgen::{Capture, Function, Options};
use vmlan_transport::{Address, Mac};

use super::PktGenArgs;
use crate::exit::Failure;
use vmlan_frame::error_chain;

/// Silence after which -W ends.
const SILENCE: Duration = Duration::from_secs(1);

pub(super) fn options(args: &PktGenArgs) -> Result<Options, Failure> {
    let address: Address = args.address.parse().map_err(|e| usage("-i", &e))?;
    let mut options = Options::new(address, Function::Tx);
    options.set_function(&args.function).map_err(|e| usage("-f", &e))?;
    (options.least_size, options.size) = sizes(&args.size)?;
    options.count = number("-n", &args.count)?;
    options.rate = number("-R", &args.rate)?;
    options.burst = args.burst;
    (options.threads, options.cpu, options.cpus) = (args.threads, args.cpu, args.cpus);
    (options.random_src, options.random_dst) = (args.random_src, args.random_dst);
    options.offload_checksum = args.offload_checksum;
    times(args, &mut options)?;
    ends(args, &mut options)?;
    replay(args, &mut options)?;
    Ok(options)
}

fn times(args: &PktGenArgs, options: &mut Options) -> Result<(), Failure> {
    options.spin = Duration::from_micros(args.spin.into());
    options.report_every = Duration::from_millis(args.report.max(1).into());
    options.patience = seconds("-w", args.wait)?;
    options.seconds = args.seconds.map(|s| seconds("-T", s)).transpose()?;
    let silence = args.idle_exit.map(|s| seconds("--idle-exit", s)).transpose()?;
    options.idle_exit = silence.or(args.quit.then_some(SILENCE));
    Ok(())
}

/// Longest frame that every NIC sends in one piece: jumbo payload, Ethernet header, two VLAN tags.
const MAX_FRAME: usize = 9216 + 14 + 8;

/// The smaller one, if there are two, and the larger one.
fn sizes(given: &[u32]) -> Result<(Option<u32>, u32), Failure> {
    match *given {
        [] => Ok((None, 60)),
        [size] => Ok((None, size)),
        [a, b] => Ok((Some(a.min(b)), a.max(b))),
        _ => Err(Failure::Usage("-l: write one size, or two for any between them".into())),
    }
}

fn ends(args: &PktGenArgs, options: &mut Options) -> Result<(), Failure> {
    let mut macs = [args.dst_mac.as_deref(), args.src_mac.as_deref()];
    let (dst, src) = macs.split_at_mut(1);
    let (ips, ports) = (&mut options.dst_ip, &mut options.dst_port);
    args.dst.iter().try_for_each(|text| end("-d", text, &mut dst[0], ips, ports))?;
    let (ips, ports) = (&mut options.src_ip, &mut options.src_port);
    args.src.iter().try_for_each(|text| end("-s", text, &mut src[0], ips, ports))?;
    let mac = |flag: &str, text: &str| text.parse::<Mac>().map_err(|e| usage(flag, &e));
    let [dst, src] = macs;
    if let Some(text) = dst {
        options.dst_mac = mac("-D", text)?;
    }
    if let Some(text) = src {
        options.src_mac = mac("-S", text)?;
    }
    range::<Ipv4Addr>("--dst-ip", args.dst_ip.as_deref(), &mut options.dst_ip)?;
    range::<Ipv4Addr>("--src-ip", args.src_ip.as_deref(), &mut options.src_ip)?;
    range("--dst-port", args.dst_port.as_deref(), &mut options.dst_port)?;
    range("--src-port", args.src_port.as_deref(), &mut options.src_port)
}

/// `-d` and `-s`: a MAC address, or IP[:PORT][-IP[:PORT]] as pkt-gen has it.
fn end<'a>(
    flag: &str,
    text: &'a str,
    mac: &mut Option<&'a str>,
    ips: &mut RangeInclusive<Ipv4Addr>,
    ports: &mut RangeInclusive<u16>,
) -> Result<(), Failure> {
    if text.parse::<Mac>().is_ok() {
        if mac.replace(text).is_some() {
            return Err(Failure::Usage(format!("{flag} {text}: a MAC address is given twice")));
        }
        return Ok(());
    }
    let wrong = || {
        let wanted = "neither a MAC address nor IP[:PORT] nor a range IP:PORT-IP:PORT";
        Failure::Usage(format!("{flag}: '{text}' is {wanted}"))
    };
    let one = |part: &str| {
        let (ip, port) = part.split_once(':').map_or((part, None), |(ip, port)| (ip, Some(port)));
        let port = port.map(str::parse::<u16>).transpose().ok()?;
        Some((ip.parse::<Ipv4Addr>().ok()?, port))
    };
    let (first, last) = match text.split_once('-') {
        None => (one(text), one(text)),
        Some((first, last)) => (one(first), one(last)),
    };
    let (Some(first), Some(last)) = (first, last) else { return Err(wrong()) };
    *ips = first.0..=last.0;
    if let Some(port) = first.1.or(last.1) {
        *ports = port..=last.1.unwrap_or(port);
    }
    Ok(())
}

fn replay(args: &PktGenArgs, options: &mut Options) -> Result<(), Failure> {
    let Some(path) = &args.replay else { return Ok(()) };
    let wrong = |why: &str| Failure::Failed(format!("-P {}: {why}", path.display()));
    let capture = Capture::open(path).map_err(|e| wrong(&error_chain(&e)))?;
    let longest = capture.longest();
    if usize::try_from(longest).is_ok_and(|longest| longest > MAX_FRAME) {
        let many = "more than a NIC sends";
        return Err(wrong(&format!("a frame has {longest} bytes, {many} ({MAX_FRAME})")));
    }
    if capture.snapped() > 0 {
        let (cut, all) = (capture.snapped(), capture.len());
        eprintln!("note: {cut} of {all} frames are there only in part, and are sent so");
    }
    if let Some(laps) = args.laps {
        options.count = laps.saturating_mul(capture.len() as u64).max(1);
    }
    options.recorded_timing = args.recorded_timing;
    options.replay = Some(Arc::new(capture));
    Ok(())
}

pub(crate) fn usage(flag: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{flag}: {error}"))
}

pub(crate) fn seconds(flag: &str, value: f64) -> Result<Duration, Failure> {
    let wrong = |_| usage(flag, &format!("{value} is not a time: write seconds like 5 or 0.5"));
    Duration::try_from_secs_f64(value).map_err(wrong)
}

/// `250`, `10k`, `1.5M`, `1G`
pub(crate) fn number(flag: &str, text: &str) -> Result<u64, Failure> {
    let wrong =
        || usage(flag, &format!("'{text}' is not a number: write one like 1000, 10k or 1.5M"));
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

pub(super) fn range<T: FromStr + Copy>(
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
