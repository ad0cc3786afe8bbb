//! `kill -9` of a switch that has its clients held: they get every answer, once, from the next.
//!
//! The switch is this program, started again for one of its tests: a process that can be killed.

mod common;
mod vfio;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{memfd, until};
use vfio::*;
use vmlan_attach::ask_keepers;
use vmlan_attach::vfio_user::{Config, Doorbell, Model, adopt, attach};
use vmlan_frame::Mac;
use vmlan_harness::{Family, kill9};
use vmlan_keeper::hold::{Hold, Holder};

/// Tells this program that it is a switch, and where.
const PLACE: &str = "VMLAN_TEST_SWITCH";
const MAPPED: &str = "VMLAN_TEST_MAPPED";
const E1000E: &str = "VMLAN_TEST_E1000E";
const UNHELD: &str = "VMLAN_TEST_UNHELD";
const KEEPERLESS: &str = "VMLAN_TEST_KEEPERLESS";

/// A switch with one port, until it is killed. A test only in name.
#[test]
fn a_switch() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let dir = Path::new(&place);
    let mut config = Config::new(dir.join("vm.sock"), Mac::new(MAC));
    if std::env::var_os(MAPPED).is_some() {
        config.doorbell = Doorbell::Mapped;
    }
    if std::env::var_os(E1000E).is_some() {
        config.model = Model::E1000e;
    }
    let mut found = Vec::new();
    if std::env::var_os(UNHELD).is_none() {
        let holder = Holder::find(&dir.join("hold"), Duration::from_secs(60), true).unwrap();
        found = holder.all().unwrap();
        config.hold = Some(Arc::new(holder));
    }
    if std::env::var_os(KEEPERLESS).is_some() {
        vmlan_keeper::start(true).unwrap();
        kill9(&Family::of(std::process::id()).unwrap().named("spawner"));
    }
    let mut door = match found.pop() {
        Some(held) => {
            let asked = ask_keepers([&held]);
            adopt(config, held, asked, Arc::new(|| {})).unwrap()
        }
        None => attach(config, Arc::new(|| {})).unwrap(),
    };
    loop {
        if dir.join("leave").exists() {
            door.hand_over();
            return;
        }
        let details = door.details().into_iter().map(|(key, value)| format!("{key}: {value}\n"));
        std::fs::write(dir.join("details.new"), details.collect::<String>()).unwrap();
        std::fs::rename(dir.join("details.new"), dir.join("details")).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Switch {
    dir: tempfile::TempDir,
    options: &'static [&'static str],
    process: Child,
}

impl Switch {
    fn new(options: &'static [&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = Self::start(dir.path(), options);
        let switch = Self { dir, options, process };
        until("it listens", || UnixStream::connect(switch.dir.path().join("vm.sock")).is_ok());
        switch
    }

    fn start(dir: &Path, options: &[&str]) -> Child {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "a_switch", "--nocapture"]).env(PLACE, dir);
        command.envs(options.iter().map(|option| (option, "1")));
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("details"));
    }

    /// Makes way for the next.
    fn leave(&mut self) {
        let word = self.dir.path().join("leave");
        std::fs::write(&word, "").unwrap();
        assert!(self.process.wait().unwrap().success());
        std::fs::remove_file(word).unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("details"));
    }

    /// Kills it, and its keepers, which wait for the next.
    fn kill_with_keepers(&mut self) {
        let family = Family::of(self.process.id()).unwrap();
        self.kill();
        kill9(&family.named("keeper"));
    }

    fn restart(&mut self) {
        self.process = Self::start(self.dir.path(), self.options);
    }

    fn detail(&self, key: &str) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("details")).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(k, _)| *k == key).map(|(_, value)| value.to_owned()).unwrap_or_default()
    }

    fn ready(&self) -> Raw {
        self.ready_as("")
    }

    /// A client that has negotiated, with more capabilities. The one that looked whether it listens
    /// may not be gone yet.
    fn ready_as(&self, more: &str) -> Raw {
        let text = format!("{{\"capabilities\":{{\"max_msg_fds\":8{more}}}}}\0");
        let body = [&[0, 0, 1, 0], text.as_bytes()].concat();
        loop {
            let mut raw = Raw::new(UnixStream::connect(self.dir.path().join("vm.sock")).unwrap());
            if raw.ask(VERSION, &body, &[]) == Some(0) {
                return raw;
            }
        }
    }

    /// Until the switch takes its client for harmless again.
    fn prove(&self) {
        std::thread::sleep(Duration::from_millis(1300));
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The holder and what it has end at once, not in a minute.
        if let Ok(holder) = Holder::find(&self.dir.path().join("hold"), Duration::ZERO, false) {
            holder.end();
        }
    }
}

