//! The VMM's part for one chip over vfio-user.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::{Area, Client, ProtocolError, RegionInfo, irq, region};
use crate::address::{Doorbell, Unmask, VfioUser};
use crate::bus::no_window;
use crate::memory::{Ram, SharedWords};
use crate::socket::{self, RETRY, SocketError};
use crate::sys::{self, EventFd};
use crate::{Bars, Bus, BusError, Irq, Model, Wake, Watched, Width};

/// Why the server of a chip cannot be reached.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ConnectError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the NIC cannot be reached")]
    Bus(#[from] BusError),
    #[error(
        "{path}: the server hangs up: does the port have another VM, or is it not a vfio-user port \
         (see `vmlan port list`)?"
    )]
    TurnedAway { path: PathBuf, source: BusError },
    #[error(
        "the server offers no doorbell page: add doorbell=mapped to the switch's port, or use \
         doorbell=trapped here"
    )]
    NoDoorbell,
}

/// A part of the registers' BAR in shared memory.
#[derive(Debug)]
struct Window {
    /// Its first byte there.
    start: u32,
    words: SharedWords,
}

/// A connection to the server of one chip, set up as a VMM does.
#[derive(Debug)]
pub struct VfioBus {
    client: Client,
    posted: bool,
    model: Model,
    bars: Bars,
    windows: Vec<Window>,
    interrupt: EventFd,
    /// For vectors that nobody waits for.
    unheard: EventFd,
    irq: Irq,
    unmask: Unmask,
    resample: EventFd,
    /// INTx has fired and masked itself.
    masked: bool,
    /// Mapped registers come back then.
    hidden_until: Option<Instant>,
    mmap_timeout: Duration,
}

impl VfioBus {
    /// Reaches the server of `address` (trying for `patience`), shares `ram` with it and maps what
    /// is to be mapped.
    pub fn connect(
        address: &VfioUser,
        ram: &Arc<Ram>,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        let end = Instant::now() + patience;
        loop {
            match Self::connect_once(address, ram, end) {
                // A server that is about to exit still accepts: that is not an answer yet.
                Err(ConnectError::Bus(source)) if source.is_gone() => {
                    if Instant::now() >= end {
                        return Err(ConnectError::TurnedAway {
                            path: address.path.clone(),
                            source,
                        });
                    }
                    std::thread::sleep(RETRY);
                }
                done => return done,
            }
        }
    }

    fn connect_once(
        address: &VfioUser,
        ram: &Arc<Ram>,
        end: Instant,
    ) -> Result<Self, ConnectError> {
        let socket = socket::connect(&address.path, end)?;
        let fail = SocketError::failed(&address.path, "set up the connection");
        let client = Client::new(socket).map_err(fail)?;
        let model = address.driver.model;
        let bars = model.bars();
        let info = hello(&client, region_of(&bars, 0).0).map_err(BusError::from)?;
        let windows = if address.may_map() { map_windows(&info)? } else { Vec::new() };
        if address.doorbell == Doorbell::Mapped && windows.is_empty() {
            return Err(ConnectError::NoDoorbell);
        }
        for part in ram.regions() {
            client.dma_map(&part, Some(ram.raw_fd())).map_err(BusError::from)?;
        }
        let eventfd = || EventFd::new().map_err(BusError::other("make an eventfd"));
        Ok(Self {
            client,
            posted: address.posted,
            model,
            bars,
            windows,
            interrupt: eventfd()?,
            unheard: eventfd()?,
            irq: Irq::Intx,
            unmask: address.unmask,
            resample: eventfd()?,
            masked: false,
            hidden_until: None,
            mmap_timeout: Duration::from_millis(address.mmap_timeout.into()),
        })
    }

    /// The connection, for tests that use it themselves.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Are the ring registers in shared memory?
    pub fn is_mapped(&self) -> bool {
        !self.windows.is_empty()
    }

    /// Takes the mapping away, as a VMM may at any moment; all accesses are messages from then on.
    pub fn unmap(&mut self) {
        self.windows.clear();
    }

    /// INTx has fired: it is masked, and a VMM that waits for an access takes care that there is
    /// one.
    fn fired(&mut self) {
        self.masked = true;
        if self.unmask == Unmask::Access && !self.mmap_timeout.is_zero() {
            self.hidden_until = Some(Instant::now() + self.mmap_timeout);
        }
    }

    fn unhide(&mut self) {
        if !self.masked && self.hidden_until.is_some_and(|time| Instant::now() >= time) {
            self.hidden_until = None;
        }
    }

    /// After an access: the end of the interrupt for a VMM that cannot see any other.
    fn accessed(&mut self) -> Result<(), BusError> {
        if self.unmask == Unmask::Access && self.masked {
            self.unmask_by_message()?;
        }
        self.unhide();
        Ok(())
    }

    fn unmask_by_message(&mut self) -> Result<(), BusError> {
        self.masked = false;
        Ok(self.client.set_irq(irq::INTX, irq::DATA_NONE | irq::ACTION_UNMASK, None)?)
    }
}

