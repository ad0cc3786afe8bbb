//! The chip without a socket: a bus and a port on one [`E1000`], all in this process.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use vmlan_driver::wait::Wake;
use vmlan_frame::{Batch, Counters, Doorbell, Mac, NicCounters, Offloads, Port, Sink};
use vmlan_nic::chip::{Config, Host, Nic, PciFunction, Space};
use vmlan_nic::e1000::E1000;
use vmlan_ram::{Map, Mapping, Region, Window};
use vmlan_transport::memory::{Ram, SharedWords};
use vmlan_transport::sys::{self, EventFd};
use vmlan_transport::{Bus, BusError, Irq, Watched, Width};

use crate::chip_guest::{E1000Guest, e1000_address};
use crate::in_process_lan::Lan;

/// How often a worker that sleeps looks at mapped doorbells.
const POLL: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Alarm {
    at: Option<u64>,
    over: bool,
}

/// What leads out of the chip.
struct ChipHost {
    start: Instant,
    interrupt: EventFd,
    bell: EventFd,
    msi: AtomicBool,
    /// INTx masks itself when it is delivered.
    masked: AtomicBool,
    alarm: Mutex<Alarm>,
    rung: Condvar,
}

impl Host for ChipHost {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a short test")
    }

    fn set_timer(&self, at: u64) {
        self.alarm.lock().expect("alarm").at = Some(at);
        self.rung.notify_one();
    }

    fn raise(&self) {
        if self.msi.load(Ordering::SeqCst) || !self.masked.swap(true, Ordering::SeqCst) {
            self.interrupt.signal();
        }
    }

    fn doorbell(&self) {
        self.bell.signal();
    }
}

impl ChipHost {
    /// Plays the chip's timer until it is over.
    fn tick(&self, chip: &Weak<E1000>) {
        let mut alarm = self.alarm.lock().expect("alarm");
        while !alarm.over {
            let left = alarm.at.map(|at| at.saturating_sub(self.now()));
            if left == Some(0) {
                alarm.at = None;
                drop(alarm);
                if let Some(chip) = chip.upgrade() {
                    chip.timer();
                }
                alarm = self.alarm.lock().expect("alarm");
            } else {
                let left = left.map_or(Duration::from_secs(60), Duration::from_nanos);
                alarm = self.rung.wait_timeout(alarm, left).expect("alarm").0;
            }
        }
    }
}

/// The chip as the switch sees it.
struct InProcessPort {
    chip: Arc<E1000>,
    bell: Arc<OwnedFd>,
    poll: Option<Duration>,
}

impl Port for InProcessPort {
    fn pull(
        &self,
        _: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        self.chip.pull(batch, limit, sink)
    }

    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        self.chip.push(batch, list)
    }

    fn offloads(&self) -> Offloads {
        self.chip.offloads()
    }

    fn room(&self) -> usize {
        self.chip.room()
    }

    fn is_up(&self) -> bool {
        self.chip.is_up()
    }

    fn arm(&self, _: usize) -> bool {
        self.chip.arm()
    }

    fn disarm(&self, _: usize) {
        self.chip.disarm();
    }

    fn want_room(&self) -> bool {
        self.chip.want_room()
    }

    fn doorbells(&self, _: usize) -> Vec<Doorbell> {
        vec![self.bell.clone()]
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.poll
    }

    fn device(&self) -> Option<NicCounters> {
        Some(self.chip.device())
    }

    fn counters(&self) -> &Counters {
        self.chip.counters()
    }
}

/// The bus of a chip in this process.
pub struct InProcessBus {
    chip: Arc<E1000>,
    host: Arc<ChipHost>,
    words: Option<SharedWords>,
    irq: Irq,
    changed: Arc<dyn Fn() + Send + Sync>,
}

impl Drop for InProcessBus {
    fn drop(&mut self) {
        self.host.alarm.lock().expect("alarm").over = true;
        self.host.rung.notify_one();
    }
}

/// Memory for the registers of an e1000, and the file that a guest may map.
///
/// # Panics
/// When it cannot be had.
pub fn register_pages() -> (Window, File) {
    let pages = tempfile::tempfile_in("/dev/shm").expect("a file");
    let size = E1000::PAGES as u64;
    pages.set_len(size).expect("two pages");
    let mapping = Arc::new(Mapping::new(pages.as_fd(), 0, size).expect("a mapping"));
    let region = Region::new(0, size, 0, 0, mapping).expect("a region");
    let map = Arc::new(Map::new(vec![region], None).expect("a map"));
    (map.window(0, E1000::PAGES, 4).expect("a window"), pages)
}

