//! The protocol by which a ring outlives its process (`chip::held`), as a model: every interleaving
//! of a device that makes one store at a time and may die before each, of the one that goes on
//! after it, and of a driver. Each step of it taken away is caught.
//!
//! Reception, descriptors whose write-back overwrites the address:
//!
//! ```text
//! for each descriptor of a chunk: keep the address, mark;  state the intent a..b
//! for each: overwrite the address;  write back (done)
//! head := b;  close the intent;  tell the sender
//! ```
//!
//! Transmission: send the frames; mark; state the intent; done; head; close. A death during
//! adoption is not in here: it gives a reset chip.
//!
//! Two things are not needed for that, and no test asks for them: that transmission closes its
//! intent, and that adoption takes back marks of a chunk whose intent was not stated yet.

use std::collections::{HashSet, VecDeque};

/// Descriptors of the ring; its driver leaves one out.
const SIZE: usize = 4;
/// Frames in all, and most of a batch.
const FRAMES: u8 = 9;
const BATCH: usize = 3;
const DEATHS: u8 = 2;

/// A descriptor: which frame is there, and its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Desc {
    frame: Option<u8>,
    /// Of a buffer: its address is not there any more.
    overwritten: bool,
    mark: bool,
    done: bool,
}

/// One store of the device, or one frame that leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Store {
    Keep(usize),
    Mark(usize),
    Intent(usize, usize),
    Overwrite(usize),
    WriteBack(usize, u8),
    Send(u8),
    Done(usize),
    Head(usize),
    Close,
    /// The sender of so many frames is told: it has them no more.
    Tell(u8),
    /// Of the one that goes on.
    Undo(usize),
    Empty(usize),
}

/// What is wrong with the device, or with the one that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NoMark,
    NoIntent,
    IntentFirst,
    NoClose,
    HeadFirst,
    ToldFirst,
    NoUndo,
    NotKept,
    ForgetsIntent,
    AllWereDone,
    NoneWasDone,
    DoneWithoutMark,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    // What outlives the process.
    ring: [Desc; SIZE],
    kept: [bool; SIZE],
    head: usize,
    intent: Option<(usize, usize)>,
    tail: usize,
    /// What the device is about to do.
    program: VecDeque<Store>,
    /// It goes on from one that died.
    adopts: bool,
    deaths: u8,
    /// The driver's next descriptor, and those that it has not given back.
    next: usize,
    taken: usize,
    /// Of frames to receive: those whose sender was told. To send: those that the driver has
    /// posted.
    passed: u8,
    /// The number that is expected at the far end, and the steps back that deaths allow.
    expected: u8,
    steps: u8,
}

fn after(at: usize, n: usize) -> usize {
    (at + n) % SIZE
}

fn distance(from: usize, to: usize) -> usize {
    (to + SIZE - from) % SIZE
}

fn between(a: usize, b: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..distance(a, b)).map(move |n| after(a, n))
}

/// What is wrong with a state.
type Found = Result<(), String>;

impl State {
    fn new(receives: bool) -> Self {
        Self {
            ring: [Desc::default(); SIZE],
            kept: [false; SIZE],
            head: 0,
            intent: None,
            tail: if receives { SIZE - 1 } else { 0 },
            program: VecDeque::new(),
            adopts: false,
            deaths: DEATHS,
            next: 0,
            taken: 0,
            passed: 0,
            expected: 0,
            steps: 0,
        }
    }

    /// A frame comes to the far end.
    fn arrives(&mut self, frame: u8) -> Found {
        if frame != self.expected {
            let back = frame < self.expected && self.steps > 0;
            if !back {
                return Err(format!("frame {frame} instead of {}", self.expected));
            }
            self.steps -= 1;
        }
        self.expected = frame + 1;
        Ok(())
    }

