//! Names of ports as netmap writes them: `netmap:BASE`, then what of it is meant.
//!
//! `BASE` is the address of a NIC, which may have hyphens and slashes; so netmap's `-N`, and
//! `/FLAGS` right after it, are not known here: they can be asked for by request.

use rustix::io::Errno;

/// `NR_REG_*`.
pub(crate) const ALL_NIC: u32 = 1;
pub(crate) const SW: u32 = 2;
pub(crate) const NIC_SW: u32 = 3;
pub(crate) const ONE_NIC: u32 = 4;
pub(crate) const PIPE_MASTER: u32 = 5;
pub(crate) const PIPE_SLAVE: u32 = 6;
pub(crate) const ONE_SW: u32 = 8;
/// `NETMAP_RING_MASK`: numbers of rings and pipes are below it.
const NUMBERS: u16 = 0xfff;
/// The one region of memory that there is.
pub(crate) const MEM_ID: u16 = 1;
/// Flags by letters: `NR_EXCLUSIVE`, `NR_RX_RINGS_ONLY`, `NR_TX_RINGS_ONLY`, and those of monitors.
pub(crate) const EXCLUSIVE: u64 = 0x800;
pub(crate) const RX_ONLY: u64 = 0x2000;
pub(crate) const TX_ONLY: u64 = 0x4000;
pub(crate) const MONITOR: u64 = 0x700;
const FLAGS: [(u8, u64); 6] = [
    (b'x', EXCLUSIVE),
    (b'R', RX_ONLY),
    (b'T', TX_ONLY),
    (b't', 0x100),
    (b'r', 0x200),
    (b'z', 0x400),
];

/// The name of a port without `netmap:`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    /// The address, and what says which pipe.
    pub(crate) port: &'a str,
    pub(crate) mode: u32,
    pub(crate) ring: u16,
    pub(crate) flags: u64,
    /// 0 where it says nothing.
    pub(crate) mem_id: u16,
}

impl<'a> Name<'a> {
    /// # Errors
    /// EINVAL.
    pub(crate) fn parse(name: &'a str) -> Result<Self, Errno> {
        let base = name.find(['^', '*', '{', '}']).unwrap_or(name.len());
        let (mut port, mut rest) = name.split_at(base);
        let (mut mode, mut ring) = (ALL_NIC, 0);
        match rest.as_bytes().first() {
            Some(b'^') => {
                mode = SW;
                rest = &rest[1..];
                if let (digits @ 1.., after) = number(rest) {
                    (mode, ring) = (ONE_SW, rest[..digits].parse().map_err(|_| Errno::INVAL)?);
                    rest = after;
                }
            }
            Some(b'*') => (mode, rest) = (NIC_SW, &rest[1..]),
            Some(_) => {
                let len = rest[1..].find(|c: char| !is_identifier(c)).unwrap_or(rest.len() - 1);
                (port, rest) = name.split_at(base + 1 + len);
                Pipe::of(port).ok_or(Errno::INVAL)?;
            }
            None => {}
        }
        let mut parsed = Self { port, mode, ring, flags: 0, mem_id: 0 };
        if base == 0 || ring >= NUMBERS {
            return Err(Errno::INVAL);
        }
        parsed.options(rest)?;
        Ok(parsed)
    }

