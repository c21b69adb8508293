//! From TOML to a [`Config`]: which sections there are and what their values must be.

use lb_common::{
    ids::MAX_BACKEND_IDS,
    slot_table::{MAX_SLOTS, MIN_SLOTS},
};

use super::{
    Config,
    document::Document,
    keys,
    problem::{Place, Problems},
    sections::{Datapath, Skew},
    spec::ServiceSpec,
};

const SECTIONS: [&str; 7] = ["datapath", "api", "metrics", "state", "seeds", "skew", "service"];
/// Interface names are shorter than the kernel's IFNAMSIZ.
const MAX_INTERFACE_NAME: usize = 15;
/// 2^28 flows are 8 GiB of table.
const MAX_FLOWS: u32 = 1 << 28;
const MAX_SERVICES: u32 = 1 << 20;
/// False alarms of a host a year: from one in a thousand years to three a day.
const FALSE_ALARMS: (f64, f64) = (0.001, 1000.0);
/// Seconds between checks of the spread.
const LONGEST_INTERVAL: u32 = 60;
/// One a second.
const MOST_ROTATIONS: u32 = 3600;

pub(super) fn read(text: &str, file: &str) -> Result<Config, Problems> {
    let mut document = Document::parse(text, file)?;
    document.refuse_unknown(&SECTIONS);
    let datapath = document.section::<Datapath>("datapath", keys::DATAPATH);
    let config = Config {
        file: file.to_owned(),
        api: document.section("api", keys::API).unwrap_or_default(),
        metrics: document.section("metrics", keys::METRICS).unwrap_or_default(),
        state: document.section("state", keys::STATE).unwrap_or_default(),
        seeds: document.section("seeds", keys::SEEDS).unwrap_or_default(),
        skew: document.section("skew", keys::SKEW).unwrap_or_default(),
        services: document.services(),
        datapath: datapath.clone().unwrap_or_else(Datapath::placeholder),
    };
    if datapath.is_some() {
        check_datapath(&config.datapath, &mut document);
    } else if !document.root.contains_key("datapath") {
        let remedy = "add [datapath] with interfaces = [\"eth0\"] or whatever the uplink is called";
        document.problem(Place::File, "there is no section [datapath]", remedy);
    }
    check_other_sections(&config, &mut document);
    check_skew(&config.skew, &mut document);
    document.finish(config)
}

pub(super) fn read_services(text: &str, file: &str) -> Result<Vec<ServiceSpec>, Problems> {
    let mut document = Document::parse(text, file)?;
    document.refuse_unknown(&["service"]);
    let services = document.services();
    document.finish(services)
}

impl Datapath {
    /// Stands in for a section that could not be read, so that the rest is checked all the same.
    fn placeholder() -> Self {
        toml::from_str("interfaces = []").expect("every other key has a default")
    }
}

fn check_datapath(datapath: &Datapath, document: &mut Document) {
    let at = |key: &str| Place::Section {
        section: "datapath".into(),
        key: key.into(),
    };
    if datapath.interfaces.is_empty() {
        let remedy = "name at least one, like interfaces = [\"eth0\"]";
        document.problem(at("interfaces"), "no interface is named", remedy);
    }
    for (place, interface) in datapath.interfaces.iter().enumerate() {
        let strange = |byte: u8| byte == b'/' || byte.is_ascii_whitespace();
        if datapath.interfaces[..place].contains(interface) {
            document.problem(
                at("interfaces"),
                format!("{interface:?} is there twice"),
                "name it once",
            );
        } else if !(1..=MAX_INTERFACE_NAME).contains(&interface.len()) || interface.bytes().any(strange) {
            let remedy = "`ip link` shows the names of this host's";
            document.problem(
                at("interfaces"),
                format!("{interface:?} is no interface name"),
                remedy,
            );
        }
    }
    for (key, value, least, most) in [
        ("max_flows", datapath.max_flows, 1, MAX_FLOWS),
        ("max_services", datapath.max_services, 1, MAX_SERVICES),
        ("max_backends", datapath.max_backends, 1, MAX_BACKEND_IDS - 1),
        // A table is replaced while the old one is in use.
        ("max_slots", datapath.max_slots, 2 * MIN_SLOTS, 16 * MAX_SLOTS),
    ] {
        if !(least..=most).contains(&value) {
            document.problem(
                at(key),
                format!("{value} is out of range"),
                format!("use {least} to {most}"),
            );
        }
    }
    if !datapath.pin_directory.is_absolute() {
        document.problem(
            at("pin_directory"),
            "the path is relative",
            "use an absolute path on a bpffs",
        );
    }
}

fn check_skew(skew: &Skew, document: &mut Document) {
    let at = |key: &str| Place::Section {
        section: "skew".into(),
        key: key.into(),
    };
    let (least, most) = FALSE_ALARMS;
    let budget = skew.false_alarms_per_year;
    if !(least..=most).contains(&budget) {
        let what = format!("false_alarms_per_year = {budget} is out of range");
        let remedy = format!("use {least} to {most}; 1 is one a year for the whole host");
        document.problem(at("false_alarms_per_year"), what, remedy);
    }
    if skew.interval.get() > LONGEST_INTERVAL {
        let what = format!(
            "{} between checks are too long to notice a fault in time",
            skew.interval
        );
        document.problem(at("interval"), what, format!("use 1s to {LONGEST_INTERVAL}s"));
    }
    if skew.rotations_per_hour > MOST_ROTATIONS {
        let what = format!(
            "{} rotations an hour are more than the cooldown lets through",
            skew.rotations_per_hour
        );
        document.problem(
            at("rotations_per_hour"),
            what,
            format!("use 0 to {MOST_ROTATIONS}"),
        );
    }
}

fn check_other_sections(config: &Config, document: &mut Document) {
    let at = |section: &str, key: &str| Place::Section {
        section: section.into(),
        key: key.into(),
    };
    if !(0.0..=0.9).contains(&config.seeds.jitter) {
        let what = format!("jitter = {} is out of range", config.seeds.jitter);
        document.problem(
            at("seeds", "jitter"),
            what,
            "use 0.0 to 0.9, a share of the interval",
        );
    }
    if config.api.group.as_deref() == Some("") {
        document.problem(
            at("api", "group"),
            "the group's name is empty",
            "leave the key out to allow root only",
        );
    }
    let secret = config.seeds.fleet_secret_file.as_deref().unwrap_or("/".as_ref());
    for (section, key, path) in [
        ("api", "socket", config.api.socket.as_path()),
        ("state", "directory", config.state.directory.as_path()),
        ("seeds", "fleet_secret_file", secret),
    ] {
        if !path.is_absolute() {
            document.problem(at(section, key), "the path is relative", "use an absolute path");
        }
    }
}
