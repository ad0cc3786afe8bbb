//! Turns tables of the configuration file into keys and values, the same as on the command line.

use std::collections::BTreeMap;

use toml::{Spanned, Value};

use super::TableError;
use crate::address::{AddressError, Draft, Kind, NamedAddress, Pair, PortName, Takes};

/// A table.
pub(super) type Fields = BTreeMap<String, Spanned<Value>>;

/// What is wrong, and with which key, if it is one.
pub(super) type TableFailure = (Option<String>, TableError);

impl From<TableError> for TableFailure {
    fn from(e: TableError) -> Self {
        (None, e)
    }
}

impl From<AddressError> for TableFailure {
    fn from(e: AddressError) -> Self {
        let key = e.key().map(str::to_owned);
        (key, e.into())
    }
}

/// `[port.NAME]`
pub(super) fn port(name: &str, mut fields: Fields) -> Result<NamedAddress, TableFailure> {
    let name: PortName = name.parse()?;
    let mut draft = whereabouts(&mut fields)?;
    let kind = draft.kind();
    for (key, value) in fields {
        if key == "group" && value.get_ref().is_array() {
            return Err((Some(key), TableError::GroupList));
        }
        let list = kind.all_keys().find(|k| k.name == key).filter(|k| k.takes.is_list());
        let text = text(&key, value.into_inner(), list.map(|k| &k.takes))?;
        let wrong = |e| (Some(key.clone()), TableError::Address(e));
        draft.set(&key, Some(&text)).map_err(wrong)?;
    }
    Ok(NamedAddress { name, address: draft.check()? })
}

/// `address`, or `kind` and `place`.
fn whereabouts(fields: &mut Fields) -> Result<Draft, TableFailure> {
    if let Some(address) = take_text(fields, "address")? {
        if let Some(key) = ["kind", "place"].into_iter().find(|key| fields.contains_key(*key)) {
            return Err((Some(key.into()), TableError::Both(key)));
        }
        return Ok(Draft::parse(&address)?);
    }
    let missing = TableError::Missing;
    let kind: Kind = take_text(fields, "kind")?.ok_or(missing("kind"))?.parse()?;
    let place = take_text(fields, "place")?.ok_or(missing("place"))?;
    Ok(Draft::new(kind, &place)?)
}

/// Words and values of a table without lists.
pub(super) fn pairs(fields: Fields) -> Result<Vec<Pair>, TableFailure> {
    let pair = |(key, value): (String, Spanned<Value>)| {
        let text = text(&key, value.into_inner(), None)?;
        Ok((key, text))
    };
    fields.into_iter().map(pair).collect()
}

/// A value as it stands in an address.
fn text(key: &str, value: Value, list: Option<&Takes>) -> Result<String, TableFailure> {
    let plain = |value: Value| match value {
        Value::Boolean(on) => Some(if on { "on" } else { "off" }.to_owned()),
        Value::Integer(n) => Some(n.to_string()),
        Value::String(text) => Some(text),
        _ => None,
    };
    let wrong = |e: TableError| (Some(key.to_owned()), e);
    match (value, list) {
        (Value::Array(items), Some(takes)) => {
            let numbers = matches!(takes, Takes::Vids);
            let item = |v: Value| {
                let good = v.is_str() || numbers && v.is_integer();
                good.then(|| plain(v))?.filter(|text| !text.contains('+'))
            };
            let items: Option<Vec<_>> = items.into_iter().map(item).collect();
            let (one, two) = takes.example();
            let not_list = || wrong(TableError::NotList(key.into(), one, two));
            items.map(|items| items.join("+")).ok_or_else(not_list)
        }
        (value, _) => plain(value).ok_or_else(|| wrong(TableError::NotValue(key.into()))),
    }
}

fn take_text(fields: &mut Fields, key: &'static str) -> Result<Option<String>, TableFailure> {
    match fields.remove(key).map(Spanned::into_inner) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err((Some(key.into()), TableError::NotText(key))),
    }
}
