//! The exposition as Prometheus reads it, from counters in plain memory.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Instant};

use lb_common::{ids::BackendRef, service::Service};

use super::Metrics;
use crate::{
    config::{Port, spec::BackendSpec, spec::ServiceSpec},
    counters::Counters,
    daemon::{
        shared::Shared,
        view::{BackendView, HealthView, SeedView, ServiceView, View},
    },
    events::Kind,
    health::{Checker, HealthSpec, OnPanic, Wanted},
    state::{
        desired::{BackendState, Mode, Protocol},
        observed::Capacity,
    },
};

const CPUS: u32 = 2;

fn counters(backends: u32) -> Counters {
    Counters::in_memory(Capacity {
        services: 4,
        backends: backends + 1,
        slots: 1021,
        possible_cpus: CPUS,
        flow_buckets: 4,
        fresh_words: 2,
        hz: 250,
    })
}

/// One service; its backends have the ids 1.. in the order of their addresses.
fn view(backends: u32) -> View {
    let vip = IpAddr::from([192, 0, 2, 10]);
    let spec = ServiceSpec::new("web", vip, Port::All, Protocol::Tcp);
    let backend = |id: u32| {
        let address = IpAddr::from((0x0a00_0000 + id).to_be_bytes());
        let view = BackendView {
            spec: BackendSpec::new(address),
            mode: Mode::Dsr,
            sources: Default::default(),
            reference: Some(BackendRef::new(id, 1)),
            next_hop: None,
            unresolved: Some("no route".into()),
            expected_share: 1.0 / f64::from(backends),
            flows_before: 0,
            state: BackendState::Serving,
            health: None,
        };
        (address, view)
    };
    let service = ServiceView {
        key: spec.key(),
        spec,
        from_file: true,
        entry: Some(Service {
            id: 1,
            slots_count: 1021,
            table_generation: 3,
            ..Service::default()
        }),
        backends: (1..=backends).map(backend).collect(),
    };
    let seed = SeedView {
        generation: 4,
        since: Instant::now(),
        next: None,
    };
    View {
        services: BTreeMap::from([("web".to_owned(), Arc::new(service))]),
        seeds: vec![seed; CPUS as usize + 1],
        ..View::default()
    }
}

fn shared(backends: u32) -> Arc<Shared> {
    Arc::new(Shared::new(
        "evenkeel.toml".into(),
        "/sys/fs/bpf/evenkeel".into(),
        counters(backends),
        view(backends),
    ))
}

fn scrape(shared: &Arc<Shared>, max_series: usize) -> String {
    let metrics = Metrics::new(Arc::clone(shared), max_series).unwrap();
    metrics.scrape().unwrap()
}

fn lines<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(start)).collect()
}

#[test]
fn the_exposition_is_true_to_the_counters() {
    let shared = shared(2);
    for (cpu, flows) in [(0, 7), (1, 5)] {
        let counted = &shared.counters.by_backend.as_slice()[cpu * 3 + 2];
        counted.flows.store(flows);
        counted.packets.store(100);
        shared.counters.by_cpu.as_slice()[cpu].verdicts[48].store(50);
    }
    shared.events.record(Kind::Edit, "web", "changed");
    let text = scrape(&shared, 1000);
    let unstable = ["process_", "evenkeel_seed_age_seconds", "evenkeel_build_info"];
    let shown: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !unstable.iter().any(|name| line.starts_with(name)))
        .collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn every_family_has_help_and_type() {
    let text = scrape(&shared(2), 1000);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        for comment in ["HELP", "TYPE"] {
            let head = format!("# {comment} {family} ");
            assert!(text.lines().any(|line| line.starts_with(&head)), "{head}");
        }
    }
}

#[test]
fn too_many_backends_are_summed_up_by_service() {
    let shared = shared(10);
    for id in 1..=10 {
        shared.counters.by_backend.as_slice()[id].bytes.store(id as u64);
    }
    let text = scrape(&shared, 69);
    assert_eq!(
        lines(&text, "evenkeel_backend_bytes_total{"),
        ["evenkeel_backend_bytes_total{service=\"web\",backend=\"\"} 55"]
    );
    assert!(lines(&text, "evenkeel_backend_expected_share{").is_empty());
    assert_eq!(
        lines(&text, "evenkeel_metrics_folded_backends"),
        ["evenkeel_metrics_folded_backends 10"]
    );
    let text = scrape(&shared, 70);
    assert_eq!(lines(&text, "evenkeel_backend_bytes_total{").len(), 10);
    assert_eq!(
        lines(&text, "evenkeel_metrics_folded_backends"),
        ["evenkeel_metrics_folded_backends 0"]
    );
}

