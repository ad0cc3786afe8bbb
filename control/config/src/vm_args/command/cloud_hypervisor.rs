//! Cloud Hypervisor's command. An option is followed by any number of values, and old versions take
//! an option only once.

use std::ffi::OsString;

use super::keys::{keys, value};
use super::{CommandError, with};

/// `words` with the options `more`: that of the memory, and that of the NIC.
pub(super) fn plugged_in(
    words: &[OsString],
    more: &[String],
) -> Result<Vec<OsString>, CommandError> {
    let mut words = split(words);
    let zones = values(&words, "--memory-zone");
    let own = if zones.is_empty() { values(&words, "--memory") } else { zones };
    for at in &own {
        if let Some(shared) = shared(&words[*at].to_string_lossy())? {
            words[*at] = shared.into();
        }
    }
    if own.is_empty() {
        // As much as it takes by itself.
        words.extend(["--memory", "size=512M,shared=on"].map(OsString::from));
    }
    let Some([flag, nic]) = more.last_chunk::<2>() else { return Ok(words) };
    Ok(match values(&words, flag).last() {
        Some(last) => with(&words, last + 1, std::slice::from_ref(nic)),
        None => with(&words, words.len(), &[flag.clone(), nic.clone()]),
    })
}

/// `--option=value` as two words, behind which there is room for another value.
fn split(words: &[OsString]) -> Vec<OsString> {
    let of = |word: &OsString| match word.to_str().and_then(|w| w.split_once('=')) {
        Some((flag @ ("--memory" | "--memory-zone" | "--net" | "--user-device"), value)) => {
            vec![flag.into(), value.into()]
        }
        _ => vec![word.clone()],
    };
    words.iter().flat_map(of).collect()
}

/// Where the values of an option stand.
fn values(words: &[OsString], flag: &str) -> Vec<usize> {
    let mut inside = false;
    let mut places = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if word.to_string_lossy().starts_with('-') {
            inside = word == flag;
        } else if inside {
            places.push(at);
        }
    }
    places
}

/// What a memory is to say to be shared, if it does not.
fn shared(text: &str) -> Result<Option<String>, CommandError> {
    let keys = keys(text);
    match value(&keys, "shared") {
        Some("on" | "true") => Ok(None),
        Some(_) => {
            let id = value(&keys, "id").unwrap_or("--memory").to_owned();
            Err(CommandError::NotShared { id, fix: "write shared=on" })
        }
        None => Ok(Some(format!("{text},shared=on"))),
    }
}
