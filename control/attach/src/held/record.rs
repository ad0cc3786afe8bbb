//! What a holder has of a port, as bytes and descriptors: enough for the next switch to go on with
//! its client.
//!
//! Bytes are [`MAGIC`], then parts: a tag, a length, contents, in numbers of fixed width with the
//! low byte first. A part whose tag has [`OPTIONAL`] in it may be left out by who does not know
//! it. Nothing here is trusted: what becomes of guest memory and interrupts goes the way of the
//! messages by which clients describe them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use vmlan_keeper::hold::Held;

use crate::bytes::Body;
use crate::connection::{Connection, Framing};
use crate::vfio_user::version;

/// What the bytes begin with. The last one is the version.
const MAGIC: &[u8; 8] = b"vmlanp\0\x02";
/// Of a tag: whoever does not know the part does without.
const OPTIONAL: u16 = 1 << 15;
/// In place of a descriptor's number: there is none.
const NONE: u16 = u16::MAX;

/// What NIC it is, in words. A switch that is to make another one does not go on with this client.
const NIC: u16 = 1;
/// The socket's file: device and inode, then the listener and the keeper's line.
const DOOR: u16 = 2;
/// The connection: see [`Client`].
const CLIENT: u16 = 3;
/// A region of memory: see [`Region`].
const REGION: u16 = 4;
/// An interrupt: see [`Interrupt`].
const INTERRUPT: u16 = 5;
/// The release that wrote this.
const BUILD: u16 = OPTIONAL | 6;

/// The chip's whole state, of a switch that was told to make way.
const CHIP: u16 = OPTIONAL | 7;
/// The memory with what of the chip outlives a switch that is killed.
const STATE: u16 = OPTIONAL | 8;
/// A vhost-user request: see [`Setup`].
const SETUP: u16 = 9;

/// Most descriptors of one record.
pub const MAX_FDS: usize = 200;

/// Why a record is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RecordError {
    #[error("it is not of this format")]
    Format,
    #[error("its part {0} is of a newer release")]
    Newer(u16),
    #[error("its part {0} is malformed")]
    Part(u16),
    #[error("descriptor {0} is missing")]
    Fd(u16),
}

/// A connection.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Client<F> {
    pub socket: F,
    /// The memory of its journal.
    pub journal: F,
    /// The file that it may have mapped.
    pub area: Option<F>,
    /// The slot of its keeper's.
    pub slot: u8,
    /// What it has said of itself.
    pub version: Option<version::Client>,
    /// Control messages whose effects are in this record.
    pub controls: u64,
    /// Switches that it has outlived.
    pub adopted: u32,
    /// Of these, those in a row that have died soon after they went on with it.
    pub deaths: u32,
}

impl<'f> Client<BorrowedFd<'f>> {
    /// With what of a connection is to be held, and so many control messages whose effects are in
    /// the record, switches outlived, and deaths.
    ///
    /// # Errors
    /// It has no journal.
    pub fn of<F: Framing>(
        connection: &'f Connection<F>,
        (controls, adopted, deaths): (u64, u32, u32),
    ) -> Result<Self, &'static str> {
        Ok(Self {
            socket: connection.fd(),
            journal: connection.journal().ok_or("it has no journal")?.file(),
            area: None,
            slot: connection.slot(),
            version: None,
            controls,
            adopted,
            deaths,
        })
    }
}

/// A region of its memory: the body of its DMA_MAP, and its file.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Region<F> {
    pub body: [u8; 32],
    pub file: Option<F>,
}

/// An interrupt that it gave an eventfd for: index and vector as in DEVICE_SET_IRQS, and whether it
/// is the one by which INTx is unmasked.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Interrupt<F> {
    pub index: u32,
    pub vector: u32,
    pub unmask: bool,
    pub event: F,
}

/// A vhost-user request that tells of a part of what a front end has set up.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Setup<F> {
    pub number: u32,
    pub body: Vec<u8>,
    pub fd: Option<F>,
}

/// The same, of this process.
pub type Again = Setup<Arc<dyn AsFd>>;

