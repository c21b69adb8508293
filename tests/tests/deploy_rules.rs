//! Promise: what `deploy/` ships works with what the daemon says: alert rules fire when they should and only then, and rules
//! and dashboard ask for nothing that is not there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, within},
    traffic::{Client, Kind, Servers, metrics::Metrics},
};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

/// Runs Prometheus's own tool in the folder of the rules.
fn promtool(arguments: &[&str]) -> Result<String> {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(deploy("prometheus"))
        .output()
        .context(
            "starting promtool; it is in Debian's package prometheus, which `cargo xtask setup` installs",
        )?;
    let text = [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned());
    let text = text.concat();
    ensure!(
        output.status.success(),
        "promtool {}: {}\n{text}",
        arguments.join(" "),
        output.status
    );
    Ok(text)
}

#[test]
fn prometheus_accepts_rules_and_example() -> Proof {
    let said = promtool(&[
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        "evenkeel.rules.yml",
    ])?;
    assert!(
        said.contains(&format!("{} rules found", alerts()?.len())),
        "{said}"
    );
    promtool(&["check", "config", "prometheus.yml"])?;
    Ok(())
}

#[test]
fn every_alert_fires_when_it_should_and_not_otherwise() -> Proof {
    promtool(&["test", "rules", "evenkeel.rules.test.yml"])?;
    let cases = cases()?;
    for alert in alerts()? {
        let (fires, quiet) = cases.get(&alert).copied().unwrap_or_default();
        assert!(fires > 0, "no test in which {alert} fires");
        assert!(quiet > 0, "no test in which {alert} does not fire");
    }
    Ok(())
}

/// A test of rules that cannot fail proves nothing: with another threshold they must.
#[test]
fn the_tests_of_the_rules_notice_a_changed_rule() -> Proof {
    let directory = tempfile::tempdir()?;
    let copy = |file: &str| directory.path().join(file);
    let rules = fs::read_to_string(deploy("prometheus/evenkeel.rules.yml"))?;
    let tests = fs::read_to_string(deploy("prometheus/evenkeel.rules.test.yml"))?;
    for (from, to) in [
        ("> 0.9", "> 0.99"),
        (">= 3", ">= 2"),
        ("for: 15s", "for: 15m"),
        ("firing|healing", "firing"),
        ("> 120", "> 90"),
        ("discovery_loaded == 1", "discovery_loaded >= 0"),
        ("(evenkeel_guard_held) > 0", "(evenkeel_guard_held) > 7"),
        ("health_panic) == 1", "health_panic) == 2"),
        ("> 0.2", "> 0.1"),
        ("vip_announced) == 0", "vip_announced) >= 0"),
    ] {
        assert!(rules.contains(from), "{from}");
        fs::write(copy("evenkeel.rules.yml"), rules.replace(from, to))?;
        fs::write(copy("evenkeel.rules.test.yml"), cases_of(&tests, &rules, from))?;
        let run = Command::new("promtool")
            .args(["test", "rules"])
            .arg(copy("evenkeel.rules.test.yml"))
            .output()?;
        assert!(!run.status.success(), "{from} became {to} and no test failed");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(said.contains("FAILED"), "{from} became {to}: {said}");
    }
    Ok(())
}

/// The tests of the rules in which a text stands; each takes promtool a part of a second.
fn cases_of(tests: &str, rules: &str, text: &str) -> String {
    const CASE: &str = "\n  - interval:";
    let concerned: Vec<&str> = rules
        .split("- alert:")
        .skip(1)
        .filter(|rule| rule.contains(text))
        .map(|rule| rule.lines().next().unwrap_or_default().trim())
        .collect();
    let mut parts = tests.split(CASE);
    let head = parts.next().unwrap_or_default().to_owned();
    let cases = parts.filter(|case| {
        let mut names = values(case, "alertname:");
        names.any(|name| concerned.contains(&name))
    });
    cases.fold(head, |all, case| all + CASE + case)
}

