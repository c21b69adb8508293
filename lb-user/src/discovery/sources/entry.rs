//! One entry of a file, an answer or a key: loose JSON in, an endpoint or the reason why not out.
//!
//! An entry is an address as a string, or an object:
//!
//! | key | value |
//! |---|---|
//! | `address` | `"192.0.2.1"`, `"192.0.2.1:80"`, `"[2001:db8::1]:80"` |
//! | `port` | 1 to 65,535 |
//! | `weight` | 1 to 65,535; 1 unless given |
//! | `state` | `"serving"` or `"draining"`; serving unless given |
//! | `zone` | a word |
//! | `tags` | a list of words |
//!
//! Numbers may be strings, as labels are. Other keys are somebody else's and left alone; `null` means not given.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::address;
use crate::{
    discovery::{
        Endpoint, Refused,
        endpoint::{MAX_TAGS, MAX_WEIGHT, MAX_WORD},
    },
    state::desired::BackendState,
};

/// What an entry says of an endpoint besides its address; `None` is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    pub port: Option<u16>,
    pub weight: Option<u32>,
    pub state: Option<BackendState>,
    pub zone: Option<String>,
    pub tags: Option<BTreeSet<String>>,
}

/// Reads one entry.
pub fn endpoint(entry: &Value) -> Result<Endpoint, Refused> {
    let refuse = |reason: String| Refused::new(text(entry), reason);
    match entry {
        Value::String(address) => at(address, &Traits::default()),
        Value::Object(object) => {
            let address = match object.get("address") {
                Some(Value::String(address)) => address,
                Some(_) => return Err(refuse("`address` is no string".to_owned())),
                None => return Err(refuse("there is no `address`".to_owned())),
            };
            let traits = Traits::read(object).map_err(refuse)?;
            at(address, &traits)
        }
        _ => Err(refuse("it is neither an object nor an address".to_owned())),
    }
}

/// The endpoint at an address in words, with what else is known of it.
pub fn at(address: &str, traits: &Traits) -> Result<Endpoint, Refused> {
    let refuse = |reason: String| Refused::new(address, reason);
    let (ip, port) = address::parse(address).map_err(refuse)?;
    let port = match (port, traits.port) {
        (Some(one), Some(other)) if one != other => {
            return Err(refuse(format!("`port` says {other}")));
        }
        (one, other) => one.or(other),
    };
    let mut endpoint = address::endpoint(ip, port).map_err(refuse)?;
    traits.apply(&mut endpoint);
    Ok(endpoint)
}

impl Traits {
    pub fn read(object: &Map<String, Value>) -> Result<Self, String> {
        let given = |key| object.get(key).filter(|value| !value.is_null());
        Ok(Self {
            port: given("port")
                .map(|value| number("port", value, u32::from(u16::MAX)))
                .transpose()?
                // In range, as was just checked.
                .map(|port| port as u16),
            weight: given("weight")
                .map(|value| number("weight", value, MAX_WEIGHT))
                .transpose()?,
            state: given("state").map(state).transpose()?,
            zone: given("zone").map(|value| word("zone", value)).transpose()?,
            tags: given("tags").map(tags).transpose()?,
        })
    }

    /// These where they say something, otherwise those.
    pub fn or(self, other: Self) -> Self {
        Self {
            port: self.port.or(other.port),
            weight: self.weight.or(other.weight),
            state: self.state.or(other.state),
            zone: self.zone.or(other.zone),
            tags: self.tags.or(other.tags),
        }
    }

    fn apply(&self, endpoint: &mut Endpoint) {
        if let Some(weight) = self.weight {
            endpoint.weight = weight;
        }
        if let Some(state) = self.state {
            endpoint.state = state;
        }
        endpoint.zone.clone_from(&self.zone);
        if let Some(tags) = &self.tags {
            endpoint.tags.clone_from(tags);
        }
    }
}

