//! The chips share one walker: the same traffic through each of them gives the same frames,
//! whatever their descriptors look like (e1000: legacy).

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::e1000::E1000;
use crate::r8169::R8169;
use crate::rtl8139::Rtl8139;
use crate::vmxnet3::Vmxnet3;

/// Where frames to send are, and receive buffers of up to 1 KiB each.
const FRAMES: u32 = 0x2000;
const BUFFERS: u32 = 0x8000;
const EACH: u32 = 1024;

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    /// Frames are sent, each as parts of these lengths; a pull takes so many, and holds every n-th.
    Send(Vec<Vec<u32>>, usize, usize),
    /// Frames of these lengths arrive; some have a tag.
    Arrive(Vec<(usize, Option<u16>)>),
}

fn step() -> impl Strategy<Value = Step> {
    let part = prop_oneof![4 => 1u32..100, 2 => 100u32..1514, 1 => Just(60), 1 => Just(14)];
    let sent = vec(vec(part, 1..4), 0..8);
    let limit = prop_oneof![2 => Just(256usize), 1 => 0usize..6];
    let arriving = (0usize..1500, proptest::option::weighted(0.2, any::<u16>()));
    prop_oneof![
        (sent, limit, 0usize..4).prop_map(|(sent, limit, every)| Step::Send(sent, limit, every)),
        vec(arriving, 0..12).prop_map(Step::Arrive),
    ]
}

/// Keeps copies of frames; holds every n-th.
struct Keep<'k> {
    every: usize,
    frames: &'k mut Vec<Vec<u8>>,
}

impl Sink for Keep<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            if self.every > 0 && i % (self.every + 1) == self.every {
                batch.hold(i);
                continue;
            }
            let frame = batch.frame(i).unwrap();
            let mut copy = vec![0; frame.len];
            frame.copy_to(&mut copy);
            self.frames.push(copy);
        }
    }
}

/// What came of it: frames sent, frames received with their tags, and how many of each push found
/// room.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    sent: Vec<Vec<u8>>,
    received: Vec<(Vec<u8>, Option<u16>)>,
    dealt: Vec<usize>,
}

/// A driver: the next descriptors of either ring, to fill and to look at.
struct Driver<'w, C> {
    run: Run<'w, C>,
    transmit: u32,
    receive: u32,
    room: u32,
    out: Outcome,
}

impl<C: Fuzzed> Driver<'_, C> {
    fn start(&mut self, byte: u8) {
        for i in 0..RING - 1 {
            C::put_buffer(&self.run, i, BUFFERS + EACH * i, self.room);
        }
        C::set_up(&mut self.run, byte);
        C::offer(&self.run, 0, RING - 1);
    }

    fn send(&mut self, frames: &[Vec<u32>], limit: usize, every: usize) {
        let (mut at, mut free) = (FRAMES, RING - 1);
        for (n, parts) in (0u32..).zip(frames) {
            let count = u32::try_from(parts.len()).unwrap();
            let bytes = parts.iter().sum::<u32>();
            if count > free || at + bytes + 4 > BUFFERS {
                break;
            }
            free -= count;
            for i in 0..bytes.div_ceil(4) {
                self.run.poke(at + 4 * i, 0x0101_0101u32.wrapping_mul(n + 1).wrapping_add(i));
            }
            for (i, len) in (1..).zip(parts) {
                let part = Part { at, len: *len, first: i == 1, last: i == count };
                C::put_part(&self.run, self.transmit, part);
                self.transmit = (self.transmit + 1) % RING;
                at += len;
            }
            at = at.next_multiple_of(4);
        }
        C::offer(&self.run, self.transmit, self.tail());
        self.pull(limit, every);
        // What was held, and the rest: the ring is empty for the next step.
        self.pull(256, 0);
        self.pull(256, 0);
    }

    fn pull(&mut self, limit: usize, every: usize) {
        let mut keep = Keep { every, frames: &mut self.out.sent };
        self.run.chip.pull(&mut self.run.world.batch, limit, &mut keep);
    }

    /// The descriptor that is never the chip's.
    fn tail(&self) -> u32 {
        (self.receive + RING - 1) % RING
    }

    fn arrive(&mut self, frames: &[(usize, Option<u16>)]) {
        let batch = &mut self.run.world.pushed;
        batch.clear();
        for (len, tag) in frames {
            let mut head = vec![0xff; 12];
            if let Some(tag) = tag {
                head.extend([0x81, 0]);
                head.extend(tag.to_be_bytes());
            }
            head.extend([0x88, 0xb5]);
            let body = [Slice::from_bytes(&BODY[..*len])];
            batch.add_parts(&head, body, Offload::NONE).unwrap();
        }
        let list: Vec<u16> = (0..u16::try_from(frames.len()).unwrap()).collect();
        self.out.dealt.push(self.run.chip.push(&self.run.world.pushed, &list));
        self.take();
        C::offer(&self.run, self.transmit, self.tail());
    }

    /// Takes what was received, and gives the buffers back.
    fn take(&mut self) {
        let mut bytes = Vec::new();
        while let Some(filled) =
            C::written(&self.run, self.receive).filter(|_| self.receive != RING)
        {
            let left = match (filled.whole, filled.last) {
                (true, true) => filled.len - u32::try_from(bytes.len()).unwrap(),
                (true, false) => self.room,
                (false, _) => filled.len,
            };
            let mut part = vec![0; left as usize];
            let at = u64::from(BUFFERS + EACH * self.receive);
            self.run.world.guest.slice(at, part.len()).unwrap().read(&mut part);
            bytes.extend(part);
            // The one before becomes the chip's instead.
            let old = self.tail();
            C::put_buffer(&self.run, old, BUFFERS + EACH * old, self.room);
            self.receive = (self.receive + 1) % RING;
            if filled.last {
                bytes.truncate(bytes.len() - C::FCS as usize);
                self.out.received.push((std::mem::take(&mut bytes), filled.tag));
            }
            if self.receive == self.tail() {
                break;
            }
        }
        assert!(bytes.is_empty(), "half a frame");
    }
}

