//! A guest with a chip that has registers, inside the test process: as [`crate::virtio_guest`],
//! over any bus that the driver can be on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vmlan_driver::chip::{self, Chip, ChipDriver, Offload, Poke, RxSide};
use vmlan_driver::e1000;
use vmlan_driver::wait::Interest;
use vmlan_transport::address::VfioUser;
use vmlan_transport::memory::Ram;
use vmlan_transport::vfio_user::VfioBus;
use vmlan_transport::{Bus, Model, Options, Wake};

use crate::exchange::TestGuest;
use crate::numbered::{Expected, Progress, STALL, Sizes, frame, mac, settles};

/// What a chip says of received frames.
type Report<C> = <<C as Chip>::Rx as RxSide<<C as Chip>::Register>>::Format;
/// A frame received by a chip.
pub type Frame<C> = chip::Frame<Report<C>>;

/// A guest on a bus.
pub struct ChipGuest<C: Chip, B: Bus> {
    /// Its NIC.
    pub nic: ChipDriver<C, B>,
    /// Its number, byte 4 of its MAC addresses.
    pub id: u8,
    /// What is to come.
    pub expected: Expected,
    batch: chip::Batch<Report<C>>,
    sent: u64,
    scratch: Vec<u8>,
}

/// How an address asks for a chip.
fn words(model: Model) -> &'static str {
    match model {
        Model::E1000 => "",
        Model::E1000e => ",model=e1000e",
        Model::R8169 => ",model=r8169",
        Model::Rtl8139Plus => ",model=rtl8139",
        Model::Rtl8139Classic => ",model=rtl8139,plus=off",
        Model::Vmxnet3 => ",model=vmxnet3",
    }
}

/// The driver's options behind keys as in an address (`,size=64,tso=on`), with room for the frames
/// that they allow.
///
/// # Panics
/// When a key is wrong.
pub fn address(model: Model, path: &Path, keys: &str) -> VfioUser {
    let text = format!("vfio-user:{}{}{keys}", path.display(), words(model));
    let mut address: VfioUser = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let driver = &mut address.driver;
    driver.room = match (driver.segmentation, driver.mtu) {
        (true, _) => 65_600,
        (false, mtu) if mtu > 1500 => usize::from(mtu) + 64,
        _ => driver.room,
    };
    address
}

impl<C: Chip> ChipGuest<C, VfioBus> {
    /// Plugs guest `id` into the port at `path`, with further keys of the address in `keys`
    /// (`,size=64,doorbell=mapped`).
    ///
    /// # Panics
    /// When it cannot.
    pub fn connect(path: &Path, id: u8, keys: &str) -> Self {
        let address = address(C::MODEL, path, keys);
        Self::build(address.driver.clone(), id, |ram| {
            VfioBus::connect(&address, ram, STALL)
                .unwrap_or_else(|e| panic!("{}{keys}: {e:?}", path.display()))
        })
    }
}

impl<C: Chip, B: Bus> ChipGuest<C, B> {
    /// A guest on the bus that `bus` makes for its RAM.
    ///
    /// # Panics
    /// When the chip does not start.
    pub fn build(options: Options, id: u8, bus: impl FnOnce(&Arc<Ram>) -> B) -> Self {
        let ram = vmlan_driver::nic::make_ram(&options).expect("RAM");
        let bus = bus(&ram);
        let mut nic =
            ChipDriver::new(options, &ram, bus).unwrap_or_else(|e| panic!("guest {id}: {e:?}"));
        nic.set_mac(mac(id, 0));
        let batch = nic.batch();
        let mut expected = Expected::default();
        expected.padded = true;
        Self { nic, id, expected, batch, sent: 0, scratch: vec![0; 70_000] }
    }

    /// Sends one frame; false when all slots are under way. [`Self::flush`] ends a burst.
    pub fn send(&mut self, offload: Offload, bytes: &[u8]) -> bool {
        if self.nic.free_slots() == 0 && self.nic.reap() == 0 {
            return false;
        }
        let Some(slot) = self.nic.next() else { return false };
        self.nic.set_offload(slot, offload);
        self.nic.write(slot, 0, bytes);
        self.nic.send(slot, u32::try_from(bytes.len()).expect("a frame"));
        true
    }

