//! Holders in threads of this process: what differs in a process of its own is tested with the
//! program.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

use std::os::unix::net::UnixStream;

use super::*;

/// A holder, and the thread that it is.
struct Running {
    dir: tempfile::TempDir,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = listen(&dir.path().join("hold")).unwrap();
        let thread = Some(std::thread::spawn(move || process::serve(listener.as_fd())));
        Self { dir, thread }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("hold")
    }

    /// A line on which nothing was said.
    fn line(&self) -> OwnedFd {
        connect(&self.path()).unwrap()
    }

    /// As a switch whose process is `process`.
    fn meet(&self, process: &OwnedFd, hold_for: u32) -> Result<Holder, HoldError> {
        let holder = Holder { path: self.path(), line: Mutex::new(Some(self.line())) };
        let bytes = &[VERSION];
        let hello = Packet { bytes, fds: 1, ..Packet::plain(Kind::Hello, hold_for) };
        holder.ask(&hello, &[process.as_fd()]).map(|_| holder)
    }

    fn ended(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    fn ends(mut self) {
        self.ended();
        let gone = connect(&self.path()).unwrap_err();
        assert!([Errno::CONNREFUSED, Errno::NOENT].contains(&gone), "{gone}");
    }
}

/// In place of a pidfd: what its process is, and its death.
fn process() -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = std::io::pipe().unwrap();
    (ours.into(), theirs.into())
}

