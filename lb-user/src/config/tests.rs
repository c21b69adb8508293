//! Configurations as text: what is read, and what is refused on which line with which advice.

use lb_common::fingerprint::FingerprintKey;
use proptest::prelude::*;

use super::*;

const FULL: &str = r#"
[datapath]
interfaces = ["eth0", "eth1"]
xdp_mode = "native"
replace = true
pin_directory = "/sys/fs/bpf/lb"
announce_interface = "dummy0"
max_flows = 2000000
max_services = 10
max_backends = 100
max_slots = 100000
new_timeout = "5s"
established_timeout = "1h"
closing_timeout = "3s"
ping = "kernel"
icmp_rate = 20

[api]
socket = "/run/lb.sock"
group = "evenkeel"

[metrics]
listen = "[::1]:9890"
max_series = 10

[state]
directory = "/srv/lb"

[seeds]
interval = "1m"
jitter = 0.5
fleet_secret_file = "/etc/lb.secret"

[skew]
interval = "2s"
false_alarms_per_year = 12
auto_heal = false
auto_heal_services = { web = true }
rotations_per_hour = 0
cooldown = "5m"

[[service]]
name = "web"
vip = "192.0.2.10"
port = 443
protocol = "tcp"
mode = "ipip"
selection = "fleet"
affinity = "client"
udp_idle = "30s"
slots = 10007

  [[service.backend]]
  address = "10.0.0.11"
  weight = 7
  mode = "dsr"
  state = "draining"

  [[service.backend]]
  address = "2001:db8::11"

[[service]]
name = "any"
vip = "2001:db8::10"
port = "all"
protocol = "udp"
"#;

fn problems(text: &str) -> String {
    Config::from_str(text, "lb.toml")
        .expect_err("it should be refused")
        .to_string()
}

