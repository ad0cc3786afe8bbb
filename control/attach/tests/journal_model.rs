//! The journal of a connection (`journal.rs`, `connection.rs`), as a model: every interleaving of a
//! client that asks and writes, and of switches that die before any of their steps, those of
//! recovery too. Each step of it taken away is caught.
//!
//! Not in here: a reply that carries a descriptor. It goes with the first byte, so it is as another
//! phase that counts once a byte went.

use std::collections::HashSet;

/// Requests: each is a read, which wants a reply, or a write that wants none.
const REQUESTS: usize = 3;
const DEATHS: u8 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Answered,
}

/// What outlives a switch. Places and lengths are counted in requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Kept {
    /// The first request that is in the socket, the first that has not arrived, and how far behind
    /// the first a peek goes on.
    taken: usize,
    arrived: usize,
    place: usize,
    /// The memory: replies, and how many were sent.
    replies: Vec<usize>,
    sent: usize,
    phase: Phase,
    peeked: usize,
    to_take: usize,
    shown: usize,
    done: usize,
}

impl Kept {
    /// Requests in the socket that were carried out.
    fn carried_out(&self) -> usize {
        self.done.saturating_sub(self.shown.saturating_sub(self.place))
    }

    /// So many requests are taken from the socket.
    fn take(&mut self, n: usize) {
        self.taken += n;
        self.place = self.place.saturating_sub(n);
    }
}

/// What a switch does next, and what it knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Recover,
    /// The rest of the replies is sent, then so many requests are taken.
    Deliver,
    TakeRest,
    NoteRest,
    /// Nothing: it may look.
    Idle,
    Peek,
    Show,
    /// The next request is carried out, or all are finished.
    Hand,
    Note,
    Begin,
    Post,
    SayAnswered,
    Send,
    NoteSent,
    Take,
    ForgetDone,
    SayTaken,
}

/// A step that is missing, or comes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NotBegun,
    SentStays,
    AnsweredFirst,
    NotAnswered,
    NotedLater,
    NotTaken,
    TakenFirst,
    NotShown,
    NotNoted,
    DoneStays,
    NotNotedAnew,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    kept: Kept,
    doing: Doing,
    /// What this switch has peeked, handed out, and was told to be carried out already.
    end: usize,
    start: usize,
    done: usize,
    replies: Vec<usize>,
    /// What was handed out is being answered.
    answers: bool,
    deaths: u8,
    /// Replies that the client has got, and the last request that was carried out.
    got: usize,
    last: Option<usize>,
}

struct Model {
    /// Whether each request is a read.
    reads: [bool; REQUESTS],
    /// Replies are sent before the requests are taken, as those with descriptors are.
    at_once: bool,
    fault: Option<Fault>,
}

impl Model {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn start(&self) -> State {
        State {
            kept: Kept::default(),
            doing: Doing::Idle,
            end: 0,
            start: 0,
            done: 0,
            replies: Vec::new(),
            answers: false,
            deaths: DEATHS,
            got: 0,
            last: None,
        }
    }

    /// The states that may come next.
    fn next(&self, state: &State) -> Result<Vec<State>, String> {
        let mut all = Vec::new();
        if state.kept.arrived < REQUESTS {
            let mut next = state.clone();
            next.kept.arrived += 1;
            all.push(next);
        }
        if state.deaths > 0 {
            all.push(State {
                doing: Doing::Recover,
                end: 0,
                start: 0,
                done: 0,
                replies: Vec::new(),
                answers: false,
                deaths: state.deaths - 1,
                ..state.clone()
            });
        }
        all.extend(self.works(state)?);
        Ok(all)
    }

