//! Where things stand in a configuration file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::Range;
use super::table::Fields;

/// Lines of tables and of their keys.
#[derive(Debug, Default)]
pub(super) struct Lines {
    path: PathBuf,
    /// Where each line ends.
    ends: Vec<usize>,
    /// By table and key; no key: the table's head.
    found: HashMap<String, HashMap<Option<String>, usize>>,
}

impl Lines {
    pub(super) fn new(text: &str, path: &Path) -> Self {
        let texts = ["api", "api-mode", "cpus", "sandbox", "allow-dir"];
        let words = Range::ALL.iter().map(|range| range.key).chain(texts);
        let lines = words.filter_map(|key| Some((Some(key.into()), line_of_key(text, key)?)));
        let found = HashMap::from([("switch".to_owned(), lines.collect())]);
        let ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { path: path.into(), ends, found }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&mut self, table: &str, fields: &Spanned<Fields>) {
        let line = |at: usize| 1 + self.ends.partition_point(|end| *end < at);
        let keys = fields.get_ref().iter();
        let keys = keys.map(|(key, value)| (Some(key.clone()), line(value.span().start)));
        let head = [(None, line(fields.span().start))];
        let lines = keys.chain(head).collect();
        self.found.insert(table.into(), lines);
    }

    /// The line of a key of `table`, or of the table's head if the key is part of an address.
    pub(super) fn find(&self, table: &str, key: Option<&str>) -> Option<usize> {
        let lines = self.found.get(table)?;
        let line = |key: &str| lines.get(&Some(key.to_owned()));
        key.and_then(line).or_else(|| line("address")).or_else(|| lines.get(&None)).copied()
    }
}

pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|b| *b == b'\n').count()
}

/// The line of a key of `[switch]`, whose words no other table has.
pub(super) fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let has = |line: &str| line.split_once('=').is_some_and(|(word, _)| word.trim() == key);
    text.lines().position(has).map(|n| n + 1)
}
