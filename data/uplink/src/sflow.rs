//! sFlow version 5: samples of frames, and interface counters, sent to a collector by UDP.
//!
//! ```text
//!  workers ── Source: a fixed-size record ──► [ 1024 records ] ── swapped for an empty one ──┐
//!                                                                        UDP ◄── thread ◄──┘
//! ```
//!
//! A worker holds the queue's lock for one copy of at most 128 bytes and never waits for it: a
//! sample that finds it taken for too long, or full, is lost, counted, and told to the collector.
//! The thread sleeps until there is a sample, or counters are due; a collector that is not there
//! costs nothing but a count.
//!
//! Interface number (ifIndex) n is the switch's port n-1. In is what comes from the port into the
//! switch.

mod encode;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlan_frame::{HEAD, Port, Sample, Sampler, Sampling};

use crate::thread_control::{lock, try_lock};
use encode::{Agent, Datagram};

const QUEUE: usize = 1024; // Samples that wait for the thread, at most.

/// How long samples may gather before they are sent together. The specification wants them sent
/// within a second.
const GATHER: Duration = Duration::from_millis(100);

/// Without an error for so long the collector is there again. A refusal is told by the kernel at
/// the datagram after the one that was refused, and once for several, so that of those to nobody
/// many seem to have been sent.
const QUIET: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the datagrams go.
    pub collector: SocketAddr,
    /// Who they say they are from; `None`: the address they are sent from.
    pub agent: Option<IpAddr>,
    /// One frame of so many is sampled, on average; at least 1.
    pub sampling: u32,
    /// How often each port's counters are sent; `None`: never.
    pub polling: Option<Duration>,
    /// Bytes of a sampled frame that are sent, at most [`HEAD`].
    pub header: usize,
}

/// What an export has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub samples: u64,
    /// Samples that found the queue full or taken.
    pub lost: u64,
    pub datagrams: u64,
    /// Datagrams that could not be sent, or were refused.
    pub failed: u64,
}

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SflowError {
    #[error("cannot open a UDP socket for it")]
    Socket(#[source] io::Error),
    #[error("cannot start a thread for it")]
    Thread(#[source] io::Error),
}

/// A sample as it waits: the numbers of a `flow_sample` and the frame's first bytes.
#[derive(Clone, Copy, Debug)]
struct Record {
    interface: u32,
    rate: u32,
    sequence: u32,
    pool: u32,
    drops: u32,
    output: u32,
    vlan: u32,
    priority: u32,
    frame_len: u32,
    head_len: usize,
    head: [u8; HEAD],
}

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<Record>,
    stop: bool,
}

/// Where workers put their samples.
#[derive(Debug)]
struct Queue {
    waiting: Mutex<Waiting>,
    ready: Condvar,
    header: usize,
    sampled: AtomicU64,
    lost: AtomicU64,
}

/// A port's samples: an sFlow data source (its `sFlowDataSource` is the interface).
#[derive(Debug)]
struct Source {
    queue: Arc<Queue>,
    interface: u32,
    rate: u32,
    samples: AtomicU32,
    lost: AtomicU32,
}

/// A port whose counters are sent.
struct Polled {
    interface: u32,
    name: String,
    port: Arc<dyn Port>,
    sequence: u32,
}

/// What thread and handle share.
struct Shared {
    config: Config,
    queue: Arc<Queue>,
    polled: Mutex<Vec<Polled>>,
    sent: AtomicU64,
    failed: AtomicU64,
    /// What is wrong with the collector, and when it was last.
    trouble: Mutex<Option<(io::ErrorKind, Instant)>>,
}

/// A running export. Ended when dropped: what was sampled has been sent then.
pub struct Sflow {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Starts to export. A collector that cannot be reached, now or later, is no error: it may come.
pub fn start(config: Config) -> Result<Sflow, SflowError> {
    let sender = Sender::new(config.collector).map_err(SflowError::Socket)?;
    let queue = Arc::new(Queue {
        waiting: Mutex::new(Waiting { records: Vec::with_capacity(QUEUE), stop: false }),
        ready: Condvar::new(),
        header: config.header.min(HEAD),
        sampled: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    });
    let shared = Arc::new(Shared {
        config,
        queue,
        polled: Mutex::default(),
        sent: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        trouble: Mutex::default(),
    });
    let served = shared.clone();
    let thread = std::thread::Builder::new()
        .name("sflow".to_owned())
        .spawn(move || Export::new(&served, sender).run())
        .map_err(SflowError::Thread)?;
    Ok(Sflow { shared, thread: Some(thread) })
}

impl Sflow {
    /// Begins with the switch's port `number`: its counters are sent from now on, and its frames
    /// sampled by what is returned. `seed` decides which.
    #[must_use]
    pub fn add(&self, number: usize, name: &str, port: Arc<dyn Port>, seed: u64) -> Arc<Sampling> {
        let interface = encode::interface(number);
        lock(&self.shared.polled).retain(|p| p.interface != interface);
        let polled = Polled { interface, name: name.to_owned(), port, sequence: 0 };
        lock(&self.shared.polled).push(polled);
        let source = Source {
            queue: self.shared.queue.clone(),
            interface,
            rate: self.shared.config.sampling,
            samples: AtomicU32::new(0),
            lost: AtomicU32::new(0),
        };
        Arc::new(Sampling::new(self.shared.config.sampling, seed, Arc::new(source)))
    }

    /// Sends counters of the ports `numbers` only.
    pub fn keep(&self, numbers: &[usize]) {
        let keep: Vec<_> = numbers.iter().map(|n| encode::interface(*n)).collect();
        lock(&self.shared.polled).retain(|p| keep.contains(&p.interface));
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        let (shared, read) = (&self.shared, |n: &AtomicU64| n.load(Ordering::Relaxed));
        Counts {
            samples: read(&shared.queue.sampled),
            lost: read(&shared.queue.lost),
            datagrams: read(&shared.sent),
            failed: read(&shared.failed),
        }
    }

    /// What is wrong with the collector.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.shared.trouble).map(|(kind, _)| io::Error::from(kind).to_string())
    }

    /// Sends what waits and ends the thread.
    pub fn close(&mut self) {
        lock(&self.shared.queue.waiting).stop = true;
        self.shared.queue.ready.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been reported by the runtime.
            let _ = thread.join();
        }
    }
}

