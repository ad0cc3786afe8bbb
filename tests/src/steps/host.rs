//! What leads out of a chip and into it, and the thread of its port: as `vfio_user/nic_host.rs`
//! and `vfio_user/server.rs` in attach.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vmlan_driver::wait::Wake;
use vmlan_nic::chip::{Host, Nic, Space};
use vmlan_transport::{Bars, Bus, BusError, Irq, Watched, Width};

use super::turns::Turns;
use super::{GUESTS, WORKER};

/// What leads out of a chip, and into it.
pub(super) struct StepHost {
    turns: Arc<Turns>,
    /// The number of the port's thread.
    pub(super) who: usize,
    /// The regions with the chip's registers.
    bars: Bars,
    alarm: Mutex<Option<u64>>,
    interrupts: AtomicU64,
    msi: AtomicBool,
    masked: AtomicBool,
    unmask: AtomicBool,
    /// An edge that the worker has not taken.
    bell: Arc<AtomicBool>,
    messages: Mutex<VecDeque<Message>>,
    answer: Mutex<Option<u32>>,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Read(u32, Width),
    Write(u32, Width, u32),
    Posted(u32, Width, u32),
}

impl StepHost {
    /// Those of the port whose thread is number `who`. `bell`: the worker's.
    pub(super) fn new(
        turns: &Arc<Turns>,
        who: usize,
        bars: Bars,
        bell: &Arc<AtomicBool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            turns: Arc::clone(turns),
            who,
            bars,
            alarm: Mutex::default(),
            interrupts: AtomicU64::new(0),
            msi: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            unmask: AtomicBool::new(false),
            bell: Arc::clone(bell),
            messages: Mutex::default(),
            answer: Mutex::default(),
        })
    }

    fn alarm(&self) -> MutexGuard<'_, Option<u64>> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When its timer is due, if it is set.
    pub(super) fn due(&self) -> Option<u64> {
        *self.alarm()
    }

    pub(super) fn is_due(&self, now: u64) -> bool {
        self.alarm().is_some_and(|at| at <= now)
    }

    fn place(&self, offset: u32) -> (Space, u64) {
        let (n, at) = self.bars.place(offset);
        (Space::Bar(u8::try_from(self.bars.registers[n]).expect("0 to 5")), at.into())
    }

    fn messages(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn explain(&self) -> String {
        format!(
            "alarm {:?} at {}, interrupts {}, masked {}, unmask {}, asleep {}, bell {}",
            *self.alarm(),
            self.turns.now(),
            self.interrupts.load(Ordering::SeqCst),
            self.masked.load(Ordering::SeqCst),
            self.unmask.load(Ordering::SeqCst),
            self.turns.is_asleep(self.who),
            self.bell.load(Ordering::SeqCst),
        )
    }
}

impl Host for StepHost {
    fn now(&self) -> u64 {
        self.turns.now()
    }

    fn set_timer(&self, at: u64) {
        *self.alarm() = Some(at);
    }

    fn raise(&self) {
        self.turns.step();
        if self.msi.load(Ordering::SeqCst) || !self.masked.swap(true, Ordering::SeqCst) {
            self.interrupts.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn lower(&self) {
        self.turns.step();
    }

    /// The first vector is for all frames.
    fn send(&self, vector: u16) {
        self.turns.step();
        self.interrupts.fetch_add(u64::from(vector == 0), Ordering::SeqCst);
    }

    fn doorbell(&self) {
        self.turns.step();
        self.bell.store(true, Ordering::SeqCst);
        self.turns.wake(WORKER);
    }
}

/// What the thread of one port does, as `vfio_user/server.rs`.
pub(super) fn attach(host: &StepHost, chip: &dyn Nic) {
    let turns = &host.turns;
    while turns.step() {
        let due = host.is_due(turns.now());
        let unmasked = host.unmask.load(Ordering::SeqCst);
        let said = !host.messages().is_empty();
        if !(due || unmasked || said) {
            if !turns.sleep() {
                return;
            }
            continue;
        }
        turns.step();
        if due {
            let mut alarm = host.alarm();
            // Whoever has set it anew meanwhile has taken the expiry.
            *alarm = alarm.filter(|at| *at > turns.now());
            drop(alarm);
            turns.step();
            chip.timer();
        }
        if unmasked && host.unmask.swap(false, Ordering::SeqCst) {
            host.masked.store(false, Ordering::SeqCst);
            turns.step();
            chip.reassert();
        }
        if said {
            serve(host, chip);
        }
    }
}

fn serve(host: &StepHost, chip: &dyn Nic) {
    loop {
        let Some(message) = host.messages().pop_front() else { return };
        let answer = match message {
            Message::Read(offset, width) => {
                let mut bytes = [0; 4];
                let (space, at) = host.place(offset);
                chip.read(space, at, &mut bytes[..width as usize]);
                Some(u32::from_le_bytes(bytes))
            }
            Message::Write(offset, width, value) | Message::Posted(offset, width, value) => {
                let bytes = value.to_le_bytes();
                let (space, at) = host.place(offset);
                chip.write(space, at, &bytes[..width as usize]);
                matches!(message, Message::Write(..)).then_some(0)
            }
        };
        host.turns.step();
        if answer.is_some() {
            *host.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
            host.turns.wake(GUESTS);
        }
    }
}

/// The bus of a chip whose port's thread takes its turns.
pub struct StepBus {
    pub(super) host: Arc<StepHost>,
    pub(super) chip: Arc<dyn Nic>,
    /// Writes are not waited for.
    pub(super) posted: bool,
}

impl StepBus {
    fn ask(&self, message: Message) -> u32 {
        let turns = &self.host.turns;
        turns.step();
        self.host.messages().push_back(message);
        turns.wake(self.host.who);
        if matches!(message, Message::Posted(..)) {
            turns.step();
            return 0;
        }
        loop {
            let answer = self.host.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(answer) = answer {
                turns.step();
                return answer;
            }
            if !turns.sleep() {
                return 0;
            }
        }
    }
}

impl Bus for StepBus {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError> {
        self.chip.read(Space::Config, offset.into(), bytes);
        Ok(())
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError> {
        self.chip.write(Space::Config, offset.into(), bytes);
        Ok(())
    }

    fn write_io(&mut self, offset: u32, value: u32) -> Result<(), BusError> {
        self.chip.write(Space::Bar(1), offset.into(), &value.to_le_bytes());
        Ok(())
    }

    fn read(&mut self, offset: u32, width: Width) -> Result<u32, BusError> {
        Ok(self.ask(Message::Read(offset, width)))
    }

    fn write(&mut self, offset: u32, width: Width, value: u32) -> Result<(), BusError> {
        let message = if self.posted { Message::Posted } else { Message::Write };
        self.ask(message(offset, width, value));
        Ok(())
    }

    fn use_interrupt(&mut self, irq: Irq) -> Result<(), BusError> {
        self.host.msi.store(irq == Irq::Msi, Ordering::SeqCst);
        Ok(())
    }

    fn take_interrupts(&mut self) -> u64 {
        self.host.turns.step();
        self.host.interrupts.swap(0, Ordering::SeqCst)
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        self.host.turns.step();
        self.host.unmask.store(true, Ordering::SeqCst);
        self.host.turns.wake(self.host.who);
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<Wake, BusError> {
        Ok(Wake::Timeout)
    }

    fn watched(&self) -> Watched<'_> {
        Watched::default()
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.host.turns.now())
    }
}
