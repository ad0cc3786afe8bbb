//! The bus inside a VM.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use super::claim::Claim;
use super::sysfs::Sysfs;
use super::vfio::{Region, Vfio};
use super::way::{Offers, choose};
use super::{PciError, Way, memory, stop};
use crate::address::Pci;
use crate::mapping::Mapping;
use crate::memory::Ram;
use crate::sys::{self, EventFd};
use crate::vfio_user::region;
use crate::{Bars, Bus, BusError, Irq, Model, Wake, Watched, Width};

/// The command register in configuration space, and its bits for bus master and against INTx.
const COMMAND: u64 = 4;
const MASTER: u16 = 1 << 2;
const INTX_OFF: u16 = 1 << 10;
const SUBSYSTEM: u64 = 0x2e; // The subsystem's id, and what it is on a chip with a CSB.
const WITH_CSB: u16 = 0x1101;
const IOADDR: u32 = 0; // The words of the I/O window (SDM 13.3.1).
const TICK: Duration = Duration::from_micros(200); // The longest sleep without interrupts.

/// A space of the device in a file.
#[derive(Debug)]
struct Space {
    file: File,
    at: u64,
}

impl Space {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.at + offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at + offset)
    }

    fn read16(&self, offset: u64) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.read(offset, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }
}

/// The BARs of the registers, mapped.
#[derive(Debug)]
pub(super) struct Registers {
    bars: Bars,
    mappings: Vec<Mapping>,
}

impl Registers {
    #[inline]
    pub(super) fn load(&self, offset: u32, width: Width) -> u32 {
        let (bar, at) = self.bars.place(offset);
        self.mappings[bar].load(at, width)
    }

    #[inline]
    pub(super) fn store(&self, offset: u32, width: Width, value: u32) {
        let (bar, at) = self.bars.place(offset);
        self.mappings[bar].store(at, width, value);
    }
}

/// Where interrupts come from.
#[derive(Debug)]
enum Interrupt {
    Vfio(EventFd),
    /// `/dev/uioN`, and the last count read from it.
    Uio(File, u32),
    Never,
}

/// A device that was taken from the kernel. Dropped, it stops, and the kernel has it back.
#[derive(Debug)]
pub struct PciBus {
    model: Model,
    registers: Registers,
    config: Space,
    /// The BAR in I/O space; without it an e1000's reset goes to the register.
    io: Option<Space>,
    io_address: u32,
    interrupt: Interrupt,
    irq: Irq,
    way: Way,
    vfio: Option<Vfio>,
    // Last, so that nothing of the device is open when it changes hands.
    claim: Claim,
}

/// The spaces of a device, and what else is open.
type Parts = (Registers, Space, Option<Space>, Interrupt, Option<Vfio>);

impl PciBus {
    /// Takes the device from its kernel driver and maps its registers.
    ///
    /// # Errors
    /// See [`PciError`]. The kernel has the device back then.
    pub fn open(address: &Pci) -> Result<Self, PciError> {
        let model = address.driver.model;
        let sysfs = Sysfs::find(address.bdf, model)?;
        let unmaskable = model == Model::R8169;
        let offers = Offers { polls: address.polls(), unmaskable, ..sysfs.offers() };
        let way = choose(address.via, &offers)?;
        if address.wants_messages() && way.driver() != Way::Vfio.driver() {
            return Err(PciError::NoMsi);
        }
        let mut claim = Claim::new(sysfs)?;
        claim.take(way)?;
        let (registers, config, io, interrupt, vfio) = match way {
            Way::Vfio | Way::VfioNoIommu => by_vfio(&claim, way, model.bars())?,
            Way::Uio | Way::Sysfs => by_sysfs(&claim, way, model.bars())?,
        };
        let irq = Irq::Intx;
        Ok(Self { model, registers, config, io, io_address: 0, interrupt, irq, way, vfio, claim })
    }

