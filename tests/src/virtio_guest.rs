//! A guest with virtio-net inside the test process: the driver's NIC over vhost-user, and numbered
//! frames.

use std::path::Path;

use vmlan_driver::virtio::VirtioNet;
use vmlan_driver::virtio::queues::{NetHeader, RxBatch};
use vmlan_driver::virtio::virtqueue::Audit;

use crate::numbered::{Expected, Progress, STALL, Sizes, frame, mac, settles};

/// A guest.
pub struct VirtioGuest {
    /// Its NIC.
    pub nic: VirtioNet,
    /// Its number, byte 4 of its MAC addresses.
    pub id: u8,
    /// What is to come.
    pub expected: Expected,
    batches: Vec<RxBatch>,
    sent: Vec<u64>,
    scratch: Vec<u8>,
}

impl VirtioGuest {
    /// Plugs guest `id` into the port at `path`, with further keys of the address in `keys`
    /// (`,size=64,mrg=off`).
    ///
    /// # Panics
    /// When it cannot.
    pub fn connect(path: &Path, id: u8, keys: &str) -> Self {
        let address = format!("vhost-user:{}{keys}", path.display()).parse().expect("an address");
        let nic = VirtioNet::connect(&address, STALL)
            .unwrap_or_else(|e| panic!("{}{keys}: {e:?}", path.display()));
        let batches: Vec<_> = nic.pairs.iter().map(|pair| pair.rx.batch()).collect();
        let sent = vec![0; batches.len()];
        Self { nic, id, batches, sent, expected: Expected::default(), scratch: vec![0; 70_000] }
    }

    /// Sends one frame on `queue`; false when all slots are under way. [`Self::flush`] shows it to
    /// the switch.
    pub fn send(&mut self, queue: usize, header: NetHeader, bytes: &[u8]) -> bool {
        let tx = &mut self.nic.pairs[queue].tx;
        if tx.free_slots() == 0 && tx.reap() == 0 {
            return false;
        }
        let Some(slot) = tx.next() else { return false };
        tx.write_header(slot, header);
        tx.write(slot, 0, bytes);
        tx.send(slot, u32::try_from(bytes.len()).expect("a frame"));
        true
    }

    /// Shows the switch what was sent.
    pub fn flush(&mut self) {
        self.nic.pairs.iter_mut().for_each(|pair| _ = pair.tx.flush());
    }

    /// Sends the next numbered frames of every queue's flow to guest `to`, until there are no slots
    /// or `count` of each flow are sent. Returns how many were sent now.
    pub fn send_next(&mut self, to: u8, count: u64, sizes: Sizes) -> u64 {
        let mut total = 0;
        for queue in 0..self.sent.len() {
            let flow = u8::try_from(queue).expect("few queues");
            while self.sent[queue] < count {
                let n = self.sent[queue];
                let bytes = frame(mac(to, 0), mac(self.id, flow), n, sizes.of(n));
                if !self.send(queue, NetHeader::default(), &bytes) {
                    break;
                }
                self.sent[queue] += 1;
                total += 1;
            }
        }
        self.flush();
        total
    }

    /// Lets the switch know where this guest is: until then frames to it are flooded, and floods do
    /// not wait for a full receiver.
    ///
    /// # Panics
    /// When the frame is not taken.
    pub fn introduce(&mut self) {
        let hello = frame([0xff; 6], mac(self.id, 0), 0, 60);
        let mut progress = Progress::default();
        while !self.send(0, NetHeader::default(), &hello) {
            progress.note(0, || "no slot to introduce oneself".into());
        }
        self.flush();
        while self.nic.pairs[0].tx.outstanding() > 0 {
            self.nic.pairs[0].tx.reap();
            progress.note(0, || "an introduction is not taken".into());
        }
    }

    /// Hands out all frames that are there; returns how many.
    pub fn receive(&mut self, mut each: impl FnMut(NetHeader, &[u8])) -> u64 {
        let mut count = 0;
        for (pair, batch) in self.nic.pairs.iter_mut().zip(&mut self.batches) {
            pair.rx.poll(batch, usize::MAX);
            for frame in batch.frames() {
                let len = pair.rx.read(batch, *frame, 0, &mut self.scratch);
                assert_eq!(len, frame.len, "the buffers hold the frame's length");
                each(pair.rx.header(batch, *frame), &self.scratch[..len]);
                count += 1;
            }
            pair.rx.release(batch);
        }
        count
    }

    /// Takes all frames that are there; each must be the next of its flow, to guest `to` (byte 4 of
    /// the destination).
    ///
    /// # Panics
    /// When a frame was lost, changed, reordered or came twice.
    pub fn receive_next(&mut self, to: u8, sizes: Sizes) -> u64 {
        let mut expected = std::mem::take(&mut self.expected);
        let id = self.id;
        let dst = if to == 0xff { [0xff; 6] } else { mac(to, 0) };
        let mut count = 0;
        self.receive(|header, bytes| {
            if expected.judge(id, dst, bytes, sizes) {
                assert_eq!((header.flags & 1, header.gso_type), (0, 0), "nothing is left to do");
                count += 1;
            }
        });
        self.expected = expected;
        count
    }

    /// Frames of each flow sent so far by [`Self::send_next`].
    pub fn sent(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Forgets what was sent and expected, for the next round.
    pub fn start_over(&mut self) {
        self.sent.fill(0);
        self.expected.start_over();
    }

    /// Every descriptor of every ring is where it belongs.
    ///
    /// # Panics
    /// When one is not.
    pub fn assert_sound(&self) {
        let sound = || self.nic.audit().iter().all(Audit::is_sound);
        // An audit is exact only while the switch does not write; it may, for a moment, if there
        // are other guests.
        assert!(settles(sound), "guest {}: {:?}", self.id, self.nic.audit());
        let malformed: u64 = self.nic.pairs.iter().map(|pair| pair.rx.stats().malformed).sum();
        assert_eq!(malformed, 0, "guest {}: frames in a form they must not have", self.id);
    }
}
