//! `docs/security.md` says what the lists say.

use std::path::Path;

use super::{ALL, Call, Group, NEVER, Only};
use crate::thread::Thread;

const BEGIN: &str = "<!-- system calls: written by a test of sandbox/ -->\n";
const END: &str = "<!-- end of system calls -->\n";

fn call(call: &Call) -> String {
    let name = call.name.trim_start_matches("SYS_");
    let only = match call.only {
        Only::Always => return format!("`{name}`"),
        Only::OwnProcess(_) => "this process",
        Only::Is(_, _, words) | Only::Null(_, words) | Only::Bits(_, _, _, words) => words,
    };
    format!("`{name}` ({only})")
}

fn row(group: &&Group) -> String {
    let calls: Vec<_> = group.calls.iter().map(call).collect();
    format!("| {} | {} | {} |\n", group.name, group.why, calls.join(", "))
}

fn kind(kind: Thread) -> String {
    let has = |group: &&&Group| kind.groups().iter().any(|own| own.name == group.name);
    let names: Vec<_> = ALL.iter().filter(has).map(|group| group.name).collect();
    format!("| {} | {} |\n", kind.name(), names.join(", "))
}

fn tables() -> String {
    let used = ALL.into_iter().filter(|group| group.name != NEVER.name);
    let groups: String = used.map(|group| row(&group)).collect();
    let kinds: String = Thread::ALL.into_iter().map(kind).collect();
    format!(
        "{BEGIN}\n| thread or process | groups of calls |\n| --- | --- |\n{kinds}\n\
         | group | why | system calls |\n| --- | --- | --- |\n{groups}\n{END}"
    )
}

/// `VMLAN_WRITE_DOCS=1 cargo test -p vmlan-sandbox --lib` writes them.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_documentation_lists_what_the_filters_allow() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the first mark");
    let (_, after) = rest.split_once(END).expect("the second mark");
    let right = format!("{before}{}{after}", tables());
    if std::env::var_os("VMLAN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &right).unwrap();
    }
    assert!(text == right, "docs/security.md differs: VMLAN_WRITE_DOCS=1 writes it anew");
}

#[test]
fn calls_that_nobody_may_make_are_in_no_list() {
    for kind in Thread::ALL {
        let wrong = kind.calls().find(|call| NEVER.calls.iter().any(|n| n.number == call.number));
        assert!(wrong.is_none(), "{}: {wrong:?}", kind.name());
    }
}
