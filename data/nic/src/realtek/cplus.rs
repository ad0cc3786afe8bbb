//! The rings of C+ mode and of the RTL8169, as [`crate::ring`] walks them: what their descriptors
//! ask for, and what they are written back with (RTL8139C+ datasheet 5.5 and 5.6; the RTL8169's
//! differ in the places of a few bits).
//!
//! Where several descriptors make a frame, the first one's command counts. What comes where a first
//! segment should stand is passed over up to the next last segment, and dropped; a first segment in
//! the middle of a frame is treated the same.

use std::marker::PhantomData;

use vmlan_frame::headers::{TCP, UDP};
use vmlan_frame::{Mac, Offload, Reason};

use super::desc::{self, EOR, FS, LS, OWN, Status, TAVA, join, split, tx};
use super::filter::Rules;
use super::isr;
use super::ring::{Place, Ring};
use crate::chip::Chip;
use crate::chip::csb::Direction;
use crate::chip::frame_totals::SHORTEST;
use crate::chip::state::Fields;
use crate::ring::{
    Checksums, DescriptorRing, Filter, Found, Look, Plan, Receive, Segment, Setup, Shape, Transmit,
    Verdict, Want, Wanted, Written, add,
};

const VLAN: u16 = 0x8100; // EtherType of the tags that are inserted and taken out.

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

impl Which {
    /// As a [`crate::chip::Fault`] calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal | Self::High => "transmit",
            Self::Receive => "receive",
        }
    }

    /// Which part of the CSB is about it.
    pub const fn direction(self) -> Direction {
        match self {
            Self::Normal | Self::High => Direction::Transmit,
            Self::Receive => Direction::Receive,
        }
    }
}

/// A chip with such rings.
pub trait Cplus: Chip {
    /// Where the bits of a receive status lie.
    const STATUS: Status;
    /// Descriptors of the largest ring; 2 or more.
    const MOST: u32;
    /// Bytes of a receive buffer, before the guest has posted one.
    const USUAL_BUFFER: u32;

    /// Where a ring is.
    fn place(&self, which: Which) -> Place;
    /// Frames bring their own FCS (TCR.CRC). They are not padded then.
    fn own_fcs(&self) -> bool;
    /// Moves after each write to a register that [`Self::rules`] or [`Self::shape`] looks at.
    fn filter_version(&self) -> u32;
    /// Which frames are received.
    fn rules(&self) -> Rules;
    /// Their shape, without [`Shape::buffer`].
    fn shape(&self) -> Shape;
}

/// What transmit descriptors mean.
pub struct Sending<C>(PhantomData<fn(&C)>);

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
    type Ring = Ring<C>;
    type Memory = ();
    type Context = ();
    const MASK: u64 = bits(OWN | FS | LS | WORK) | bits(tx::TAGC) << 32;
    const PLAIN: u64 = bits(OWN | FS | LS);

    fn setup(chip: &C) -> Setup {
        Setup { vlan: Some(VLAN), pad: !chip.own_fcs() }
    }

    /// Frames that bring their own FCS have to lose it.
    #[inline]
    fn has_plain(setup: Setup) -> bool {
        setup.pad
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
            sums: Checksums::Found { ip: opts1 & tx::IPCS != 0, upper },
            segment: Self::segments(&found.want).map(|mss| Segment { mss, headers: Wanted::Tcp4 }),
        })
    }

    /// OWN is cleared; what is not status stays.
    #[inline]
    fn complete(ring: &mut Ring<C>, _: &C, look: Look, to: u32) -> (u32, bool) {
        if ring.is_held() {
            ring.give_sent(look, to);
        } else {
            let mut at = look.head;
            while at != to {
                let kept = ring.opts1(at) & (EOR | FS | LS | tx::LEN);
                ring.give_opts1(at, kept);
                at = add(at, 1, look.size);
            }
        }
        ring.publish(to);
        let empty = if ring.is_empty_at(to) { isr::TDU } else { 0 };
        (isr::TOK | empty, true)
    }
}

/// What receive descriptors mean.
pub struct Receiving<C>(PhantomData<fn(&C)>);

