//! What a run is asked to do.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::capture::Capture;
use vmlan_transport::Address;
use vmlan_transport::Mac;
use vmlan_transport::numbers::narrow32;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Function {
    Tx,
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
    pub address: Address,
    /// `-f`.
    pub function: Function,
    /// `-l`: bytes of a frame, without FCS.
    pub size: u32,
    /// A second `-l`: sizes are drawn from here to `size`, one for each slot of the ring.
    pub least_size: Option<u32>,
    /// `-n`: frames to send or receive, of all threads together; 0 for no limit.
    pub count: u64,
    /// `-T`: how long to run.
    pub seconds: Option<Duration>,
    /// `-R`: frames a second, of all threads together; 0 for no limit. A ping then does not wait
    /// for the answer to the one before.
    pub rate: u64,
    /// `-b`: most frames of one batch.
    pub burst: u32,
    /// `-D`.
    pub dst_mac: Mac,
    /// `-S`; by default an e1000 sends from its own address.
    pub src_mac: Mac,
    /// `-d`: destination addresses, which the prefilled frames walk through.
    pub dst_ip: RangeInclusive<Ipv4Addr>,
    /// `-s`: source addresses.
    pub src_ip: RangeInclusive<Ipv4Addr>,
    /// Destination UDP ports.
    pub dst_port: RangeInclusive<u16>,
    /// Source UDP ports.
    pub src_port: RangeInclusive<u16>,
    /// `-z`: random source address and port, of the ranges if those are given.
    pub random_src: bool,
    /// `-Z`: random destination address and port.
    pub random_dst: bool,
    /// `-p`: threads, each with queue pairs of its own. More than one only on a virtio-net NIC.
    pub threads: u16,
    /// `-a`: the processor of the first thread; the others follow it.
    pub cpu: Option<u16>,
    /// `-c`: the processors from 0 on that the threads go round.
    pub cpus: Option<u16>,
    /// `-P`: tx: frames to send, again and again, instead of built ones.
    pub replay: Option<Arc<Capture>>,
    /// Replay at the times that were recorded.
    pub recorded_timing: bool,
    /// Tx: number the frames and sum them up (then the body is touched for each frame). Always so
    /// for ping.
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
#[allow(missing_docs, reason = "the messages say it")]
pub enum OptionsError {
    #[error("-l: a frame of {0} bytes cannot be built: use {MIN_SIZE} to {MAX_SIZE}")]
    Size(u32),
    #[error("a frame of {size} bytes does not fit the NIC's buffers of {room}: use a smaller -l")]
    Room { size: u32, room: usize },
    #[error(
        "-p {threads}: each thread needs a queue pair of its own, and the NIC has {lanes}: add \
         queues={threads} to its address, or use -p {lanes}"
    )]
    Lanes { threads: u16, lanes: usize },
    #[error(
        "-p {0}: each thread needs a queue pair of its own, and an e1000 has one: use -p 1, or a \
         virtio port"
    )]
    OneLane(u16),
    #[error("-p 0: nobody would do the work: use 1 or more")]
    Threads,
    #[error("{0} and {1} contradict each other: {2}")]
    Contradiction(&'static str, &'static str, &'static str),
    #[error("-a {cpu}: -c allows the processors 0 to {last}: choose one of these")]
    Cpu { cpu: u16, last: u16 },
    #[error("-b 0: a burst of no frames sends nothing: use 1 or more")]
    Burst,
    #[error(
        "'{0}' is not a function: use tx, rx, ping or pong (txseq and rxseq number and check the \
         frames)"
    )]
    Function(String),
    #[error("the range of {0} is empty: write the smaller end first")]
    Range(&'static str),
}

