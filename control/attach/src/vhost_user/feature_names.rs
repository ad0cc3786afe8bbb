//! Feature bits in the words of the specifications, for people who look at a port.

/// Bits of virtio 1.2 (sections 5.1.3 and 6.3) and of vhost (26 and 30), each with its name.
const FEATURES: [(u32, &str); 32] = [
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (2, "CTRL_GUEST_OFFLOADS"),
    (3, "MTU"),
    (5, "MAC"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (9, "GUEST_ECN"),
    (10, "GUEST_UFO"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
    (13, "HOST_ECN"),
    (14, "HOST_UFO"),
    (15, "MRG_RXBUF"),
    (16, "STATUS"),
    (17, "CTRL_VQ"),
    (18, "CTRL_RX"),
    (19, "CTRL_VLAN"),
    (21, "GUEST_ANNOUNCE"),
    (22, "MQ"),
    (23, "CTRL_MAC_ADDR"),
    (26, "LOG_ALL"),
    (27, "ANY_LAYOUT"),
    (28, "INDIRECT_DESC"),
    (29, "EVENT_IDX"),
    (30, "PROTOCOL_FEATURES"),
    (32, "VERSION_1"),
    (34, "RING_PACKED"),
    (35, "IN_ORDER"),
    (54, "GUEST_USO4"),
    (55, "GUEST_USO6"),
    (56, "HOST_USO"),
];

/// Bits of `docs/interop/vhost-user.rst`, "Protocol features".
const PROTOCOL: [(u32, &str); 9] = [
    (0, "MQ"),
    (1, "LOG_SHMFD"),
    (2, "RARP"),
    (3, "REPLY_ACK"),
    (4, "NET_MTU"),
    (12, "INFLIGHT_SHMFD"),
    (13, "RESET_DEVICE"),
    (15, "CONFIGURE_MEM_SLOTS"),
    (16, "STATUS"),
];

/// Features of virtio and vhost, from the lowest bit up.
pub fn features(bits: u64) -> String {
    words(bits, &FEATURES)
}

/// Features of the vhost-user protocol, from the lowest bit up.
pub fn protocol_features(bits: u64) -> String {
    words(bits, &PROTOCOL)
}

fn words(bits: u64, names: &[(u32, &str)]) -> String {
    let word = |bit: u32| match names.iter().find(|(number, _)| *number == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("BIT_{bit}"),
    };
    let words: Vec<_> = (0..u64::BITS).filter(|bit| bits >> bit & 1 == 1).map(word).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::{features, protocol_features};

    #[test]
    fn everything_that_is_offered_has_a_name() {
        let all = features(super::super::FEATURES);
        assert!(!all.contains("BIT_"), "{all}");
        assert!(!protocol_features(super::super::wire::protocol::OFFERED).contains("BIT_"));
        assert_eq!(features(1 << 29 | 1 << 15 | 1 << 60), "MRG_RXBUF EVENT_IDX BIT_60");
        assert_eq!(features(vmlan_nic::virtio::feature::HOST_USO), "HOST_USO");
        assert_eq!(features(0), "none");
    }
}
