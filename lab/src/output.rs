//! What commands print.

use vmlan_tools::output;

use crate::failure::Failure;

/// Prints `text`.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    output::print(text).map_err(Failure::Failed)
}

/// Prints `value` as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    output::print_json(value).map_err(Failure::Failed)
}
