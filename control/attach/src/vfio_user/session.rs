//! One connection's state, and what each command does to it. Knows nothing of sockets, so that a
//! fuzzer can be the client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use vmlan_frame::Port;

use super::area::Area;
use super::dma::{Dma, DmaError, Run};
use super::irqs::{self, Irqs};
use super::nic_host::Mode;
use super::port::VfioUserPort;
use super::refusal::CommandRefusal;
use super::version::Client;
use super::wire::{
    ACCESS, Command, Frames, HEADER, Header, MAX_DATA, ONE_WRITE, Replies, irq, region, words,
};
use crate::Files;
use crate::bytes::{Body, widen};
use crate::connection::{self, Framing as _};
use crate::held::record::{Interrupt, Record};
use crate::journal::{COPIED, Journal};
use vmlan_nic::chip::{Host as _, Layout, Nic, Space};

mod adopt;

pub use self::adopt::{Chip, Found};

pub type Message<'s> = connection::Message<'s, Header>;

/// What to do after a message, beside sending the replies.
#[derive(Debug, Default)]
pub struct Outcome {
    /// To send along with the last reply.
    pub fd: Option<Arc<OwnedFd>>,
    /// To log.
    pub refusal: Option<CommandRefusal>,
    pub hang_up: bool,
    /// It was no register access: what [`Session::memory`] says may have changed.
    pub changed: bool,
    /// What [`Session::put_into`] says has changed.
    pub held: bool,
    /// Configuration space was written to.
    pub configured: bool,
    /// Interrupts were set up. By then the client has described all its memory, and is not just
    /// moving it.
    pub settled: bool,
    /// How much work the message was, in accesses to single registers.
    pub work: usize,
    /// How long to wait before the next message.
    pub pause: Duration,
}

/// Register accesses that one message may ask for without a pause, and the pause for each further
/// one. Honest clients ask for one, and for many only when they look at the configuration space.
/// Without the pause a client has us work 18 times as long as itself (170 writes in one message).
const FEW: usize = 8;
const PAUSE: Duration = Duration::from_micros(10);

/// The client's memory, for people who look at the port.
#[derive(Clone, Debug, Default)]
pub struct MemorySummary {
    /// Bytes within reach, and out of it.
    pub bytes: (u64, u64),
    /// Regions within reach.
    pub regions: usize,
    /// What is out of reach.
    pub unshared: Vec<Run>,
}

pub struct Session {
    port: Arc<VfioUserPort>,
    /// What the client may map.
    area: Option<Area>,
    client: Option<Client>,
    dma: Dma,
    irqs: Irqs,
    /// The next control message was carried out by the switch before, which did not answer it.
    done_before: bool,
    chip: Chip,
    /// So many bytes of requests were carried out before.
    done: usize,
    /// The request at hand was.
    is_done: bool,
    /// What the chip has said that was lost.
    lost_memo: u64,
    /// So many bytes of requests have waited for long.
    late: usize,
}

impl Session {
    /// A client has connected to `port`, where [`Session::begin`] lets frames pass. It may map
    /// `area`. Its memory is in such `files`. With `held`, descriptors are kept for the next one.
    pub fn new(port: Arc<VfioUserPort>, area: Option<Area>, files: Files, held: bool) -> Self {
        port.nic().renew();
        Self {
            area,
            client: None,
            dma: Dma::new(files, held),
            irqs: Irqs::new(Arc::clone(port.host())),
            done_before: false,
            chip: Chip::Reset,
            done: 0,
            is_done: false,
            lost_memo: 0,
            late: 0,
            port,
        }
    }

    /// The next so many bytes of requests may have waited for so long that the client has given
    /// them up.
    ///
    /// QEMU then takes the header of a reply, and its body for the next header, after which its NIC
    /// is dead. So replies are headers alone, and what is read is not read: it would be lost.
    fn set_late(&mut self, bytes: usize) {
        self.late = if self.client.is_some_and(|client| client.gives_up) { bytes } else { 0 };
    }