#[test]
fn rules_and_dashboard_ask_for_metrics_that_the_daemon_has() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Front])?;
    let _servers = Servers::start(&lab, 80)?;
    let directory = tempfile::tempdir()?;
    let daemon = Daemon::start(&lab.balancer, with_everything(&lab, directory.path())?)?;
    let client = Client::new(&lab);
    // Sizes are there once flows were counted after the first check.
    let metrics: Metrics = within(
        Duration::from_secs(30),
        "a service's effect is in the metrics",
        || {
            client.many(Kind::Tcp, SocketAddr::new(VIP4, 80), 20)?;
            let metrics = daemon.metrics()?;
            metrics.sum("evenkeel_skew_ratio_max", &[])?;
            Ok(metrics)
        },
    )?;
    let mut asked = BTreeMap::new();
    asked.extend(expressions_of_rules()?);
    asked.extend(expressions_of_dashboard()?);
    assert!(asked.len() > 40, "only {} expressions", asked.len());
    for (place, expression) in &asked {
        let selectors = selectors(expression);
        assert!(!selectors.is_empty(), "{place}: {expression} asks for nothing");
        for selector in selectors {
            check(&selector, &metrics).with_context(|| format!("{place}: {expression}"))?;
        }
    }
    Ok(())
}

/// A service with a source, checks and an announced VIP, so that every series is there.
fn with_everything(lab: &Lab, directory: &Path) -> Result<Config> {
    let file = directory.join("backends.json");
    let named = lab
        .backends
        .iter()
        .map(|backend| serde_json::json!({ "address": backend.address(false) }));
    let named = serde_json::json!({ "endpoints": named.collect::<Vec<_>>() });
    fs::write(&file, named.to_string())?;
    // Nothing answers there; one check that fails takes no backend down.
    let health = "[service.health]\ntype = \"tcp\"\nport = 9\ninterval = \"1h\"\ninitial = \"up\"";
    let service = Service::new("web", "tcp", VIP4, 80)
        .line("announce = \"address\"")
        .line(&format!("[[service.source]]\ntype = \"file\"\npath = {file:?}"))
        .line(health);
    Ok(Config::new([service]))
}

/// A metric and the label values that are asked for by name, alternatives apart.
#[derive(Debug, PartialEq)]
struct Selector {
    name: String,
    labels: Vec<(String, Vec<String>)>,
}

fn check(selector: &Selector, metrics: &Metrics) -> Result<()> {
    // Prometheus's own.
    if selector.name == "up" {
        return Ok(());
    }
    metrics.sum(&selector.name, &[])?;
    for (label, values) in &selector.labels {
        let known = metrics.by_label(&selector.name, label, &[]);
        for value in values {
            ensure!(
                known.contains_key(value),
                "{} never has {label}={value:?}, but {:?}",
                selector.name,
                known.keys()
            );
        }
    }
    Ok(())
}

/// The selectors of an expression in PromQL: names that end before `{` or look like ours. Values that hold a variable, and
/// labels that Prometheus adds, are left out.
fn selectors(expression: &str) -> Vec<Selector> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_alphabetic() || letter == '"') {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = &text[text.find('"').map_or(text.len(), |end| end + 1)..];
            continue;
        }
        let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        let inside = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        if inside.is_some() || name.starts_with("evenkeel_") || name.starts_with("process_") {
            found.push(Selector {
                name: name.to_owned(),
                labels: inside.map_or_else(Vec::new, |(inside, _)| labels(inside)),
            });
        }
        rest = inside.map_or(rest, |(_, rest)| rest);
    }
    found
}

fn labels(inside: &str) -> Vec<(String, Vec<String>)> {
    let pairs = inside.split("\",").filter_map(|pair| {
        let (label, value) = pair.split_once('=')?;
        let value = value.trim_start_matches('~').trim_matches('"');
        let label = label.trim_end_matches('!').trim();
        let ours = !["instance", "job"].contains(&label) && !value.contains('$');
        ours.then(|| (label.to_owned(), value.split('|').map(str::to_owned).collect()))
    });
    pairs.collect()
}

