//! What a run is asked to do.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::mac::Mac;
use crate::place::Place;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// Send.
    Tx,
    /// Receive.
    Rx,
    /// Send one frame, wait for it to come back, note the time.
    Ping,
    /// Send every received frame back to where it came from.
    Pong,
}

/// Least frame: Ethernet, IPv4, UDP and the 18 bytes the sequence check needs.
pub const MIN_SIZE: u32 = 60;
/// Largest frame (the IPv4 length field is 16 bits).
pub const MAX_SIZE: u32 = 65_535;

/// Options of a run, named after those of pkt-gen; every field has a default, see [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// `-i`: the NIC.
    pub address: Place,
    /// `-f`.
    pub function: Function,
    /// `-l`: bytes of a frame, without FCS.
    pub size: u32,
    /// `-n`: frames to send or receive; 0 for no limit.
    pub count: u64,
    /// `-T`: how long to run.
    pub seconds: Option<Duration>,
    /// `-R`: frames a second; 0 for no limit.
    pub rate: u64,
    /// `-b`: most frames of one batch.
    pub burst: u32,
    /// `-D`.
    pub dst_mac: Mac,
    /// `-S`; left as it is, an e1000 sends from its own address.
    pub src_mac: Mac,
    /// `-d`: destination addresses, which the prefilled frames walk through.
    pub dst_ip: RangeInclusive<Ipv4Addr>,
    /// `-s`: source addresses.
    pub src_ip: RangeInclusive<Ipv4Addr>,
    /// Destination UDP ports.
    pub dst_port: RangeInclusive<u16>,
    /// Source UDP ports.
    pub src_port: RangeInclusive<u16>,
    /// Tx: number the frames and sum them up (then the body is touched for each frame). Always so for ping.
    pub sequence: bool,
    /// Rx: check numbers and sums of such frames.
    pub verify: bool,
    /// Tx: leave the UDP checksum to the device (with feature CSUM; otherwise it is zero, "none").
    pub offload_checksum: bool,
    /// Rx, ping, pong: send one frame first, so that the switch learns where we are.
    pub announce: bool,
    /// How long to poll before sleeping on the interrupt; zero is allowed.
    pub spin: Duration,
    /// Time between two [`super::Report::Interval`]s.
    pub report_every: Duration,
    /// Stop when nothing came for so long, once something has come.
    pub idle_exit: Option<Duration>,
    /// How long to wait for the back end, at the start and after it died.
    pub patience: Duration,
    /// Set it to end the run early; looked at about every 100 ms at the least.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Options that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Frame size.
    #[error("a frame of {0} bytes cannot be built: use {MIN_SIZE} to {MAX_SIZE}")]
    Size(u32),
    /// Batch size.
    #[error("a burst of 0 frames sends nothing: use 1 or more")]
    Burst,
    /// Name of a function.
    #[error(
        "'{0}' is no function: use tx, rx, ping or pong (txseq and rxseq number and check the frames)"
    )]
    Function(String),
    /// An empty range.
    #[error("the range of {0} is empty: write the smaller end first")]
    Range(&'static str),
}

impl Options {
    /// The defaults: 60 bytes to broadcast, no limits, bursts of 256, 20 us of polling, one report a second.
    #[must_use]
    pub fn new(address: Place, function: Function) -> Self {
        let one = |a, b, c, d| Ipv4Addr::new(a, b, c, d)..=Ipv4Addr::new(a, b, c, d);
        Self {
            address,
            function,
            size: 60,
            count: 0,
            seconds: None,
            rate: 0,
            burst: 256,
            dst_mac: Mac([0xff; 6]),
            src_mac: Self::default_mac(),
            dst_ip: one(10, 1, 0, 1),
            src_ip: one(10, 0, 0, 1),
            dst_port: 1234..=1234,
            src_port: 1234..=1234,
            sequence: false,
            verify: false,
            offload_checksum: false,
            announce: function != Function::Tx,
            spin: Duration::from_micros(20),
            report_every: Duration::from_secs(1),
            idle_exit: None,
            patience: Duration::from_secs(10),
            stop: None,
        }
    }

    /// A source address of this process's own.
    pub(super) fn default_mac() -> Mac {
        let [_, _, a, b] = std::process::id().to_be_bytes();
        Mac([0x02, 0x76, 0x6d, 0x00, a, b])
    }

    /// Sets the function by its pkt-gen name; `txseq` and `rxseq` also switch numbering and checking on.
    ///
    /// # Errors
    /// [`OptionsError::Function`].
    pub fn set_function(&mut self, name: &str) -> Result<(), OptionsError> {
        let seq = name.strip_suffix("seq");
        self.function = seq.unwrap_or(name).parse()?;
        match (seq, self.function) {
            (None, _) => {}
            (Some(_), Function::Tx) => self.sequence = true,
            (Some(_), Function::Rx) => self.verify = true,
            (Some(_), _) => return Err(OptionsError::Function(name.into())),
        }
        self.announce = self.function != Function::Tx;
        Ok(())
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// See [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        if !(MIN_SIZE..=MAX_SIZE).contains(&self.size) {
            return Err(OptionsError::Size(self.size));
        }
        if self.burst == 0 {
            return Err(OptionsError::Burst);
        }
        let empty = [
            (self.dst_ip.is_empty(), "destination addresses"),
            (self.src_ip.is_empty(), "source addresses"),
            (self.dst_port.is_empty(), "destination ports"),
            (self.src_port.is_empty(), "source ports"),
        ];
        match empty.iter().find(|(empty, _)| *empty) {
            Some((_, name)) => Err(OptionsError::Range(name)),
            None => Ok(()),
        }
    }

    /// Does this function send frames of `size`?
    pub(super) fn sends(&self) -> bool {
        matches!(self.function, Function::Tx | Function::Ping)
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

impl FromStr for Function {
    type Err = OptionsError;

    fn from_str(name: &str) -> Result<Self, OptionsError> {
        match name {
            "tx" => Ok(Self::Tx),
            "rx" => Ok(Self::Rx),
            "ping" => Ok(Self::Ping),
            "pong" => Ok(Self::Pong),
            other => Err(OptionsError::Function(other.into())),
        }
    }
}
