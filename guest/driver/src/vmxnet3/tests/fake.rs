//! A model of the device: registers, commands, both queues, one interrupt. It shares nothing with
//! the driver, and does its work when the test says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chip::{Bus, Irq, Wake, Width};
use vmlan_transport::memory::{HIGH_GPA, Ram};
use vmlan_transport::{BusError, Watched};

pub(crate) const MAC: [u8; 6] = [0x00, 0x50, 0x56, 0x12, 0x34, 0x56];

/// Offsets of registers.
pub(super) mod at {
    pub(crate) const IMR: u32 = 0;
    pub(crate) const VRRS: u32 = 0x1000;
    pub(crate) const UVRS: u32 = 0x1008;
    pub(crate) const DSAL: u32 = 0x1010;
    pub(crate) const CMD: u32 = 0x1020;
    pub(crate) const ICR: u32 = 0x1038;
    pub(crate) const ECR: u32 = 0x1040;
}

/// One of the rings: where it lies, its size, the next entry, and its generation.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    at: usize,
    size: u32,
    next: u32,
    clear: bool,
}

impl Ring {
    fn entry(&self) -> usize {
        self.at + 16 * self.next as usize
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.size {
            (self.next, self.clear) = (0, !self.clear);
        }
    }
}

/// What a report says beside where it is: words 0, 2 and 3.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Says(pub(super) u32, pub(super) u32, pub(super) u32);

#[derive(Debug)]
pub(super) struct Fake {
    ram: Arc<Ram>,
    registers: BTreeMap<u32, u32>,
    config: [u8; 256],
    /// Transmit: ring and reports. Receive: two rings and reports.
    tx: [Ring; 2],
    rx: [Ring; 3],
    active: bool,
    irq: Irq,
    /// Interrupts that wait to be taken; something is new since the last one.
    pending: u64,
    news: bool,
    asserted: bool,
    /// Every read and write, in order: `R 1038`, `W 600=1`.
    pub(super) log: Vec<String>,
    pub(super) gone: bool,
}

impl Fake {
    pub(super) fn new(ram: &Arc<Ram>) -> Self {
        let mut config = [0; 256];
        config[..4].copy_from_slice(&[0xad, 0x15, 0xb0, 0x07]);
        config[0x34] = 0x84;
        config[0x84..0x88].copy_from_slice(&[0x05, 0x9c, 0x80, 0]);
        config[0x9c..0xa0].copy_from_slice(&[0x11, 0, 24, 0]);
        let registers = BTreeMap::from([(at::VRRS, 7), (at::UVRS, 1), (at::IMR, 1)]);
        Self {
            ram: Arc::clone(ram),
            registers,
            config,
            tx: Default::default(),
            rx: Default::default(),
            active: false,
            irq: Irq::Intx,
            pending: 0,
            news: false,
            asserted: false,
            log: Vec::new(),
            gone: false,
        }
    }

