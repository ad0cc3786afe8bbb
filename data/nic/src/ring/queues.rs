//! Several rings of one chip.

use vmlan_frame::{Sink, WORK};

use super::{BUDGET, Counted};
use crate::chip::Sent;

/// Serves `count` transmit rings in turn, `first` first, until `limit` frames were lent. `serve`
/// is told which, how many it may lend, and where to.
pub fn in_turn(
    (count, first): (usize, usize),
    limit: usize,
    sink: &mut dyn Sink,
    mut serve: impl FnMut(usize, usize, &mut dyn Sink) -> Sent,
) -> Sent {
    let mut sink = Counted { sink, lent: 0, ring: 0 };
    let mut all = Sent { delayed: true, ..Sent::default() };
    for step in 0..count {
        // A pull is not much longer than that of a chip with one ring.
        let left = limit.saturating_sub(sink.lent);
        if all.work > WORK / 2 || all.visited > BUDGET / 2 || left == 0 {
            break;
        }
        sink.ring = (first + step) % count;
        let sent = serve(sink.ring, left, &mut sink);
        all.finished += sent.finished;
        all.delayed &= sent.delayed || sent.causes == 0;
        all.causes |= sent.causes;
        all.work += sent.work;
        all.visited += sent.visited;
    }
    all
}

/// The queue of the list's first frame, by `queue_of`, and how many from there on go to the same.
#[inline]
pub fn run(list: &[u16], queue_of: impl Fn(usize) -> usize) -> (usize, usize) {
    let mut queues = list.iter().map(|i| queue_of(usize::from(*i)));
    let first = queues.next().unwrap_or(0);
    (first, 1 + queues.take_while(|queue| *queue == first).count())
}
