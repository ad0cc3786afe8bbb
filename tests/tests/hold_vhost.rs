//! Native guests on vhost-user ports outlive the switch with their connections: none is hung up
//! on, whether the switch is killed, makes way or is upgraded. A switch that has nobody held is the
//! control: its guests have to connect again.

use std::path::Path;
use std::time::Duration;

use vmlan_driver::virtio::queues::NetHeader;
use vmlan_tests::held_machine::dies_at;
use vmlan_tests::numbered::{frame, mac, settles};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};

/// Frames of one batch: no more come again after a death.
const BATCH: u64 = 256;

/// Frames on the way at most. What a full receiver does not take is dropped.
const ON_THE_WAY: u64 = 128;

/// One way of the traffic: how many were sent, the number that is to come, and the highest so far.
#[derive(Default)]
struct Way {
    sent: u64,
    next: u64,
    most: u64,
    /// Deaths since a frame has come again.
    deaths: u32,
    steps: u32,
}

impl Way {
    fn send(&mut self, guest: &mut VirtioGuest, to: u8, end: u64) {
        while self.sent < end.min(self.most + ON_THE_WAY) {
            let bytes = frame(mac(to, 0), mac(guest.id, 0), self.sent, 60);
            if !guest.send(0, NetHeader::default(), &bytes) {
                break;
            }
            self.sent += 1;
        }
        guest.flush();
    }

    /// Frames come in order; each death allows one step back.
    fn take(&mut self, to: u8, from: u8, bytes: &[u8]) {
        let good = |n| bytes == frame(mac(to, 0), mac(from, 0), n, 60);
        if !good(self.next) {
            let again = (self.next.saturating_sub(BATCH)..self.next).rev().find(|n| good(*n));
            let again = again.unwrap_or_else(|| panic!("not frame {} to {to}", self.next));
            assert!(self.deaths > 0, "frame {again} to {to} comes again, of {}", self.most);
            (self.next, self.deaths, self.steps) = (again, self.deaths - 1, self.steps + 1);
        }
        self.next += 1;
        self.most = self.most.max(self.next);
    }
}

/// Two guests that send to each other.
struct Pair {
    guests: [VirtioGuest; 2],
    ways: [Way; 2],
}

impl Pair {
    fn connect(dir: &Path, keys: &str) -> Self {
        let guest = |name: &str, id| VirtioGuest::connect(&dir.join(name), id, keys);
        Self { guests: [guest("a", 1), guest("b", 2)], ways: Default::default() }
    }

    /// Passes so many more frames each way. `happens`, told how many were sent, says how often the
    /// switch has died since the last call.
    fn pass(&mut self, more: u64, mut happens: impl FnMut(u64) -> u32) {
        let end = self.ways[0].sent + more;
        let [a, b] = &mut self.guests;
        let [there, back] = &mut self.ways;
        let arrived = settles(|| {
            there.send(a, 2, end);
            back.send(b, 1, end);
            let deaths = happens(there.sent);
            (there.deaths, back.deaths) = (there.deaths + deaths, back.deaths + deaths);
            b.receive(|_, bytes| there.take(2, 1, bytes));
            a.receive(|_, bytes| back.take(1, 2, bytes));
            assert!(a.nic.is_connected() && b.nic.is_connected(), "hung up on");
            there.next == end && back.next == end
        });
        assert!(arrived, "{} and {} of {end} have arrived", there.next, back.next);
    }

    /// Nothing was lost or given back twice, and nobody has connected again.
    fn assert_untouched(&self) {
        for guest in &self.guests {
            guest.assert_sound();
            assert!(guest.nic.audit().iter().all(|audit| audit.misplaced == 0));
            assert_eq!(guest.nic.reconnects(), 0);
        }
    }
}

fn ports(dir: &Path, options: &[&str], keys: &str) -> Vec<String> {
    let ports = ["a", "b"].map(|n| format!("{n}=vhost-user:{}{keys}", dir.join(n).display()));
    options.iter().map(|&option| option.to_owned()).chain(ports).collect()
}

fn adopted(switch: &Switch, times: &str) -> Result<()> {
    let list = switch.ask(&["port", "list", "--json"])?;
    assert_eq!(list.matches(&format!("adopted {times}")).count(), 2, "{list}");
    Ok(())
}

