//! A virtual machine of one page of code, and what leaving it costs. Runs in a process of its own,
//! which may be ended at any time: each figure is told as soon as there is one.

use rustix::event::EventfdFlags;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use vmlan_transport::memory::Ram;
use vmm_sys_util::eventfd::EventFd;

use super::{Line, NOT_KVM, REAL, code};
use crate::probe::cores::{Cores, ONE_CORE, on_core, run_on};
use crate::probe::figure::{Found, Samples};
use crate::sys;

/// Ports: of an exit to us, of an ioeventfd, at the end of a row, in the interrupt's handler.
pub(super) const USER: u8 = 0xe0;
pub(super) const KERNEL: u8 = 0xe1;
pub(super) const DONE: u8 = 0xe2;
pub(super) const HANDLED: u8 = 0xe3;
/// The address of an ioeventfd in [`code::OUTSIDE`].
pub(super) const RING: u16 = 0x100;

const MEMORY: usize = 1 << 16;
/// Below 4 GiB, where no guest of ours has memory: what Intel's processors want for real mode.
const TSS: usize = 0xfffb_d000;
/// Exits in the kernel for one to us.
const ROW: u32 = 32;
/// Longest wait for an interrupt.
const PATIENCE: Duration = Duration::from_secs(1);
/// Until a halted guest sleeps, or one that has taken an interrupt runs again.
const GAP: Duration = Duration::from_micros(100);

type Say<'a> = &'a mut dyn FnMut(&Line);
/// Name and words of a figure, and the guest's program for it.
type Plan = (&'static str, &'static str, fn() -> Vec<u8>);

