//! A NIC whose chip is replaced in mid-traffic, as by a planned restart of the switch: another one
//! goes on from its state.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlan_frame::{Batch, Counters, NicCounters, Offloads, Sink};
use vmlan_nic::chip::{Fault, Host, Layout, Nic, PciFunction, Space, StateError};
use vmlan_ram::{Map, Window};

use crate::random::Random;
use crate::steps::Make;

static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// Chips replaced so far in this process.
pub fn replaced() -> usize {
    REPLACED.load(Ordering::SeqCst)
}

/// What leads out of one chip: nothing any more, when it is gone.
struct Line {
    host: Arc<dyn Host>,
    gone: AtomicBool,
}

impl Line {
    fn tell(&self, what: impl FnOnce(&dyn Host)) {
        if !self.gone.load(Ordering::SeqCst) {
            what(&*self.host);
        }
    }
}

impl Host for Line {
    fn now(&self) -> u64 {
        self.host.now()
    }
    fn set_timer(&self, at: u64) {
        self.tell(|host| host.set_timer(at));
    }
    fn raise(&self) {
        self.tell(|host| host.raise());
    }
    fn lower(&self) {
        self.tell(|host| host.lower());
    }
    fn send(&self, vector: u16) {
        self.tell(|host| host.send(vector));
    }
    fn doorbell(&self) {
        self.tell(|host| host.doorbell());
    }
}

/// What there is of the chip.
struct Now {
    chip: &'static dyn Nic,
    line: Arc<Line>,
    map: Arc<Map>,
    random: Random,
}

/// A chip, or rather its successors, one after the other. It is quiet, and replaced now and then,
/// when nobody is in a call of it.
///
/// Those that are gone are not freed, since counters are lent for as long as the NIC lives; but
/// they lose the guest's memory.
pub struct Successors {
    make: Make,
    host: Arc<dyn Host>,
    now: Mutex<Now>,
    /// Calls under way.
    calls: AtomicUsize,
}

/// A call under way.
struct Call<'n> {
    nic: &'n Successors,
    chip: &'static dyn Nic,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.nic.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Successors {
    /// The first is made by `make`, and so are all others.
    pub fn new(make: Make, host: Arc<dyn Host>) -> Self {
        let (chip, line) = new(make, &host);
        let random = Random(0x9e37_79b9_7f4a_7c15);
        let now = Mutex::new(Now { chip, line, map: Arc::default(), random });
        Self { make, host, now, calls: AtomicUsize::new(0) }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chip, for one call: one time in 24 another, if nobody else is in one.
    fn call(&self) -> Call<'_> {
        let mut now = self.now();
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 && now.random.below(24) == 0 {
            let state = now.chip.save();
            now.line.gone.store(true, Ordering::SeqCst);
            drop(now.chip.set_map(Arc::default()));
            (now.chip, now.line) = new(self.make, &self.host);
            drop(now.chip.set_map(Arc::clone(&now.map)));
            now.chip.restore(&state).expect("the state of its own kind");
            REPLACED.fetch_add(1, Ordering::SeqCst);
        }
        Call { nic: self, chip: now.chip }
    }
}

fn new(make: Make, host: &Arc<dyn Host>) -> (&'static dyn Nic, Arc<Line>) {
    let line = Arc::new(Line { host: Arc::clone(host), gone: AtomicBool::new(false) });
    let chip: &'static Arc<dyn Nic> = Box::leak(Box::new(make(line.clone())));
    (&**chip, line)
}

impl PciFunction for Successors {
    fn layout(&self) -> &'static Layout {
        self.call().chip.layout()
    }
    fn read(&self, space: Space, offset: u64, data: &mut [u8]) {
        self.call().chip.read(space, offset, data);
    }
    fn write(&self, space: Space, offset: u64, data: &[u8]) {
        self.call().chip.write(space, offset, data);
    }
    fn reset(&self) {
        self.call().chip.reset();
    }
    fn renew(&self) {
        self.call().chip.renew();
    }
    fn set_link(&self, up: bool) {
        self.call().chip.set_link(up);
    }
    fn posts_silently(&self) -> bool {
        self.call().chip.posts_silently()
    }
    fn save(&self) -> Vec<u8> {
        self.call().chip.save()
    }
    fn restore(&self, state: &[u8]) -> Result<(), StateError> {
        self.call().chip.restore(state)
    }
    fn hold(&self, memory: Window) -> bool {
        self.call().chip.hold(memory)
    }
    fn note(&self) {
        self.call().chip.note();
    }
    fn revive(&self, remains: &[u8], mapped: bool) -> Result<(), StateError> {
        self.call().chip.revive(remains, mapped)
    }
}

impl Nic for Successors {
    fn set_map(&self, map: Arc<Map>) -> Arc<Map> {
        let call = self.call();
        self.now().map = Arc::clone(&map);
        call.chip.set_map(map)
    }
    fn set_irq_rate_max(&self, rate_max: u32) {
        self.call().chip.set_irq_rate_max(rate_max);
    }
    fn timer(&self) {
        self.call().chip.timer();
    }
    fn reassert(&self) {
        self.call().chip.reassert();
    }
    fn is_asserted(&self) -> bool {
        self.call().chip.is_asserted()
    }
    fn fault(&self) -> Option<Fault> {
        self.call().chip.fault()
    }
    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        self.call().chip.pull(batch, limit, sink)
    }
    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        self.call().chip.push(batch, list)
    }
    fn offloads(&self) -> Offloads {
        self.call().chip.offloads()
    }
    fn room(&self) -> usize {
        self.call().chip.room()
    }
    fn is_set_up(&self) -> bool {
        self.call().chip.is_set_up()
    }

    fn is_up(&self) -> bool {
        self.call().chip.is_up()
    }
    fn arm(&self) -> bool {
        self.call().chip.arm()
    }
    fn is_being_changed(&self) -> bool {
        self.call().chip.is_being_changed()
    }
    fn disarm(&self) {
        self.call().chip.disarm();
    }
    fn want_room(&self) -> bool {
        self.call().chip.want_room()
    }
    fn memo(&self) -> u64 {
        self.call().chip.memo()
    }
    fn lost(&self, memo: u64) {
        self.call().chip.lost(memo);
    }
    fn counters(&self) -> &Counters {
        self.call().chip.counters()
    }
    fn device(&self) -> NicCounters {
        self.call().chip.device()
    }
}
