//! DEVICE_SET_IRQS: how the client wants its interrupts.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::nic_host::{Mode, NicHost};
use super::wire::{irq, set_irqs, words};
use crate::bytes::Body;
use crate::eventfd::{self, EventFdError};
use crate::held::record::Interrupt;
use crate::poll::EdgeWatch;
use vmlan_keeper::Descriptor;
use vmlan_nic::chip::{Layout, Nic};

/// Bytes before the data.
const FIXED: usize = 20;

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum IrqError {
    #[error("{count} interrupts from number {start} of kind {index}")]
    Range { index: u32, start: u32, count: u32 },
    #[error("flags {flags:#x} for number {index}")]
    Flags { index: u32, flags: u32 },
    #[error("{data} bytes of data and {fds} descriptors for flags {flags:#x}")]
    Data { data: usize, fds: usize, flags: u32 },
    #[error("a descriptor is of no use")]
    EventFd(#[from] EventFdError),
    #[error("cannot watch the eventfd")]
    Watch(#[source] io::Error),
}

/// What is done to an interrupt, and on what condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    /// At once.
    None,
    /// At once, if the byte is not 0.
    Bool,
    /// Each time the eventfd says so, or is told so.
    EventFd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Mask,
    Unmask,
    Trigger,
}

/// "The flags are mutually exclusive for both sets."
fn parse(flags: u32) -> Option<(Data, Action)> {
    let data = match flags & 7 {
        set_irqs::DATA_NONE => Data::None,
        set_irqs::DATA_BOOL => Data::Bool,
        set_irqs::DATA_EVENTFD => Data::EventFd,
        _ => return None,
    };
    let action = match flags & !7 {
        set_irqs::ACTION_MASK => Action::Mask,
        set_irqs::ACTION_UNMASK => Action::Unmask,
        set_irqs::ACTION_TRIGGER => Action::Trigger,
        _ => return None,
    };
    Some((data, action))
}

/// The number that stands for "no descriptor".
const NO_FD: u32 = u32::MAX;

/// Which of `count` interrupts get one of `fds` descriptors, if the bytes behind the fixed part
/// and the descriptors fit the kind of data. For eventfds the numbers that they have for the
/// client may come along: -1 says that there is none. Without numbers all get one, or nobody.
fn receivers(data: Data, extra: &[u8], fds: usize, count: usize) -> Option<Vec<bool>> {
    let with = match data {
        Data::EventFd if extra.is_empty() => vec![fds > 0; count],
        Data::EventFd if extra.len() == 4 * count => {
            (0..count).map(|n| Body(extra).u32(4 * n) != NO_FD).collect()
        }
        Data::Bool if extra.len() == count => vec![false; count],
        Data::None => vec![false; count],
        _ => return None,
    };
    (with.iter().filter(|with| **with).count() == fds).then_some(with)
}

#[derive(Debug)]
pub struct Irqs {
    host: Arc<NicHost>,
    unmask: Option<EdgeWatch>,
}

impl Irqs {
    pub fn new(host: Arc<NicHost>) -> Self {
        Self { host, unmask: None }
    }

    /// The eventfd by which the client unmasks INTx, to poll.
    pub fn unmask_fd(&self) -> Option<BorrowedFd<'_>> {
        self.unmask.as_ref().map(EdgeWatch::fd)
    }

    /// It was written to, perhaps.
    pub fn unmasked(&self, nic: &dyn Nic) {
        if self.unmask.as_ref().is_some_and(EdgeWatch::take) {
            self.host.unmask(nic);
        }
    }

    /// All that the client gave an eventfd for.
    pub fn interrupts(&self) -> Vec<Interrupt<Arc<dyn AsFd>>> {
        let lines = self.host.connected().into_iter().map(|((mode, vector), event)| {
            let index = match mode {
                Mode::Msi => irq::MSI,
                Mode::Msix => irq::MSIX,
                Mode::Intx | Mode::None => irq::INTX,
            };
            Interrupt { index, vector: vector.into(), unmask: false, event: event as Arc<dyn AsFd> }
        });
        let unmask = self.unmask.as_ref().map(EdgeWatch::watched);
        let unmask = unmask.map(|event| Interrupt {
            index: irq::INTX,
            vector: 0,
            unmask: true,
            event: event as Arc<dyn AsFd>,
        });
        lines.chain(unmask).collect()
    }

    /// Connects an eventfd that the client gave to the switch before.
    ///
    /// # Errors
    /// As [`Irqs::set`].
    pub fn adopt(
        &mut self,
        Interrupt { index, vector, unmask, event }: Interrupt<OwnedFd>,
        nic: &dyn Nic,
    ) -> Result<(), IrqError> {
        let action = if unmask { set_irqs::ACTION_UNMASK } else { set_irqs::ACTION_TRIGGER };
        let body = words(&[20, set_irqs::DATA_EVENTFD | action, index, vector, 1]);
        self.set(&body, vec![Descriptor::of(event)], nic)
    }

    /// DEVICE_SET_IRQS.
    ///
    /// # Errors
    /// [`IrqError`]: nothing has changed.
    pub fn set(
        &mut self,
        bytes: &[u8],
        fds: Vec<Descriptor>,
        nic: &dyn Nic,
    ) -> Result<(), IrqError> {
        let body = Body(bytes);
        let (flags, index) = (body.u32(4), body.u32(8));
        let (start, count) = (body.u32(12), body.u32(16));
        let refused = || IrqError::Flags { index, flags };
        let (data, action) = parse(flags).ok_or_else(refused)?;
        let (mode, lines) = kind(index, nic.layout());
        if index < irq::COUNT && (start, count) == (0, 0) {
            // "A count (and start) of 0, with DATA_NONE, disables all interrupts of the index."
            if (data, action) != (Data::None, Action::Trigger) || !fds.is_empty() {
                return Err(refused());
            }
            self.cut(mode);
            return Ok(());
        }
        let range = range(start, count, lines).ok_or(IrqError::Range { index, start, count })?;
        let extra = bytes.get(FIXED..).unwrap_or_default();
        let with = receivers(data, extra, fds.len(), range.len());
        let with = with.ok_or(IrqError::Data { data: extra.len(), fds: fds.len(), flags })?;
        // We mask nothing by ourselves that the client does not know of.
        let by_itself = (data, action) == (Data::EventFd, Action::Mask);
        if action != Action::Trigger && (mode != Mode::Intx || by_itself) {
            return Err(refused());
        }
        let fds = fds.into_iter().map(eventfd::check).collect::<Result<Vec<_>, _>>()?;
        let mut fds = fds.into_iter();
        for ((n, vector), with) in range.enumerate().zip(with) {
            match data {
                Data::EventFd => {
                    let fd = if with { fds.next() } else { None };
                    self.connect((mode, vector), action, fd, nic)?;
                }
                Data::Bool if extra.get(n) == Some(&0) => {}
                _ => self.act((mode, vector), action, nic),
            }
        }
        Ok(())
    }

    fn cut(&mut self, mode: Mode) {
        if mode == Mode::Intx {
            self.unmask = None;
        }
        self.host.cut(mode);
    }

    fn act(&self, line: (Mode, u16), action: Action, nic: &dyn Nic) {
        match action {
            Action::Mask => self.host.mask(),
            Action::Unmask => self.host.unmask(nic),
            Action::Trigger => self.host.trigger(line),
        }
    }

    /// Connects an eventfd to an action, or takes it away.
    fn connect(
        &mut self,
        line: (Mode, u16),
        action: Action,
        fd: Option<OwnedFd>,
        nic: &dyn Nic,
    ) -> Result<(), IrqError> {
        if action == Action::Trigger {
            self.host.set(line, fd, nic);
        } else {
            self.unmask = fd.map(EdgeWatch::new).transpose().map_err(IrqError::Watch)?;
        }
        Ok(())
    }
}

/// What an index stands for, and how many interrupts there are of that kind.
pub fn kind(index: u32, layout: &Layout) -> (Mode, u16) {
    match index {
        irq::INTX => (Mode::Intx, 1),
        irq::MSI if layout.msi => (Mode::Msi, 1),
        irq::MSIX if layout.msix > 0 => (Mode::Msix, layout.msix),
        _ => (Mode::None, 0),
    }
}

/// The vectors `start..start + count`, if they are some of `lines`. Both come from the client, and
/// are not to be added unchecked (row 153).
fn range(start: u32, count: u32, lines: u16) -> Option<Range<u16>> {
    let end = start.checked_add(count).filter(|end| *end <= lines.into() && count > 0)?;
    Some(u16::try_from(start).ok()?..u16::try_from(end).ok()?)
}