impl Drop for Sflow {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sampler for Source {
    fn sample(&self, sample: &Sample<'_>) {
        if self.put(sample).is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.queue.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Source {
    /// `None`: lost.
    fn put(&self, sample: &Sample<'_>) -> Option<()> {
        let mut waiting = try_lock(&self.queue.waiting)?;
        let before = waiting.records.len();
        if before >= QUEUE || waiting.stop {
            return None;
        }
        let sequence = self.samples.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut head = [0; HEAD];
        let head_len = sample.head.len().min(self.queue.header);
        head.get_mut(..head_len)?.copy_from_slice(sample.head.get(..head_len)?);
        let (vlan, priority) = encode::vlan(sample);
        waiting.records.push(Record {
            interface: self.interface,
            rate: self.rate,
            sequence,
            pool: encode::low(sample.number),
            drops: self.lost.load(Ordering::Relaxed),
            output: encode::output(sample.fate),
            vlan,
            priority,
            frame_len: encode::length(sample.len),
            head_len,
            head,
        });
        drop(waiting);
        self.queue.sampled.fetch_add(1, Ordering::Relaxed);
        // The thread sleeps in one of two ways, and each begins where its condition held.
        if before == 0 || before + 1 == QUEUE / 2 {
            self.queue.ready.notify_one();
        }
        Some(())
    }
}

/// The thread's own side.
struct Export<'s> {
    shared: &'s Shared,
    sender: Sender,
    start: Instant,
    /// When counters are due.
    poll: Option<Instant>,
    sequence: u32,
    datagram: Datagram,
    sample: Vec<u8>,
}

impl<'s> Export<'s> {
    fn new(shared: &'s Shared, sender: Sender) -> Self {
        let start = Instant::now();
        let poll = shared.config.polling.map(|period| start + period);
        let (datagram, sample) = (Datagram::new(), Vec::with_capacity(encode::DATAGRAM));
        Self { shared, sender, start, poll, sequence: 0, datagram, sample }
    }

    fn run(mut self) {
        vmlan_sandbox::enter(vmlan_sandbox::Thread::Sflow);
        let mut records = Vec::with_capacity(QUEUE);
        loop {
            let stop = self.gather(&mut records);
            let counters = self.poll_due();
            self.export(&records, counters);
            records.clear();
            if stop {
                return;
            }
        }
    }

