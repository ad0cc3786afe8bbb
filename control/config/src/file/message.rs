//! Errors of the TOML parser in words of the configuration file.

use super::Range;
use super::lines::line_of;

/// Says what is written twice, where the first one is, and what to do.
fn given_twice(line: &str, key: &str, text: &str) -> String {
    let head = line.split(']').next().filter(|head| head.starts_with('['));
    let Some(head) = head else { return format!("{key} is given twice: leave one out") };
    let is_head = |l: &str| l.trim().strip_prefix(head).is_some_and(|rest| rest.starts_with(']'));
    let first = text.lines().position(is_head).map_or(1, |n| n + 1);
    let fix = match head.split(['[', '.']).nth(1).unwrap_or_default() {
        "group" => "leave one out",
        what @ ("port" | "limit") => &format!("give this {what} another name, or leave one out"),
        _ => "put the keys of both into one",
    };
    format!("{head}] is given twice, first in line {first}: {fix}")
}

/// What toml says is wrong, in one line and in words of the file: its own message speaks of Rust's
/// types.
pub(super) fn plain_message(message: &str, text: &str, offset: usize) -> String {
    let line = text.lines().nth(line_of(text, offset) - 1).unwrap_or_default();
    let key = line.split_once('=').map_or("", |(key, _)| key.trim());
    if message.contains("duplicate key") {
        return given_twice(line.trim(), key, text);
    }
    let wanted = if let Some(Range { least, most, .. }) =
        Range::ALL.into_iter().find(|range| range.key == key)
    {
        format!("write {key} = a number from {least} to {most}")
    } else if message.contains("expected a map") || message.contains("expected struct") {
        r#"write [switch] and [port.NAME] on lines of their own, and below: address = "KIND:PLACE""#
            .into()
    } else if message.contains("expected a string") || message.contains("expected path string") {
        format!("write {key} = text in quotes")
    } else if message.contains("expected one of `switch`, `port`") {
        "write [switch], [limit.NAME], [group.NAME], [sflow], or [port.NAME] and below: \
         address = \"KIND:PLACE\""
            .into()
    } else {
        return message.replace('\n', ", ");
    };
    let what = message.split(", expected").next().unwrap_or_default().replace('\n', ", ");
    format!("{what}: {wanted}")
}
