//! A whole list of endpoints, read one entry at a time so that no more than is allowed is ever held.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::entry::{self, Traits};
use crate::discovery::{Endpoint, Refused, SourceError, Update};

/// The endpoints of one state of a source, each address once.
#[derive(Debug)]
pub struct Listing {
    most: usize,
    /// All entries, also those beyond `most`, which are not kept.
    found: usize,
    endpoints: BTreeMap<IpAddr, Endpoint>,
    refused: Vec<Refused>,
}

impl Listing {
    /// Keeps at most so many entries, refused ones included.
    pub fn new(most: u32) -> Self {
        Self {
            most: most as usize,
            found: 0,
            endpoints: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    /// Octets that a text which names at most so many endpoints may have: 4 KiB each and 1 MiB besides, up to 64 MiB.
    pub fn octets(most: u32) -> usize {
        const LARGEST: usize = 64 << 20;
        (most as usize)
            .saturating_mul(4 << 10)
            .saturating_add(1 << 20)
            .min(LARGEST)
    }

    /// Adds an entry; the first of an address counts.
    pub fn push(&mut self, entry: Result<Endpoint, Refused>) {
        self.found += 1;
        if self.found > self.most {
            return;
        }
        match entry {
            Ok(endpoint) if self.endpoints.contains_key(&endpoint.address) => {
                let entry = endpoint.address.to_string();
                self.refused
                    .push(Refused::new(entry, "the address was named before"));
            }
            Ok(endpoint) => {
                self.endpoints.insert(endpoint.address, endpoint);
            }
            Err(refused) => self.refused.push(refused),
        }
    }

    /// Whether there are more entries than allowed.
    pub fn check(&self) -> Result<(), SourceError> {
        if self.found > self.most {
            return Err(SourceError::TooMany {
                found: self.found,
                most: self.most as u32,
            });
        }
        Ok(())
    }

    /// The state, ordered by address.
    pub fn snapshot(self, revision: Option<String>) -> Result<Update, SourceError> {
        self.check()?;
        Ok(Update::Snapshot {
            endpoints: self.endpoints.into_values().collect(),
            refused: self.refused,
            revision,
        })
    }

    /// Adds what a list holds, or a table with a list under `endpoints`.
    ///
    /// Members are entries (see [`entry`]) or target groups as Prometheus' http_sd has them: `targets` with addresses,
    /// whose weight, zone and state are keys of the group or labels, plain or with `__meta_` before.
    pub fn read<'de, D: Deserializer<'de>>(&mut self, text: D) -> Result<(), D::Error> {
        text.deserialize_any(Whole(self))
    }

    fn member(&mut self, member: &Value) {
        match member {
            Value::Object(group) if group.contains_key("targets") => self.group(member, group),
            entry => self.push(entry::endpoint(entry)),
        }
    }

    fn group(&mut self, member: &Value, group: &Map<String, Value>) {
        let Some(targets) = group["targets"].as_array() else {
            self.push(Err(Refused::new(entry::text(member), "`targets` is no list")));
            return;
        };
        let traits = group_traits(group);
        for target in targets {
            self.push(match (&traits, target) {
                (Ok(traits), Value::String(address)) => entry::at(address, traits),
                (Ok(_), other) => Err(Refused::new(entry::text(other), "a target is no string")),
                (Err(reason), target) => Err(Refused::new(entry::text(target), reason.as_str())),
            });
        }
    }
}

/// Of a group's own keys, then of its labels.
fn group_traits(group: &Map<String, Value>) -> Result<Traits, String> {
    let mut traits = Traits::read(group)?;
    if let Some(labels) = group.get("labels").and_then(Value::as_object) {
        let short = |prefix: &str| -> Map<String, Value> {
            ["weight", "zone", "state"]
                .into_iter()
                .filter_map(|key| {
                    let value = labels.get(&format!("{prefix}{key}"))?;
                    Some((key.to_owned(), value.clone()))
                })
                .collect()
        };
        for prefix in ["", "__meta_"] {
            traits = traits.or(Traits::read(&short(prefix))?);
        }
    }
    Ok(traits)
}

/// The list, or the table it is in.
struct Whole<'a>(&'a mut Listing);

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of endpoints, or a table with one under `endpoints`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, members: A) -> Result<(), A::Error> {
        Members(self.0).visit_seq(members)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = false;
        while let Some(key) = map.next_key::<String>()? {
            if key != "endpoints" {
                map.next_value::<IgnoredAny>()?;
            } else if std::mem::replace(&mut seen, true) {
                return Err(A::Error::duplicate_field("endpoints"));
            } else {
                map.next_value_seed(Members(self.0))?;
            }
        }
        if seen {
            Ok(())
        } else {
            Err(A::Error::missing_field("endpoints"))
        }
    }
}