    /// `/FLAGS` and `@MEMORY`.
    fn options(&mut self, mut rest: &str) -> Result<(), Errno> {
        if let Some(flags) = rest.strip_prefix('/') {
            let len = flags.find('@').unwrap_or(flags.len());
            for letter in flags[..len].bytes() {
                let flag = FLAGS.iter().find(|(known, _)| *known == letter);
                self.flags |= flag.ok_or(Errno::INVAL)?.1;
            }
            if len == 0 {
                return Err(Errno::INVAL);
            }
            rest = &flags[len..];
        }
        if let Some(id) = rest.strip_prefix('@') {
            self.mem_id = id.parse().ok().filter(|id| *id > 0).ok_or(Errno::INVAL)?;
            rest = "";
        }
        if rest.is_empty() { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// The digits that a text begins with: how many, and what follows.
fn number(text: &str) -> (usize, &str) {
    let len = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (len, &text[len..])
}

fn is_identifier(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// One end of a pipe, as in `BASE{ID` or `BASE}ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pipe<'a> {
    pub(crate) base: &'a str,
    pub(crate) id: &'a str,
    pub(crate) slave: bool,
}

impl<'a> Pipe<'a> {
    /// Nothing if it is none, or one without a base or an identifier.
    pub(crate) fn of(port: &'a str) -> Option<Self> {
        let at = port.find(['{', '}'])?;
        let (base, id) = (&port[..at], &port[at + 1..]);
        let sound = at > 0 && !id.is_empty() && id.chars().all(is_identifier);
        sound.then_some(Self { base, id, slave: port.as_bytes()[at] == b'}' })
    }

    /// The mode and the number that `struct nmreq` has for it; its identifiers are numbers.
    ///
    /// # Errors
    /// EINVAL.
    pub(crate) fn numbered(self) -> Result<(u32, u16), Errno> {
        let id = self.id.parse().ok().filter(|id| *id < NUMBERS).ok_or(Errno::INVAL)?;
        Ok((if self.slave { PIPE_SLAVE } else { PIPE_MASTER }, id))
    }
}

/// A NIC's address without the key `host=`, and the name that this key gives to the TAP device of
/// its host rings.
pub(crate) fn without_host(address: &str) -> (String, Option<&str>) {
    let mut parts = address.split(',');
    let mut rest = parts.next().unwrap_or_default().to_owned();
    let mut host = None;
    for part in parts {
        match part.strip_prefix("host=") {
            Some(name) => host = Some(name),
            None => rest = rest + "," + part,
        }
    }
    (rest, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Result<(&str, u32, u16, u64, u16), Errno> {
        Name::parse(text).map(|n| (n.port, n.mode, n.ring, n.flags, n.mem_id))
    }

    #[test]
    fn a_name_says_which_rings() {
        assert_eq!(
            name("vfio-user:/a-1/b,csb=on"),
            Ok(("vfio-user:/a-1/b,csb=on", ALL_NIC, 0, 0, 0))
        );
        assert_eq!(name("x^"), Ok(("x", SW, 0, 0, 0)));
        assert_eq!(name("x^0"), Ok(("x", ONE_SW, 0, 0, 0)));
        assert_eq!(name("x*"), Ok(("x", NIC_SW, 0, 0, 0)));
        assert_eq!(name("x^/xR@1"), Ok(("x", SW, 0, EXCLUSIVE | RX_ONLY, 1)));
        assert_eq!(name("x{3"), Ok(("x{3", ALL_NIC, 0, 0, 0)));
        assert_eq!(name("x}a_9/xT@1"), Ok(("x}a_9", ALL_NIC, 0, EXCLUSIVE | TX_ONLY, 1)));
        let wrong = [
            "",
            "^",
            "{1",
            "x{",
            "x}",
            "x{/x",
            "x{1{2",
            "x^^",
            "x*1",
            "x^4095",
            "x^99999999999",
            "x^/",
            "x^/q",
            "x^@",
            "x^@0",
            "x^@a",
            "x^ ",
            "x*y",
            "x{1 ",
            "x^/x@",
            "x^{1",
            "x{1^",
        ];
        for wrong in wrong {
            assert_eq!(name(wrong), Err(Errno::INVAL), "{wrong}");
        }
    }

    #[test]
    fn pipes_have_numbers_in_the_older_request() {
        assert_eq!(Pipe::of("x{7").unwrap().numbered(), Ok((PIPE_MASTER, 7)));
        assert_eq!(Pipe::of("x}4094").unwrap().numbered(), Ok((PIPE_SLAVE, 4094)));
        for wrong in ["x{a", "x{4095", "x{65536", "x{1a"] {
            assert_eq!(Pipe::of(wrong).unwrap().numbered(), Err(Errno::INVAL), "{wrong}");
        }
        assert_eq!(Pipe::of("x"), None);
    }

    #[test]
    fn the_key_of_host_rings_is_taken_out() {
        assert_eq!(without_host("a:/b,host=nm0,csb=on"), ("a:/b,csb=on".into(), Some("nm0")));
        assert_eq!(without_host("a:/b,csb=on"), ("a:/b,csb=on".into(), None));
        assert_eq!(without_host("a:/b,host="), ("a:/b".into(), Some("")));
    }
}
