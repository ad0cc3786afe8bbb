//! Descriptors (virtio 1.2 sections 2.7.5 and 2.8.13), and chains of them in a split ring
//! (2.7.5.3).

use vmlan_ram::{Map, Slice, Window};

use super::Fault;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

pub(super) const SIZE: u32 = 16; // Bytes of a descriptor.
/// Descriptors in an indirect table, at most (section 2.7.5.3.1: no longer than the largest ring).
const MAX_TABLE: u32 = 32768;

/// The buffers of one chain, one after the other, each read once.
pub(super) trait Buffers {
    /// The next buffer: address and length. `None` after the last.
    fn next_buffer(&mut self) -> Result<Option<(u64, u32)>, Fault>;
}

/// One descriptor, copied out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// The next one's number; in a packed ring the buffer's.
    pub(super) next: u16,
}

impl Desc {
    /// From the 16 bytes of section 2.7.5.
    #[inline]
    pub(super) fn from_bytes(bytes: [u8; SIZE as usize]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            addr: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }

    /// A whole chain by itself: no NEXT, no INDIRECT, and of the given direction.
    #[inline]
    pub(super) fn is_single(&self, write: bool) -> bool {
        self.flags & (NEXT | WRITE | INDIRECT) == if write { WRITE } else { 0 }
    }
}

/// The descriptors of one chain, read one after the other, each once.
pub(super) struct Chain<'q> {
    ring: &'q Window,
    map: &'q Map,
    /// Guest address of the indirect table we are in.
    table: Option<u64>,
    /// Descriptors in the present table.
    count: u32,
    /// How many more may follow: this ends circular chains.
    left: u32,
    indirect: bool,
    write: bool,
    ahead: Option<Desc>,
}

impl<'q> Chain<'q> {
    pub(super) fn new(
        ring: &'q Window,
        map: &'q Map,
        first: Desc,
        size: u16,
        indirect: bool,
        write: bool,
    ) -> Self {
        let count = u32::from(size);
        Self { ring, map, table: None, count, left: count, indirect, write, ahead: Some(first) }
    }

    /// Goes on in the table that `desc` names. Its length is the one copied out: it is not read
    /// again.
    fn enter(&mut self, desc: &Desc) -> Result<(), Fault> {
        if !self.indirect || self.table.is_some() || desc.flags & NEXT != 0 {
            return Err(Fault::Indirect);
        }
        let count = table_entries(desc.len)?;
        self.table = Some(desc.addr);
        (self.count, self.left) = (count, count);
        Ok(())
    }

    fn read(&self, index: u32) -> Result<Desc, Fault> {
        if index >= self.count {
            return Err(Fault::OutOfTable(index));
        }
        let off = SIZE * index;
        let Some(table) = self.table else {
            let bytes = self.ring.slice(off as usize, SIZE as usize).read_array();
            return Ok(Desc::from_bytes(bytes.unwrap_or_default()));
        };
        let addr = table.wrapping_add(off.into());
        let bytes = copy_out(self.map, addr).ok_or(Fault::BadAddress { addr, len: SIZE })?;
        Ok(Desc::from_bytes(bytes))
    }
}

impl Buffers for Chain<'_> {
    fn next_buffer(&mut self) -> Result<Option<(u64, u32)>, Fault> {
        let Some(mut desc) = self.ahead.take() else { return Ok(None) };
        if desc.flags & INDIRECT != 0 {
            self.enter(&desc)?;
            desc = self.read(0)?;
            if desc.flags & INDIRECT != 0 {
                return Err(Fault::Indirect);
            }
        }
        self.left = self.left.checked_sub(1).ok_or(Fault::Endless)?;
        if (desc.flags & WRITE != 0) != self.write {
            return Err(Fault::Direction);
        }
        if desc.flags & NEXT != 0 {
            if self.left == 0 {
                return Err(Fault::Endless);
            }
            self.ahead = Some(self.read(desc.next.into())?);
        }
        Ok(Some((desc.addr, desc.len)))
    }
}

/// Descriptors in an indirect table of `len` bytes.
pub(super) fn table_entries(len: u32) -> Result<u32, Fault> {
    let count = len / SIZE;
    if count == 0 || count > MAX_TABLE || !len.is_multiple_of(SIZE) {
        return Err(Fault::IndirectSize(len));
    }
    Ok(count)
}

/// The 16 bytes at `addr`, even if a region ends among them.
pub(super) fn copy_out(map: &Map, addr: u64) -> Option<[u8; SIZE as usize]> {
    if let Some(slice) = map.slice(addr, SIZE as usize) {
        return slice.read_array();
    }
    let mut bytes = [0; SIZE as usize];
    let mut done = 0;
    while done < bytes.len() {
        let rest = bytes.get_mut(done..)?;
        let run: Slice<'_> = map.first_run(addr.checked_add(done as u64)?, rest.len())?;
        done += run.read(rest);
    }
    Some(bytes)
}
