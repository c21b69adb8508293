//! Promise: whatever becomes of what names the backends, connections that are open stay open and new ones are answered.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::{
    Proof,
    lab::{Lab, Place, VIP4, eventually, within},
    sources::{
        Scene, Traffic,
        dnsmasq::Dnsmasq,
        etcd::Etcd,
        scene::{TO, dropped, list, replace},
        scripted::{Answer, Scripted},
        site::Site,
    },
    traffic::Rush,
};

/// Servers that share two cores with all the rest take their time.
const PATIENCE: Duration = Duration::from_secs(30);

fn lab(backends: usize) -> Result<Lab> {
    Lab::new(&vec![Place::Front; backends])
}

fn address(lab: &Lab, index: usize) -> IpAddr {
    lab.backends[index].address(false)
}

fn addresses(lab: &Lab) -> Vec<IpAddr> {
    (0..lab.backends.len()).map(|index| address(lab, index)).collect()
}

/// etcd on the balancer's loopback that names these backends.
fn etcd(lab: &Lab, backends: &[usize]) -> Result<Etcd> {
    lab.balancer.run(|| {
        let etcd = Etcd::start()?;
        for index in backends {
            etcd.put(&key(lab, *index), "")?;
        }
        Ok(etcd)
    })
}

fn key(lab: &Lab, index: usize) -> String {
    format!("/web/{}", address(lab, index))
}

fn etcd_lines(etcd: &Etcd) -> String {
    let url = etcd.url();
    format!("[[service.source]]\ntype = \"etcd\"\nurls = [{url:?}]\nprefix = \"/web/\"\n")
}

fn status(scene: &Scene) -> Result<serde_json::Value> {
    scene.daemon.json(&["status"])
}

/// Render, 2025: what names the backends was gone, routers were started without a state, and traffic was led to them.
#[test]
fn an_outage_of_the_source_and_starts_during_it() -> Proof {
    let lab = lab(3)?;
    let mut etcd = etcd(&lab, &[0, 1, 2])?;
    let lines = format!("announce = \"address\"\n{}", etcd_lines(&etcd));
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(3)?;
    eventually("the VIP is announced", || scene.has_vip().unwrap_or(false))?;
    let traffic = scene.traffic()?;
    etcd.kill()?;
    eventually("the outage is noticed", || scene.failures() > Some(0))?;
    traffic.go_on("the source died")?;
    scene.daemon.kill()?;
    traffic.go_on("the daemon was killed too")?;
    scene.start(3)?;
    let source = scene.source()?;
    assert_eq!(source["state"], "from-disk", "{source}");
    traffic.go_on("a start without the source")?;
    assert_eq!(traffic.finish("an outage of etcd and a start")?.answers.len(), 3);

    // Now with nothing to start from.
    scene.daemon.kill()?;
    let pins = scene.daemon.pins().display().to_string();
    scene.daemon.ok(&["detach", "--pin-directory", &pins])?;
    scene
        .lab
        .balancer
        .ip(&format!("address delete {VIP4}/32 dev lo"))?;
    fs::remove_dir_all(scene.daemon.directory().join("state"))?;
    scene.daemon.launch()?;
    eventually("it says what it waits for", || {
        status(&scene).is_ok_and(|status| {
            let why = status["not_ready"][0].as_str();
            why.is_some_and(|why| why.contains("web") && why.contains("fails"))
        })
    })?;
    assert!(!scene.is_attached()?, "attached without a state");
    assert!(!scene.has_vip()?, "announced without a state");
    assert_eq!(status(&scene)?["ready"], false);
    assert_ne!(scene.daemon.http("/readyz")?.0, 200);
    // Only what was known can be served; now it is known again.
    scene.lab.balancer.run(|| etcd.restart())?;
    within(PATIENCE, "it is ready", || {
        ensure!(status(&scene)?["ready"] == true);
        Ok(())
    })?;
    scene.daemon.wait_ready()?;
    assert!(scene.is_attached()?);
    eventually("the VIP is announced again", || scene.has_vip().unwrap_or(false))?;
    eventually("all serve", || scene.serving() == Some(3))?;
    let traffic = scene.traffic()?;
    traffic.go_on("the source came back")?;
    assert_eq!(traffic.finish("after the outage")?.answers.len(), 3);
    Ok(())
}

/// A web server of the tests' own that names all backends of a lab, and what it says then.
fn scripted(lab: &Lab) -> Result<(Scripted, String)> {
    let all = list(addresses(lab));
    let site = lab
        .balancer
        .run(|| Scripted::start(vec![Answer::Text(all.clone())]))?;
    Ok((site, all))
}

