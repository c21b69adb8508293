//! One EndpointSlice (discovery.k8s.io/v1).

use serde::Deserialize;

use super::super::{address, entry};
use crate::{
    discovery::{Endpoint, Refused},
    state::desired::BackendState,
};

/// What of a slice is read.
#[derive(Debug, Deserialize)]
pub struct Slice {
    metadata: Meta,
    endpoints: Option<Vec<Member>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Debug, Deserialize)]
struct Member {
    /// Several are the same place; like kube-proxy, only the first is used.
    addresses: Option<Vec<String>>,
    conditions: Option<Conditions>,
    zone: Option<String>,
}

/// `None` is not known.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<i64>,
}

impl Slice {
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The resource version, which only equals or differs.
    pub fn version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// Its endpoints that take or keep traffic, with the number of the port of this name, or of the first port.
    pub fn endpoints(&self, port: Option<&str>, refused: &mut Vec<Refused>) -> Vec<Endpoint> {
        let members = self.endpoints.as_deref().unwrap_or_default();
        let port = self.port(port);
        let mut found = Vec::new();
        for member in members {
            let Some(state) = member.conditions.unwrap_or_default().state() else {
                continue;
            };
            match member.endpoint(state, &port) {
                Ok(endpoint) => found.push(endpoint),
                Err(reason) => {
                    let address = member.address().unwrap_or("an endpoint");
                    refused.push(Refused::new(format!("{address} in {}", self.name()), reason));
                }
            }
        }
        found
    }

    fn port(&self, wanted: Option<&str>) -> Result<Option<u16>, String> {
        let ports = self.ports.as_deref().unwrap_or_default();
        let port = match wanted {
            None => ports.first(),
            Some(wanted) => {
                let named = ports.iter().find(|port| port.name.as_deref() == Some(wanted));
                Some(named.ok_or_else(|| format!("the slice has no port named {wanted:?}"))?)
            }
        };
        match port.and_then(|port| port.port) {
            None => Ok(None),
            Some(port) => match u16::try_from(port) {
                Ok(port) => Ok(Some(port)),
                Err(_) => Err(format!("port {port} is none")),
            },
        }
    }
}

impl Member {
    fn address(&self) -> Option<&str> {
        self.addresses.as_ref()?.first().map(String::as_str)
    }

    fn endpoint(&self, state: BackendState, port: &Result<Option<u16>, String>) -> Result<Endpoint, String> {
        let address = self.address().ok_or("it has no address")?;
        let (ip, _) = address::parse(address)?;
        let mut endpoint = address::endpoint(ip, port.clone()?)?;
        endpoint.state = state;
        // A zone is for people and for picking; one that is no word is not worth an endpoint.
        endpoint.zone = self.zone.clone().filter(|zone| entry::is_word(zone));
        Ok(endpoint)
    }
}

impl Conditions {
    /// Ready: serving. Serving until it ends: draining. Otherwise it does not count.
    fn state(&self) -> Option<BackendState> {
        // "A nil value should be interpreted as true"; serving defers to ready.
        let ready = self.ready.unwrap_or(true);
        let serving = self.serving.unwrap_or(ready);
        let terminating = self.terminating.unwrap_or(false);
        match (ready, serving, terminating) {
            (true, _, _) => Some(BackendState::Serving),
            (false, true, true) => Some(BackendState::Draining),
            (false, _, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_say_what_to_do() {
        let (yes, no) = (Some(true), Some(false));
        for (ready, serving, terminating, expected) in [
            (None, None, None, Some(BackendState::Serving)),
            (yes, None, None, Some(BackendState::Serving)),
            (yes, yes, no, Some(BackendState::Serving)),
            // With publishNotReadyAddresses.
            (yes, no, yes, Some(BackendState::Serving)),
            (no, yes, yes, Some(BackendState::Draining)),
            (no, yes, no, None),
            (no, no, yes, None),
            (no, None, yes, None),
            (no, None, None, None),
        ] {
            let conditions = Conditions {
                ready,
                serving,
                terminating,
            };
            assert_eq!(conditions.state(), expected, "{conditions:?}");
        }
    }

    fn slice() -> Slice {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "resourceVersion": "7"}, "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["192.0.2.1", "192.0.2.9"], "conditions": {"ready": true}, "zone": "a"},
                {"addresses": ["192.0.2.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["192.0.2.3"], "conditions": {"ready": false}},
                {"addresses": ["web.example"]},
                {"addresses": null, "conditions": null}
            ],
            "ports": [{"name": "http", "port": 8080}, {"name": "admin", "port": 9090}, {"name": "wrong", "port": 99_999}]
        }))
        .unwrap()
    }

    #[test]
    fn a_slice_names_what_takes_or_keeps_traffic() {
        let mut refused = Vec::new();
        let found = slice().endpoints(None, &mut refused);
        let seen: Vec<_> = found
            .iter()
            .map(|endpoint| (endpoint.address.to_string(), endpoint.state, endpoint.port))
            .collect();
        assert_eq!(
            seen,
            [
                ("192.0.2.1".to_owned(), BackendState::Serving, Some(8080)),
                ("192.0.2.2".to_owned(), BackendState::Draining, Some(8080)),
            ]
        );
        assert_eq!(found[0].zone.as_deref(), Some("a"));
        assert_eq!(refused.len(), 2);
    }

    #[test]
    fn a_port_is_found_by_its_name() {
        let mut refused = Vec::new();
        let found = slice().endpoints(Some("admin"), &mut refused);
        assert_eq!(found[0].port, Some(9090));
        for name in ["none", "wrong"] {
            refused.clear();
            assert_eq!(slice().endpoints(Some(name), &mut refused), []);
            assert_eq!(refused.len(), 4, "{name}");
        }
    }

    #[test]
    fn a_slice_may_be_empty() {
        let slice: Slice =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "endpoints": null, "ports": null}))
                .unwrap();
        assert_eq!(slice.endpoints(None, &mut Vec::new()), []);
    }
}