/// The region of a register, and its offset there.
fn region_of(bars: &Bars, offset: u32) -> (u32, u64) {
    let (bar, at) = bars.place(offset);
    (region::BAR0 + u32::from(bars.registers[bar]), at.into())
}

/// What a VMM asks before it builds its device; the (first) region of the registers is what matters
/// of the answers.
fn hello(client: &Client, registers: u32) -> Result<RegionInfo, ProtocolError> {
    client.version()?;
    let info = client.device_info()?;
    let bar = client.region_info(registers)?;
    for index in (0..info.regions.min(9)).filter(|index| *index != registers) {
        client.region_info(index)?;
    }
    for index in 0..info.irqs.min(5) {
        client.irq_info(index)?;
    }
    Ok(bar)
}

fn map_windows(info: &RegionInfo) -> Result<Vec<Window>, BusError> {
    let (true, Some(fd)) = (info.flags & region::FLAG_MMAP != 0, info.fds.first()) else {
        return Ok(Vec::new());
    };
    let fail = |source| BusError::other("map the doorbell page")(source);
    let file = File::from(fd.try_clone().map_err(fail)?);
    let whole = [Area { offset: 0, size: info.size }];
    let areas = if info.areas.is_empty() { &whole } else { info.areas.as_slice() };
    let map = |area: &Area| {
        let start = u32::try_from(area.offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let offset = info.offset.checked_add(area.offset).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Window { start, words: SharedWords::map(&file, offset, area.size)? })
    };
    areas.iter().map(map).collect::<io::Result<_>>().map_err(fail)
}

impl Bus for VfioBus {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError> {
        Ok(self.client.region_read(region::CONFIG, offset.into(), bytes)?)
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError> {
        Ok(self.client.region_write(region::CONFIG, offset.into(), bytes, false)?)
    }

    fn read(&mut self, offset: u32, width: Width) -> Result<u32, BusError> {
        let mut bytes = [0; 4];
        let part = &mut bytes[..width as usize];
        let (region, at) = region_of(&self.bars, offset);
        self.client.region_read(region, at, part)?;
        self.accessed()?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&mut self, offset: u32, width: Width, value: u32) -> Result<(), BusError> {
        let bytes = value.to_le_bytes();
        let part = &bytes[..width as usize];
        let (region, at) = region_of(&self.bars, offset);
        self.client.region_write(region, at, part, self.posted)?;
        self.accessed()
    }

    fn write_io(&mut self, offset: u32, value: u32) -> Result<(), BusError> {
        let Some(bar) = self.bars.io else { return Err(no_window()) };
        let (region, bytes) = (region::BAR0 + u32::from(bar), value.to_le_bytes());
        self.client.region_write(region, offset.into(), &bytes, self.posted)?;
        self.accessed()
    }

    #[inline]
    fn mapped(&self, offset: u32) -> Option<&AtomicU32> {
        if self.hidden_until.is_some() {
            return None;
        }
        // One or two windows; an offset before a window wraps round to far behind it.
        self.windows
            .iter()
            .find_map(|window| window.words.get((offset.wrapping_sub(window.start) / 4) as usize))
    }

    fn use_interrupt(&mut self, kind: Irq) -> Result<(), BusError> {
        let trigger = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
        let (index, count) = irq::of(kind, self.model);
        let mut fds = vec![self.unheard.as_fd().as_raw_fd(); count as usize];
        if let Some(first) = fds.first_mut() {
            *first = self.interrupt.as_fd().as_raw_fd();
        }
        self.client.set_irqs([20, trigger, index, 0, count], &[], &fds)?;
        if (kind, self.unmask) == (Irq::Intx, Unmask::Eventfd) {
            let action = irq::DATA_EVENTFD | irq::ACTION_UNMASK;
            self.client.set_irq(index, action, Some(self.resample.as_fd()))?;
        }
        self.irq = kind;
        Ok(())
    }

    fn take_interrupts(&mut self) -> u64 {
        let count = self.interrupt.take();
        if count > 0 && self.irq == Irq::Intx {
            self.fired();
        }
        count
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        match self.unmask {
            Unmask::Eventfd => self.resample.signal(),
            Unmask::Message => self.unmask_by_message()?,
            Unmask::Access => {}
        }
        self.masked = self.masked && self.unmask == Unmask::Access;
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, BusError> {
        let fds = [self.client.as_fd(), self.interrupt.as_fd()];
        let bits = sys::poll_readable(&fds, Some(timeout))
            .map_err(BusError::other("wait for an interrupt"))?;
        self.unhide();
        // The server never speaks first on this socket, so "readable" is its end.
        Ok(match bits {
            0 => Wake::Timeout,
            1 => Wake::Disconnected,
            _ => Wake::Ready,
        })
    }

    fn watched(&self) -> Watched<'_> {
        Watched { interrupt: Some(self.interrupt.as_fd()), gone: Some(self.client.as_fd()) }
    }

    fn is_connected(&self) -> bool {
        sys::poll_readable(&[self.client.as_fd()], Some(Duration::ZERO)).is_ok_and(|bits| bits == 0)
    }
}