    fn works(&self, state: &State) -> Result<Vec<State>, String> {
        match state.doing {
            Doing::Deliver => self.deliver(state, Doing::TakeRest),
            Doing::Recover | Doing::TakeRest | Doing::NoteRest => self.recovers(state.clone()),
            Doing::Idle if state.kept.arrived == state.kept.taken => Ok(Vec::new()),
            Doing::Hand => self.hand(state),
            Doing::Idle | Doing::Peek | Doing::Show | Doing::Note => Ok(self.looks(state.clone())),
            Doing::NoteSent => {
                let mut s = state.clone();
                s.kept.sent += 1;
                s.doing = Doing::Send;
                Ok(vec![s])
            }
            Doing::Send => {
                let taken = !self.at_once || self.has(Fault::TakenFirst);
                self.deliver(state, if taken { Doing::SayTaken } else { Doing::Take })
            }
            _ => Ok(self.finishes(state.clone())),
        }
    }

    /// What it does first.
    fn recovers(&self, mut s: State) -> Result<Vec<State>, String> {
        let kept = &mut s.kept;
        s.doing = match s.doing {
            Doing::Recover => {
                if kept.phase == Phase::Idle {
                    s.done = kept.carried_out();
                    if !self.has(Fault::NotNotedAnew) {
                        (kept.shown, kept.done) = (0, s.done);
                    }
                    Doing::Idle
                } else {
                    Doing::Deliver
                }
            }
            Doing::TakeRest => {
                let gone = kept.peeked.checked_sub(kept.place);
                let left = gone.and_then(|gone| kept.to_take.checked_sub(gone));
                let left = left.ok_or_else(|| format!("nobody knows: {kept:?}"))?;
                kept.take(left);
                Doing::NoteRest
            }
            _ => {
                s.done = kept.carried_out();
                (kept.shown, kept.done) = (0, s.done);
                Doing::SayTaken
            }
        };
        Ok(vec![s])
    }

    /// It looks for requests.
    fn looks(&self, mut s: State) -> Vec<State> {
        let kept = &mut s.kept;
        s.doing = match s.doing {
            Doing::Idle => {
                kept.place = 0;
                Doing::Peek
            }
            Doing::Peek => {
                s.end = kept.arrived - kept.taken;
                kept.place = s.end;
                Doing::Show
            }
            Doing::Show => {
                if !self.has(Fault::NotShown) {
                    kept.shown = s.end;
                }
                Doing::Hand
            }
            _ => {
                if !self.has(Fault::NotNoted) {
                    kept.done = s.start.max(s.done);
                }
                Doing::Hand
            }
        };
        vec![s]
    }

    /// It answers what it has carried out, and takes it.
    fn finishes(&self, mut s: State) -> Vec<State> {
        let kept = &mut s.kept;
        s.doing = match s.doing {
            Doing::Begin => {
                if !self.has(Fault::NotBegun) {
                    (kept.peeked, kept.to_take) = (s.end, s.start);
                }
                if self.has(Fault::AnsweredFirst) {
                    kept.phase = Phase::Answered;
                }
                if self.has(Fault::TakenFirst) { Doing::Take } else { Doing::Post }
            }
            Doing::Post => {
                kept.replies = std::mem::take(&mut s.replies);
                if !self.has(Fault::SentStays) {
                    kept.sent = 0;
                }
                Doing::SayAnswered
            }
            Doing::SayAnswered => {
                if !self.has(Fault::NotAnswered) {
                    kept.phase = Phase::Answered;
                }
                s.answers = true;
                let send = self.at_once || self.has(Fault::TakenFirst);
                if send { Doing::Send } else { Doing::Take }
            }
            Doing::Take => {
                kept.take(s.start);
                Doing::ForgetDone
            }
            Doing::ForgetDone => {
                s.done = s.done.saturating_sub(s.start);
                if !self.has(Fault::DoneStays) {
                    (kept.shown, kept.done) = (0, s.done);
                }
                match (s.answers, self.at_once) {
                    _ if !s.replies.is_empty() => Doing::Post,
                    (false, _) => {
                        (s.start, s.end) = (0, 0);
                        Doing::Idle
                    }
                    (true, true) => Doing::SayTaken,
                    (true, false) => Doing::Send,
                }
            }
            _ => {
                if !self.has(Fault::NotTaken) {
                    kept.phase = Phase::Idle;
                }
                (s.start, s.end, s.answers) = (0, 0, false);
                Doing::Idle
            }
        };
        vec![s]
    }

