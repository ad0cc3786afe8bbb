//! What a Markdown file points to: files, their headings, and sources by name.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// What `file` of the tree at `root` points to and is not there.
pub fn dead(root: &Path, file: &Path, sources: &[PathBuf]) -> Vec<String> {
    let text = super::read(&root.join(file));
    let links = text_of(&text).flat_map(targets).filter(|to| !leads_out(to));
    let links = links.filter(|to| !is_there(root, file, to));
    let names = text_of(&text).flat_map(source_names).filter(|name| !is_source(name, sources));
    links.chain(names).map(str::to_owned).collect()
}

/// Lines outside blocks of code.
fn text_of(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(to, _)| to)
}

fn leads_out(to: &str) -> bool {
    to.contains("://") || to.starts_with("mailto:")
}

fn is_there(root: &Path, file: &Path, to: &str) -> bool {
    let (path, anchor) = to.split_once('#').unwrap_or((to, ""));
    let mut target = PathBuf::new();
    let path = if path.is_empty() { file.to_owned() } else { file.with_file_name(path) };
    for part in path.components() {
        // Out of the tree is nowhere.
        let up = part == Component::ParentDir;
        if up && !target.pop() {
            return false;
        } else if !up {
            target.push(part);
        }
    }
    let target = root.join(target);
    target.exists() && (anchor.is_empty() || anchors(&super::read(&target)).contains(anchor))
}

/// Headings as GitHub names them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in text_of(text).filter(|line| line.starts_with('#')) {
        // Of a link in a heading the text counts.
        let parts = line.trim_start_matches('#').trim().split("](").enumerate();
        let title = parts.map(|(n, part)| match part.split_once(')') {
            Some((_, rest)) if n > 0 => rest,
            _ => part,
        });
        let named = title.flat_map(str::chars).filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || "-_".contains(c) => Some(c.to_ascii_lowercase()),
            _ => None,
        });
        let named: String = named.collect();
        let again = (1..).map(|n| format!("{named}-{n}"));
        let free = std::iter::once(named.clone()).chain(again).find(|name| !all.contains(name));
        all.extend(free);
    }
    all
}

/// Paths of Rust sources; `MODEL` stands for any. Not addresses, and not what ends a pattern.
fn source_names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_alphanumeric() && !"_./-".contains(c));
    let words = words.filter(|word| word.ends_with(".rs") && *word != ".rs");
    words.filter(|word| !word.starts_with("//") && !word.contains("MODEL"))
}

/// A path may begin at any folder, and leave out `src`.
fn is_source(name: &str, sources: &[PathBuf]) -> bool {
    let parts = |path: &Path| -> Vec<String> {
        let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
        parts.filter(|part| part != "src").collect()
    };
    let name = parts(Path::new(name));
    sources.iter().any(|source| parts(source).ends_with(&name))
}

#[test]
fn headings_are_named_as_on_github() {
    let text = "# `make x`, a [b](c.md)!\n```sh\n# no heading\n```\n## A_b C-d\n## A_b C-d\n";
    let found = anchors(text);
    assert_eq!(found.iter().collect::<Vec<_>>(), ["a_b-c-d", "a_b-c-d-1", "make-x-a-b"]);
}

#[test]
fn dead_links_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[a](b.md) [b](#here) [c](#there) [d](../x.md) [e](https://e) `nic/a.rs` `nic/b.rs`";
    std::fs::write(dir.path().join("a.md"), format!("# Here\n{text}\n")).unwrap();
    let sources = ["data/nic/src/a.rs".into()];
    let found = dead(dir.path(), Path::new("a.md"), &sources);
    assert_eq!(found, ["b.md", "#there", "../x.md", "nic/b.rs"]);
}
