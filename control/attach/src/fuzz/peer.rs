//! Peers for a fuzz target that has a whole switch: hostile ones, which take the steps of this
//! folder's tables one at a time, and honest ones.

use super::*;
use vmlan_ram::{Map, Mapping, Region};

/// Descriptors of each ring of the honest set-up.
const RING: u16 = 16;
/// Where the frames to send are, this far apart.
const SEND: u64 = 0xc000;
const SLOT: u64 = 0x400;
const SLOT_LEN: usize = 0x400;
/// A header of virtio-net.
const NET: usize = 12;
/// Longest frame that [`Driver::send`] has room for.
pub const LONGEST: usize = SLOT_LEN - NET;
/// Bytes that the chip writes behind a frame: the frame check sequence.
const FCS: usize = 4;
/// Registers that are the tails of the chip's rings.
const RDT: u64 = 0x2818;
const TDT: u64 = 0x3818;

enum Kind {
    Virtio(Box<World>),
    Chip(Box<vfio::World>),
}

/// A VMM with its guest, and the port that they have.
pub struct Peer(Kind);

impl Peer {
    /// Virtio-net, over vhost-user.
    pub fn virtio() -> Self {
        Self(Kind::Virtio(Box::new(World::new())))
    }

    /// An e1000, over vfio-user.
    pub fn chip() -> Self {
        Self(Kind::Chip(Box::new(vfio::World::new())))
    }

    /// Its port.
    pub fn port(&self) -> Arc<dyn Port> {
        match &self.0 {
            Kind::Virtio(world) => world.port.clone(),
            Kind::Chip(world) => world.port.clone(),
        }
    }

    /// One step of the folder's tables, but none that is a worker's. `bytes` follow it.
    pub fn step(&mut self, step: u8, bytes: &[u8]) {
        let input = &mut Input(bytes);
        match &mut self.0 {
            _ if (0x90..=0xbf).contains(&step) => {}
            Kind::Virtio(world) => world.step(step, input),
            Kind::Chip(world) => world.step(step, input),
        }
    }

    /// All that an honest one says before its driver has anything to send.
    pub fn set_up(&mut self) {
        match &mut self.0 {
            Kind::Virtio(world) => world.set_up(13),
            Kind::Chip(world) => world.set_up(13),
        }
    }

    /// The connection ends.
    pub fn hang_up(&mut self) {
        match &mut self.0 {
            Kind::Virtio(world) => world.session = None,
            Kind::Chip(world) => world.session = None,
        }
    }

    fn ram(&self) -> &File {
        match &self.0 {
            Kind::Virtio(world) => &world.ram,
            Kind::Chip(world) => &world.ram,
        }
    }
}

/// A driver that posts and takes frames as it should, in the rings of [`Peer::set_up`].
pub struct Driver {
    /// Whose driver it is.
    pub peer: Peer,
    map: Arc<Map>,
    sent: u16,
    /// Receive descriptors that were looked at.
    taken: u16,
}

impl Driver {
    /// The driver of `peer`'s guest. Nothing is set up yet.
    pub fn new(peer: Peer) -> Self {
        let mapping = Arc::new(Mapping::new(peer.ram().as_fd(), 0, MEMORY).expect("a mapping"));
        let region = Region::new(0, MEMORY, 0, 0, mapping).expect("a region");
        let map = Arc::new(Map::new(vec![region], None).expect("a map"));
        Self { peer, map, sent: 0, taken: 0 }
    }

    /// Sets the device up, with buffers for all its receive descriptors.
    pub fn set_up(&mut self) {
        let chip = matches!(self.peer.0, Kind::Chip(_));
        (self.sent, self.taken) = (0, 0);
        self.write(0, &[0; 0x8000]);
        for n in 0..u64::from(RING) {
            if chip {
                self.write(0x2000 + n * 16, &(0x4000 + n * 0x800).to_le_bytes());
                continue;
            }
            let at = 0x8000 + n * SLOT;
            self.write(n * 16, &at.to_le_bytes());
            self.write(n * 16 + 8, &[0, 4, 0, 0, 2, 0, 0, 0]);
            self.write(0x1004 + n * 2, &[n.to_le_bytes()[0], 0]);
        }
        if !chip {
            self.write(0x1002, &RING.to_le_bytes());
        }
        self.peer.set_up();
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.map.slice_mut(at, bytes.len()).expect("inside the memory").write(0, bytes);
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        self.map.slice(at, N).and_then(|s| s.read_array()).expect("inside the memory")
    }

