//! The folder for sockets, databases and logs.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Error;

/// Removed when dropped, unless [`Scratch::keep`] was called because a log is worth reading.
#[derive(Debug)]
pub struct Scratch {
    dir: Option<TempDir>,
    path: PathBuf,
    keep: Cell<bool>,
    next: Cell<u32>,
}

impl Scratch {
    /// A new folder in the system's temporary folder.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be created.
    pub fn new() -> Result<Self, Error> {
        let dir = tempfile::Builder::new()
            .prefix("vmlan-peers-")
            .tempdir()
            .map_err(Error::io("create a temporary folder"))?;
        let path = dir.path().to_owned();
        Ok(Self { dir: Some(dir), path, keep: Cell::new(false), next: Cell::new(0) })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A fresh sub-folder for the sockets and files of one cell.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be created.
    pub fn fresh(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(format!("{name}-{}", self.number()));
        std::fs::create_dir(&path)
            .map_err(Error::io(format!("create the folder {}", path.display())))?;
        Ok(path)
    }

    /// A fresh name for a log; later cells never overwrite the log of an earlier one.
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{:03}-{name}.log", self.number()))
    }

    /// Leaves the folder behind for the user to read.
    pub fn keep(&self) {
        self.keep.set(true);
    }

    fn number(&self) -> u32 {
        self.next.replace(self.next.get() + 1)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep.get() {
            let _kept = self.dir.take().map(TempDir::keep);
        }
    }
}
