//! What one port may still do: flows, and how fast it opens them.

use smoltcp::time::{Duration, Instant};

use crate::counters::Reason;

/// What is counted for each port by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Udp,
    Echo,
    Dns,
}

impl Kind {
    /// Its word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Echo => "icmp",
            Self::Dns => "dns",
        }
    }
}

/// Echo requests under way, of a port.
const ECHOES: u32 = 64;
/// Questions under way, of a port.
const QUESTIONS: u32 = 64;
/// Connections that nobody has answered yet, of a port.
const UNANSWERED: u32 = 64;

/// DHCP messages in a second, of a port: each NIC that it may have asks twice for its address.
const DHCP: u32 = 20;

/// What may be done so many times in a second, and for two seconds at once.
#[derive(Debug)]
struct Tokens {
    /// Thousandths.
    left: u64,
    filled: Instant,
}

impl Tokens {
    fn new(rate: u32, now: Instant) -> Self {
        Self { left: 2000 * u64::from(rate), filled: now }
    }

    /// Takes one. False: there is none.
    fn spend(&mut self, rate: u32, now: Instant) -> bool {
        let since = (now - self.filled).total_millis();
        let most = 2000 * u64::from(rate);
        self.left = (self.left + since.saturating_mul(rate.into())).min(most);
        // Parts of a millisecond count when they are one.
        self.filled += Duration::from_millis(since);
        let left = self.left.checked_sub(1000);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}

/// One port's share.
#[derive(Debug)]
pub(crate) struct Allowance {
    most: u32,
    rate: u32,
    open: [u32; 4],
    unanswered: u32,
    /// Bytes that may wait in its connections.
    pub(crate) buffers: usize,
    new_flows: Tokens,
    dhcp: Tokens,
}

impl Allowance {
    /// `most` TCP flows and half as many of UDP, `rate` new ones a second.
    pub(crate) fn new(most: u32, rate: u32, now: Instant) -> Self {
        let (new_flows, dhcp) = (Tokens::new(rate, now), Tokens::new(DHCP, now));
        Self { most, rate, open: [0; 4], unanswered: 0, buffers: 0, new_flows, dhcp }
    }

    /// Follows new limits.
    pub(crate) fn set(&mut self, most: u32, rate: u32) {
        (self.most, self.rate) = (most, rate);
    }

    fn slot(&mut self, kind: Kind) -> &mut u32 {
        let [tcp, udp, echo, dns] = &mut self.open;
        match kind {
            Kind::Tcp => tcp,
            Kind::Udp => udp,
            Kind::Echo => echo,
            Kind::Dns => dns,
        }
    }

    /// One more, if it may be.
    pub(crate) fn open(&mut self, kind: Kind, now: Instant) -> Result<(), Reason> {
        let most = match kind {
            Kind::Tcp => self.most,
            Kind::Udp => (self.most / 2).max(1),
            Kind::Echo => ECHOES,
            Kind::Dns => QUESTIONS,
        };
        let full = if kind == Kind::Dns { Reason::DnsRate } else { Reason::Flows };
        let waits = kind == Kind::Tcp && self.unanswered >= UNANSWERED;
        if *self.slot(kind) >= most || waits {
            return Err(full);
        }
        if !self.spend(now) {
            return Err(if kind == Kind::Dns { full } else { Reason::FlowRate });
        }
        *self.slot(kind) += 1;
        self.unanswered += u32::from(kind == Kind::Tcp);
        Ok(())
    }

    /// Takes the token of one new flow, or question. False: there is none.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        self.new_flows.spend(self.rate, now)
    }

    /// Takes the token of one DHCP message. The switch is told of leases, and a guest does not
    /// decide how often. False: there is none.
    pub(crate) fn spend_dhcp(&mut self, now: Instant) -> bool {
        self.dhcp.spend(DHCP, now)
    }

    /// A TCP flow has its answer, or ends without one.
    pub(crate) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// True while there is a flow.
    pub(crate) fn is_used(&self) -> bool {
        self.open != [0; 4]
    }

    /// One less.
    pub(crate) fn close(&mut self, kind: Kind) {
        let slot = self.slot(kind);
        *slot = slot.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_opens_too_much_or_too_fast_is_refused() {
        let mut own = Allowance::new(100, 10, Instant::ZERO);
        let at = Instant::from_millis;
        for _ in 0..20 {
            own.open(Kind::Tcp, at(0)).unwrap();
            own.answered();
        }
        assert_eq!(own.open(Kind::Tcp, at(0)), Err(Reason::FlowRate), "a burst of two seconds");
        assert_eq!(own.open(Kind::Tcp, at(100)), Ok(()), "ten a second");
        own.answered();
        assert_eq!(own.open(Kind::Tcp, at(100)), Err(Reason::FlowRate));
        let mut many = Allowance::new(70, 1000, Instant::ZERO);
        for _ in 0..64 {
            many.open(Kind::Tcp, at(0)).unwrap();
        }
        assert_eq!(many.open(Kind::Tcp, at(0)), Err(Reason::Flows), "64 that nobody answered");
        (0..64).for_each(|_| many.answered());
        for _ in 0..6 {
            many.open(Kind::Tcp, at(0)).unwrap();
            many.answered();
        }
        assert_eq!(many.open(Kind::Tcp, at(0)), Err(Reason::Flows), "70 in all");
        many.close(Kind::Tcp);
        assert_eq!(many.open(Kind::Tcp, at(0)), Ok(()));
        assert_eq!(many.open(Kind::Udp, at(0)), Ok(()), "each protocol by itself");
    }

    #[test]
    fn who_tries_all_the_time_has_its_rate() {
        let mut own = Allowance::new(100, 10, Instant::ZERO);
        let opened = (0..20_000).filter(|half| own.spend(Instant::from_micros(half * 500))).count();
        assert_eq!(opened, 20 + 99, "a burst, and ten a second but for the last half millisecond");
    }
}
