//! How far a transmit ring's tail in the CSB is believed when its switch dies (`chip::held`,
//! `chip::csb_direction`), as a model: every interleaving of a worker that makes one store at a
//! time and may die before each, of the one that goes on after it, and of a driver that goes on
//! meanwhile, turns the CSB on and off, and stops its ring. Each step taken away is caught.
//!
//! What becomes of descriptors is in `held_model.rs`, and memory barriers are in the models of
//! `notify`. Tails only grow here: which of two is the later is not asked. A death during adoption
//! is not in here: it gives a reset chip.
//!
//! The driver reads a register before it turns the CSB on or off, since writes of registers are
//! posted, and does not turn it on again before the device has seen it off. Without either, an old
//! kick may come after the device has left the CSB, and takes the tail back behind the head; this
//! was found here, and needs no death.
//!
//! One thing is not needed, and no test here asks for it: that a word which is not believed is
//! known again after a death, since kicks are wished for until one is.

use std::collections::{HashSet, VecDeque};

/// Frames in all; how often the CSB is turned on or off, the ring is stopped, the switch dies.
const FRAMES: u8 = 3;
const TURNS: u8 = 3;
const STOPS: u8 = 1;
const DEATHS: u8 = 2;

/// Where the tail is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Tail {
    Register,
    /// In the register, until the word differs from this.
    Stale(u8),
    Word,
}

/// What the switch is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Does {
    Sleep,
    Rest,
    Ask,
    Look,
    /// The word is believed, which is noted; then the register follows it.
    Believe,
    Follow,
    /// The CSB was turned off, and the word was believed or not: the wish; then the word counts
    /// once more.
    Leave(bool),
    TakeWord,
    Note(u8),
    Waive(u8),
    /// Of one that comes too late.
    Wish(u8),
    Send(u8),
    /// The ring is stopped: the register that says so, the wish, the note.
    Stop,
    StopWish,
    StopNote,
    /// Of the one that goes on.
    Adopt,
    AdoptWish,
}

/// What the driver is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Drives {
    Idle,
    Publish,
    Wanted,
    Kick,
    TurnOn,
    Quiet,
    Stopping,
    Litter,
    Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    FollowsWhenOff,
    FollowedFirst,
    NotNoted,
    WaivedFirst,
    StopNotNoted,
    StoppedIsBelieved,
    LeftFirst,
    WishAfterNote,
    WordForgotten,
    AllIsBelieved,
    WishNotStated,
    NothingIsBelieved,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    // What outlives the switch.
    word: u8,
    on: bool,
    kick_wanted: bool,
    register: u8,
    stopped: bool,
    noted: Tail,
    head: u8,
    kicks: VecDeque<u8>,
    deaths: u8,
    // What does not.
    does: Does,
    tail: Tail,
    asked: bool,
    awake: bool,
    /// A kick has come while it was about to sleep.
    rung: bool,
    // The driver.
    drives: Drives,
    posted: u8,
    turns: u8,
    stops: u8,
}

type Next = Result<State, String>;

impl State {
    fn new() -> Self {
        Self {
            word: 0,
            on: false,
            kick_wanted: true,
            register: 0,
            stopped: false,
            noted: Tail::Register,
            head: 0,
            kicks: VecDeque::new(),
            deaths: DEATHS,
            does: Does::Sleep,
            tail: Tail::Register,
            asked: true,
            awake: false,
            rung: false,
            drives: Drives::Idle,
            posted: 0,
            turns: TURNS,
            stops: STOPS,
        }
    }

    fn look(&mut self) -> Does {
        if self.stopped {
            return if self.awake || self.rung { Does::Rest } else { Does::Sleep };
        }
        if !self.on {
            let believed = self.tail == Tail::Word;
            return match std::mem::replace(&mut self.tail, Tail::Register) {
                Tail::Register => Does::Note(self.register),
                _ => Does::Leave(believed),
            };
        }
        match self.tail {
            Tail::Stale(old) if old == self.word => return Does::Note(self.register),
            Tail::Register if self.word != self.register => {
                self.tail = Tail::Stale(self.word);
                return Does::Note(self.register);
            }
            _ => self.tail = Tail::Word,
        }
        Does::Believe
    }