/// An entry as it was written, for people; [`Refused`] shortens it.
pub fn text(entry: &Value) -> String {
    match entry {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn number(key: &str, value: &Value, most: u32) -> Result<u32, String> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    match number.and_then(|number| u32::try_from(number).ok()) {
        Some(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("`{key}` is no whole number from 1 to {most}")),
    }
}

fn state(value: &Value) -> Result<BackendState, String> {
    match value.as_str() {
        Some("serving") => Ok(BackendState::Serving),
        Some("draining") => Ok(BackendState::Draining),
        _ => Err("`state` is neither \"serving\" nor \"draining\"".to_owned()),
    }
}

fn word(key: &str, value: &Value) -> Result<String, String> {
    match value.as_str() {
        Some(word) if is_word(word) => Ok(word.to_owned()),
        _ => Err(format!(
            "`{key}` is no word of 1 to {MAX_WORD} octets without control characters"
        )),
    }
}

/// Whether something may be a tag or a zone.
pub fn is_word(word: &str) -> bool {
    (1..=MAX_WORD).contains(&word.len()) && !word.contains(char::is_control)
}

fn tags(value: &Value) -> Result<BTreeSet<String>, String> {
    let list = value.as_array().ok_or("`tags` is no list")?;
    if list.len() > MAX_TAGS {
        return Err(format!(
            "`tags` has {} members, of at most {MAX_TAGS}",
            list.len()
        ));
    }
    list.iter().map(|tag| word("tags", tag)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_says_all_there_is() {
        let entry = json!({
            "address": "192.0.2.1", "port": 8080, "weight": "65535", "state": "draining", "zone": "a",
            "tags": ["x", "y"], "comment": "left alone"
        });
        let endpoint = endpoint(&entry).unwrap();
        assert_eq!(endpoint.address, std::net::IpAddr::from([192, 0, 2, 1]));
        assert_eq!(endpoint.port, Some(8080));
        assert_eq!(endpoint.weight, 65_535);
        assert_eq!(endpoint.state, BackendState::Draining);
        assert_eq!(endpoint.zone.as_deref(), Some("a"));
        assert_eq!(endpoint.tags, ["x".to_owned(), "y".to_owned()].into());
    }

    #[test]
    fn an_address_alone_is_an_entry() {
        let expected = Endpoint {
            port: Some(80),
            ..Endpoint::new([192, 0, 2, 1].into())
        };
        assert_eq!(endpoint(&json!("192.0.2.1:80")), Ok(expected.clone()));
        assert_eq!(
            endpoint(&json!({"address": "192.0.2.1:80", "weight": null})),
            Ok(expected)
        );
    }

    #[test]
    fn impossible_entries_are_refused_with_the_reason() {
        let many: Vec<_> = (0..=MAX_TAGS).map(|tag| tag.to_string()).collect();
        for (entry, why) in [
            (json!(7), "neither an object"),
            (json!({}), "no `address`"),
            (json!({"address": 1}), "no string"),
            (json!({"address": "web-1"}), "names are not resolved"),
            (json!({"address": "127.0.0.1"}), "loopback"),
            (json!({"address": "192.0.2.1", "weight": 0}), "from 1 to 65535"),
            (
                json!({"address": "192.0.2.1", "weight": 65_536}),
                "from 1 to 65535",
            ),
            (json!({"address": "192.0.2.1", "weight": 1.5}), "`weight`"),
            (json!({"address": "192.0.2.1", "weight": -1}), "`weight`"),
            (
                json!({"address": "192.0.2.1", "weight": 4_294_967_297_u64}),
                "`weight`",
            ),
            (json!({"address": "192.0.2.1", "port": 65_536}), "`port`"),
            (json!({"address": "192.0.2.1:80", "port": 81}), "`port` says 81"),
            (json!({"address": "192.0.2.1", "state": "down"}), "`state`"),
            (json!({"address": "192.0.2.1", "zone": ""}), "`zone`"),
            (json!({"address": "192.0.2.1", "tags": many}), "at most 16"),
            (json!({"address": "192.0.2.1", "tags": ["a\n"]}), "`tags`"),
        ] {
            let refused = endpoint(&entry).unwrap_err();
            assert!(refused.reason.contains(why), "{entry}: {}", refused.reason);
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_breaks_the_rules(text in ".{0,40}", weight in any::<i64>(), port in any::<i64>()) {
            for address in [text.as_str(), "192.0.2.1"] {
                if let Ok(endpoint) = endpoint(&json!({"address": address, "weight": weight, "port": port})) {
                    prop_assert!((1..=MAX_WEIGHT).contains(&endpoint.weight));
                    prop_assert!(endpoint.port != Some(0));
                    prop_assert!(!endpoint.address.is_loopback());
                }
            }
        }
    }
}
