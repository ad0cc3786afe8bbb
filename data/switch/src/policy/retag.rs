//! The form that a frame has at each port: tags taken off and put on.
//!
//! ```text
//!  before [ MACs | tag | rest of the head (128) ] [ borrowed ..... ]
//!  after  [ MACs | tag' | rest ... up to 128 ] [ the rest of the old head, borrowed ] [ borrowed ]
//! ```
//!
//! No checksum covers a tag, so offloads only move. Those that would no longer be understood behind
//! the new tag (a third one, headers that no longer fit the snapshot) are done first.

use std::ops::Range;

use vmlan_frame::headers::{ETHERTYPE_QINQ, ETHERTYPE_VLAN};
use vmlan_frame::{BATCH, Batch, Counters, Finisher, FrameView, HEAD, MAX_FRAME};
use vmlan_frame::{Offload, Offloads, Reason};
use vmlan_ram::Slice;

use super::vlan::{Form, TAG_AT, VID, be16};
use super::{Domain, Vlan};
use crate::frame_lists;

const TAG: usize = 4;

/// Storage for frames whose tags differ between sender and receiver.
pub(crate) struct Retagged {
    frames: Batch<'static>,
    /// Frames whose offloads had to be done before.
    finished: Batch<'static>,
}

/// What becomes of the bytes behind a frame's MAC addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    strip: bool,
    push: Option<[u8; TAG]>,
}

/// What must be changed in a frame from a port with `from` for one with `to`; `None` if nothing.
#[inline]
fn change(from: &Vlan, head: &[u8], domain: Domain, to: &Vlan) -> Result<Option<Change>, Reason> {
    let had = from.own_tag(head);
    let wanted = match to.form(domain).ok_or(Reason::Vlan)? {
        Form::Payload | Form::Untagged => None,
        Form::Tagged(vid) => Some((ETHERTYPE_VLAN, vid)),
        Form::Service(vid) => Some((ETHERTYPE_QINQ, vid)),
    };
    let priority = had.map_or(0, |[_, _, a, b]| u16::from_be_bytes([a, b]) & !VID);
    let push = wanted.map(|(kind, vid)| {
        let ([a, b], [c, d]) = (kind.to_be_bytes(), (vid | priority).to_be_bytes());
        [a, b, c, d]
    });
    Ok((had != push).then_some(Change { strip: had.is_some(), push }))
}

/// True if all frames between two such ports look alike at both, whatever their domain.
fn same_form(from: &Vlan, to: &Vlan) -> bool {
    use Vlan::{Open, Qinq, QinqTrunk};
    matches!((from, to), (Open, Open) | (Qinq(_), Qinq(_)) | (QinqTrunk(_), QinqTrunk(_)))
}

/// True if a frame that carries no tag looks alike at both: access ports of one VLAN, which let in
/// no tags except those of priority only.
fn bare_form(from: &Vlan, to: &Vlan) -> bool {
    matches!((from, to), (Vlan::Access(a), Vlan::Access(b)) if a == b)
}

/// True if the frame carries an 802.1Q tag.
#[inline]
fn tagged(head: &[u8]) -> bool {
    be16(head, TAG_AT) == Some(ETHERTYPE_VLAN)
}

