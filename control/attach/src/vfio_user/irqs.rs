//! DEVICE_SET_IRQS: how the client wants its interrupts.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::nic_host::{Mode, NicHost};
use super::wire::{irq, set_irqs};
use crate::bytes::Body;
use crate::eventfd::{self, EventFdError};
use crate::poll::EdgeWatch;
use vmlan_keeper::Descriptor;
use vmlan_nic::chip::Nic;

/// Bytes before the data.
const FIXED: usize = 20;

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum IrqError {
    #[error("interrupts {start} to {start} + {count} of number {index}")]
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

/// The bytes behind the fixed part, and whether there is a descriptor, must fit the kind of data.
fn check_data(data: Data, extra: &[u8], has_fd: bool, flags: u32) -> Result<(), IrqError> {
    let fits = match data {
        Data::None => !has_fd,
        Data::Bool => !has_fd && extra.len() == 1,
        // The number that the descriptor has for the client may come along, for nothing.
        Data::EventFd => matches!(extra.len(), 0 | 4),
    };
    let refused = IrqError::Data { data: extra.len(), fds: usize::from(has_fd), flags };
    if fits { Ok(()) } else { Err(refused) }
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

    /// DEVICE_SET_IRQS.
    ///
    /// # Errors
    /// [`IrqError`]: nothing has changed.
    pub fn set(
        &mut self,
        bytes: &[u8],
        fd: Option<Descriptor>,
        nic: &dyn Nic,
    ) -> Result<(), IrqError> {
        let body = Body(bytes);
        let (flags, index) = (body.u32(4), body.u32(8));
        let (start, count) = (body.u32(12), body.u32(16));
        let (data, action) = parse(flags).ok_or(IrqError::Flags { index, flags })?;
        let mode = match index {
            irq::INTX => Mode::Intx,
            irq::MSI if nic.layout().msi => Mode::Msi,
            _ => Mode::None,
        };
        if index < irq::COUNT && (start, count) == (0, 0) {
            return self.disable(
                mode,
                (data, action),
                fd.is_some(),
                IrqError::Flags { index, flags },
            );
        }
        // There is one of each; `start` and `count` are the client's, and are not to be added (row
        // 153).
        if mode == Mode::None || (start, count) != (0, 1) {
            return Err(IrqError::Range { index, start, count });
        }
        let extra = bytes.get(FIXED..).unwrap_or_default();
        check_data(data, extra, fd.is_some(), flags)?;
        if action != Action::Trigger && mode != Mode::Intx {
            return Err(IrqError::Flags { index, flags });
        }
        if data == Data::EventFd {
            let fd = fd.map(eventfd::check).transpose()?;
            return self.connect(mode, action, fd, nic, IrqError::Flags { index, flags });
        }
        if data == Data::None || extra != [0] {
            match action {
                Action::Mask => self.host.mask(),
                Action::Unmask => self.host.unmask(nic),
                Action::Trigger => self.host.trigger(mode),
            }
        }
        Ok(())
    }

    /// "A count (and start) of 0, with DATA_NONE, disables all interrupts of the index."
    fn disable(
        &mut self,
        mode: Mode,
        kind: (Data, Action),
        has_fd: bool,
        refused: IrqError,
    ) -> Result<(), IrqError> {
        if kind != (Data::None, Action::Trigger) || has_fd {
            return Err(refused);
        }
        self.cut(mode);
        Ok(())
    }

    fn cut(&mut self, mode: Mode) {
        match mode {
            Mode::Intx => {
                self.unmask = None;
                self.host.cut_intx();
            }
            Mode::Msi => self.host.cut_msi(),
            Mode::None => {}
        }
    }

    /// Connects an eventfd to an action, or takes it away.
    fn connect(
        &mut self,
        mode: Mode,
        action: Action,
        fd: Option<OwnedFd>,
        nic: &dyn Nic,
        refused: IrqError,
    ) -> Result<(), IrqError> {
        match (action, fd) {
            (Action::Trigger, None) if mode == Mode::Intx => self.host.cut_intx(),
            (Action::Trigger, None) => self.host.cut_msi(),
            (Action::Trigger, Some(fd)) if mode == Mode::Intx => self.host.set_intx(fd, nic),
            (Action::Trigger, Some(fd)) => self.host.set_msi(fd, nic),
            (Action::Unmask, fd) => {
                self.unmask = fd.map(EdgeWatch::new).transpose().map_err(IrqError::Watch)?;
            }
            // We mask nothing by ourselves that the client does not know of.
            (Action::Mask, _) => return Err(refused),
        }
        Ok(())
    }
}
