//! A chip's whole state as bytes, for a successor that goes on where it stopped.
//!
//! ```text
//!  0  "vmlanNIC"                      a part, one after the other behind the header:
//!  8  layout             u32            0  tag            4 bytes
//! 12  bytes, with this   u32            4  version        u16
//! 16  model              16 bytes       6  flags          u16   bit 0: may be skipped
//! 32  build              16 bytes       8  bytes          u32
//! 48  parts                            12  fields
//! ```
//!
//! All numbers are little-endian and of fixed width; flags are one byte, 0 or 1; times are those of
//! the host's clock ([`super::Host::now`]). Names are padded with zeros. There is nothing else: no
//! pointer, no type's own representation. The build says who wrote it, and decides nothing.
//!
//! # Older and newer releases
//!
//! A part that a reader does not know is skipped if it may be, else the state is refused. So is a
//! part whose version is newer than the reader's. What a successor can do without goes into a new
//! part that may be skipped; what it cannot, into a newer version of its part, whose reader takes
//! the older one as well ([`Fields::since`]).
//!
//! # One function for both ways
//!
//! [`Stateful::fields`] names the fields of a part once, for saving and for restoring: it takes its
//! struct apart without `..`, so that a field that is added later does not compile until it is
//! named here, or left out with a reason. What follows from other fields (what lets frames pass,
//! digests of registers, places in the guest's memory) is not saved but found again.
//!
//! # Whom to believe
//!
//! Nobody: a state may be of any bytes. Each index, size and choice is checked where it is read.
//! The first that cannot be ends the restoring, and [`PciFunction::restore`] puts the chip back as
//! it was.
//!
//! [`PciFunction::restore`]: super::PciFunction::restore

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use vmlan_frame::{Counter, Counters, Direction, Mac, Reason};

const MAGIC: [u8; 8] = *b"vmlanNIC";
const LAYOUT: u32 = 1;
const HEADER: usize = 48; // Bytes of the header.
const NAME: usize = 16; // Bytes of a name in it.
const MAY_SKIP: u16 = 1;

/// A counter that is larger than this is no count of anything: it would take three years at 100
/// Gbit/s. Sums of counters of all queues do not overflow.
const MOST_COUNTED: u64 = 1 << 59;

/// The name of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub [u8; 4]);

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// Why a chip cannot go on from a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Its header is of something else, or cut off.
    #[error("this is not a NIC's state")]
    NotAState,
    /// A newer release wrote it, in a way that this one does not know.
    #[error("the NIC's state has layout {0}, which this release does not know")]
    Layout(u32),
    /// See there.
    #[error("the NIC's state is of another model")]
    Model,
    /// A part is cut off, or there twice.
    #[error("the NIC's state is damaged")]
    Damaged,
    /// It has not got this part.
    #[error("the NIC's state has no part \"{0}\"")]
    Missing(Tag),
    /// It has a part that must be understood, and is not.
    #[error("the NIC's state has a part \"{0}\", version {1}, which this release does not know")]
    Unknown(Tag, u16),
    /// This model does not outlive its process.
    #[error("nothing of this NIC outlives a switch that is killed")]
    NotHeld,
    /// What was held of it says something that cannot be, or that cannot be gone on with.
    #[error("what was held of the NIC is of no use: {0}")]
    Lost(&'static str),
    /// A part says something that cannot be, or does not fit this chip.
    #[error("part \"{0}\" of the NIC's state does not fit this NIC")]
    Unfit(Tag),
}

/// How a chip was made, as its state says. Whoever makes its successor gives it the same: the guest
/// was told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// [`super::Config::mac`].
    pub mac: Mac,
    /// [`super::Config::csb`], as far as the model has one.
    pub csb: bool,
    /// Which of the variants of its model: `Rtl8139::new`'s `plus`.
    pub variant: u8,
}