/// A file with one service, of which `change` replaces a line.
fn with(line: &str, change: &str) -> String {
    let text = "[datapath]
interfaces = [\"eth0\"]

[[service]]
name = \"web\"
vip = \"192.0.2.10\"
port = 443
protocol = \"tcp\"

[[service.backend]]
address = \"10.0.0.11\"

[[service.backend]]
address = \"10.0.0.12\"
";
    assert!(text.contains(line), "{line}");
    text.replacen(line, change, 1)
}

#[test]
fn every_key_is_read() {
    insta::assert_debug_snapshot!(Config::from_str(FULL, "lb.toml").unwrap());
}

#[test]
fn every_default() {
    insta::assert_debug_snapshot!(
        Config::from_str("[datapath]\ninterfaces = [\"eth0\"]\n", "lb.toml").unwrap()
    );
}

#[test]
fn settings_of_the_datapath_follow() {
    let key = FingerprintKey::from_words([7; _]);
    let settings = Config::from_str(FULL, "lb.toml")
        .unwrap()
        .desired_settings(key, Sampling::OFF);
    assert_eq!(
        (
            settings.new_timeout,
            settings.established_timeout,
            settings.closing_timeout
        ),
        (5, 3600, 3)
    );
    assert_eq!((settings.table_key, settings.sampling), (key, Sampling::OFF));
}

#[test]
fn all_problems_are_reported_at_once_each_on_its_line() {
    let text = r#"
[datapath]
interfaces = ["eth0", "eth0", "a name that is too long"]
max_backends = 2000000
max_slots = 5
pin_directory = "bpf"

[api]
sokcet = "/run/x"

[seeds]
jitter = 1.5
interval = "10"

[discovery]
kind = "dns"

[[service]]
name = "Web"
vip = "224.0.0.1"
port = 0
protocol = "tcp"

[[service]]
name = "one"
vip = "192.0.2.1"
port = 80
protocol = "tcp"
udp_idle = "20h"

  [[service.backend]]
  address = "10.0.0.1"
  wieght = 3

  [[service.backend]]
  address = "10.0.0.300"

  [[service.backend]]
  address = "2001:db8::1"

  [[service.backend]]
  address = "10.0.0.2"
  weight = 0

  [[service.backend]]
  address = "10.0.0.2"
  weight = 65536
  state = "down"

  [[service.backend]]
  address = "::ffff:10.0.0.3"

  [[service.backend]]
  address = "192.0.2.2"

[[service]]
name = "one"
vip = "192.0.2.2"
port = 80
protocol = "tcp"

[[service]]
name = "three"
vip = "192.0.2.1"
port = 80
protocol = "tcp"

  [[service.backend]]
  address = "127.0.0.1"
"#;
    insta::assert_snapshot!(problems(text));
}

#[test]
fn one_wrong_line_at_a_time() {
    let cases = [
        ("interfaces = [\"eth0\"]", "interfaces = []"),
        ("interfaces = [\"eth0\"]", "interfaces = \"eth0\""),
        ("interfaces = [\"eth0\"]", "xdp_mode = \"auto\""),
        (
            "interfaces = [\"eth0\"]",
            "interfaces = [\"eth0\"]\nmax_flows = -1",
        ),
        (
            "interfaces = [\"eth0\"]",
            "interfaces = [\"eth0\"]\nnew_timeout = 30",
        ),
        (
            "interfaces = [\"eth0\"]",
            "interfaces = [\"eth0\"]\nxdp_mode = \"fast\"",
        ),
        ("[datapath]", "[data path]"),
        ("[datapath]", "[[datapath]]"),
        ("[datapath]", "[metrics]\nlisten = \"9890\"\n[datapath]"),
        ("[datapath]", "[api]\ngroup = \"\"\n[datapath]"),
        ("[datapath]", "[state]\ndirectory = \"state\"\n[datapath]"),
        ("[datapath]", "[skew]\ninterval = \"2m\"\n[datapath]"),
        ("[datapath]", "[skew]\nfalse_alarms_per_year = 0\n[datapath]"),
        ("[datapath]", "[skew]\nfalse_alarms_per_year = nan\n[datapath]"),
        ("[datapath]", "[skew]\nrotations_per_hour = 5000\n[datapath]"),
        (
            "[datapath]",
            "[skew]\nauto_heal_services = { web = 1 }\n[datapath]",
        ),
        ("[datapath]\ninterfaces = [\"eth0\"]\n", ""),
        ("[[service]]", "[service]"),
        ("name = \"web\"\n", ""),
        ("\"web\"", "\"\""),
        ("\"192.0.2.10\"", "\"192.0.2\""),
        ("\"192.0.2.10\"", "\"0.0.0.0\""),
        ("\"192.0.2.10\"", "\"10.0.0.12\""),
        ("\"192.0.2.10\"", "\"2001:db8::1\""),
        ("port = 443", "port = 70000"),
        ("port = 443", "port = -1"),
        ("port = 443", "port = \"any\""),
        ("protocol = \"tcp\"", "protocol = \"sctp\""),
        ("protocol = \"tcp\"", "protocol = \"tcp\"\nmode = \"nat\""),
        ("protocol = \"tcp\"", "protocol = \"tcp\"\nslots = 7"),
        ("\"10.0.0.12\"", "\"10.0.0.11\""),
        ("\"10.0.0.12\"", "\"10.0.0.12\"\nweight = 65535"),
        ("\"10.0.0.12\"", "\"10.0.0.12\"\nweight = 5000000000"),
        ("\"10.0.0.12\"", "\"fe80::1\"\nmode = \"ipip\""),
        ("\"10.0.0.12\"", "\"10.0.0.12"),
        (
            "[[service.backend]]\naddress = \"10.0.0.11\"\n\n[[service.backend]]\naddress = \"10.0.0.12\"",
            "backend = [\"10.0.0.11\"]",
        ),
        (
            "[[service.backend]]\naddress = \"10.0.0.11\"\n\n[[service.backend]]\naddress = \"10.0.0.12\"",
            "backend = \"10.0.0.11\"",
        ),
    ];
    let shown: Vec<String> = cases
        .iter()
        .map(|(line, change)| format!("{change:?}\n{}\n", problems(&with(line, change))))
        .collect();
    insta::assert_snapshot!(shown.join("\n"));
}

/// Every type of source and check, with what it cannot do without.
const SOURCES: [(&str, &str); 6] = [
    ("file", "path = \"/etc/backends.json\"\n"),
    ("dns", "host = \"web.example\"\n"),
    ("http", "url = \"http://192.0.2.1/\"\n"),
    ("etcd", "urls = [\"http://192.0.2.1:2379\"]\nprefix = \"/web/\"\n"),
    ("consul", "url = \"http://192.0.2.1:8500\"\nservice = \"web\"\n"),
    ("kubernetes", "namespace = \"default\"\nservice = \"web\"\n"),
];
const CHECKS: [(&str, &str); 5] = [
    ("tcp", ""),
    ("http", ""),
    ("https", ""),
    ("grpc", ""),
    ("udp", "payload = \"ping\"\n"),
];

/// The keys beside `type`, which says what the others may be.
fn untyped(keys: Option<Vec<&'static keys::Key>>) -> Vec<&'static keys::Key> {
    let mut keys = keys.expect("the type is known");
    keys.retain(|key| key.name != "type");
    keys
}

/// Whatever is wrong with whichever key: the line, the key, the value, and what to write.
#[test]
fn a_value_that_cannot_be_read_is_named_with_its_key_and_line() {
    let service = "[[service]]\nname = \"web\"\nvip = \"192.0.2.10\"\nport = 443\nprotocol = \"tcp\"\n";
    let backend = format!("{service}[[service.backend]]\naddress = \"10.0.0.11\"\n");
    let datapath = "[datapath]\ninterfaces = [\"eth0\"]\n";
    let mut parts: Vec<(Vec<&keys::Key>, String, &str)> = [
        (keys::DATAPATH, datapath, "datapath"),
        (keys::API, "[api]\n", "api"),
        (keys::METRICS, "[metrics]\n", "metrics"),
        (keys::STATE, "[state]\n", "state"),
        (keys::SEEDS, "[seeds]\n", "seeds"),
        (keys::SKEW, "[skew]\n", "skew"),
        (keys::SERVICE, service, "service web"),
        (keys::BACKEND, &backend, "service web"),
    ]
    .map(|(keys, table, place)| (keys.iter().collect(), table.to_owned(), place))
    .into();
    for (of, required) in SOURCES {
        let table = format!("{service}[[service.source]]\ntype = \"{of}\"\n{required}");
        parts.push((untyped(keys::source(of)), table, "service web"));
    }
    for (of, required) in CHECKS {
        let table = format!("{service}[service.health]\ntype = \"{of}\"\n{required}");
        parts.push((untyped(keys::health(of)), table, "service web"));
    }
    let mut shown = Vec::new();
    for (keys, table, place) in parts {
        for key in keys {
            let is_old = |line: &&str| line.starts_with(&format!("{} =", key.name));
            let own = table.rfind("\n[").map_or(table.as_str(), |at| &table[at..]);
            let is_nested = place == "service web" && own.starts_with("\n[");
            let old = own.lines().rfind(is_old);
            // A table is what that one takes.
            let value = if key.name == "health" { "7" } else { "{ x = 1 }" };
            let wrong = format!("{} = {value}", key.name);
            let table = match old {
                Some(old) => table.replace(&format!("\n{old}\n"), &format!("\n{wrong}\n")),
                None => format!("{table}{wrong}\n"),
            };
            let text = match place {
                "datapath" => table,
                _ => format!("{datapath}{table}"),
            };
            let line = text.lines().position(|line| line == wrong).unwrap() + 1;
            let said = problems(&text);
            let place = if key.name == "name" && !is_nested {
                "service 1"
            } else {
                place
            };
            let start = format!("lb.toml:{line}: {place}: {wrong} is not {}; ", key.is_not);
            assert!(said.starts_with(&start), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            shown.push(said);
        }
    }
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn every_wrong_value_of_a_table_is_reported() {
    let text = with(
        "vip = \"192.0.2.10\"\nport = 443\nprotocol = \"tcp\"",
        "vip = \"10.0.0\"\nport = 0\nmode = \"nat\"\ncolour = 3\nudp_idle = \"10\"",
    );
    insta::assert_snapshot!(problems(&text), @r#"
    lb.toml:4: service web: protocol is missing; write "tcp" or "udp"
    lb.toml:6: service web: vip = "10.0.0" is not an IP address; write one like "192.0.2.10" or "2001:db8::10", without prefix length or port
    lb.toml:7: service web: port = 0 is not a port from 1 to 65535; write one, or "all" for every port that no other service has
    lb.toml:8: service web: mode = "nat" is not a mode; write "dsr" or "ipip"
    lb.toml:9: service web: there is no key colour; there are name, vip, port, protocol, mode, selection, affinity, udp_idle, slots, backend, source, health, announce
    lb.toml:10: service web: udp_idle = "10" is not a time in whole seconds, from 1s to 136 years; write one with a unit, like "30s", "10m" or "6h"
    "#);
}

#[test]
fn all_ports_stand_beside_exact_ports() {
    let other = "\n[[service]]\nname = \"all\"\nvip = \"192.0.2.10\"\nport = \"all\"\nprotocol = \"tcp\"\n";
    let text = with("port", "port") + other;
    assert_eq!(Config::from_str(&text, "lb.toml").unwrap().services.len(), 2);
    let twice = text + &other.replace("\"all\"\nvip", "\"rest\"\nvip");
    assert!(problems(&twice).contains("192.0.2.10:all/tcp is taken by service all"));
}

#[test]
fn a_large_weight_needs_more_slots_and_says_how_many() {
    let text = with("\"10.0.0.12\"", "\"10.0.0.12\"\nweight = 65535");
    assert!(problems(&text).contains("set slots = 65537 or more"));
    Config::from_str(&text.replace("443", "443\nslots = 65537"), "lb.toml").unwrap();
}

#[test]
fn services_alone_are_read_for_apply() {
    let services = &FULL[FULL.find("[[service]]").unwrap()..];
    assert_eq!(
        parse_services(services, "pools.toml").unwrap(),
        Config::from_str(FULL, "lb.toml").unwrap().services
    );
    let error = parse_services("[datapath]\ninterfaces = [\"eth0\"]", "pools.toml").unwrap_err();
    let expected = "pools.toml:1: unknown section or key `datapath`, expected `service`";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/lb.toml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the configuration /nonexistent/lb.toml"
    );
}

#[test]
fn the_host_has_a_say() {
    let config = Config::from_str(&with("10.0.0.12", "10.0.0.1"), "lb.toml").unwrap();
    let host = |interface: &str, address: &str| HostFacts {
        addresses: [address.parse().unwrap()].into(),
        interfaces: ["lo".to_owned(), interface.to_owned()].into(),
    };
    assert_eq!(check_host(&config, &host("eth0", "10.0.0.2")), []);
    let problems = Problems(check_host(&config, &host("ens3", "10.0.0.1"))).to_string();
    insta::assert_snapshot!(problems, @"
    lb.toml: datapath.interfaces: there is no interface eth0; this host has ens3, lo
    lb.toml: service web, backend 10.0.0.1: the address is this host's own; a backend must be another host: remove it, or give it its own address
    ");
}

#[test]
fn services_travel_as_json() {
    let services = Config::from_str(FULL, "lb.toml").unwrap().services;
    let json = serde_json::to_string_pretty(&services).unwrap();
    assert_eq!(serde_json::from_str::<Vec<ServiceSpec>>(&json).unwrap(), services);
    insta::assert_snapshot!(json);
}

proptest! {
    /// Whatever stands in the file, it is read or refused with a line.
    #[test]
    fn no_text_makes_it_stumble(text in "(\\[{1,2}(datapath|service|service.backend|api)\\]{1,2}\n|[a-z_]{1,9} = (\"[^\"\n]{0,9}\"|-?[0-9]{1,12}|\\[\\]|true)\n|.{0,20}\n){0,12}") {
        if let Err(problems) = Config::from_str(&text, "lb.toml") {
            prop_assert!(!problems.0.is_empty());
            let lines = text.lines().count().max(1) + 1;
            prop_assert!(problems.0.iter().all(|problem| problem.line.is_none_or(|line| line <= lines)));
        }
    }
}
