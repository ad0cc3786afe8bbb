//! Putting a section into a Markdown file that people write as well.

use std::path::Path;

use crate::failure::Failure;

const END: &str = "<!-- end -->";

fn begin(bench: &str) -> String {
    format!("<!-- vmlan bench {bench} -->")
}

/// Replaces what stands between the markers of `bench` in the file; appends it with markers if
/// there are none.
pub(super) fn put(path: &Path, bench: &str, section: &str) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::Failed(format!("{}: {e}", path.display()));
    let old = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(fail(&e)),
    };
    let new = replaced(&old, bench, section).ok_or_else(|| {
        fail(&format!("'{}' is not followed by '{END}': add that line", begin(bench)))
    })?;
    super::write(path, &new)
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
    fn links_are_relative_to_the_file() {
        let link = |md, svg| link(Path::new(md), Path::new(svg));
        assert_eq!(link("docs/results.md", "docs/plots/raw.svg"), "plots/raw.svg");
        assert_eq!(link("results.md", "raw.svg"), "raw.svg");
        assert_eq!(link("docs/results.md", "/tmp/raw.svg"), "/tmp/raw.svg");
    }
}