fn http_lines(site: &Scripted) -> String {
    let url = site.url();
    format!("[[service.source]]\ntype = \"http\"\nurl = {url:?}\ninterval = \"1s\"\nmax_endpoints = 16\n")
}

#[test]
fn answers_that_are_empty_broken_garbage_or_huge() -> Proof {
    let lab = lab(4)?;
    let (site, all) = scripted(&lab)?;
    let mut scene = Scene::new(lab, &http_lines(&site))?;
    scene.start(4)?;
    let traffic = scene.traffic()?;
    let three_gone = list([address(&scene.lab, 0)]);
    let huge = list((0..5000_u32).map(|host| IpAddr::from((0x0a02_4000 + host).to_be_bytes())));
    let endless = format!("{{\"endpoints\": [{}", "[".repeat(1 << 20));
    for (what, held, answer) in [
        ("an empty list", 4, Answer::Text(list([]))),
        ("a list of one", 3, Answer::Text(three_gone)),
        ("no text", 4, Answer::Text(String::new())),
        ("half an answer", 4, Answer::Half(all.clone())),
        ("half a text", 4, Answer::Text(all[..all.len() / 2].to_owned())),
        ("garbage", 4, Answer::Text("<html>moved</html>".to_owned())),
        ("brackets", 4, Answer::Text(endless)),
        ("an error", 4, Answer::Status(503)),
        ("another error", 4, Answer::Status(404)),
        ("too many endpoints", 4, Answer::Text(huge)),
    ] {
        scene.bears(what, held, &traffic, || {
            site.say(vec![answer]);
            Ok(())
        })?;
        site.say(vec![Answer::Text(all.clone())]);
        scene.fresh().context(what)?;
    }
    let rushed = traffic.finish("ten kinds of broken answers")?;
    assert_eq!(rushed.answers.len(), 4, "{rushed:?}");
    Ok(())
}

#[test]
fn a_source_that_never_answers() -> Proof {
    let lab = lab(3)?;
    let (site, all) = scripted(&lab)?;
    let mut scene = Scene::new(lab, &http_lines(&site))?;
    scene.start(3)?;
    let traffic = scene.traffic()?;
    let failures = scene.failures();
    site.say(vec![Answer::Never]);
    eventually("it was asked", || site.asked() > 0)?;
    traffic.go_on("a question without an answer")?;
    // Other business goes on meanwhile, and the question ends.
    let first = address(&scene.lab, 0).to_string();
    scene
        .daemon
        .ok(&["backend", "set", "web", &first, "--weight", "3"])?;
    within(PATIENCE, "it counts as failed", || {
        ensure!(scene.failures() > failures);
        Ok(())
    })?;
    traffic.go_on("the question ended")?;
    // Asked again it may be waiting already.
    site.say(vec![Answer::Text(all)]);
    scene.fresh()?;
    assert_eq!(scene.serving(), Some(3));
    traffic.finish("a source that hangs")?;
    Ok(())
}

/// A source whose file is full and then not, ten times a second.
#[test]
fn a_source_that_flaps() -> Proof {
    let lab = lab(4)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("backends.json");
    let full = list(addresses(&lab));
    let lies = [list([]), list([address(&lab, 0)]), "{".to_owned()];
    replace(&file, &full)?;
    let lines = format!("[[service.source]]\ntype = \"file\"\npath = {file:?}\n");
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(4)?;
    let traffic = scene.traffic()?;
    let updates = scene.source()?["updates"].as_u64();
    let begin = Instant::now();
    for turn in 0..50_usize {
        let due = Duration::from_millis(100) * turn as u32;
        thread::sleep(due.saturating_sub(begin.elapsed()));
        let text = match turn % 2 {
            0 => &lies[turn / 2 % lies.len()],
            _ => &full,
        };
        replace(&file, text)?;
        assert_eq!(scene.serving(), Some(4), "turn {turn}");
    }
    traffic.go_on("flapping")?;
    scene.fresh()?;
    let source = scene.source()?;
    assert!(
        source["updates"].as_u64() > updates,
        "nothing was heard: {source}"
    );
    assert_eq!(scene.serving(), Some(4));
    let rushed = traffic.finish("a flapping source")?;
    assert_eq!(rushed.answers.len(), 4, "{rushed:?}");
    Ok(())
}