    /// Sends what is there, or finds that there is something.
    fn send(&mut self, seen: u8) -> Result<Does, String> {
        if seen > self.posted || seen < self.head {
            return Err(format!("the tail is {seen}: {self:?}"));
        }
        if !self.awake {
            let sleeps = seen == self.head && !self.rung;
            return Ok(if sleeps { Does::Sleep } else { Does::Rest });
        }
        self.head = seen;
        Ok(Does::Rest)
    }

    /// The switch makes its next step.
    fn step(mut self, fault: Option<Fault>) -> Next {
        let has = |one| fault == Some(one);
        self.does = match self.does {
            Does::Sleep => Does::Sleep,
            Does::Rest => {
                (self.awake, self.rung) = (true, false);
                Does::Look
            }
            Does::Ask => {
                (self.kick_wanted, self.asked, self.awake) = (true, true, false);
                self.rung = false;
                Does::Look
            }
            Does::Look => self.look(),
            Does::Believe => {
                match fault {
                    Some(Fault::WaivedFirst) => (self.kick_wanted, self.asked) = (false, false),
                    Some(Fault::FollowedFirst | Fault::NotNoted) => {}
                    _ => self.noted = self.tail,
                }
                Does::Follow
            }
            Does::Follow => {
                if self.on || has(Fault::FollowsWhenOff) {
                    self.register = self.word;
                }
                Does::Note(self.word)
            }
            Does::Send(seen) => self.send(seen)?,
            Does::Leave(_) | Does::TakeWord | Does::Note(_) | Does::Waive(_) | Does::Wish(_) => {
                self.settle(fault)
            }
            _ => self.begin(fault),
        };
        Ok(self)
    }

    /// The tail is known, or the CSB is left.
    fn settle(&mut self, fault: Option<Fault>) -> Does {
        let has = |one| fault == Some(one);
        match self.does {
            Does::Leave(believed) => {
                if has(Fault::LeftFirst) {
                    self.noted = Tail::Register;
                }
                if !has(Fault::WishAfterNote) {
                    (self.kick_wanted, self.asked) = (true, true);
                }
                let takes = believed && !has(Fault::WordForgotten);
                if takes { Does::TakeWord } else { Does::Note(self.register) }
            }
            Does::TakeWord => {
                self.register = self.register.max(self.word);
                Does::Note(self.register)
            }
            Does::Note(seen) => {
                if !has(Fault::NotNoted) {
                    self.noted = self.tail;
                }
                match self.tail == Tail::Word {
                    true if self.asked && self.awake => Does::Waive(seen),
                    false if !self.asked => Does::Wish(seen),
                    _ => Does::Send(seen),
                }
            }
            Does::Waive(seen) => {
                (self.kick_wanted, self.asked) = (false, false);
                Does::Send(seen)
            }
            Does::Wish(seen) => {
                (self.kick_wanted, self.asked) = (true, true);
                Does::Send(seen)
            }
            other => other,
        }
    }

    /// The ring is stopped, or somebody goes on.
    fn begin(&mut self, fault: Option<Fault>) -> Does {
        let has = |one| fault == Some(one);
        match self.does {
            Does::Stop => {
                self.stopped = true;
                Does::StopWish
            }
            Does::StopWish => {
                (self.tail, self.asked, self.kick_wanted) = (Tail::Register, true, true);
                Does::StopNote
            }
            Does::StopNote => {
                if !has(Fault::StopNotNoted) {
                    self.noted = Tail::Register;
                }
                self.drives = Drives::Litter;
                Does::Rest
            }
            Does::Adopt => {
                self.tail = match fault {
                    Some(Fault::AllIsBelieved) => Tail::Word,
                    Some(Fault::NothingIsBelieved) => Tail::Register,
                    _ if self.stopped && !has(Fault::StoppedIsBelieved) => Tail::Register,
                    _ => self.noted,
                };
                self.noted = self.tail;
                Does::AdoptWish
            }
            Does::AdoptWish => {
                self.kick_wanted |= !has(Fault::WishNotStated);
                self.asked = true;
                Does::Rest
            }
            other => other,
        }
    }

    fn adopts(&self) -> bool {
        matches!(self.does, Does::Adopt | Does::AdoptWish)
    }

