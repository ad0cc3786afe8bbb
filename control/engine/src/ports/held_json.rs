//! What outlives the switch beside descriptors: text in a file of memory that somebody has for the
//! next one.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;

use rustix::fs::MemfdFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use vmlan_frame::error_chain;
use vmlan_keeper::hold::{Held, Hold};

/// Longest file that is read: what is written is shorter.
const MOST: u64 = 8 << 20;

/// Has `what` held under `name`, in place of what was; `mark` is held beside it and says what it
/// is.
///
/// # Errors
/// Why it is not. What was held before may be.
pub(super) fn put(
    hold: &dyn Hold,
    name: &str,
    mark: &[u8],
    what: &impl Serialize,
) -> Result<(), String> {
    let file = write(what).map_err(|e| error_chain(&e))?;
    hold.put(name, &[file.as_fd()], mark).map_err(|e| error_chain(&e))
}

fn write(what: &impl Serialize) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(c"vmlan-held", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(what)?)?;
    Ok(file)
}

/// What the last switch has left; `None` if it cannot be read. It is to be checked as if a stranger
/// had written it.
pub(super) fn read<T: DeserializeOwned>(held: Held, mark: &[u8]) -> Option<T> {
    let file = held.fds.into_iter().next().filter(|_| held.bytes == mark)?;
    // Memory has seals. To read from anything else may take for ever.
    rustix::fs::fcntl_get_seals(&file).ok()?;
    let (mut file, mut text) = (File::from(file), Vec::new());
    file.rewind().and_then(|()| file.take(MOST).read_to_end(&mut text)).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &[u8] = b"some words 1";

    fn held(file: File, bytes: &[u8]) -> Held {
        Held { name: "words".into(), fds: vec![file.into()], bytes: bytes.to_vec() }
    }

    #[test]
    fn what_is_written_is_read() {
        for words in [vec![], vec!["one".to_owned()], vec!["two".to_owned(); 1000]] {
            let file = write(&words).unwrap();
            // The holder's duplicate has the same place in the file.
            for _ in 0..2 {
                assert_eq!(read(held(file.try_clone().unwrap(), MARK), MARK), Some(words.clone()));
            }
        }
    }

    #[test]
    fn whatever_is_held_is_read_or_is_nothing() {
        let none = |file: File, mark: &[u8]| read::<Vec<String>>(held(file, mark), MARK).is_none();
        let with = |bytes: &[u8]| {
            let mut file = write(&[0; 0]).unwrap();
            file.rewind().unwrap();
            file.set_len(0).unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        for bytes in [&b""[..], b"[", b"{}", b"[1]", &[0; 100], b"\xff"] {
            assert!(none(with(bytes), MARK));
        }
        assert!(none(with(b"[]"), b"some words 2"));
        let empty = Held { name: String::new(), fds: Vec::new(), bytes: MARK.into() };
        assert!(read::<Vec<String>>(empty, MARK).is_none());
        assert!(none(File::open("/dev/zero").unwrap(), MARK));
        let huge = with(b"[");
        huge.set_len(1 << 40).unwrap();
        assert!(none(huge, MARK));
    }
}