    fn store(&mut self, store: Store) -> Found {
        match store {
            Store::Keep(i) => self.kept[i] = !self.ring[i].overwritten,
            Store::Mark(i) => (self.ring[i].mark, self.ring[i].done) = (true, false),
            Store::Intent(a, b) => self.intent = Some((a, b)),
            Store::Overwrite(i) if self.ring[i].overwritten => {
                return Err(format!("descriptor {i} has no address"));
            }
            Store::Overwrite(i) => self.ring[i].overwritten = true,
            Store::WriteBack(i, frame) => {
                let frame = Some(frame);
                self.ring[i] = Desc { frame, overwritten: true, mark: false, done: true };
            }
            Store::Send(frame) => return self.arrives(frame),
            Store::Done(i) => (self.ring[i].mark, self.ring[i].done) = (false, true),
            Store::Head(at) => self.head = at,
            Store::Close => self.intent = None,
            Store::Tell(n) => self.passed += n,
            Store::Undo(i) => self.ring[i].overwritten = !self.kept[i],
            Store::Empty(i) => (self.ring[i].mark, self.ring[i].done) = (false, false),
        }
        Ok(())
    }

    /// What the device does for a batch of `n` frames.
    fn batch(&self, receives: bool, n: usize, fault: Option<Fault>) -> VecDeque<Store> {
        let (a, b) = (self.head, after(self.head, n));
        let has = |one| fault == Some(one);
        let frames = (self.passed..).zip(between(a, b)).collect::<Vec<_>>();
        let mut all = Vec::new();
        let tell = Store::Tell(u8::try_from(n).unwrap());
        if has(Fault::ToldFirst) && receives {
            all.push(tell);
        }
        if !receives {
            all.extend(between(a, b).filter_map(|i| self.ring[i].frame).map(Store::Send));
        }
        if has(Fault::HeadFirst) {
            all.push(Store::Head(b));
        }
        let intent = (!has(Fault::NoIntent)).then_some(Store::Intent(a, b));
        let mut marks = Vec::new();
        for i in between(a, b) {
            if receives && !has(Fault::NotKept) {
                marks.push(Store::Keep(i));
            }
            if !has(Fault::NoMark) {
                marks.push(Store::Mark(i));
            }
        }
        if has(Fault::IntentFirst) {
            all.extend(intent.into_iter().chain(marks));
        } else {
            all.extend(marks.into_iter().chain(intent));
        }
        let hand_over = |(frame, i): &(u8, usize)| match receives {
            true => vec![Store::Overwrite(*i), Store::WriteBack(*i, *frame)],
            false => vec![Store::Done(*i)],
        };
        all.extend(frames.iter().flat_map(hand_over));
        if !has(Fault::HeadFirst) {
            all.push(Store::Head(b));
        }
        if !has(Fault::NoClose) {
            all.push(Store::Close);
        }
        if receives && !has(Fault::ToldFirst) {
            all.push(tell);
        }
        all.into()
    }

    /// What the next process does first.
    fn adoption(&self, receives: bool, fault: Option<Fault>) -> VecDeque<Store> {
        let has = |one| fault == Some(one);
        let mut all = Vec::new();
        let marked = |i: &usize| self.ring[*i].mark && !self.ring[*i].done;
        let intent = self.intent.filter(|_| !has(Fault::ForgetsIntent));
        let mut head = self.head;
        match intent {
            Some((a, b)) if receives => {
                let first = between(a, b).find(marked).unwrap_or(b);
                head = match fault {
                    Some(Fault::AllWereDone) => b,
                    Some(Fault::NoneWasDone) => a,
                    _ => first,
                };
                for i in between(first, b) {
                    if !has(Fault::NoUndo) {
                        all.push(Store::Undo(i));
                    }
                    all.push(Store::Empty(i));
                }
            }
            Some((a, b)) => {
                let all_done = has(Fault::DoneWithoutMark) || has(Fault::AllWereDone);
                let some = between(a, b).filter(|i| all_done || marked(i));
                if !has(Fault::NoneWasDone) {
                    all.extend(some.map(Store::Done));
                }
                head = b;
            }
            None => {}
        }
        if receives {
            let next = (0..SIZE).map(|n| after(head, n));
            let stale = next.take_while(|i| marked(i) && !all.contains(&Store::Empty(*i)));
            let stale = stale.collect::<Vec<_>>();
            all.extend(stale.into_iter().map(Store::Empty));
        }
        all.extend([Store::Head(head), Store::Close]);
        all.into()
    }