fn outcome<C: Fuzzed>(byte: u8, room: u32, steps: &[Step]) -> Outcome {
    WORLD.with_borrow_mut(|world| {
        world.load(&[]);
        let host = Arc::new(Clock::default());
        let config = Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), irq_rate_max: 0, csb: false };
        let chip = C::make(config, world.pages(), host.clone(), byte);
        drop(chip.set_map(world.guest.clone()));
        let run = Run { chip, host, world, steps: &[], next: [0; 3], mapped: true, seen: None };
        let out = Outcome::default();
        let mut driver = Driver { run, transmit: 0, receive: 0, room, out };
        driver.start(byte);
        for step in steps {
            match step {
                Step::Send(frames, limit, every) => driver.send(frames, *limit, *every),
                Step::Arrive(frames) => driver.arrive(frames),
            }
        }
        driver.run.world.check_guards();
        driver.out
    })
}

/// All with one receive ring. Tags are taken out; the e1000's long frames are on, and its buffers
/// by RCTL.BSIZE.
fn outcomes(size: u8, steps: &[Step]) -> [Outcome; 3] {
    let room = 2048 >> size;
    [
        outcome::<E1000>(size << 4 | 2, room, steps),
        outcome::<R8169>(0x12, room, steps),
        outcome::<Rtl8139>(0x02, room, steps),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    #[test]
    fn the_same_traffic_gives_the_same_frames(size in 1u8..4, steps in vec(step(), 1..12)) {
        let [intel, gigabit, plus] = outcomes(size, &steps);
        prop_assert_eq!(&intel, &gigabit);
        prop_assert_eq!(&intel, &plus);
    }

    /// vmxnet3's heads and bodies are another matter than buffers that are all alike.
    #[test]
    fn frames_of_one_buffer_are_the_same_on_vmxnet3(steps in vec(step(), 1..12)) {
        let short = |step: &Step| match step {
            Step::Arrive(frames) => {
                Step::Arrive(frames.iter().map(|(len, tag)| (len % 990, *tag)).collect())
            }
            send => send.clone(),
        };
        let steps: Vec<Step> = steps.iter().map(short).collect();
        let gigabit = outcome::<R8169>(0x12, 1024, &steps);
        prop_assert_eq!(&gigabit, &outcome::<Vmxnet3>(0x10, 1024, &steps));
    }
}

/// Frames do move in these.
#[test]
fn traffic_is_not_nothing() {
    let arriving = Step::Arrive(vec![(46, None), (1400, Some(0xa005)), (200, None)]);
    let steps = [Step::Send(vec![vec![60], vec![14, 500], vec![5]], 256, 1), arriving];
    for outcome in outcomes(2, &steps) {
        assert_eq!(outcome.sent.iter().map(Vec::len).collect::<Vec<_>>(), [60, 514]);
        let received: Vec<_> = outcome.received.iter().map(|(f, tag)| (f.len(), *tag)).collect();
        assert_eq!(received, [(60, None), (1414, Some(0xa005)), (214, None)]);
    }
}
