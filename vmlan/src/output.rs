//! What commands print.

use crate::exit::Failure;

/// Prints `text`. A reader that has gone away, like `head`, is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write the output: {e}")))
        }
        _ => Ok(()),
    }
}

/// A line of news of a run: beside the summary, or, where that is JSON, to standard error. A reader that went away must not end the run.
pub(crate) fn print_news(json: bool, line: &dyn std::fmt::Display) {
    if json {
        eprintln!("{line}");
    } else {
        let _ = print(&format!("{line}\n"));
    }
}

/// Prints `value` as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::Failed(e.to_string()))?;
    print(&(text + "\n"))
}
