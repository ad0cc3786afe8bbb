//! What commands print.

use std::borrow::Cow;
use std::path::Path;

use vmlan_config::vm_args::shell_word;
use vmlan_tools::output;

use crate::exit::Failure;

/// Commands that `text` names as a way out, like `` `vmlan port list` ``, with the `--api` that
/// this command was given: without it they would talk to another switch, or to none.
pub(crate) fn with_api<'t>(text: &'t str, api: Option<&Path>) -> Cow<'t, str> {
    match api {
        Some(api) => text.replace("`vmlan ", &format!("`{} ", program(Some(api)))).into(),
        None => text.into(),
    }
}

/// `vmlan`, or `vmlan --api PATH`.
pub(crate) fn program(api: Option<&Path>) -> String {
    match api {
        Some(api) => format!("vmlan --api {}", shell_word(&api.display().to_string())),
        None => "vmlan".to_owned(),
    }
}

/// Prints `text`.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    output::print(text).map_err(Failure::Failed)
}

/// Prints a line about a run that goes on: beside the summary, or, where that is JSON, to standard
/// error. A reader that went away must not end the run.
pub(crate) fn print_progress(json: bool, line: &dyn std::fmt::Display) {
    if json {
        eprintln!("{line}");
    } else {
        let _ = print(&format!("{line}\n"));
    }
}

/// Prints `value` as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    output::print_json(value).map_err(Failure::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_switch_that_was_asked() {
        let text = "there is none: see `vmlan port list`, or `port list`";
        assert_eq!(with_api(text, None), text);
        let there = with_api(text, Some(Path::new("/tmp/a b")));
        assert_eq!(there, "there is none: see `vmlan --api '/tmp/a b' port list`, or `port list`");
    }
}
