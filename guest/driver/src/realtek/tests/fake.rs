//! A model of the chips: registers, rings of descriptors, the four pairs and the buffer of classic
//! mode, INTx, the shared status block. It shares nothing with the driver, and does its work when
//! the test says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chip::{Bus, Irq, Model, Wake, Width};
use vmlan_transport::memory::{HIGH_GPA, Ram};
use vmlan_transport::{BusError, Watched};

pub(crate) const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

/// Offsets of registers.
pub(crate) mod at {
    pub(crate) const TSD: u32 = 0x10;
    pub(crate) const TSAD: u32 = 0x20;
    pub(crate) const TNPDS: u32 = 0x20;
    pub(crate) const RBSTART: u32 = 0x30;
    pub(crate) const CR: u32 = 0x37;
    pub(crate) const CAPR: u32 = 0x38;
    pub(crate) const CBR: u32 = 0x3a;
    pub(crate) const IMR: u32 = 0x3c;
    pub(crate) const ISR: u32 = 0x3e;
    pub(crate) const RCR: u32 = 0x44;
    pub(crate) const RDSAR: u32 = 0xe4;
    pub(crate) const CSBAL: u32 = 0xf0;
}

/// Words of the shared status block.
pub(crate) mod word {
    pub(crate) const GUEST_TDT: usize = 0x00;
    pub(crate) const GUEST_CSB_ON: usize = 0x0c;
    pub(crate) const GUEST_RDT: usize = 0x10;
    pub(crate) const HOST_TDH: usize = 0x40;
    pub(crate) const HOST_NEED_TXKICK: usize = 0x44;
    pub(crate) const HOST_RXKICK_AT: usize = 0x5c;
}

pub(super) const OWN: u64 = 1 << 31;
const EOR: u64 = 1 << 30;

#[derive(Debug)]
pub(crate) struct Fake {
    ram: Arc<Ram>,
    model: Model,
    registers: BTreeMap<u32, u32>,
    config: [u8; 256],
    /// Next descriptors, or pairs.
    pub(crate) tdh: u32,
    pub(crate) rdh: u32,
    /// Interrupts that wait to be taken; INTx is masked.
    pending: u64,
    masked: bool,
    /// Every read and write, in order: `R 3e`, `W 38=40`.
    pub(crate) log: Vec<String>,
    pub(crate) gone: bool,
}

impl Fake {
    pub(crate) fn new(ram: &Arc<Ram>, model: Model) -> Self {
        let mut config = [0; 256];
        config[..4].copy_from_slice(&model.pci_id().to_le_bytes());
        config[8] = if model == Model::Rtl8139Classic { 0x10 } else { 0x20 };
        let [a, b, c, d, e, f] = MAC;
        let registers = BTreeMap::from([
            (0, u32::from_le_bytes([a, b, c, d])),
            (4, u32::from_le_bytes([e, f, 0, 0])),
            // PHYStatus; MSR says with 0 that there is a link.
            (0x6c, 2),
        ]);
        Self {
            ram: Arc::clone(ram),
            model,
            registers,
            config,
            tdh: 0,
            rdh: 0,
            pending: 0,
            masked: false,
            log: Vec::new(),
            gone: false,
        }
    }

    pub(crate) fn offer_csb(&mut self) {
        self.config[0x2e..0x30].copy_from_slice(&0x1101_u16.to_le_bytes());
    }

