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

/// As [`columns`], with a text of any length behind each row.
pub fn columns_and(rows: &[Vec<String>], left: usize, behind: &[String]) -> String {
    let lines = columns(rows, left);
    if behind.iter().skip(1).all(String::is_empty) {
        return lines;
    }
    // The last column is to the right: every line is as long as the longest.
    let line =
        |(line, more): (&str, &String)| format!("{}\n", format!("{line}  {more}").trim_end());
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
}
