//! A model of the chip: registers, both rings, INTx, the shared status block. It shares nothing
//! with the driver but the names of the registers, and does its work when the test says so.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::super::registers::Register;
use crate::chip::{Bus, Irq, Wake, Width};
use vmlan_transport::memory::{HIGH_GPA, Ram};
use vmlan_transport::vfio_user::{Command, ProtocolError};
use vmlan_transport::{BusError, Watched};

pub(super) const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

#[derive(Debug)]
pub(super) struct Fake {
    ram: Arc<Ram>,
    registers: Vec<AtomicU32>,
    config: [u8; 256],
    pub(super) eeprom: [u16; 64],
    mapped: bool,
    /// The rings' heads.
    tdh: u32,
    rdh: u32,
    /// Interrupts that wait to be taken; INTx is masked.
    pending: u64,
    masked: bool,
    /// A frame that arrives just before the next write of IMS is in force.
    pub(super) at_next_ims: Option<Vec<u8>>,
    /// One that arrives while the driver sleeps.
    pub(super) at_next_wait: Option<Vec<u8>>,
    pub(super) stuck_in_reset: bool,
    pub(super) deaf: bool,
    io_address: u32,
    pub(super) io_resets: u32,
    pub(super) gone: bool,
    /// The time, which passes only while somebody waits, or by hand.
    pub(super) clock: Cell<Duration>,
    /// How often the driver has slept.
    waits: u32,
    /// TDT and RDT as they were when the driver read STATUS last, which pushes posted writes.
    pub(super) settled: [u32; 2],
}

/// Words of the shared status block.
pub(super) mod word {
    pub(crate) const GUEST_TDT: usize = 0x00;
    pub(crate) const GUEST_NEED_TXKICK: usize = 0x04;
    pub(crate) const GUEST_NEED_RXKICK: usize = 0x08;
    pub(crate) const GUEST_CSB_ON: usize = 0x0c;
    pub(crate) const GUEST_RDT: usize = 0x10;
    pub(crate) const HOST_TDH: usize = 0x40;
    pub(crate) const HOST_NEED_TXKICK: usize = 0x44;
    pub(crate) const HOST_RXKICK_AT: usize = 0x5c;
}

