//! Cache lines that two workers write to, for each frame or for each batch: counted, one machine
//! instruction at a time.
//!
//! A VM with two pairs of queues sends; each pair is a worker's. What the workers share is written
//! to as often for a batch of 64 frames as for one of 16. The control is a VM that both send to:
//! its rings' lines are written to by both for each frame, which shows that it would be seen.

use std::collections::HashMap;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};
use vmlan_attach::vhost_user::{Config, VhostUser, attach};
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_stepped::{Stopped, Watcher, asked, watch, watch_me, watched};
use vmlan_switch::{Entry, Forwarder, Options, PortId, Switch, Table};
use vmlan_tests::in_process_lan::FULL_WAIT;
use vmlan_tests::numbered::{frame, mac, settles};
use vmlan_tests::virtio_guest::VirtioGuest;

const LINE: u64 = 64;

/// How often each line was written to, by worker.
struct Writers {
    factory: InstructionInfoFactory,
    workers: Vec<HashMap<u64, u32>>,
}

impl Writers {
    /// The instruction that comes next is run.
    fn note(&mut self, process: &Stopped) {
        let registers = process.registers();
        let mut code = [0; 16];
        let len = process.read(registers.rip, &mut code);
        let mut decoder = Decoder::with_ip(64, &code[..len], registers.rip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let value = |register: Register| match register.full_register() {
            Register::RAX => registers.rax,
            Register::RBX => registers.rbx,
            Register::RCX => registers.rcx,
            Register::RDX => registers.rdx,
            Register::RSI => registers.rsi,
            Register::RDI => registers.rdi,
            Register::RBP => registers.rbp,
            Register::RSP => registers.rsp,
            Register::R8 => registers.r8,
            Register::R9 => registers.r9,
            Register::R10 => registers.r10,
            Register::R11 => registers.r11,
            Register::R12 => registers.r12,
            Register::R13 => registers.r13,
            Register::R14 => registers.r14,
            Register::R15 => registers.r15,
            Register::FS => registers.fs_base,
            _ => 0,
        };
        for used in self.factory.info(&instruction).used_memory() {
            let writes = [OpAccess::Write, OpAccess::CondWrite];
            let both = [OpAccess::ReadWrite, OpAccess::ReadCondWrite];
            if !writes.contains(&used.access()) && !both.contains(&used.access()) {
                continue;
            }
            let at = used.virtual_address(0, |register, _, _| Some(value(register)));
            let at = at.expect("an address");
            // The thread's own: its stack, and what its segment points to.
            let near = |own: u64, reach: u64| at.abs_diff(own) < reach;
            if near(registers.rsp, 0x10_0000) || near(registers.fs_base, 0x4000) {
                continue;
            }
            let lines = self.workers.last_mut().expect("it has begun");
            *lines.entry(at / LINE).or_default() += 1;
        }
    }

    /// Writes of both to lines that both write to; lines that are written to.
    fn shared(&self) -> (u32, usize) {
        let [a, b] = &self.workers[..] else { panic!("{} workers", self.workers.len()) };
        let both = a.iter().filter_map(|(line, n)| Some(n + b.get(line)?));
        (both.sum(), a.len() + b.len())
    }
}

impl Watcher for Writers {
    fn begins(&mut self, process: &Stopped) {
        self.workers.push(HashMap::new());
        self.note(process);
    }