fn file(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn text(fd: &OwnedFd) -> String {
    let mut file = File::from(fd.try_clone().unwrap());
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

fn contents(holder: &Holder) -> Vec<(String, Vec<u8>, Vec<String>)> {
    let all = holder.all().unwrap().into_iter();
    let mut all: Vec<_> =
        all.map(|held| (held.name, held.bytes, held.fds.iter().map(text).collect())).collect();
    all.sort();
    all
}

fn entry(name: &str, bytes: &[u8], files: &[&str]) -> (String, Vec<u8>, Vec<String>) {
    (name.to_owned(), bytes.to_vec(), files.iter().map(|f| (*f).to_owned()).collect())
}

#[test]
fn the_next_switch_gets_what_the_last_one_left() {
    let running = Running::new();
    let (alive, dead) = process();
    let first = running.meet(&alive, 60).unwrap();
    let (one, two, three) = (file("one"), file("two"), file("three"));
    first.put("a", &[one.as_fd(), two.as_fd()], b"first").unwrap();
    first.put("b", &[three.as_fd()], b"").unwrap();
    first.put("c", &[], b"gone").unwrap();
    first.put("a", &[two.as_fd()], b"second").unwrap();
    first.forget("c").unwrap();
    first.forget("never").unwrap();
    drop((one, two, three));
    drop((first, dead));
    let (alive, _life) = process();
    let next = loop {
        match running.meet(&alive, 60) {
            Err(HoldError::Io(Errno::BUSY)) => std::thread::yield_now(),
            met => break met.unwrap(),
        }
    };
    let all = [entry("a", b"second", &["two"]), entry("b", b"", &["three"])];
    assert_eq!(contents(&next), all);
    // It has given duplicates, and holds all still.
    assert_eq!(contents(&next), all);
    next.end();
    running.ends();
}

#[test]
fn a_second_switch_waits_for_both_proofs_of_the_firsts_death() {
    let running = Running::new();
    let (alive, dead) = process();
    let refused = |running: &Running| {
        let (alive, _life) = process();
        assert!(matches!(running.meet(&alive, 60), Err(HoldError::Io(Errno::BUSY))));
    };
    let first = running.meet(&alive, 60).unwrap();
    first.put("a", &[], b"x").unwrap();
    refused(&running);
    // Its connection ends, but the process lives.
    drop(first);
    for _ in 0..20 {
        refused(&running);
    }
    drop(dead);
    let (alive, dead) = process();
    let second = loop {
        match running.meet(&alive, 60) {
            Err(HoldError::Io(Errno::BUSY)) => std::thread::yield_now(),
            met => break met.unwrap(),
        }
    };
    // Its process seems to have ended, but its connection stands.
    drop(dead);
    for _ in 0..20 {
        refused(&running);
    }
    assert_eq!(contents(&second), [entry("a", b"x", &[])]);
    second.end();
    running.ends();
}

/// It hung up without having had its answer, and its last word is that nothing is true any more.
#[test]
fn what_was_said_last_by_who_did_not_listen_counts() {
    let running = Running::new();
    let (alive, dead) = process();
    let first = running.meet(&alive, 60).unwrap();
    first.put("a", &[], b"x").unwrap();
    let line = first.line.lock().unwrap().take().unwrap();
    let say = |packet: Packet<'_>| {
        let mut bytes = Vec::new();
        packet.encode(&mut bytes).unwrap();
        line::send(line.as_fd(), &bytes, &[], SendFlags::DONTWAIT).unwrap();
    };
    // Several questions, so that some answers find nobody, whenever it comes to them.
    for _ in 0..4 {
        say(Packet { name: b"b", bytes: b"y", ..Packet::plain(Kind::Put, 0) });
    }
    say(Packet { name: packet::ALL, ..Packet::plain(Kind::Forget, 0) });
    drop((line, dead));
    let (alive, _life) = process();
    let next = loop {
        match running.meet(&alive, 60) {
            Err(HoldError::Io(Errno::BUSY)) => std::thread::yield_now(),
            met => break met.unwrap(),
        }
    };
    assert_eq!(contents(&next), []);
    next.end();
    running.ends();
}

/// A switch that got no answer in time goes on by itself: nothing of its ports is shut down, and
/// nobody goes on with what was held then.
#[test]
fn a_switch_that_hung_up_and_lives_keeps_its_ports() {
    let mut running = Running::new();
    let (alive, dead) = process();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let first = running.meet(&alive, 0).unwrap();
    first.put("a", &[theirs.as_fd()], b"x").unwrap();
    // As if an answer had not come.
    let line = first.line.lock().unwrap().take().unwrap();
    let mut bytes = Vec::new();
    let all = Packet { name: packet::ALL, ..Packet::plain(Kind::Forget, 0) };
    all.encode(&mut bytes).unwrap();
    line::send(line.as_fd(), &bytes, &[], SendFlags::DONTWAIT).unwrap();
    drop(line);
    let (other, _life) = process();
    for _ in 0..20 {
        assert!(matches!(running.meet(&other, 60), Err(HoldError::Io(Errno::BUSY))));
        (&ours).write_all(b"y").unwrap();
    }
    drop(dead);
    running.ended();
    (&ours).write_all(b"y").unwrap();
    drop(theirs);
    assert!((&ours).write_all(b"y").is_err());
}

#[test]
fn a_holder_without_a_switch_ends_and_shuts_down_what_it_has() {
    let running = Running::new();
    let (alive, dead) = process();
    // Seconds: none.
    let switch = running.meet(&alive, 0).unwrap();
    let (vm, ours) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    // Somebody else has it still: what counts is that the VM sees an end.
    switch.put("a", &[ours.as_fd()], b"").unwrap();
    drop((switch, dead));
    running.ends();
    assert_eq!(rustix::io::read(&vm, &mut [0; 1]).unwrap(), 0);
    drop(ours);
}

#[test]
fn a_liar_is_hung_up_on_or_refused_and_nothing_is_lost() {
    let running = Running::new();
    let (alive, _life) = process();
    let good = running.meet(&alive, 60).unwrap();
    good.put("a", &[file("one").as_fd()], b"x").unwrap();
    // More descriptors than come: those of a process that has too many open would be missing.
    let lie = Packet { kind: Kind::Put, number: 0, fds: 3, name: b"a", bytes: b"y" };
    let refused = good.ask(&lie, &[file("two").as_fd()]);
    assert!(matches!(refused, Err(HoldError::Descriptors)), "{refused:?}");
    // Answers are no questions.
    let refused = good.ask(&Packet::plain(Kind::Done, 0), &[]);
    assert!(matches!(refused, Err(HoldError::Io(Errno::PROTO))), "{refused:?}");
    // Names and bytes have their bounds on this side too.
    let long = "n".repeat(packet::MAX_NAME + 1);
    assert!(matches!(good.put(&long, &[], b""), Err(HoldError::Io(Errno::NAMETOOLONG))));
    let many = vec![0; packet::MAX_BYTES + 1];
    assert!(matches!(good.put("a", &[], &many), Err(HoldError::Io(Errno::TOOBIG))));
    assert_eq!(contents(&good), [entry("a", b"x", &["one"])]);
    // Bytes that are no packet at all.
    for garbage in [&[][..], &[0; 8], &[1; 7], &[2, 255, 0, 0, 0, 0, 0, 0], &[9; 300]] {
        let running = Running::new();
        let line = running.line();
        line::send(line.as_fd(), garbage, &[], SendFlags::empty()).unwrap();
        let mut answer = [0; 16];
        assert_eq!(rustix::io::read(&line, &mut answer).unwrap(), 0, "{garbage:?}");
        let met = loop {
            match running.meet(&alive, 60) {
                Err(HoldError::Io(Errno::BUSY)) => std::thread::yield_now(),
                met => break met.unwrap(),
            }
        };
        met.end();
        running.ends();
    }
    good.end();
    running.ends();
}

#[test]
fn who_has_not_said_who_it_is_gets_nothing() {
    let running = Running::new();
    let nobody = Holder { path: running.path(), line: Mutex::new(Some(running.line())) };
    assert!(matches!(nobody.put("a", &[], b""), Err(HoldError::Io(Errno::PERM))));
    assert!(matches!(nobody.all(), Err(HoldError::Io(Errno::PERM))));
    let old = Packet { bytes: &[VERSION + 1], ..Packet::plain(Kind::Hello, 60) };
    assert!(matches!(nobody.ask(&old, &[]), Err(HoldError::Io(Errno::PROTONOSUPPORT))));
    drop(nobody);
    let (alive, _life) = process();
    let switch = loop {
        match running.meet(&alive, 60) {
            Err(HoldError::Io(Errno::BUSY)) => std::thread::yield_now(),
            met => break met.unwrap(),
        }
    };
    switch.end();
    running.ends();
}

#[test]
fn a_full_table_refuses_what_is_new_and_replaces_what_it_has() {
    let running = Running::new();
    let (alive, _life) = process();
    let switch = running.meet(&alive, 60).unwrap();
    for n in 0..packet::MAX_NAMES {
        switch.put(&n.to_string(), &[], b"").unwrap();
    }
    assert!(matches!(switch.put("one more", &[], b""), Err(HoldError::Full)));
    switch.put("7", &[], b"again").unwrap();
    switch.forget("8").unwrap();
    switch.put("one more", &[], b"now").unwrap();
    assert_eq!(switch.all().unwrap().len(), packet::MAX_NAMES);
    switch.end();
    running.ends();
}

#[test]
fn as_many_descriptors_as_the_kernel_passes_on_come_back_in_order() {
    let running = Running::new();
    let (alive, _life) = process();
    let switch = running.meet(&alive, 60).unwrap();
    let files: Vec<_> = (0..packet::MAX_HELD).map(|n| file(&n.to_string())).collect();
    let list: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    switch.put("a", &list, b"").unwrap();
    let names: Vec<_> = (0..packet::MAX_HELD).map(|n| n.to_string()).collect();
    assert_eq!(contents(&switch)[0].2, names);
    let more: Vec<_> = list.iter().copied().chain([list[0]]).collect();
    assert!(matches!(switch.put("a", &more, b""), Err(HoldError::Io(Errno::TOOBIG))));
    switch.end();
    running.ends();
}

#[test]
fn a_dead_holder_is_noticed() {
    let running = Running::new();
    let (alive, _life) = process();
    let switch = running.meet(&alive, 60).unwrap();
    assert!(!switch.has_gone());
    switch.end();
    running.ends();
    assert!(switch.has_gone());
    assert!(matches!(switch.put("a", &[], b""), Err(HoldError::Gone)));
}