/// A port. `F`: a descriptor.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Record<F> {
    pub nic: String,
    /// Device and inode of the socket's file.
    pub file: (u64, u64),
    /// `None`: the VMM listens.
    pub listener: Option<F>,
    /// To the port's keeper.
    pub line: F,
    pub client: Option<Client<F>>,
    pub regions: Vec<Region<F>>,
    pub interrupts: Vec<Interrupt<F>>,
    /// As [`vmlan_nic::chip::Nic::save`] has it; empty: the chip is lost.
    pub chip: Vec<u8>,
    /// See [`vmlan_nic::chip::held`].
    pub state: Option<F>,
    /// What a front end has set up, in the order in which it is to be done again.
    pub setup: Vec<Setup<F>>,
}

/// Parts on their way out. The same file is sent once.
struct Writer<'f> {
    bytes: Vec<u8>,
    fds: Vec<BorrowedFd<'f>>,
}

impl<'f> Writer<'f> {
    fn fd(&mut self, fd: Option<BorrowedFd<'f>>) -> [u8; 2] {
        use std::os::fd::AsRawFd as _;
        let Some(fd) = fd else { return NONE.to_le_bytes() };
        let same = |other: &BorrowedFd<'_>| other.as_raw_fd() == fd.as_raw_fd();
        let at = self.fds.iter().position(same).unwrap_or_else(|| {
            self.fds.push(fd);
            self.fds.len() - 1
        });
        u16::try_from(at).unwrap_or(NONE).to_le_bytes()
    }

    fn part(&mut self, tag: u16, contents: &[&[u8]]) {
        let len = contents.iter().map(|bytes| bytes.len()).sum::<usize>();
        self.bytes.extend(tag.to_le_bytes());
        self.bytes.extend(u16::try_from(len).unwrap_or(0).to_le_bytes());
        contents.iter().for_each(|bytes| self.bytes.extend_from_slice(bytes));
    }
}

impl<'f> Record<BorrowedFd<'f>> {
    /// As bytes and descriptors, for a holder. `None`: it has more descriptors than a record may.
    pub fn encode(&self) -> Option<(Vec<u8>, Vec<BorrowedFd<'f>>)> {
        let mut to = Writer { bytes: MAGIC.to_vec(), fds: Vec::new() };
        to.part(BUILD, &[env!("CARGO_PKG_VERSION").as_bytes()]);
        to.part(NIC, &[self.nic.as_bytes()]);
        if let Some(client) = &self.client {
            let socket = to.fd(Some(client.socket));
            let journal = to.fd(Some(client.journal));
            let area = to.fd(client.area);
            let said = client.version.map_or(0, |said| if said.gives_up { 2 } else { 1 });
            let (minor, fds) = client.version.map_or((0, 0), |said| (said.minor, said.max_msg_fds));
            let small = [client.slot, said];
            let (minor, fds) = (minor.to_le_bytes(), fds.to_le_bytes());
            let controls = client.controls.to_le_bytes();
            let fixed = [&socket, &journal, &area, &small, &minor].map(|b| &b[..]);
            let counts = [client.adopted, client.deaths].map(u32::to_le_bytes).concat();
            to.part(CLIENT, &[&fixed.concat(), &fds, &controls, &counts]);
        }
        for region in &self.regions {
            let file = to.fd(region.file);
            to.part(REGION, &[&region.body, &file]);
        }
        for interrupt in &self.interrupts {
            let event = to.fd(Some(interrupt.event));
            let (index, vector) = (interrupt.index.to_le_bytes(), interrupt.vector.to_le_bytes());
            to.part(INTERRUPT, &[&index, &vector, &[interrupt.unmask.into(), 0], &event]);
        }
        if !self.chip.is_empty() {
            to.part(CHIP, &[&self.chip]);
        }
        if let Some(state) = self.state {
            let state = to.fd(Some(state));
            to.part(STATE, &[&state]);
        }
        for Setup { number, body, fd } in &self.setup {
            let fd = to.fd(*fd);
            to.part(SETUP, &[&fd, &number.to_le_bytes(), body]);
        }
        // The line is the last. At its end the keeper lets go of the sockets: whoever drops this
        // list is not to be the last that has those.
        let (listener, line) = (to.fd(self.listener), to.fd(Some(self.line)));
        let (dev, ino) = self.file;
        to.part(DOOR, &[&dev.to_le_bytes(), &ino.to_le_bytes(), &listener, &line]);
        (to.fds.len() <= MAX_FDS).then_some((to.bytes, to.fds))
    }
}

