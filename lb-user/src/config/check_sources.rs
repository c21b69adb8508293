//! What sources and health checks of a service may not be.

use std::collections::BTreeSet;

use super::{problem::Problem, spec::ServiceSpec};
use crate::{
    config::Place,
    discovery::{SourceKind, SourceSpec},
    health::{Check, HealthSpec, OnPanic, Via},
};

/// Most endpoints of a source: every backend there can be.
const MOST_ENDPOINTS: u32 = lb_common::ids::MAX_BACKEND_IDS;
/// Checks in a row.
const MOST_CHECKS: u32 = 100;
/// Shortest time between checks of a backend, milliseconds.
const SHORTEST_INTERVAL: u32 = 10;

/// Problems of a service's sources and checks; `at` tells the place of a key of the service.
pub(super) fn check(service: &ServiceSpec, at: impl Fn(&str) -> Place) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for source in &service.sources {
        if !names.insert(source.name()) {
            problems.push(Problem::new(
                at("source"),
                format!("two sources are called {:?}", source.name()),
                "give each its own name = \"…\"",
            ));
        }
        let said = check_source(source);
        problems.extend(said.into_iter().map(|(what, remedy)| {
            Problem::new(at("source"), format!("source {}: {what}", source.name()), remedy)
        }));
    }
    if let Some(health) = &service.health {
        let said = check_health(health, service);
        problems.extend(
            said.into_iter()
                .map(|(what, remedy)| Problem::new(at("health"), format!("health: {what}"), remedy)),
        );
    }
    problems
}