    /// Frames may pass.
    pub fn begin(&self) {
        self.port.set_connected(true);
        // Whatever the guest has rung for was rung for somebody else.
        self.port.host().doorbell();
    }

    /// How the chip has come through.
    pub fn chip(&self) -> Chip {
        self.chip
    }

    /// No frame passes any more: the chip's whole state.
    pub fn end(&self) -> Vec<u8> {
        self.port.set_connected(false);
        self.nic().save()
    }

    /// Configuration space as it is, from its beginning.
    pub fn configuration(&self) -> [u8; COPIED] {
        let mut bytes = [0; COPIED];
        self.nic().read(Space::Config, 0, &mut bytes);
        bytes
    }

    /// Notes what the next switch is to find if this one dies. `lost`: the driver does not know yet
    /// that its chip was reset, so nobody is to go on with that.
    #[inline]
    pub fn note(&self, journal: &Journal, configured: bool, lost: bool) {
        if !lost {
            self.nic().note();
        }
        journal.set_memo(self.nic().memo());
        if configured {
            journal.copy(&self.configuration());
        }
    }

    /// Writes what a guest may write. The first four bytes say what the device is.
    fn configure(&self, bytes: &[u8; COPIED]) {
        for (at, word) in (0..).step_by(4).zip(bytes.as_chunks::<4>().0).skip(1) {
            self.nic().write(Space::Config, at, word);
        }
    }

