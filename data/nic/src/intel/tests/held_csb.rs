//! Death of a switch whose e1000's driver uses the CSB.

use vmlan_stepped::asked;

use super::*;
use crate::chip::held::HELD;
use crate::chip::held_judge::lives_watched;
pub use crate::chip::held_judge::words::*;
use crate::chip::state::{StateError, Tag, parts_of};
use crate::chip::stepped::has_a_point_before_each_store;

pub const CSBAL: u64 = 0x2830;
pub const CSBAH: u64 = 0x2834;

impl<M: Driven> Machine<M> {
    /// Its driver has a CSB from the beginning.
    fn with_csb() -> Self {
        let mut machine = Self { csb: Some(Block::default()), ..Self::new(false) };
        machine.place();
        machine.turn_on();
        machine
    }

    /// The CSB is at the next place, or nowhere any more.
    fn place(&mut self) {
        let Some(csb) = &mut self.csb else { return };
        let at = csb.go();
        self.set(CSBAH, 0);
        self.set(CSBAL, at);
    }

    /// The CSB, if it is on.
    pub fn on(&self) -> Option<Block> {
        self.csb.filter(|csb| csb.is_on(&self.life))
    }

    fn turn_on(&mut self) {
        let Some(csb) = &self.csb else { return };
        csb.turn_on(&self.life, (self.tx.1, self.rx.1));
        // Some that the driver was about to give back.
        self.give_back();
    }

    /// As a driver should: the registers first, and a read, since writes are posted.
    fn turn_off(&mut self) {
        let Some(csb) = self.on() else { return };
        self.set(TD + TAIL, self.tx.1);
        self.set(RD + TAIL, self.rx.1);
        self.get(0);
        csb.put(&self.life, CSB_ON, 0);
    }

    /// The driver turns its CSB on or off, moves it, stops a side for a while; or lets the words go
    /// stale.
    pub fn around_csb(&mut self, random: &mut Random) {
        let Some(csb) = self.csb else { return };
        match random.below(6) {
            // As a sysctl does: nothing else happens.
            0 if csb.is_on(&self.life) => csb.put(&self.life, CSB_ON, 0),
            1..3 if csb.is_on(&self.life) => self.turn_off(),
            0..3 if csb.is_placed() => self.turn_on(),
            3 => {
                self.turn_off();
                self.kick();
                self.place();
            }
            4 if csb.is_on(&self.life) => {
                // The block of before, in mid-traffic.
                let (high, low) = (self.get(CSBAH), self.get(CSBAL));
                self.kick();
                self.set(CSBAH, high);
                self.set(CSBAL, low);
            }
            5 => {
                self.kick();
                self.pull(256, 0);
                self.set(0x400, 8);
                csb.put(&self.life, GUEST_TDT, (self.tx.1 + 3) % RING);
                self.set(0x400, 2 | 8);
            }
            _ => {}
        }
    }

    /// The registers have the tails.
    fn kick(&mut self) {
        self.set(TD + TAIL, self.tx.1);
        self.set(RD + TAIL, self.rx.1);
    }

    /// So are buffers, from `before` on. True: the register is to be written.
    pub fn publish_buffers(&self, before: u32) -> bool {
        let Some(csb) = self.on() else { return true };
        csb.put(&self.life, GUEST_RDT, self.rx.1);
        let wanted = csb.get(&self.life, HOST_RXKICK_AT);
        let ahead = |at: u32| (at + RING - before) % RING;
        wanted < RING && (1..=ahead(self.rx.1)).contains(&ahead(wanted))
    }

    /// What was sent is published.
    pub fn publish(&mut self) {
        if self.on().is_none_or(|csb| csb.sends(&self.life, self.tx.1)) {
            self.set(TD + TAIL, self.tx.1);
        }
    }

    /// The heads in the CSB are those of the registers.
    pub fn assert_heads(&self) {
        let Some(csb) = self.on() else { return };
        for (base, at) in [(TD, HOST_TDH), (RD, HOST_RDH)] {
            let mut bytes = [0; 4];
            self.chip.read(Space::Bar(0), base + HEAD, &mut bytes);
            assert_eq!(csb.get(&self.life, at), u32::from_le_bytes(bytes), "a head was not told");
        }
    }

