//! A vhost-user VM whose memory is not shared: its VMM announces none of it, and its rings are
//! nowhere. The log and `port list` say what to do. Alone in its file: it collects the log of the
//! process.

mod common;

use common::*;

const TO_DO: &str = "guest memory is not shared: give the VM's memory backend share=on";

#[test]
fn memory_that_is_not_shared_is_named_in_the_log_and_in_the_port_list() {
    log_lines();
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    let [desc, used, avail] = guest.ring_addr(0);
    assert_eq!(raw.set_num(0, NUM), Some(0));
    assert_eq!(raw.set_addr(0, desc, used, avail), Some(0));
    assert_eq!(raw.kick(0, guest.kick_fd()), Some(1));
    assert_eq!(f.detail("state"), format!("stopped: {TO_DO}"));
    until("the log says so", || log_lines().iter().any(|line| line.contains(TO_DO)));
    // QEMU asks for no answer here: we hang up, and the reason stays.
    raw.send(9, 1, &[halves(&[0, 0]), words(&[desc, used, avail, 0])].concat(), &[]);
    raw.send(12, 1, &words(&[0]), &[guest.kick_fd()]);
    assert!(raw.is_closed());
    let waiting = format!("waiting for a front end; the last one failed: {TO_DO}");
    until("the port list says so", || f.detail("state") == waiting);
    let mut next = f.ready();
    guest.start(&mut next);
    assert_eq!(f.detail("state"), "up");
    drop(next);
    until("it is forgotten", || f.detail("state") == "waiting for a front end");
}