    pub(crate) fn get(&self, offset: u32) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, offset: u32, value: u32) {
        self.registers.insert(offset, value);
    }

    /// Writes to memory below 4 GiB.
    pub(crate) fn poke(&self, at: usize, bytes: &[u8]) {
        self.ram.write(at, bytes);
    }

    fn place(&self, guest_phys: u64) -> usize {
        let low = guest_phys < HIGH_GPA;
        let at = if low { guest_phys } else { guest_phys - HIGH_GPA + self.ram.buffers() as u64 };
        usize::try_from(at).unwrap()
    }

    fn load(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.ram.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn slot(&self, base: u32, n: u32) -> usize {
        self.place(u64::from(self.get(base + 4)) << 32 | u64::from(self.get(base)))
            + 16 * n as usize
    }

    /// opts1 and opts2 together, and the address.
    pub(crate) fn descriptor(&self, base: u32, n: u32) -> [u64; 2] {
        let at = self.slot(base, n);
        [self.load(at), self.load(at + 8)]
    }

    pub(crate) fn write_back(&self, base: u32, n: u32, word: u64) {
        self.ram.write(self.slot(base, n), &word.to_le_bytes());
    }

    fn next(&self, base: u32, n: u32) -> u32 {
        if self.descriptor(base, n)[0] & EOR != 0 { 0 } else { n + 1 }
    }

    fn block(&self) -> usize {
        self.place(self.get(at::CSBAL).into())
    }

    pub(crate) fn shared(&self, word: usize) -> u32 {
        let mut bytes = [0; 4];
        self.ram.read(self.block() + word, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn share(&self, word: usize, value: u32) {
        self.ram.write(self.block() + word, &value.to_le_bytes());
    }

    /// Sends the frames that are the chip's, up to so many descriptors: the bytes of each.
    pub(crate) fn transmit(&mut self, most: usize) -> Vec<Vec<u8>> {
        let (mut frames, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..most {
            let [word, address] = self.descriptor(at::TNPDS, self.tdh);
            if word & OWN == 0 {
                break;
            }
            assert_eq!(word >> 29 & 1 == 1, bytes.is_empty(), "FS of {}", self.tdh);
            let start = bytes.len();
            bytes.resize(start + usize::try_from(word & 0xffff).unwrap(), 0);
            self.ram.read(self.place(address), &mut bytes[start..]);
            self.write_back(at::TNPDS, self.tdh, word & !OWN);
            self.tdh = self.next(at::TNPDS, self.tdh);
            if word >> 28 & 1 == 1 {
                frames.push(std::mem::take(&mut bytes));
            }
            if self.get(at::CSBAL) != 0 {
                self.share(word::HOST_TDH, self.tdh);
            }
        }
        if !frames.is_empty() {
            self.cause(4);
        }
        frames
    }

    /// Delivers a frame, with a CRC of four bytes, in as many buffers as it takes; `status` goes to
    /// the last one.
    pub(crate) fn receive(&mut self, frame: &[u8], status: u64) {
        let bytes = [frame, &[0xcc; 4]].concat();
        let lens = if self.model == Model::R8169 { 0x3fff } else { 0x1fff };
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let [word, address] = self.descriptor(at::RDSAR, self.rdh);
            assert!(word & OWN != 0, "descriptor {} is the driver's", self.rdh);
            let (piece, rest) =
                left.split_at(left.len().min(usize::try_from(word & lens).unwrap()));
            self.ram.write(self.place(address), piece);
            let first = if left.len() == bytes.len() { 1 << 29 } else { 0 };
            let last = if rest.is_empty() { 1 << 28 | status | bytes.len() as u64 } else { 0 };
            self.write_back(at::RDSAR, self.rdh, word & EOR | first | last);
            self.rdh = self.next(at::RDSAR, self.rdh);
            left = rest;
        }
        self.cause(1);
    }

    /// Classic mode: sends the frames of the pairs that are the chip's.
    pub(crate) fn transmit_pairs(&mut self, most: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < most {
            let (tsd, tsad) = (at::TSD + 4 * self.tdh, at::TSAD + 4 * self.tdh);
            let value = self.get(tsd);
            if value == 0 || value & 0x2000 != 0 {
                break;
            }
            let mut bytes = vec![0; (value & 0x1fff) as usize];
            self.ram.read(self.place(self.get(tsad).into()), &mut bytes);
            frames.push(bytes);
            self.set(tsd, value | 0xa000);
            self.tdh = (self.tdh + 1) % 4;
        }
        if !frames.is_empty() {
            self.cause(4);
        }
        frames
    }

    /// Classic mode: writes a frame into the buffer, with this header.
    pub(crate) fn receive_raw(&mut self, status: u16, len: u16, bytes: &[u8]) {
        let size = 8192_u32 << (self.get(at::RCR) >> 11 & 3);
        let (base, cbr) = (self.place(self.get(at::RBSTART).into()), self.get(at::CBR));
        let header = [status.to_le_bytes(), len.to_le_bytes()].concat();
        self.ram.write(base + cbr as usize, &[header.as_slice(), bytes].concat());
        let taken = u32::try_from(4 + bytes.len()).unwrap().next_multiple_of(4);
        self.set(at::CBR, (cbr + taken) % size);
        self.cause(1);
    }

    pub(crate) fn receive_classic(&mut self, frame: &[u8]) {
        let bytes = [frame, &[0xcc; 4]].concat();
        self.receive_raw(1, u16::try_from(bytes.len()).unwrap(), &bytes);
    }

    fn is_empty(&self) -> bool {
        let size = 8192_u32 << (self.get(at::RCR) >> 11 & 3);
        (self.get(at::CAPR) + 16) % 65_536 % size == self.get(at::CBR)
    }

    pub(crate) fn cause(&mut self, bits: u32) {
        self.set(at::ISR, self.get(at::ISR) | bits);
        self.look();
    }

    fn look(&mut self) {
        let shared = self.get(at::CSBAL) != 0 && self.shared(word::GUEST_CSB_ON) != 0;
        if self.get(at::ISR) & self.get(at::IMR) != 0 && !self.masked && !shared {
            (self.pending, self.masked) = (self.pending + 1, true);
        }
    }
}

impl Bus for Fake {
    fn read_config(&mut self, offset: u16, bytes: &mut [u8]) -> Result<(), BusError> {
        let at = usize::from(offset);
        bytes.copy_from_slice(&self.config[at..at + bytes.len()]);
        Ok(())
    }

    fn write_config(&mut self, offset: u16, bytes: &[u8]) -> Result<(), BusError> {
        let at = usize::from(offset);
        self.config[at..at + bytes.len()].copy_from_slice(bytes);
        // The address bits below 256 bytes do not exist.
        if offset == 0x14 {
            self.config[0x14] = 0;
        }
        Ok(())
    }

    fn read(&mut self, offset: u32, width: Width) -> Result<u32, BusError> {
        self.log.push(format!("R {offset:x}"));
        if self.gone {
            return Err(BusError::other("reach it")(std::io::ErrorKind::BrokenPipe.into()));
        }
        let value = match offset {
            at::CR => self.get(at::CR) & !0x11 | u32::from(self.is_empty()),
            _ => self.get(offset),
        };
        assert!(width == Width::Four || value >> (8 * width as u32) == 0, "{offset:x}");
        Ok(value)
    }

    fn write(&mut self, offset: u32, _: Width, value: u32) -> Result<(), BusError> {
        self.log.push(format!("W {offset:x}={value:x}"));
        match offset {
            at::ISR => self.set(at::ISR, self.get(at::ISR) & !value),
            // As the chip does when the receiver is switched on.
            at::CR if value & 8 != 0 && self.model == Model::Rtl8139Classic => {
                self.set(at::CAPR, 0xfff0);
                self.set(at::CR, value);
            }
            _ => self.set(offset, value),
        }
        self.look();
        Ok(())
    }

    fn use_interrupt(&mut self, _irq: Irq) -> Result<(), BusError> {
        Ok(())
    }

    fn take_interrupts(&mut self) -> u64 {
        std::mem::take(&mut self.pending)
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        self.masked = false;
        self.look();
        Ok(())
    }

    fn watched(&self) -> Watched<'_> {
        Watched::default()
    }

    fn wait(&mut self, _: Duration) -> Result<Wake, BusError> {
        Ok(if self.pending > 0 { Wake::Ready } else { Wake::Timeout })
    }
}