/// Killed eight times in the midst of it.
fn no_driver_notices_kill_9(keys: &str) -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ports(dir.path(), &["--hold-for", "60"], "");
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut pair = Pair::connect(dir.path(), keys);
    let each = 3000;
    for kill in 0..8 {
        let at = kill * each + 500 + kill * 7919 % 2000;
        pair.pass(each, dies_at(&mut switch, at));
        switch.answering()?;
        // Until the next may die, too.
        std::thread::sleep(Duration::from_millis(1500));
    }
    pair.assert_untouched();
    adopted(&switch, "8 times")?;
    println!("{keys}: {} and {} batches again", pair.ways[0].steps, pair.ways[1].steps);
    switch.ask(&["stop", "--for-good"]).map(drop)
}

#[test]
fn no_driver_of_split_queues_notices_kill_9() -> Result<()> {
    no_driver_notices_kill_9("")?;
    no_driver_notices_kill_9(",event_idx=off,in_order=off,indirect=on,inflight=off")
}

#[test]
fn no_driver_of_packed_queues_notices_kill_9() -> Result<()> {
    no_driver_notices_kill_9(",packed=on")?;
    no_driver_notices_kill_9(",packed=on,event_idx=off,in_order=off,segments=4,inflight=off")
}

/// SIGTERM, and the hand-over of an upgrade: no frame is lost or comes twice.
#[test]
fn no_driver_notices_a_switch_that_makes_way() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ports(dir.path(), &["--hold-for", "60"], "");
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut pair = Pair::connect(dir.path(), "");
    for _ in 0..6 {
        pair.pass(700, |_| 0);
        // With frames on their way.
        let [a, b] = &mut pair.guests;
        let end = pair.ways[0].sent + 64;
        pair.ways[0].send(a, 2, end);
        pair.ways[1].send(b, 1, end);
        assert_eq!(switch.terminate()?, Some(0));
        switch.restart()?;
    }
    pair.pass(700, |_| 0);
    switch.answering()?;
    adopted(&switch, "6 times")?;
    for _ in 0..3 {
        let said = switch.ask(&["upgrade"])?;
        assert!(said.starts_with("upgraded: "), "{said}");
        pair.pass(700, |_| 0);
    }
    adopted(&switch, "9 times")?;
    pair.assert_untouched();
    switch.ask(&["stop", "--for-good"]).map(drop)
}

/// A guest that comes while nobody serves waits for the next switch, and one that goes is gone.
#[test]
fn listeners_are_held_too() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = ports(dir.path(), &["--hold-for", "60"], "");
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let first = VirtioGuest::connect(&dir.path().join("a"), 1, "");
    switch.kill9();
    drop(first);
    let path = dir.path().join("b");
    std::thread::scope(|scope| {
        let late = scope.spawn(|| VirtioGuest::connect(&path, 2, ""));
        switch.restart()?;
        late.join().expect("it is served");
        switch.answering()?;
        let again = VirtioGuest::connect(&dir.path().join("a"), 1, "");
        assert!(again.nic.is_connected());
        switch.ask(&["stop", "--for-good"]).map(drop)
    })
}

/// Another number of queues is another NIC: its VM has to connect again, and can.
#[test]
fn a_port_that_is_another_one_now_hangs_up() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let words = |keys| ports(dir.path(), &["--hold-for", "60"], keys);
    let mut switch = Switch::start(dir.path(), None, &words(""))?;
    let mut guest = VirtioGuest::connect(&dir.path().join("a"), 1, "");
    assert_eq!(switch.terminate()?, Some(0));
    drop(switch);
    let switch = Switch::start(dir.path(), None, &words(",queues=2"))?;
    assert!(settles(|| !guest.nic.is_connected()), "it is hung up on");
    guest.nic.reconnect(vmlan_tests::numbered::STALL).expect("it is let in again");
    switch.ask(&["stop", "--for-good"]).map(drop)
}

#[test]
fn without_a_holder_guests_are_hung_up_on() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut switch = Switch::start(dir.path(), None, &ports(dir.path(), &[], ""))?;
    let mut pair = Pair::connect(dir.path(), "");
    pair.pass(500, |_| 0);
    switch.kill9();
    switch.restart()?;
    switch.answering()?;
    for guest in &mut pair.guests {
        assert!(!guest.nic.is_connected(), "guest {}", guest.id);
        guest.nic.reconnect(vmlan_tests::numbered::STALL).expect("it is let in again");
    }
    let mut deaths = 1;
    pair.pass(500, |_| std::mem::take(&mut deaths));
    Ok(())
}
