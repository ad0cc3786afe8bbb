//! The rings of C+ mode and of the RTL8169, as [`crate::ring`] walks them: what their descriptors ask for, and what they are written
//! back with (RTL8139C+ datasheet 5.5 and 5.6; the RTL8169's differ in the places of a few bits).
//!
//! Where several descriptors make a frame, the first one's command counts. What comes where a first segment should stand is passed over
//! up to the next last segment, and dropped; so is a first segment amid a frame.

use std::sync::Arc;

use vmlan_frame::headers::{TCP, UDP};
use vmlan_frame::{Mac, Offload, Reason};
use vmlan_ram::Map;

use super::desc::{self, EOR, FS, LS, OWN, SIZE, Status, TAVA, join, split, tx};
use super::filter::Rules;
use super::isr;
use super::ring::{Place, Ring};
use crate::chip::csb::{Csb, CsbSide, Direction};
use crate::chip::sums::SHORTEST;
use crate::chip::{Chip, Fault};
use crate::ring::{
    Filter, Found, Look, Plan, Receive, Segment, Setup, Shape, Sums, Transmit, Verdict, Want,
    Written, add,
};

/// EtherType of the tags that are inserted and taken out.
const VLAN: u16 = 0x8100;

/// Which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// TNPDS.
    Normal,
    /// THPDS.
    High,
    /// RDSAR.
    Receive,
}

/// A chip with such rings.
pub trait Cplus: Chip {
    /// Where the bits of a receive status lie.
    const STATUS: Status;
    /// Descriptors of the largest ring.
    const MOST: u32;

    /// Where a ring is.
    fn place(&self, which: Which) -> Place;
    /// Frames bring their own FCS (TCR.CRC). They are not padded then.
    fn own_fcs(&self) -> bool;
    /// Moves after each write to a register that [`Self::rules`] or [`Self::shape`] looks at.
    fn filter_version(&self) -> u32;
    /// Which frames are received.
    fn rules(&self) -> Rules;
    /// How they are, but for [`Shape::buffer`].
    fn shape(&self) -> Shape;
    /// The buffers that the guest posts are of so many bytes.
    fn note_buffer(&self, bytes: u32);
    /// As noted last; 0: not yet.
    fn noted_buffer(&self) -> u32;
}

/// A transmit ring.
pub struct Sending<C> {
    which: Which,
    ring: Ring,
    /// As of the last look: see [`Cplus::own_fcs`].
    own_fcs: bool,
    chip: std::marker::PhantomData<fn(&C)>,
}

impl<C: Cplus> Sending<C> {
    /// One that is nowhere.
    pub fn new(which: Which) -> Self {
        let ring = Ring::new("transmit", Direction::Transmit, C::MOST);
        Self { which, ring, own_fcs: false, chip: std::marker::PhantomData }
    }
}

/// opts1 and opts2 of a descriptor's word.
fn opts(word: u64) -> (u32, u32) {
    split(word)
}

/// Bits of opts1 in a word.
const fn bits(opts1: u32) -> u64 {
    opts1 as u64
}

/// Commands that ask for a checksum, or segments.
const WORK: u32 = tx::LGSEN | tx::IPCS | tx::UDPCS | tx::TCPCS;

impl<C: Cplus> Transmit for Sending<C> {
    type Chip = C;
    type Memory = ();
    type Context = ();
    const MASK: u64 = bits(OWN | FS | LS | WORK) | bits(tx::TAGC) << 32;
    const PLAIN: u64 = bits(OWN | FS | LS);

    fn map(&self) -> &Arc<Map> {
        self.ring.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    fn side(&mut self) -> &mut CsbSide {
        &mut self.ring.side
    }

    #[inline]
    fn look(&mut self, chip: &C, _next: u32) -> Result<Look, Fault> {
        self.own_fcs = chip.own_fcs();
        self.ring.look(chip.place(self.which))
    }

    fn fault(&self) -> Option<Fault> {
        self.ring.fault()
    }

    fn forget(&mut self, _: &C) {
        self.ring.forget();
    }

    fn publish_again(&self, _: &C) {
        self.ring.publish_again();
    }

    fn replace_csb(&mut self, _: &C, csb: Option<Arc<Csb>>, on: bool) {
        self.ring.replace_csb(csb, on);
    }

    #[inline]
    fn read(&self, index: u32) -> (u64, u64) {
        let (word, addr) = self.ring.read(index);
        (addr, word)
    }

    /// Nothing, which is no plain frame, if there is more to do to frames than their descriptors say.
    #[inline]
    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        if !self.own_fcs {
            self.ring.copy(index, out);
        }
    }

