//! The registers of a Realtek chip: 256 bytes of registers that are 1, 2 or 4 bytes wide. An access
//! of any size at any offset acts on each register that it touches: once, in the order of their
//! addresses.
//!
//! Values live in atomics, so that the data path reads them without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use vmlan_frame::RegisterCount;

use crate::chip::StateError;
use crate::chip::held::{Held, Remains};
use crate::chip::state::Fields;

/// Bytes of the window, as memory and as I/O ports.
pub const WINDOW: usize = 256;

/// Names of registers, and where each begins.
macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident = $offset:literal,)*) => {
        $($(#[$doc])* pub const $name: u8 = $offset;)*
    };
}
pub(crate) use offsets;

/// A register. Those of 8 bytes are two rows.
#[derive(Debug)]
pub struct Row {
    /// The datasheet's name.
    pub name: &'static str,
    /// Of its first byte.
    pub offset: u8,
    /// 1, 2 or 4.
    pub bytes: u8,
    /// Bits that keep what is written to them. Others read as 0, unless the chip sets them.
    pub mask: u32,
    /// After reset.
    pub reset: u32,
}

/// A row of a table.
pub const fn row(name: &'static str, offset: u8, bytes: u8, mask: u32, reset: u32) -> Row {
    Row { name, offset, bytes, mask, reset }
}

/// What a write does to one register.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The register.
    pub row: &'static Row,
    /// Its new value, as far as it is written.
    pub value: u32,
    /// The bits that are.
    pub covers: u32,
}

impl Write {
    /// The written bits of it, and `kept` for the rest.
    pub fn over(&self, kept: u32) -> u32 {
        kept & !self.covers | self.value & self.covers
    }
}

#[derive(Debug)]
struct Slot {
    row: &'static Row,
    value: AtomicU32,
    reads: AtomicU64,
    writes: AtomicU64,
}

/// The registers of one chip, and how often each was touched.
#[derive(Debug)]
pub struct Registers {
    slots: Box<[Slot]>,
    /// For each byte, the index of its slot plus 1; 0: no register.
    of: [u8; WINDOW],
    /// Where the values go as well, to outlive the process; and which of two sets it is there.
    held: OnceLock<Arc<Held>>,
    set: u32,
}