    fn short(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at))
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.slice(at, len).expect("inside the memory").read(&mut bytes);
        bytes
    }

    /// Posts one frame of at most [`LONGEST`] bytes, with what virtio-net's header says of it.
    pub fn send(&mut self, header: [u8; 10], frame: &[u8]) {
        let slot = u64::from(self.sent % RING);
        let at = SEND + slot * SLOT;
        let [l0, l1, ..] = frame.len().to_le_bytes();
        self.sent = self.sent.wrapping_add(1);
        match &self.peer.0 {
            Kind::Virtio(_) => {
                self.write(at, &header);
                self.write(at + 10, &[0; 2]);
                self.write(at + NET as u64, frame);
                self.write(0x4000 + slot * 16, &at.to_le_bytes());
                let [l0, l1, ..] = (frame.len() + NET).to_le_bytes();
                self.write(0x4008 + slot * 16, &[l0, l1, 0, 0, 0, 0, 0, 0]);
                self.write(0x5004 + slot * 2, &[slot.to_le_bytes()[0], 0]);
                self.write(0x5002, &self.sent.to_le_bytes());
            }
            Kind::Chip(_) => {
                self.write(at, frame);
                self.write(0x1000 + slot * 16, &at.to_le_bytes());
                // EOP, IFCS, RS.
                self.write(0x1008 + slot * 16, &[l0, l1, 0, 0x0b, 0, 0, 0, 0]);
                self.register(TDT, u32::from(self.sent % RING));
            }
        }
    }

    fn register(&mut self, at: u64, value: u32) {
        if let Kind::Chip(world) = &mut self.peer.0 {
            world.write(at, &value.to_ne_bytes());
        }
    }

    /// True if all that was posted is sent.
    pub fn all_sent(&self) -> bool {
        match &self.peer.0 {
            Kind::Virtio(_) => self.short(0x6002) == self.sent,
            Kind::Chip(_) => {
                let last = u64::from(self.sent.wrapping_sub(1) % RING);
                let [done] = self.read(0x100c + last * 16);
                self.sent == 0 || done & 1 != 0
            }
        }
    }

    /// The next frame received. Its buffer is posted again.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        match &self.peer.0 {
            Kind::Virtio(_) => self.receive_virtio(),
            Kind::Chip(_) => self.receive_chip(),
        }
    }

    fn receive_virtio(&mut self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        let mut left = 1;
        while left > 0 {
            let there = self.short(0x2002).wrapping_sub(self.taken);
            assert!(there <= RING, "more was used than was posted");
            if there == 0 {
                assert!(frame.is_empty(), "a part of a frame");
                return None;
            }
            let slot = u64::from(self.taken % RING);
            let [id, _, _, _, l0, l1, _, _] = self.read(0x2004 + slot * 8);
            let len = usize::from(u16::from_le_bytes([l0, l1]));
            assert!(u16::from(id) < RING && len <= SLOT_LEN, "{id} {len}");
            let part = self.bytes(0x8000 + u64::from(id) * SLOT, len);
            if frame.is_empty() {
                let count = part.get(10..).and_then(<[u8]>::first_chunk);
                left = count.map_or(1, |count| u16::from_le_bytes(*count));
            }
            frame.extend(part);
            left -= 1;
            self.taken = self.taken.wrapping_add(1);
            self.write(0x1004 + slot * 2, &[id, 0]);
            self.write(0x1002, &self.taken.wrapping_add(RING).to_le_bytes());
        }
        Some(frame.split_off(NET))
    }

    fn receive_chip(&mut self) -> Option<Vec<u8>> {
        let slot = self.taken % RING;
        let at = 0x2000 + u64::from(slot) * 16;
        let [l0, l1, _, _, status, ..] = self.read::<8>(at + 8);
        if status & 1 == 0 {
            return None;
        }
        assert_eq!(status & 2, 2, "no frame is longer than a buffer");
        let len = usize::from(u16::from_le_bytes([l0, l1]));
        let frame = self.bytes(0x4000 + u64::from(slot) * 0x800, len - FCS);
        self.write(at + 8, &[0; 8]);
        self.taken = self.taken.wrapping_add(1);
        self.register(RDT, slot.into());
        Some(frame)
    }
}

/// What the honest do comes out at the other end, through the plainest of switches.
#[test]
fn honest_drivers_send_and_receive() {
    struct To(Arc<dyn Port>);
    impl Sink for To {
        fn deliver(&mut self, batch: &mut Batch<'_>) {
            let mut all: Vec<u16> = (0..).take(batch.len()).collect();
            assert_eq!(self.0.push(batch, &mut all), all.len());
        }
    }
    let mut pair = [Peer::virtio(), Peer::chip()].map(Driver::new);
    pair.iter_mut().for_each(Driver::set_up);
    let mut batch = Batch::new();
    for n in 0..100u8 {
        let [a, b] = &mut pair;
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = if from < to { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            let mut frame = vec![n; 60 + usize::from(n) * 8];
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            from.send([0; 10], &frame);
            let port = from.peer.port();
            port.pull(0, &mut batch, 32, &mut To(to.peer.port()));
            assert!(from.all_sent());
            assert_eq!(to.receive(), Some(frame), "frame {n}");
            assert_eq!(to.receive(), None);
        }
    }
}
