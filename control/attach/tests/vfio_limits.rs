//! A process without descriptors left, and one with nothing to do. Alone in its file: what is
//! looked at is the process's.

mod common;
mod vfio;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{accepts_without_pause, fds_of, log_lines, memfd, set_fd_limit, until};
use vfio::*;

/// As long as it lives, this process has room for a few descriptors more.
struct Limit {
    before: u64,
    _fill: Vec<File>,
}

impl Limit {
    fn new(spare: usize) -> Self {
        let before = set_fd_limit(200);
        let mut fill: Vec<_> = (0..200).map_while(|_| File::open("/dev/null").ok()).collect();
        assert!(fill.len() < 200, "full");
        fill.truncate(fill.len() - spare);
        Self { before, _fill: fill }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        set_fd_limit(self.before);
    }
}

#[test]
fn without_descriptors_nobody_spins_and_the_connected_go_on() {
    let f = Fixture::new();
    let free = Fixture::new();
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    // One that connects finds nobody who can accept it, and nobody spins over it.
    log_lines();
    let limit = Limit::new(1);
    let begin = Instant::now();
    let socket = std::os::unix::net::UnixStream::connect(free.path());
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!accepts_without_pause(&free.path(), begin), "it spins");
    assert_eq!(client.config16(0), 0x8086, "the connected do not notice");
    // A descriptor that is lost on the way ends its connection, for nothing can be answered in its
    // place.
    assert_eq!(client.map(0, 0, 1 << 20, memory.as_raw_fd()), None);
    drop(limit);
    drop(socket);
    until("descriptors are back", || fds_of(&memory) == 1);
    f.assert_alive();
    free.assert_alive();
    f.wait_free();
    free.wait_free();
    mapped_without_a_file();
    an_idle_connection_costs_nothing();
}

/// A mapped port makes a file for each client: it needs one for the socket and one for that.
fn mapped_without_a_file() {
    let f = Fixture::mapped();
    let limit = Limit::new(2);
    let mut client = f.connect();
    assert!(client.is_closed(), "no file for it");
    drop(limit);
    f.assert_alive();
}

/// Without a message, the port's thread sleeps: in a mapped port as well.
fn an_idle_connection_costs_nothing() {
    let f = Fixture::mapped();
    let mut client = f.ready();
    client.get(e1000::STATUS);
    std::thread::sleep(Duration::from_millis(50));
    let task = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let named = |path: &std::path::Path| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        tasks.map(|t| t.path()).filter(|path| named(path)).collect::<Vec<_>>()
    };
    let switches = |path: &std::path::Path| {
        let text = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let words = text.split_whitespace().skip_while(|w| *w != "voluntary_ctxt_switches:");
        words.clone().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    let sum = || task("vfio-user").iter().map(|path| switches(path)).sum::<u64>();
    // After it has fallen asleep.
    until("it sleeps", || {
        let before = sum();
        std::thread::sleep(Duration::from_millis(500));
        sum() == before
    });
}
