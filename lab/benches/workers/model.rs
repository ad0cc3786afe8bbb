//! What more workers would do than this machine has cores: a simulation with measured costs.
//!
//! A worker pulls a batch from one of its lanes, or in a joint breath from several, and delivers
//! it, queue after queue. A queue's lock is held meanwhile; who comes later waits. What another
//! worker wrote last travels first: once, and one after the other, the lines of the lock and of the
//! guest's index; and for each frame, many at a time, its parts of lines of the ring, and the
//! buffer's two. Nothing else is shared. Left out: that memory and the last cache have an end, that
//! cores slow each other down, and that guests' cores take lines away.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lines for a visit that nobody can ask for in time: the lock's, and the guest's index. Those of a
/// frame: a used entry of 8 bytes, a descriptor of 16, a head of 2, and two of its buffer.
const LINES: (f64, f64) = (2.0, 2.0 + 1.0 / 8.0 + 1.0 / 4.0 + 1.0 / 32.0);
/// The part of a frame's time that is spent under the receiver's lock: push of pull and push.
const PUSH: f64 = 0.45;
/// Simulated time, ns.
const LONG: f64 = 20e6;

/// What was measured.
#[derive(Clone, Copy)]
pub struct Costs {
    /// A frame by one worker, which has all in its cache; ns.
    pub frame: f64,
    /// A line that was another's: alone, and one of many that are written to; ns.
    pub line: (f64, f64),
}

/// Who sends where.
pub struct Traffic {
    pub ports: usize,
    pub queues: usize,
    pub batch: usize,
    /// Lanes that have a breath together.
    pub joint: usize,
    /// The receiver of a port's n-th frame, and the queue there.
    pub to: Box<dyn Fn(usize, usize) -> (usize, usize)>,
    pub sends: fn(usize) -> bool,
}

/// How it went.
#[derive(Clone, Copy, Default)]
pub struct Outcome {
    /// Frames a second.
    pub rate: f64,
    /// Parts of the workers' time: waiting for locks, and for lines.
    pub waits: f64,
    pub lines: f64,
}

struct Worker {
    now: f64,
    lanes: Vec<(usize, usize)>,
    turn: usize,
    /// Frames that it has, by queue.
    has: Vec<((usize, usize), usize)>,
}

/// So many workers at it.
pub fn simulate(traffic: &Traffic, costs: Costs, count: usize) -> Outcome {
    let lanes = (0..traffic.ports).filter(|port| (traffic.sends)(*port));
    let lanes: Vec<_> = lanes.flat_map(|p| (0..traffic.queues).map(move |q| (p, q))).collect();
    let mut workers: Vec<_> = (0..count)
        .map(|worker| {
            let own = lanes.iter().filter(|(p, q)| (p + q) % count == worker).copied();
            Worker { now: 0.0, lanes: own.collect(), turn: 0, has: Vec::new() }
        })
        .collect();
    // When each queue is free, and who had it.
    let mut queues = vec![(0.0, usize::MAX); traffic.ports * traffic.queues];
    let (mut frames, mut waited, mut moved) = (0, 0.0, 0.0);
    loop {
        let all = workers.iter().enumerate().filter(|(_, w)| !w.lanes.is_empty());
        let Some((n, _)) = all.min_by(|a, b| a.1.now.total_cmp(&b.1.now)) else { break };
        let worker = &mut workers[n];
        if worker.now > LONG {
            break;
        }
        let Some(((port, queue), count)) = worker.has.pop() else {
            for _ in 0..traffic.joint.min(worker.lanes.len()) {
                let (port, _) = worker.lanes[worker.turn % worker.lanes.len()];
                worker.turn += 1;
                for frame in 0..traffic.batch {
                    let to = (traffic.to)(port, frame);
                    match worker.has.iter_mut().find(|(queue, _)| *queue == to) {
                        Some((_, count)) => *count += 1,
                        None => worker.has.push((to, 1)),
                    }
                }
                worker.now += traffic.batch as f64 * costs.frame * (1.0 - PUSH);
            }
            continue;
        };
        let (free, last) = &mut queues[port * traffic.queues + queue];
        waited += (*free - worker.now).max(0.0);
        let (alone, many) = costs.line;
        let all = LINES.0 * alone + LINES.1 * count as f64 * many;
        let lines = if *last == n { 0.0 } else { all };
        moved += lines;
        worker.now = worker.now.max(*free) + lines + count as f64 * costs.frame * PUSH;
        (*free, *last) = (worker.now, n);
        frames += count;
    }
    let time = LONG * workers.iter().filter(|w| !w.lanes.is_empty()).count() as f64;
    Outcome { rate: frames as f64 / LONG * 1e9, waits: waited / time, lines: moved / time }
}

/// A line's cost, alone and one of many: see [`Costs::line`].
pub fn line_costs(pin: fn(usize)) -> (f64, f64) {
    let alone = line_cost(pin, 0);
    let many = line_cost(pin, 256);
    // In a turn its own line travels twice: to be read, and to be written to.
    (alone / 2.0, (many - alone).max(0.0) / 256.0)
}

/// Two cores in turn fill so many lines; ns for a turn, whose own line is handed over as well.
fn line_cost(pin: fn(usize), count: usize) -> f64 {
    const TURNS: u64 = 2000;
    #[repr(align(64))]
    #[derive(Default)]
    struct Line([AtomicU64; 8]);
    let lines: Vec<_> = (0..count).map(|_| Line::default()).collect();
    let turn = Line::default();
    let take_turns = |me: u64| {
        pin(usize::try_from(me).expect("0 or 1"));
        for n in (me..2 * TURNS).step_by(2) {
            while turn.0[0].load(Ordering::Acquire) != n {
                std::hint::spin_loop();
            }
            let words = lines.iter().flat_map(|line| &line.0);
            words.for_each(|word| word.store(n, Ordering::Relaxed));
            turn.0[0].store(n + 1, Ordering::Release);
        }
    };
    let mut all: Vec<_> = (0..7)
        .map(|_| {
            turn.0[0].store(0, Ordering::Release);
            let start = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| take_turns(1));
                scope.spawn(|| take_turns(0));
            });
            start.elapsed().as_secs_f64() * 1e9 / (2 * TURNS) as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