    /// Ends a burst.
    pub fn flush(&mut self) {
        self.nic.flush();
    }

    /// Hands out the frames of one poll; returns how many.
    pub fn receive(&mut self, mut each: impl FnMut(Frame<C>, &[u8])) -> u64 {
        self.nic.poll(&mut self.batch, usize::MAX);
        for frame in self.batch.frames() {
            let len = self.nic.read(*frame, 0, &mut self.scratch);
            assert_eq!(len, frame.len, "the buffers hold the frame's length");
            each(*frame, &self.scratch[..len]);
        }
        let count = self.batch.frames().len() as u64;
        self.nic.release(&mut self.batch);
        count
    }

    /// Sleeps until an interrupt.
    ///
    /// # Panics
    /// When the bus fails.
    pub fn wait(&mut self, interest: Interest, timeout: Duration) -> Wake {
        self.nic.wait(interest, timeout).expect("a bus that works")
    }
}

impl<C: Chip, B: Bus> TestGuest for ChipGuest<C, B> {
    fn id(&self) -> u8 {
        self.id
    }

    fn flows(&self) -> u64 {
        1
    }

    fn expect_padding(&mut self) {
        self.expected.padded = true;
    }

    fn start_over(&mut self) {
        self.sent = 0;
        self.expected.start_over();
    }

    fn settle(&mut self) {
        C::settle(self.nic.registers_mut());
    }

    fn introduce(&mut self) {
        // A chip that knows its ring may send before the posted writes behind have set its filter.
        self.settle();
        let hello = frame([0xff; 6], mac(self.id, 0), 0, 60);
        let mut progress = Progress::default();
        while !self.send(Offload::default(), &hello) {
            progress.note(0, || "no slot to introduce oneself".into());
        }
        self.flush();
        while self.nic.under_way() > 0 {
            self.nic.reap();
            progress.note(0, || "an introduction is not taken".into());
        }
    }

    fn send_next(&mut self, to: u8, count: u64, sizes: Sizes) -> u64 {
        let before = self.sent;
        while self.sent < count {
            let bytes = frame(mac(to, 0), mac(self.id, 0), self.sent, sizes.of(self.sent));
            if !self.send(Offload::default(), &bytes) {
                break;
            }
            self.sent += 1;
        }
        self.flush();
        self.sent - before
    }

    fn receive_next(&mut self, to: u8, sizes: Sizes) -> u64 {
        let mut expected = std::mem::take(&mut self.expected);
        let (id, dst) = (self.id, if to == 0xff { [0xff; 6] } else { mac(to, 0) });
        let mut count = 0;
        self.receive(|_, bytes| count += u64::from(expected.judge(id, dst, bytes, sizes)));
        self.expected = expected;
        count
    }

    fn explain(&mut self) -> String {
        format!("sent {}; {}", self.sent, self.nic.explain())
    }

    fn poke(&mut self, poke: Poke) {
        self.nic.poke(poke);
    }

    fn assert_sound(&self) {
        // Exact only while the chip does not write; it may, for a moment, if there are other
        // guests.
        let found = settles(|| self.nic.is_sound());
        assert!(found, "guest {}: {:?} {:?}", self.id, self.nic.tx_stats(), self.nic.rx_stats());
        assert_eq!(
            self.nic.interrupt_stats().missed,
            0,
            "guest {}: an interrupt is missing",
            self.id
        );
        let failure = self.nic.registers().failure();
        assert!(failure.is_none(), "guest {}: {failure:?}", self.id);
    }
}

/// A guest with an e1000.
pub type E1000Guest<B> = ChipGuest<e1000::Intel, B>;

/// Device control of an e1000: VLAN mode enable (SDM 13.4.1).
pub const CTRL_VME: u32 = 1 << 30;

/// An e1000's driver options, as [`address`] makes them.
///
/// # Panics
/// When a key is wrong.
pub fn e1000_address(path: &Path, keys: &str) -> VfioUser {
    address(e1000::Intel::MODEL, path, keys)
}