impl Made {
    /// Reads it, and nothing else.
    ///
    /// # Errors
    /// Those of the header and of this part.
    pub fn read(state: &[u8], model: &str) -> Result<Self, StateError> {
        let mut made = Self::default();
        let mut parts = Parts::restore(state, model)?;
        parts.part(MADE, 1, |io| made.fields(io));
        parts.error.map_or(Ok(made), Err)
    }
}

/// The part with [`Made`].
pub(crate) const MADE: Tag = Tag(*b"MADE");

impl Stateful for Made {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { mac, csb, variant } = self;
        mac.fields(io);
        io.flag(csb);
        io.u8(variant);
    }
}

/// What can be saved and restored.
pub trait Stateful {
    /// Passes all fields through `io`, in an order that stays.
    fn fields(&mut self, io: &mut Fields<'_>);
}

impl Stateful for () {
    fn fields(&mut self, _: &mut Fields<'_>) {}
}

impl<T: Stateful, const N: usize> Stateful for [T; N] {
    fn fields(&mut self, io: &mut Fields<'_>) {
        self.iter_mut().for_each(|item| item.fields(io));
    }
}

impl Stateful for Mac {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let mut octets = self.octets();
        io.bytes(&mut octets);
        *self = Self::new(octets);
    }
}

/// Where fields go, or come from.
enum Going<'b> {
    Out(&'b mut Vec<u8>),
    In(&'b [u8]),
}

/// The fields of a part, on their way out or in.
pub struct Fields<'b> {
    going: Going<'b>,
    version: u16,
    /// Something cannot be. What is read after that is 0.
    unfit: bool,
}

macro_rules! number {
    ($($name:ident)*) => {
        $(impl Stateful for $name {
            fn fields(&mut self, io: &mut Fields<'_>) {
                io.$name(self);
            }
        })*

        impl Fields<'_> {$(
            /// A number of this width.
            pub fn $name(&mut self, value: &mut $name) {
                let mut bytes = value.to_le_bytes();
                self.bytes(&mut bytes);
                *value = $name::from_le_bytes(bytes);
            }
        )*}
    };
}

number!(u8 u16 u32 u64);

impl Fields<'_> {
    /// They come in.
    pub fn restores(&self) -> bool {
        matches!(self.going, Going::In(_))
    }

    /// The part has what version `n` added: false for an older state that is restored.
    pub fn since(&self, n: u16) -> bool {
        self.version >= n
    }

    /// Of a state that is restored, this must hold.
    pub fn check(&mut self, holds: bool) {
        self.unfit |= self.restores() && !holds;
    }

    /// So many bytes.
    pub fn bytes(&mut self, bytes: &mut [u8]) {
        match &mut self.going {
            Going::Out(out) => out.extend_from_slice(bytes),
            Going::In(rest) => match rest.split_at_checked(bytes.len()) {
                Some((now, later)) if !self.unfit => {
                    bytes.copy_from_slice(now);
                    *rest = later;
                }
                _ => {
                    bytes.fill(0);
                    self.unfit = true;
                }
            },
        }
    }

    /// A flag.
    pub fn flag(&mut self, value: &mut bool) {
        let mut byte = u8::from(*value);
        self.u8(&mut byte);
        self.check(byte < 2);
        *value = byte != 0;
    }

    /// A number below `end`.
    pub fn below(&mut self, value: &mut u32, end: u32) {
        self.u32(value);
        self.check(*value < end);
    }

    /// A number of things, at most `most`, which is far below 2^32.
    pub fn count(&mut self, value: &mut usize, most: usize) {
        let mut word = u32::try_from(*value).unwrap_or(u32::MAX);
        self.u32(&mut word);
        *value = word as usize;
        self.check(*value <= most);
    }

    /// Something that may not be there.
    pub fn option<T: Default>(
        &mut self,
        value: &mut Option<T>,
        fields: impl FnOnce(&mut Self, &mut T),
    ) {
        let mut is = value.is_some();
        self.flag(&mut is);
        if self.restores() {
            *value = is.then(T::default);
        }
        if let Some(value) = value {
            fields(self, value);
        }
    }

    /// Up to `most` things.
    pub fn list<T: Default>(
        &mut self,
        list: &mut Vec<T>,
        most: usize,
        fields: impl Fn(&mut Self, &mut T),
    ) {
        let mut len = list.len();
        self.count(&mut len, most);
        if self.restores() {
            list.clear();
            list.resize_with(if self.unfit { 0 } else { len }, T::default);
        }
        list.iter_mut().for_each(|item| fields(self, item));
    }

    /// A word that other threads read.
    pub fn atomic(&mut self, value: &AtomicU32) {
        let mut word = value.load(Ordering::Acquire);
        self.u32(&mut word);
        if self.restores() {
            value.store(word, Ordering::Release);
        }
    }

    /// As [`Self::atomic`], of 64 bits.
    pub fn atomic_u64(&mut self, value: &AtomicU64) {
        let mut word = value.load(Ordering::Acquire);
        self.u64(&mut word);
        if self.restores() {
            value.store(word, Ordering::Release);
        }
    }

    /// As [`Self::atomic`], a flag.
    pub fn atomic_flag(&mut self, value: &AtomicBool) {
        let mut is = value.load(Ordering::Acquire);
        self.flag(&mut is);
        if self.restores() {
            value.store(is, Ordering::Release);
        }
    }

    /// What has been counted.
    pub fn counter(&mut self, counter: &Counter) {
        let before = counter.get();
        let mut now = before;
        self.counted(&mut now);
        if self.restores() {
            counter.add(now.wrapping_sub(before));
        }
    }

    /// As [`Self::counter`].
    pub fn counted(&mut self, now: &mut u64) {
        self.u64(now);
        self.check(*now < MOST_COUNTED);
    }
}

