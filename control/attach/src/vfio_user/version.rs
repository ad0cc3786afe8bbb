//! Capabilities: what each side says of itself in VERSION ("Version", JSON with a NUL behind it).

use serde_json::Value;

use super::wire::MAX_DATA;
use crate::bytes::Body;

/// Protocol version 0.1 is the latest; major 0 is the only one.
const MINOR: u16 = 1;

/// DMA regions that a client may have at a time.
pub const MAX_DMA_MAPS: usize = vmlan_ram::Map::MAX_REGIONS;

/// Why a client's VERSION was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum VersionError {
    #[error("protocol version {0}.{1}: only 0.x is known")]
    Major(u16, u16),
    #[error("its capabilities are no JSON object")]
    NotJson,
    #[error("its capability `{0}` is malformed")]
    Malformed(&'static str),
}

/// What a client said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The protocol version 0.x that it speaks.
    pub minor: u16,
    /// Descriptors that it takes with one message; 1 if it does not say.
    pub max_msg_fds: u64,
    /// It gives up waiting for a reply after five seconds. So does QEMU, which is known by its word
    /// `write_multiple`.
    pub gives_up: bool,
}

impl Client {
    /// Parses the body of VERSION. What we do not know is left alone.
    pub fn parse(body: &[u8]) -> Result<Self, VersionError> {
        let (major, minor) = (Body(body).u16(0), Body(body).u16(2));
        if major != 0 {
            return Err(VersionError::Major(major, minor));
        }
        let mut client = Self { minor, max_msg_fds: 1, gives_up: false };
        match body.get(4..).unwrap_or_default() {
            [] | [0] => return Ok(client),
            [text @ .., 0] => {
                let value: Value =
                    serde_json::from_slice(text).map_err(|_| VersionError::NotJson)?;
                client.take(value.as_object().ok_or(VersionError::NotJson)?)?;
            }
            _ => return Err(VersionError::NotJson),
        }
        Ok(client)
    }

    fn take(&mut self, object: &serde_json::Map<String, Value>) -> Result<(), VersionError> {
        let Some(caps) = object.get("capabilities") else { return Ok(()) };
        let caps = caps.as_object().ok_or(VersionError::Malformed("capabilities"))?;
        let number = |name: &'static str| match caps.get(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(VersionError::Malformed(name)),
        };
        self.max_msg_fds = number("max_msg_fds")?.unwrap_or(1);
        // Nothing depends on these: each reply is as long as was asked for, and we send no
        // commands.
        for name in ["max_data_xfer_size", "max_dma_maps", "pgsizes"] {
            number(name)?;
        }
        if let Some(value) = caps.get("write_multiple") {
            value.as_bool().ok_or(VersionError::Malformed("write_multiple"))?;
            self.gives_up = true;
        }
        Ok(())
    }

    /// The body of the reply. Short: QEMU takes none that is longer than what it sent.
    ///
    /// `write_multiple` is not offered, though it is understood. QEMU 10.1 and 10.2 then send
    /// everything by way of their I/O thread (their flag for it, 0x16, has the bit for that in it),
    /// and others use it only behind 1,024 messages that nobody has read. It would let a client
    /// have us make 170 writes for one message.
    pub fn reply(self) -> Vec<u8> {
        let mut body = 0u16.to_ne_bytes().to_vec();
        body.extend(self.minor.min(MINOR).to_ne_bytes());
        let text = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":1,\"max_data_xfer_size\":{MAX_DATA},\
             \"max_dma_maps\":{MAX_DMA_MAPS}}}}}"
        );
        body.extend(text.bytes());
        body.push(0);
        body
    }
}