    /// Puts into `record` what the client has described. False: it has too many files.
    pub fn put_into<'s>(&'s self, record: &mut Record<BorrowedFd<'s>>) -> bool {
        let Some(client) = &mut record.client else { return true };
        client.version = self.client;
        client.area = self.area.as_ref().map(|area| area.file.as_fd());
        let regions = self.dma.regions();
        let kept = regions.is_some();
        record.regions = regions.unwrap_or_default();
        kept
    }

    /// What the client gave eventfds for.
    pub fn interrupts(&self) -> Vec<Interrupt<Arc<dyn AsFd>>> {
        self.irqs.interrupts()
    }

    /// All that is held of the client, if this message may take some of it away: for as long as
    /// the holder may have it, that must not be the last that has.
    pub fn hold_on(&self, header: &Header) -> Option<impl Sized + use<>> {
        // Not for an access to a register, of which there are many.
        let files = Frames::is_control(header).then(|| self.dma.files())??;
        // Copies: who exchanges an interrupt waits for whoever else has its `Arc`.
        let copy = |i: Interrupt<Arc<dyn AsFd>>| i.event.as_fd().try_clone_to_owned().ok();
        Some((self.irqs.interrupts().into_iter().filter_map(copy).collect::<Vec<_>>(), files))
    }

    /// Tells the driver that its chip was lost, and raises all interrupts.
    pub fn tell_lost(&self) {
        self.nic().lost(self.lost_memo);
        self.port.host().raise_all();
    }

    fn nic(&self) -> &dyn Nic {
        &**self.port.nic()
    }

    fn layout(&self) -> &Layout {
        self.nic().layout()
    }

    /// What the client hands over to say that it has unmasked INTx, to poll.
    pub fn unmask_fd(&self) -> Option<BorrowedFd<'_>> {
        self.irqs.unmask_fd()
    }

    /// The unmask eventfd was written to.
    pub fn unmasked(&self) {
        self.irqs.unmasked(self.nic());
    }

    /// For `port list`.
    pub fn memory(&self) -> MemorySummary {
        MemorySummary {
            bytes: self.dma.bytes(),
            regions: self.dma.count(),
            unshared: self.dma.unshared().to_vec(),
        }
    }

    /// Handles one message. Descriptors that nobody takes are closed with it.
    #[inline]
    pub fn handle(&mut self, message: Message<'_>, replies: &mut Replies) -> Outcome {
        let header = message.header;
        let start = replies.bytes().len();
        let command = Command::from_number(header.command);
        let work = command.map_or(1, |command| command.work(message.body));
        let pause = PAUSE * u32::try_from(work.saturating_sub(FEW)).unwrap_or(u32::MAX);
        let mut outcome = Outcome { work, pause, ..Outcome::default() };
        self.is_done = self.done > 0;
        self.done = self.done.saturating_sub(HEADER + message.body.len());
        let late = self.late > 0;
        self.late = self.late.saturating_sub(HEADER + message.body.len());
        if late && !header.no_reply && command.is_some_and(Command::only_asks) {
            replies.error(header, libc::EIO);
            return outcome;
        }
        outcome.changed = !command.is_some_and(Command::is_access);
        let result = match command {
            Some(command) if self.done_before && !command.is_access() => {
                self.done_before = false;
                self.again(command, message, replies);
                Ok(None)
            }
            Some(command) => {
                outcome.held = command.is_held();
                outcome.configured = command.is_access() && is_configuration(message.body);
                outcome.settled = command == Command::SetIrqs;
                self.dispatch(command, message, replies)
            }
            None => Err(CommandRefusal::Unknown(header.command)),
        };
        match result {
            Ok(fd) if !header.no_reply => outcome.fd = fd,
            Ok(_) => replies.truncate(start),
            Err(refusal) => {
                outcome.held = false;
                replies.truncate(start);
                if !header.no_reply {
                    replies.error(header, refusal.errno());
                }
                if !refusal.is_answer() {
                    self.port.counters().faults.add_shared(1);
                    outcome.hang_up =
                        matches!(refusal, CommandRefusal::Order(_) | CommandRefusal::Version(_));
                    outcome.refusal = Some(refusal);
                }
            }
        }
        if late {
            replies.shorten(start);
            outcome.fd = None;
        }
        outcome
    }

    #[inline]
    fn dispatch(
        &mut self,
        command: Command,
        message: Message<'_>,
        replies: &mut Replies,
    ) -> Result<Option<Arc<OwnedFd>>, CommandRefusal> {
        let (sizes, counts) = command.limits();
        let (size, count) = (message.body.len(), message.fds.len());
        if !sizes.contains(&size) {
            return Err(CommandRefusal::BodySize { command, size });
        }
        if !counts.contains(&count) {
            return Err(CommandRefusal::FdCount { command, count });
        }
        if (command == Command::Version) == self.client.is_some() {
            return Err(CommandRefusal::Order(command));
        }
        match command {
            Command::RegionRead => self.read(message.header, message.body, replies)?,
            Command::RegionWrite => self.write(message.header, message.body, replies)?,
            Command::WriteMulti => self.write_multi(message.header, message.body, replies)?,
            _ => return self.control(command, message, replies),
        }
        Ok(None)
    }

    /// Bounds are checked in full width: offset and count come from the client.
    #[inline]
    fn space(&self, body: Body<'_>) -> Result<(Space, u64, usize), CommandRefusal> {
        let (offset, region, count) = (body.u64(0), body.u32(8), body.u32(12));
        let bad = CommandRefusal::Access { region, offset, count };
        let layout = self.layout();
        let (space, size) = match u8::try_from(region) {
            _ if region == region::CONFIG => (Space::Config, layout.config),
            Ok(bar) => {
                let size = layout.bars.get(usize::from(bar)).copied().unwrap_or(0);
                (Space::Bar(bar), size)
            }
            Err(_) => return Err(bad),
        };
        let inside = offset.checked_add(count.into()).is_some_and(|end| end <= size);
        let count = widen(count);
        if inside && count > 0 && count <= MAX_DATA { Ok((space, offset, count)) } else { Err(bad) }
    }

    #[inline]
    fn read(&self, to: Header, body: &[u8], replies: &mut Replies) -> Result<(), CommandRefusal> {
        let (space, offset, count) = self.space(Body(body))?;
        replies.reply(to, body, count, |data| self.nic().read(space, offset, data));
        Ok(())
    }

    #[inline]
    fn write(&self, to: Header, body: &[u8], replies: &mut Replies) -> Result<(), CommandRefusal> {
        let (space, offset, count) = self.space(Body(body))?;
        let (access, data) = body.split_at_checked(ACCESS).unwrap_or((body, &[]));
        if data.len() != count {
            let command = Command::RegionWrite;
            return Err(CommandRefusal::BodySize { command, size: body.len() });
        }
        if !self.is_done {
            self.nic().write(space, offset, data);
        }
        replies.reply(to, access, 0, |_| {});
        Ok(())
    }

    /// Up to as many writes as the body says and has, until one is refused.
    fn write_multi(
        &self,
        to: Header,
        body: &[u8],
        replies: &mut Replies,
    ) -> Result<(), CommandRefusal> {
        let (count, writes) = body.split_at_checked(8).unwrap_or((body, &[]));
        let size = body.len();
        if Body(count).u64(0).checked_mul(ONE_WRITE as u64) != Some(writes.len() as u64) {
            return Err(CommandRefusal::BodySize { command: Command::WriteMulti, size });
        }
        for one in writes.chunks_exact(ONE_WRITE) {
            let (space, offset, count) = self.space(Body(one))?;
            let Some(data) = one.get(ACCESS..).and_then(|data| data.get(..count)) else {
                return Err(CommandRefusal::BodySize { command: Command::WriteMulti, size });
            };
            if !self.is_done {
                self.nic().write(space, offset, data);
            }
        }
        replies.reply(to, count, 0, |_| {});
        Ok(())
    }

    /// Handles the commands that are rare.
    fn control(
        &mut self,
        command: Command,
        message: Message<'_>,
        replies: &mut Replies,
    ) -> Result<Option<Arc<OwnedFd>>, CommandRefusal> {
        let (to, bytes, mut fds) = (message.header, message.body, message.fds);
        let body = Body(bytes);
        let done = match command {
            Command::Version => {
                if to.no_reply {
                    return Err(CommandRefusal::Order(command));
                }
                let client = Client::parse(bytes)?;
                self.client = Some(client);
                client.reply()
            }
            Command::DmaMap => {
                if self.dma.map(body, fds.pop())? {
                    self.remap()?;
                }
                Vec::new()
            }
            Command::DmaUnmap => {
                if self.dma.unmap(body)? {
                    self.remap()?;
                }
                bytes.get(..24).unwrap_or_default().to_vec()
            }
            Command::GetInfo => self.info(body)?,
            Command::GetRegionInfo => return self.region_info(to, body, replies),
            Command::GetRegionIoFds => no_io_fds(body)?,
            Command::GetIrqInfo => self.irq_info(body)?,
            Command::SetIrqs => {
                self.irqs.set(bytes, fds, &**self.port.nic())?;
                Vec::new()
            }
            _ => {
                self.nic().reset();
                self.port.forget_faults();
                Vec::new()
            }
        };
        replies.reply(to, &done, 0, |_| {});
        Ok(None)
    }

    /// The reply to what was done before.
    fn again(&self, command: Command, message: Message<'_>, replies: &mut Replies) {
        let done = match (command, self.client) {
            (Command::Version, Some(client)) => client.reply(),
            (Command::DmaUnmap, _) => message.body.get(..24).unwrap_or_default().to_vec(),
            _ => Vec::new(),
        };
        replies.reply(message.header, &done, 0, |_| {});
    }

    /// Gives the NIC the memory as it is now. When this returns, the map before is gone.
    fn remap(&self) -> Result<(), DmaError> {
        let map = self.dma.snapshot()?;
        drop(self.nic().set_map(map));
        self.port.forget_faults();
        Ok(())
    }

    fn info(&self, body: Body<'_>) -> Result<Vec<u8>, CommandRefusal> {
        /// `VFIO_DEVICE_FLAGS_RESET` and `_PCI`
        const FLAGS: u32 = 3;
        room(Command::GetInfo, body, 16)?;
        Ok(words(&[16, FLAGS, region::COUNT, irq::COUNT]))
    }

    /// Capabilities are sent only to a client that has room for them, as `argsz` says ("Message
    /// sizes"). The descriptor comes with them, so that it is sent once.
    fn region_info(
        &self,
        to: Header,
        body: Body<'_>,
        replies: &mut Replies,
    ) -> Result<Option<Arc<OwnedFd>>, CommandRefusal> {
        let command = Command::GetRegionInfo;
        let argsz = room(command, body, 32)?;
        let index = body.u32(8);
        if index >= region::COUNT {
            return Err(CommandRefusal::Index { command, index });
        }
        let layout = self.layout();
        let bar = layout.bars.get(widen(index));
        let size = if index == region::CONFIG { layout.config } else { bar.copied().unwrap_or(0) };
        let mut flags = if size > 0 { region::READ | region::WRITE } else { 0 };
        let takes_fds = self.client.is_some_and(|client| client.max_msg_fds > 0);
        let area = self.area.as_ref().filter(|area| area.bar == index && takes_fds);
        let (mut caps, mut cap_offset, mut needed, mut fd) = (Vec::new(), 0, 32, None);
        if let Some(area) = area {
            flags |= region::MMAP;
            needed = 32 + 32;
            if argsz >= needed {
                flags |= region::CAPS;
                cap_offset = 32;
                caps = sparse(area);
                fd = Some(Arc::clone(&area.file));
            }
        }
        let mut info = words(&[needed, flags, index, cap_offset]);
        info.extend(size.to_ne_bytes());
        info.extend(0u64.to_ne_bytes());
        info.extend(caps);
        replies.reply(to, &info, 0, |_| {});
        Ok(fd)
    }

    fn irq_info(&self, body: Body<'_>) -> Result<Vec<u8>, CommandRefusal> {
        let command = Command::GetIrqInfo;
        room(command, body, 16)?;
        let index = body.u32(8);
        let (mode, count) = irqs::kind(index, self.layout());
        let flags = match mode {
            Mode::Intx => irq::EVENTFD | irq::MASKABLE | irq::AUTOMASKED,
            Mode::Msi => irq::EVENTFD | irq::NORESIZE,
            // Vectors come and go one by one.
            Mode::Msix => irq::EVENTFD,
            Mode::None if index < irq::COUNT => 0,
            Mode::None => return Err(CommandRefusal::Index { command, index }),
        };
        Ok(words(&[16, flags, index, count.into()]))
    }
}

