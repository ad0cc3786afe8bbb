//! What clients may map: ring registers that are shared memory, or a page that means nothing.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::memory::sealed_memfd;
use crate::sys::SharedPages;
use vmlan_nic::chip::Layout;

/// The size of a page that means nothing.
const PAGE: u64 = 4096;

/// A part of a BAR that a client may map.
#[derive(Clone, Debug)]
pub struct Area {
    /// The BAR's number.
    pub bar: u32,
    /// Which bytes of it.
    pub range: Range<u64>,
    /// Has these bytes, at the same offsets.
    pub file: Arc<OwnedFd>,
}

/// Makes an [`Area`] for each client, with a file of its own: clients do not meet in it.
#[derive(Debug)]
pub enum Areas {
    /// Nothing can be mapped.
    None,
    /// Ring registers in BAR 0, at this place.
    Registers(SharedPages, Range<u64>),
    /// See [`Layout::idle_page`]. Nobody here looks at it.
    Idle { bar: u8, offset: u64 },
}

impl Areas {
    /// Those of a chip. `pages` are its registers, if they are to be mapped.
    pub fn new(layout: &Layout, pages: Option<SharedPages>) -> Self {
        let registers = layout.pages.start as u64..layout.pages.end as u64;
        match (pages, layout.idle_page) {
            (Some(pages), _) => Self::Registers(pages, registers),
            (None, Some((bar, offset))) => Self::Idle { bar, offset },
            (None, None) => Self::None,
        }
    }

    /// For a client that has `file` mapped already.
    ///
    /// # Errors
    /// That of the system, or `InvalidData`: it is another file than this chip's.
    pub fn adopt(&self, file: Option<OwnedFd>) -> io::Result<Option<Area>> {
        let (bar, range, len) = match self {
            Self::None => return Ok(None),
            Self::Registers(pages, range) => (0, range.clone(), pages.len() as u64),
            Self::Idle { bar, offset } => ((*bar).into(), *offset..*offset + PAGE, offset + PAGE),
        };
        let file = file.ok_or(io::ErrorKind::InvalidData)?;
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(&file)?.st_size.cast_unsigned() != len {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if let Self::Registers(pages, _) = self {
            pages.exchange(&file)?;
        }
        Ok(Some(Area { bar, range, file: Arc::new(file) }))
    }

    /// For the next client.
    ///
    /// # Errors
    /// That of the system.
    pub fn renew(&self) -> io::Result<Option<Area>> {
        let (bar, range, file) = match self {
            Self::None => return Ok(None),
            Self::Registers(pages, range) => (0, range.clone(), pages.renew()?),
            Self::Idle { bar, offset } => {
                let range = *offset..*offset + PAGE;
                ((*bar).into(), range, sealed_memfd(c"vmlan-idle", offset + PAGE)?)
            }
        };
        Ok(Some(Area { bar, range, file: Arc::new(file) }))
    }
}
