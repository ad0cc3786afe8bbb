//! Addresses of ports seen from the guest's side: `vhost-user:/run/vm1.sock[,key=value...]`.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;

use super::{AddressError, on_off};
use crate::vhost_user::{MAX_PAIRS, feature, protocol};

/// All keys of an address.
pub const KEYS: &str = "server, queues, size, buffer, segments, mtu, event_idx, indirect, \
    in_order, packed, mrg, version_1, any_layout, csum, guest_csum, tso, guest_tso, uso, \
    guest_uso, mtu_feature, reply_ack, mem_slots, inflight, status";

/// Keys that switch features on or off, with the bits each stands for.
const TOGGLES: &[(&str, u64)] = &[
    ("version_1", feature::VERSION_1),
    ("any_layout", feature::ANY_LAYOUT),
    ("event_idx", feature::EVENT_IDX),
    ("indirect", feature::INDIRECT),
    ("in_order", feature::IN_ORDER),
    ("packed", feature::RING_PACKED),
    ("mrg", feature::MRG_RXBUF),
    ("csum", feature::CSUM),
    ("guest_csum", feature::GUEST_CSUM),
    ("tso", feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6),
    ("guest_tso", feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6),
    ("uso", feature::CSUM | feature::HOST_USO),
    ("guest_uso", feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6),
    ("mtu_feature", feature::MTU),
];

/// Keys that switch protocol features on or off.
const PROTOCOL_TOGGLES: &[(&str, u64)] = &[
    ("reply_ack", protocol::REPLY_ACK),
    ("mem_slots", protocol::CONFIGURE_MEM_SLOTS),
    ("inflight", protocol::INFLIGHT_SHMFD),
    ("status", protocol::STATUS),
];

/// How to reach a back end and what to negotiate with it.
///
/// In words: `vhost-user:PATH[,key=value...]` with the keys
///
/// - `server` (or the bare words `listen`, `connect`) (`on`, `off`): listen on PATH instead of
///   connecting to it
/// - `queues` (1 to 16): queue pairs
/// - `size` (power of two, 2 to 32768): descriptors of a ring (default 1024)
/// - `buffer` (bytes, 64 to 65600): bytes of one buffer, header included (default 2048; 65600 where
///   frames may be larger and cannot be merged)
/// - `segments` (1, 2, 4, 8): descriptors a frame is cut into
/// - `mtu` (68 to 65535): told to the back end (NET_SET_MTU)
/// - `event_idx` `indirect` `in_order` `packed` `mrg` `version_1` `any_layout` `csum` `guest_csum`
///   `tso` `guest_tso` `uso` `guest_uso` (`on`, `off`): virtio features to ask for
/// - `reply_ack` `mem_slots` `inflight` `status` (`on`, `off`): protocol features to ask for
///
/// A key that is switched on may stand alone, without `=on`. What is asked for and not offered is
/// done without.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct VhostUser {
    pub path: PathBuf,
    /// Listen on it; the back end connects.
    pub listen: bool,
    pub queues: u16,
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Bytes of one buffer, header included.
    pub buffer: usize,
    /// Segments of one frame.
    pub segments: u16,
    /// Told to the back end by NET_SET_MTU.
    pub mtu: Option<u16>,
    /// Virtio features asked for.
    pub features: u64,
    /// Protocol features asked for.
    pub protocol: u64,
}

impl VhostUser {
    /// The defaults, for a socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            listen: false,
            queues: 1,
            ring_size: 1024,
            buffer: 2048,
            segments: 1,
            mtu: None,
            features: feature::DEFAULT,
            protocol: protocol::ALL,
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let bad = |wanted| AddressError::Value { key: key.into(), value: value.into(), wanted };
        let number = |least: u16, most: u16, wanted| {
            value.parse().ok().filter(|n| (least..=most).contains(n)).ok_or(bad(wanted))
        };
        match key {
            "server" => self.listen = on_off(key, value)?,
            "queues" => self.queues = number(1, MAX_PAIRS, "a number from 1 to 16")?,
            "size" => {
                let wanted = "a power of two from 2 to 32768";
                let size = number(2, 32_768, wanted)?;
                self.ring_size = size.is_power_of_two().then_some(size).ok_or(bad(wanted))?;
            }
            "buffer" => {
                let bytes = value.parse().ok().filter(|n| (64..=65_600).contains(n));
                self.buffer = bytes.ok_or(bad("64 to 65600 bytes"))?;
            }
            "segments" => {
                let wanted = "1, 2, 4 or 8";
                let count = number(1, 8, wanted)?;
                self.segments = count.is_power_of_two().then_some(count).ok_or(bad(wanted))?;
            }
            "mtu" => self.mtu = Some(number(68, 65_535, "68 to 65535 bytes")?),
            _ => return self.toggle(key, value),
        }
        Ok(())
    }

    fn toggle(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let find = |table: &[(&str, u64)]| table.iter().find(|row| row.0 == key).map(|row| row.1);
        let (field, bits) = match (find(TOGGLES), find(PROTOCOL_TOGGLES)) {
            (Some(bits), _) => (&mut self.features, bits),
            (None, Some(bits)) => (&mut self.protocol, bits),
            (None, None) => return Err(AddressError::Key(key.into())),
        };
        *field = if on_off(key, value)? { *field | bits } else { *field & !bits };
        Ok(())
    }
}

impl FromStr for VhostUser {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest =
            text.strip_prefix("vhost-user:").ok_or_else(|| AddressError::Kind(text.into()))?;
        let mut parts = rest.split(',');
        let path = parts.next().filter(|path| !path.is_empty()).ok_or(AddressError::NoPath)?;
        let mut address = Self::new(path);
        for part in parts {
            match (part, part.split_once('=')) {
                (_, Some((key, value))) => address.set(key, value)?,
                ("listen", None) => address.listen = true,
                ("connect", None) => address.listen = false,
                (word, None) => address.set(word, "on")?,
            }
        }
        if address.segments > address.ring_size {
            let (key, value) = ("segments".into(), address.segments.to_string());
            return Err(AddressError::Value { key, value, wanted: "no more than the ring's size" });
        }
        Ok(address)
    }
}
