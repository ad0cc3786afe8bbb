//! What an emulated NIC counts besides frames: how often its registers are touched, and what became
//! of its interrupts.

/// Reads and writes of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterCount {
    /// The datasheet's name.
    pub register: &'static str,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Counts of an emulated NIC since its port was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Registers that were touched, in the order of their addresses. Stores to registers in shared
    /// pages are seen only when the device looks, and are not counted here.
    pub registers: Vec<RegisterCount>,
    /// Times an enabled cause appeared while none was pending, and times one was still set when the
    /// VMM unmasked it: what a device without moderation would interrupt for.
    pub raised: u64,
    /// Of these, those that moderation held back for a while.
    pub held: u64,
    /// Interrupts delivered to the guest.
    pub delivered: u64,
    /// The NIC's own statistics registers, by the datasheet's names, as the guest would read them
    /// if they were never cleared.
    pub statistics: Vec<(&'static str, u64)>,
    /// Counts of its shared status block (CSB), if it offers one.
    pub csb: Option<CsbCounters>,
}

/// What a NIC's shared status block (CSB) saved, since its port was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsbCounters {
    /// The guest has placed it and turned it on.
    pub on: bool,
    /// Causes that did not interrupt, because the guest was looking by itself.
    pub suppressed: u64,
    /// Interrupts delivered because the guest asked for them.
    pub guest_asked: u64,
    /// Times that the worker asked for a kick, before it slept or waited for room.
    pub host_asked: u64,
}
