//! `KEY=VALUE,...` as VMMs take it.

/// The keys of an option. A bare word has an empty value; QEMU also takes JSON.
pub(super) fn keys(text: &str) -> Vec<(String, String)> {
    if text.starts_with('{') {
        return json(text).unwrap_or_default();
    }
    // Two commas are one inside a value.
    let parts = text.replace(",,", "\0");
    let pair = |part: &str| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        (key.to_owned(), value.replace('\0', ","))
    };
    parts.split(',').map(pair).collect()
}

fn json(text: &str) -> Option<Vec<(String, String)>> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    let word = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        serde_json::Value::Bool(on) => if on { "on" } else { "off" }.to_owned(),
        other => other.to_string(),
    };
    Some(object.into_iter().map(|(key, value)| (key, word(value))).collect())
}

/// The value of `key`: of several the last counts.
pub(super) fn value<'k>(keys: &'k [(String, String)], key: &str) -> Option<&'k str> {
    keys.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
}
