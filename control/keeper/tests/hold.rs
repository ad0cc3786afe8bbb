//! A holder that is a process, confined as it is in a switch.

use std::os::fd::AsFd;
use std::time::Duration;

use vmlan_keeper::hold::{Hold, Holder};

/// All that it is asked goes by the system calls that it may make: one too few would end it.
#[test]
fn a_confined_holder_does_all_that_it_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hold");
    let holder = Holder::find(&path, Duration::from_secs(60), true).unwrap();
    let file = tempfile::tempfile().unwrap();
    for round in 0..100 {
        // Enough for its heap to grow and shrink.
        let bytes = vec![round; 30 << 10];
        holder.put(&format!("name {}", round % 7), &[file.as_fd(); 3], &bytes).unwrap();
    }
    let all = holder.all().unwrap();
    assert_eq!(all.len(), 7);
    assert!(all.iter().all(|held| held.fds.len() == 3 && held.bytes.len() == 30 << 10));
    (0..7).for_each(|n| holder.forget(&format!("name {n}")).unwrap());
    assert!(holder.all().unwrap().is_empty());
    assert!(!holder.has_gone());
    holder.end();
    while !holder.has_gone() {
        std::thread::yield_now();
    }
}