/// The new head: up to [`HEAD`] bytes of it, and those of the old one that no longer fit.
fn split<'b>(head: &'b [u8], change: &Change) -> ([&'b [u8]; 2], &'b [u8]) {
    let (macs, rest) = head.split_at_checked(TAG_AT).unwrap_or((head, &[]));
    let rest = if change.strip { rest.get(TAG..).unwrap_or_default() } else { rest };
    let room = HEAD - TAG_AT - change.push.map_or(0, |tag| tag.len());
    let (rest, spill) = rest.split_at_checked(room).unwrap_or((rest, &[]));
    ([macs, rest], spill)
}

/// Offsets behind the tag move with it.
fn moved(offload: Offload, change: &Change) -> Offload {
    let by = |n: u16| match (change.strip, change.push) {
        (true, None) => n.saturating_sub(4),
        (false, Some(_)) => n.saturating_add(4),
        _ => n,
    };
    let hdr_len = if offload.hdr_len == 0 { 0 } else { by(offload.hdr_len) };
    let csum_start = if offload.needs_csum { by(offload.csum_start) } else { offload.csum_start };
    Offload { hdr_len, csum_start, ..offload }
}

/// True if what is still to be done to the frame could not be understood once it has the new tag:
/// [`vmlan_frame::Headers`] looks behind two tags, and only into the snapshot.
fn must_finish(frame: &FrameView<'_, '_>, change: &Change) -> bool {
    let Offload { needs_csum, csum_start, csum_offset, hdr_len, .. } = frame.offload;
    if !needs_csum || change.strip || change.push.is_none() {
        return false;
    }
    let tag = |at| matches!(be16(frame.head, at), Some(ETHERTYPE_VLAN | ETHERTYPE_QINQ));
    let sum = usize::from(csum_start) + usize::from(csum_offset) + 2;
    let third = tag(TAG_AT) && tag(TAG_AT + TAG);
    third || sum.max(usize::from(hdr_len)) + TAG > HEAD
}

/// Adds `frame`, changed, to `out`.
fn add<'b>(
    out: &mut Batch<'b>,
    frame: &FrameView<'b, 'b>,
    change: Option<Change>,
) -> Result<(), Reason> {
    let body = frame.body.iter().copied();
    let Some(change) = change else { return out.add_parts(frame.head, body, frame.offload) };
    let ([macs, rest], spill) = split(frame.head, &change);
    let tag = change.push.as_ref().map_or(&[][..], |tag| &tag[..]);
    let spill = Some(Slice::from_bytes(spill)).filter(|s| !s.is_empty());
    let body = spill.into_iter().chain(body);
    out.add_joined([macs, tag, rest], body, moved(frame.offload, &change))
}

/// The switch's own limits also hold for what leaves it. No frame can get too short: one that is
/// shorter than a tag was not let in.
fn fits(frame: &FrameView<'_, '_>, change: &Change) -> bool {
    let grows = !change.strip && change.push.is_some();
    !grows || frame.len + TAG <= MAX_FRAME
}

/// Changed frames on their way to one port.
struct Out<'b, 'p> {
    frames: Batch<'b>,
    push: Push<'p>,
    /// Frames that found room, up to the last flush and with it.
    sent: usize,
    /// If not all of the last flush did: its frames' places among all that were added, and their
    /// numbers, those first that found room.
    order: Option<(Range<usize>, [u16; BATCH])>,
}

impl<'b> Out<'b, '_> {
    fn add(&mut self, frame: &FrameView<'b, 'b>, change: Option<Change>) -> Result<(), Stop<'b>> {
        // One piece more than it had: bytes that its head has no longer room for.
        if !self.frames.has_room(frame.body.len() + 1) && !self.flush() {
            return Err(Stop::Here);
        }
        add(&mut self.frames, frame, change).map_err(Stop::Drop)
    }

    /// Sends what has been added; false if there was not room for all of it. The rest is forgotten.
    fn flush(&mut self) -> bool {
        let mut numbers = frame_lists::numbers();
        let list = numbers.get_mut(..self.frames.len()).unwrap_or_default();
        if list.is_empty() {
            return true;
        }
        let sent = (self.push)(&self.frames, list).min(list.len());
        let all = sent == list.len();
        if !all {
            self.order = Some((self.sent..self.sent + list.len(), numbers));
        }
        self.sent += sent;
        self.frames.clear();
        all
    }
}

/// Puts `list` into the order in which its entries were taken: each stands for a frame.
fn reorder(list: &mut [u16], order: &[u16]) {
    let mut before = frame_lists::numbers();
    let before = before.get_mut(..list.len()).unwrap_or_default();
    before.copy_from_slice(list);
    for (place, from) in list.iter_mut().zip(order) {
        *place = before.get(usize::from(*from)).copied().unwrap_or(*place);
    }
}

/// A function that says what a frame must become, by its number and its head.
type Changes<'c> = &'c dyn Fn(u16, &[u8]) -> Result<Option<Change>, Reason>;

/// A function that delivers, as [`vmlan_frame::Port::push`].
type Push<'p> = &'p mut dyn FnMut(&Batch<'_>, &mut [u16]) -> usize;

/// Why a run of frames ended.
enum Stop<'b> {
    /// It was the last, or there is no room for more.
    Here,
    /// The next one cannot have the form it should have.
    Drop(Reason),
    /// The next one must be finished before.
    Finish(FrameView<'b, 'b>, Change),
}

impl Retagged {
    pub(crate) fn new() -> Self {
        Self { frames: Batch::new(), finished: Batch::new() }
    }

