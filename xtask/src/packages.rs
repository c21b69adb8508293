//! The one list of what a fresh machine needs, and how it gets there: packages by apt, tools by cargo.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::run;

/// A Debian package and what it is for.
pub struct Package {
    pub name: String,
    pub why: &'static str,
}

pub fn package(name: impl Into<String>, why: &'static str) -> Package {
    Package {
        name: name.into(),
        why,
    }
}

/// What building needs besides the BPF toolchain.
pub fn to_build() -> Vec<Package> {
    vec![package("build-essential", "links host programs")]
}

/// What the demo and the bench need.
pub fn to_demonstrate() -> Vec<Package> {
    vec![
        package("iproute2", "makes network namespaces and their links"),
        package("ethtool", "turns checksum offload of virtual links off"),
    ]
}

/// What the tests start or look through.
pub fn to_test() -> Vec<Package> {
    let mut all = to_demonstrate();
    all.extend([
        package(
            "util-linux",
            "enters namespaces (nsenter), and runs the daemon with few capabilities (setpriv)",
        ),
        package("bpftool", "looks at loaded programs and maps from outside"),
        package("nginx-light", "real web servers behind the balancer"),
        package("curl", "a real client"),
        package("bird2", "a real routing daemon that VIPs are announced by"),
        package("dnsmasq-base", "a real DNS server as a source of backends"),
        package("etcd-server", "a real etcd as a source of backends"),
        package("netcat-openbsd", "a real client of raw TCP and UDP"),
        package("openssl", "makes the certificates of servers in tests"),
        package("systemd", "checks the unit that is shipped (systemd-analyze)"),
        package("tcpdump", "captures for failing tests"),
        package(
            "prometheus",
            "checks the alert rules and runs their tests (promtool)",
        ),
    ]);
    all
}

/// Installs those that are missing, naming each before; asks apt nothing when none is.
pub fn install(wanted: &[Package]) -> Result<()> {
    let installed = installed()?;
    let missing: Vec<_> = wanted
        .iter()
        .filter(|package| !installed.contains(package.name.as_str()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|package| package.name.as_str()).collect();
    ensure!(
        rustix::process::geteuid().is_root(),
        "{} must be installed, which only root may do: run this as root, or `apt-get install {}` first",
        if names.len() == 1 { "a package" } else { "packages" },
        names.join(" ")
    );
    for package in &missing {
        println!("installing {:24} {}", package.name, package.why);
    }
    refresh()?;
    let _quiet = NoServices::new();
    let mut apt = apt("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends"])
        .args(&names)
        .stdout(Stdio::null());
    run::run(&mut apt).context("the packages named above could not be installed")
}

/// The version apt would install, if it knows the package.
pub fn candidate(name: &str) -> Option<String> {
    let policy = run::output(apt("apt-cache").args(["policy", name]))?;
    let version = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate:"))?
        .trim();
    (version != "(none)").then(|| version.to_owned())
}

/// Fetches the package lists, once a run.
pub fn refresh() -> Result<()> {
    static DONE: std::sync::Once = std::sync::Once::new();
    let mut outcome = Ok(());
    DONE.call_once(|| {
        outcome = run::run(apt("apt-get").args(["update", "--quiet"]).stdout(Stdio::null())).context(
            "the package lists cannot be fetched: is there a network, and does /etc/apt name a mirror?",
        );
    });
    outcome
}

/// Whether this machine has apt at all.
pub fn has_apt() -> bool {
    Path::new("/usr/bin/apt-get").exists() && Path::new("/usr/bin/dpkg-query").exists()
}

fn installed() -> Result<BTreeSet<String>> {
    ensure!(
        has_apt(),
        "this is not Debian or a relative of it (no apt-get), the only kind of machine setup knows"
    );
    let mut query = Command::new("dpkg-query");
    let list = run::output(query.args(["--show", "--showformat", "${db:Status-Status} ${Package}\n"]))
        .context("dpkg-query does not list the installed packages")?;
    Ok(list
        .lines()
        .filter_map(|line| line.strip_prefix("installed "))
        .map(str::to_owned)
        .collect())
}

fn apt(tool: &str) -> Command {
    let mut apt = Command::new(tool);
    apt.env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    if tool == "apt-get" {
        apt.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    }
    apt
}

/// Keeps packages such as nginx from starting a server of their own while they are installed.
struct NoServices {
    made: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl NoServices {
    fn new() -> Self {
        let free = !Path::new(POLICY).exists();
        let made = free
            && fs::write(POLICY, "#!/bin/sh\nexit 101\n").is_ok()
            && fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)).is_ok();
        Self { made }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(POLICY);
        }
    }
}

/// A cargo subcommand, built from source where it is missing.
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
    pub why: &'static str,
}

pub const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    version: "^0.9",
    why: "runs the tests",
};
pub const MACHETE: Tool = Tool {
    name: "cargo-machete",
    version: "^0.9",
    why: "finds dependencies nobody uses",
};

impl Tool {
    /// `cargo <subcommand>`, the tool being on PATH, in `target/tools`, or newly built there.
    pub fn cargo(&self) -> Result<Command> {
        if !self.runs() {
            println!(
                "installing {:24} {} (cargo install, some minutes)",
                self.name, self.why
            );
            let root = run::root().join("target/tools");
            let mut cargo = run::cargo("install");
            cargo
                .args([
                    "--quiet",
                    "--locked",
                    self.name,
                    "--version",
                    self.version,
                    "--root",
                ])
                .arg(root);
            run::run(&mut cargo)
                .with_context(|| format!("{} could not be built: is there a network?", self.name))?;
            ensure!(
                self.runs(),
                "{} was built into target/tools but does not run",
                self.name
            );
        }
        Ok(self.command())
    }

    fn runs(&self) -> bool {
        run::output(self.command().arg("--version")).is_some()
    }

    fn command(&self) -> Command {
        let mut cargo = run::cargo(self.name.trim_start_matches("cargo-"));
        // Set by `cargo run`; with it cargo-machete takes itself for the program that is run, and its name for a path.
        cargo.env_remove("CARGO_PKG_NAME");
        let own = run::root().join("target/tools/bin");
        let rest = std::env::var_os("PATH").unwrap_or_default();
        if let Ok(path) = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&rest))) {
            cargo.env("PATH", path);
        }
        cargo
    }
}