impl Registers {
    /// With their values after power-on. Of rows that overlap the last one counts.
    pub fn new(rows: impl IntoIterator<Item = &'static Row>) -> Self {
        let slot = |row: &'static Row| Slot {
            row,
            value: AtomicU32::new(row.reset),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        };
        let slots: Box<[Slot]> = rows.into_iter().map(slot).collect();
        let mut of = [0; WINDOW];
        for (number, slot) in (1u8..).zip(&slots) {
            let start = usize::from(slot.row.offset);
            of.iter_mut().skip(start).take(slot.row.bytes.into()).for_each(|of| *of = number);
        }
        Self { slots, of, held: OnceLock::new(), set: 0 }
    }

    /// Of two sets, the second.
    #[must_use]
    pub fn second(self) -> Self {
        Self { set: 1, ..self }
    }

    /// Where a register lies in what outlives the process: there are none of less than 4 bytes.
    pub fn place(&self, offset: u8) -> u32 {
        (u32::from(offset) + 0x100 * self.set) * 4
    }

    /// What outlives the process has the value before anybody can act on it.
    #[inline]
    pub fn note(&self, offset: u8, value: u32) {
        if let Some(held) = self.held.get() {
            held.set_register(self.place(offset), value);
        }
    }

    /// They outlive the process in there.
    pub fn hold(&self, held: &Arc<Held>) -> bool {
        self.held.set(Arc::clone(held)).is_ok()
    }

    /// What outlives the process, if something does.
    pub fn held(&self) -> Option<&Held> {
        self.held.get().map(|held| &**held)
    }

    /// Finds them in what a process has left.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn revive(&self, remains: &Remains<'_>) -> Result<(), StateError> {
        // Of rows that overlap the last one counts.
        let rows = self.slots.iter().filter_map(|slot| {
            let row = self.slot(slot.row.offset.into())?.row;
            (row.offset == slot.row.offset).then_some(row)
        });
        for row in rows {
            let value = remains.register(self.place(row.offset));
            if value.checked_shr(u32::from(row.bytes) * 8).unwrap_or(0) != 0 {
                return Err(StateError::Lost("a register has bits that do not exist"));
            }
            self.set(row.offset, value);
        }
        Ok(())
    }

    #[inline]
    fn slot(&self, offset: usize) -> Option<&Slot> {
        self.slots.get(usize::from(*self.of.get(offset)?).checked_sub(1)?)
    }

    #[inline]
    pub fn get(&self, offset: u8) -> u32 {
        self.slot(offset.into()).map_or(0, |slot| slot.value.load(Ordering::Acquire))
    }

    #[inline]
    pub fn set(&self, offset: u8, value: u32) {
        if let Some(slot) = self.slot(offset.into()) {
            // First: somebody may act on it at once.
            self.note(offset, value);
            slot.value.store(value, Ordering::Release);
        }
    }

    /// Two registers as one address.
    #[inline]
    pub fn address(&self, low: u8) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(low.wrapping_add(4))) << 32
    }

    /// Stores what is written and can be. Returns the value before and after.
    pub fn store(&self, write: &Write) -> (u32, u32) {
        let before = self.get(write.row.offset);
        let mask = write.row.mask;
        let after = before & !mask | write.over(before) & mask;
        self.set(write.row.offset, after);
        (before, after)
    }

    /// Reads the registers in `offset..offset + data.len()`; `read` says what is in each. Bytes
    /// between registers read as 0, and bytes behind the window as ones.
    pub fn read(&self, offset: u64, data: &mut [u8], mut read: impl FnMut(&'static Row) -> u32) {
        let mut at = usize::try_from(offset).unwrap_or(WINDOW);
        let mut rest = data;
        while !rest.is_empty() {
            if at >= WINDOW {
                return rest.fill(u8::MAX);
            }
            let mut n = 1;
            match self.slot(at) {
                None => rest.iter_mut().take(1).for_each(|byte| *byte = 0),
                Some(slot) => {
                    slot.reads.fetch_add(1, Ordering::Relaxed);
                    let value = read(slot.row).to_le_bytes();
                    let skip = at - usize::from(slot.row.offset);
                    let part = value.iter().take(slot.row.bytes.into()).skip(skip);
                    n = part.len().clamp(1, rest.len());
                    rest.iter_mut().zip(part).for_each(|(byte, value)| *byte = *value);
                }
            }
            at += n;
            rest = rest.get_mut(n..).unwrap_or_default();
        }
    }

    /// Writes the registers in `offset..offset + data.len()`; `write` does it to each.
    pub fn write(&self, offset: u64, data: &[u8], mut write: impl FnMut(Write)) {
        let mut at = usize::try_from(offset).unwrap_or(WINDOW);
        let mut rest = data;
        while !rest.is_empty() && at < WINDOW {
            let mut n = 1;
            if let Some(slot) = self.slot(at) {
                slot.writes.fetch_add(1, Ordering::Relaxed);
                let skip = at - usize::from(slot.row.offset);
                let (mut value, mut covers) = ([0; 4], [0; 4]);
                let places = value.iter_mut().zip(&mut covers).take(slot.row.bytes.into());
                n = places.len().saturating_sub(skip).clamp(1, rest.len());
                for ((value, covers), byte) in places.skip(skip).zip(rest) {
                    (*value, *covers) = (*byte, u8::MAX);
                }
                let (value, covers) = (u32::from_le_bytes(value), u32::from_le_bytes(covers));
                write(Write { row: slot.row, value, covers });
            }
            at += n;
            rest = rest.get(n..).unwrap_or_default();
        }
    }

    /// Sets registers to their values after reset, but those that `keeps` says keep theirs.
    pub fn reset(&self, keeps: impl Fn(&Row) -> bool) {
        for slot in self.slots.iter().filter(|slot| !keeps(slot.row)) {
            self.note(slot.row.offset, slot.row.reset);
            slot.value.store(slot.row.reset, Ordering::Release);
        }
    }

    /// Passes the registers that are not as after power-on. What they may hold is up to the width
    /// of each: nobody takes them at their word.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { slots, of: _, held: _, set: _ } = self;
        let mut list: Vec<(u8, u32)> = slots
            .iter()
            .map(|slot| (slot.row, slot.value.load(Ordering::Acquire)))
            .filter(|(row, value)| *value != row.reset)
            .map(|(row, value)| (row.offset, value))
            .collect();
        io.list(&mut list, WINDOW, |io, (offset, value)| {
            io.u8(offset);
            io.u32(value);
        });
        if !io.restores() {
            return;
        }
        self.reset(|_| false);
        for (offset, value) in list {
            let fits = |row: &Row| {
                let bits = u32::from(row.bytes) * 8;
                row.offset == offset && value.checked_shr(bits).unwrap_or(0) == 0
            };
            io.check(self.slot(offset.into()).is_some_and(|slot| fits(slot.row)));
            self.set(offset, value);
        }
    }

    /// Registers that were touched. Rows of one name are one.
    pub fn accesses(&self) -> Vec<RegisterCount> {
        let mut all: Vec<RegisterCount> = Vec::new();
        for slot in &self.slots {
            let (reads, writes) =
                (slot.reads.load(Ordering::Relaxed), slot.writes.load(Ordering::Relaxed));
            match all.iter_mut().find(|access| access.register == slot.row.name) {
                Some(access) => {
                    access.reads += reads;
                    access.writes += writes;
                }
                None => all.push(RegisterCount { register: slot.row.name, reads, writes }),
            }
        }
        all.retain(|access| access.reads | access.writes != 0);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ROWS: &[Row] = &[
        row("A", 0, 4, u32::MAX, 0x4433_2211),
        row("B", 4, 2, 0xff0f, 0x6655),
        row("C", 7, 1, 0xff, 0x88),
        row("Z", 0xfe, 2, 0xffff, 0),
    ];

    fn read(regs: &Registers, offset: u64, len: usize) -> (Vec<u8>, Vec<&'static str>) {
        let (mut data, mut touched) = (vec![0xee; len], vec![]);
        regs.read(offset, &mut data, |row| {
            touched.push(row.name);
            regs.get(row.offset)
        });
        (data, touched)
    }

    #[test]
    fn reads_touch_each_register_once_whatever_their_size() {
        let regs = Registers::new(ROWS);
        let all = (vec![0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0, 0x88, 0], vec!["A", "B", "C"]);
        assert_eq!(read(&regs, 0, 9), all);
        assert_eq!(read(&regs, 2, 3), (vec![0x33, 0x44, 0x55], vec!["A", "B"]));
        assert_eq!(read(&regs, 5, 2), (vec![0x66, 0], vec!["B"]));
        assert_eq!(read(&regs, 0xff, 3), (vec![0, 0xff, 0xff], vec!["Z"]));
        assert_eq!(read(&regs, u64::MAX, 2), (vec![0xff; 2], vec![]));
        assert_eq!(read(&regs, 3, 0), (vec![], vec![]));
        let counts: Vec<_> = regs.accesses().iter().map(|a| (a.register, a.reads)).collect();
        assert_eq!(counts, [("A", 2), ("B", 3), ("C", 1), ("Z", 1)]);
    }

    #[test]
    fn writes_cover_what_they_cover() {
        let regs = Registers::new(ROWS);
        let mut seen = vec![];
        regs.write(3, &[1, 2, 3, 4, 5], |write| {
            seen.push((write.row.name, write.value, write.covers));
            regs.store(&write);
        });
        let (a, b) = (("A", 0x0100_0000, 0xff00_0000), ("B", 0x0302, 0xffff));
        assert_eq!(seen, [a, b, ("C", 5, 0xff)]);
        assert_eq!((regs.get(0), regs.get(4), regs.get(7)), (0x0133_2211, 0x0352, 5));
        regs.write(0xff, &[9, 9, 9], |write| {
            regs.store(&write);
        });
        regs.write(0x1_0000, &[9], |_| unreachable!());
        assert_eq!(regs.get(0xfe), 0x0900);
        regs.reset(|row| row.name == "C");
        assert_eq!((regs.get(0), regs.get(7)), (0x4433_2211, 5));
    }
}
