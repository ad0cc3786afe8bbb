//! DNS (RFC 1035): questions about names of the LAN are answered, others are passed on as they are
//! to the host's servers, and so are their answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The port of servers.
pub(crate) const PORT: u16 = 53;

/// Seconds that an answer about a name of the LAN may be kept.
const TTL: u32 = 10;

const HEADER: usize = 12;
/// The name in the question, which stands behind the header (RFC 1035, 4.1.4).
const NAME_OF_QUESTION: [u8; 2] = [0xc0, 12];
/// Longest name, as text (RFC 1035, 2.3.4).
const LONGEST: usize = 254;

const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const ANY: u16 = 255;
const INTERNET: u16 = 1;

const QR: u16 = 1 << 15;
const AA: u16 = 1 << 10;
const TC: u16 = 1 << 9;
const RD: u16 = 1 << 8;
const RA: u16 = 1 << 7;
const OPCODE: u16 = 15 << 11;

/// What an answer says of how it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    NoError = 0,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
}

/// A message with one question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) id: u16,
    flags: u16,
    /// In small letters, without a dot at the end.
    pub(crate) name: String,
    kind: u16,
    class: u16,
    /// Where the question ends in the message.
    end: usize,
}

fn word(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at + 2)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

/// Reads the header and the question of a query or an answer.
pub(crate) fn question(message: &[u8]) -> Option<Question> {
    let (id, flags, count) = (word(message, 0)?, word(message, 2)?, word(message, 4)?);
    if count != 1 {
        return None;
    }
    let (mut at, mut name) = (HEADER, String::new());
    loop {
        let len = usize::from(*message.get(at)?);
        if len == 0 {
            break;
        }
        // Nothing stands before the question that a pointer could lead to.
        let label = message.get(at + 1..at + 1 + len).filter(|_| len <= 63)?;
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        if name.chars().count() > LONGEST {
            return None;
        }
        at += 1 + len;
    }
    let (kind, class) = (word(message, at + 1)?, word(message, at + 3)?);
    Some(Question { id, flags, name, kind, class, end: at + 5 })
}

impl Question {
    /// Is the message a question, rather than an answer?
    pub(crate) fn is_query(&self) -> bool {
        self.flags & QR == 0
    }

    /// Does `other` ask the same?
    pub(crate) fn asks_the_same(&self, other: &Self) -> bool {
        (&self.name, self.kind, self.class) == (&other.name, other.kind, other.class)
    }

    /// The beginning of an answer to `query`: header and question, `answers` are to follow.
    fn reply(&self, query: &[u8], flags: u16, code: Code, answers: u16) -> Vec<u8> {
        let flags = QR | RA | flags | self.flags & (RD | OPCODE) | code as u16;
        let mut out = Vec::with_capacity(self.end + 64);
        for word in [self.id, flags, 1, answers, 0, 0] {
            out.extend(word.to_be_bytes());
        }
        out.extend(query.get(HEADER..self.end).unwrap_or_default());
        out
    }

    /// An answer without records.
    pub(crate) fn empty(&self, query: &[u8], code: Code) -> Vec<u8> {
        self.reply(query, 0, code, 0)
    }

    /// An answer that is too long for a datagram: ask again by TCP.
    pub(crate) fn truncated(&self, query: &[u8]) -> Vec<u8> {
        self.reply(query, TC, Code::NoError, 0)
    }

    /// An answer with these records, each a kind and what it says.
    fn records(&self, query: &[u8], records: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let count = u16::try_from(records.len()).unwrap_or(0);
        let mut out = self.reply(query, AA, Code::NoError, count);
        for (kind, data) in records {
            out.extend(NAME_OF_QUESTION);
            out.extend(kind.to_be_bytes());
            out.extend(INTERNET.to_be_bytes());
            out.extend(TTL.to_be_bytes());
            out.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
            out.extend(data);
        }
        out
    }
}

/// What is known of the LAN.
pub(crate) trait Names {
    /// The addresses of a host, by its name in small letters without the domain; none: nobody is
    /// called so.
    fn addresses(&self, host: &str) -> Vec<IpAddr>;
    /// The name of an address; the outer `None`: it is not of this LAN.
    fn name(&self, address: IpAddr) -> Option<Option<String>>;
}

/// The answer to a question that is ours to answer. None: others may know.
pub(crate) fn answer(
    question: &Question,
    query: &[u8],
    domain: &str,
    names: &dyn Names,
) -> Option<Vec<u8>> {
    if question.flags & OPCODE != 0 {
        return Some(question.empty(query, Code::NotImplemented));
    }
    let nothing = |code| Some(question.reply(query, AA, code, 0));
    if let Some(address) = reverse(&question.name) {
        return match (names.name(address)?, question.kind) {
            (None, _) => nothing(Code::NoSuchName),
            (Some(host), PTR | ANY) => {
                let mut data = Vec::new();
                for label in host.split('.').chain(domain.split('.')) {
                    data.push(u8::try_from(label.len().min(63)).unwrap_or(0));
                    data.extend(label.bytes().take(63));
                }
                data.push(0);
                Some(question.records(query, &[(PTR, data)]))
            }
            (Some(_), _) => nothing(Code::NoError),
        };
    }
    if question.name == domain {
        return nothing(Code::NoError);
    }
    let below = question.name.strip_suffix(domain).and_then(|host| host.strip_suffix('.'));
    let host = match below {
        Some(host) => host,
        None if question.name.is_empty() || question.name.contains('.') => return None,
        None => &question.name,
    };
    let all = names.addresses(host);
    if all.is_empty() {
        // What is asked about a top-level domain, for the sake of DNSSEC above all, others know.
        let ours = below.is_some() || [A, AAAA, ANY].contains(&question.kind);
        return if ours { nothing(Code::NoSuchName) } else { None };
    }
    let record = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (A, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AAAA, ip.octets().to_vec()),
    };
    let mut records: Vec<_> = all.into_iter().map(record).collect();
    records.retain(|(kind, _)| [*kind, ANY].contains(&question.kind));
    Some(question.records(query, &records))
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
fn reverse(name: &str) -> Option<IpAddr> {
    reverse4(name).map(IpAddr::V4).or_else(|| reverse6(name).map(IpAddr::V6))
}

fn reverse6(name: &str) -> Option<Ipv6Addr> {
    let mut digits = name.strip_suffix(".ip6.arpa")?.rsplit('.');
    let mut bits = 0;
    for _ in 0..32 {
        let digit = digits.next().filter(|digit| digit.len() == 1)?;
        bits = bits << 4 | u128::from_str_radix(digit, 16).ok()?;
    }
    digits.next().is_none().then(|| Ipv6Addr::from_bits(bits))
}

fn reverse4(name: &str) -> Option<Ipv4Addr> {
    let mut parts = name.strip_suffix(".in-addr.arpa")?.split('.').map(str::parse::<u8>);
    let mut next = || parts.next()?.ok();
    let (d, c, b, a) = (next()?, next()?, next()?, next()?);
    parts.next().is_none().then(|| Ipv4Addr::new(a, b, c, d))
}

/// `message` with another number.
pub(crate) fn renumbered(message: &[u8], id: u16) -> Vec<u8> {
    let mut out = message.to_vec();
    out.iter_mut().zip(id.to_be_bytes()).for_each(|(to, from)| *to = from);
    out
}