#[tokio::test]
async fn checks_are_counted_by_service() {
    // Closed again at once, so that a connection to it is refused.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let health: HealthSpec = toml::from_str("type = \"tcp\"\ninterval = \"1h\"").unwrap();
    let mut checked = view(3);
    let service = Arc::make_mut(checked.services.get_mut("web").unwrap());
    service.spec.health = Some(health.clone());
    for (backend, passes) in service.backends.values_mut().zip([Some(true), Some(false), None]) {
        backend.health = Some(HealthView { passes, reason: None });
    }
    checked.panics.insert("web".to_owned(), OnPanic::Serve);
    let shared = shared(3);
    shared.publish(checked);
    let (results, mut changes) = tokio::sync::mpsc::channel(1);
    let checker = Arc::new(Checker::start(results));
    assert!(shared.checker.set(Arc::clone(&checker)).is_ok());
    let wanted = Wanted {
        spec: Arc::new(health),
        target: closed,
        through: None,
        starts_up: false,
    };
    checker.want([((Arc::from("web"), closed.ip()), wanted)].into());
    changes.recv().await.unwrap();
    let text = scrape(&shared, 100);
    assert_eq!(
        lines(&text, "evenkeel_health_backends"),
        [
            "evenkeel_health_backends{service=\"web\",state=\"down\"} 1",
            "evenkeel_health_backends{service=\"web\",state=\"unchecked\"} 1",
            "evenkeel_health_backends{service=\"web\",state=\"up\"} 1"
        ]
    );
    assert_eq!(
        lines(&text, "evenkeel_health_checks_total"),
        [
            "evenkeel_health_checks_total{service=\"web\",result=\"failed\"} 1",
            "evenkeel_health_checks_total{service=\"web\",result=\"passed\"} 0",
            "evenkeel_health_checks_total{service=\"web\",result=\"unable\"} 0"
        ]
    );
    assert_eq!(
        lines(&text, "evenkeel_health_panic"),
        ["evenkeel_health_panic{service=\"web\"} 1"]
    );
    assert_eq!(lines(&text, "evenkeel_health_lateness_seconds ").len(), 1);
}

#[test]
fn what_is_not_checked_has_no_series_of_checks() {
    let text = scrape(&shared(2), 100);
    assert!(lines(&text, "evenkeel_health_").is_empty());
}

#[test]
fn readiness_is_a_metric() {
    let shared = shared(1);
    assert_eq!(
        lines(&scrape(&shared, 100), "evenkeel_ready "),
        ["evenkeel_ready 1"]
    );
    shared.publish(View {
        not_ready: vec!["starting".into()],
        ..view(1)
    });
    assert_eq!(
        lines(&scrape(&shared, 100), "evenkeel_ready "),
        ["evenkeel_ready 0"]
    );
}

/// Prints what a scrape of 10,000 backends takes; the promise (under 50 ms) holds for release builds.
#[test]
fn a_large_scrape_has_every_backend() {
    let shared = shared(10_000);
    let metrics = Metrics::new(Arc::clone(&shared), 100_000).unwrap();
    let start = Instant::now();
    let text = metrics.scrape().unwrap();
    println!("10,000 backends: {} octets in {:?}", text.len(), start.elapsed());
    let packets = text
        .lines()
        .filter(|line| line.starts_with("evenkeel_backend_packets_total{"));
    assert_eq!(packets.count(), 10_000);
}

/// Whoever reads the README finds every family there, those of the daemon's own doings included.
#[test]
fn the_readme_names_every_metric() {
    let readme = include_str!("../../../README.md");
    let text = scrape(&shared(2), 100);
    let families: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(|name| name.trim_start_matches("evenkeel_"))
        .collect();
    assert!(families.len() > 20, "{families:?}");
    let missing: Vec<_> = families
        .iter()
        .chain(super::families::FAMILIES.iter().map(|family| &family.name))
        .filter(|name| !readme.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in README.md: {missing:?}");
}