    #[inline]
    fn split(desc: &[u8; SIZE]) -> (u64, u64) {
        let both = u128::from_le_bytes(*desc);
        let half = |n: u128| u64::try_from(n & u128::from(u64::MAX)).unwrap_or(0);
        (half(both >> 64), half(both))
    }

    fn setup(&self, _: &C) -> Setup {
        Setup { vlan: Some(VLAN), pad: !self.own_fcs }
    }

    #[inline]
    fn len(word: u64) -> u32 {
        opts(word).0 & tx::LEN
    }

    #[inline]
    fn is_last(word: u64) -> bool {
        opts(word).0 & LS != 0
    }

    fn between((): &mut (), _addr: u64, _word: u64) -> bool {
        false
    }

    fn fits(_first: u64, word: u64, n: u32) -> bool {
        let opts1 = opts(word).0;
        opts1 & OWN != 0 && (opts1 & FS != 0) == (n == 0)
    }

    #[inline]
    fn has_data(_addr: u64, word: u64) -> bool {
        Self::len(word) > 0
    }

    fn context((): &(), _first: u64) {}

    fn segments(want: &Want<Self>) -> Option<u16> {
        let opts1 = opts(want.first).0;
        let mss = u16::try_from(opts1 >> tx::MSS_SHIFT & tx::MSS).ok();
        mss.filter(|_| opts1 & tx::LGSEN != 0)
    }

    #[inline]
    fn as_it_is(found: &Found<Self>, setup: Setup) -> Option<Offload> {
        let (opts1, opts2) = opts(found.want.first);
        let plain = setup.pad && found.len as usize >= SHORTEST;
        (plain && opts1 & WORK == 0 && opts2 & tx::TAGC == 0).then_some(Offload::NONE)
    }

    fn plan(found: &Found<Self>, setup: Setup) -> Result<Plan, Reason> {
        let (opts1, opts2) = opts(found.want.first);
        let upper = match opts1 & (tx::TCPCS | tx::UDPCS) {
            0 => None,
            tx::UDPCS => Some(UDP),
            _ => Some(TCP),
        };
        Ok(Plan {
            fcs: !setup.pad,
            tag: setup.vlan.filter(|_| opts2 & tx::TAGC != 0).map(|vlan| (vlan, desc::tag(opts2))),
            pad: setup.pad,
            sums: Sums::Found { ip: opts1 & tx::IPCS != 0, upper },
            segment: Self::segments(&found.want).map(|mss| Segment { mss, told: None }),
        })
    }

    /// OWN is cleared; of the rest what is no status stays.
    #[inline]
    fn complete(&mut self, _: &C, look: Look, to: u32) -> (u32, bool) {
        let mut at = look.head;
        while at != to {
            let kept = self.ring.opts1(at) & (EOR | FS | LS | tx::LEN);
            self.ring.give_opts1(at, kept);
            at = add(at, 1, look.size);
        }
        self.ring.publish(to);
        let empty = if self.ring.is_empty_at(to) { isr::TDU } else { 0 };
        (isr::TOK | empty, true)
    }
}

/// The receive ring.
pub struct Receiving<C> {
    ring: Ring,
    /// IDR, as of this version of the filter; no station's if it is a group's.
    own: Mac,
    version: Option<u32>,
    /// Frames that found no buffer, as last told.
    missed: u64,
    chip: std::marker::PhantomData<fn(&C)>,
}

impl<C: Cplus> Default for Receiving<C> {
    fn default() -> Self {
        let ring = Ring::new("receive", Direction::Receive, C::MOST);
        Self { ring, own: Mac::default(), version: None, missed: 0, chip: std::marker::PhantomData }
    }
}

impl<C: Cplus> Receiving<C> {
    /// The status of a whole frame for this station, about which there is no more to say.
    #[inline]
    fn whole(len: usize) -> u32 {
        FS | LS | C::STATUS.pam | Self::length(len)
    }

