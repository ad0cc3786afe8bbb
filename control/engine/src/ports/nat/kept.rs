//! Leases that outlive the switch, as a file of memory that somebody has for the next one.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use vmlan_config::gateway::Lease;
use vmlan_frame::error_chain;
use vmlan_keeper::hold::{Held, Hold};

/// What is held beside the file: what is in it.
const LEASES: &[u8] = b"vmlan leases 1";

/// Longest file that is read: as many leases as are remembered are shorter.
const MOST: u64 = 8 << 20;

/// Who has a gateway's leases, under what name.
pub(super) struct KeptLeases {
    hold: Arc<dyn Hold>,
    name: String,
    /// Somebody was told that they cannot be held.
    warned: bool,
}

impl KeptLeases {
    /// Those of `port`.
    pub(super) fn new(hold: Arc<dyn Hold>, port: &str) -> Self {
        Self { hold, name: name(port), warned: false }
    }

    /// Has these held, in place of what was.
    pub(super) fn put(&mut self, leases: &[Lease]) {
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
