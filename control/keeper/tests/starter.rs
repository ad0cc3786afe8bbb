//! The process that starts programs, and opens one file.

use std::ffi::CStr;
use std::io::Read as _;

/// A file that is replaced is the new one, and one that is not there is an error.
#[test]
fn the_file_that_was_named_is_opened_as_it_is_now() {
    // Named before anything is known of this run.
    const FILE: &CStr = c"starter-test/file";
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let path = FILE.to_str().unwrap();
    std::fs::create_dir("starter-test").unwrap();
    vmlan_keeper::start_starter(&[c"program"], FILE).unwrap();
    vmlan_keeper::open_file().unwrap_err();
    for text in ["one", "two"] {
        std::fs::write("starter-test/new", text).unwrap();
        std::fs::rename("starter-test/new", path).unwrap();
        let mut read = String::new();
        let file = vmlan_keeper::open_file().unwrap();
        std::fs::File::from(file).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }
}