/// A part of a state that is restored.
struct Part<'b> {
    tag: Tag,
    version: u16,
    flags: u16,
    bytes: &'b [u8],
}

/// Parts, on their way out or in.
pub(crate) struct Parts<'b> {
    /// A state that is saved.
    out: Vec<u8>,
    /// Parts of one that is restored, not looked at yet.
    rest: Option<Vec<Part<'b>>>,
    error: Option<StateError>,
}

impl Parts<'static> {
    /// To be saved.
    pub fn save(model: &str) -> Self {
        let mut out = MAGIC.to_vec();
        out.extend(LAYOUT.to_le_bytes());
        out.extend([0; 4]);
        out.extend(name(model));
        out.extend(name(env!("CARGO_PKG_VERSION")));
        Self { out, rest: None, error: None }
    }
}

/// A name in the header.
fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    name.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    name
}

/// A little-endian number at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

impl<'b> Parts<'b> {
    /// To be restored into a chip of this model.
    ///
    /// # Errors
    /// The header is wrong, or a part is not all there.
    pub fn restore(state: &'b [u8], model: &str) -> Result<Self, StateError> {
        if state.get(..MAGIC.len()) != Some(&MAGIC) || state.len() < HEADER {
            return Err(StateError::NotAState);
        }
        let layout = word(state, 8).ok_or(StateError::NotAState)?;
        if layout != LAYOUT {
            return Err(StateError::Layout(layout));
        }
        if word(state, 12).map(|len| len as usize) != Some(state.len()) {
            return Err(StateError::Damaged);
        }
        if state.get(16..16 + NAME) != Some(&name(model)) {
            return Err(StateError::Model);
        }
        let parts = split(state.get(HEADER..).unwrap_or_default()).ok_or(StateError::Damaged)?;
        Ok(Self { out: Vec::new(), rest: Some(parts), error: None })
    }

    /// They come in, and nothing was wrong so far.
    pub fn restores(&self) -> bool {
        self.rest.is_some() && self.error.is_none()
    }