impl<C: Cplus> Receiving<C> {
    /// The status of a whole frame for this station, with nothing special to report.
    #[inline]
    fn whole(len: usize) -> u32 {
        FS | LS | C::STATUS.pam | Self::length(len)
    }

    /// As much of it as the field can say.
    #[inline]
    fn length(len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).min(C::STATUS.len)
    }

    /// That of any other part of a frame: opts1 and opts2. Of a frame in several buffers the last
    /// one's length is the whole frame's.
    #[inline(never)]
    fn status(own: Mac, what: &Written) -> (u32, u32) {
        let first = if what.first { FS } else { 0 };
        let rest = if what.last { Self::end(own, what) } else { Self::length(what.len) };
        (first | rest, what.tag.map_or(0, |tci| TAVA | desc::opts2(tci)))
    }

    /// opts1 of the descriptor of a frame's last part.
    fn end(own: Mac, what: &Written) -> u32 {
        let s = C::STATUS;
        let to = match what.to {
            Mac::BROADCAST => s.bar,
            to if to.is_group() => s.mar,
            to if to == own => s.pam,
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
    type Ring = Ring<C>;
    type Filter = Digest;
    type Note = ();

    #[inline]
    fn buffer(ring: &Ring<C>, index: u32, _: &Shape) -> (u64, usize) {
        let (addr, word) = ring.read(index);
        (addr, (opts(word).0 & C::STATUS.len) as usize)
    }

    #[inline]
    fn write_back(ring: &Ring<C>, filter: &Digest, index: u32, what: &Written) {
        let usual = what.first && what.last && !what.failed && what.tag.is_none();
        let (opts1, opts2) = match () {
            () if usual && what.sums == Verdict::default() && what.to == filter.own => {
                (Self::whole(what.total), 0)
            }
            () => Self::status(filter.own, what),
        };
        ring.give(index, join(ring.eor(index) | opts1, opts2));
    }

    fn publish(
        ring: &mut Ring<C>,
        _: &C,
        _: &Digest,
        (look, head): (Look, u32),
        lost: bool,
    ) -> u32 {
        let mut causes = 0;
        if head != look.head {
            ring.publish(head);
            causes |= isr::ROK;
            if ring.is_empty_at(head) {
                causes |= isr::RDU;
            }
        }
        if lost {
            causes |= isr::RDU | isr::FOVW;
        }
        causes
    }
}

/// What the receive side looks at: a copy of the registers, taken again whenever one of them is
/// written.
#[derive(Debug)]
pub struct Digest {
    version: Option<u32>,
    rules: Rules,
    /// IDR; no station's if it is a group's.
    own: Mac,
    shape: Shape,
}

impl Default for Digest {
    fn default() -> Self {
        let (rules, shape) = (Rules::default(), Shape::default());
        Self { version: None, rules, own: Mac::default(), shape }
    }
}

impl Digest {
    #[cold]
    fn renew<C: Cplus>(&mut self, chip: &C, version: u32) {
        let (rules, shape) = (chip.rules(), chip.shape());
        let own = Mac::new(rules.own);
        self.own = if own.is_group() { Mac::default() } else { own };
        let buffer = match self.shape.buffer {
            0 => C::USUAL_BUFFER as usize,
            known => known,
        };
        (self.version, self.rules, self.shape) = (Some(version), rules, Shape { buffer, ..shape });
    }
}

impl<C: Cplus> Filter<Ring<C>> for Digest {
    #[inline]
    fn update(&mut self, chip: &C, ring: &Ring<C>, look: &Look) {
        let version = chip.filter_version();
        if self.version != Some(version) {
            self.renew(chip, version);
        }
        let room = if look.head == look.tail { 0 } else { ring.opts1(look.head) & C::STATUS.len };
        if room > 0 {
            self.shape.buffer = room as usize;
        }
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

    /// The length of the buffers that were last seen.
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { version, rules: _, own: _, shape } = self;
        io.count(&mut shape.buffer, C::STATUS.len as usize);
        if io.restores() {
            *version = None;
        }
    }

    #[inline]
    fn is_tagged(&self, head: &[u8]) -> bool {
        head.get(12..14) == Some(&VLAN.to_be_bytes())
    }
}