/// True if an access is to configuration space. One of REGION_WRITE_MULTI may be.
fn is_configuration(body: &[u8]) -> bool {
    body.len() > ACCESS && (Body(body).u32(8) == region::CONFIG || body.len() % ONE_WRITE == 8)
}

/// The client's `argsz`, which must cover the fixed part of the reply.
fn room(command: Command, body: Body<'_>, fixed: u32) -> Result<u32, CommandRefusal> {
    let argsz = body.u32(0);
    if argsz < fixed { Err(CommandRefusal::Argsz { command, argsz }) } else { Ok(argsz) }
}

/// "VFIO region info cap sparse mmap" with the one area that there is.
fn sparse(area: &Area) -> Vec<u8> {
    let mut bytes = region::SPARSE_MMAP.to_ne_bytes().to_vec();
    bytes.extend(1u16.to_ne_bytes());
    bytes.extend(words(&[0, 1, 0]));
    bytes.extend(area.range.start.to_ne_bytes());
    bytes.extend((area.range.end - area.range.start).to_ne_bytes());
    bytes
}

/// None of the regions has any.
fn no_io_fds(body: Body<'_>) -> Result<Vec<u8>, CommandRefusal> {
    let command = Command::GetRegionIoFds;
    room(command, body, 16)?;
    let index = body.u32(8);
    if index >= region::COUNT {
        return Err(CommandRefusal::Index { command, index });
    }
    Ok(words(&[16, 0, index, 0]))
}

impl Drop for Session {
    /// The client has gone: interrupts first, then memory, then the NIC is ready for the next.
    fn drop(&mut self) {
        self.port.set_connected(false);
        self.port.host().disconnect();
        drop(self.nic().set_map(Arc::default()));
        self.nic().renew();
    }
}
