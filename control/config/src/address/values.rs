//! Values of the keys of one address, or of one table of the configuration file.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use vmlan_frame::Mac;
use vmlan_switch::policy::Steer;

use super::{AddressError, IpRule, Key, MacRule, PortName, Takes, Value, ValueError, VidList};
use crate::gateway::{Forward, HostPorts, Ipv6, Prefix};
use crate::nearest_word::hint;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values(BTreeMap<&'static str, Value>);

/// Keys of which a port has one at most: each says in which broadcast domains it is.
const DOMAINS: [&str; 4] = ["vlan", "trunk", "qinq", "qinq_trunk"];

/// Keys that mean nothing without one of certain others.
const COMPANIONS: [(&str, &[&str], &str); 4] = [
    ("steer", &["team"], "team=NAME"),
    ("native", &["trunk"], "trunk=VLANS"),
    ("from_burst", &["from_rate", "from_frames"], "from_rate or from_frames"),
    ("to_burst", &["to_rate", "to_frames"], "to_rate or to_frames"),
];

/// Keys that make a port watch others.
const WATCH: [&str; 2] = ["watch", "watch_vlan"];

/// Keys that are allowed beside `watch`: what a watching port is sent can be limited.
const WATCHER: [&str; 6] = ["watch", "watch_vlan", "to_rate", "to_frames", "to_burst", "to_limit"];

/// The value of a key, if it is given and of this form.
macro_rules! typed {
    ($values:expr, $key:expr, $form:pat => $value:expr) => {
        match $values.get($key) {
            Some($form) => Some($value),
            _ => None,
        }
    };
}

impl Values {
    pub(super) fn on(&self, key: &str) -> Option<bool> {
        typed!(self, key, Value::OnOff(on) => *on)
    }

    pub(super) fn is_on(&self, key: &str) -> bool {
        self.on(key) == Some(true)
    }

    pub(super) fn short(&self, key: &str) -> Option<u16> {
        typed!(self, key, Value::Short(n) => *n)
    }

    pub(super) fn number(&self, key: &str) -> Option<u32> {
        typed!(self, key, Value::Number(n) | Value::Mode(n) => *n)
    }

    pub(super) fn count(&self, key: &str) -> Option<u64> {
        typed!(self, key, Value::Count(n) => *n)
    }

    pub(super) fn rate(&self, key: &str) -> Option<u64> {
        typed!(self, key, Value::Rate(bits) => *bits)
    }

    pub(super) fn time(&self, key: &str) -> Option<Duration> {
        typed!(self, key, Value::Time(time) => *time)
    }

    pub(super) fn word(&self, key: &str) -> Option<&'static str> {
        typed!(self, key, Value::Word(word) => *word)
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        typed!(self, key, Value::Text(text) => text.clone())
    }

    pub(super) fn mac(&self, key: &str) -> Option<Mac> {
        typed!(self, key, Value::Mac(mac) => *mac)
    }

    pub(super) fn macs(&self, key: &str) -> MacRule {
        typed!(self, key, Value::Macs(macs) => macs.clone()).unwrap_or(MacRule::Any)
    }

    pub(super) fn ips(&self, key: &str) -> IpRule {
        typed!(self, key, Value::Ips(ips) => ips.clone()).unwrap_or(IpRule::Any)
    }

    pub(super) fn steer(&self, key: &str) -> Option<Steer> {
        typed!(self, key, Value::Steer(steer) => *steer)
    }

    pub(super) fn socket(&self, key: &str) -> Option<SocketAddr> {
        typed!(self, key, Value::Socket(socket) => *socket)
    }

    pub(super) fn ip(&self, key: &str) -> Option<IpAddr> {
        typed!(self, key, Value::Ip(ip) => *ip)
    }

    /// The inner `None`: all.
    pub(super) fn vids(&self, key: &str) -> Option<Option<&VidList>> {
        typed!(self, key, Value::Vids(vids) => vids.as_ref())
    }

    pub(super) fn names(&self, key: &str) -> Option<&[PortName]> {
        typed!(self, key, Value::Names(names) => names.as_slice())
    }

    /// The inner `None`: all.
    pub(super) fn names_or_all(&self, key: &str) -> Option<Option<&[PortName]>> {
        typed!(self, key, Value::Some(names) => names.as_deref())
    }

    /// `None`: any.
    pub(super) fn name(&self, key: &str) -> Option<PortName> {
        typed!(self, key, Value::Name(name) => name.clone()).flatten()
    }

    /// The outer `None`: not given; the inner one: nobody.
    pub(super) fn servers(&self, key: &str) -> Option<Option<&[IpAddr]>> {
        typed!(self, key, Value::Servers(list) => list.as_deref())
    }

    pub(super) fn forwards(&self, key: &str) -> &[Forward] {
        typed!(self, key, Value::Forwards(list) => list.as_slice()).unwrap_or_default()
    }

    pub(super) fn ipv6(&self, key: &str) -> Ipv6 {
        typed!(self, key, Value::Ipv6(rule) => *rule).unwrap_or_default()
    }

    pub(super) fn host_ports(&self, key: &str) -> HostPorts {
        typed!(self, key, Value::HostPorts(ports) => ports.clone()).unwrap_or_default()
    }

    /// The outer `None`: not given; the inner one: nowhere.
    pub(super) fn prefixes(&self, key: &str) -> Option<Option<&[Prefix]>> {
        typed!(self, key, Value::Prefixes(list) => list.as_deref())
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// Sets a key of `of`, which has `keys`.
    pub(super) fn set(
        &mut self,
        of: &'static str,
        keys: impl Iterator<Item = &'static Key> + Clone,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), AddressError> {
        let (key, value) = check(of, keys, name, value)?;
        match self.0.insert(key, value) {
            None => Ok(()),
            Some(_) => Err(AddressError::Twice(name.into())),
        }
    }

    /// The same, but a value that is there is replaced, and an empty one removes the key.
    pub(super) fn replace(
        &mut self,
        of: &'static str,
        keys: impl Iterator<Item = &'static Key> + Clone,
        name: &str,
        value: &str,
    ) -> Result<(), AddressError> {
        if value.is_empty() {
            self.0.remove(find(of, keys, name)?.name);
        } else {
            let (key, value) = check(of, keys, name, Some(value))?;
            self.0.insert(key, value);
        }
        Ok(())
    }

    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let keys: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        keys.into_iter().filter(|key| self.get(key) != other.get(key)).copied().collect()
    }

    /// `key=value`, for messages.
    pub(super) fn say(&self, key: &str) -> String {
        self.get(key).map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
    }

    /// What contradicts or needs something else.
    pub(super) fn check_together(&self) -> Result<(), AddressError> {
        let against = |a: &str, b: &str| Err(AddressError::Contradiction(self.say(a), self.say(b)));
        let mut domains = DOMAINS.into_iter().filter(|key| self.0.contains_key(key));
        if let (Some(one), Some(two)) = (domains.next(), domains.next()) {
            return against(one, two);
        }
        for (key, others, wanted) in COMPANIONS {
            if let Some((key, _)) = self.0.get_key_value(key)
                && !others.iter().any(|other| self.0.contains_key(other))
            {
                return Err(AddressError::Alone { key, given: self.say(key), wanted });
            }
        }
        let mut policies = super::POLICY.iter().map(|key| key.name);
        let switched = |key: &&str| self.0.contains_key(key) && !WATCHER.contains(key);
        let watch = WATCH.into_iter().find(|key| self.0.contains_key(key));
        match (watch, policies.find(switched)) {
            (Some(watch), Some(key)) => against(watch, key),
            _ => Ok(()),
        }
    }
}

fn find(
    of: &'static str,
    mut keys: impl Iterator<Item = &'static Key> + Clone,
    name: &str,
) -> Result<&'static Key, AddressError> {
    let all = keys.clone();
    keys.find(|key| key.name == name).ok_or_else(|| {
        let words: Vec<_> = all.map(|key| key.name).collect();
        AddressError::Key { given: name.into(), of, hint: hint(name, &words) }
    })
}

fn check(
    of: &'static str,
    keys: impl Iterator<Item = &'static Key> + Clone,
    name: &str,
    value: Option<&str>,
) -> Result<(&'static str, Value), AddressError> {
    let Key { name: key, takes, .. } = find(of, keys, name)?;
    let wanted = || takes.to_string();
    let text = match (value, takes) {
        (Some(text), _) => text,
        (None, Takes::OnOff) => "on",
        (None, _) => return Err(AddressError::NoValue { key, wanted: wanted() }),
    };
    let given = || text.to_owned();
    let value = takes.parse(text).map_err(|bad| match bad {
        ValueError::Form => AddressError::Value { key, given: given(), wanted: wanted() },
        ValueError::Twice(what) => AddressError::Double { key, given: given(), what },
    })?;
    Ok((key, value))
}
