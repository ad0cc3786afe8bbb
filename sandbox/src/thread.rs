//! What threads and processes are for.

use crate::calls::{
    API, CONTROL, EVENTS, EVERY, GATEWAY, Group, HOLDER, KEEPER, LOOK, PACKET, PORT, SFLOW,
    SIGNALS, SOCKETS, SPAWNER, STARTS, TAP, WORKER, XDP,
};

/// What a thread, or a process with one thread, is for. Each kind has its own list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The first thread: opens and closes ports.
    Control,
    /// Moves frames.
    Worker,
    /// Interrupts workers.
    Watchdog,
    /// Serves the socket of a VM.
    Port,
    /// Looks after a TAP device.
    Tap,
    /// Looks after an interface that a packet socket is bound to.
    Packet,
    /// Looks after an interface with XDP sockets.
    Xdp,
    /// Looks after a `stream:` port's peers.
    Stream,
    /// Writes a capture file.
    Pcap,
    /// Sends samples.
    Sflow,
    /// Serves the API.
    Api,
    /// Waits for signals.
    Signals,
    /// A process: receives and closes what strangers send.
    Keeper,
    /// A process: forks keepers.
    Spawner,
    /// A process: takes guests' packets apart and has sockets of the host.
    Gateway,
    /// A process: has descriptors for the next switch.
    Holder,
}

impl Thread {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Control,
        Self::Worker,
        Self::Watchdog,
        Self::Port,
        Self::Tap,
        Self::Packet,
        Self::Xdp,
        Self::Stream,
        Self::Pcap,
        Self::Sflow,
        Self::Api,
        Self::Signals,
        Self::Keeper,
        Self::Spawner,
        Self::Gateway,
        Self::Holder,
    ];

    /// What the log and the documentation call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Worker => "worker",
            Self::Watchdog => "watchdog",
            Self::Port => "port",
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Stream => "stream",
            Self::Pcap => "pcap",
            Self::Sflow => "sflow",
            Self::Api => "api",
            Self::Signals => "signals",
            Self::Keeper => "keeper",
            Self::Spawner => "spawner",
            Self::Gateway => "gateway",
            Self::Holder => "holder",
        }
    }

    /// True for those that are processes of their own.
    pub const fn is_process(self) -> bool {
        matches!(self, Self::Keeper | Self::Spawner | Self::Gateway | Self::Holder)
    }

    /// The groups of calls that it may make.
    pub(crate) fn groups(self) -> Vec<&'static Group> {
        match self {
            Self::Control => {
                let others = Self::ALL.into_iter().filter(|k| *k != self && !k.is_process());
                others.flat_map(Self::groups).chain([&CONTROL]).collect()
            }
            Self::Worker => vec![&EVERY, &WORKER],
            Self::Port | Self::Stream => vec![&EVERY, &EVENTS, &SOCKETS, &LOOK, &PORT, &STARTS],
            Self::Tap => vec![&EVERY, &EVENTS, &LOOK, &TAP],
            Self::Packet => vec![&EVERY, &EVENTS, &PACKET],
            Self::Xdp => vec![&EVERY, &EVENTS, &PACKET, &XDP],
            Self::Sflow => vec![&EVERY, &SFLOW],
            Self::Api => vec![&EVERY, &EVENTS, &SOCKETS, &API],
            Self::Signals => vec![&EVERY, &SIGNALS],
            Self::Watchdog | Self::Pcap => vec![&EVERY],
            Self::Keeper => vec![&KEEPER],
            Self::Spawner => vec![&KEEPER, &SPAWNER],
            Self::Gateway => vec![&EVERY, &EVENTS, &SOCKETS, &GATEWAY],
            Self::Holder => vec![&HOLDER],
        }
    }
}
