//! Frames to devices: to which queue, and to a descriptor that takes one by each write, behind a
//! virtio-net header.

use std::io;
use std::os::fd::BorrowedFd;

use vmlan_frame::{Batch, Direction, FrameView, MAX_FRAME, MIN_FRAME, Reason};
use vmlan_ram::Slice;

use crate::link::Link;
use crate::{sys, vnet_header};

/// Runs of a frame that are written where they lie; a frame in more pieces is copied together
/// first.
const RUNS: usize = 64;

/// Storage for a frame that is copied together.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        Self(vec![0; MAX_FRAME])
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// The reason why it is dropped.
    pub(crate) fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        frame: &FrameView<'_, '_>,
        link: &Link,
    ) -> Result<(), Reason> {
        if frame.len < MIN_FRAME {
            return Err(Reason::Runt);
        }
        let header = vnet_header::emit(&frame.offload);
        let mut runs = sys::Gather::<RUNS>::new();
        runs.add(Slice::from_bytes(&header));
        if runs.has_room(frame.body.len() + 1) {
            runs.add(Slice::from_bytes(frame.head));
            frame.body.iter().for_each(|run| runs.add(*run));
        } else {
            let n = frame.copy_to(&mut self.0);
            runs.add(Slice::from_bytes(self.0.get(..n).unwrap_or_default()));
        }
        loop {
            match runs.write(fd) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(link.refused(&e)),
            }
        }
    }
}

/// Which of `queues` queues gets a frame: one flow, one queue. For IPv4 the bytes mixed are both
/// addresses, and both ports; for IPv6 they are the source's low half.
pub(crate) fn queue_of(head: &[u8], queues: usize) -> usize {
    if queues < 2 {
        return 0;
    }
    let flow = head.iter().take(12).chain(head.get(26..38).unwrap_or_default());
    let hash = flow.fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    (hash >> 8) as usize % queues
}

/// Has `write` deliver the frames of `batch` that `list` names, each for itself: what it does not
/// take is dropped and counted. Returns how many were dealt with: all.
pub(crate) fn push<'m>(
    batch: &Batch<'m>,
    list: &[u16],
    output: &Direction,
    mut write: impl FnMut(&FrameView<'_, 'm>) -> Result<(), Reason>,
) -> usize {
    let (mut frames, mut bytes) = (0, 0);
    for frame in list.iter().filter_map(|i| batch.frame(usize::from(*i))) {
        match write(&frame) {
            Ok(()) => {
                frames += 1;
                bytes += frame.len as u64;
            }
            Err(reason) => output.drop(reason, 1),
        }
    }
    output.count(frames, bytes);
    list.len()
}