fn eventfd() -> File {
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    File::from(rustix::event::eventfd(0, flags).unwrap())
}

const EXISTS: Option<u32> = Some(17);

#[test]
fn all_that_a_client_has_described_is_there_after_kill_9() {
    let mut switch = Switch::new(&[]);
    let mut raw = switch.ready();
    let (ram, event) = (memfd(1 << 20), eventfd());
    assert_eq!(raw.map(0, 0, 1 << 19, ram.as_raw_fd()), Some(0));
    assert_eq!(raw.map(1 << 19, 1 << 30, 1 << 19, ram.as_raw_fd()), Some(0));
    assert_eq!(raw.ask(DMA_MAP, &dma_map(0, 1 << 40, 1 << 20), &[]), Some(0), "not shared");
    assert_eq!(raw.set_irqs(EVENTFD | TRIGGER, MSI, 1, &[event.as_raw_fd()]), Some(0));
    raw.enable();
    assert_eq!(raw.config16(4), 6);
    until("it is held", || switch.detail("held") == "yes");
    drop(ram);
    for times in 1..=3 {
        switch.kill();
        count(&event);
        switch.restart();
        // Asked of nobody, and answered by the next.
        assert_eq!(raw.config16(4), 6, "bus master and memory are on");
        until("interrupted", || count(&event) > 0);
        assert_eq!(raw.ask(DMA_MAP, &dma_map(0, 0, 4096), &[]), EXISTS);
        assert_eq!(raw.ask(DMA_MAP, &dma_map(0, 1 << 40, 4096), &[]), EXISTS);
        assert_ne!(raw.get(e1000::STATUS), u32::MAX);
        let held = || switch.detail("held");
        let said = if times == 1 { "adopted once" } else { "adopted" };
        until("it is counted", || held().contains(said) && held().starts_with("yes"));
        assert_eq!(switch.detail("memory"), "1 MiB in 2 regions, 1 MiB more not shared");
        assert_eq!(switch.detail("interrupts"), "MSI");
        switch.prove();
    }
    assert_eq!(raw.unmap(0, 1 << 19), Some(0));
    // A client that goes takes what is held with it.
    drop(raw);
    until("nothing is mapped", || switch.detail("state").contains("waiting"));
    switch.kill();
    switch.restart();
    assert_eq!(switch.ready().config16(0), 0x8086);
}

#[test]
fn the_cable_is_pulled_until_the_driver_has_set_its_chip_up() {
    let mut switch = Switch::new(&[E1000E]);
    let mut raw = switch.ready();
    raw.enable();
    // RFCTL.EXSTEN, RCTL.DTYP: descriptors with several buffers. It does not go on where it was.
    raw.set(0x5008, 1 << 15);
    raw.set(e1000::RCTL, 1 << 10);
    assert_eq!(raw.get(0x5008), 1 << 15, "that was posted");
    switch.kill();
    switch.restart();
    // SLU.
    raw.set(0, 0x40);
    let up = |raw: &mut Raw| raw.get(e1000::STATUS) & 2 != 0;
    until("it is out", || !up(&mut raw));
    until("it is in", || up(&mut raw));
    raw.set(e1000::TDT, 1);
    until("it is out again", || !up(&mut raw));
    // EN: receives. It is not waited for any longer.
    raw.set(e1000::RCTL, 2);
    until("frames pass", || switch.detail("state") == "up");
    let mut falls = 0;
    for _ in 0..200 {
        let before = up(&mut raw);
        std::thread::sleep(Duration::from_millis(10));
        falls += u32::from(before && !up(&mut raw));
    }
    assert_eq!(falls, 0);
    assert_eq!(switch.detail("state"), "up");
}

