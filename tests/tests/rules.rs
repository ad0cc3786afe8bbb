//! The house rules, which ARCHITECTURE.md gives the reasons for, checked from `cargo metadata` and
//! the sources.

#[path = "rules/circles.rs"]
mod circles;
#[path = "rules/links.rs"]
mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Which of our crates a crate may depend on (dev-dependencies aside): those below it. The program
/// and the tests, which are not named, stand above all.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("vmlan-sandbox", &[]),
    ("vmlan-ram", &[]),
    ("vmlan-frame", &["vmlan-ram"]),
    ("vmlan-nic", &["vmlan-frame", "vmlan-ram"]),
    ("vmlan-switch", &["vmlan-frame", "vmlan-ram"]),
    ("vmlan-uplink", &["vmlan-frame", "vmlan-ram", "vmlan-sandbox"]),
    ("vmlan-keeper", &["vmlan-sandbox"]),
    ("vmlan-attach", &["vmlan-frame", "vmlan-keeper", "vmlan-nic", "vmlan-ram", "vmlan-sandbox"]),
    ("vmlan-config", &["vmlan-frame", "vmlan-switch"]),
    (
        "vmlan-engine",
        &[
            "vmlan-attach",
            "vmlan-config",
            "vmlan-frame",
            "vmlan-keeper",
            "vmlan-ram",
            "vmlan-sandbox",
            "vmlan-switch",
            "vmlan-uplink",
        ],
    ),
    ("vmlan-api", &["vmlan-config", "vmlan-engine", "vmlan-frame", "vmlan-sandbox"]),
    ("vmlan-transport", &[]),
    ("vmlan-driver", &["vmlan-transport"]),
    ("vmlan-tools", &["vmlan-driver", "vmlan-transport"]),
    ("vmlan-netmap", &["vmlan-driver", "vmlan-tools", "vmlan-transport"]),
    ("vmlan-gateway", &["vmlan-config", "vmlan-driver", "vmlan-sandbox", "vmlan-transport"]),
    // It starts the program as a user would.
    ("vmlan-harness", &[]),
    ("vmlan-stepped", &[]),
    (
        "vmlan-lab",
        &[
            "vmlan-harness",
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
    "sandbox/src/trap.rs",
    "data/uplink/src/sys.rs",
    "control/keeper/src/sys.rs",
    "control/attach/src/sys.rs",
    "lab/src/sys.rs",
    "control/engine/src/worker/signal.rs",
    "guest/transport/src/mapping.rs",
    "guest/transport/src/memory.rs",
    "guest/transport/src/sys.rs",
    // VFIO's system calls.
    "guest/transport/src/pci/sys.rs",
    // The border to C programs: their arguments, and the memory that they share with the library.
    "guest/netmap-c/src/ffi.rs",
    "guest/netmap-c/src/region.rs",
    // TAP devices.
    "guest/netmap-c/src/sys.rs",
];

/// Crates that own no file descriptor, thread or clock, and no unsafe code.
const PURE: &[&str] = &["data/frame", "data/nic", "data/switch"];

/// Crates whose code a guest's bytes reach: no panicking shortcuts outside tests.
const NO_PANIC: &[&str] = &[
    "data/frame",
    "data/ram",
    "data/nic",
    "data/switch",
    "data/uplink",
    "control/keeper",
    "control/attach",
    "services/gateway",
];

/// Words of an older vocabulary, documents that nobody who clones this can open, and machines.
const FORBIDDEN: &[&str] = &["mend", "mends", "mending", "reliability.md", "DESIGN", "/work/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All `.rs` files of the workspace, relative to its root.
fn sources() -> Vec<PathBuf> {
    files("rs")
}

/// All files of the workspace whose names end so, relative to its root.
fn files(extension: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, extension: &str, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                walk(&path, extension, out);
            } else if path.extension().is_some_and(|e| e == extension) {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&root(), extension, &mut out);
    out.iter().map(|p| p.strip_prefix(root()).unwrap().to_owned()).collect()
}

/// Compiled into tests or fuzz targets only.
fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.ends_with("tests.rs")
        || text.ends_with("/fuzz.rs")
        || text.split('/').any(|p| ["tests", "benches", "fuzz"].contains(&p))
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
        assert!(extra.is_empty(), "{krate} must not depend on {extra:?}");
    }
    for krate in all.keys().filter(|k| !["vmlan", "vmlan-tests"].contains(&k.as_str())) {
        let named = MAY_DEPEND.iter().any(|(name, _)| name == krate);
        assert!(named, "{krate}: say in MAY_DEPEND what it may depend on");
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

#[test]
fn circles_of_files_stay_within_a_folder() {
    let manifests = files("toml").into_iter().filter(|p| p.ends_with("Cargo.toml"));
    for manifest in manifests {
        let src = root().join(manifest).with_file_name("src");
        let circles = circles::across_folders(&src);
        assert!(circles.is_empty(), "{}: files need each other: {circles:?}", src.display());
    }
}

#[test]
fn the_laboratory_can_be_left_out() {
    let manifest = read(&root().join("vmlan/Cargo.toml"));
    let line = manifest.lines().find(|line| line.starts_with("vmlan-lab")).unwrap();
    assert!(line.contains("optional = true"), "packages are built without it: {line}");
}

#[test]
fn nothing_speaks_of_what_is_not_here() {
    for path in ["rs", "md", "toml", "sh", "json"].iter().flat_map(|extension| files(extension)) {
        if path.ends_with("tests/tests/rules.rs") {
            continue;
        }
        // It names the trackers of other projects.
        let others_issues = path.ends_with("docs/known-faults.md");
        for (n, line) in read(&root().join(&path)).lines().enumerate() {
            let is_word = |c: char| c.is_alphanumeric() || "_./".contains(c);
            let words = line.split(|c| !is_word(c)).map(|word| word.trim_end_matches('.'));
            let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
            let outside = |word: &str| ["/work/", "../shared"].iter().any(|o| word.starts_with(o));
            let word = words.iter().find(|w| FORBIDDEN.contains(w) || outside(w));
            let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
            let mut pairs = words.windows(2);
            let issue = pairs.find(|pair| pair[0] == "issue" && is_number(pair[1]));
            let bad = word.is_some() || issue.is_some() && !others_issues;
            assert!(!bad, "{}:{}: {word:?} {issue:?}: {line}", path.display(), n + 1);
        }
    }
}

#[test]
fn documents_point_to_what_is_there() {
    let sources = sources();
    for file in files("md") {
        let dead = links::dead(&root(), &file, &sources);
        assert!(dead.is_empty(), "{} points to nothing: {dead:?}", file.display());
    }
}

/// Files whose lines programs write.
const GENERATED: &[&str] = &["docs/results.md", "docs/notify-mutations.md"];

/// What cannot be broken: a row of a Markdown table, and a line with an address in it.
fn is_one_piece(path: &Path, line: &str) -> bool {
    path.extension().is_some_and(|e| e == "md") && line.starts_with('|') || line.contains("://")
}

#[test]
fn lines_have_at_most_100_columns() {
    let mut long = Vec::new();
    for path in sources().into_iter().chain(files("md")) {
        if GENERATED.iter().any(|generated| path == Path::new(generated)) {
            continue;
        }
        for (n, line) in read(&root().join(&path)).lines().enumerate() {
            if line.chars().count() > 100 && !is_one_piece(&path, line) {
                long.push(format!("{}:{}", path.display(), n + 1));
            }
        }
    }
    assert!(long.is_empty(), "{} lines are longer: {}", long.len(), long.join(" "));
}