    /// The next reply goes to the client, and that is noted, by one system call. `then`: what comes
    /// when all were sent.
    fn deliver(&self, state: &State, then: Doing) -> Result<Vec<State>, String> {
        let mut s = state.clone();
        let Some(reply) = s.kept.replies.get(s.kept.sent).copied() else {
            s.doing = then;
            return Ok(vec![s]);
        };
        let expected = (s.got..REQUESTS).find(|n| self.reads[*n]);
        if expected != Some(reply) {
            return Err(format!("a reply to {reply}, and not to {expected:?}"));
        }
        s.got = reply + 1;
        if self.has(Fault::NotedLater) && s.doing == Doing::Send {
            s.doing = Doing::NoteSent;
        } else {
            s.kept.sent += 1;
        }
        Ok(vec![s])
    }

    /// The next request is carried out, if there is one; or what was is finished.
    fn hand(&self, state: &State) -> Result<Vec<State>, String> {
        let mut all = Vec::new();
        if state.start < state.end {
            let mut s = state.clone();
            let n = s.kept.taken + s.start;
            if self.reads[n] {
                s.replies.push(n);
            } else if s.start >= s.done {
                if s.last.is_some_and(|last| last > n) {
                    return Err(format!("write {n} after write {:?}", s.last));
                }
                if (s.last.map_or(0, |last| last + 1)..n).any(|n| !self.reads[n]) {
                    return Err(format!("write {n} after {:?}: one is lost", s.last));
                }
                s.last = Some(n);
            }
            (s.start, s.doing) = (s.start + 1, Doing::Note);
            all.push(s);
        }
        if state.start > 0 {
            let mut s = state.clone();
            s.doing = if s.replies.is_empty() { Doing::Take } else { Doing::Begin };
            all.push(s);
        }
        Ok(all)
    }

    fn is_over(&self, state: &State) -> bool {
        let replied = (state.got..REQUESTS).all(|n| !self.reads[n]);
        let last = (0..REQUESTS).rev().find(|n| !self.reads[*n]);
        state.kept.taken == REQUESTS && replied && state.last == last
    }
}

/// How many states there are; or what is wrong with one.
fn explore(
    (reads, at_once): ([bool; REQUESTS], bool),
    fault: Option<Fault>,
) -> Result<usize, String> {
    let model = Model { reads, at_once, fault };
    let mut seen = HashSet::from([model.start()]);
    let mut left = vec![model.start()];
    while let Some(state) = left.pop() {
        let next = model.next(&state)?;
        if next.is_empty() && !model.is_over(&state) {
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

/// All ways to mix reads and writes, and both orders in which they are answered and taken.
fn mixes() -> impl Iterator<Item = ([bool; REQUESTS], bool)> {
    let mixes = (0..1 << REQUESTS).map(|mix| std::array::from_fn(|n| mix >> n & 1 != 0));
    mixes.flat_map(|reads| [(reads, false), (reads, true)])
}

#[test]
fn each_read_is_answered_once_and_no_write_follows_a_newer_one() {
    let count = |mix| explore(mix, None).unwrap_or_else(|wrong| panic!("{mix:?}: {wrong}"));
    let states: usize = mixes().map(count).sum();
    println!("{states} states");
    assert!(states > 10_000, "it explores next to nothing: {states} states");
}

#[test]
fn each_step_that_is_missing_is_caught() {
    use Fault::*;
    let answering = [NotBegun, SentStays, AnsweredFirst, NotAnswered, NotedLater];
    let taking = [NotTaken, TakenFirst, NotShown, NotNoted, DoneStays, NotNotedAnew];
    for fault in answering.into_iter().chain(taking) {
        for at_once in [false, true] {
            let mixes = mixes().filter(|mix| mix.1 == at_once);
            let wrong = mixes.map(|mix| explore(mix, Some(fault))).find_map(Result::err);
            let wrong = wrong.unwrap_or_else(|| panic!("{fault:?}, {at_once}: all is right"));
            println!("{fault:?}: {wrong}");
        }
    }
}
