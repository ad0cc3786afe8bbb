//! Registers of VMware's vmxnet3, as public drivers have them. All are 32 bits wide. The first BAR
//! has doorbells and interrupt masks; the second one, here from 1000h on, has the rest.
#![allow(missing_docs, reason = "a comment beside each says it")]

crate::chip::registers::registers! {
    IMR0 = 0x0000, // Interrupt mask of vector 0: 1 masks.
    IMR1 = 0x0008, // Of vector 1.
    TXPROD = 0x0600, // The next transmit descriptor to be filled.
    RXPROD = 0x0800, // The next descriptor of the first receive ring.
    RXPROD2 = 0x0a00, // Of the second.
    VRRS = 0x1000, // Versions offered; the one chosen.
    UVRS = 0x1008, // The same of UPT, the data path.
    DSAL = 0x1010, // Address of the shared area, low.
    DSAH = 0x1018, // Its high half.
    CMD = 0x1020, // A command; its answer.
    MACL = 0x1028, // The address in use, bytes 0 to 3.
    MACH = 0x1030, // Bytes 4 and 5.
    ICR = 0x1038, // INTx: is it us? Reading it lowers the level.
    ECR = 0x1040, // Events that have been seen.
}

/// Commands. The second kind answers with more than 0 for "done".
pub mod command {
    pub const ACTIVATE: u32 = 0xcafe_0000; // Reads the shared area, and starts.
    pub const RESET: u32 = 0xcafe_0002; // As after power-on.
    pub const UPDATE_RX_MODE: u32 = 0xcafe_0003; // Reads the receive mode again.
    pub const UPDATE_FEATURE: u32 = 0xcafe_0009; // Reads the features again.
    pub const GET_STATS: u32 = 0xf00d_0001; // Writes the counters of all queues.
    pub const GET_LINK: u32 = 0xf00d_0002; // Speed, and 1 if the link is up.
    pub const GET_PERM_MAC_LO: u32 = 0xf00d_0003; // The address it was made with.
    pub const GET_PERM_MAC_HI: u32 = 0xf00d_0004; // Bytes 4 and 5.
}

/// VRRS: the versions that the driver knows, 1 to 3, the latest first.
pub const VERSIONS: [u32; 3] = [1 << 2, 1 << 1, 1];
pub const UPT_1: u32 = 1; // UVRS: the only version.
pub const LINK_UP: u32 = 1; // GET_LINK.