/// Lines of a YAML file that begin with a key, and what follows the key on them.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let line = line.trim_start().trim_start_matches("- ");
        line.strip_prefix(key).map(str::trim)
    })
}

fn alerts() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(deploy("prometheus/evenkeel.rules.yml"))?;
    let names: Vec<String> = values(&text, "alert:").map(str::to_owned).collect();
    let distinct: BTreeSet<String> = names.iter().cloned().collect();
    ensure!(distinct.len() == names.len(), "an alert is there twice");
    Ok(distinct)
}

/// Of each alert: tests in which it fires, and in which it does not.
fn cases() -> Result<BTreeMap<String, (u32, u32)>> {
    let text = fs::read_to_string(deploy("prometheus/evenkeel.rules.test.yml"))?;
    let mut cases: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for case in text.split("alertname:").skip(1) {
        let name = case.lines().next().unwrap_or_default().trim();
        let (fires, quiet) = cases.entry(name.to_owned()).or_default();
        if values(case, "exp_alerts:").next() == Some("[]") {
            *quiet += 1;
        } else {
            *fires += 1;
        }
    }
    Ok(cases)
}

/// Expressions by the alert that they are of.
fn expressions_of_rules() -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(deploy("prometheus/evenkeel.rules.yml"))?;
    let rules = text.split("- alert:").skip(1).map(|rule| {
        let name = rule.lines().next().unwrap_or_default().trim().to_owned();
        let after = rule.split_once("expr:").map_or("", |(_, after)| after);
        // Up to the next key of the rule.
        let lines = after
            .lines()
            .take_while(|line| !line.starts_with("        labels:") && !line.starts_with("        for:"));
        (name, lines.collect::<Vec<_>>().join(" "))
    });
    Ok(rules.collect())
}

/// Expressions by the panel that they are of, and the queries of variables.
fn expressions_of_dashboard() -> Result<Vec<(String, String)>> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(deploy("grafana/evenkeel.json"))?)?;
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().context("no panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let place = format!("panel {} {}", panel["title"], target["refId"]);
            found.push((
                place,
                target["expr"]
                    .as_str()
                    .context("a target without expr")?
                    .to_owned(),
            ));
        }
    }
    for variable in dashboard["templating"]["list"]
        .as_array()
        .context("no variables")?
    {
        if let Some(query) = variable["query"]["query"].as_str() {
            found.push((format!("variable {}", variable["name"]), query.to_owned()));
        }
    }
    Ok(found)
}

#[test]
fn the_dashboard_shows_what_the_product_is_about() -> Proof {
    let asked: String = expressions_of_dashboard()?
        .into_iter()
        .map(|(_, expression)| expression + "\n")
        .collect();
    for metric in [
        "backend_expected_share",
        "backend_flows_total",
        "skew_evidence",
        "skew_evidence_threshold",
        "skew_tv_lower",
        "skew_hash_entropy_bits",
        "seed_generation",
        "seed_rotations_total",
        "verdicts_total",
        "flow_table_used",
        "map_capacity",
        "discovery_stale_seconds",
        "guard_held",
        "health_backends",
        "vip_announced",
    ] {
        assert!(asked.contains(&format!("evenkeel_{metric}{{")), "{metric}");
    }
    Ok(())
}

#[test]
fn expressions_are_taken_apart() {
    let of = |name: &str, labels: &[(&str, &[&str])]| Selector {
        name: name.into(),
        labels: labels
            .iter()
            .map(|(label, values)| {
                (
                    (*label).to_owned(),
                    values.iter().map(|value| (*value).to_owned()).collect(),
                )
            })
            .collect(),
    };
    assert_eq!(
        selectors(
            "sum by (instance) (rate(evenkeel_a{x=~\"b|c\",instance=~\"$instance\"}[5m])) / evenkeel_d > 0.5 and up{job=\"e\"} == 0"
        ),
        [
            of("evenkeel_a", &[("x", &["b", "c"])]),
            of("evenkeel_d", &[]),
            of("up", &[])
        ]
    );
}
