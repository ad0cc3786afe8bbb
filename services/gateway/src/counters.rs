//! What a gateway counts, and the reasons for which it refuses.

use std::collections::BTreeMap;

use vmlan_config::gateway::GatewayCounters;

/// Why something was refused or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Headers contradict themselves, or a checksum is wrong.
    Malformed,
    /// A kind of frame that a gateway has nothing to do with.
    Unknown,
    /// Parts of a packet that contradict each other, or are for a group.
    Fragment,
    /// Its source is not an address of the LAN.
    Foreign,
    /// To the loopback, or another address of the host that is not open.
    Host,
    /// To addresses that are always closed, or closed by `block`.
    Blocked,
    /// Its VM has as many flows as it may have.
    Flows,
    /// Its VM opens flows too fast.
    FlowRate,
    /// There are as many flows as there may be.
    TotalFlows,
    /// There is as much memory in use for connections as there may be.
    TotalMemory,
    /// No socket was to be had.
    NoSocket,
    /// The host's users may not send echo requests.
    NoPing,
    /// The server refused, or cannot be reached.
    Unreachable,
    /// A segment of a connection that is not there.
    NoFlow,
    /// The port has as many NICs as it may have.
    Macs,
    /// The port has as many IPv6 addresses as it may have.
    Addresses,
    /// An IPv6 address that another port has.
    Taken,
    /// A DHCP message that lies about its sender, or asks for what is another's.
    DhcpRefused,
    /// No address is left to give.
    DhcpExhausted,
    /// Its VM asks for addresses too often.
    DhcpRate,
    /// A DNS message that is none.
    DnsMalformed,
    /// Its VM asks too much.
    DnsRate,
    /// An answer that nobody asked for, or that answers something else.
    DnsForeign,
    /// No server answered.
    DnsUnanswered,
}

impl Reason {
    /// Its word in statistics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unknown => "unknown-protocol",
            Self::Fragment => "fragment",
            Self::Foreign => "foreign-source",
            Self::Host => "host-closed",
            Self::Blocked => "blocked",
            Self::Flows => "vm-flows",
            Self::FlowRate => "vm-flow-rate",
            Self::TotalFlows => "total-flows",
            Self::TotalMemory => "total-memory",
            Self::NoSocket => "no-socket",
            Self::NoPing => "no-ping-permission",
            Self::Unreachable => "unreachable",
            Self::NoFlow => "no-flow",
            Self::Macs => "vm-macs",
            Self::Addresses => "vm-addresses",
            Self::Taken => "address-taken",
            Self::DhcpRefused => "dhcp-refused",
            Self::DhcpExhausted => "dhcp-exhausted",
            Self::DhcpRate => "dhcp-rate",
            Self::DnsMalformed => "dns-malformed",
            Self::DnsRate => "dns-rate",
            Self::DnsForeign => "dns-foreign-answer",
            Self::DnsUnanswered => "dns-unanswered",
        }
    }
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    refused: BTreeMap<Reason, u64>,
    opened: BTreeMap<&'static str, u64>,
    answered: BTreeMap<&'static str, u64>,
    changed: bool,
}

impl Counters {
    pub(crate) fn refuse(&mut self, reason: Reason) {
        self.refuse_some(reason, 1);
    }

    pub(crate) fn refuse_some(&mut self, reason: Reason, count: u64) {
        if count > 0 {
            *self.refused.entry(reason).or_default() += count;
            self.changed = true;
        }
    }

    pub(crate) fn open(&mut self, protocol: &'static str) {
        *self.opened.entry(protocol).or_default() += 1;
        self.changed = true;
    }

    pub(crate) fn answer(&mut self, kind: &'static str) {
        *self.answered.entry(kind).or_default() += 1;
        self.changed = true;
    }

    /// A flow ended.
    pub(crate) fn close(&mut self) {
        self.changed = true;
    }

    /// How often something was refused for this reason.
    pub(crate) fn refused(&self, reason: Reason) -> u64 {
        self.refused.get(&reason).copied().unwrap_or(0)
    }

    /// True if there is news since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// For whoever asks, with the flows that there are.
    pub(crate) fn report(&self, flows: BTreeMap<String, u64>) -> GatewayCounters {
        let named = |map: &BTreeMap<&'static str, u64>| {
            map.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        GatewayCounters {
            flows,
            opened: named(&self.opened),
            refused: self.refused.iter().map(|(r, n)| (r.name().to_owned(), *n)).collect(),
            answered: named(&self.answered),
        }
    }
}