    pub(super) fn get(&self, offset: u32) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, offset: u32, value: u32) {
        self.registers.insert(offset, value);
    }

    pub(super) fn config(&self, at: usize) -> u8 {
        self.config[at]
    }

    fn place(&self, guest_phys: u64) -> usize {
        let low = guest_phys < HIGH_GPA;
        let at = if low { guest_phys } else { guest_phys - HIGH_GPA + self.ram.buffers() as u64 };
        usize::try_from(at).unwrap()
    }

    fn load(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.ram.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn load_wide(&self, at: usize) -> u64 {
        u64::from(self.load(at)) | u64::from(self.load(at + 4)) << 32
    }

    fn area(&self) -> usize {
        self.place(u64::from(self.get(at::DSAL + 8)) << 32 | u64::from(self.get(at::DSAL)))
    }

    /// A word of the shared area.
    pub(super) fn shared(&self, offset: usize) -> u32 {
        self.load(self.area() + offset)
    }

    pub(super) fn share(&self, offset: usize, value: u32) {
        self.ram.write(self.area() + offset, &value.to_le_bytes());
    }

    fn queue(&self, n: usize) -> usize {
        self.place(self.load_wide(self.area() + 0x28)) + 256 * n
    }

    /// A word of a queue's description: 0 is transmit's.
    pub(super) fn queue_word(&self, n: usize, offset: usize) -> u32 {
        self.load(self.queue(n) + offset)
    }

    pub(super) fn set_queue_word(&self, n: usize, offset: usize, value: u32) {
        self.ram.write(self.queue(n) + offset, &value.to_le_bytes());
    }

    fn ring(&self, n: usize, address: usize, size: usize) -> Ring {
        let at = self.place(self.load_wide(self.queue(n) + address));
        assert!(at.is_multiple_of(512) && at > 0, "a ring at {at:#x}");
        let size = self.queue_word(n, size);
        assert!(size.is_multiple_of(32) && size > 0, "a ring of {size}");
        Ring { at, size, next: 0, clear: false }
    }

    fn activate(&mut self) -> u32 {
        if self.shared(0) != 0xbabe_fee1 || self.shared(0x3c) >> 16 != 0x101 {
            return 1;
        }
        self.tx = [self.ring(0, 0x10, 0x38), self.ring(0, 0x20, 0x40)];
        self.rx = [self.ring(1, 0x10, 0x38), self.ring(1, 0x18, 0x3c), self.ring(1, 0x20, 0x40)];
        self.set_queue_word(0, 4, 1);
        self.active = true;
        0
    }

    fn execute(&mut self, command: u32) -> u32 {
        match command {
            0xcafe_0000 => self.activate(),
            0xf00d_0002 => 10_000 << 16 | 1,
            0xf00d_0003 => u32::from_le_bytes([MAC[0], MAC[1], MAC[2], MAC[3]]),
            0xf00d_0004 => u32::from_le_bytes([MAC[4], MAC[5], 0, 0]),
            _ => 0,
        }
    }

    /// Address and the other two words of a descriptor that is the device's.
    fn descriptor(&self, ring: &Ring, generation: u64) -> Option<[u64; 2]> {
        let (at, second) = (ring.entry(), self.load_wide(ring.entry() + 8));
        ((second & generation != 0) != ring.clear).then(|| [self.load_wide(at), second])
    }

    fn report(&mut self, ring: fn(&mut Self) -> &mut Ring, words: [u32; 4]) {
        let place = *ring(self);
        let generation = u32::from(!place.clear) << 31;
        for (n, word) in words.into_iter().enumerate() {
            let word = if n == 3 { word | generation } else { word };
            self.ram.write(place.entry() + 4 * n, &word.to_le_bytes());
        }
        ring(self).step();
        self.cause();
    }

    /// Sends up to so many frames: the bytes of each, and what the first descriptor said.
    pub(super) fn transmit_all(&mut self, most: usize) -> Vec<(u64, Vec<u8>)> {
        let (mut frames, mut bytes, mut said) = (Vec::new(), Vec::new(), None);
        while frames.len() < most && self.active {
            let Some([address, second]) = self.descriptor(&self.tx[0], 1 << 14) else { break };
            let start = bytes.len();
            bytes.resize(start + usize::try_from(second & 0x3fff).unwrap(), 0);
            self.ram.read(self.place(address), &mut bytes[start..]);
            let first = *said.get_or_insert(second);
            let index = self.tx[0].next;
            self.tx[0].step();
            if second >> 44 & 1 == 1 {
                assert_eq!(second >> 45 & 1, 1, "it wants a report");
                frames.push((first, std::mem::take(&mut bytes)));
                said = None;
                self.report(|fake| &mut fake.tx[1], [index, 0, 0, 0]);
            }
        }
        assert!(bytes.is_empty(), "a frame without an end");
        frames
    }

    pub(super) fn transmit(&mut self, most: usize) -> Vec<Vec<u8>> {
        self.transmit_all(most).into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Delivers a frame in as many buffers as it takes; the last report says this.
    pub(super) fn receive_with(&mut self, frame: &[u8], says: Says) {
        let mut left = frame;
        for n in 0.. {
            let ring = usize::from(n > 0);
            let Some([address, second]) = self.descriptor(&self.rx[ring], 1 << 31) else {
                panic!("no buffer in ring {ring}");
            };
            assert_eq!(second >> 14 & 1, ring as u64, "heads and bodies");
            let most = usize::try_from(second & 0x3fff).unwrap();
            let (piece, rest) = left.split_at(left.len().min(most));
            self.ram.write(self.place(address), piece);
            let index = self.rx[ring].next;
            self.rx[ring].step();
            let bounds = u32::from(rest.is_empty()) << 14 | u32::from(n == 0) << 15;
            let what = index | bounds | u32::from(n > 0) << 16;
            let len = u32::try_from(piece.len()).unwrap();
            let Says(a, c, d) = if rest.is_empty() { says } else { Says::default() };
            self.report(|fake| &mut fake.rx[2], [what | a, 0, len | c, 3 << 24 | d]);
            left = rest;
            if left.is_empty() {
                return;
            }
        }
    }

    pub(super) fn receive(&mut self, frame: &[u8]) {
        self.receive_with(frame, Says::default());
    }

    /// Skips a head without a word.
    pub(super) fn skip(&mut self) {
        self.rx[0].step();
    }

    /// Reports anything.
    pub(super) fn lie(&mut self, words: [u32; 4]) {
        self.report(|fake| &mut fake.rx[2], words);
    }

    /// Where the next head and the next report go.
    pub(super) fn heads(&self) -> (u32, u32) {
        (self.rx[0].next, self.rx[2].next)
    }

    pub(super) fn cause(&mut self) {
        self.news = true;
        self.look();
    }

    fn look(&mut self) {
        if !self.news || self.get(at::IMR) != 0 || self.asserted {
            return;
        }
        self.news = false;
        self.pending += 1;
        if self.irq == Irq::Intx {
            self.asserted = true;
        } else {
            self.set(at::IMR, 1);
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
        // The address bits below 4 KiB do not exist.
        if offset == 0x10 || offset == 0x14 {
            self.config[at] = 0;
            self.config[at + 1] &= 0xf0;
        }
        Ok(())
    }

    fn read(&mut self, offset: u32, _: Width) -> Result<u32, BusError> {
        self.log.push(format!("R {offset:x}"));
        if self.gone {
            return Err(BusError::other("reach it")(std::io::ErrorKind::BrokenPipe.into()));
        }
        if offset == at::ICR && std::mem::take(&mut self.asserted) {
            self.set(at::IMR, 1);
            return Ok(1);
        }
        Ok(self.get(offset))
    }

    fn write(&mut self, offset: u32, _: Width, value: u32) -> Result<(), BusError> {
        self.log.push(format!("W {offset:x}={value:x}"));
        match offset {
            at::CMD => {
                let answer = self.execute(value);
                self.set(at::CMD, answer);
            }
            at::ECR => self.share(0x2b8, self.shared(0x2b8) & !value),
            _ => self.set(offset, value),
        }
        self.look();
        Ok(())
    }

    fn use_interrupt(&mut self, irq: Irq) -> Result<(), BusError> {
        self.irq = irq;
        Ok(())
    }

    fn take_interrupts(&mut self) -> u64 {
        std::mem::take(&mut self.pending)
    }

    fn unmask(&mut self) -> Result<(), BusError> {
        Ok(())
    }

    fn watched(&self) -> Watched<'_> {
        Watched::default()
    }

    fn wait(&mut self, _: Duration) -> Result<Wake, BusError> {
        Ok(if self.pending > 0 { Wake::Ready } else { Wake::Timeout })
    }
}