    /// The states that may come next.
    fn next(&self, fault: Option<Fault>) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        if self.does != Does::Sleep {
            all.push(self.clone().step(fault)?);
        }
        if self.does == Does::Rest {
            all.push(Self { does: Does::Ask, ..self.clone() });
        }
        // A kick, whatever the worker is about to do.
        if !self.adopts() && !self.kicks.is_empty() {
            let mut next = self.clone();
            next.register = next.kicks.pop_front().unwrap_or_default();
            next.rung = !next.awake;
            if next.does == Does::Sleep {
                next.does = Does::Rest;
            }
            all.push(next);
        }
        if !self.adopts() && self.deaths > 0 {
            all.push(Self { does: Does::Adopt, deaths: self.deaths - 1, ..self.clone() });
        }
        all.extend(self.drive());
        Ok(all)
    }

    /// What the driver may do.
    fn drive(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut may = |drives: Drives, does: &dyn Fn(&mut Self)| {
            let mut next = Self { drives, ..self.clone() };
            does(&mut next);
            all.push(next);
        };
        let flushed = self.kicks.is_empty() && !self.adopts();
        match self.drives {
            Drives::Idle => {
                if self.posted < FRAMES {
                    let then = if self.on { Drives::Publish } else { Drives::Kick };
                    may(then, &|s| s.posted += 1);
                }
                // It reads a register before, since writes are posted; and the device has seen it
                // off, if it was.
                let seen = ![self.tail, self.noted].contains(&Tail::Word);
                if self.turns > 0 && flushed && seen && !self.on {
                    may(Drives::TurnOn, &|s| (s.word, s.turns) = (s.posted, s.turns - 1));
                } else if self.turns > 0 && flushed && self.on {
                    may(Drives::Idle, &|s| (s.on, s.turns) = (false, s.turns - 1));
                }
                if self.stops > 0 {
                    may(Drives::Quiet, &|s| {
                        s.kicks.push_back(s.posted);
                        s.stops -= 1;
                    });
                }
            }
            Drives::Publish => may(Drives::Wanted, &|s| s.word = s.posted),
            Drives::Wanted if self.kick_wanted => may(Drives::Kick, &|_| ()),
            Drives::Wanted => may(Drives::Idle, &|_| ()),
            Drives::Kick => may(Drives::Idle, &|s| s.kicks.push_back(s.posted)),
            Drives::TurnOn => may(Drives::Idle, &|s| s.on = true),
            Drives::Quiet if flushed => may(Drives::Stopping, &|_| ()),
            // It waits for this access, which is made again if the switch dies of it. If the
            // register says already what it is to say, that does nothing.
            Drives::Stopping if matches!(self.does, Does::Rest | Does::Sleep) => {
                match self.stopped {
                    true => may(Drives::Litter, &|_| ()),
                    false => may(Drives::Stopping, &|s| s.does = Does::Stop),
                }
            }
            Drives::Litter => may(Drives::Start, &|s| s.word = s.posted + 2),
            Drives::Start if matches!(self.does, Does::Rest | Does::Sleep) => {
                may(Drives::Idle, &|s| (s.stopped, s.does) = (false, Does::Rest));
            }
            Drives::Quiet | Drives::Stopping | Drives::Start => {}
        }
        all
    }

    /// Nobody will do anything any more unless it wants to.
    fn is_over(&self) -> bool {
        let quiet = self.does == Does::Sleep && self.kicks.is_empty();
        quiet && self.drives == Drives::Idle && self.posted == FRAMES
    }
}

/// How many states there are; or what is wrong with one.
fn explore(fault: Option<Fault>) -> Result<usize, String> {
    let mut seen = HashSet::from([State::new()]);
    let mut left: Vec<_> = seen.iter().cloned().collect();
    while let Some(state) = left.pop() {
        if state.is_over() && state.head != state.posted {
            return Err(format!("frames wait for nobody: {state:?}"));
        }
        for state in state.next(fault)? {
            if seen.insert(state.clone()) {
                left.push(state);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_of_deaths_loses_a_tail_or_believes_a_stale_one() {
    let states = explore(None).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{states} states");
    assert!(states > 10_000, "it explores next to nothing: {states} states");
}

#[test]
fn each_step_that_is_missing_is_caught() {
    use Fault::*;
    let all = [
        FollowsWhenOff,
        FollowedFirst,
        NotNoted,
        WaivedFirst,
        StopNotNoted,
        StoppedIsBelieved,
        LeftFirst,
        WishAfterNote,
        WordForgotten,
        AllIsBelieved,
        WishNotStated,
        NothingIsBelieved,
    ];
    for fault in all {
        match explore(Some(fault)) {
            Err(wrong) => println!("{fault:?}: {wrong}"),
            Ok(states) => panic!("{fault:?}: {states} states are right"),
        }
    }
}
