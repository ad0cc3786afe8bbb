//! Transmit descriptors (SDM 3.3, 3.4): legacy, context and data.

use std::marker::PhantomData;

use vmlan_frame::{Offload, Reason};

use super::cause;
use super::chip::Intel;
use super::desc::{CTRL_VME, Context, Kind, data_len, kind, legacy_sum, special, tctl, tx, upper};
use super::model::Model;
use super::regs;
use super::ring::Ring;
use crate::chip::frame_totals::SHORTEST;
use crate::chip::held::Said;
use crate::chip::state::{Fields, Stateful};
use crate::ring::{
    Checksums, DescriptorRing, Found, Look, Plan, Range, SIZE, Segment, Setup, Told, Transmit,
    Want, Wanted, add, distance, halves, unfinished,
};

const CHUNK: u32 = 32; // Descriptors that are read together.

/// What transmit descriptors mean.
pub struct Tx<M>(PhantomData<M>);

/// The contexts for checksums and for segmentation (3.3.6).
#[derive(Debug, Default)]
pub struct Contexts {
    checksum: Context,
    segmentation: Context,
}

impl Stateful for Contexts {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { checksum, segmentation } = self;
        [checksum, segmentation].into_iter().for_each(|context| context.fields(io));
    }
}

impl<M: Model> Transmit for Tx<M> {
    type Ring = Ring<M>;
    type Memory = Contexts;
    type Context = Context;
    const STATE: u16 = 2; // 2: what descriptors before the head have said.
    const PLAIN: u64 = tx::EOP | tx::IFCS;
    const MASK: u64 = Self::PLAIN | tx::DEXT | tx::IC | tx::VLE;

    #[inline]
    fn setup(chip: &Intel<M>) -> Setup {
        let vlan = chip.regs.get(regs::CTRL) & CTRL_VME != 0;
        let [v0, v1, ..] = chip.regs.get(regs::VET).to_le_bytes();
        Setup {
            vlan: vlan.then_some(u16::from_le_bytes([v0, v1])),
            pad: chip.regs.get(regs::TCTL) & tctl::PSP != 0,
        }
    }

    #[inline]
    fn len(word: u64) -> u32 {
        data_len(word)
    }

    /// Bit 24 of a context descriptor is not EOP.
    #[inline]
    fn is_last(word: u64) -> bool {
        word & tx::EOP != 0 && kind(word) != Kind::Context
    }

    /// A context; or one that names no data: it is written back and nothing else (3.3.3).
    #[inline]
    fn between(memory: &mut Contexts, addr: u64, word: u64) -> bool {
        if kind(word) == Kind::Context {
            let segments = word & tx::TSE != 0;
            let place = if segments { &mut memory.segmentation } else { &mut memory.checksum };
            *place = Context::from_words(addr, word);
            return true;
        }
        word & tx::EOP != 0 && (addr == 0 || data_len(word) == 0)
    }

    #[inline]
    fn fits(first: u64, word: u64, _n: u32) -> bool {
        let what = kind(first);
        kind(word) == what && matches!(what, Kind::Legacy | Kind::Data)
    }

    /// A null address means no data.
    #[inline]
    fn has_data(addr: u64, _word: u64) -> bool {
        addr != 0
    }

    #[inline]
    fn context(memory: &Contexts, first: u64) -> Context {
        if segments(first) { memory.segmentation } else { memory.checksum }
    }

    #[inline]
    fn segments(want: &Want<Self>) -> Option<u16> {
        segments(want.first).then_some(want.context.mss)
    }

    #[inline]
    fn as_it_is(found: &Found<Self>, setup: Setup) -> Option<Offload> {
        let Want { first, last, context: c } = &found.want;
        let short = setup.pad && (found.len as usize) < SHORTEST;
        let tagged = setup.vlan.is_some() && last & tx::VLE != 0;
        // TSE of a data descriptor is the legacy descriptor's IC.
        if short || tagged || last & tx::IFCS == 0 || (first | last) & tx::TSE != 0 {
            return None;
        }
        match (first & tx::DEXT, first & (tx::IXSM | tx::TXSM)) {
            (0, _) | (_, 0) => Some(Offload::NONE),
            (_, tx::TXSM) if c.tucse == 0 => unfinished(c.tucss.into(), c.tucso.into()),
            _ => None,
        }
    }