#[test]
fn without_a_holder_the_connection_dies_with_the_switch() {
    let mut switch = Switch::new(&[UNHELD]);
    let mut raw = switch.ready();
    assert_eq!(raw.config16(0), 0x8086);
    switch.kill();
    assert!(raw.is_closed());
}

/// Without a keeper it would be the last that has the client's socket, but for the holder.
#[test]
fn a_switch_that_has_no_keepers_leaves_the_client_to_the_next() {
    let mut switch = Switch::new(&[]);
    let mut raw = switch.ready();
    raw.enable();
    until("it is held", || switch.detail("held") == "yes");
    switch.kill_with_keepers();
    let mut failed = Switch::start(switch.dir.path(), &[KEEPERLESS]);
    assert!(!failed.wait().unwrap().success());
    switch.restart();
    assert_eq!(raw.config16(4), 6);
}

/// Each request is answered once, in order, and has its effect once: a region that is mapped twice
/// or unmapped twice would be an error.
#[test]
fn requests_are_answered_once_whenever_the_switch_dies() {
    let mut switch = Switch::new(&[]);
    let mut raw = switch.ready();
    let ram = memfd(1 << 20);
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for kill in 0..12u64 {
        let mut sent = Vec::new();
        for n in 0..40 {
            let at = n << 30;
            sent.push(raw.send(DMA_MAP, 0, &dma_map(0, at, 1 << 20), &[ram.as_raw_fd()]));
            raw.post(e1000::TDBAL, 0x1000);
            sent.push(raw.send(READ, 0, &access(7, 0, 4, &[]), &[]));
            sent.push(raw.send(DMA_MAP, 0, &dma_map(0, at + (1 << 29), 4096), &[]));
            sent.push(raw.send(READ, 0, &access(0, e1000::STATUS, 4, &[]), &[]));
            sent.push(raw.send(DMA_UNMAP, 0, &dma_unmap(0, at, 1 << 20), &[]));
            sent.push(raw.send(DMA_UNMAP, 0, &dma_unmap(0, at + (1 << 29), 4096), &[]));
        }
        // Somewhere in the midst of it.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let replies = usize::try_from(random >> 33).unwrap() % (sent.len() - 40);
        let mut answered = sent.iter();
        let check = |raw: &mut Raw, id: &u16| {
            let reply = raw.reply().expect("it lives");
            assert_eq!((reply.id, reply.error), (*id, 0), "kill {kill}: {reply:?}");
        };
        answered.by_ref().take(replies).for_each(|id| check(&mut raw, id));
        switch.kill();
        if kill % 2 == 0 {
            // Half of a message, which the next switch sees, and its rest.
            let last = message(9, READ, 0, &access(7, 0, 4, &[]));
            raw.bytes(&last[..7], &[]).unwrap();
            switch.restart();
            answered.for_each(|id| check(&mut raw, id));
            raw.bytes(&last[7..], &[]).unwrap();
            check(&mut raw, &9);
        } else {
            switch.restart();
            answered.for_each(|id| check(&mut raw, id));
        }
        if kill % 3 == 2 {
            switch.prove();
        }
    }
    assert_eq!(raw.config16(0), 0x8086);
}

