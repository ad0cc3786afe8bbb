//! Stateless DHCPv6 (RFC 8415): no addresses, but what a router's advertisement says of names, for
//! guests that do not read that (RFC 8106).

use std::net::Ipv6Addr;

use crate::counters::Reason;
use crate::link::Mac;

/// The port of servers.
pub(crate) const SERVER: u16 = 547;
/// The port of clients.
pub(crate) const CLIENT: u16 = 546;
/// The group that all servers listen to.
pub(crate) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

const REPLY: u8 = 7;
const INFORMATION_REQUEST: u8 = 11;

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
/// Addresses and prefixes for one client; none of them is asked for with information.
const ASSOCIATIONS: [u16; 3] = [3, 4, 25];
const NAME_SERVERS: u16 = 23;
const SEARCH: u16 = 24;
const REFRESH: u16 = 32;

/// Longest identifier (RFC 8415, 11.1).
const LONGEST_ID: usize = 130;
/// Seconds after which a client asks again.
const AGAIN: u32 = 3600;

/// The server's identifier, made of its MAC address (RFC 8415, 11.4).
fn id(mac: Mac) -> Vec<u8> {
    [&[0, 3, 0, 1], mac.0.as_slice()].concat()
}

fn add(out: &mut Vec<u8>, code: u16, data: &[u8]) {
    out.extend(code.to_be_bytes());
    out.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend(data);
}

/// The answer to a client's message; `names`: the server of names, and what names end in, as DNS
/// writes it. None: the message is for others.
///
/// # Errors
/// It is none.
pub(crate) fn serve(
    message: &[u8],
    own: Mac,
    names: Option<(Ipv6Addr, &[u8])>,
) -> Result<Option<Vec<u8>>, Reason> {
    let [kind, number @ ..] = message else { return Err(Reason::Malformed) };
    let (number, mut options) = number.split_first_chunk::<3>().ok_or(Reason::Malformed)?;
    if *kind != INFORMATION_REQUEST {
        return Ok(None);
    }
    let mut client = None;
    while !options.is_empty() {
        let [a, b, c, d, rest @ ..] = options else { return Err(Reason::Malformed) };
        let (code, len) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
        let (data, rest) = rest.split_at_checked(len.into()).ok_or(Reason::Malformed)?;
        options = rest;
        match code {
            CLIENT_ID if data.len() <= LONGEST_ID && client.is_none() => client = Some(data),
            CLIENT_ID => return Err(Reason::Malformed),
            SERVER_ID if data != id(own) => return Ok(None),
            code if ASSOCIATIONS.contains(&code) => return Err(Reason::DhcpRefused),
            _ => {}
        }
    }
    let mut out = vec![REPLY];
    out.extend(number);
    client.into_iter().for_each(|client| add(&mut out, CLIENT_ID, client));
    add(&mut out, SERVER_ID, &id(own));
    if let Some((server, search)) = names {
        add(&mut out, NAME_SERVERS, &server.octets());
        add(&mut out, SEARCH, search);
    }
    add(&mut out, REFRESH, &AGAIN.to_be_bytes());
    Ok(Some(out))
}
