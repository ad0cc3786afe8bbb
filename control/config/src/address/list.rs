//! Values that are lists joined by '+'. Sorted, so that the same list in another order is no
//! change; nothing comes twice.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use vmlan_frame::Mac;

use super::PortName;
use super::amount::digits;

/// Why a text is not a value.
#[derive(Debug, PartialEq, Eq)]
pub enum ValueError {
    /// It does not have the form that is wanted, or is out of range.
    Form,
    /// This is in it twice.
    Twice(String),
}

/// Items in a list: the API's body is bounded, and so is what a frame is compared with.
const ITEMS: usize = 256;

/// MAC addresses a port may send from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum MacRule {
    Any,
    /// The first one that it uses.
    First,
    Listed(Vec<Mac>),
}

impl MacRule {
    /// The addresses that are listed.
    pub fn listed(&self) -> &[Mac] {
        match self {
            Self::Listed(macs) => macs,
            Self::Any | Self::First => &[],
        }
    }
}

/// IP addresses a port may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum IpRule {
    Any,
    /// Those that gateways have given it.
    Leased,
    Listed(Vec<IpRange>),
}

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IpRange {
    /// The first address of the range.
    pub address: IpAddr,
    /// Leading bits that count: 32 or 128 for one address.
    pub bits: u8,
}

/// VLAN identifiers: ranges, sorted, neither overlapping nor adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VidList(Vec<(u16, u16)>);

impl VidList {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|(least, most)| *least..=*most)
    }
}

fn full(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl FromStr for IpRange {
    type Err = ValueError;

    fn from_str(s: &str) -> Result<Self, ValueError> {
        let (address, bits) = match s.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (s, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ValueError::Form)?;
        let most = full(address);
        let Some(bits) = bits else { return Ok(Self { address, bits: most }) };
        let bits = digits(bits).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= most);
        let bits = bits.ok_or(ValueError::Form)?;
        // Bits behind the prefix: a slip in one of the two numbers, and nobody can know in which.
        let host = u32::from(most - bits);
        let clean = match address {
            IpAddr::V4(a) => host == 0 || a.to_bits().trailing_zeros() >= host,
            IpAddr::V6(a) => host == 0 || a.to_bits().trailing_zeros() >= host,
        };
        clean.then_some(Self { address, bits }).ok_or(ValueError::Form)
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.bits == full(self.address) { Ok(()) } else { write!(f, "/{}", self.bits) }
    }
}

/// The items of `text`, sorted.
pub(super) fn items<T: Ord + fmt::Display>(
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, ValueError> {
    let parts = text.split('+').map(|part| parse(part).ok_or(ValueError::Form));
    let mut list = parts.collect::<Result<Vec<_>, _>>()?;
    list.sort_unstable();
    if let Some(twice) = list.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ValueError::Twice(twice[0].to_string()));
    }
    if list.len() <= ITEMS { Ok(list) } else { Err(ValueError::Form) }
}

/// The address of one card.
pub(super) fn card(text: &str) -> Option<Mac> {
    let mac: Mac = text.parse().ok()?;
    (!mac.is_group() && mac.bits() != 0).then_some(mac)
}

/// A name that is not one of the words for several ports.
pub(super) fn name(text: &str) -> Option<PortName> {
    text.parse().ok().filter(|_| !matches!(text, "all" | "any" | "none"))
}

impl FromStr for MacRule {
    type Err = ValueError;

    fn from_str(s: &str) -> Result<Self, ValueError> {
        Ok(match s {
            "any" => Self::Any,
            "first" => Self::First,
            _ => Self::Listed(items(s, card)?),
        })
    }
}

impl fmt::Display for MacRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::First => f.write_str("first"),
            Self::Listed(list) => joined(f, list),
        }
    }
}

impl FromStr for IpRule {
    type Err = ValueError;

    fn from_str(s: &str) -> Result<Self, ValueError> {
        Ok(match s {
            "any" => Self::Any,
            "leased" => Self::Leased,
            "none" => Self::Listed(Vec::new()),
            _ => Self::Listed(items(s, |t| t.parse::<IpRange>().ok())?),
        })
    }
}

impl fmt::Display for IpRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Leased => f.write_str("leased"),
            Self::Listed(list) if list.is_empty() => f.write_str("none"),
            Self::Listed(list) => joined(f, list),
        }
    }
}

impl FromStr for VidList {
    type Err = ValueError;

    fn from_str(s: &str) -> Result<Self, ValueError> {
        let vid = |t: &str| {
            let vid = digits(t).and_then(|n| u16::try_from(n).ok());
            vid.filter(|v| (1..=4094).contains(v)).ok_or(ValueError::Form)
        };
        let mut ranges = Vec::new();
        for part in s.split('+') {
            let (least, most) = part.split_once('-').unwrap_or((part, part));
            let (least, most) = (vid(least)?, vid(most)?);
            if least > most {
                return Err(ValueError::Form);
            }
            ranges.push((least, most));
        }
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (least, most) in ranges {
            match merged.last_mut() {
                Some((_, end)) if *end >= least => {
                    return Err(ValueError::Twice(format!("VID {least}")));
                }
                Some((_, end)) if *end + 1 == least => *end = most,
                _ => merged.push((least, most)),
            }
        }
        Ok(Self(merged))
    }
}

impl fmt::Display for VidList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (least, most)) in self.0.iter().enumerate() {
            let plus = if i > 0 { "+" } else { "" };
            match least == most {
                true => write!(f, "{plus}{least}")?,
                false => write!(f, "{plus}{least}-{most}")?,
            }
        }
        Ok(())
    }
}

/// Joined by '+'.
pub(super) fn joined<T: fmt::Display>(f: &mut fmt::Formatter<'_>, list: &[T]) -> fmt::Result {
    for (i, item) in list.iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { "+" } else { "" })?;
    }
    Ok(())
}
