//! The kernel module of `guest/linux` and the Rust code agree about the shared status block. Three
//! descriptions of one layout, none of which knows the others.

use std::{collections::BTreeMap, fs, path::Path};

use vmlan_tests::linux_module;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Words of the block and their offsets: `NAME` and a number from each line that `pick` likes.
fn offsets(text: &str, pick: fn(&str) -> Option<(&str, &str)>) -> BTreeMap<String, u32> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let entry = |line| pick(line).and_then(|(name, at)| Some((name.to_owned(), number(at)?)));
    let all = text.lines().filter_map(entry);
    all.filter(|(name, _)| name.starts_with("GUEST_") || name.starts_with("HOST_")).collect()
}

fn of_header(line: &str) -> Option<(&str, &str)> {
    let mut words = line.strip_prefix("#define CSB_")?.split_whitespace();
    Some((words.next()?, words.next()?))
}

fn of_rust(line: &str) -> Option<(&str, &str)> {
    let (name, at) = line.trim().trim_start_matches("pub(super) ").split_once(": usize = ")?;
    Some((name.strip_prefix("const ")?, at.strip_suffix(';')?))
}

#[test]
fn the_header_says_what_both_halves_say() {
    let path = linux_module::sources().join("csb.h");
    let header = offsets(&fs::read_to_string(path).expect("csb.h"), of_header);
    let device = offsets(&read("data/nic/src/chip/csb.rs"), of_rust);
    let driver = offsets(&read("guest/driver/src/chip/csb.rs"), of_rust);
    assert!(header.len() >= 10 && device.len() >= 10 && driver.len() >= 10);
    for (name, at) in &header {
        let theirs = device.get(name).copied();
        assert!(theirs.is_none_or(|theirs| theirs == *at), "{name}: the device has {theirs:?}");
        // The Rust driver counts words.
        let ours = driver.get(name).map(|word| word * 4);
        assert!(ours.is_none_or(|ours| ours == *at), "{name}: the driver has {ours:?}, not {at}");
        assert!(theirs.is_some() || ours.is_some(), "nobody else knows {name}");
    }
    // What the device reads and writes, the module knows; it looks at neither of these.
    let unused = ["HOST_RDH"];
    for name in device.keys().filter(|name| !unused.contains(&name.as_str())) {
        assert!(header.contains_key(name), "the module knows no {name}");
    }
}