    /// All is at rest.
    pub fn turn_off_last(&mut self) {
        self.assert_heads();
        if let Some(csb) = self.on() {
            assert_eq!(csb.get(&self.life, HOST_RXKICK_AT), u32::MAX, "a wish of before");
        }
        self.turn_off();
    }

    /// A frame is published, and a kick is sent if it is wished for.
    pub fn send_meanwhile(&mut self) -> Option<(u64, u32)> {
        let csb = self.on().filter(|_| self.goes_on)?;
        self.send();
        csb.sends(&self.life, self.tx.1).then_some((TD + TAIL, self.tx.1))
    }

    /// Descriptors were written to since the ring was stopped, as its state says.
    fn wrote(&self) -> bool {
        let state = self.chip.save();
        let parts = parts_of(&state);
        let (.., rx) = parts.iter().find(|(tag, ..)| *tag == Tag(*b"RX  ")).unwrap();
        // Behind the place, the head, and the head that was told: options.
        let told = if rx[12] == 0 { 13 } else { 17 };
        rx[told + if rx[told] == 0 { 1 } else { 5 }] != 0
    }

    /// Descriptors of long ago, in the ring at `ring` from `at` on.
    fn litter(&self, ring: u64, at: u32) {
        for index in (at..at + 3).map(u64::from) {
            self.life.put(ring + 16 * index, &TX_BUFFERS.to_le_bytes());
            self.life.put(ring + 16 * index + 8, &(100 | EOP | IFCS | RS).to_le_bytes());
        }
    }

    /// By the word alone: the worker is awake, and asks for no kick.
    fn send_silently(&mut self) {
        let csb = self.on().unwrap();
        self.send();
        assert!(!csb.sends(&self.life, self.tx.1));
    }

    /// Frames pass by the words.
    fn awake() -> Self {
        let mut machine = Self::with_csb();
        machine.send();
        machine.publish();
        machine.pull(256, 0);
        machine
    }

    fn all_is_sent(&mut self) -> bool {
        self.pull(256, 0);
        self.life.delivered.next == self.life.sent
    }

    /// The part of its state.
    fn said_of_csb(&self) -> Vec<u8> {
        let state = self.chip.save();
        let parts = parts_of(&state);
        let (.., bytes) = parts.iter().find(|(tag, ..)| *tag == Tag(*b"CSB ")).unwrap();
        bytes.to_vec()
    }
}

#[test]
fn e1000_with_a_csb() {
    dies_everywhere(Machine::<I82540>::with_csb, 0x9e37_79b9, 1);
    (1..9).for_each(|seed| dies_everywhere(Machine::<I82540>::with_csb, seed * 0x1234_5677, 7));
}

/// The access was made, and the guest has gone on by the words, but nobody noted it.
#[test]
fn a_csb_that_is_placed_twice_is_not_doubted() {
    let mut machine = Machine::<I82540>::awake();
    let place = machine.get(CSBAL);
    machine.chip.write(Space::Bar(0), CSBAL, &place.to_le_bytes());
    assert!(machine.all_is_sent());
    machine.send_silently();
    machine.die();
    machine.set(CSBAL, place);
    assert!(machine.all_is_sent(), "the word is doubted");
    // Any later access is one of its own.
    machine.send_silently();
    machine.set(CSBAL, place);
    assert!(!machine.all_is_sent(), "the word is not doubted");
}

/// A hand-over, and a death before anybody has looked at a ring.
#[test]
fn a_csb_outlives_a_hand_over_and_a_death() {
    let mut machine = Machine::<I82540>::awake();
    machine.send_silently();
    machine.push(1);
    assert!(machine.wrote());
    machine.hand_over();
    (0..2).for_each(|_| machine.die());
    assert!(machine.wrote());
    assert!(machine.all_is_sent());
    assert_eq!(machine.on().unwrap().get(&machine.life, HOST_NEED_TXKICK), 0);
}