    /// A part, and the newest version of it.
    pub fn part(&mut self, tag: Tag, version: u16, fields: impl FnOnce(&mut Fields<'_>)) {
        if self.error.is_some() {
            return;
        }
        let Some(rest) = &mut self.rest else { return self.write(tag, version, fields) };
        let Some(at) = rest.iter().position(|part| part.tag == tag) else {
            self.error = Some(StateError::Missing(tag));
            return;
        };
        let part = rest.swap_remove(at);
        if part.version > version || part.version == 0 {
            self.error = Some(StateError::Unknown(tag, part.version));
            return;
        }
        let mut io = Fields { going: Going::In(part.bytes), version: part.version, unfit: false };
        fields(&mut io);
        let all = matches!(io.going, Going::In([]));
        if io.unfit || !all {
            self.error = Some(StateError::Unfit(tag));
        }
    }

    fn write(&mut self, tag: Tag, version: u16, fields: impl FnOnce(&mut Fields<'_>)) {
        self.out.extend(tag.0);
        self.out.extend(version.to_le_bytes());
        self.out.extend(0u16.to_le_bytes());
        let at = self.out.len();
        self.out.extend([0; 4]);
        fields(&mut Fields { going: Going::Out(&mut self.out), version, unfit: false });
        let len = self.out.len() - at - 4;
        set_len(&mut self.out, at, len);
    }

    /// The state that was saved.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let len = self.out.len();
        set_len(&mut self.out, 12, len);
        self.out
    }

    /// What was wrong with the state that was restored.
    ///
    /// # Errors
    /// The first thing, or a part that nobody asked for and that may not be skipped.
    pub fn end(self) -> Result<(), StateError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let unknown = self.rest.into_iter().flatten().find(|part| part.flags & MAY_SKIP == 0);
        unknown.map_or(Ok(()), |part| Err(StateError::Unknown(part.tag, part.version)))
    }
}

/// A state is far below 4 GiB.
fn set_len(out: &mut [u8], at: usize, len: usize) {
    if let (Some(place), Ok(len)) = (out.get_mut(at..at + 4), u32::try_from(len)) {
        place.copy_from_slice(&len.to_le_bytes());
    }
}

/// `None`: one is not all there, or is there twice.
fn split(mut bytes: &[u8]) -> Option<Vec<Part<'_>>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let [a, b, c, d, v0, v1, f0, f1, len @ ..] = *head;
        let tag = Tag([a, b, c, d]);
        let (part, later) = rest.split_at_checked(u32::from_le_bytes(len) as usize)?;
        if parts.iter().any(|part| part.tag == tag) {
            return None;
        }
        let (version, flags) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([f0, f1]));
        parts.push(Part { tag, version, flags, bytes: part });
        bytes = later;
    }
    Some(parts)
}

/// Passes the counters of a port, which has one lane. The reasons for drops are counted in the
/// order of their numbers, to which newer releases add.
pub(crate) fn counter_fields(counters: &Counters, io: &mut Fields<'_>) {
    #[rustfmt::skip]
    let Counters {
        input, output, lanes: _, tx_interrupts, rx_doorbells, faults, work_ns, empty_looks,
    } = counters;
    let own = [tx_interrupts, rx_doorbells, faults, work_ns, empty_looks];
    own.into_iter().for_each(|counter| io.counter(counter));
    for direction in [input, output] {
        let Direction { frames, bytes, batches, notifications, .. } = direction;
        [frames, bytes, batches, notifications].into_iter().for_each(|n| io.counter(n));
        let mut count = Reason::COUNT;
        io.count(&mut count, Reason::COUNT);
        for reason in Reason::ALL.iter().take(count) {
            let before = direction.dropped(*reason);
            let mut now = before;
            io.counted(&mut now);
            direction.drop(*reason, now.wrapping_sub(before));
        }
    }
}

/// The parts of a state: tag, version, bytes.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parts_of(state: &[u8]) -> Vec<(Tag, u16, &[u8])> {
    let parts = state.get(HEADER..).and_then(split).unwrap_or_default();
    parts.into_iter().map(|part| (part.tag, part.version, part.bytes)).collect()
}
