//! A writer of the "newc" cpio format, which Linux unpacks as an initramfs.
//!
//! Source: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`. Files only grow the
//! archive at its end, so a directory has to be added before what lies in it.

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive being written.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    seen: std::collections::BTreeSet<String>,
}

impl Archive {
    /// Adds a directory and its parents, each once.
    pub fn directory(&mut self, path: &str) {
        let path = path.trim_matches('/');
        let mut end = 0;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            end += part.len() + usize::from(end > 0);
            let parent = path[..end].to_owned();
            if self.seen.insert(parent.clone()) {
                self.entry(&parent, DIRECTORY, &[]);
            }
        }
    }

    /// Adds an executable file and the directories above it. A second file of the same name is
    /// ignored.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        if self.seen.insert(path.to_owned()) {
            self.entry(path, PROGRAM, content);
        }
    }

    /// Ends the archive and hands it over.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let fields = [
            u64::from(self.inode),
            u64::from(mode),
            0, // uid
            0, // gid
            1, // links
            0, // mtime: 0, so that the same content gives the same image
            content.len() as u64,
            0, // device, major and minor
            0,
            0, // device it stands for
            0,
            name.len() as u64 + 1,
            0, // checksum, unused in newc
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn a_directory_precedes_its_file_and_appears_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/one", b"12345");
        archive.file("a/b/two", b"");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<_> = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap())
            .collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/two", "TRAILER!!!"]);
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn busybox_reads_it_back() {
        let Ok(dir) = tempfile::tempdir() else { panic!("no temporary directory") };
        let mut archive = Archive::default();
        archive.file("deep/down/odd", b"seven b");
        std::fs::write(dir.path().join("image"), archive.finish()).unwrap();
        let status = std::process::Command::new("busybox")
            .args(["cpio", "-i", "-d", "-F", "image"])
            .current_dir(dir.path())
            .status()
            .expect("busybox; run: scripts/setup.sh test");
        assert!(status.success());
        assert_eq!(std::fs::read(dir.path().join("deep/down/odd")).unwrap(), b"seven b");
    }
}