impl Fake {
    pub(super) fn new(ram: &Arc<Ram>) -> Self {
        let mut eeprom = [0; 64];
        for (word, bytes) in eeprom.iter_mut().zip(MAC.chunks(2)) {
            *word = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        eeprom[63] = eeprom.iter().fold(0xbaba, |sum: u16, word| sum.wrapping_sub(*word));
        let mut fake = Self {
            ram: Arc::clone(ram),
            registers: std::iter::repeat_with(AtomicU32::default).take(0x8000).collect(),
            config: [0; 256],
            eeprom,
            mapped: false,
            tdh: 0,
            rdh: 0,
            pending: 0,
            masked: false,
            at_next_ims: None,
            at_next_wait: None,
            stuck_in_reset: false,
            deaf: false,
            io_address: 0,
            io_resets: 0,
            gone: false,
            clock: Cell::default(),
            waits: 0,
            settled: [0; 2],
        };
        fake.set_config(0, 0x100e_8086);
        fake
    }

    /// A new chip with the same memory.
    pub(super) fn another(&self) -> Self {
        Self::new(&self.ram)
    }

    pub(super) fn map(&mut self) {
        self.mapped = true;
    }

    pub(super) fn set_config(&mut self, at: usize, value: u32) {
        self.config[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(super) fn config_command(&self) -> u8 {
        self.config[4]
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        &self.registers[offset as usize / 4]
    }

    pub(super) fn get(&self, register: Register) -> u32 {
        self.word(register.offset()).load(SeqCst)
    }

    pub(super) fn set(&self, register: Register, value: u32) {
        self.word(register.offset()).store(value, SeqCst);
    }

    fn place(&self, guest_phys: u64) -> usize {
        let low = guest_phys < HIGH_GPA;
        let at = if low { guest_phys } else { guest_phys - HIGH_GPA + self.ram.buffers() as u64 };
        usize::try_from(at).unwrap()
    }

    fn slot(&self, base: Register, n: u32) -> usize {
        let high = u64::from(self.word(base.offset() + 4).load(SeqCst)) << 32;
        self.place(high | u64::from(self.get(base))) + 16 * n as usize
    }

    pub(super) fn descriptor(&self, base: Register, n: u32) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.ram.read(self.slot(base, n), &mut bytes);
        let word = u128::from_le_bytes(bytes);
        [word & u128::from(u64::MAX), word >> 64].map(|half| u64::try_from(half).unwrap())
    }

    fn write_second(&self, base: Register, n: u32, word: u64) {
        self.ram.write(self.slot(base, n) + 8, &word.to_le_bytes());
    }

    /// The chip offers the shared status block.
    pub(super) fn offer_csb(&mut self) {
        self.set_config(0x2c, 0x1101 << 16);
    }

    /// Where the block is; None: nowhere.
    fn block(&self) -> Option<usize> {
        let high = u64::from(self.get(Register::CSBAH)) << 32;
        let address = high | u64::from(self.get(Register::CSBAL));
        (address != 0).then(|| self.place(address))
    }

    pub(super) fn shared(&self, word: usize) -> u32 {
        let mut bytes = [0; 4];
        self.ram.read(self.block().expect("a block") + word, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(super) fn share(&self, word: usize, value: u32) {
        self.ram.write(self.block().expect("a block") + word, &value.to_le_bytes());
    }

    fn is_shared(&self) -> bool {
        self.block().is_some() && self.shared(word::GUEST_CSB_ON) != 0
    }

    fn tail(&self, register: Register, word: usize) -> u32 {
        if self.is_shared() { self.shared(word) } else { self.get(register) }
    }

    pub(super) fn waiting(&self) -> usize {
        let size = self.get(Register::TDLEN) / 16;
        ((self.tail(Register::TDT, word::GUEST_TDT) + size - self.tdh) % size) as usize
    }

    /// How often the driver has slept.
    pub(super) fn waits(&self) -> u32 {
        self.waits
    }

    pub(super) fn transmit(&mut self) -> Vec<Vec<u8>> {
        self.transmit_some(usize::MAX)
    }

    /// Sends what lies before TDT, up to so many descriptors: the bytes of each frame.
    pub(super) fn transmit_some(&mut self, most: usize) -> Vec<Vec<u8>> {
        let (mut frames, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..self.waiting().min(most) {
            let [address, word] = self.descriptor(Register::TDBAL, self.tdh);
            let extended = word >> 29 & 1 == 1;
            let context = extended && word >> 20 & 15 == 0;
            if !context {
                let len = word & if extended { 0xf_ffff } else { 0xffff };
                let start = bytes.len();
                bytes.resize(start + usize::try_from(len).unwrap(), 0);
                self.ram.read(self.place(address), &mut bytes[start..]);
            }
            if word >> 27 & 1 == 1 {
                self.write_second(Register::TDBAL, self.tdh, word | 1 << 32);
                self.cause(1);
            }
            if !context && word >> 24 & 1 == 1 {
                frames.push(std::mem::take(&mut bytes));
            }
            self.tdh = (self.tdh + 1) % (self.get(Register::TDLEN) / 16);
            self.set(Register::TDH, self.tdh);
            if self.is_shared() {
                self.share(word::HOST_TDH, self.tdh);
            }
        }
        if self.is_shared() && !frames.is_empty() {
            self.cause(2);
        }
        frames
    }

    /// Delivers a frame, with a CRC of four bytes, in as many buffers as it takes.
    pub(super) fn receive(&mut self, frame: &[u8]) {
        let bytes = [frame, &[0xcc; 4]].concat();
        let control = self.get(Register::RCTL);
        let scale = if control >> 25 & 1 == 1 { 16 } else { 1 };
        let size = (2048 * scale) >> (control >> 16 & 3);
        let pieces = bytes.len().div_ceil(size);
        for (n, piece) in bytes.chunks(size).enumerate() {
            let [address, _] = self.descriptor(Register::RDBAL, self.rdh);
            self.ram.write(self.place(address), piece);
            let end = if n + 1 == pieces { 1 << 33 } else { 0 };
            self.write_back(piece.len() as u64 | 1 << 32 | end);
        }
    }

    /// Gives the next receive descriptor this second word.
    pub(super) fn write_back(&mut self, word: u64) {
        let tail = self.tail(Register::RDT, word::GUEST_RDT);
        assert_ne!(self.rdh, tail, "the driver gave no buffer");
        self.write_second(Register::RDBAL, self.rdh, word);
        self.rdh = (self.rdh + 1) % (self.get(Register::RDLEN) / 16);
        self.cause(0x80);
    }

    fn cause(&mut self, bits: u32) {
        self.set(Register::ICR, self.get(Register::ICR) | bits);
        self.look();
    }

    /// The level: an interrupt when an enabled cause stands and the line is not masked.
    fn look(&mut self) {
        let causes = self.get(Register::ICR) & self.get(Register::IMS);
        let wanted = !self.is_shared()
            || causes & !0x93 != 0
            || causes & 3 != 0 && self.shared(word::GUEST_NEED_TXKICK) == 1
            || causes & 0x80 != 0 && self.shared(word::GUEST_NEED_RXKICK) == 1;
        if causes != 0 && wanted && !self.masked && !self.deaf {
            (self.pending, self.masked) = (self.pending + 1, true);
        }
    }

    fn write(&mut self, register: Register, value: u32) {
        match register {
            Register::IMS => {
                if let Some(frame) = self.at_next_ims.take() {
                    self.receive(&frame);
                }
                self.set(Register::IMS, self.get(Register::IMS) | value);
            }
            Register::IMC => self.set(Register::IMS, self.get(Register::IMS) & !value),
            Register::CTRL if value >> 26 & 1 == 1 && !self.stuck_in_reset => {
                self.registers.iter().for_each(|word| word.store(0, SeqCst));
            }
            Register::CTRL => {
                self.set(register, value);
                self.set(Register::STATUS, value >> 5 & 2);
            }
            Register::EERD => {
                let word = self.eeprom[(value >> 8 & 63) as usize];
                self.set(register, u32::from(word) << 16 | 0x10);
            }
            _ => self.set(register, value),
        }
        self.look();
    }

    fn alive(&self) -> Result<(), BusError> {
        let source = io::ErrorKind::BrokenPipe.into();
        let error = ProtocolError::Socket { command: Command::RegionRead, source };
        if self.gone { Err(error.into()) } else { Ok(()) }
    }
}

impl Bus for Fake {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError> {
        let at = usize::from(offset);
        bytes.copy_from_slice(&self.config[at..at + bytes.len()]);
        self.alive()
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError> {
        let at = usize::from(offset);
        self.config[at..at + bytes.len()].copy_from_slice(bytes);
        if offset == 0x10 {
            // The address bits below 128 KiB do not exist.
            self.config[0x10..0x12].fill(0);
            self.config[0x12] &= 0xfe;
        }
        self.alive()
    }

    fn read(&mut self, offset: u32, _: Width) -> Result<u32, BusError> {
        self.alive()?;
        let value = self.word(offset).load(SeqCst);
        if offset == Register::ICR.offset() {
            self.set(Register::ICR, 0);
        }
        if offset == Register::STATUS.offset() {
            self.settled = [self.get(Register::TDT), self.get(Register::RDT)];
        }
        Ok(value)
    }

    fn write(&mut self, offset: u32, _: Width, value: u32) -> Result<(), BusError> {
        self.alive()?;
        let known = Register::ALL.iter().find(|register| register.offset() == offset);
        match known {
            Some(register) => self.write(*register, value),
            None => self.word(offset).store(value, SeqCst),
        }
        Ok(())
    }

    fn write_io(&mut self, offset: u32, value: u32) -> Result<(), BusError> {
        if offset == 0 {
            self.io_address = value;
            return self.alive();
        }
        self.io_resets += 1;
        self.write32(self.io_address, value)
    }

    fn mapped(&self, offset: u32) -> Option<&AtomicU32> {
        (self.mapped && (0x2000..0x4000).contains(&offset)).then(|| self.word(offset))
    }

    fn use_interrupt(&mut self, _irq: Irq) -> Result<(), BusError> {
        self.alive()
    }

    fn take_interrupts(&mut self) -> u64 {
        std::mem::take(&mut self.pending)
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        self.masked = false;
        self.look();
        self.alive()
    }

    fn watched(&self) -> Watched<'_> {
        Watched::default()
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, BusError> {
        self.alive()?;
        if self.pending > 0 {
            return Ok(Wake::Ready);
        }
        self.waits += 1;
        self.clock.set(self.clock.get() + timeout);
        if let Some(frame) = self.at_next_wait.take() {
            self.receive(&frame);
        }
        Ok(if self.pending > 0 { Wake::Ready } else { Wake::Timeout })
    }

    fn now(&self) -> Duration {
        self.clock.get()
    }
}