/// What it said when it was placed counts, and it is here, there, or nowhere.
#[test]
fn a_csb_is_where_it_was() {
    let (mut old, mut none, mut new) = (0, 0, 0);
    for stores in 0.. {
        let mut machine = Machine::<I82540>::new(false);
        machine.csb = Some(Block::default());
        let mut said = Vec::new();
        for says in [1, 0] {
            // There, but for its first words, is nobody else.
            let at = machine.csb.as_mut().unwrap().go();
            machine.life.put(u64::from(at) + USE_MSIX, &u32::to_le_bytes(says));
            fuse::set((says == 0).then_some(stores));
            machine.device(|m| m.chip.write(Space::Bar(0), CSBAL, &at.to_le_bytes()));
            let lives = fuse::set(None).is_some();
            machine.life.put(u64::from(at) + USE_MSIX, &u32::to_le_bytes(1 - says));
            said.push(machine.said_of_csb());
            if lives {
                machine.die();
                assert_eq!(machine.said_of_csb(), said[1], "{stores}");
            }
        }
        let nowhere = said[1].iter().all(|byte| *byte == 0);
        assert!(nowhere || said[1] == said[0] || said[1][10] == 0, "{said:?}");
        old += u32::from(said[1] == said[0]);
        none += u32::from(nowhere);
        new += u32::from(said[1][..2] == [0, 0x90]);
        if machine.life.deaths > 0 && new > 1 {
            break;
        }
    }
    assert!(old > 0 && none > 0 && new > 1, "{old} {none} {new}");
}

/// Of whoever did not note it nothing is believed.
#[test]
fn a_csb_of_an_older_build_is_lost() {
    for (uses, fits) in [(true, false), (false, true)] {
        let mut machine = Machine::<I82540>::with_csb();
        if !uses {
            machine.turn_off();
            (0..2).for_each(|_| machine.place());
        }
        let mut remains = all(&machine.life.held, HELD);
        remains[4] = 0;
        let (chip, _) = machine.another();
        assert_eq!(chip.revive(&remains, false).is_ok(), fits);
    }
}

/// A CSB where there is none, where no memory is, and words of any kind.
#[test]
fn what_is_said_of_a_csb_is_not_believed() {
    let mut machine = Machine::<I82540>::with_csb();
    let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: false };
    let pages = || window(&memory(0x2000), 0x2000);
    let chip = || Intel::<I82540>::new(config, pages(), machine.life.host.clone());
    let (first, held) = (chip(), memory(HELD as u64));
    assert!(first.hold(window(&held, HELD)));
    first.renew();
    first.note();
    let mut remains = all(&held, HELD);
    assert_eq!(chip().revive(&remains, false), Ok(()));
    remains[25] = 0x80;
    let none = chip().revive(&remains, false);
    assert!(matches!(none, Err(StateError::Lost(_))), "{none:?}");
    let mut remains = all(&machine.life.held, HELD);
    for word in [0x8001, MEMORY - 64, u64::MAX, 1 << 63] {
        remains[24..32].copy_from_slice(&word.to_le_bytes());
        remains[32..48].fill(0xff);
        let (chip, _) = machine.another();
        assert_eq!(chip.revive(&remains, false), Ok(()));
        chip.note();
        machine.replace(chip);
        assert!(machine.chip.fault().is_some(), "{word:#x}");
        machine.send();
        machine.kick();
        // They are always the same remains.
        machine.life.delivered.credit += 1;
        assert!(machine.all_is_sent());
    }
}

/// Its driver goes on by the words while nobody serves.
#[test]
fn e1000_with_a_csb_and_a_driver_that_goes_on() {
    let new = || Machine::<I82540> { goes_on: true, ..Machine::with_csb() };
    dies_everywhere(new, 0x9e37_79b9, 1);
    (1..5).for_each(|seed| dies_everywhere(new, seed * 0x1234_5677, 3));
}

/// The word is stale then: wherever the switch dies while the side is stopped, and after that.
#[test]
fn a_side_that_was_stopped_believes_its_register() {
    for stores in 0..12 {
        let mut machine = Machine::<I82540>::awake();
        let stale = (machine.tx.1 + 3) % RING;
        machine.litter(machine.ring_at(false), machine.tx.1);
        fuse::set(Some(stores));
        machine.set(0x400, 8);
        fuse::set(None);
        machine.on().unwrap().put(&machine.life, GUEST_TDT, stale);
        machine.set(0x400, 2 | 8);
        if stores % 2 == 0 {
            machine.die();
        }
        assert!(machine.all_is_sent(), "{stores}");
        assert_eq!(machine.get(TD + HEAD), machine.tx.1, "{stores}");
    }
}

