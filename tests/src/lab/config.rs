//! The configuration file of a daemon under test.

use std::{fmt::Write, net::IpAddr, path::Path};

use super::{Backend, VIP4, VIP6};

/// Where metrics and readiness are served, in the balancer's own namespace.
pub const METRICS: &str = "127.0.0.1:9500";

/// Services and settings; everything that must be unique to a daemon is filled in when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    pub interfaces: Vec<String>,
    /// Lines added to `[datapath]`.
    pub datapath: Vec<String>,
    /// Lines added to `[seeds]`.
    pub seeds: Vec<String>,
    pub services: Vec<Service>,
}

/// One `[[service]]` table.
#[derive(Clone, Debug)]
pub struct Service {
    pub name: String,
    pub vip: IpAddr,
    pub port: u16,
    pub protocol: &'static str,
    /// Further lines of the table, such as `mode = "ipip"`.
    pub lines: Vec<String>,
    /// Address and weight.
    pub backends: Vec<(IpAddr, u32)>,
}

impl Default for Config {
    fn default() -> Self {
        let small = [
            "max_flows = 65536",
            "max_services = 64",
            "max_backends = 256",
            "max_slots = 262144",
        ];
        Self {
            interfaces: vec!["eth0".to_owned()],
            datapath: small.map(str::to_owned).to_vec(),
            seeds: Vec::new(),
            services: Vec::new(),
        }
    }
}

impl Config {
    pub fn new(services: impl IntoIterator<Item = Service>) -> Self {
        Self {
            services: services.into_iter().collect(),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn interfaces(mut self, names: &[&str]) -> Self {
        self.interfaces = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// The file's text for a daemon with these directories.
    pub fn text(&self, directory: &Path, pins: &Path) -> String {
        let mut text = String::new();
        self.write(&mut text, directory, pins)
            .expect("writing to a string cannot fail");
        text
    }

    fn write(&self, text: &mut String, directory: &Path, pins: &Path) -> std::fmt::Result {
        let directory = directory.display();
        writeln!(text, "[datapath]\ninterfaces = {:?}", self.interfaces)?;
        writeln!(text, "pin_directory = {pins:?}\n{}", self.datapath.join("\n"))?;
        writeln!(text, "[api]\nsocket = \"{directory}/api.sock\"")?;
        writeln!(text, "[metrics]\nlisten = \"{METRICS}\"")?;
        writeln!(text, "[state]\ndirectory = \"{directory}/state\"")?;
        writeln!(text, "[seeds]\n{}", self.seeds.join("\n"))?;
        for service in &self.services {
            service.write(text)?;
        }
        Ok(())
    }
}

impl Service {
    pub fn new(name: &str, protocol: &'static str, vip: IpAddr, port: u16) -> Self {
        Self {
            name: name.to_owned(),
            vip,
            port,
            protocol,
            lines: Vec::new(),
            backends: Vec::new(),
        }
    }

    /// TCP and UDP services for both VIPs, named `tcp4`, `tcp6`, `udp4`, `udp6`.
    pub fn all_four(port: u16) -> Vec<Self> {
        [("4", VIP4), ("6", VIP6)]
            .into_iter()
            .flat_map(|(family, vip)| {
                ["tcp", "udp"].map(|protocol| Self::new(&format!("{protocol}{family}"), protocol, vip, port))
            })
            .collect()
    }

    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    #[must_use]
    pub fn backend(mut self, address: IpAddr, weight: u32) -> Self {
        self.backends.push((address, weight));
        self
    }

    /// Every backend with weight 1, by its address of the VIP's family.
    #[must_use]
    pub fn backends(mut self, backends: &[Backend]) -> Self {
        let v6 = self.vip.is_ipv6();
        self.backends
            .extend(backends.iter().map(|backend| (backend.address(v6), 1)));
        self
    }

    /// The table as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a string cannot fail");
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let Self {
            name,
            vip,
            port,
            protocol,
            lines,
            backends,
        } = self;
        writeln!(
            text,
            "[[service]]\nname = {name:?}\nvip = \"{vip}\"\nport = {port}"
        )?;
        writeln!(text, "protocol = {protocol:?}\n{}", lines.join("\n"))?;
        for (address, weight) in backends {
            writeln!(
                text,
                "[[service.backend]]\naddress = \"{address}\"\nweight = {weight}"
            )?;
        }
        Ok(())
    }
}