/// All that can die dies at once, at full traffic.
#[test]
fn kill_9_of_the_daemon_and_of_all_sources() -> Proof {
    let lab = lab(3)?;
    let mut etcd = etcd(&lab, &[0])?;
    let (mut site, mut dns) = lab.balancer.run(|| {
        let site = Site::start(&list([address(&lab, 1)]))?;
        let hosts = format!("{} web.example\n", address(&lab, 2));
        anyhow::Ok((site, Dnsmasq::start(&hosts, &[])?))
    })?;
    let lines = format!(
        "{}[[service.source]]\ntype = \"http\"\nurl = {:?}\ninterval = \"1s\"\n\
         [[service.source]]\ntype = \"dns\"\nhost = \"web.example\"\nserver = \"{}\"\n",
        etcd_lines(&etcd),
        site.url("list.json"),
        dns.address,
    );
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(3)?;
    let traffic = Traffic::start(&scene.lab, TO, 1000)?;
    traffic.rush.go_on(1000)?;
    scene.daemon.kill()?;
    etcd.kill()?;
    site.kill()?;
    dns.kill()?;
    traffic.rush.go_on(3000)?;
    traffic.go_on("all was killed")?;
    scene.start(3)?;
    traffic.rush.go_on(1000)?;
    let sources = scene.daemon.json(&["discovery"])?;
    let sources = sources.as_array().context("a list")?;
    assert!(
        sources.iter().all(|source| source["state"] == "from-disk"),
        "{sources:?}"
    );
    scene.lab.balancer.run(|| {
        etcd.restart()?;
        site.restart()?;
        dns.restart()
    })?;
    within(PATIENCE, "all sources rule", || {
        let sources = scene.daemon.json(&["discovery"])?;
        let mut sources = sources.as_array().context("a list")?.iter();
        ensure!(sources.all(|source| source["state"] == "fresh"));
        Ok(())
    })?;
    let rushed = traffic.finish("kill -9 of the daemon, etcd, nginx and dnsmasq")?;
    assert_eq!(rushed.answers.len(), 3, "{rushed:?}");
    assert!(rushed.count() > 5000, "{rushed:?}");
    Ok(())
}

/// A backend that passes checks as long as this is there: nobody takes what it accepts, but the kernel does.
fn answering(lab: &Lab, index: usize) -> Result<TcpListener> {
    let at = SocketAddr::new(address(lab, index), 9000);
    let bind = || TcpListener::bind(at).with_context(|| format!("answering checks at {at}"));
    lab.backends[index].netns.run(bind)
}

/// The file on disk is old, and one of its addresses is somebody else's now.
#[test]
fn an_old_state_on_disk_leads_no_flow_to_those_that_do_not_answer() -> Proof {
    let lab = lab(3)?;
    let directory = tempfile::tempdir()?;
    let file: PathBuf = directory.path().join("backends.json");
    replace(&file, &list(addresses(&lab)))?;
    let mut answers: BTreeMap<usize, TcpListener> = (0..3)
        .map(|index| Ok((index, answering(&lab, index)?)))
        .collect::<Result<_>>()?;
    let lines = format!(
        "[[service.source]]\ntype = \"file\"\npath = {file:?}\n\
         [service.health]\ntype = \"tcp\"\nport = 9000\ninterval = \"500ms\"\ntimeout = \"400ms\"\nrise = 1\n"
    );
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(3)?;
    fs::remove_file(&file)?;
    scene.daemon.kill()?;
    let pins = scene.daemon.pins().display().to_string();
    scene.daemon.ok(&["detach", "--pin-directory", &pins])?;

    answers.remove(&2);
    let before = scene.servers.0[2].connections();
    scene.daemon.launch()?;
    scene.daemon.wait_ready()?;
    assert_eq!(scene.source()?["state"], "from-disk");
    eventually("two serve", || scene.serving() == Some(2))?;
    let traffic = scene.traffic()?;
    traffic.rush.go_on(600)?;
    assert_eq!(traffic.rush.at("b2"), 0);
    assert_eq!(scene.servers.0[2].connections(), before, "it got a flow");
    // It is the backend after all.
    answers.insert(2, answering(&scene.lab, 2)?);
    eventually("all serve", || scene.serving() == Some(3))?;
    eventually("it gets flows", || traffic.rush.at("b2") > 0)?;
    traffic.finish("a start from an old state")?;
    Ok(())
}

/// When a source was told of a removal: before and after the moment it took effect.
type Told = (Instant, Instant);

