//! Log lines: to standard error, one line each, with the priorities journald reads.

use std::io::Write as _;
use std::time::Instant;

use log::{Level, LevelFilter};

/// Logs from `info` up, or as `VMLAN_LOG` says (`debug`, `warn,vmlan_attach=debug`...).
pub(crate) fn init() {
    // Set by systemd when standard error goes to the journal, which adds time and program itself.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let start = Instant::now();
    let mut builder = env_logger::Builder::new();
    builder.filter_level(LevelFilter::Info).parse_env("VMLAN_LOG").format(move |out, record| {
        let text = printable(&record.args().to_string());
        if journal {
            // sd-daemon(3): a syslog priority in angle brackets.
            return writeln!(out, "<{}>{text}", priority(record.level()));
        }
        writeln!(out, "[{:9.3}] {:5} {text}", start.elapsed().as_secs_f64(), record.level())
    });
    // Fails only if there is a logger already. That one will do.
    let _ = builder.try_init();
}

/// One line for a terminal or a journal: texts of peers (names, paths, versions) may hold escape
/// sequences. Control characters become spaces.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

const fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_control_character_reaches_the_log() {
        let text = "a\x1b[2Jb\nc\rd\u{9b}31me\0f\x7fg\th é";
        assert_eq!(super::printable(text), "a [2Jb c d 31me f g h é");
    }
}