    /// Makes RAM that the device can reach: `low` bytes for rings and `high` bytes for buffers.
    ///
    /// # Errors
    /// [`PciError::NoMemory`] and others.
    pub fn make_ram(&self, low: usize, high: usize) -> Result<Arc<Ram>, PciError> {
        match (self.way, &self.vfio) {
            (Way::Vfio, Some(vfio)) => {
                // Huge pages take few IOMMU entries. That matters if each entry is a message to an
                // emulated device's server.
                let huge = memory::huge_pages(low, high);
                let ram = huge.map_or_else(|| Ram::new(low, high), Ok);
                let ram = ram.map_err(PciError::system("make RAM"))?;
                vfio.map(&ram)?;
                Ok(ram)
            }
            _ => memory::contiguous(low, high),
        }
    }

    /// The way to the device.
    pub fn way(&self) -> Way {
        self.way
    }

    fn set_command(&self, set: u16, clear: u16) -> io::Result<()> {
        let command = self.config.read16(COMMAND)? & !clear | set;
        self.config.write(COMMAND, &command.to_le_bytes())
    }

    /// Stops the chip: no interrupt, no DMA, no address of ours in it.
    fn stop(&self) -> io::Result<()> {
        let csb = self.config.read16(SUBSYSTEM)? == WITH_CSB;
        stop::quiet(self.model, &self.registers, csb);
        self.set_command(0, MASTER)?;
        stop::reset(self.model, &self.registers);
        Ok(())
    }
}

/// Maps registers, whose BAR has its documented size.
fn map(file: &File, offset: u64, skew: usize, size: u64, wanted: u32) -> Result<Mapping, PciError> {
    let what = "map the registers";
    let source = match usize::try_from(size) {
        Ok(bytes) if size == u64::from(wanted) => match Mapping::shared(file, offset, skew + bytes)
        {
            Ok(mapping) => return Ok(mapping.narrow(skew, bytes)),
            Err(source) => source,
        },
        _ => io::Error::other(format!("their BAR is {size:#x} bytes long")),
    };
    Err(PciError::system(what)(source))
}

fn by_vfio(claim: &Claim, way: Way, bars: Bars) -> Result<Parts, PciError> {
    let vfio = Vfio::open(claim, way)?;
    let map_bar = |bar: &u16| {
        let region: Region = vfio.region(region::BAR0 + u32::from(*bar))?;
        if !region.mappable {
            let source = io::ErrorKind::Unsupported.into();
            return Err(PciError::System { what: "map the registers", source });
        }
        map(&vfio.device, region.offset, 0, region.size, bars.len)
    };
    let mappings = bars.registers.iter().map(map_bar).collect::<Result<_, _>>()?;
    let space = |index| -> Result<Space, PciError> {
        let file = vfio.device.try_clone().map_err(PciError::system("open the device again"))?;
        Ok(Space { file, at: vfio.region(index)?.offset })
    };
    let config = space(region::CONFIG)?;
    let io = bars.io.map(|bar| space(region::BAR0 + u32::from(bar))).transpose()?;
    let event = EventFd::new().map_err(PciError::system("make an eventfd"))?;
    Ok((Registers { bars, mappings }, config, io, Interrupt::Vfio(event), Some(vfio)))
}

fn by_sysfs(claim: &Claim, way: Way, bars: Bars) -> Result<Parts, PciError> {
    let sysfs = claim.sysfs();
    let open = |name: &str| {
        let what = "open the device's registers in sysfs (a kernel in lockdown forbids that)";
        sysfs.open(name).map_err(PciError::system(what))
    };
    if way == Way::Sysfs {
        // Out of power saving, and its decoders on; a driver of the kernel would do that.
        sysfs.set("enable", "1").map_err(PciError::system("enable the device"))?;
    }
    let map_bar = |bar: &u16| {
        let look = "look at the device's registers";
        let file = open(&format!("resource{bar}"))?;
        let size = file.metadata().map_err(PciError::system(look))?.len();
        let skew = sysfs.skew(*bar).map_err(PciError::system(look))?;
        map(&file, 0, skew, size, bars.len)
    };
    let mappings = bars.registers.iter().map(map_bar).collect::<Result<_, _>>()?;
    let config = Space { file: open("config")?, at: 0 };
    let io = bars.io.and_then(|bar| sysfs.open(&format!("resource{bar}")).ok());
    let io = io.map(|file| Space { file, at: 0 });
    let interrupt = if way == Way::Uio { open_uio(sysfs)? } else { Interrupt::Never };
    Ok((Registers { bars, mappings }, config, io, interrupt, None))
}

