//! Every key of the file and what it takes, in words for whoever wrote something else.

/// A key of a section, a service or a backend.
pub(super) struct Key {
    pub name: &'static str,
    pub required: bool,
    /// What a value that cannot be read is not.
    pub is_not: &'static str,
    /// What to write.
    pub write: &'static str,
}

pub(super) const DATAPATH: &[Key] = &[
    interface_names("interfaces").required(),
    Key::new("xdp_mode", "a mode", r#"write "auto", "native" or "generic""#),
    Key::new("replace", "true or false", "write one of them, without quotes"),
    path("pin_directory"),
    Key::new(
        "announce_interface",
        "an interface",
        r#"write its name, like "lo""#,
    ),
    count("max_flows"),
    count("max_services"),
    count("max_backends"),
    count("max_slots"),
    time("new_timeout"),
    time("established_timeout"),
    time("closing_timeout"),
    Key::new("ping", "who answers pings", r#"write "answer" or "kernel""#),
    Key::new(
        "icmp_rate",
        "a number of messages a second",
        "write one, like 1000, without quotes; 0 for none",
    ),
];

pub(super) const API: &[Key] = &[
    path("socket"),
    Key::new(
        "group",
        "a group",
        "write its name in quotes, or leave the key out",
    ),
];

pub(super) const METRICS: &[Key] = &[
    Key::new(
        "listen",
        "an address and port",
        r#"write one like "127.0.0.1:9890", or "off""#,
    ),
    count("max_series"),
];

pub(super) const STATE: &[Key] = &[path("directory")];

pub(super) const SEEDS: &[Key] = &[
    time("interval"),
    Key::new("jitter", "a share", "write one from 0.0 to 0.9, like 0.2"),
    path("fleet_secret_file"),
];

pub(super) const SKEW: &[Key] = &[
    time("interval"),
    Key::new(
        "false_alarms_per_year",
        "a number",
        "write one, like 1.0, without quotes",
    ),
    Key::new("auto_heal", "true or false", "write one of them, without quotes"),
    Key::new(
        "auto_heal_services",
        "a table of services with true or false",
        "write one like { web = false }",
    ),
    count("rotations_per_hour"),
    time("cooldown"),
];

pub(super) const SERVICE: &[Key] = &[
    Key::new("name", "a name", r#"write one in quotes, like "web""#).required(),
    address("vip").required(),
    Key::new(
        "port",
        "a port from 1 to 65535",
        r#"write one, or "all" for every port that no other service has"#,
    )
    .required(),
    Key::new("protocol", "a protocol", r#"write "tcp" or "udp""#).required(),
    MODE,
    Key::new("selection", "a selection", r#"write "per-cpu" or "fleet""#),
    Key::new("affinity", "an affinity", r#"write "none" or "client""#),
    time("udp_idle"),
    count("slots"),
    Key::new(
        "backend",
        "a list of backends",
        "start each with [[service.backend]]",
    ),
    Key::new(
        "source",
        "a list of sources",
        "start each with [[service.source]]",
    ),
    Key::new("health", "a table", "write its keys below [service.health]"),
    Key::new(
        "announce",
        "a way to announce the VIP",
        r#"write "address", or leave the key out"#,
    ),
];

/// Keys of a source of this type; `None`: there is no such type.
pub(super) fn source(of: &str) -> Option<Vec<&'static Key>> {
    let own = match of {
        "file" => FILE,
        "dns" => DNS,
        "http" => HTTP,
        "etcd" => ETCD,
        "consul" => CONSUL,
        "kubernetes" => KUBERNETES,
        _ => return None,
    };
    Some(SOURCE.iter().chain(own).collect())
}

/// Keys of a health check of this type; `None`: there is no such type.
pub(super) fn health(of: &str) -> Option<Vec<&'static Key>> {
    let own = match of {
        "tcp" => &[],
        "http" => REQUEST,
        "https" => HTTPS,
        "grpc" => GRPC,
        "udp" => DATAGRAM,
        _ => return None,
    };
    Some(HEALTH.iter().chain(own).collect())
}

const SOURCE: &[Key] = &[
    Key::new("type", "a type of source", SOURCE_TYPES).required(),
    text("name"),
    share("max_removal"),
    time("window"),
    hold("hold"),
    hold("hold_empty"),
    Key::new(
        "allow_empty",
        "true or false",
        "write one of them, without quotes",
    ),
    count("max_endpoints"),
];

pub(super) const SOURCE_TYPES: &str = r#"write "file", "dns", "http", "etcd", "consul" or "kubernetes""#;

const FILE: &[Key] = &[path("path").required()];

const DNS: &[Key] = &[
    text("host").required(),
    Key::new(
        "record",
        "a kind of record",
        r#"write "a", "aaaa", "both" or "srv""#,
    ),
    Key::new(
        "server",
        "an address and port",
        r#"write one like "192.0.2.53:53""#,
    ),
    time("min_interval"),
    time("max_interval"),
];

const HTTP: &[Key] = &[
    url("url").required(),
    time("interval"),
    path("token_file"),
    path("ca_file"),
];

const ETCD: &[Key] = &[
    Key::new(
        "urls",
        "a list of URLs",
        r#"write one like ["http://192.0.2.1:2379"]"#,
    )
    .required(),
    text("prefix").required(),
    text("user"),
    path("password_file"),
    path("ca_file"),
];

const CONSUL: &[Key] = &[
    url("url").required(),
    text("service").required(),
    text("datacenter"),
    text("tag"),
    path("token_file"),
    path("ca_file"),
];

const KUBERNETES: &[Key] = &[
    url("url"),
    text("namespace").required(),
    text("service").required(),
    text("port"),
    path("token_file"),
    path("ca_file"),
];

const HEALTH: &[Key] = &[
    Key::new("type", "a type of check", HEALTH_TYPES).required(),
    Key::new("port", "a port from 1 to 65535", "write one, without quotes"),
    short_time("interval"),
    short_time("timeout"),
    count("rise"),
    count("fall"),
    share("jitter"),
    Key::new("via", "a way", r#"write "direct" or "vip""#),
    Key::new("initial", "a state", r#"write "down" or "up""#),
    time("slow_start"),
    share("panic_threshold"),
    Key::new("on_panic", "an answer to panic", r#"write "serve" or "withdraw""#),
];

pub(super) const HEALTH_TYPES: &str = r#"write "tcp", "http", "https", "grpc" or "udp""#;

const REQUEST: &[Key] = &[
    text("path"),
    text("host"),
    Key::new("status", "a range of statuses", "write one like [200, 299]"),
    text("body"),
];

const HTTPS: &[Key] = &[
    text("path"),
    text("host"),
    Key::new("status", "a range of statuses", "write one like [200, 299]"),
    text("body"),
    text("server_name"),
    Key::new("verify", "true or false", "write one of them, without quotes"),
    path("ca_file"),
];

const GRPC: &[Key] = &[text("service")];

const DATAGRAM: &[Key] = &[text("payload").required(), text("expect")];

pub(super) const BACKEND: &[Key] = &[
    address("address").required(),
    Key::new(
        "weight",
        "a whole number from 1 to 65535",
        "write one; only the ratios count",
    ),
    MODE,
    Key::new("state", "a state", r#"write "serving" or "draining""#),
];

const MODE: Key = Key::new("mode", "a mode", r#"write "dsr" or "ipip""#);

const fn interface_names(name: &'static str) -> Key {
    Key::new(name, "a list of interfaces", r#"write one like ["eth0"]"#)
}

const fn address(name: &'static str) -> Key {
    Key::new(
        name,
        "an IP address",
        r#"write one like "192.0.2.10" or "2001:db8::10", without prefix length or port"#,
    )
}

const fn path(name: &'static str) -> Key {
    Key::new(name, "a path", "write an absolute one in quotes")
}

const fn text(name: &'static str) -> Key {
    Key::new(name, "text", "write it in quotes")
}

const fn url(name: &'static str) -> Key {
    Key::new(
        name,
        "a URL",
        r#"write one like "http://192.0.2.1:8080/backends""#,
    )
}

const fn share(name: &'static str) -> Key {
    Key::new(name, "a share", "write one from 0.0 to 1.0, like 0.5")
}

const fn hold(name: &'static str) -> Key {
    Key::new(
        name,
        "a time",
        r#"write one with a unit, like "5m", or "off" to hold until accepted"#,
    )
}

const fn short_time(name: &'static str) -> Key {
    Key::new(name, "a time", r#"write one with a unit, like "500ms" or "2s""#)
}

const fn count(name: &'static str) -> Key {
    Key::new(
        name,
        "a whole number up to 4294967295",
        "write one, without quotes",
    )
}

const fn time(name: &'static str) -> Key {
    Key::new(
        name,
        "a time in whole seconds, from 1s to 136 years",
        r#"write one with a unit, like "30s", "10m" or "6h""#,
    )
}

impl Key {
    const fn new(name: &'static str, is_not: &'static str, write: &'static str) -> Self {
        Self {
            name,
            required: false,
            is_not,
            write,
        }
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}