    fn stepped(&mut self, process: &Stopped) {
        self.note(process);
    }
}

/// A switch without threads, and its guests.
struct Lan {
    table: Table,
    workers: [Forwarder; 2],
    // Hung up on first.
    guests: [VirtioGuest; 3],
    _doors: [VhostUser; 3],
    now: u64,
}

impl Lan {
    /// The first guest has two pairs of queues.
    fn new(dir: &std::path::Path) -> Self {
        let queues = [2, 1, 1];
        let path = |n: usize| dir.join(format!("{n}"));
        let doors = [0, 1, 2].map(|n| {
            let config = Config { path: path(n), queues: queues[n], ..Config::default() };
            attach(config, Arc::new(|| ())).expect("a port")
        });
        let entry = |door: &VhostUser| Entry {
            name: "port".into(),
            port: door.port(),
            mirror: None,
            policy: Arc::default(),
        };
        let table = Table::new(doors.iter().map(|door| Some(entry(door))).collect());
        let switch = Switch::new(Options { full_wait: FULL_WAIT, ..Options::default() });
        let workers = [0, 1].map(|_| {
            let mut worker = Forwarder::new(Arc::clone(&switch));
            worker.grow(&table);
            worker
        });
        let guests = [0u8, 1, 2].map(|n| {
            let keys = format!(",queues={}", queues[usize::from(n)]);
            VirtioGuest::connect(&path(n.into()), n + 1, &keys)
        });
        assert!(settles(|| doors.iter().all(|door| door.port().is_up())), "all are up");
        let mut lan = Self { table, workers, guests, _doors: doors, now: 0 };
        for n in 1..3 {
            let hello = frame([0xff; 6], mac(lan.guests[n].id, 0), 0, 60);
            assert!(lan.guests[n].send(0, NetHeader::default(), &hello));
            lan.guests[n].flush();
            assert_eq!(lan.breath(0, n, 0), 1);
        }
        lan.guests.iter_mut().for_each(|guest| _ = guest.receive(|_, _| ()));
        lan
    }

    fn breath(&mut self, worker: usize, port: usize, lane: usize) -> usize {
        let id = PortId::new(port).expect("a few ports");
        self.now += 1_000_000;
        self.workers[worker].breath(&self.table, id, lane, self.now).frames
    }

    /// So many frames of each of the first guest's pairs, to these guests, by a worker each.
    fn round(&mut self, count: u64, to: [usize; 2]) {
        for (queue, to) in to.iter().enumerate() {
            for n in 0..count {
                let to = mac(self.guests[*to].id, 0);
                let flow = u8::try_from(queue).expect("two");
                let bytes = frame(to, mac(1, flow), n, 60);
                assert!(self.guests[0].send(queue, NetHeader::default(), &bytes));
            }
        }
        self.guests[0].flush();
        for worker in [0, 1] {
            let frames = watched(|| self.breath(worker, 0, worker));
            assert_eq!(frames as u64, count, "worker {worker}");
        }
        let got: u64 = self.guests.iter_mut().map(|guest| guest.receive(|_, _| ())).sum();
        assert_eq!(got, 2 * count);
        self.guests[0].nic.pairs.iter_mut().for_each(|pair| _ = pair.tx.reap());
    }
}

#[test]
#[ignore = "run by the others"]
fn two_workers() {
    let Some(what) = asked() else { return };
    vmlan_ram::sigbus::install().expect("a handler");
    let (count, to) = what.split_once(' ').expect("how many, and where to");
    let count = count.parse().expect("a number");
    let to = if to == "apart" { [1, 2] } else { [1, 1] };
    let dir = tempfile::tempdir().expect("a directory");
    let mut lan = Lan::new(dir.path());
    // What is done once is done.
    (0..3).for_each(|_| lan.round(count, to));
    watch_me("");
    lan.round(count, to);
}

/// Writes to shared lines for batches of 16 frames and of 64.
fn counts(to: &str) -> [u32; 2] {
    let [few, many] = [16, 64].map(|count| {
        let what = format!("{count} {to}");
        let (seen, instructions) = watch("two_workers", &what, |_| Writers {
            factory: InstructionInfoFactory::new(),
            workers: Vec::new(),
        });
        let (shared, lines) = seen.shared();
        println!(
            "{what}: {instructions} instructions, {lines} lines, {shared} writes to shared ones"
        );
        (shared, lines)
    });
    assert!(many.1 > few.1 + 2 * 48, "each frame has lines of its own");
    [few.0, many.0]
}

#[test]
fn no_line_is_written_by_two_workers_for_each_frame() {
    let [few, many] = counts("apart");
    assert!(many <= few + 4, "{few} writes for 16 frames each, {many} for 64");
}

#[test]
fn what_two_workers_write_for_each_frame_would_be_seen() {
    let [few, many] = counts("together");
    assert!(many > few + 48, "{few} writes for 16 frames each, {many} for 64");
}