/// The guest's RAM as the chip's map.
pub(crate) fn map_of(ram: &Ram) -> Arc<Map> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", ram.raw_fd()));
    let file = File::options().read(true).write(true).open(path).expect("the guest's RAM");
    let region = |part: &vmlan_transport::memory::Region| {
        let mapping = Mapping::new(file.as_fd(), part.offset, part.size).expect("a mapping");
        Region::new(part.guest_phys, part.size, 0, 0, Arc::new(mapping)).expect("a region")
    };
    Arc::new(Map::new(ram.regions().iter().map(region).collect(), None).expect("a map"))
}

impl InProcessBus {
    /// Adds a port `name` to the switch, with a chip that reaches `ram`, and no socket between.
    ///
    /// # Panics
    /// When something cannot be had.
    pub fn plug(
        lan: &mut Lan,
        name: &str,
        id: u8,
        mapped: bool,
        csb: bool,
        ram: &Arc<Ram>,
    ) -> Self {
        let (window, pages) = register_pages();
        let host = Arc::new(ChipHost {
            start: Instant::now(),
            interrupt: EventFd::new().expect("an eventfd"),
            bell: EventFd::new().expect("an eventfd"),
            msi: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            alarm: Mutex::default(),
            rung: Condvar::new(),
        });
        let config = Config { mac: Mac::new([2, 0, 0, 0, 0, id]), irq_rate_max: 0, csb };
        let chip = Arc::new(E1000::new(config, window, host.clone()));
        drop(chip.set_map(map_of(ram)));
        chip.set_link(true);
        let (ticking, weak) = (host.clone(), Arc::downgrade(&chip));
        std::thread::spawn(move || ticking.tick(&weak));
        let bell = Arc::new(host.bell.as_fd().try_clone_to_owned().expect("a descriptor"));
        let poll = mapped.then_some(POLL);
        lan.add_port(name, Arc::new(InProcessPort { chip: chip.clone(), bell, poll }));
        let words =
            mapped.then(|| SharedWords::map(&pages, 0, E1000::PAGES as u64).expect("a mapping"));
        InProcessBus { chip, host, words, irq: Irq::Intx, changed: lan.changed() }
    }
}

impl E1000Guest<InProcessBus> {
    /// Adds a port `name` to the switch, and guest `id` to it, with no socket between. The chip
    /// offers CSB when `keys` ask for it.
    ///
    /// # Panics
    /// When something cannot be had.
    pub fn in_process(lan: &mut Lan, name: &str, id: u8, mapped: bool, keys: &str) -> Self {
        let options = e1000_address(&PathBuf::from("nowhere"), keys).driver;
        let csb = options.csb;
        Self::build(options, id, |ram| InProcessBus::plug(lan, name, id, mapped, csb, ram))
    }
}

impl Bus for InProcessBus {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError> {
        self.chip.read(Space::Config, offset.into(), bytes);
        Ok(())
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError> {
        self.chip.write(Space::Config, offset.into(), bytes);
        Ok(())
    }

    fn read(&mut self, offset: u32, _: Width) -> Result<u32, BusError> {
        let mut bytes = [0; 4];
        self.chip.read(Space::Bar(0), offset.into(), &mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&mut self, offset: u32, _: Width, value: u32) -> Result<(), BusError> {
        let up = self.chip.is_up();
        self.chip.write(Space::Bar(0), offset.into(), &value.to_le_bytes());
        if self.chip.is_up() != up {
            (self.changed)();
        }
        Ok(())
    }

    fn write_io(&mut self, offset: u32, value: u32) -> Result<(), BusError> {
        self.chip.write(Space::Bar(1), offset.into(), &value.to_le_bytes());
        Ok(())
    }

    #[inline]
    fn mapped(&self, offset: u32) -> Option<&AtomicU32> {
        let at = offset.checked_sub(0x2000)? / 4;
        self.words.as_ref()?.get(usize::try_from(at).ok()?)
    }

    fn use_interrupt(&mut self, irq: Irq) -> Result<(), BusError> {
        self.irq = irq;
        self.host.msi.store(irq == Irq::Msi, Ordering::SeqCst);
        Ok(())
    }

    fn take_interrupts(&mut self) -> u64 {
        self.host.interrupt.take()
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        self.host.masked.store(false, Ordering::SeqCst);
        if self.chip.is_asserted() {
            self.host.raise();
        }
        Ok(())
    }

    fn watched(&self) -> Watched<'_> {
        Watched { interrupt: Some(self.host.interrupt.as_fd()), gone: None }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, BusError> {
        let ready = sys::poll_readable(&[self.host.interrupt.as_fd()], Some(timeout))
            .map_err(|source| BusError::Other { what: "wait", source: source.into() })?;
        Ok(if ready == 0 { Wake::Timeout } else { Wake::Ready })
    }
}
