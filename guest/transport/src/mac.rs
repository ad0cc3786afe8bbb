//! MAC addresses.

use std::str::FromStr;

/// A MAC address, written `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

/// The text is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a MAC address: write it as 02:00:00:00:00:01")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let error = || MacError(text.into());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() <= 2).ok_or_else(error)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Self(bytes)) }
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}