fn word(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> String {
    move |e| format!("{what}: {}", std::io::Error::from(e))
}

/// All figures. An error: there is no guest at all.
pub(super) fn measure(path: &str, time: Duration, say: Say<'_>) -> Result<(), String> {
    let cores = Cores::find();
    vmlan_transport::sys::pin_to_cpu(cores.here).map_err(|e| format!("cannot be pinned: {e}"))?;
    let mut guest = Guest::new(path)?;
    let rate = guest.rate(time)?;
    say(&Line::Rate(rate));
    let exits: [Plan; 3] = [
        ("exit-user-port", "exit to user space: port written", code::user_port),
        ("exit-user-write", "exit to user space: memory-mapped register written", code::user_write),
        ("exit-user-read", "exit to user space: memory-mapped register read", code::user_read),
    ];
    for (name, what, program) in exits {
        tell(say, name, what, guest.exits(&program(), time));
    }
    let rows: [Plan; 2] = [
        ("exit-kernel-port", "exit to the kernel: ioeventfd, port written", code::kernel_port),
        (
            "exit-kernel-memory",
            "exit to the kernel: ioeventfd, memory written",
            code::kernel_memory,
        ),
    ];
    for (name, what, program) in rows {
        let samples = guest.rows(&program(), time).and_then(|samples| guest.rung(samples));
        tell(say, name, what, samples);
    }
    for (asleep, name, what) in [
        (true, "interrupt-halted", "irqfd written, until the halted guest's handler exits"),
        (false, "interrupt-running", "irqfd written, until the running guest's handler exits"),
    ] {
        let samples = match (cores.there, asleep) {
            (None, false) => Err(ONE_CORE.into()),
            _ => Guest::new(path).and_then(|guest| guest.interrupted(asleep, cores, time)),
        };
        tell(say, name, what, samples);
    }
    // The last, since here an emulator may go round for ever: it puts its own instruction in the
    // place of a foreign one.
    let call = match rate >= REAL {
        true => guest.rows(&code::hypercall(), time),
        false => Err("not tried where no processor runs the guest".into()),
    };
    tell(say, "exit-kernel-call", "exit to the kernel: empty hypercall", call);
    Ok(())
}

fn tell(say: Say<'_>, name: &str, what: &str, samples: Result<Samples, String>) {
    let mut found = Found::default();
    match samples {
        Ok(samples) => found.add(name, what, samples),
        Err(why) => found.miss(what, why),
    }
    found.figures.into_iter().for_each(|figure| say(&Line::Figure(figure)));
    found.missing.into_iter().for_each(|missing| say(&Line::Missing(missing)));
}

struct Guest {
    vcpu: VcpuFd,
    /// Closed, it takes its eventfds off the guest.
    _vm: VmFd,
    /// What the ioeventfds ring.
    bell: EventFd,
    irq: EventFd,
    ram: Arc<Ram>,
}

impl Guest {
    fn new(path: &str) -> Result<Self, String> {
        let file = CString::new(path).map_err(|e| e.to_string())?;
        let kvm = Kvm::new_with_path(file).map_err(word("cannot be opened"))?;
        // The first thing that another file does not know.
        if kvm.get_api_version() < 0 {
            return Err(format!("{path} {NOT_KVM}"));
        }
        let vm = kvm.create_vm().map_err(word("makes no machine"))?;
        let ram = Ram::new(MEMORY, 1).map_err(|e| format!("no memory: {e}"))?;
        sys::give_memory(&vm, &ram).map_err(|e| format!("takes no memory: {e}"))?;
        // Only Intel's processors want it, and not all of them.
        let _ = vm.set_tss_address(TSS);
        vm.create_irq_chip().map_err(word("makes no interrupt controller"))?;
        let vcpu = vm.create_vcpu(0).map_err(word("makes no processor"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfd =
            || EventFd::new(flags.bits().cast_signed()).map_err(|e| format!("no eventfd: {e}"));
        let (bell, irq) = (eventfd()?, eventfd()?);
        let port = IoEventAddress::Pio(KERNEL.into());
        vm.register_ioevent(&bell, &port, NoDatamatch).map_err(word("takes no ioeventfd"))?;
        let memory = IoEventAddress::Mmio(code::OUTSIDE + u64::from(RING));
        vm.register_ioevent(&bell, &memory, NoDatamatch).map_err(word("takes no ioeventfd"))?;
        vm.register_irqfd(&irq, code::LINE).map_err(word("takes no irqfd"))?;
        Ok(Self { vcpu, _vm: vm, bell, irq, ram })
    }

    /// Puts a program in place, to run from its start.
    fn load(&self, program: &[u8], row: u32) -> Result<(), String> {
        let Ok(start) = usize::try_from(code::START) else { return Err("no address".into()) };
        self.ram.write(start, program);
        let mut special = self.vcpu.get_sregs().map_err(word("has no registers"))?;
        let flat = |segment: &mut kvm_segment, selector: u16| {
            (segment.base, segment.selector) = (u64::from(selector) << 4, selector);
        };
        for segment in [&mut special.cs, &mut special.ds, &mut special.ss] {
            flat(segment, 0);
        }
        flat(&mut special.es, code::OUTSIDE_SEGMENT);
        self.vcpu.set_sregs(&special).map_err(word("takes no registers"))?;
        // Bit 1 of the flags is always set; an unknown hypercall's number.
        let regs = kvm_regs {
            rip: code::START,
            rsp: code::STACK,
            rax: 0x7ffe,
            rbx: row.into(),
            rflags: 2,
            ..Default::default()
        };
        self.vcpu.set_regs(&regs).map_err(word("takes no registers"))
    }

    /// Instructions a second in a loop that leaves nothing to do but count.
    fn rate(&mut self, time: Duration) -> Result<f64, String> {
        const INSTRUCTIONS: f64 = 2.0;
        let mut loops = 1000_u32;
        loop {
            self.load(&code::count(), loops)?;
            self.until(DONE)?;
            let start = Instant::now();
            self.until(DONE)?;
            let took = start.elapsed();
            if took >= time.min(Duration::from_millis(20)) || loops >= 1 << 30 {
                return Ok(INSTRUCTIONS * f64::from(loops) / took.as_secs_f64().max(1e-9));
            }
            loops *= 4;
        }
    }

    /// Runs until this port is written.
    fn until(&mut self, port: u8) -> Result<(), String> {
        match self.vcpu.run() {
            Ok(VcpuExit::IoOut(at, _)) if at == u16::from(port) => Ok(()),
            Ok(other) => Err(format!("the guest left by {other:?}")),
            Err(e) => Err(word("does not run")(e)),
        }
    }

    /// Each exit comes to us: from one to the next.
    fn exits(&mut self, program: &[u8], time: Duration) -> Result<Samples, String> {
        self.load(program, 0)?;
        let mut failure = None;
        let mut once = || match self.vcpu.run() {
            Ok(VcpuExit::IoOut(..) | VcpuExit::MmioWrite(..)) => {}
            Ok(VcpuExit::MmioRead(_, bytes)) => bytes.fill(0),
            Ok(other) => failure = Some(format!("the guest left by {other:?}")),
            Err(e) => failure = Some(word("does not run")(e)),
        };
        once();
        let samples = Samples::take(1, time, once);
        failure.map_or(Ok(samples), Err)
    }

    /// Only the end of a row comes to us.
    fn rows(&mut self, program: &[u8], time: Duration) -> Result<Samples, String> {
        self.load(program, ROW)?;
        let mut result = self.until(DONE);
        let samples = Samples::take(ROW, time, || {
            if result.is_ok() {
                result = self.until(DONE);
            }
        });
        result.map(|()| samples)
    }

    /// The samples, if somebody was rung at all.
    fn rung(&self, samples: Samples) -> Result<Samples, String> {
        self.bell.read().map(|_| samples).map_err(|_| "the ioeventfd was not rung".into())
    }

    /// From writing the eventfd until the guest's handler is with us.
    fn interrupted(self, asleep: bool, cores: Cores, time: Duration) -> Result<Samples, String> {
        for (at, bytes) in code::handler() {
            self.ram.write(at, &bytes);
        }
        self.load(&code::interrupts(asleep), 0)?;
        let irq = self.irq.try_clone().map_err(|e| e.to_string())?;
        let seen = Arc::new(Measured::default());
        let theirs = seen.clone();
        let runs = on_core(cores.far(), move || theirs.run(self)).map_err(|e| e.to_string())?;
        let samples = run_on(cores.here, move || seen.interrupt(&irq, time))?;
        // Whoever does not come back keeps the thread; it ends with this process.
        if samples.is_ok() {
            drop(runs.join());
        }
        samples
    }
}

/// What the thread of the guest's processor has seen.
struct Measured {
    start: Instant,
    at: AtomicU64,
    count: AtomicU64,
    over: AtomicBool,
}

impl Default for Measured {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { start: Instant::now(), at: zero(), count: zero(), over: AtomicBool::new(false) }
    }
}

impl Measured {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn run(&self, mut guest: Guest) {
        while guest.until(HANDLED).is_ok() {
            self.at.store(self.now(), Release);
            self.count.fetch_add(1, Release);
            if self.over.load(Acquire) {
                break;
            }
        }
    }

    fn interrupt(&self, irq: &EventFd, time: Duration) -> Result<Samples, String> {
        let mut samples = Samples::new(1);
        // For the guest to be there.
        sleep(Duration::from_millis(20));
        let end = Instant::now() + time;
        loop {
            sleep(GAP);
            let last = Instant::now() >= end || samples.is_full();
            self.over.store(last, Release);
            let (count, start) = (self.count.load(Acquire), self.now());
            irq.write(1).map_err(|e| e.to_string())?;
            let patience = Instant::now() + PATIENCE;
            while self.count.load(Acquire) == count {
                if Instant::now() > patience {
                    return Err("an interrupt did not come".into());
                }
                std::thread::yield_now();
            }
            samples.add(Duration::from_nanos(self.at.load(Acquire).saturating_sub(start)));
            if last {
                return Ok(samples);
            }
        }
    }
}