    /// The states that may come next.
    fn next(&self, receives: bool, fault: Option<Fault>) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        // The device: a store, a batch, or death.
        if let Some(store) = self.program.front().copied() {
            let mut next = self.clone();
            next.program.pop_front();
            next.adopts &= !next.program.is_empty();
            next.store(store)?;
            all.push(next);
        } else {
            let left = if receives { FRAMES - self.passed } else { u8::MAX };
            let most = distance(self.head, self.tail).min(BATCH).min(left.into());
            for n in 1..=most {
                all.push(Self { program: self.batch(receives, n, fault), ..self.clone() });
            }
        }
        if !self.program.is_empty() && !self.adopts && self.deaths > 0 {
            let mut next = self.clone();
            (next.deaths, next.steps) = (self.deaths - 1, self.steps + 1);
            (next.program, next.adopts) = (self.adoption(receives, fault), true);
            all.push(next);
        }
        all.extend(if receives { self.driver_receives()? } else { self.driver_sends() });
        Ok(all)
    }

    /// Takes a frame, or gives a buffer back.
    fn driver_receives(&self) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        if self.taken + 1 < SIZE && self.ring[self.next].done {
            let mut next = self.clone();
            next.arrives(self.ring[self.next].frame.expect("a frame"))?;
            next.ring[self.next] = Desc::default();
            (next.next, next.taken) = (after(self.next, 1), self.taken + 1);
            all.push(next);
        }
        if self.taken > 0 {
            let mut next = self.clone();
            (next.tail, next.taken) = (after(self.tail, 1), self.taken - 1);
            all.push(next);
        }
        Ok(all)
    }

    /// Posts a frame, or takes back what was sent.
    fn driver_sends(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.passed < FRAMES && after(self.tail, 1) != self.next {
            let mut next = self.clone();
            next.ring[self.tail] = Desc { frame: Some(self.passed), ..Desc::default() };
            (next.tail, next.passed) = (after(self.tail, 1), self.passed + 1);
            all.push(next);
        }
        if self.next != self.tail && self.ring[self.next].done {
            all.push(Self { next: after(self.next, 1), ..self.clone() });
        }
        all
    }

    /// Nothing is left to do.
    fn is_over(&self, receives: bool) -> bool {
        let empty = if receives { self.taken == 0 } else { self.next == self.tail };
        empty && (self.passed, self.expected) == (FRAMES, FRAMES)
    }
}

/// How many states there are; or what is wrong with one.
fn explore(receives: bool, fault: Option<Fault>) -> Result<usize, String> {
    let mut seen = HashSet::from([State::new(receives)]);
    let mut left: Vec<_> = seen.iter().cloned().collect();
    while let Some(state) = left.pop() {
        let next = state.next(receives, fault)?;
        if next.is_empty() && !state.is_over(receives) {
            return Err(format!("it stands still: {state:?}"));
        }
        for state in next {
            if seen.insert(state.clone()) {
                left.push(state);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_of_deaths_loses_a_frame_or_a_descriptor() {
    for receives in [true, false] {
        let states = explore(receives, None).unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("receives: {receives}: {states} states");
        assert!(states > 10_000, "it explores next to nothing: {states} states");
    }
}

#[test]
fn each_step_that_is_missing_is_caught() {
    use Fault::*;
    let of_both = [NoMark, NoIntent, HeadFirst, ForgetsIntent];
    let of_one = [
        (true, &[NoClose, IntentFirst, ToldFirst, NoUndo, NotKept, AllWereDone, NoneWasDone][..]),
        (false, &[IntentFirst, DoneWithoutMark, NoneWasDone][..]),
    ];
    for (receives, faults) in of_one {
        for fault in of_both.iter().chain(faults) {
            match explore(receives, Some(*fault)) {
                Err(wrong) => println!("receives: {receives}: {fault:?}: {wrong}"),
                Ok(states) => panic!("receives: {receives}: {fault:?}: {states} states are right"),
            }
        }
    }
}
