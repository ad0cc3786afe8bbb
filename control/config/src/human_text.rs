//! Text for people: tables, numbers with units.

/// Help of a word in lines of 80 columns and less beside a margin: clap's own folding forgets the
/// margin.
pub fn folded(help: &str, margin: usize) -> String {
    let (mut text, mut column) = (String::new(), margin);
    for word in help.split(' ') {
        if column + word.len() > 80 {
            text += &format!("\n{:margin$}", "");
            column = margin;
        } else if column > margin {
            text.push(' ');
        }
        text += word;
        column += word.len() + 1;
    }
    text
}

/// A count as floating point: exact up to 2^53, which is enough for people.
pub fn to_f64(n: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    {
        n as f64
    }
}

/// `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// `1234567.0` as `1.23 M`.
pub fn si(x: f64) -> String {
    let (scaled, unit) = match x {
        x if x >= 1e9 => (x / 1e9, " G"),
        x if x >= 1e6 => (x / 1e6, " M"),
        x if x >= 1e4 => (x / 1e3, " k"),
        x => return format!("{x:.0}"),
    };
    format!("{scaled:.2}{unit}")
}

/// Lines up `rows`; the first `left` columns to the left, the others to the right.
pub fn columns(rows: &[Vec<String>], left: usize) -> String {
    let wide = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width: Vec<usize> = (0..wide)
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&width)
            .enumerate()
            .map(
                |(c, (cell, w))| {
                    if c < left { format!("{cell:<w$}") } else { format!("{cell:>w$}") }
                },
            )
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// As [`columns`], with a text of any length behind each row, in lines of at most `width`: what
/// does not fit goes into further tables below, with the first column again.
pub fn columns_and(rows: &[Vec<String>], left: usize, behind: &[String], width: usize) -> String {
    let tables = split(rows, width);
    let mut text = String::new();
    for (at, table) in tables.iter().enumerate() {
        let cells = |row: &Vec<String>| table.iter().filter_map(|c| row.get(*c)).cloned().collect();
        let part: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let left = table.iter().filter(|c| **c < left).count();
        let gap = if at == 0 { "" } else { "\n" };
        if at + 1 < tables.len() {
            text += &format!("{gap}{}", columns(&part, left));
            continue;
        }
        let fits = wide(&part) + 2 + longest(behind.iter()) <= width;
        if fits || table.len() < 2 || behind.iter().skip(1).all(String::is_empty) {
            return text + gap + &with_behind(&part, left, behind);
        }
        let names: Vec<_> = rows.iter().map(|row| row.iter().take(1).cloned().collect()).collect();
        text += &format!("{gap}{}\n", columns(&part, left));
        text += &with_behind(&names, 1, behind);
    }
    text
}

fn longest<'t>(texts: impl Iterator<Item = &'t String>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}

/// Columns of the longest line of a table.
fn wide(rows: &[Vec<String>]) -> usize {
    columns(rows, 1).lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// The columns of each table of at most `width`, the first one in all of them.
fn split(rows: &[Vec<String>], width: usize) -> Vec<Vec<usize>> {
    let heads = rows.first().map_or(0, Vec::len);
    let size = |c: usize| longest(rows.iter().filter_map(|row| row.get(c)));
    let first = size(0);
    let (mut tables, mut used) = (vec![vec![0]], first);
    for c in 1..heads {
        let more = 2 + size(c);
        match tables.last_mut() {
            Some(table) if table.len() < 2 || used + more <= width => {
                table.push(c);
                used += more;
            }
            _ => {
                tables.push(vec![0, c]);
                used = first + more;
            }
        }
    }
    tables
}

fn with_behind(rows: &[Vec<String>], left: usize, behind: &[String]) -> String {
    let lines = columns(rows, left);
    if behind.iter().skip(1).all(String::is_empty) {
        return lines;
    }
    let wide = wide(rows);
    let line = |(line, more): (&str, &String)| {
        format!("{}\n", format!("{line:<wide$}  {more}").trim_end())
    };
    lines.lines().zip(behind).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(si(999.6), "1000");
        assert_eq!(si(12_345.0), "12.35 k");
        assert_eq!(si(2.5e9), "2.50 G");
    }

    #[test]
    fn wide_tables_are_split() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = [row(["PORT", "LINK", "FRAMES", "BYTES"]), row(["vm1", "up", "1", "2"])];
        let behind = ["MOSTLY".to_owned(), "storm 3".to_owned()];
        let table = |width| columns_and(&rows, 2, &behind, width);
        let wide = "PORT  LINK  FRAMES  BYTES  MOSTLY\nvm1   up         1      2  storm 3\n";
        assert_eq!(table(usize::MAX), wide);
        assert_eq!(table(34), wide);
        let narrow = "PORT  LINK  FRAMES\nvm1   up         1\n\n\
                      PORT  BYTES  MOSTLY\nvm1       2  storm 3\n";
        assert_eq!(table(20), narrow);
        let alone = "PORT  LINK  FRAMES\nvm1   up         1\n\n\
                     PORT  BYTES\nvm1       2\n\nPORT  MOSTLY\nvm1   storm 3\n";
        assert_eq!(table(18), alone);
        // Nothing gets lost where nothing fits.
        assert_eq!(table(0).matches("vm1").count(), 4);
    }
}