    /// Hands the frames of `batch` that `list` names to `push` in the form that they have at a port
    /// with `to`, which carries all their domains (`domains`, by number of the frame). Returns how
    /// many entries of `list` were dealt with, as [`vmlan_frame::Port::push`]; those that cannot
    /// have that form are among them, and counted as the receiver's.
    pub(crate) fn push(
        &mut self,
        batch: &Batch<'_>,
        list: &mut [u16],
        (from, domains): (&Vlan, &[Domain]),
        (to, counters): (&Vlan, &Counters),
        mut push: impl FnMut(&Batch<'_>, &mut [u16]) -> usize,
    ) -> usize {
        let change = |i: u16, head: &[u8]| {
            let domain = domains.get(usize::from(i)).copied().unwrap_or_default();
            change(from, head, domain, to)
        };
        let stays = |i: &u16| change(*i, batch.head(usize::from(*i))) == Ok(None);
        let bare = |i: &u16| !tagged(batch.head(usize::from(*i)));
        let same = same_form(from, to) || bare_form(from, to) && list.iter().all(bare);
        if same || list.iter().all(stays) {
            return push(batch, list);
        }
        self.frames.set_source(batch.source());
        let mut done = 0;
        loop {
            let rest = list.get_mut(done..).unwrap_or_default();
            let (sent, stop) = self.push_run(batch, rest, &change, &mut push);
            done += sent;
            let dealt_with = match stop {
                Stop::Here => return done,
                Stop::Drop(reason) => Err(reason),
                Stop::Finish(frame, change) => self.push_finished(&frame, change, &mut push),
            };
            match dealt_with {
                Ok(true) => {}
                Ok(false) => return done,
                Err(reason) => counters.output.drop(reason, 1),
            }
            done += 1;
        }
    }

    /// Delivers frames up to one that needs other care. Returns how many were dealt with.
    fn push_run<'b>(
        &mut self,
        batch: &'b Batch<'_>,
        list: &mut [u16],
        change: Changes<'_>,
        push: Push<'_>,
    ) -> (usize, Stop<'b>) {
        let frames = Batch::take(&mut self.frames);
        let mut out = Out { frames, push, sent: 0, order: None };
        let add = |i: &u16| {
            let frame = batch.frame(usize::from(*i)).ok_or(Stop::Drop(Reason::TooLong))?;
            let change = change(*i, frame.head).map_err(Stop::Drop)?;
            match change {
                Some(c) if !fits(&frame, &c) => Err(Stop::Drop(Reason::TooLong)),
                Some(c) if must_finish(&frame, &c) => Err(Stop::Finish(frame, c)),
                _ => out.add(&frame, change),
            }
        };
        let stop = list.iter().map(add).find_map(Result::err).unwrap_or(Stop::Here);
        let stop = if out.flush() { stop } else { Stop::Here };
        let Out { frames, sent, order, .. } = out;
        frames.give_back(&mut self.frames);
        if let Some((places, order)) = order {
            reorder(list.get_mut(places).unwrap_or_default(), &order);
        }
        (sent, stop)
    }

    /// Delivers one frame whose offloads are done before it gets its tag. False if there is no room
    /// for it.
    ///
    /// # Errors
    /// It cannot be finished, or only a part of it found room.
    fn push_finished(
        &mut self,
        frame: &FrameView<'_, '_>,
        change: Change,
        push: Push<'_>,
    ) -> Result<bool, Reason> {
        let mut finisher = Finisher::new(*frame, Offloads::NONE)?;
        let mut finished = Batch::take(&mut self.finished);
        let mut any = false;
        let result = loop {
            let more = match finisher.fill(&mut finished) {
                Ok(more) => more,
                Err(reason) => break Err(reason),
            };
            let list = frame_lists::first(finished.len());
            let frames = Batch::take(&mut self.frames);
            let mut out = Out { frames, push: &mut *push, sent: 0, order: None };
            let add = |i: &u16| match finished.frame(usize::from(*i)) {
                Some(frame) => out.add(&frame, Some(change)),
                None => Ok(()),
            };
            let added = list.iter().map(add).all(|r| r.is_ok());
            let whole = out.flush() && added;
            let Out { frames, sent, .. } = out;
            frames.give_back(&mut self.frames);
            any |= sent > 0;
            match (whole, any) {
                (true, _) if more => finished.clear(),
                (true, _) => break Ok(true),
                (false, false) => break Ok(false),
                (false, true) => break Err(Reason::ReceiverFull),
            }
        };
        finished.give_back(&mut self.finished);
        result
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // small numbers
mod tests;
