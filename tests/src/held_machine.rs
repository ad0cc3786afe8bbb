//! A machine whose VM outlives the switch: its NIC is set up again and again, by drivers on one
//! bus.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use vmlan_driver::chip::{Chip, ChipDriver, Offload};
use vmlan_driver::e1000::Intel;
use vmlan_driver::nic::make_ram;
use vmlan_transport::memory::Ram;
use vmlan_transport::vfio_user::VfioBus;
use vmlan_transport::{Bus, BusError, Irq, Model, Options, Wake, Watched, Width};

use crate::Switch;
use crate::chip_guest::address;
use crate::numbered::{STALL, frame, mac, settles};

/// A bus that outlives the driver on it: what resets its chip takes a new one.
pub struct Lent<'b>(&'b mut VfioBus);

impl Bus for Lent<'_> {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> std::result::Result<(), BusError> {
        self.0.read_config(offset, bytes)
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> std::result::Result<(), BusError> {
        self.0.write_config(offset, bytes)
    }

    fn read(&mut self, offset: u32, width: Width) -> std::result::Result<u32, BusError> {
        self.0.read(offset, width)
    }

    fn write(
        &mut self,
        offset: u32,
        width: Width,
        value: u32,
    ) -> std::result::Result<(), BusError> {
        self.0.write(offset, width, value)
    }

    fn write_io(&mut self, offset: u32, value: u32) -> std::result::Result<(), BusError> {
        self.0.write_io(offset, value)
    }

    fn use_interrupt(&mut self, irq: Irq) -> std::result::Result<(), BusError> {
        self.0.use_interrupt(irq)
    }

    fn take_interrupts(&mut self) -> u64 {
        self.0.take_interrupts()
    }

    fn unmask(&mut self) -> std::result::Result<(), BusError> {
        self.0.unmask()
    }

    fn wait(&mut self, timeout: Duration) -> std::result::Result<Wake, BusError> {
        self.0.wait(timeout)
    }

    fn watched(&self) -> Watched<'_> {
        self.0.watched()
    }

    fn is_connected(&self) -> bool {
        self.0.is_connected()
    }
}

/// A machine whose NIC is set up again and again.
pub struct Machine {
    id: u8,
    options: Options,
    ram: Arc<Ram>,
    /// To its NIC.
    pub bus: VfioBus,
}

/// A driver on its bus: of an e1000, unless something else is said.
pub type Nic<'b, C = Intel> = ChipDriver<C, Lent<'b>>;

impl Machine {
    /// Plugs into the port whose socket is at `path`.
    ///
    /// # Panics
    /// If it cannot.
    pub fn new(path: &std::path::Path, id: u8) -> Self {
        Self::with(path, id, "")
    }

    /// With further keys of its address: `,csb=on`.
    ///
    /// # Panics
    /// If it cannot.
    pub fn with(path: &std::path::Path, id: u8, keys: &str) -> Self {
        Self::of(Model::E1000, path, id, keys)
    }

    /// Of another model.
    ///
    /// # Panics
    /// If it cannot.
    pub fn of(model: Model, path: &std::path::Path, id: u8, keys: &str) -> Self {
        let address = address(model, path, keys);
        let ram = make_ram(&address.driver).expect("RAM");
        let bus = VfioBus::connect(&address, &ram, STALL).expect("a port");
        Self { id, options: address.driver, ram, bus }
    }

    /// Its driver begins.
    ///
    /// # Panics
    /// If the NIC is dead.
    pub fn set_up(&mut self) -> Nic<'_> {
        self.drive::<Intel>()
    }

    /// Its driver, of another model, begins.
    ///
    /// # Panics
    /// If the NIC is dead.
    pub fn drive<C: Chip>(&mut self) -> Nic<'_, C> {
        let bus = Lent(&mut self.bus);
        let nic = ChipDriver::new(self.options.clone(), &self.ram, bus);
        let mut nic = nic.unwrap_or_else(|e| panic!("guest {}: {e:?}", self.id));
        nic.set_mac(mac(self.id, 0));
        // A read is answered when the writes before it were served: on a busy machine frames might
        // come earlier, and would be dropped after 10 ms.
        nic.registers_mut()
            .bus_mut()
            .read32(8)
            .unwrap_or_else(|e| panic!("guest {}: {e:?}", self.id));
        nic
    }

    /// Its transmit ring lies nowhere: that is how a driver finds that its chip was reset.
    ///
    /// # Panics
    /// If the NIC is dead.
    pub fn is_reset(&mut self) -> bool {
        /// TDLEN (SDM 13.4).
        const TDLEN: u32 = 0x3808;
        self.bus.read32(TDLEN).expect("the bus works") == 0
    }
}

/// Passes `count` frames, which are numbered from `first`. They arrive in that order, each once.
///
/// # Panics
/// If they do not.
pub fn pass<C: Chip>(from: &mut Nic<'_, C>, to: &mut Nic<'_, C>, first: u64, count: u64) {
    assert_eq!(pass_while(from, to, first..first + count, |_| 0), 0);
}

/// Frames of one batch: no more come again after a death.
const BATCH: u64 = 256;

/// Passes frames with these numbers. `happens`, told how many were sent, says how often the switch
/// has died since the last call. They arrive in order; each death allows one step back. Returns how
/// many steps there were.
///
/// # Panics
/// If they do not.
pub fn pass_while<C: Chip>(
    from: &mut Nic<'_, C>,
    to: &mut Nic<'_, C>,
    numbers: Range<u64>,
    mut happens: impl FnMut(u64) -> u32,
) -> u32 {
    let Range { start, end } = numbers;
    let (mut sent, mut got, mut most) = (start, start, start);
    let (mut deaths, mut steps) = (0, 0);
    let mut batch = to.batch();
    let mut bytes = vec![0; 2048];
    let numbered = |n| frame(mac(2, 0), mac(1, 0), n, 60);
    let arrived = settles(|| {
        // No more than there is room for: what a full receiver does not take is dropped. The
        // smallest ring is an 8139C+'s, with 64 descriptors.
        while sent < end.min(most + 32) && (from.free_slots() > 0 || from.reap() > 0) {
            let Some(slot) = from.next() else { break };
            from.set_offload(slot, Offload::default());
            from.write(slot, 0, &numbered(sent));
            from.send(slot, 60);
            sent += 1;
        }
        from.flush();
        deaths += happens(sent);
        to.poll(&mut batch, usize::MAX);
        for one in batch.frames() {
            let len = to.read(*one, 0, &mut bytes);
            // Somebody greets everybody.
            if bytes[0] & 1 != 0 {
                continue;
            }
            if bytes[..len] != numbered(got) {
                let before = (got.saturating_sub(BATCH)..got).rev();
                let again = { before }.find(|n| bytes[..len] == numbered(*n));
                got = again.unwrap_or_else(|| panic!("not frame {got}"));
                assert!(deaths > 0, "frame {got} comes again, of {most}");
                (deaths, steps) = (deaths - 1, steps + 1);
            }
            got += 1;
            most = most.max(got);
        }
        to.release(&mut batch);
        got == end
    });
    assert!(arrived, "frame {got} of {start}..{end} does not arrive");
    steps
}

/// Kills a switch once so many frames were sent, and starts the next: told how many were sent, it
/// says how often the switch has died since it was asked last.
///
/// # Panics
/// If the next one does not start.
pub fn dies_at(switch: &mut Switch, at: u64) -> impl FnMut(u64) -> u32 {
    let mut dead = false;
    move |sent| {
        if dead || sent < at {
            return 0;
        }
        dead = true;
        switch.kill9();
        switch.restart().expect("the next one");
        1
    }
}