#[test]
fn a_client_that_switches_die_of_is_dropped() {
    let mut switch = Switch::new(&[]);
    let mut raw = switch.ready();
    for _ in 0..4 {
        switch.kill();
        switch.restart();
        assert_eq!(raw.config16(0), 0x8086);
        until("it goes on", || switch.detail("held").contains("adopted"));
    }
    switch.kill();
    switch.restart();
    assert!(raw.is_closed(), "four died one after the other");
    assert_eq!(switch.ready().config16(0), 0x8086, "the next is welcome");
}

#[test]
fn a_page_of_registers_that_was_mapped_stays() {
    let mut switch = Switch::new(&[MAPPED]);
    let mut raw = switch.ready();
    let reply = raw.call(REGION_INFO, &halves(&[64, 0, 0, 0, 0, 0, 0, 0]), &[]).unwrap();
    let page = File::from(reply.fds.into_iter().next().unwrap());
    let tdt = |value: Option<u32>| {
        use std::os::unix::fs::FileExt as _;
        let mut bytes = [0; 4];
        if let Some(value) = value {
            page.write_all_at(&value.to_le_bytes(), e1000::TDT).unwrap();
        }
        page.read_exact_at(&mut bytes, e1000::TDT).unwrap();
        u32::from_le_bytes(bytes)
    };
    // By now it knows that its reply was sent.
    assert_eq!(raw.config16(0), 0x8086);
    switch.kill();
    switch.restart();
    assert_eq!(raw.config16(0), 0x8086);
    raw.set(e1000::TDT, 5);
    assert_eq!(tdt(None), 5, "what is written by a message is in the page");
    tdt(Some(7));
    assert_eq!(raw.get(e1000::TDT), 7, "and the other way");
}

/// The chip's whole state comes along, and the guest hears nothing of it.
#[test]
fn a_switch_that_makes_way_leaves_the_chip_as_it_is() {
    for options in [&[][..], &[MAPPED]] {
        let mut switch = Switch::new(options);
        let mut raw = switch.ready();
        let (ram, event) = (memfd(1 << 20), eventfd());
        assert_eq!(raw.map(0, 0, 1 << 20, ram.as_raw_fd()), Some(0));
        assert_eq!(raw.set_irqs(EVENTFD | TRIGGER, MSI, 1, &[event.as_raw_fd()]), Some(0));
        raw.enable();
        // A ring that is off, a cause that is masked.
        let words = [(e1000::TDBAL, 0x4000), (e1000::TDLEN, 4096), (e1000::RCTL, 0x8000)];
        words.iter().for_each(|(register, value)| raw.set(*register, *value));
        raw.set(e1000::ICS, 4);
        for times in 1..=5 {
            switch.leave();
            // Asked of nobody.
            let asked = raw.send(READ, 0, &access(0, e1000::TDBAL, 4, &[]), &[]);
            switch.restart();
            let reply = raw.reply().unwrap();
            assert_eq!((reply.id, reply.word(16)), (asked, 0x4000), "{times}");
            words.iter().for_each(|(register, value)| assert_eq!(raw.get(*register), *value));
            assert_eq!(raw.config16(4), 6);
            until("it is told", || switch.detail("held").contains("exactly"));
            assert_eq!(count(&event), 0, "nobody is interrupted");
        }
        assert_eq!(raw.get(e1000::ICR) & 4, 4, "the cause stands");
        assert_eq!(raw.get(e1000::ICR) & 4, 0, "and is taken once");
        // What was left is not gone on with twice.
        raw.set(e1000::TDBAL, 0x5000);
        switch.kill();
        switch.restart();
        assert_eq!(raw.get(e1000::TDBAL), 0x5000);
    }
}

