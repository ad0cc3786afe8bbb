//! The house rules of DESIGN section 3, checked from `cargo metadata` and the sources.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Which of our crates a crate may depend on (dev-dependencies aside). A crate that is not named
/// may depend on anything.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("vmlan-ram", &[]),
    ("vmlan-frame", &["vmlan-ram"]),
    ("vmlan-nic", &["vmlan-frame", "vmlan-ram"]),
    ("vmlan-switch", &["vmlan-frame", "vmlan-ram"]),
    ("vmlan-uplink", &["vmlan-frame", "vmlan-ram"]),
    ("vmlan-attach", &["vmlan-frame", "vmlan-nic", "vmlan-ram"]),
    ("vmlan-config", &["vmlan-frame", "vmlan-switch"]),
    (
        "vmlan-engine",
        &[
            "vmlan-attach",
            "vmlan-config",
            "vmlan-frame",
            "vmlan-ram",
            "vmlan-switch",
            "vmlan-uplink",
        ],
    ),
    ("vmlan-api", &["vmlan-config", "vmlan-engine", "vmlan-frame"]),
    ("vmlan-transport", &[]),
    ("vmlan-driver", &["vmlan-transport"]),
    ("vmlan-tools", &["vmlan-driver", "vmlan-transport"]),
    (
        "vmlan-lab",
        &[
            "vmlan-api",
            "vmlan-attach",
            "vmlan-config",
            "vmlan-driver",
            "vmlan-engine",
            "vmlan-frame",
            "vmlan-ram",
            "vmlan-tools",
            "vmlan-transport",
        ],
    ),
];

/// Where unsafe code may stand. A folder ends in `/`.
const UNSAFE: &[&str] = &[
    "data/ram/src/",
    "data/uplink/src/sys.rs",
    "control/attach/src/sys.rs",
    "lab/src/sys.rs",
    "control/engine/src/worker/signal.rs",
    "guest/transport/src/mapping.rs",
    "guest/transport/src/memory.rs",
    "guest/transport/src/sys.rs",
    // VFIO's system calls.
    "guest/transport/src/pci/sys.rs",
];

/// Crates that own no file descriptor, thread or clock, and no unsafe code.
const PURE: &[&str] = &["data/frame", "data/nic", "data/switch"];

/// Crates whose code a guest's bytes reach: no panicking shortcuts outside tests.
const NO_PANIC: &[&str] =
    &["data/frame", "data/ram", "data/nic", "data/switch", "data/uplink", "control/attach"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All `.rs` files of the workspace, relative to its root.
fn sources() -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                walk(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&root(), &mut out);
    out.iter().map(|p| p.strip_prefix(root()).unwrap().to_owned()).collect()
}

/// Compiled into tests or fuzz targets only.
fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.ends_with("tests.rs")
        || text.ends_with("src/fuzz.rs")
        || text.split('/').any(|p| p == "tests" || p == "benches")
}

/// Normal and build dependencies of each of our crates on each other.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    let meta: Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = meta["packages"].as_array().unwrap();
    let name = |v: &Value| v["name"].as_str().unwrap().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let deps = |p: &Value| {
        let all = p["dependencies"].as_array().unwrap().iter();
        all.filter(|d| d["kind"] != "dev").map(name).filter(|n| ours.contains(n)).collect()
    };
    packages.iter().map(|p| (name(p), deps(p))).collect()
}

#[test]
fn crates_depend_only_on_those_below_them() {
    let all = dependencies();
    for (krate, allowed) in MAY_DEPEND {
        let has = all.get(*krate).unwrap_or_else(|| panic!("{krate} is gone: correct this list"));
        let extra: Vec<_> = has.iter().filter(|d| !allowed.contains(&d.as_str())).collect();
        assert!(extra.is_empty(), "{krate} must not depend on {extra:?} (DESIGN section 3)");
    }
}

#[test]
fn unsafe_stands_only_behind_its_doors() {
    for path in sources().iter().filter(|p| !is_test(p) && !p.starts_with("fuzz")) {
        let text = read(&root().join(path));
        let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        let found = code.clone().any(|l| {
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|u| l.contains(u))
        });
        let allowed = UNSAFE.iter().any(|a| path.to_string_lossy().starts_with(a));
        assert!(!found || allowed, "{} has unsafe code outside the doors", path.display());
    }
}

#[test]
fn pure_crates_forbid_unsafe_and_own_no_resources() {
    for krate in PURE {
        let lib = read(&root().join(krate).join("src/lib.rs"));
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{krate}: forbid unsafe_code");
    }
    let resources = [
        ["std::thread", "std::time::Instant", "SystemTime", "std::fs"],
        // A descriptor may be borrowed (`AsFd`), not owned.
        ["std::net", "libc::", "OwnedFd", "RawFd"],
    ];
    for path in sources().iter().filter(|p| !is_test(p)) {
        if !PURE.iter().any(|krate| path.starts_with(Path::new(krate).join("src"))) {
            continue;
        }
        let text = read(&root().join(path));
        for word in resources.as_flattened() {
            assert!(!text.contains(word), "{}: {word} in a pure crate", path.display());
        }
    }
}

#[test]
fn crates_that_guests_reach_deny_panics() {
    for krate in NO_PANIC {
        let lib = read(&root().join(krate).join("src/lib.rs"));
        for lint in ["unwrap_used", "expect_used", "panic", "indexing_slicing"] {
            assert!(lib.contains(&format!("clippy::{lint}")), "{krate}: deny clippy::{lint}");
        }
    }
    for path in sources().iter().filter(|p| NO_PANIC.iter().any(|k| p.starts_with(k))) {
        let text = read(&root().join(path));
        let slack =
            text.lines().filter(|l| l.contains("allow(clippy::") && !l.contains("cfg_attr"));
        let bad = |l: &&str| {
            ["unwrap_used", "expect_used", "clippy::panic"].iter().any(|w| l.contains(w))
        };
        let bad: Vec<_> = slack.filter(bad).collect();
        assert!(bad.is_empty() || is_test(path), "{}: {bad:?}", path.display());
    }
}

#[test]
fn files_stay_short() {
    for path in sources() {
        let lines = read(&root().join(&path)).lines().count();
        assert!(lines <= 600, "{} has {lines} lines; 600 are the most", path.display());
    }
}

#[test]
fn rx_and_tx_are_words_of_the_guest() {
    for path in sources().iter().filter(|p| p.starts_with("data/switch/src") && !is_test(p)) {
        for line in read(&root().join(path)).lines() {
            let words = line.split(|c: char| !c.is_alphanumeric());
            let bad = words.filter(|w| ["rx", "tx", "Rx", "Tx"].contains(w)).count();
            assert_eq!(bad, 0, "{}: the switch says pull and push: {line}", path.display());
        }
    }
}
