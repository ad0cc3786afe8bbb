//! The log of a switch that another command starts: a file, since the terminal is not its own.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes from which on a start empties it.
const MOST: u64 = 1 << 20;

/// The log.
#[derive(Debug)]
pub(crate) struct SwitchLog {
    pub(crate) path: PathBuf,
    file: File,
    /// What was in it before.
    before: u64,
}

impl SwitchLog {
    /// Opens it, to append to.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut before = file.metadata()?.len();
        if before > MOST {
            file.set_len(0)?;
            before = 0;
        }
        Ok(Self { path: path.into(), file, before })
    }

    /// For the switch.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Why a switch has not started that was given this.
    pub(crate) fn last_words(&self) -> String {
        let mut text = String::new();
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(self.before));
        let _ = read.and_then(|_| file.read_to_string(&mut text));
        let mut said = text.lines().rev().filter_map(|line| line.strip_prefix("vmlan: "));
        // The gateway of an earlier one may have the last word.
        let line = said.find(|line| !line.starts_with("gateway: "));
        line.unwrap_or("it ended").to_owned()
    }
}
