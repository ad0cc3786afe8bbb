//! Putting sections into a Markdown file that people write as well.

use std::path::Path;

use super::report::Circumstances;
use crate::failure::Failure;
use vmlan_harness::output_of;

const END: &str = "<!-- end -->";
/// The section about the machine and the commit.
const MACHINE: &str = "machine";
/// As wide as text is here.
const WIDTH: usize = 99;

fn begin(bench: &str) -> String {
    format!("<!-- vmlan bench {bench} -->")
}

/// Replaces what stands between the markers of this bench in the file and of its long tables, or
/// appends them with markers. Where there is a place for them, the machine and the commit too.
pub(super) fn put(
    path: &Path,
    about: &Circumstances,
    section: &str,
    long: Option<&str>,
) -> Result<(), Failure> {
    super::change(path, |old| {
        changed(old.unwrap_or_default(), about, section, long)
            .map_err(|why| Failure::Failed(format!("{}: {why}", path.display())))
    })
}

fn changed(
    old: &str,
    about: &Circumstances,
    section: &str,
    long: Option<&str>,
) -> Result<String, String> {
    let mut text = old.to_owned();
    let long_name = format!("{}, long", about.bench);
    for (name, section) in [(about.bench, Some(section)), (&long_name, long)] {
        // What stood there is of another run.
        let section = section.or_else(|| text.contains(&begin(name)).then_some(""));
        let Some(section) = section else { continue };
        text = put_one(&text, name, &wrapped(section))?;
    }
    if text.contains(&begin(MACHINE)) {
        // What stood there before may be of another commit.
        text = put_one(&text, MACHINE, "")?;
        let machine = machine(about, &commits(&text));
        text = put_one(&text, MACHINE, &wrapped(&machine))?;
    }
    Ok(text)
}

fn put_one(text: &str, name: &str, section: &str) -> Result<String, String> {
    replaced(text, name, section)
        .ok_or_else(|| format!("'{}' is not followed by '{END}': add that line", begin(name)))
}

fn replaced(old: &str, bench: &str, section: &str) -> Option<String> {
    let begin = begin(bench);
    let whole = format!("{begin}\n{section}{END}\n");
    let Some((before, rest)) = old.split_once(&begin) else {
        let gap = if old.is_empty() { "" } else { "\n" };
        return Some(format!("{old}{gap}{whole}"));
    };
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{whole}{}", after.strip_prefix('\n').unwrap_or(after)))
}

/// Where and when, and whether all sections are of one commit.
fn machine(about: &Circumstances, commits: &[String]) -> String {
    let today = output_of("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default();
    let whose = match commits {
        [_] => "all sections are of this commit".into(),
        all => format!("**sections of different commits: {}**", all.join(", ")),
    };
    format!("{}, {}; caches: {}; {whose}.\n", today.trim(), about.machine, caches().join(", "))
}

/// Of the first core.
fn caches() -> Vec<String> {
    let dir = |n: u8| format!("/sys/devices/system/cpu/cpu0/cache/index{n}");
    let read = |n, file| std::fs::read_to_string(format!("{}/{file}", dir(n)));
    let one = |n| {
        let [level, kind, size] =
            ["level", "type", "size"].map(|file| Some(read(n, file).ok()?.trim().to_owned()));
        let kind = kind.filter(|kind| kind != "Unified").unwrap_or_default();
        Some(format!("L{} {} {}", level?, kind.to_lowercase(), size?).replace("  ", " "))
    };
    (0..8).map_while(one).collect()
}

/// The commits that sections between markers name: what people write names others.
fn commits(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let is_hash = |word: &&str| word.len() == 12 && word.bytes().all(|b| b.is_ascii_hexdigit());
    for section in text.split("<!-- vmlan bench ").skip(1) {
        let (section, _) = section.split_once(END).unwrap_or((section, ""));
        let words: Vec<_> = section.split_whitespace().collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "commit" || pair[0] == "Commit") {
            let word = pair[1].trim_end_matches(['.', ';', ',']);
            if is_hash(&word) && !found.iter().any(|known| known == word) {
                found.push(word.to_owned());
            }
        }
    }
    found
}

/// Lines of at most [`WIDTH`]; tables stay as they are, and items of lists are indented.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut column = 0;
        for (n, word) in line.split(' ').enumerate() {
            let is_table = line.starts_with('|');
            if !is_table && n > 0 && column + 1 + word.chars().count() > WIDTH {
                out += &format!("\n{indent}");
                column = indent.len();
            } else if n > 0 {
                out.push(' ');
                column += 1;
            }
            out += word;
            column += word.chars().count();
        }
        out.push('\n');
    }
    out
}

/// `svg` as a link from `markdown`: relative if it is below the same directory.
pub(super) fn link(markdown: &Path, svg: &Path) -> String {
    let parent = markdown.parent().unwrap_or(Path::new(""));
    svg.strip_prefix(parent).unwrap_or(svg).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let old = "# By hand\n<!-- vmlan bench raw -->\nold\n<!-- end -->\n\nmore by hand\n";
        let new = replaced(old, "raw", "new\n").unwrap();
        assert_eq!(new, "# By hand\n<!-- vmlan bench raw -->\nnew\n<!-- end -->\n\nmore by hand\n");
        assert_eq!(replaced(&new, "raw", "new\n").unwrap(), new);
        let both = replaced(&new, "latency", "us\n").unwrap();
        assert!(both.starts_with(&new) && both.ends_with("us\n<!-- end -->\n"), "{both}");
        assert!(replaced("<!-- vmlan bench raw -->\nno end", "raw", "x").is_none());
    }

    #[test]
    fn sections_of_two_commits_are_told() {
        let text = "commit 000000000000\n<!-- vmlan bench raw -->\nx; commit aaaaaaaaaaaa.\n\
                    <!-- end -->\ncommit cccccccccccc.\n<!-- vmlan bench raw, long -->\n\
                    commit to it; commit\nbbbbbbbbbbbb. Commit aaaaaaaaaaaa.\n<!-- end -->\n\
                    By hand: commit dddddddddddd.\n";
        assert_eq!(commits(text), ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]);
        assert!(commits("").is_empty());
    }

    #[test]
    fn paragraphs_are_wrapped_and_tables_are_not() {
        let words = "word ".repeat(30);
        let text = wrapped(&format!("| {words}|\n- {words}\n"));
        let lines: Vec<_> = text.lines().map(str::len).collect();
        assert!(lines[0] > 140 && lines[1] <= WIDTH && lines[2] <= WIDTH, "{text}");
        assert!(text.lines().nth(2).unwrap().starts_with("  word"));
    }

    #[test]
    fn links_are_relative_to_the_file() {
        let link = |md, svg| link(Path::new(md), Path::new(svg));
        assert_eq!(link("docs/results.md", "docs/plots/raw.svg"), "plots/raw.svg");
        assert_eq!(link("results.md", "raw.svg"), "raw.svg");
        assert_eq!(link("docs/results.md", "/tmp/raw.svg"), "/tmp/raw.svg");
    }
}