/// Takes backends away one by one under traffic and puts them back; how long each went on getting new flows, in
/// milliseconds, at the least and at the most.
fn removals(
    scene: &Scene,
    remove: impl Fn(usize) -> Result<Told>,
    put_back: impl Fn(usize) -> Result<()>,
) -> Result<Vec<(u128, u128)>> {
    let mut traffic = Traffic::start(&scene.lab, TO, 500)?;
    let mut lags = Vec::new();
    for turn in 0..6 {
        let (index, name) = (turn % 3, format!("b{}", turn % 3));
        eventually("it gets flows", || traffic.rush.at(&name) > 0)?;
        let (before, after) = remove(index)?;
        eventually("three serve", || scene.serving() == Some(3))?;
        traffic.rush.excuse(before);
        let removed = Instant::now();
        traffic.rush.go_on(300)?;
        let last = traffic.rush.last(&name).context("it had flows")?;
        let since = |told| last.saturating_duration_since(told).as_millis();
        lags.push((since(after), since(before)));
        ensure!(
            last < removed + Duration::from_secs(2),
            "{:?} late",
            last - removed
        );
        traffic.held.close(&name);
        traffic.go_on("a removal")?;
        put_back(index)?;
        eventually("all serve", || scene.serving() == Some(4))?;
    }
    traffic.finish("six removals")?;
    ensure!(lags.iter().all(|(_, lag)| *lag < 2000), "{lags:?}");
    Ok(lags)
}

/// How long a backend that was taken away goes on getting new flows.
#[test]
fn a_backend_that_is_taken_away_in_etcd_gets_its_last_flow_soon() -> Proof {
    let lab = lab(4)?;
    let etcd = etcd(&lab, &[0, 1, 2, 3])?;
    let lines = format!("{}max_removal = 1.0\n", etcd_lines(&etcd));
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(4)?;
    let key = |index| key(&scene.lab, index);
    let remove = |index| scene.lab.balancer.run(|| etcd.delete_timed(&key(index)));
    let put_back = |index| scene.lab.balancer.run(|| etcd.put(&key(index), "")).map(drop);
    let lags = removals(&scene, remove, put_back)?;
    println!(
        "last new flow after etcd's answer, and after it was asked, to the removal, milliseconds: {lags:?}"
    );
    Ok(())
}

#[test]
fn a_backend_that_is_taken_out_of_a_file_gets_its_last_flow_soon() -> Proof {
    let lab = lab(4)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("backends.json");
    let all = addresses(&lab);
    replace(&file, &list(all.clone()))?;
    let lines = format!("[[service.source]]\ntype = \"file\"\npath = {file:?}\nmax_removal = 1.0\n");
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(4)?;
    let remove = |index| {
        let mut rest = all.clone();
        rest.remove(index);
        let before = Instant::now();
        replace(&file, &list(rest))?;
        Ok((before, Instant::now()))
    };
    let put_back = |_| replace(&file, &list(all.clone()));
    let lags = removals(&scene, remove, put_back)?;
    println!("last new flow after the removal from the file, milliseconds: {lags:?}");
    Ok(())
}

/// A backend moves: it is taken away at its old address and named at a new one, together.
#[test]
fn backends_that_come_back_under_other_addresses() -> Proof {
    let lab = lab(3)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("backends.json");
    let old = addresses(&lab);
    replace(&file, &list(old.clone()))?;
    let lines = format!("[[service.source]]\ntype = \"file\"\npath = {file:?}\nmax_removal = 1.0\n");
    let mut scene = Scene::new(lab, &lines)?;
    scene.start(3)?;
    let rush = Rush::start(&scene.lab, TO, 200)?;
    rush.go_on(100)?;
    let mut new = Vec::new();
    for (index, backend) in scene.lab.backends.iter().enumerate() {
        let address = IpAddr::from([10, 2, 0, 121 + index as u8]);
        let interface = &backend.interface;
        backend
            .netns
            .ip(&format!("address add {address}/24 dev {interface}"))?;
        new.push(address);
    }
    for addresses in [&new, &old, &new] {
        let said = Instant::now();
        replace(&file, &list(addresses.clone()))?;
        let wanted: Vec<_> = addresses.iter().map(|address| json!(address)).collect();
        eventually("they serve under their other addresses", || {
            let backends = scene.daemon.json(&["backends", "web"]);
            let serving = |backend: &&serde_json::Value| backend["state"] == "serving";
            backends.is_ok_and(|backends| {
                let backends = backends.as_array().into_iter().flatten().filter(serving);
                let named: Vec<_> = backends.map(|backend| backend["address"].clone()).collect();
                named == wanted
            })
        })?;
        rush.excuse(said);
        rush.go_on(200)?;
    }
    let rushed = rush.finish()?;
    let dropped = dropped(&scene.daemon)?;
    assert!(
        dropped.is_empty(),
        "at some moment there was no backend: {dropped:?}"
    );
    rushed.print("three moves of all backends");
    assert_eq!(rushed.answers.len(), 3, "{rushed:?}");
    Ok(())
}