#[test]
fn a_ring_that_has_moved_believes_its_register() {
    let mut machine = Machine::<I82540>::awake();
    machine.litter(0xa000, 0);
    machine.set(TD, 0xa000);
    [HEAD, TAIL].into_iter().for_each(|at| machine.set(TD + at, 0));
    machine.die();
    machine.pull(256, 0);
    assert_eq!(machine.get(TD + HEAD), 0);
}

/// The register has followed the word, and a doubt outlives a death.
#[test]
fn tails_are_as_they_were() {
    let mut machine = Machine::<I82540>::awake();
    machine.send_silently();
    assert!(machine.all_is_sent());
    machine.die();
    assert_eq!(machine.get(TD + TAIL), machine.tx.1);
    let mut machine = Machine::<I82540>::new(false);
    machine.csb = Some(Block::default());
    machine.place();
    let csb = machine.csb.unwrap();
    csb.put(&machine.life, GUEST_RDT, 10);
    csb.put(&machine.life, CSB_ON, 1);
    machine.push(1);
    machine.die();
    csb.put(&machine.life, GUEST_RDT, 6);
    machine.life.arriving = 1;
    machine.push(4);
    assert!(machine.life.arriving < 5, "the word has changed, and is not believed");
}

/// Another thread is about to write the register, and has noted it.
#[test]
fn a_kick_that_arrives_outlives_a_tail_that_follows() {
    let machine = Machine::<I82540>::awake();
    let noted = machine.life.held.window(0x4000 + 0x3818, 4, 4).unwrap();
    let before = machine.chip.regs.get(0x3818);
    noted.set_u32(0, 9, Ordering::Release);
    assert!(machine.chip.regs.replace(0x3818, before, 7));
    assert_eq!(noted.u32(0, Ordering::Acquire), 9);
}

#[test]
fn a_csb_is_gone_after_a_reset() {
    let mut machine = Machine::<I82540>::awake();
    machine.access(|chip| chip.reset());
    machine.die();
    assert!(machine.said_of_csb().iter().all(|byte| *byte == 0));
}

/// Whether there was anything to prove by is known.
#[test]
fn what_was_written_is_known() {
    let (mut yes, mut no) = (0, 0);
    for stores in 0..20 {
        let mut machine = Machine::<I82540>::with_csb();
        fuse::set(Some(stores));
        machine.push(1);
        if fuse::set(None).is_some() && machine.life.deaths == 0 {
            machine.die();
        }
        let wrote = machine.get(RD + HEAD) != 0;
        assert_eq!(machine.wrote(), wrote, "{stores}");
        (yes, no) = (yes + u32::from(wrote), no + u32::from(!wrote));
        // Stopped.
        machine.set(0x100, 0);
        machine.die();
        assert!(!machine.wrote());
    }
    assert!(yes > 0 && no > 0);
}

/// The switch dies while it looks at a CSB that was just turned on, or off, and the driver goes on.
/// It publishes nothing later.
#[test]
fn no_frame_waits_for_the_next() {
    for stores in 0..24 {
        let mut machine = Machine::<I82540> { goes_on: true, ..Machine::with_csb() };
        machine.send();
        machine.publish();
        fuse::set(Some(stores));
        machine.pull(256, 0);
        fuse::set(None);
        assert!(machine.all_is_sent(), "on, {stores}");
        let mut machine = Machine::<I82540>::awake();
        machine.send_silently();
        machine.on().unwrap().put(&machine.life, CSB_ON, 0);
        fuse::set(Some(stores));
        machine.pull(256, 0);
        fuse::set(None);
        assert!(machine.all_is_sent(), "off, {stores}");
    }
}

#[test]
#[ignore = "run by the next one"]
fn lives() {
    match asked().as_deref() {
        Some("e1000") => lives_watched(|| Machine::<I82540>::new(false)),
        Some("e1000, mapped") => lives_watched(|| Machine::<I82540>::new(true)),
        Some("e1000, CSB") => lives_watched(Machine::<I82540>::with_csb),
        Some("e1000e") => lives_watched(|| Machine::<I82574>::new(true)),
        _ => {}
    }
}

#[test]
fn death_at_any_instruction_is_death_before_a_store() {
    for what in ["e1000", "e1000, mapped", "e1000, CSB", "e1000e"] {
        has_a_point_before_each_store("intel::held::csb::lives", what);
    }
}