    /// Sleeps until there are samples (and for more of them) or counters are due; takes the
    /// samples. True if it is to end.
    fn gather(&self, records: &mut Vec<Record>) -> bool {
        let queue = &self.shared.queue;
        let mut waiting = lock(&queue.waiting);
        let idle = |w: &mut Waiting| w.records.is_empty() && !w.stop;
        waiting = match self.poll {
            None => queue.ready.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner),
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now());
                let waited = queue.ready.wait_timeout_while(waiting, left, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if !waiting.records.is_empty() {
            let filling = |w: &mut Waiting| w.records.len() < QUEUE / 2 && !w.stop;
            let waited = queue.ready.wait_timeout_while(waiting, GATHER, filling);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut waiting.records, records);
        waiting.stop
    }

    fn poll_due(&mut self) -> bool {
        let now = Instant::now();
        let Some((due, period)) = self.poll.zip(self.shared.config.polling) else { return false };
        if due > now {
            return false;
        }
        // A machine that slept does not catch up.
        self.poll = Some(if due + period > now { due + period } else { now + period });
        true
    }

    fn export(&mut self, records: &[Record], counters: bool) {
        for record in records {
            encode::flow_sample(&mut self.sample, record);
            self.append();
        }
        if counters {
            for polled in lock(&self.shared.polled).iter_mut() {
                polled.sequence = polled.sequence.wrapping_add(1);
                encode::counters_sample(&mut self.sample, polled);
                self.append();
            }
        }
        self.send();
    }

    /// Empties the sample into the datagram, or, if that is full, into the next.
    fn append(&mut self) {
        if !self.datagram.add(&self.sample) {
            self.send();
            self.datagram.add(&self.sample);
        }
        self.sample.clear();
    }

    fn send(&mut self) {
        if self.datagram.is_empty() {
            return;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let connected = self.sender.connect();
        let own = || self.sender.address().unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let agent = Agent {
            address: self.shared.config.agent.unwrap_or_else(own),
            sequence: self.sequence,
            uptime: encode::low(millis(self.start.elapsed())),
        };
        let bytes = self.datagram.finish(agent);
        let mut done = connected.and_then(|()| self.sender.send(bytes));
        if done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            // The one before was refused; this one has not been sent.
            self.shared.note(done.err());
            done = self.sender.send(bytes);
        }
        self.shared.note(done.err());
        self.datagram.clear();
    }
}

impl Shared {
    /// Counts, and tells trouble with the collector once, and once more when it is over.
    fn note(&self, error: Option<io::Error>) {
        let (collector, now) = (self.config.collector, Instant::now());
        let mut trouble = lock(&self.trouble);
        let Some(error) = error else {
            self.sent.fetch_add(1, Ordering::Relaxed);
            if trouble.take_if(|(_, last)| now - *last > QUIET).is_some() {
                log::info!("sflow to {collector}: again");
            }
            return;
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        // Once, also if the kinds of errors alternate.
        if trouble.is_none() {
            log::warn!("sflow to {collector}: {error}; what is sent meanwhile is lost");
        }
        *trouble = Some((error.kind(), now));
    }
}

/// The socket. Connected, so that the kernel tells when nobody is there. That fixes the address it
/// sends from, too: after an error, which may be because that has gone, it is connected anew.
struct Sender {
    socket: UdpSocket,
    collector: SocketAddr,
    connected: bool,
}

impl Sender {
    fn new(collector: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match collector {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        // A full socket buffer must not stop the thread, or samples would be lost silently.
        socket.set_nonblocking(true)?;
        let connected = socket.connect(collector).is_ok();
        Ok(Self { socket, collector, connected })
    }

    fn address(&self) -> Option<IpAddr> {
        self.socket.local_addr().ok().map(|a| a.ip())
    }

    fn connect(&mut self) -> io::Result<()> {
        if !self.connected {
            self.socket.connect(self.collector)?;
            self.connected = true;
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.socket.send(bytes);
        let stays = [io::ErrorKind::ConnectionRefused, io::ErrorKind::WouldBlock];
        if sent.as_ref().is_err_and(|e| !stays.contains(&e.kind())) {
            // A socket that is connected, and connected again, keeps its address.
            self.connected = rustix::net::connect_unspec(&self.socket).is_err();
        }
        sent.map(drop)
    }
}

fn millis(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1000) + u64::from(time.subsec_millis())
}
