//! A directory for sockets, databases and logs.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{HarnessError, Result};

/// A directory of our own that nobody else may enter; removed when dropped, unless
/// [`Scratch::keep`] was called because a log is worth reading.
#[derive(Debug)]
pub struct Scratch {
    dir: Option<TempDir>,
    path: PathBuf,
    keep: Cell<bool>,
    next: Cell<u32>,
}

impl Scratch {
    /// A new directory below the one for temporary files.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] when it cannot be created.
    pub fn new() -> Result<Self> {
        let made = tempfile::Builder::new().prefix("vmlan-lab-").tempdir();
        let fix = "set TMPDIR to a directory that can be written";
        let failed = |e| HarnessError::missing(format!("no temporary directory ({e})"), fix);
        let dir = made.map_err(failed)?;
        let path = dir.path().to_owned();
        Ok(Self { dir: Some(dir), path, keep: Cell::new(false), next: Cell::new(0) })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a socket in it.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.sock"))
    }

    /// A new directory in it.
    ///
    /// # Errors
    /// [`HarnessError::File`] when it cannot be created.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(format!("{name}-{}", self.number()));
        std::fs::create_dir(&path).map_err(HarnessError::file(&path))?;
        Ok(path)
    }

    /// A new name for a log: no log is written over.
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{:03}-{name}.log", self.number()))
    }

    /// Leaves the directory behind for the user to read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_given_twice_and_the_directory_goes() {
        let scratch = Scratch::new().unwrap();
        assert_ne!(scratch.log("switch"), scratch.log("switch"));
        assert_ne!(scratch.fresh("cell").unwrap(), scratch.fresh("cell").unwrap());
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_kept_stays() {
        let scratch = Scratch::new().unwrap();
        scratch.keep();
        let path = scratch.path().to_owned();
        drop(scratch);
        std::fs::remove_dir(path).unwrap();
    }
}
