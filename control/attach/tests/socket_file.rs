//! The socket file: who may have it, who may connect, and what is left of it.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use common::*;
use vmlan_attach::vhost_user::{Config, VhostUser, attach};
use vmlan_attach::{AttachError, SocketError};

fn open(path: &Path) -> Result<VhostUser, AttachError> {
    attach(Config { path: path.to_owned(), ..Config::default() }, Arc::new(|| {}))
}

#[test]
fn a_socket_nobody_listens_on_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    // A keeper that another test has just forked may still have it, until it closes what it does
    // not need.
    while UnixStream::connect(&path).is_ok() {
        std::thread::yield_now();
    }
    let door = open(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(door);
    assert!(!path.exists());
}

#[test]
fn a_socket_somebody_listens_on_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let _first = open(&path).unwrap();
    let error = open(&path).err().unwrap();
    assert!(
        matches!(error, AttachError::Socket(SocketError::InUse(ref p)) if *p == path),
        "{error}"
    );
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_file_in_the_way_is_named_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, "precious").unwrap();
    let error = open(&path).err().unwrap().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let other = dir.path().join("d");
    let _datagrams = UnixDatagram::bind(&other).unwrap();
    open(&other).err().unwrap();
    assert!(other.exists());
    let link = dir.path().join("l");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    open(&link).err().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file is left");
}

#[test]
fn mode_and_group_are_set_before_anybody_can_connect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let config = Config { path: path.clone(), mode: Some(0o622), ..Config::default() };
    let door = attach(config.clone(), Arc::new(|| {})).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o622);
    drop(door);
    let own = std::fs::metadata(dir.path()).unwrap().gid();
    let door = attach(
        Config { group: Some(own.to_string()), mode: None, ..config.clone() },
        Arc::new(|| {}),
    )
    .unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((meta.gid(), meta.permissions().mode() & 0o777), (own, 0o660));
    drop(door);
    let wrong = Config { group: Some("no-such-group".to_owned()), ..config };
    let error = attach(wrong, Arc::new(|| {})).err().unwrap();
    assert!(error.to_string().contains("no-such-group"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no temporary file is left");
}

#[test]
fn paths_that_cannot_be_are_errors_that_name_them() {
    let long = format!("/tmp/{}", "x".repeat(120));
    for path in ["/nonexistent/dir/s", long.as_str(), "", "/"] {
        let error = open(Path::new(path)).err().unwrap();
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[test]
fn the_longest_path_there_is_works() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(107 - 2 - 1 - dir.path().as_os_str().len()));
    std::fs::create_dir(&deep).unwrap();
    let path = deep.join("s");
    assert_eq!(path.as_os_str().len(), 107);
    let door = open(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(door);
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
}

#[test]
fn the_file_is_only_removed_if_it_is_still_ours() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut door = open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    door.close();
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
}

#[test]
fn one_front_end_at_a_time() {
    let f = Fixture::new();
    let mut first = f.ready();
    for _ in 0..20 {
        assert!(f.connect().is_closed(), "turned away");
    }
    assert_eq!(first.get(40, &[]), Some(0), "the first does not notice");
    drop(first);
    f.assert_alive();
}

#[test]
fn close_ends_a_connection_at_any_moment() {
    let mut f = Fixture::new();
    let mut raw = f.ready();
    raw.bytes(&[8, 0, 0], &[]).unwrap();
    f.door.close();
    f.door.close();
    assert!(raw.is_closed());
    assert!(!f.is_up());
}

#[test]
fn too_many_queues_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { path: dir.path().join("s"), queues: 65, ..Config::default() };
    assert!(matches!(attach(config, Arc::new(|| {})), Err(AttachError::Queues(65))));
}