type Said = (String, &'static str);

fn check_source(source: &SourceSpec) -> Vec<Said> {
    let mut said = Vec::new();
    if !(0.0..=1.0).contains(&source.guard.max_removal) {
        said.push((
            format!("max_removal = {} is no share", source.guard.max_removal),
            "use 0.0 to 1.0; 0.5 holds whatever takes more than half away",
        ));
    }
    if !(1..=MOST_ENDPOINTS).contains(&source.max_endpoints) {
        said.push((
            format!("max_endpoints = {} is out of range", source.max_endpoints),
            "use 1 to 1048576",
        ));
    }
    let absolute = |what: &str, path: &std::path::Path, said: &mut Vec<Said>| {
        if !path.is_absolute() {
            said.push((format!("{what} is a relative path"), "use an absolute path"));
        }
    };
    let (urls, files): (Vec<&str>, Vec<_>) = match &source.kind {
        SourceKind::File { path } => (Vec::new(), vec![("path", Some(path))]),
        SourceKind::Dns {
            host,
            min_interval,
            max_interval,
            ..
        } => {
            if host.trim_end_matches('.').is_empty() || host.contains(char::is_whitespace) {
                said.push((
                    format!("{host:?} is no name"),
                    "write one like \"web.example.com\"",
                ));
            }
            if min_interval > max_interval {
                said.push((
                    format!("min_interval = {min_interval} is longer than max_interval = {max_interval}"),
                    "make the shorter one min_interval",
                ));
            }
            (Vec::new(), Vec::new())
        }
        SourceKind::Http {
            url,
            token_file,
            ca_file,
            ..
        } => (
            vec![url],
            vec![("token_file", token_file.as_ref()), ("ca_file", ca_file.as_ref())],
        ),
        SourceKind::Etcd {
            urls,
            password_file,
            ca_file,
            ..
        } => {
            if urls.is_empty() {
                said.push((
                    "urls is empty".to_owned(),
                    "name at least one, like \"http://192.0.2.1:2379\"",
                ));
            }
            (
                urls.iter().map(String::as_str).collect(),
                vec![
                    ("password_file", password_file.as_ref()),
                    ("ca_file", ca_file.as_ref()),
                ],
            )
        }
        SourceKind::Consul {
            url,
            token_file,
            ca_file,
            ..
        } => (
            vec![url],
            vec![("token_file", token_file.as_ref()), ("ca_file", ca_file.as_ref())],
        ),
        SourceKind::Kubernetes {
            url,
            token_file,
            ca_file,
            ..
        } => (
            url.iter().map(String::as_str).collect(),
            vec![("token_file", token_file.as_ref()), ("ca_file", ca_file.as_ref())],
        ),
    };
    for (what, path) in files {
        path.into_iter().for_each(|path| absolute(what, path, &mut said));
    }
    said.extend(urls.into_iter().filter(|url| !is_url(url)).map(|url| {
        (
            format!("{url:?} is no URL of an HTTP server"),
            "write one like \"http://192.0.2.1:8080/path\" or with https",
        )
    }));
    said
}

fn is_url(text: &str) -> bool {
    reqwest::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

fn check_health(health: &HealthSpec, service: &ServiceSpec) -> Vec<Said> {
    let mut said = Vec::new();
    for (key, count) in [("rise", health.rise), ("fall", health.fall)] {
        if !(1..=MOST_CHECKS).contains(&count) {
            said.push((format!("{key} = {count} is out of range"), "use 1 to 100"));
        }
    }
    if health.interval.0 < SHORTEST_INTERVAL {
        said.push((
            format!("interval = {} is too short", health.interval),
            "use at least 10ms",
        ));
    }
    if !(0.0..=0.5).contains(&health.jitter) {
        said.push((
            format!("jitter = {} is out of range", health.jitter),
            "use 0.0 to 0.5",
        ));
    }
    if !(0.0..=1.0).contains(&health.panic_threshold) {
        said.push((
            format!("panic_threshold = {} is no share", health.panic_threshold),
            "use 0.0 to 1.0; 0.0 never panics",
        ));
    }
    if health.port == Some(0) {
        said.push(("port 0 is no port".to_owned(), "use 1 to 65535"));
    }
    if health.port.is_none() && service.port.number().is_none() {
        said.push((
            "a service of all ports does not say which one to check".to_owned(),
            "add port = …",
        ));
    }
    said.extend(check_families(health, service));
    if health.on_panic == OnPanic::Withdraw && service.announce.is_none() {
        said.push((
            "on_panic = \"withdraw\" has nothing to withdraw".to_owned(),
            "add announce = \"address\" to the service",
        ));
    }
    if let Check::Http { request } | Check::Https { request, .. } = &health.check {
        if !request.path.starts_with('/') || request.path.contains(char::is_whitespace) {
            said.push((
                format!("{:?} is no path of a request", request.path),
                "begin it with /",
            ));
        }
        if request.status.0 > request.status.1 || !(100..=599).contains(&request.status.0) {
            said.push((
                format!(
                    "status = [{}, {}] is no range",
                    request.status.0, request.status.1
                ),
                "write the least first, like [200, 299]",
            ));
        }
    }
    said
}

/// A check through the VIP is sent to the backend's own address first, whose family it keeps. What a source names is
/// looked at when it is checked.
fn check_families(health: &HealthSpec, service: &ServiceSpec) -> Option<Said> {
    if health.via != Via::Vip {
        return None;
    }
    let mut own = service
        .backends
        .iter()
        .filter(|backend| backend.discovered.is_none());
    let other =
        own.find(|backend| backend.address.to_canonical().is_ipv4() != service.vip.to_canonical().is_ipv4())?;
    Some((
        format!(
            "via = \"vip\" cannot check backend {}, which is of another family than the VIP {}",
            other.address, service.vip
        ),
        "leave via out, or give the backend an address of the VIP's family",
    ))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn said(lines: &str) -> String {
        let text = format!(
            "[datapath]\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nvip = \"192.0.2.10\"\nport = 443\nprotocol = \"tcp\"\n{lines}"
        );
        match Config::from_str(&text, "lb.toml") {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        }
    }

    #[test]
    fn every_kind_of_source_and_check_is_read() {
        let sources = "[[service.source]]\ntype = \"file\"\npath = \"/etc/b.json\"\nhold = \"off\"\n\
            [[service.source]]\ntype = \"dns\"\nhost = \"web.example\"\nrecord = \"srv\"\nserver = \"192.0.2.53:53\"\n\
            [[service.source]]\ntype = \"http\"\nurl = \"https://192.0.2.1/b\"\ninterval = \"5s\"\n\
            [[service.source]]\ntype = \"etcd\"\nurls = [\"http://192.0.2.1:2379\"]\nprefix = \"/web/\"\n\
            [[service.source]]\ntype = \"consul\"\nurl = \"http://192.0.2.1:8500\"\nservice = \"web\"\n\
            [[service.source]]\ntype = \"kubernetes\"\nnamespace = \"default\"\nservice = \"web\"\n";
        assert_eq!(said(sources), "");
        for check in [
            "type = \"tcp\"\ninterval = \"500ms\"\n",
            "type = \"http\"\npath = \"/health\"\nstatus = [200, 204]\n",
            "type = \"https\"\nverify = true\nhost = \"web.example\"\n",
            "type = \"grpc\"\nservice = \"web\"\nslow_start = \"30s\"\n",
            "type = \"udp\"\npayload = \"ping\"\nexpect = \"pong\"\nvia = \"direct\"\n",
            "type = \"tcp\"\nvia = \"vip\"\n[[service.backend]]\naddress = \"192.0.2.20\"\n",
            "type = \"tcp\"\n[[service.backend]]\naddress = \"2001:db8::1\"\nmode = \"ipip\"\n",
        ] {
            assert_eq!(said(&format!("[service.health]\n{check}")), "", "{check}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let source = |lines: &str| said(&format!("[[service.source]]\n{lines}"));
        let health = |lines: &str| said(&format!("[service.health]\ntype = \"tcp\"\n{lines}"));
        let rows = [
            (source("type = \"file\"\npath = \"b.json\"\n"), "relative"),
            (
                source("type = \"file\"\npath = \"/b.json\"\nmax_removal = 1.5\n"),
                "max_removal = 1.5",
            ),
            (
                source("type = \"file\"\npath = \"/b.json\"\nmax_endpoints = 0\n"),
                "max_endpoints = 0",
            ),
            (source("type = \"dns\"\nhost = \"\"\n"), "no name"),
            (
                source("type = \"dns\"\nhost = \"w\"\nmin_interval = \"60s\"\n"),
                "min_interval",
            ),
            (source("type = \"http\"\nurl = \"ftp://192.0.2.1/\"\n"), "no URL"),
            (
                source("type = \"etcd\"\nurls = []\nprefix = \"/\"\n"),
                "urls is empty",
            ),
            (source("type = \"zookeeper\"\n"), "zookeeper"),
            (
                source(
                    "type = \"file\"\npath = \"/b.json\"\n[[service.source]]\ntype = \"file\"\npath = \"/c.json\"\n",
                ),
                "two sources",
            ),
            (health("rise = 0\n"), "rise = 0"),
            (health("jitter = 0.9\n"), "jitter"),
            (health("panic_threshold = 7.0\n"), "panic_threshold"),
            (health("on_panic = \"withdraw\"\n"), "announce"),
            (health("port = 0\n"), "port 0"),
            (
                health("via = \"vip\"\n[[service.backend]]\naddress = \"2001:db8::1\"\nmode = \"ipip\"\n"),
                "via = \"vip\" cannot check backend 2001:db8::1",
            ),
            (
                said("[service.health]\ntype = \"http\"\npath = \"health\"\n"),
                "path",
            ),
            (
                said("[service.health]\ntype = \"http\"\nstatus = [300, 200]\n"),
                "range",
            ),
        ];
        for (said, reason) in rows {
            assert!(
                said.contains("service web") && said.contains(reason),
                "{reason}: {said}"
            );
        }
    }
}