struct Members<'a>(&'a mut Listing);

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, list: D) -> Result<(), D::Error> {
        list.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of endpoints")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while self.0.found <= self.0.most {
            match members.next_element::<Value>()? {
                Some(member) => self.0.member(&member),
                None => return Ok(()),
            }
        }
        // Too many: the rest is only counted.
        while members.next_element::<IgnoredAny>()?.is_some() {
            self.0.found += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(most: u32, text: &str) -> Result<Listing, serde_json::Error> {
        let mut listing = Listing::new(most);
        let mut reader = serde_json::Deserializer::from_str(text);
        listing.read(&mut reader)?;
        reader.end()?;
        Ok(listing)
    }

    fn weights(listing: &Listing) -> Vec<(String, u32)> {
        let endpoints = listing.endpoints.values();
        endpoints
            .map(|endpoint| (endpoint.address.to_string(), endpoint.weight))
            .collect()
    }

    #[test]
    fn a_list_and_a_table_are_the_same() {
        let list = r#"["192.0.2.2", {"address": "192.0.2.1", "weight": 3}]"#;
        for text in [list, &format!(r#"{{"version": [1, {{}}], "endpoints": {list}}}"#)] {
            assert_eq!(
                weights(&json(9, text).unwrap()),
                [("192.0.2.1".to_owned(), 3), ("192.0.2.2".to_owned(), 1)]
            );
        }
        let mut listing = Listing::new(9);
        let toml =
            "[[endpoints]]\naddress = \"192.0.2.2\"\n[[endpoints]]\naddress = \"192.0.2.1\"\nweight = 3\n";
        listing.read(toml::Deserializer::parse(toml).unwrap()).unwrap();
        assert_eq!(
            weights(&listing),
            [("192.0.2.1".to_owned(), 3), ("192.0.2.2".to_owned(), 1)]
        );
    }

    #[test]
    fn groups_give_their_weight_to_their_targets() {
        let text = r#"[
            {"targets": ["192.0.2.1:80", "192.0.2.2:80"], "labels": {"__meta_weight": "7", "zone": "a"}},
            {"targets": ["192.0.2.3:80"], "labels": {"weight": "2", "__meta_weight": "9"}},
            {"targets": ["192.0.2.4:80"], "weight": 5, "labels": {"weight": "2"}},
            {"targets": ["web-1:80", 4, "192.0.2.1:81"]},
            {"targets": ["192.0.2.5:80"], "labels": {"weight": "heavy"}},
            {"targets": "192.0.2.6:80"}
        ]"#;
        let listing = json(99, text).unwrap();
        let named: Vec<_> = weights(&listing).into_iter().map(|(_, weight)| weight).collect();
        assert_eq!(named, [7, 7, 2, 5]);
        assert_eq!(
            listing.endpoints.values().next().unwrap().zone.as_deref(),
            Some("a")
        );
        let refused: Vec<_> = listing
            .refused
            .iter()
            .map(|refused| refused.entry.as_str())
            .collect();
        assert_eq!(
            refused,
            [
                "web-1:80",
                "4",
                "192.0.2.1",
                "192.0.2.5:80",
                r#"{"targets":"192.0.2.6:80"}"#
            ]
        );
    }

    #[test]
    fn what_is_no_list_is_no_state() {
        for text in [
            "",
            "null",
            "{}",
            "7",
            "\"192.0.2.1\"",
            r#"{"endpoints": null}"#,
            r#"{"endpoints": [], "endpoints": []}"#,
            r#"["192.0.2.1""#,
            r#"["192.0.2.1"] x"#,
        ] {
            assert!(json(9, text).is_err(), "{text:?}");
        }
        assert!(json(9, "[]").is_ok());
    }

    #[test]
    fn more_than_allowed_are_counted_but_not_kept() {
        let text = serde_json::to_string(&vec!["192.0.2.1"; 1_000]).unwrap();
        let listing = json(3, &text).unwrap();
        assert_eq!(listing.endpoints.len() + listing.refused.len(), 3);
        assert_eq!(
            listing.snapshot(None),
            Err(SourceError::TooMany {
                found: 1_000,
                most: 3
            })
        );
    }
}