/// The registers, the mask and the link are as they were; nobody resets anything. Of requests that
/// were carried out and not taken from the socket yet none is carried out again.
#[test]
fn a_switch_that_is_killed_leaves_the_chip_as_it_is() {
    for options in [&[][..], &[MAPPED]] {
        let mut switch = Switch::new(options);
        let mut raw = switch.ready();
        let (ram, event) = (memfd(1 << 20), eventfd());
        assert_eq!(raw.map(0, 0, 1 << 20, ram.as_raw_fd()), Some(0));
        assert_eq!(raw.set_irqs(EVENTFD | TRIGGER, MSI, 1, &[event.as_raw_fd()]), Some(0));
        raw.enable();
        // SLU; rings that are off; what is enabled.
        let words = [(0, 0x40), (e1000::TDLEN, 4096), (e1000::RCTL, 0x8000), (e1000::IMS, 0x9d)];
        words.iter().for_each(|(register, value)| raw.set(*register, *value));
        until("the link is up", || raw.get(e1000::STATUS) & 2 != 0);
        raw.get(e1000::ICR);
        for times in 1..=5u32 {
            raw.set(e1000::TDBAL, times << 12);
            // Posted, and perhaps under way.
            for tail in 1..=200 {
                raw.post(e1000::TDT, 200 * times + tail);
            }
            switch.kill();
            count(&event);
            switch.restart();
            assert_eq!(raw.get(e1000::TDT), 200 * times + 200);
            assert_eq!(raw.get(e1000::TDBAL), times << 12);
            words.iter().for_each(|(register, value)| assert_eq!(raw.get(*register), *value));
            assert_eq!(raw.get(e1000::STATUS) & 2, 2, "the link is as it was");
            assert_eq!(raw.config16(4), 6);
            until("interrupted", || count(&event) > 0);
            assert_ne!(raw.get(e1000::ICR) & 0x81, 0, "to look at the rings");
            let held = || switch.detail("held");
            until("it is told", || held().contains("as it was when its switch was killed"));
            switch.prove();
        }
    }
}

/// What switches die of may be what they go on with.
#[test]
fn a_chip_that_switches_die_of_is_reset() {
    let mut switch = Switch::new(&[]);
    let mut raw = switch.ready();
    raw.enable();
    for times in 1..=3 {
        raw.set(e1000::TDBAL, 0x5000);
        switch.kill();
        switch.restart();
        assert_eq!(raw.get(e1000::TDBAL), if times < 3 { 0x5000 } else { 0 });
    }
}

/// QEMU gives up after five seconds, and takes no reply with a body then. Others wait.
#[test]
fn late_replies_are_what_the_client_can_take() {
    let mut pairs = [true, false].map(|qemu| {
        let switch = Switch::new(&[]);
        let raw = switch.ready_as(if qemu { r#","write_multiple":true"# } else { "" });
        (qemu, switch, raw)
    });
    let ram = memfd(4096);
    let mut asked = Vec::new();
    for (_, switch, raw) in &mut pairs {
        raw.set(e1000::ICS, 4);
        switch.leave();
        let read = raw.send(READ, 0, &access(0, e1000::ICR, 4, &[]), &[]);
        let map = raw.send(DMA_MAP, 0, &dma_map(0, 0, 4096), &[ram.as_raw_fd()]);
        let unmap = raw.send(DMA_UNMAP, 0, &dma_unmap(0, 0, 4096), &[]);
        asked.push([read, map, unmap]);
    }
    std::thread::sleep(Duration::from_secs(5));
    for ((qemu, switch, raw), asked) in pairs.iter_mut().zip(asked) {
        switch.restart();
        let replies = asked.map(|id| {
            let reply = raw.reply().unwrap();
            assert_eq!(reply.id, id);
            (reply.error, reply.body.len())
        });
        let full = [(0, 20), (0, 0), (0, 24)];
        let late = [(5, 0), (0, 0), (0, 0)];
        assert_eq!(replies, if *qemu { late } else { full });
        // What it could not be told was not taken, and what is asked now is answered.
        assert_eq!(raw.get(e1000::ICR) & 4 != 0, *qemu);
    }
}
