//! MAC addresses for VMs whose port has none: always the same for one name, different for different
//! names.

use vmlan_frame::Mac;

use crate::address::PortName;

/// For a NIC that is QEMU's, with QEMU's prefix. Without it every QEMU would take
/// 52:54:00:12:34:56.
pub fn mac_of(name: &PortName) -> Mac {
    let [a, b, c, ..] = hash(name).to_be_bytes();
    Mac::new([0x52, 0x54, 0x00, a, b, c])
}

/// For a NIC that is ours: locally administered (IEEE 802 section 8.4), and of one card.
pub fn nic_mac_of(name: &PortName) -> Mac {
    let [a, b, c, d, e, ..] = hash(name).to_be_bytes();
    Mac::new([0x02, a, b, c, d, e])
}

/// FNV-1a, so that an address does not change with the Rust version.
pub(crate) fn hash(name: &PortName) -> u64 {
    name.as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