impl Options {
    /// The defaults: 60 bytes to broadcast, no limits, bursts of 256, 20 us of polling, one report
    /// a second.
    pub fn new(address: Address, function: Function) -> Self {
        let one = |a, b, c, d| Ipv4Addr::new(a, b, c, d)..=Ipv4Addr::new(a, b, c, d);
        Self {
            address,
            function,
            size: 60,
            least_size: None,
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
            random_src: false,
            random_dst: false,
            threads: 1,
            cpu: None,
            cpus: None,
            replay: None,
            recorded_timing: false,
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

    /// Sets the function by its pkt-gen name; `txseq` and `rxseq` also switch numbering and
    /// checking on.
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

    /// Checks what can be checked without a NIC.
    pub fn check(&self) -> Result<(), OptionsError> {
        let sizes = [Some(self.size), self.least_size];
        let wrong = |size: &u32| !(MIN_SIZE..=MAX_SIZE).contains(size);
        if let Some(size) = sizes.into_iter().flatten().find(wrong) {
            return Err(OptionsError::Size(size));
        }
        if self.burst == 0 {
            return Err(OptionsError::Burst);
        }
        self.check_ranges()?;
        self.check_threads()?;
        self.check_replay()
    }

    fn check_ranges(&self) -> Result<(), OptionsError> {
        let empty = [
            (self.dst_ip.is_empty(), "destination addresses"),
            (self.src_ip.is_empty(), "source addresses"),
            (self.dst_port.is_empty(), "destination ports"),
            (self.src_port.is_empty(), "source ports"),
            (self.least_size.is_some_and(|least| least > self.size), "sizes"),
        ];
        match empty.iter().find(|(empty, _)| *empty) {
            Some((_, name)) => Err(OptionsError::Range(name)),
            None => Ok(()),
        }
    }

    fn check_threads(&self) -> Result<(), OptionsError> {
        if self.threads == 0 {
            return Err(OptionsError::Threads);
        }
        if self.threads > 1 && self.function == Function::Ping {
            let why = "answers come to any queue pair, and one thread has to look at them all";
            return Err(OptionsError::Contradiction("-f ping", "-p", why));
        }
        if self.rate > 0 && self.rate < self.threads.into() {
            let why = "each thread sends one frame a second at the least";
            return Err(OptionsError::Contradiction("-R", "-p", why));
        }
        match (self.cpu, &self.address) {
            (Some(cpu), _) if self.cpus.is_some_and(|cpus| cpu >= cpus) => {
                let last = self.cpus.unwrap_or(1).saturating_sub(1);
                Err(OptionsError::Cpu { cpu, last })
            }
            (_, Address::VhostUser(address)) if self.threads > address.queues => {
                Err(OptionsError::Lanes { threads: self.threads, lanes: address.queues.into() })
            }
            (_, Address::VhostUser(_)) => Ok(()),
            _ if self.threads > 1 => Err(OptionsError::OneLane(self.threads)),
            _ => Ok(()),
        }
    }

    fn check_replay(&self) -> Result<(), OptionsError> {
        let clash = |with: bool, name, why| {
            if with { Err(OptionsError::Contradiction("-P", name, why)) } else { Ok(()) }
        };
        if self.replay.is_none() {
            return if self.recorded_timing {
                let why = "only frames of a capture have recorded times";
                Err(OptionsError::Contradiction("--recorded-timing", "built frames", why))
            } else {
                Ok(())
            };
        }
        let function = match self.function {
            Function::Tx => "",
            Function::Rx => "-f rx",
            Function::Ping => "-f ping",
            Function::Pong => "-f pong",
        };
        clash(!function.is_empty(), function, "a capture is sent by -f tx")?;
        clash(self.sequence, "-f txseq", "recorded frames are not numbered")?;
        clash(self.threads > 1, "-p", "one thread keeps the recorded order")?;
        clash(self.offload_checksum, "--offload-checksum", "recorded frames are sent as they are")?;
        clash(self.least_size.is_some(), "two -l", "recorded frames have their size")?;
        let paced = self.recorded_timing && self.rate > 0;
        clash(paced, "-R", "with --recorded-timing the capture says when")
    }

    /// Bytes of the longest frame it builds or replays; None for what sends none of its own.
    pub(super) fn largest(&self) -> Option<u32> {
        match &self.replay {
            Some(capture) => Some(capture.longest()),
            None => self.sends().then_some(self.size),
        }
    }

    /// The processor of a thread.
    pub(super) fn cpu_of(&self, thread: u16) -> Option<u16> {
        let cpu = self.cpu?.saturating_add(thread);
        Some(self.cpus.map_or(cpu, |cpus| cpu % cpus.max(1)))
    }

    /// The size of the frame in the `n`th slot of the run.
    pub(super) fn size_of(&self, n: u64) -> u32 {
        let Some(least) = self.least_size else { return self.size };
        let span = u64::from(self.size - least) + 1;
        least + narrow32(super::frame::chance(n, 3) % span)
    }

    /// Must each frame get its addresses when it is sent? Not if the frames in the slots cover the
    /// whole range.
    pub(super) fn varies(&self, slots: u64) -> bool {
        let ips = |range: &RangeInclusive<Ipv4Addr>| {
            u64::from(u32::from(*range.end()) - u32::from(*range.start()))
        };
        let ports = |range: &RangeInclusive<u16>| u64::from(range.end() - range.start());
        let spans =
            [ips(&self.src_ip), ips(&self.dst_ip), ports(&self.src_port), ports(&self.dst_port)];
        self.random_src || self.random_dst || spans.iter().any(|span| *span >= slots)
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
