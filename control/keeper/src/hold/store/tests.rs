//! A store whose service manager is played by the harness. That a switch lives in it is tested with
//! the program.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::time::Duration;

use vmlan_harness::ServiceManager;

use super::*;

/// A directory, and a service manager in it that has room for so many descriptors.
fn manager(room: usize) -> (tempfile::TempDir, ServiceManager) {
    let dir = tempfile::tempdir().unwrap();
    let manager = ServiceManager::new(dir.path(), room).unwrap();
    (dir, manager)
}

/// A switch's, which is started with all that is kept.
fn store(manager: &ServiceManager) -> Store {
    Store::new(manager.place().as_os_str(), 8, manager.kept()).unwrap()
}

fn file(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn text(fd: OwnedFd) -> String {
    let (mut file, mut text) = (File::from(fd), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

type Entry = (String, Vec<u8>, Vec<String>);

fn contents(store: &Store) -> Vec<Entry> {
    let all = store.all().unwrap().into_iter();
    let mut all: Vec<_> =
        all.map(|held| (held.name, held.bytes, held.fds.into_iter().map(text).collect())).collect();
    all.sort();
    all
}

fn entry(name: &str, bytes: &[u8], files: &[&str]) -> Entry {
    (name.to_owned(), bytes.to_vec(), files.iter().map(|f| (*f).to_owned()).collect())
}

/// Waits until the service manager has done what was said so far.
fn settled(store: &Store) {
    store.wait().unwrap();
}

#[test]
fn the_next_switch_gets_what_the_last_one_left() {
    let (_dir, manager) = manager(8);
    let first = store(&manager);
    assert_eq!(contents(&first), []);
    first.put("a", &[file("one").as_fd(), file("two").as_fd()], b"first").unwrap();
    // When this returns the service manager has it.
    assert_eq!(manager.kept().len(), 2);
    first.put("b", &[file("three").as_fd()], b"").unwrap();
    first.put("c", &[], b"gone").unwrap();
    first.put("a", &[file("two").as_fd()], b"second").unwrap();
    first.forget("c").unwrap();
    first.forget("never").unwrap();
    settled(&first);
    assert_eq!(manager.kept().len(), 4);
    let said = manager.said().len();
    drop(first);
    let all = [entry("a", b"second", &["two"]), entry("b", b"", &["three"])];
    for _ in 0..3 {
        let next = store(&manager);
        assert_eq!(contents(&next), all);
        assert_eq!(contents(&next), all, "these were duplicates");
        // What replaces something needs no service manager.
        next.put("b", &[file("three").as_fd()], b"").unwrap();
        assert_eq!(manager.said().len(), said);
    }
    let last = store(&manager);
    last.put("d", &[], b"new").unwrap();
    assert_eq!(contents(&last).len(), 3, "its drawer has a name of its own");
    last.end();
    settled(&last);
    assert_eq!((manager.kept().len(), contents(&last)), (0, vec![]));
}

#[test]
fn a_change_that_death_has_cut_short_is_made_or_was_not() {
    let (_dir, manager) = manager(8);
    let first = store(&manager);
    first.put("a", &[file("old").as_fd()], b"old").unwrap();
    let mut packet = Vec::new();
    let new = Packet { kind: Kind::Put, number: 0, fds: 1, name: b"a", bytes: b"new" };
    new.encode(&mut packet).unwrap();
    // Twice: the one that goes on may die before it has taken the old one out.
    for _ in 0..2 {
        first.lock()[0].put(&packet, &[file("new").as_fd()]).unwrap();
    }
    drop(first);
    for _ in 0..2 {
        let next = store(&manager);
        assert_eq!(contents(&next), [entry("a", b"new", &["new"])]);
        let waits = rustix::io::ioctl_fionread(&next.lock()[0].back).unwrap();
        assert_eq!(waits, packet.len() as u64, "one is left");
    }
    // It dies between the two steps by which it forgets.
    store(&manager).lock()[0].take_out();
    let next = store(&manager);
    settled(&next);
    assert_eq!((contents(&next), manager.kept().len()), (vec![], 0));
}

#[test]
fn whatever_is_given_is_a_drawer_or_let_go() {
    let (_dir, manager) = manager(64);
    let first = store(&manager);
    first.put("a", &[file("one").as_fd()], b"x").unwrap();
    drop(first);
    let pair = || {
        let (a, b) = line::pair().unwrap();
        [a, b]
    };
    let with = |bytes: &[u8]| {
        let [a, b] = pair();
        line::send(a.as_fd(), bytes, &[], SendFlags::empty()).unwrap();
        [a, b]
    };
    let keep = |number: u32, fds: Vec<OwnedFd>| {
        fds.into_iter().for_each(|fd| manager.keep(&format!("{DRAWER}{number}"), fd));
    };
    let [one, other] = pair();
    keep(1, vec![one]);
    let [third, fourth] = with(b"garbage");
    keep(2, vec![other, third, fourth]);
    keep(3, with(b"garbage").into());
    keep(4, with(&[2, 255, 0, 0, 0, 0, 0, 0]).into());
    keep(5, pair().into());
    let (pipe, end) = std::io::pipe().unwrap();
    keep(6, vec![pipe.into(), end.into()]);
    keep(7, vec![file("one").into(), file("two").into()]);
    keep(u32::MAX, with(&[0; 300]).into());
    let next = store(&manager);
    settled(&next);
    assert_eq!(contents(&next), [entry("a", b"x", &["one"])]);
    assert_eq!(manager.kept().len(), 2);
    next.put("b", &[], b"y").unwrap();
    assert_eq!(contents(&store(&manager)).len(), 2);
    for name in ["vmlan.socket", "", "vmlan-held-", "vmlan-held-x", "vmlan-held-4294967296"] {
        assert!(!Store::is_drawers(name), "{name}");
    }
}

#[test]
fn what_was_promised_comes_back_or_is_missed() {
    let (_dir, manager) = manager(8);
    let first = store(&manager);
    let mut packet = Vec::new();
    // It lies of its descriptors, or this process has too many open to have them.
    let lie = Packet { kind: Kind::Put, number: 0, fds: 2, name: b"a", bytes: b"new" };
    lie.encode(&mut packet).unwrap();
    first.put("a", &[file("one").as_fd()], b"x").unwrap();
    first.lock()[0].put(&packet, &[file("one").as_fd()]).unwrap();
    first.lock()[0].take_out();
    assert!(matches!(store(&manager).all(), Err(HoldError::Descriptors)));
}

#[test]
fn a_full_store_refuses_what_is_new_and_replaces_what_it_has() {
    let (_dir, manager) = manager(8);
    let store = store(&manager);
    (0..4).for_each(|n| store.put(&n.to_string(), &[], b"").unwrap());
    assert!(matches!(store.put("one more", &[], b""), Err(HoldError::FullManager(4))));
    store.put("3", &[], b"again").unwrap();
    store.forget("2").unwrap();
    store.put("one more", &[], b"now").unwrap();
    assert_eq!(store.all().unwrap().len(), 4);
    // Names and bytes have their bounds here, too.
    let long = "n".repeat(65);
    assert!(matches!(store.put(&long, &[], b""), Err(HoldError::Io(Errno::NAMETOOLONG))));
    let many = vec![0; (32 << 10) + 1];
    assert!(matches!(store.put("3", &[], &many), Err(HoldError::Io(Errno::TOOBIG))));
    let files: [_; 253] = std::array::from_fn(|_| file("f"));
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    store.put("3", &fds, &many[1..]).unwrap();
    store.put("3", &fds, &many[1..]).unwrap();
    let all = store.all().unwrap();
    let three = all.iter().find(|held| held.name == "3").unwrap();
    assert_eq!((three.fds.len(), three.bytes.len()), (253, 32 << 10));
}

#[test]
fn a_service_manager_that_is_silent_or_gone_holds_nothing_new() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("notify");
    let silent = std::os::unix::net::UnixDatagram::bind(&place).unwrap();
    let store = Store::new(place.as_os_str(), 8, Vec::new()).unwrap();
    let since = Instant::now();
    assert!(matches!(store.put("a", &[], b""), Err(HoldError::SilentManager)));
    assert!(since.elapsed() >= PATIENCE - Duration::from_secs(1), "it was given time");
    assert_eq!(contents(&store), []);
    drop(silent);
    assert!(matches!(store.put("a", &[], b""), Err(HoldError::NoManager)));
    let none = Store::new(dir.path().join("none").as_os_str(), 8, Vec::new());
    assert!(none.is_err());
}
