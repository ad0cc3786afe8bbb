//! Going on with the client of a switch that has ended or died.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlan_keeper::Descriptor;
use vmlan_nic::chip::{Nic, StateError};

use super::super::area::Area;
use super::super::port::VfioUserPort;
use super::super::refusal::CommandRefusal;
use super::super::version::Client;
use super::Session;
use crate::Files;
use crate::bytes::Body;
use crate::held::record::{Interrupt, Region};
use crate::journal::COPIED;

/// What was held of a client.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Found {
    pub version: Option<Client>,
    /// The next control message was carried out.
    pub done_before: bool,
    /// Bytes of requests that may have been given up: see [`Session::set_late`].
    pub late: usize,
    pub config: [u8; COPIED],
    /// The chip's.
    pub memo: u64,
    pub regions: Vec<Region<OwnedFd>>,
    pub interrupts: Vec<Interrupt<OwnedFd>>,
    /// The chip's state, if it was saved.
    pub chip: Vec<u8>,
    /// What the chip has left of it, if it was not.
    pub remains: Vec<u8>,
    /// Bytes of requests that were carried out, as long as that is true.
    pub done: usize,
}

/// Why a client cannot be gone on with.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum AdoptError {
    #[error(transparent)]
    Refusal(#[from] CommandRefusal),
    #[error("its registers")]
    Registers(#[from] io::Error),
}

/// How a chip has come through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chip {
    /// It is reset.
    #[default]
    Reset,
    /// It was saved by a switch that made way, and goes on.
    Saved,
    /// It goes on where it was when its switch was killed.
    Found,
}

impl Chip {
    /// For people.
    pub fn how(self) -> &'static str {
        match self {
            Self::Saved => "exactly as it was",
            Self::Found => "as it was when its switch was killed",
            Self::Reset => "with a reset chip",
        }
    }
}

impl Session {
    /// The client of a switch that has died is connected to `port`. Its chip is as it was left, if
    /// that is known, or else reset. What it has mapped, `area` puts in place. All that it has
    /// described goes the way that it went at first.
    ///
    /// # Errors
    /// What would have been refused at first.
    pub fn adopt(
        port: Arc<VfioUserPort>,
        area: impl FnOnce() -> io::Result<Option<Area>>,
        files: Files,
        found: Found,
    ) -> Result<Self, AdoptError> {
        let mut session = Self::new(port, None, files, true);
        session.client = found.version;
        session.done_before = found.done_before;
        session.lost_memo = found.memo;
        session.set_late(found.late);
        for Region { body, file } in found.regions {
            let mapped = session.dma.map(Body(&body), file.map(Descriptor::of));
            mapped.map_err(CommandRefusal::from)?;
        }
        session.remap().map_err(CommandRefusal::from)?;
        // The guest's stores to registers that it has mapped are newer than what was saved of them,
        // and what was left has none of these.
        let saved =
            session.try_state(Chip::Saved, found.chip.is_empty(), |nic| nic.restore(&found.chip));
        session.area = area()?;
        let mapped = session.area.is_some();
        let left = !saved
            && session.try_state(Chip::Found, found.remains.is_empty(), |nic| {
                nic.revive(&found.remains, mapped)
            });
        if left {
            session.done = found.done;
        } else if !saved {
            session.nic().renew();
            session.configure(&found.config);
        }
        for interrupt in found.interrupts {
            let adopted = session.irqs.adopt(interrupt, &**session.port.nic());
            adopted.map_err(CommandRefusal::from)?;
        }
        if session.chip == Chip::Found {
            session.port.host().raise_all();
        }
        Ok(session)
    }

    /// True if the chip goes on so.
    fn try_state(
        &mut self,
        how: Chip,
        empty: bool,
        goes_on: impl FnOnce(&dyn Nic) -> Result<(), StateError>,
    ) -> bool {
        if empty {
            return false;
        }
        match goes_on(self.nic()) {
            Ok(()) => self.chip = how,
            Err(e) => log::warn!("the chip's state is of no use: {e}"),
        }
        self.chip == how
    }
}
