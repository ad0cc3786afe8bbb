//! Leases that outlive the switch, as a file of memory that somebody has for the next one.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use vmlan_config::gateway::Lease;
use vmlan_frame::error_chain;
use vmlan_keeper::hold::{Held, Hold};

/// What is held beside the file: what is in it.
const LEASES: &[u8] = b"vmlan leases 1";

/// Longest file that is read: as many leases as are remembered are shorter.
const MOST: u64 = 8 << 20;

/// How often all of them are written, at most: a VM can have its lease changed without end.
const PERIOD: Duration = Duration::from_secs(1);

/// Who has a gateway's leases, under what name.
pub(super) struct KeptLeases {
    hold: Arc<dyn Hold>,
    name: String,
    /// Somebody was told that they cannot be held.
    warned: bool,
    /// They have changed, and are to be written then.
    due: Option<Instant>,
    written: Option<Instant>,
}

impl KeptLeases {
    /// Those of `port`.
    pub(super) fn new(hold: Arc<dyn Hold>, port: &str) -> Self {
        Self { hold, name: name(port), warned: false, due: None, written: None }
    }

    /// They have changed.
    pub(super) fn changed(&mut self, now: Instant) {
        let next = self.written.map_or(now, |written| now.max(written + PERIOD));
        self.due.get_or_insert(next);
    }

    /// Has them held, if it is time to. Says when it will be if it is not yet.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        leases: impl FnOnce() -> Vec<Lease>,
    ) -> Option<Duration> {
        let due = self.due?;
        if due > now {
            return Some(due - now);
        }
        (self.due, self.written) = (None, Some(now));
        self.put(&leases());
        None
    }

    /// Has those held at once that are not yet.
    pub(super) fn flush(&mut self, leases: impl FnOnce() -> Vec<Lease>) {
        if self.due.take().is_some() {
            self.put(&leases());
        }
    }

    /// Has these held, in place of what was.
    fn put(&mut self, leases: &[Lease]) {
        let file = write(leases).map_err(|e| error_chain(&e));
        let put = |file: File| self.hold.put(&self.name, &[file.as_fd()], LEASES);
        let done = file.and_then(|file| put(file).map_err(|e| error_chain(&e)));
        if let Err(why) = done {
            // What was held before is not true any more.
            self.forget();
            if !std::mem::replace(&mut self.warned, true) {
                log::warn!("{}: are not held for the next switch: {why}", self.name);
            }
        }
    }

    /// None are held.
    pub(super) fn forget(&self) {
        let _ = self.hold.forget(&self.name);
    }
}

/// What the holder calls the leases of `port`.
pub(super) fn name(port: &str) -> String {
    format!("leases of port {port}")
}

fn write(leases: &[Lease]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(c"vmlan-leases", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(leases)?)?;
    Ok(file)
}

/// The leases that the last switch has left; none if they cannot be read. They are to be checked as
/// if a gateway had told them.
pub(super) fn read(held: Held) -> Vec<Lease> {
    let file = held.fds.into_iter().next().filter(|_| held.bytes == LEASES);
    // Memory has seals. To read from anything else may take for ever.
    let file = file.filter(|file| rustix::fs::fcntl_get_seals(file).is_ok());
    file.and_then(|file| {
        let (mut file, mut text) = (File::from(file), Vec::new());
        file.rewind().and_then(|()| file.take(MOST).read_to_end(&mut text)).ok()?;
        serde_json::from_slice(&text).ok()
    })
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::Ordering;

    use vmlan_keeper::hold::HoldError;

    use super::*;

    fn lease(last: u8) -> Lease {
        Lease {
            ip: [10, 77, 0, last].into(),
            mac: format!("52:54:00:00:00:{last:02x}"),
            port: "vm1".into(),
            hostname: Some("guest".into()),
            expires: 1 << 40,
        }
    }

    fn held(file: File, bytes: &[u8]) -> Held {
        Held { name: name("net"), fds: vec![file.into()], bytes: bytes.to_vec() }
    }

    /// Counts what is held.
    #[derive(Debug, Default)]
    struct Counting(std::sync::atomic::AtomicUsize);

    impl Hold for Counting {
        fn put(&self, _: &str, fds: &[BorrowedFd<'_>], _: &[u8]) -> Result<(), HoldError> {
            assert_eq!(fds.len(), 1);
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn forget(&self, _: &str) -> Result<(), HoldError> {
            Ok(())
        }

        fn all(&self) -> Result<Vec<Held>, HoldError> {
            Ok(Vec::new())
        }

        fn end(&self) {}
    }

    #[test]
    fn changes_without_end_are_written_once_a_second() {
        let hold = Arc::new(Counting::default());
        let puts = || hold.0.load(Ordering::Relaxed);
        let mut kept = KeptLeases::new(hold.clone(), "net");
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(kept.keep(at(0), || panic!("nothing has changed")), None);
        for ms in 0..3_500 {
            kept.changed(at(ms));
            let wait = kept.keep(at(ms), || vec![lease(2)]);
            // The first at once; else it says when.
            let left = (1_000 - ms % 1_000) % 1_000;
            assert_eq!(wait, (left > 0).then(|| Duration::from_millis(left)), "{ms}");
        }
        assert_eq!(puts(), 4);
        assert_eq!(kept.keep(at(4_000), || vec![lease(2)]), None);
        assert_eq!(kept.keep(at(9_000), || panic!("nothing has changed")), None);
        assert_eq!(puts(), 5);
        kept.changed(at(4_001));
        kept.flush(|| vec![lease(2)]);
        assert_eq!(puts(), 6, "the last one is not left out");
    }

    #[test]
    fn what_is_written_is_read() {
        for leases in [vec![], vec![lease(2)], (2..=254).map(lease).collect()] {
            let file = write(&leases).unwrap();
            // The holder's duplicate has the same place in the file.
            for _ in 0..2 {
                assert_eq!(read(held(file.try_clone().unwrap(), LEASES)), leases);
            }
        }
    }

    #[test]
    fn whatever_is_held_is_read_or_is_none() {
        let with = |bytes: &[u8]| {
            let mut file = write(&[]).unwrap();
            file.rewind().unwrap();
            file.set_len(0).unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        for bytes in [&b""[..], b"[", b"{}", b"[{\"ip\":\"10.77.0.2\"}]", &[0; 100], b"\xff"] {
            assert_eq!(read(held(with(bytes), LEASES)), []);
        }
        assert_eq!(read(held(write(&[lease(2)]).unwrap(), b"vmlan leases 2")), []);
        assert_eq!(read(Held { name: String::new(), fds: Vec::new(), bytes: LEASES.into() }), []);
        let endless = File::open("/dev/zero").unwrap();
        assert_eq!(read(held(endless, LEASES)), []);
        let huge = with(b"[");
        huge.set_len(1 << 40).unwrap();
        assert_eq!(read(held(huge, LEASES)), []);
    }
}
