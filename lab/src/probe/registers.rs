//! Registers of our e1000, reached as a VMM reaches them: messages over the real socket, and stores
//! in a shared page.
//!
//! The server runs in this process, on the far core; the client plays the VMM on the near one. What
//! a guest under KVM pays is an exit to user space more.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use vmlan_attach::vfio_user::{self, Config, Doorbell, VfioUser};
use vmlan_driver::e1000::E1000;
use vmlan_frame::{Mac, Port};
use vmlan_transport::Bus as _;
use vmlan_transport::address;
use vmlan_transport::vfio_user::{VfioBus, region};

use super::cores::{Cores, ONE_CORE, on_core, run_on};
use super::figure::{Found, Samples};
use super::worker::{Watch, Worker};
use crate::native::Scratch;
use vmlan_frame::error_chain;

/// SDM 13.4.2 and 13.4.40: harmless to read; harmless to write while transmission is off.
const STATUS: u32 = 0x0008;
const TDT: u32 = 0x3818;
/// Posted writes in a row, less than a socket holds.
const ROW: u32 = 64;
/// Until whoever waits by looking has gone to sleep.
const GAP: Duration = Duration::from_micros(300);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(5);

/// All of it.
pub(super) fn all(cores: Cores, time: Duration) -> Found {
    let mut found = Found::default();
    for doorbell in [Doorbell::Trapped, Doorbell::Mapped] {
        let measured = Server::start(doorbell, cores).and_then(|server| {
            let trapped = doorbell == Doorbell::Trapped;
            let measure = if trapped { messages } else { stores };
            let place = server.address("writes=posted");
            let mut part = run_on(cores.here, move || measure(&place?, time))??;
            part.append(frames(&server, cores, time, trapped));
            Ok(part)
        });
        match measured {
            Ok(part) => found.append(part),
            Err(why) => found.miss("registers over vfio-user", why),
        }
    }
    found
}

/// A port without a switch.
struct Server {
    // Dropped in this order: the socket goes before its directory.
    port: VfioUser,
    dir: Scratch,
    doorbell: Doorbell,
}

impl Server {
    /// Threads take the core of whoever starts them.
    fn start(doorbell: Doorbell, cores: Cores) -> Result<Self, String> {
        let dir = Scratch::new().map_err(|e| e.to_string())?;
        let mac = Mac::new([0x52, 0x54, 0, 0, 0, 0x0a]);
        let config = Config { doorbell, ..Config::new(dir.socket("probe"), mac) };
        let port = run_on(cores.far(), || vfio_user::attach(config, Arc::new(|| ())))?;
        Ok(Self { port: port.map_err(|e| error_chain(&e))?, dir, doorbell })
    }

    /// As the guest sees it.
    fn address(&self, keys: &str) -> Result<address::VfioUser, String> {
        let path = self.dir.socket("probe");
        let doorbell = if self.doorbell == Doorbell::Mapped { "mapped" } else { "trapped" };
        let text = format!("vfio-user:{},doorbell={doorbell},{keys}", path.display());
        text.parse().map_err(|e| error_chain(&e))
    }
}

fn connect(address: &address::VfioUser) -> Result<VfioBus, String> {
    let ram =
        vmlan_driver::nic::make_ram(&address.driver).map_err(|e| format!("no memory: {e}"))?;
    VfioBus::connect(address, &ram, PATIENCE).map_err(|e| error_chain(&e))
}

/// The first error of many calls.
#[derive(Default)]
struct Errors(Option<String>);

impl Errors {
    fn note<T>(&mut self, result: Result<T, impl std::error::Error>) {
        if let Err(e) = result {
            self.0.get_or_insert(error_chain(&e));
        }
    }

    fn verdict(self, found: Found) -> Result<Found, String> {
        self.0.map_or(Ok(found), Err)
    }
}

/// Accesses that are messages.
fn messages(address: &address::VfioUser, time: Duration) -> Result<Found, String> {
    let mut bus = connect(address)?;
    let (mut found, mut errors) = (Found::default(), Errors::default());
    let read = Samples::take(1, time, || errors.note(bus.read32(STATUS)));
    found.add("read", "vfio-user register read, waited", read);
    let asleep = paused(time, || errors.note(bus.read32(STATUS)));
    found.add("read-asleep", "vfio-user register read, waited, the server asleep", asleep);
    let bytes = 0_u32.to_le_bytes();
    let waited = Samples::take(1, time, || {
        errors.note(bus.client().region_write(region::BAR0, TDT.into(), &bytes, false));
    });
    found.add("write-waited", "vfio-user register write, waited", waited);
    found.add("write", "vfio-user register write, posted", posted(&mut bus, time, &mut errors));
    let row = Samples::take(ROW, time, || {
        for _ in 1..ROW {
            errors.note(bus.write32(TDT, 0));
        }
        errors.note(bus.read32(STATUS));
    });
    found.add("write-row", "vfio-user register write, posted, in a row, until all are served", row);
    errors.verdict(found)
}

