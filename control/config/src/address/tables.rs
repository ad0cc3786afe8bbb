//! Tables of the configuration file besides ports: shared limits, sFlow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::amount::{Count, Rate, Time};
use super::policy::BURST;
use super::values::Values;
use super::{AddressError, LIMIT, SFLOW};

/// A limit: in bits a second, in frames a second, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitTable {
    /// Bits a second.
    pub rate: Option<u64>,
    /// Frames a second.
    pub frames: Option<u64>,
    /// Time's worth of both that may come at once.
    pub burst: Duration,
}

/// What is sampled, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SflowTable {
    /// Who receives the samples.
    pub collector: SocketAddr,
    /// One frame in this many.
    pub sampling: u32,
    /// Seconds between counters; 0: none are sent.
    pub polling: u32,
    /// The switch's address in the samples; `None`: that of the socket.
    pub agent: Option<IpAddr>,
    /// Bytes kept of each sampled frame.
    pub header: u16,
}

/// A word and the text of its value.
pub type Pair = (String, String);

impl LimitTable {
    /// From words and values.
    ///
    /// # Errors
    /// An [`AddressError`] that names the word, the value and what would do.
    pub fn new<'p>(pairs: impl IntoIterator<Item = &'p Pair>) -> Result<Self, AddressError> {
        let mut values = Values::default();
        for (key, value) in pairs {
            values.set("a limit", LIMIT.iter(), key, Some(value))?;
        }
        let limit = Self {
            rate: values.rate("rate"),
            frames: values.count("frames"),
            burst: values.time("burst").unwrap_or(BURST),
        };
        if limit.is_none() { Err(AddressError::EmptyLimit) } else { Ok(limit) }
    }

    /// True if nothing is limited.
    pub fn is_none(&self) -> bool {
        self.rate.is_none() && self.frames.is_none()
    }

    /// Its keys and values: those that would make the same limit.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let rate = self.rate.map(|n| ("rate", Rate(n).to_string()));
        let frames = self.frames.map(|n| ("frames", Count(n).to_string()));
        let burst = Some(("burst", Time(self.burst).to_string()));
        [rate, frames, burst].into_iter().flatten().collect()
    }
}

impl fmt::Display for LimitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.pairs().iter().map(|(k, v)| format!("{k}={v}")).collect();
        f.write_str(&words.join(" "))
    }
}

impl SflowTable {
    /// From words and values.
    ///
    /// # Errors
    /// An [`AddressError`] that names the word, the value and what would do.
    pub fn new<'p>(pairs: impl IntoIterator<Item = &'p Pair>) -> Result<Self, AddressError> {
        let mut values = Values::default();
        for (key, value) in pairs {
            values.set("[sflow]", SFLOW.iter(), key, Some(value))?;
        }
        Ok(Self {
            collector: values.socket("collector").ok_or(AddressError::NoCollector)?,
            sampling: values.number("sampling").unwrap_or(1000),
            polling: values.number("polling").unwrap_or(20),
            agent: values.ip("agent"),
            header: values.short("header").unwrap_or(128),
        })
    }

    /// Its words and values.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let agent = self.agent.map(|agent| ("agent", agent.to_string()));
        let rest = [
            ("collector", self.collector.to_string()),
            ("sampling", self.sampling.to_string()),
            ("polling", self.polling.to_string()),
            ("header", self.header.to_string()),
        ];
        rest.into_iter().chain(agent).collect()
    }
}
