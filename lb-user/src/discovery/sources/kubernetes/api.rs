//! The requests for EndpointSlices, to the server of a URL or of the pod this runs in.

use std::{env, path::PathBuf, time::Duration};

use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use super::{
    super::http_client::{self, Lines, TOTAL},
    Asked,
    slice::Slice,
};
use crate::discovery::SourceError;

/// Where a pod finds its credentials
/// (<https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>).
const POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Slices of one answer; a slice has up to 1,000 endpoints.
const PAGE: u32 = 50;
const MAX_PAGE: usize = 64 << 20;
/// Octets of one event. An object has at most some 1.5 MiB, etcd's limit.
const MAX_LINE: usize = 4 << 20;
/// The server ends a watch after so long…
const WATCH: Duration = Duration::from_secs(240);

/// The server and what to say to it.
pub struct Api {
    client: Client,
    slices: Url,
    token_file: Option<PathBuf>,
}

/// Why a request was not answered.
pub enum Refusal {
    /// The resource version is too old.
    Expired,
    Failed(SourceError),
}

impl From<SourceError> for Refusal {
    fn from(error: SourceError) -> Self {
        Self::Failed(error)
    }
}

#[derive(Deserialize)]
pub struct List {
    pub metadata: ListMeta,
    pub items: Option<Vec<Slice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    pub resource_version: String,
    /// Where the next page begins; empty on the last.
    #[serde(default)]
    pub r#continue: String,
}

/// An error as an object.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u16,
}

impl Api {
    pub fn new(asked: &Asked) -> Result<Self, SourceError> {
        let pod = |given: &Option<PathBuf>, file: &str| match (given, &asked.url) {
            (Some(given), _) => Some(given.clone()),
            (None, None) => Some(PathBuf::from(POD).join(file)),
            (None, Some(_)) => None,
        };
        let server = match &asked.url {
            Some(url) => url.clone(),
            None => in_cluster(|name| env::var(name).ok())?,
        };
        let mut slices = http_client::url(&server)?;
        let path = [
            "apis",
            "discovery.k8s.io",
            "v1",
            "namespaces",
            &asked.namespace,
            "endpointslices",
        ];
        slices
            .path_segments_mut()
            .map_err(|()| SourceError::Unreachable(format!("{server:?} has no path")))?
            .pop_if_empty()
            .extend(path);
        let selector = format!("kubernetes.io/service-name={}", asked.service);
        slices.query_pairs_mut().append_pair("labelSelector", &selector);
        Ok(Self {
            client: http_client::client(
                pod(&asked.ca_file, "ca.crt").as_deref(),
                slices.scheme() == "https",
            )?,
            slices,
            token_file: pod(&asked.token_file, "token"),
        })
    }

    async fn ask(&self, parameters: &[(&str, &str)], limit: Option<Duration>) -> Result<Response, Refusal> {
        let mut url = self.slices.clone();
        url.query_pairs_mut().extend_pairs(parameters);
        let mut request = self
            .client
            .get(url)
            .header(reqwest::header::ACCEPT, "application/json");
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        // Read each time: the kubelet renews it.
        let request = http_client::bearer(request, self.token_file.as_ref())?;
        let response = http_client::send(request, TOTAL).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        match http_client::refusal(response).await {
            (StatusCode::GONE, _) => Err(Refusal::Expired),
            (_, error) => Err(Refusal::Failed(error)),
        }
    }

    /// A page of all slices; the first one `from` nothing.
    pub async fn list(&self, from: &str) -> Result<List, Refusal> {
        let limit = PAGE.to_string();
        let mut parameters = vec![("limit", limit.as_str())];
        if !from.is_empty() {
            parameters.push(("continue", from));
        }
        let response = self.ask(&parameters, Some(TOTAL)).await?;
        let body = http_client::body(response, MAX_PAGE).await?;
        serde_json::from_slice(&body)
            .map_err(|error| unreadable("the answer is no list of slices", &error).into())
    }

    /// Events after a resource version.
    pub async fn watch(&self, version: &str) -> Result<Lines, Refusal> {
        let seconds = WATCH.as_secs().to_string();
        let parameters = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ];
        Ok(Lines::new(self.ask(&parameters, None).await?, MAX_LINE))
    }
}

/// What an error among the events means.
pub fn failed(object: &str) -> Refusal {
    match serde_json::from_str::<Status>(object) {
        Ok(status) if status.code == StatusCode::GONE.as_u16() => Refusal::Expired,
        Ok(status) => {
            let why = format!("the watch fails with {}: {}", status.code, status.message);
            SourceError::Unreachable(why).into()
        }
        Err(error) => unreadable("an error of the watch cannot be read", &error).into(),
    }
}

/// The API server as a pod's environment names it.
fn in_cluster(variable: impl Fn(&str) -> Option<String>) -> Result<String, SourceError> {
    let (Some(host), Some(port)) = (
        variable("KUBERNETES_SERVICE_HOST"),
        variable("KUBERNETES_SERVICE_PORT"),
    ) else {
        return Err(SourceError::Unreachable(
            "no `url` is given, and this is no pod: KUBERNETES_SERVICE_HOST and _PORT are not set".to_owned(),
        ));
    };
    Ok(match host.parse::<std::net::Ipv6Addr>() {
        Ok(v6) => format!("https://[{v6}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    })
}

pub fn unreadable(what: &str, error: &serde_json::Error) -> SourceError {
    SourceError::Unreadable(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_knows_its_server() {
        let cluster = |host: &'static str| {
            in_cluster(move |name| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
                _ => None,
            })
        };
        assert_eq!(cluster("192.0.2.1").unwrap(), "https://192.0.2.1:443");
        assert_eq!(cluster("2001:db8::1").unwrap(), "https://[2001:db8::1]:443");
        assert!(in_cluster(|_| None).is_err());
    }

    #[test]
    fn an_expired_version_is_told_from_other_errors() {
        assert!(matches!(
            failed(r#"{"kind": "Status", "code": 410, "reason": "Expired"}"#),
            Refusal::Expired
        ));
        assert!(matches!(
            failed(r#"{"kind": "Status", "code": 500, "message": "no"}"#),
            Refusal::Failed(SourceError::Unreachable(said)) if said.ends_with("500: no")
        ));
        assert!(matches!(failed("7"), Refusal::Failed(SourceError::Unreadable(_))));
    }
}