/// What the guest waits for, with a server that has nothing else to do.
fn posted(bus: &mut VfioBus, time: Duration, errors: &mut Errors) -> Samples {
    let (mut samples, end) = (Samples::new(1), Instant::now() + time);
    while Instant::now() < end && !samples.is_full() {
        let start = Instant::now();
        errors.note(bus.write32(TDT, 0));
        samples.add(start.elapsed());
        // Until the server has dealt with it.
        errors.note(bus.read32(STATUS));
    }
    samples
}

/// One now and then.
fn paused(time: Duration, mut once: impl FnMut()) -> Samples {
    let (mut samples, end) = (Samples::new(1), Instant::now() + time);
    while Instant::now() < end {
        sleep(GAP);
        let start = Instant::now();
        once();
        samples.add(start.elapsed());
    }
    samples
}

/// Accesses that are none.
fn stores(address: &address::VfioUser, time: Duration) -> Result<Found, String> {
    const MANY: u32 = 1000;
    let bus = connect(address)?;
    let word = bus.mapped(TDT).ok_or("the server offers no page to map")?;
    let mut found = Found::default();
    let samples = Samples::take(MANY, time, || {
        for n in 0..MANY {
            // As the driver does it: what was written before is visible before. No frame is there,
            // whatever it says.
            word.store(std::hint::black_box(n & 7), Release);
        }
    });
    found.add("store", "store to a mapped register", samples);
    Ok(found)
}

/// One frame at a time, from before its descriptor is written until the worker has it.
fn frames(server: &Server, cores: Cores, time: Duration, trapped: bool) -> Found {
    let (asleep, awake) = if trapped {
        (true, "frame offered by a posted write, until an awake worker has it")
    } else {
        (false, "frame offered by a store, until an awake worker has it")
    };
    let name = if trapped { "frame-posted" } else { "frame-store" };
    let mut found = Found::default();
    match cores.there {
        Some(_) => one_way(&mut found, server, cores, time, (name, awake, Watch::Awake)),
        None => found.miss(awake, ONE_CORE),
    }
    if asleep {
        let what = "frame offered by a posted write, until a sleeping worker has it";
        one_way(&mut found, server, cores, time, ("frame-posted-asleep", what, Watch::Asleep));
    }
    found
}

fn one_way(
    found: &mut Found,
    server: &Server,
    cores: Cores,
    time: Duration,
    (name, what, watch): (&str, &str, Watch),
) {
    let samples = server
        .address("writes=posted,completion=lazy,receive=poll")
        .and_then(|address| offered(server.port.vfio_port(), &address, cores, time, watch));
    match samples {
        Ok(samples) => found.add(name, what, samples),
        Err(why) => found.miss(what, why),
    }
}

fn offered(
    port: Arc<dyn Port>,
    address: &address::VfioUser,
    cores: Cores,
    time: Duration,
    watch: Watch,
) -> Result<Samples, String> {
    let worker = Arc::new(Worker::default());
    let over = Arc::new(AtomicBool::new(false));
    let (theirs, ends) = (worker.clone(), over.clone());
    let thread: JoinHandle<std::io::Result<()>> =
        on_core(cores.far(), move || theirs.run(&*port, watch, &ends))
            .map_err(|e| e.to_string())?;
    let address = address.clone();
    let samples = run_on(cores.here, move || send(&address, &worker, time, watch));
    over.store(true, Relaxed);
    if thread.join().is_err() {
        return Err("the worker failed".into());
    }
    samples?
}

fn send(
    address: &address::VfioUser,
    worker: &Worker,
    time: Duration,
    watch: Watch,
) -> Result<Samples, String> {
    let ram =
        vmlan_driver::nic::make_ram(&address.driver).map_err(|e| format!("no memory: {e}"))?;
    let bus = VfioBus::connect(address, &ram, PATIENCE).map_err(|e| error_chain(&e))?;
    let mut nic = E1000::new(address.driver.clone(), &ram, bus).map_err(|e| error_chain(&e))?;
    let (mut samples, end) = (Samples::new(1), Instant::now() + time);
    while Instant::now() < end && !samples.is_full() {
        if watch == Watch::Asleep {
            sleep(GAP);
        }
        nic.reap();
        let Some(slot) = nic.next() else {
            std::hint::spin_loop();
            continue;
        };
        let (before, start) = (worker.frames.load(Acquire), worker.now());
        nic.send(slot, 60);
        nic.flush();
        if !worker.wait(before, PATIENCE) {
            return Err("a frame did not arrive".into());
        }
        samples.add(Duration::from_nanos(worker.seen.load(Acquire).saturating_sub(start)));
    }
    Ok(samples)
}
