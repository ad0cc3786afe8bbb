//! The buffers of one list of a packed ring (virtio 1.2 sections 2.8.5 to 2.8.7).

use vmlan_ram::{Map, Window};

use super::super::Fault;
use super::super::desc::{Buffers, Desc, INDIRECT, NEXT, SIZE, WRITE, copy_out, table_entries};
use super::{desc, off, place, read};

/// Where the descriptors lie: one after the other, either way.
enum Lies<'q> {
    Ring { ring: &'q Window, slot: u16, size: u16 },
    Table(u64),
}

/// The descriptors of one list, read one after the other, each once. How many there are was counted
/// before: what they say of that now is not believed.
pub(in super::super) struct List<'q> {
    lies: Lies<'q>,
    map: &'q Map,
    first: Option<Desc>,
    at: u32,
    count: u32,
    indirect: bool,
    write: bool,
}

impl<'q> List<'q> {
    /// The list of `count` descriptors at `slot`, whose first was read.
    pub(super) fn new(
        ring: &'q Window,
        map: &'q Map,
        (first, slot, count): (Desc, u16, u16),
        indirect: bool,
        write: bool,
    ) -> Self {
        let size = u16::try_from(ring.len() / off(1)).unwrap_or(u16::MAX);
        let lies = Lies::Ring { ring, slot, size };
        Self { lies, map, first: Some(first), at: 0, count: count.into(), indirect, write }
    }

    fn read(&self) -> Result<Desc, Fault> {
        match &self.lies {
            Lies::Ring { ring, slot, size } => {
                let k = u16::try_from(self.at).unwrap_or(0);
                Ok(read(ring, place::after(*slot, k, *size)))
            }
            Lies::Table(table) => {
                let addr = table.wrapping_add(u64::from(SIZE) * u64::from(self.at));
                let bytes = copy_out(self.map, addr);
                let bytes = bytes.ok_or(Fault::BadAddress { addr, len: SIZE })?;
                let (words, _) = bytes.as_chunks::<8>();
                let [a, b] = [0, 1].map(|i| words.get(i).map_or(0, |w| u64::from_le_bytes(*w)));
                Ok(desc((a, b)))
            }
        }
    }

    /// Goes on in the table that `desc` names: all of it is the list (section 2.8.7). Its length is
    /// the one copied out: it is not read again.
    fn enter(&mut self, desc: &Desc) -> Result<(), Fault> {
        if !self.indirect || self.count > 1 || desc.flags & NEXT != 0 {
            return Err(Fault::Indirect);
        }
        self.count = table_entries(desc.len)?;
        self.lies = Lies::Table(desc.addr);
        Ok(())
    }
}

impl Buffers for List<'_> {
    fn next_buffer(&mut self) -> Result<Option<(u64, u32)>, Fault> {
        if self.at == self.count {
            return Ok(None);
        }
        let mut desc = match self.first.take() {
            Some(first) => first,
            None => self.read()?,
        };
        if desc.flags & INDIRECT != 0 {
            // Nested ones, or one in the middle of a list, are refused there.
            if matches!(self.lies, Lies::Table(_)) {
                return Err(Fault::Indirect);
            }
            self.enter(&desc)?;
            desc = self.read()?;
            if desc.flags & INDIRECT != 0 {
                return Err(Fault::Indirect);
            }
        }
        if (desc.flags & WRITE != 0) != self.write {
            return Err(Fault::Direction);
        }
        self.at += 1;
        Ok(Some((desc.addr, desc.len)))
    }
}