fn open_uio(sysfs: &Sysfs) -> Result<Interrupt, PciError> {
    let what = "open the device's /dev/uioN";
    let missing = || PciError::System { what, source: io::ErrorKind::NotFound.into() };
    let path = sysfs.uio().ok_or_else(missing)?;
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|source| match source.kind() {
        io::ErrorKind::ResourceBusy => PciError::InUse(sysfs.bdf),
        _ => PciError::system(what)(source),
    })?;
    Ok(Interrupt::Uio(file, 0))
}

impl Drop for PciBus {
    fn drop(&mut self) {
        // A device that no longer answers has nothing to stop.
        let _ = self.stop();
        if self.way == Way::Sysfs {
            let _ = self.claim.sysfs().set("enable", "0");
        }
    }
}

impl Bus for PciBus {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError> {
        self.config.read(offset.into(), bytes).map_err(BusError::other("read configuration space"))
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError> {
        self.config
            .write(offset.into(), bytes)
            .map_err(BusError::other("write configuration space"))
    }

    #[inline]
    fn read(&mut self, offset: u32, width: Width) -> Result<u32, BusError> {
        Ok(self.registers.load(offset, width))
    }

    #[inline]
    fn write(&mut self, offset: u32, width: Width, value: u32) -> Result<(), BusError> {
        self.registers.store(offset, width, value);
        Ok(())
    }

    fn write_io(&mut self, offset: u32, value: u32) -> Result<(), BusError> {
        match &self.io {
            Some(io) => {
                let written = io.write(offset.into(), &value.to_le_bytes());
                written.map_err(BusError::other("write to the I/O window"))
            }
            None if offset == IOADDR => {
                self.io_address = value;
                Ok(())
            }
            None => self.write32(self.io_address, value),
        }
    }

    fn use_interrupt(&mut self, irq: Irq) -> Result<(), BusError> {
        self.irq = irq;
        match (&self.interrupt, &self.vfio) {
            (Interrupt::Vfio(event), Some(vfio)) => {
                let signal = vfio.signal(irq, self.model, event);
                signal.map_err(BusError::other("take the device's interrupts"))
            }
            (Interrupt::Uio(..), _) => self.unmask(),
            _ => self
                .set_command(INTX_OFF, 0)
                .map_err(BusError::other("mask the device's interrupt")),
        }
    }

    fn take_interrupts(&mut self) -> u64 {
        match &mut self.interrupt {
            Interrupt::Vfio(event) => event.take(),
            Interrupt::Uio(file, last) => {
                let mut bytes = [0; 4];
                let Ok(4) = file.read(&mut bytes) else { return 0 };
                let count = u32::from_ne_bytes(bytes);
                u64::from(count.wrapping_sub(std::mem::replace(last, count)))
            }
            Interrupt::Never => 0,
        }
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        let done = match (&self.interrupt, &self.vfio) {
            (Interrupt::Vfio(_), Some(vfio)) => vfio.unmask(),
            // The kernel's handler sets the bit.
            (Interrupt::Uio(..), _) => self.set_command(0, INTX_OFF),
            _ => Ok(()),
        };
        done.map_err(BusError::other("unmask the interrupt"))
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, BusError> {
        let interrupt = self.watched().interrupt;
        // A device that cannot interrupt is looked at now and then instead.
        let timeout = if interrupt.is_some() { timeout } else { timeout.min(TICK) };
        let bits = sys::poll_readable(interrupt.as_slice(), Some(timeout))
            .map_err(BusError::other("wait for an interrupt"))?;
        Ok(if bits == 0 { Wake::Timeout } else { Wake::Ready })
    }

    fn watched(&self) -> Watched<'_> {
        let interrupt = match &self.interrupt {
            Interrupt::Vfio(event) => Some(event.as_fd()),
            Interrupt::Uio(file, _) => Some(file.as_fd()),
            Interrupt::Never => None,
        };
        Watched { interrupt, gone: None }
    }

    fn is_set_up(&self) -> bool {
        true
    }
}