/// A descriptor's number.
type Number = u16;

impl Record<OwnedFd> {
    /// What a holder has.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn decode(held: &Held) -> Result<Self, RecordError> {
        let numbers = Record::<Number>::parse(&held.bytes)?;
        // Several regions may be of one file.
        let fd = |n: Number| {
            let fd = held.fds.get(usize::from(n)).ok_or(RecordError::Fd(n))?;
            fd.as_fd().try_clone_to_owned().map_err(|_| RecordError::Fd(n))
        };
        numbers.with(fd)
    }
}

/// The line to a port's keeper, if that is what is `held`.
pub fn line(held: &Held) -> Option<BorrowedFd<'_>> {
    let line = Record::<Number>::parse(&held.bytes).ok()?.line;
    Some(held.fds.get(usize::from(line))?.as_fd())
}

impl Record<Number> {
    fn with<F>(
        self,
        fd: impl Fn(Number) -> Result<F, RecordError>,
    ) -> Result<Record<F>, RecordError> {
        let some = |n: Option<Number>| n.map(&fd).transpose();
        let client = self.client.map(|c| {
            Ok(Client {
                socket: fd(c.socket)?,
                journal: fd(c.journal)?,
                area: some(c.area)?,
                slot: c.slot,
                version: c.version,
                controls: c.controls,
                adopted: c.adopted,
                deaths: c.deaths,
            })
        });
        let region = |r: Region<Number>| Ok(Region { body: r.body, file: some(r.file)? });
        let interrupt = |i: Interrupt<Number>| {
            let Interrupt { index, vector, unmask, event } = i;
            Ok(Interrupt { index, vector, unmask, event: fd(event)? })
        };
        let setup =
            |s: Setup<Number>| Ok(Setup { number: s.number, body: s.body, fd: some(s.fd)? });
        Ok(Record {
            nic: self.nic,
            file: self.file,
            listener: some(self.listener)?,
            line: fd(self.line)?,
            client: client.transpose()?,
            regions: self.regions.into_iter().map(region).collect::<Result<_, _>>()?,
            interrupts: self.interrupts.into_iter().map(interrupt).collect::<Result<_, _>>()?,
            chip: self.chip,
            state: some(self.state)?,
            setup: self.setup.into_iter().map(setup).collect::<Result<_, _>>()?,
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(RecordError::Format)?;
        let (mut nic, mut door, mut client) = (None, None, None);
        let (mut regions, mut interrupts, mut chip) = (Vec::new(), Vec::new(), Vec::new());
        let (mut state, mut setup) = (None, Vec::new());
        while let Some((head, after)) = rest.split_first_chunk::<4>() {
            let [tag, len] = [Le(head).u16(0), Le(head).u16(2)];
            let (part, after) = after.split_at_checked(len.into()).ok_or(RecordError::Format)?;
            rest = after;
            let sized = |n: usize| {
                if part.len() == n { Ok(Le(part)) } else { Err(RecordError::Part(tag)) }
            };
            match tag {
                NIC => nic = Some(String::from_utf8_lossy(part).into_owned()),
                DOOR => {
                    let p = sized(20)?;
                    door = Some(((p.u64(0), p.u64(8)), p.fd(16), p.u16(18)));
                }
                CLIENT => client = Some(sized(34)?.client()),
                REGION => {
                    let (p, body) = (sized(34)?, part.first_chunk());
                    let body = *body.ok_or(RecordError::Part(tag))?;
                    regions.push(Region { body, file: p.fd(32) });
                }
                INTERRUPT => {
                    let p = sized(12)?;
                    let (index, vector, event) = (p.u32(0), p.u32(4), p.u16(10));
                    interrupts.push(Interrupt { index, vector, unmask: p.u16(8) & 1 == 1, event });
                }
                CHIP => chip = part.to_vec(),
                STATE => state = sized(2)?.fd(0),
                SETUP => {
                    let (head, body) = part.split_at_checked(6).ok_or(RecordError::Part(tag))?;
                    let (fd, number) = (Le(head).fd(0), Le(head).u32(2));
                    setup.push(Setup { number, body: body.to_vec(), fd });
                }
                _ if tag & OPTIONAL != 0 => {}
                _ => return Err(RecordError::Newer(tag)),
            }
        }
        let (file, listener, line) = door.ok_or(RecordError::Part(DOOR))?;
        let nic = nic.ok_or(RecordError::Part(NIC))?;
        if !rest.is_empty() {
            return Err(RecordError::Format);
        }
        Ok(Self { nic, file, listener, line, client, regions, interrupts, chip, state, setup })
    }
}

/// Numbers with the low byte first.
struct Le<'b>(&'b [u8]);

impl Le<'_> {
    fn u16(&self, at: usize) -> u16 {
        u16::from_le(Body(self.0).u16(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le(Body(self.0).u32(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le(Body(self.0).u64(at))
    }

    fn fd(&self, at: usize) -> Option<Number> {
        Some(self.u16(at)).filter(|n| *n != NONE)
    }

    fn client(&self) -> Client<Number> {
        let [slot, said] = self.u16(6).to_le_bytes();
        Client {
            socket: self.u16(0),
            journal: self.u16(2),
            area: self.fd(4),
            slot,
            version: (said != 0).then(|| version::Client {
                minor: self.u16(8),
                max_msg_fds: self.u64(10),
                gives_up: said == 2,
            }),
            controls: self.u64(18),
            adopted: self.u32(26),
            deaths: self.u32(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    fn inode(fd: &OwnedFd) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        File::from(fd.try_clone().unwrap()).metadata().unwrap().ino()
    }

    const SAID: Option<version::Client> =
        Some(version::Client { minor: 1, max_msg_fds: 8, gives_up: true });

    fn sample(fds: &[OwnedFd]) -> Record<BorrowedFd<'_>> {
        let fd = |n: usize| fds[n].as_fd();
        let client = Client {
            socket: fd(2),
            journal: fd(3),
            area: Some(fd(4)),
            slot: 7,
            version: SAID,
            controls: 1 << 40,
            adopted: 3,
            deaths: 1,
        };
        let region = |n: u8, file| Region { body: [n; 32], file };
        let interrupt = |vector, unmask, n| Interrupt { index: 2, vector, unmask, event: fd(n) };
        let request = |number, fd| Setup { number, body: vec![7; 8], fd };
        Record {
            nic: "e1000".into(),
            file: (1 << 60, 2),
            listener: Some(fd(0)),
            line: fd(1),
            client: Some(client),
            // Two of one file.
            regions: vec![region(1, Some(fd(5))), region(2, None), region(3, Some(fd(5)))],
            interrupts: vec![interrupt(0, true, 6), interrupt(24, false, 7)],
            chip: b"state".to_vec(),
            state: Some(fd(8)),
            setup: vec![request(2, None), request(12, Some(fd(7))), request(39, None)],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let fds: Vec<_> = (0..9).map(|_| file()).collect();
        let record = sample(&fds);
        let (bytes, list) = record.encode().unwrap();
        assert_eq!(list.len(), 9);
        let dups = list.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let held = Held { name: "p".into(), fds: dups, bytes };
        let read = Record::decode(&held).unwrap();
        let Record { nic, file, listener, line, client, regions, interrupts, .. } = &read;
        let (chip, state, listener) = (&read.chip, &read.state, listener.as_ref().unwrap());
        assert_eq!(chip, b"state");
        assert_eq!(state.as_ref().map(inode), Some(inode(&fds[8])));
        let was = |fd: &BorrowedFd<'_>| inode(&fd.try_clone_to_owned().unwrap());
        assert_eq!((nic.as_str(), *file), ("e1000", (1 << 60, 2)));
        let same = [(listener, record.listener.unwrap()), (line, record.line)];
        assert!(same.iter().all(|(now, then)| inode(now) == was(then)));
        let (now, then) = (client.as_ref().unwrap(), record.client.as_ref().unwrap());
        let small = |c: &Client<OwnedFd>| (c.slot, c.version, c.controls, c.adopted, c.deaths);
        assert_eq!(small(now), (7, SAID, 1 << 40, 3, 1));
        assert_eq!(inode(&now.socket), was(&then.socket));
        assert_eq!(inode(&now.journal), was(&then.journal));
        let files: Vec<_> = regions.iter().map(|r| r.file.as_ref().map(inode)).collect();
        let seven = Some(was(&record.regions[0].file.unwrap()));
        assert_eq!(files, [seven, None, seven]);
        let list: Vec<_> = interrupts.iter().map(|i| (i.index, i.vector, i.unmask)).collect();
        assert_eq!(list, [(2, 0, true), (2, 24, false)]);
        let numbers = |n: u32, body: &[u8]| (n, body == [7; 8]);
        let list: Vec<_> = read.setup.iter().map(|s| numbers(s.number, &s.body)).collect();
        assert_eq!(list, [(2, true), (12, true), (39, true)]);
        let nine = Some(was(&record.interrupts[1].event));
        let files: Vec<_> = read.setup.iter().map(|s| s.fd.as_ref().map(inode)).collect();
        assert_eq!(files, [None, nine, None]);
    }

    /// A record of each version that this one goes on from, written by `write_golden` of its time.
    /// Another version has another file beside this one, and a reader, or says why not.
    #[test]
    fn what_earlier_builds_have_written_is_read() {
        let fds: Vec<_> = (0..9).map(|_| file()).collect();
        let (bytes, _) = sample(&fds).encode().unwrap();
        let now = Record::<Number>::parse(&bytes).unwrap();
        let then = include_bytes!("../../tests/held/port-2.record");
        assert_eq!(Record::parse(then), Ok(now));
        // Version 1, of no release: replies were under way in a pipe.
        let mut older = then.to_vec();
        older[7] = 1;
        assert_eq!(Record::<Number>::parse(&older), Err(RecordError::Format));
    }

    #[test]
    #[ignore = "writes into tests/held"]
    fn write_golden() {
        let fds: Vec<_> = (0..9).map(|_| file()).collect();
        let (bytes, _) = sample(&fds).encode().unwrap();
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/held/port-2.record");
        std::fs::write(place, bytes).unwrap();
    }

    /// Every prefix, every bit, every descriptor away: an error or another record, and no panic.
    #[test]
    fn whatever_is_held_is_read_or_refused() {
        let fds: Vec<_> = (0..9).map(|_| file()).collect();
        let (bytes, list) = sample(&fds).encode().unwrap();
        let parse = |bytes: &[u8]| Record::<Number>::parse(bytes);
        assert!(parse(&bytes).is_ok());
        assert!((0..bytes.len()).all(|n| parse(&bytes[..n]).is_err()), "the last part must be");
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let _ = parse(&other);
        }
        for n in 0..list.len() {
            let fds = list.iter().take(n).map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            let held = Held { name: String::new(), fds, bytes: bytes.clone() };
            assert!(matches!(Record::decode(&held), Err(RecordError::Fd(_))), "{n}");
        }
    }

    #[test]
    fn parts_of_newer_releases_are_left_out_if_they_may() {
        let fds: Vec<_> = (0..9).map(|_| file()).collect();
        let (mut bytes, _) = sample(&fds).encode().unwrap();
        let known = Record::<Number>::parse(&bytes).unwrap();
        bytes.extend([&(OPTIONAL | 99).to_le_bytes()[..], &3u16.to_le_bytes(), b"new"].concat());
        assert_eq!(Record::<Number>::parse(&bytes).unwrap(), known);
        bytes.extend([&99u16.to_le_bytes()[..], &0u16.to_le_bytes()].concat());
        assert_eq!(Record::<Number>::parse(&bytes), Err(RecordError::Newer(99)));
    }
}