    fn plan(found: &Found<Self>, setup: Setup) -> Result<Plan, Reason> {
        let Want { first, last, context: c } = &found.want;
        let segment = if !segments(*first) {
            None
        } else if first & tx::TXSM == 0 {
            return Err(Reason::BadOffload);
        } else {
            Some(segment(c))
        };
        Ok(Plan {
            fcs: last & tx::IFCS == 0,
            tag: setup.vlan.filter(|_| last & tx::VLE != 0).map(|vet| (vet, special(*last))),
            pad: setup.pad,
            sums: sums(*first, *last, c),
            segment,
        })
    }

    fn recall(said: &Said) -> Contexts {
        let mut memory = Contexts::default();
        for [addr, word] in said {
            if kind(*word) == Kind::Context {
                Self::between(&mut memory, *addr, *word);
            }
        }
        memory
    }

    /// 3.3.3.1: STA.
    #[inline]
    fn complete(ring: &mut Ring<M>, chip: &Intel<M>, look: Look, to: u32) -> (u32, bool) {
        let (reported, delayed) = match ring.is_held() {
            false => report::<M, false>(ring, look, to),
            true => report_held(ring, look, to),
        };
        ring.publish(&chip.regs, to);
        let written = if reported { ring.written() } else { 0 };
        let empty = if to == look.tail { cause::TXQE } else { 0 };
        (written | empty, reported && delayed)
    }
}

/// Says of all descriptors before `to` that they are done, if they want to be told. Returns whether
/// one does, and whether all that do asked for delay. `HELD`: they get a mark instead, which is
/// noted; and what they have said is.
#[inline(always)]
fn report<M: Model, const HELD: bool>(ring: &mut Ring<M>, look: Look, to: u32) -> (bool, bool) {
    let (mut at, mut left) = (look.head, distance(look.head, to, look.size));
    let (mut reported, mut delayed) = (false, true);
    let mut words = [[0; SIZE]; CHUNK as usize];
    while left > 0 {
        let n = left.min(CHUNK).min(look.size - at);
        let chunk = words.get_mut(..n as usize).unwrap_or_default();
        ring.memory.copy(at, chunk);
        for (index, desc) in (at..).zip(chunk) {
            let (addr, word) = halves(desc);
            if word & (tx::RS | tx::RPS) != 0 {
                let rest = upper(word) & !tx::STA;
                ring.memory.set_u32(index, 12, rest | if HELD { tx::MARK } else { tx::DD });
                reported = true;
                delayed &= word & tx::IDE != 0;
                if HELD {
                    ring.marked.push((index, rest | tx::DD));
                }
            }
            if HELD && kind(word) == Kind::Context {
                let [checksum, segmentation] = &mut ring.said;
                *(if word & tx::TSE == 0 { checksum } else { segmentation }) = [addr, word];
            }
        }
        at = add(at, n, look.size);
        left -= n;
    }
    (reported, delayed)
}

/// The same, so that the next process can tell what was handed over.
#[inline(never)]
fn report_held<M: Model>(ring: &mut Ring<M>, look: Look, to: u32) -> (bool, bool) {
    let before = ring.said;
    let found = report::<M, true>(ring, look, to);
    let said = (ring.said != before).then_some(&ring.said);
    if let Some(line) = &mut ring.line {
        line.open((look.head, to), said, ring.cut);
    }
    for (index, upper) in ring.marked.drain(..) {
        ring.memory.set_u32(index, 12, upper);
    }
    found
}

/// Segmentation is asked for.
#[inline]
fn segments(first: u64) -> bool {
    first & (tx::DEXT | tx::TSE) == tx::DEXT | tx::TSE
}

/// The checksums that descriptors ask for: the first's POPTS, or the last's legacy IC, CSS and CSO.
fn sums(first: u64, last: u64, c: &Context) -> Checksums {
    if kind(first) == Kind::Legacy {
        let (start, at) = legacy_sum(last);
        let upper = (last & tx::IC != 0).then_some(Range { start, at, last: 0 });
        return Checksums::Told { ip: None, upper };
    }
    let ip = Range { start: c.ipcss, at: c.ipcso, last: c.ipcse };
    let upper = Range { start: c.tucss, at: c.tucso, last: c.tucse };
    Checksums::Told {
        ip: (first & tx::IXSM != 0).then_some(ip),
        upper: (first & tx::TXSM != 0).then_some(upper),
    }
}

/// 3.4. UDP with TSE becomes USO: as with the chip, each segment has a UDP header with its own
/// length.
fn segment(c: &Context) -> Segment {
    let told = Told {
        headers: c.hdrlen,
        payload: c.paylen,
        l3: c.ipcss,
        l4: c.tucss,
        at: c.tucso,
        ipv4: c.ipv4,
        tcp: c.tcp,
    };
    Segment { mss: c.mss, headers: Wanted::Told(told) }
}