    #[inline]
    fn length(len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).min(C::STATUS.len)
    }

    /// That of any other part of a frame: opts1 and opts2. Of a frame in several buffers the last one's length is the whole frame's.
    #[inline(never)]
    fn status(&self, what: &Written) -> (u32, u32) {
        let first = if what.first { FS } else { 0 };
        let rest = if what.last { self.end(what) } else { Self::length(what.len) };
        (first | rest, what.tag.map_or(0, |tci| TAVA | desc::opts2(tci)))
    }

    /// opts1 of the descriptor of a frame's last part.
    fn end(&self, what: &Written) -> u32 {
        let s = C::STATUS;
        let to = match what.to {
            Mac::BROADCAST => s.bar,
            to if to.is_group() => s.mar,
            to if to == self.own => s.pam,
            _ => 0,
        };
        let protocol = match (what.sums.ip, what.sums.upper) {
            // The chip knows IPv4 only.
            (None, _) => 0,
            (_, Some(TCP)) => s.tcp,
            (_, Some(UDP)) => s.udp,
            (Some(_), _) => s.tcp | s.udp,
        };
        let wrong = if what.sums.ip == Some(false) { s.ipf } else { 0 };
        let failed = if what.failed { s.res } else { 0 };
        LS | to | protocol | wrong | failed | Self::length(what.total)
    }
}

impl<C: Cplus> Receive for Receiving<C> {
    type Chip = C;
    type Filter = Digest;

    fn map(&self) -> &Arc<Map> {
        self.ring.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    fn side(&mut self) -> &mut CsbSide {
        &mut self.ring.side
    }

    fn look(&mut self, chip: &C) -> Result<Look, Fault> {
        let look = self.ring.look(chip.place(Which::Receive))?;
        let version = Some(chip.filter_version());
        if self.version != version {
            let own = Mac::new(chip.rules().own);
            self.own = if own.is_group() { Mac::default() } else { own };
            self.version = version;
        }
        let room = self.ring.opts1(look.head) & C::STATUS.len;
        if look.head != look.tail && room > 0 {
            chip.note_buffer(room);
        }
        Ok(look)
    }

    fn fault(&self) -> Option<Fault> {
        self.ring.fault()
    }

    fn forget(&mut self, _: &C) {
        self.ring.forget();
    }

    fn publish_again(&self, _: &C) {
        self.ring.publish_again();
    }

    fn replace_csb(&mut self, _: &C, csb: Option<Arc<Csb>>, on: bool) {
        self.ring.replace_csb(csb, on);
    }

    #[inline]
    fn buffer(&self, index: u32, _: &Shape) -> (u64, usize) {
        let (word, addr) = self.ring.read(index);
        (addr, (opts(word).0 & C::STATUS.len) as usize)
    }

    #[inline]
    fn write_back(&self, index: u32, what: &Written) {
        let usual = what.first && what.last && !what.failed && what.tag.is_none();
        let (opts1, opts2) = match () {
            () if usual && what.sums == Verdict::default() && what.to == self.own => {
                (Self::whole(what.total), 0)
            }
            () => self.status(what),
        };
        self.ring.give(index, join(self.ring.eor(index) | opts1, opts2));
    }

    fn publish(&mut self, chip: &C, _: &Digest, look: Look, head: u32) -> u32 {
        let mut causes = 0;
        if head != look.head {
            self.ring.publish(head);
            causes |= isr::ROK;
            if self.ring.is_empty_at(head) {
                causes |= isr::RDU;
            }
        }
        let missed = super::tally::missed(&chip.core().stats, &chip.core().counters);
        if std::mem::replace(&mut self.missed, missed) != missed {
            causes |= isr::RDU | isr::FOVW;
        }
        causes
    }
}

/// What the receive side looks at: a copy of the registers, taken anew when one of them was written.
#[derive(Debug)]
pub struct Digest {
    version: Option<u32>,
    rules: Rules,
    shape: Shape,
}

impl Default for Digest {
    fn default() -> Self {
        let shape =
            Shape { buffer: 0, quick: 0, longest: 0, fcs: 0, strip: false, sums: (false, false) };
        Self { version: None, rules: Rules::default(), shape }
    }
}

impl<C: Cplus> Filter<C> for Digest {
    #[inline]
    fn update(&mut self, chip: &C) {
        let version = chip.filter_version();
        if self.version != Some(version) {
            (self.version, self.rules, self.shape) = (Some(version), chip.rules(), chip.shape());
        }
        self.shape.buffer = match chip.noted_buffer() {
            0 => C::STATUS.len,
            noted => noted,
        } as usize;
    }

    #[inline]
    fn shape(&self) -> &Shape {
        &self.shape
    }

    #[inline]
    fn accepts(&self, head: &[u8]) -> bool {
        self.rules.accepts(head).is_some()
    }

    fn by_more(&self) -> bool {
        false
    }

    #[inline]
    fn is_tagged(&self, head: &[u8]) -> bool {
        head.get(12..14) == Some(&VLAN.to_be_bytes())
    }
}
