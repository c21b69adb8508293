//! Promise: an outage or a lie of what names the backends is no outage of the traffic.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use tests::{
    Proof,
    lab::{Config, Daemon, Lab, Place, Service, VIP4, eventually},
    traffic::{Client, Kind, LongLived, Servers},
};

const TO: SocketAddr = SocketAddr::new(VIP4, 80);

/// A service whose backends come from a file.
struct World {
    lab: Lab,
    _servers: Servers,
    daemon: Daemon,
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl World {
    /// The daemon is made and not started.
    fn new(backends: usize) -> Result<Self> {
        let lab = Lab::new(&vec![Place::Front; backends])?;
        let servers = Servers::start(&lab, 80)?;
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("backends.json");
        let source = format!("[[service.source]]\ntype = \"file\"\npath = {file:?}\nhold = \"1h\"");
        let service = Service::new("web", "tcp", VIP4, 80).line(&source);
        let daemon = Daemon::prepare(&lab.balancer, Config::new([service]))?;
        Ok(Self {
            lab,
            _servers: servers,
            daemon,
            file,
            _directory: directory,
        })
    }

    fn start(&mut self) -> Result<()> {
        self.daemon.launch()?;
        self.daemon.wait_ready()
    }

    /// Names these backends, by number, in the file.
    fn name(&self, backends: &[usize]) -> Result<()> {
        let entries: Vec<serde_json::Value> = backends
            .iter()
            .map(|index| serde_json::json!({ "address": self.lab.backends[*index].address(false) }))
            .collect();
        self.write(&serde_json::json!({ "endpoints": entries }).to_string())
    }

    fn write(&self, text: &str) -> Result<()> {
        let new = self.file.with_extension("new");
        fs::write(&new, text)?;
        Ok(fs::rename(&new, &self.file)?)
    }

    fn serving(&self) -> Option<u64> {
        self.daemon.json(&["services"]).ok()?[0]["serving"].as_u64()
    }

    fn source(&self) -> Result<serde_json::Value> {
        Ok(self.daemon.json(&["discovery"])?[0].clone())
    }

    fn reaches(&self, backends: usize) -> Result<()> {
        let spread = Client::new(&self.lab).many(Kind::Tcp, TO, 60 * backends as u64)?;
        let named = spread.len();
        ensure!(named == backends, "{named} backends answered, not {backends}");
        Ok(())
    }

    fn is_attached(&self) -> Result<bool> {
        let output = self
            .lab
            .balancer
            .command("ip")?
            .args(["-json", "link", "show", "dev", "eth0"])
            .output()?;
        let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        Ok(!links[0]["xdp"].is_null())
    }
}

/// Render, 2025: routers that had never loaded a first state were put into service.
#[test]
fn without_a_first_state_nothing_is_attached_and_nothing_is_ready() -> Proof {
    let mut world = World::new(2)?;
    world.daemon.launch()?;
    eventually("it says what it waits for", || {
        world.daemon.json(&["status"]).is_ok_and(|status| {
            status["not_ready"][0]
                .as_str()
                .is_some_and(|why| why.contains("web"))
        })
    })?;
    assert!(!world.is_attached()?);
    let status = world.daemon.json(&["status"])?;
    assert_eq!(status["ready"], false, "{status}");
    assert_eq!(world.source()?["state"], "not-loaded");
    // Nothing is no state either.
    world.write("{\"endpoints\": []}")?;
    eventually("the empty answer was heard", || {
        world.source().is_ok_and(|source| source["named"] == 0)
    })?;
    assert!(!world.is_attached()?);
    // Killed while it waited, with its maps pinned and empty: the next one waits too.
    world.daemon.kill()?;
    world.daemon.launch()?;
    eventually("it says what it waits for again", || {
        world.daemon.json(&["status"]).is_ok_and(|status| {
            status["not_ready"][0]
                .as_str()
                .is_some_and(|why| why.contains("web"))
        })
    })?;
    assert!(!world.is_attached()?);
    world.name(&[0, 1])?;
    eventually("it is ready", || {
        world
            .daemon
            .json(&["status"])
            .is_ok_and(|status| status["ready"] == true)
    })?;
    assert!(world.is_attached()?);
    eventually("both serve", || world.serving() == Some(2))?;
    Ok(world.reaches(2)?)
}

#[test]
fn with_the_source_gone_it_starts_from_what_was_last_known() -> Proof {
    let mut world = World::new(2)?;
    world.name(&[0, 1])?;
    world.start()?;
    eventually("both serve", || world.serving() == Some(2))?;
    // The source dies, the daemon is killed, the datapath with it.
    fs::remove_file(&world.file)?;
    world.daemon.kill()?;
    let pins = world.daemon.pins().display().to_string();
    world.daemon.ok(&["detach", "--pin-directory", &pins])?;
    assert!(!world.is_attached()?);
    world.start()?;
    assert!(world.is_attached()?);
    eventually("both serve", || world.serving() == Some(2))?;
    world.reaches(2)?;
    let source = world.source()?;
    assert_eq!(source["state"], "from-disk", "{source}");
    assert!(source["from_disk"].as_u64().context("when it was saved")? > 0);
    // And when the source comes back, it is followed.
    world.name(&[1])?;
    eventually("the source rules again", || world.serving() == Some(1))?;
    assert_eq!(world.source()?["state"], "fresh");
    Ok(world.reaches(1)?)
}

#[test]
fn an_empty_a_small_and_an_unreadable_answer_take_nothing_away() -> Proof {
    let mut world = World::new(4)?;
    world.name(&[0, 1, 2, 3])?;
    world.start()?;
    eventually("all serve", || world.serving() == Some(4))?;
    for (text, held) in [
        ("{\"endpoints\": []}", 4),
        ("{\"endpoints\": [{\"address\": \"10.2.0.20\"", 4),
        ("", 4),
    ] {
        let failures = world.source()?["failures"].as_u64().context("a count")?;
        world.write(text)?;
        eventually("it was heard", || {
            world.source().is_ok_and(|source| {
                source["held"]["count"] == held || source["failures"].as_u64() > Some(failures)
            })
        })?;
        assert_eq!(world.serving(), Some(4), "{text}");
        world.reaches(4)?;
    }
    // Half may go at once, three of four may not.
    world.name(&[0])?;
    eventually("three are held", || {
        world.source().is_ok_and(|source| source["held"]["count"] == 3)
    })?;
    assert_eq!(world.serving(), Some(4));
    let shown = world.daemon.ok(&["discovery"])?;
    assert!(shown.contains("discovery accept web"), "{shown}");
    let status = world.daemon.ok(&["status"])?;
    assert!(status.contains("discovery accept web"), "{status}");
    world.daemon.ok(&["discovery", "accept", "web"])?;
    eventually("accepted", || world.serving() == Some(1))?;
    Ok(world.reaches(1)?)
}

/// The disk was lost and the source is down, but the datapath forwards: what it forwards to is the last that is known.
#[test]
fn a_lost_disk_does_not_take_the_traffic_along() -> Proof {
    let mut world = World::new(3)?;
    world.name(&[0, 1])?;
    world.start()?;
    eventually("both serve", || world.serving() == Some(2))?;
    let connections = LongLived::open(&Client::new(&world.lab), TO, 40)?;
    fs::remove_file(&world.file)?;
    world.daemon.kill()?;
    fs::remove_dir_all(world.daemon.directory().join("state"))?;
    world.start()?;
    assert_eq!(world.serving(), Some(2));
    world.reaches(2)?;
    connections.check("the disk was lost")?;
    assert_eq!(world.source()?["state"], "from-disk");
    world.name(&[0, 1, 2])?;
    eventually("the source rules again", || world.serving() == Some(3))?;
    connections.check("the source came back")?;
    Ok(())
}

/// A small file system of a test's own.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Result<Self> {
        fs::create_dir_all(at)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "evenkeel-test"])
            .arg(at)
            .status()?;
        ensure!(mounted.success(), "no file system on {}", at.display());
        Ok(Self(at.to_owned()))
    }

    /// Leaves no room; the answer takes it away again.
    fn fill(&self) -> PathBuf {
        let filler = self.0.join("filler");
        // Fails when nothing more fits.
        let _ = fs::write(&filler, vec![0; 1 << 20]);
        filler
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_no_backend_out_and_is_written_when_there_is_room() -> Proof {
    let mut world = World::new(3)?;
    let disk = Disk::mount(&world.daemon.directory().join("state"))?;
    world.name(&[0, 1])?;
    world.start()?;
    eventually("both serve", || world.serving() == Some(2))?;
    let filler = disk.fill();
    world.name(&[0, 1, 2])?;
    eventually("the third one serves, too", || world.serving() == Some(3))?;
    world.reaches(3)?;
    let told = |world: &World| {
        let status = world.daemon.json(&["status"]).unwrap_or_default();
        status["problems"]
            .to_string()
            .contains("what the sources say is not kept")
    };
    eventually("it is told", || told(&world))?;
    // A change by hand would be lost by a restart: it is refused, and nothing of it happens.
    let first = world.lab.backends[0].address(false).to_string();
    let refused = world
        .daemon
        .cli(&["backend", "set", "web", &first, "--weight", "3"])?;
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("make room there"),
        "{refused:?}"
    );
    assert_eq!(world.serving(), Some(3));

    fs::remove_file(filler)?;
    eventually("it is no more", || !told(&world))?;
    // And the next daemon knows of the third one without its source.
    fs::remove_file(&world.file)?;
    world.daemon.kill()?;
    world.daemon.launch()?;
    world.daemon.wait_ready()?;
    assert_eq!(world.serving(), Some(3));
    Ok(())
}
