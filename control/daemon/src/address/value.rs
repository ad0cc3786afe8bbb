//! Values of keys, and what each key takes.

use std::fmt;
use std::time::Duration;

use vmlan_frame::Mac;

use super::PortName;

/// What a key's value may be.
#[derive(Debug)]
pub enum Takes {
    /// `on` or `off`; the bare key means `on`.
    OnOff,
    /// A number between two bounds, both included.
    Number(u32, u32),
    /// A time between two bounds, both included, in whole `us`, `ms` or `s`.
    Time(Duration, Duration),
    /// One of these words.
    Word(&'static [&'static str]),
    /// The address of one network card.
    Mac,
    /// Permission bits in octal.
    Mode,
    /// Any text.
    Text,
    /// Names of ports joined by '+'.
    Ports,
}

/// A value that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Takes::OnOff`].
    OnOff(bool),
    /// Of [`Takes::Number`].
    Number(u32),
    /// Of [`Takes::Time`].
    Time(Duration),
    /// Of [`Takes::Word`].
    Word(&'static str),
    /// Of [`Takes::Mac`].
    Mac(Mac),
    /// Of [`Takes::Mode`].
    Mode(u32),
    /// Of [`Takes::Text`].
    Text(String),
    /// Of [`Takes::Ports`].
    Ports(Vec<PortName>),
}

impl Takes {
    /// The value `text` stands for, if it is one.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<Value> {
        match self {
            Self::OnOff => match text {
                "on" => Some(Value::OnOff(true)),
                "off" => Some(Value::OnOff(false)),
                _ => None,
            },
            Self::Number(least, most) => {
                let n = parse_digits(text)?;
                (*least..=*most).contains(&n).then_some(Value::Number(n))
            }
            Self::Time(least, most) => {
                let time = parse_time(text)?;
                (*least..=*most).contains(&time).then_some(Value::Time(time))
            }
            Self::Word(words) => words.iter().find(|w| **w == text).map(|w| Value::Word(w)),
            Self::Mac => {
                let mac: Mac = text.parse().ok()?;
                (!mac.is_group() && mac.bits() != 0).then_some(Value::Mac(mac))
            }
            Self::Mode => parse_mode(text).map(Value::Mode),
            Self::Text => (!text.is_empty()).then(|| Value::Text(text.into())),
            Self::Ports => {
                let names: Result<Vec<PortName>, _> = text.split('+').map(str::parse).collect();
                names.ok().map(Value::Ports)
            }
        }
    }
}

/// `u32::from_str` takes a leading '+'; a contract should have one way to write a number.
fn parse_digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Units of time: word, microseconds. A unit that ends another comes after it.
const UNITS: [(&str, u32); 3] = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];

/// `50us`, `1ms`, `1s`.
fn parse_time(text: &str) -> Option<Duration> {
    let (digits, unit) = UNITS.iter().find_map(|(u, us)| Some((text.strip_suffix(u)?, us)))?;
    Some(Duration::from_micros(u64::from(parse_digits(digits)?) * u64::from(*unit)))
}

/// In the largest unit that divides it.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        let fits = UNITS.iter().rev().find(|(_, unit)| us.is_multiple_of(u128::from(*unit)));
        let (word, unit) = fits.unwrap_or(&UNITS[0]);
        write!(f, "{}{word}", us / u128::from(*unit))
    }
}

/// Permission bits in octal: `660`, `0660`.
#[must_use]
pub fn parse_mode(text: &str) -> Option<u32> {
    let octal = text.bytes().all(|b| (b'0'..=b'7').contains(&b)) && (3..=4).contains(&text.len());
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| octal)?;
    (mode <= 0o777).then_some(mode)
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnOff => f.write_str("on or off"),
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Time(least, most) => {
                write!(f, "a time from {} to {}, like 1ms,", Time(*least), Time(*most))
            }
            Self::Word(words) => f.write_str(&words.join(" or ")),
            Self::Mac => f.write_str("the MAC address of one card, like 52:54:00:12:34:56,"),
            Self::Mode => f.write_str("an octal mode like 0660"),
            Self::Text => f.write_str("some text"),
            Self::Ports => f.write_str("names of ports joined by '+', like vm1+vm2,"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnOff(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Number(n) => write!(f, "{n}"),
            Self::Time(time) => Time(*time).fmt(f),
            Self::Word(word) => f.write_str(word),
            Self::Mac(mac) => write!(f, "{mac}"),
            Self::Mode(mode) => write!(f, "{mode:04o}"),
            Self::Text(text) => f.write_str(text),
            Self::Ports(names) => {
                for (i, name) in names.iter().enumerate() {
                    write!(f, "{}{name}", if i > 0 { "+" } else { "" })?;
                }
                Ok(())
            }
        }
    }
}
