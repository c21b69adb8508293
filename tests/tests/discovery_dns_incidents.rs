//! Promise: a name server that loses its records, fails or is replaced takes no connection with it.

use std::{
    fmt::Write,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tests::{
    Proof,
    lab::{Lab, Place, eventually, within},
    sources::{
        Scene,
        dns::{BrokenDns, Fault},
        dnsmasq::Dnsmasq,
    },
};

/// Name servers are given some seconds to answer, several times.
const PATIENCE: Duration = Duration::from_secs(40);

fn dnsmasq(lab: &Lab, hosts: &str, options: &[&str]) -> Result<Dnsmasq> {
    lab.balancer.run(|| Dnsmasq::start(hosts, options))
}

fn lines(dns: &Dnsmasq) -> String {
    let server = dns.address;
    format!("[[service.source]]\ntype = \"dns\"\nhost = \"web.example\"\nserver = \"{server}\"\n")
}

fn hosts(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    addresses.into_iter().fold(String::new(), |mut text, address| {
        let _ = writeln!(text, "{address} web.example");
        text
    })
}

fn of_backends(lab: &Lab) -> Vec<IpAddr> {
    lab.backends
        .iter()
        .map(|backend| backend.address(false))
        .collect()
}

#[test]
fn no_such_name_no_records_and_a_restart_that_forgets() -> Proof {
    let lab = Lab::new(&[Place::Front; 3])?;
    let all = hosts(of_backends(&lab));
    let mut dns = dnsmasq(&lab, &all, &[])?;
    let mut scene = Scene::new(lab, &lines(&dns))?;
    scene.start(3)?;
    let traffic = scene.traffic()?;

    scene.bears("NXDOMAIN", 3, &traffic, || dns.set(""))?;
    dns.set(&all)?;
    scene.fresh()?;
    // There is the name, and no record of the type that is asked for.
    scene.bears("NOERROR without records", 3, &traffic, || {
        dns.set("fd00:2::99 web.example\n")
    })?;
    dns.set(&all)?;
    scene.fresh()?;
    scene.bears("one of three", 2, &traffic, || {
        dns.set(&hosts([scene.lab.backends[0].address(false)]))
    })?;
    dns.set(&all)?;
    scene.fresh()?;

    let balancer = scene.lab.balancer.clone();
    scene.bears("a restart without records", 3, &traffic, || {
        balancer.run(|| dns.restart_with(""))
    })?;
    dns.set(&all)?;
    scene.fresh()?;
    scene.bears("a crash", 3, &traffic, || dns.kill())?;
    balancer.run(|| dns.restart_with(&all))?;
    within(PATIENCE, "it rules again", || scene.fresh())?;
    assert_eq!(scene.serving(), Some(3));
    let rushed = traffic.finish("a name server without records")?;
    assert_eq!(rushed.answers.len(), 3, "{rushed:?}");
    Ok(())
}

#[test]
fn a_name_server_that_fails_or_talks_nonsense() -> Proof {
    const SERVER_FAILURE: u8 = 2;
    const NAME_ERROR: u8 = 3;
    const REFUSED: u8 = 5;
    let lab = Lab::new(&[Place::Front; 3])?;
    let all = hosts(of_backends(&lab));
    let mut dns = dnsmasq(&lab, &all, &[])?;
    let mut scene = Scene::new(lab, &lines(&dns))?;
    scene.start(3)?;
    let traffic = scene.traffic()?;
    let balancer = scene.lab.balancer.clone();
    for fault in [
        Fault::Code(SERVER_FAILURE),
        Fault::Code(NAME_ERROR),
        Fault::Code(REFUSED),
        Fault::Garbage,
    ] {
        let mut broken = None;
        scene.bears(&format!("{fault:?}"), 3, &traffic, || {
            dns.kill()?;
            broken = Some(balancer.run(|| BrokenDns::at(dns.address, fault))?);
            Ok(())
        })?;
        drop(broken);
        balancer.run(|| dns.restart())?;
        within(PATIENCE, "dnsmasq rules again", || scene.fresh())?;
    }
    // The same without any answer, which takes its time.
    dns.kill()?;
    let silent = balancer.run(|| BrokenDns::at(dns.address, Fault::Silence))?;
    let failures = scene.failures();
    within(PATIENCE, "silence counts as failed", || {
        ensure!(scene.failures() > failures);
        Ok(())
    })?;
    traffic.go_on("silence")?;
    drop(silent);
    assert_eq!(scene.serving(), Some(3));
    let rushed = traffic.finish("a name server that fails")?;
    assert_eq!(rushed.answers.len(), 3, "{rushed:?}");
    Ok(())
}

/// Sixty addresses are 960 octets of records and more than a datagram without EDNS holds (RFC 1035, section 4.2.1).
#[test]
fn an_answer_too_long_for_a_datagram() -> Proof {
    const EACH: u8 = 20;
    let lab = Lab::new(&[Place::Front; 3])?;
    let mut all = Vec::new();
    for (index, backend) in lab.backends.iter().enumerate() {
        let mut batch = String::new();
        for host in (100 + EACH * index as u8..).take(EACH.into()) {
            let address = IpAddr::from([10, 2, 0, host]);
            writeln!(batch, "address add {address}/24 dev {}", backend.interface)?;
            all.push(address);
        }
        backend.netns.ip(batch.trim_end())?;
    }
    let dns = dnsmasq(&lab, &hosts(all.clone()), &["--edns-packet-max=512"])?;
    let mut scene = Scene::new(lab, &lines(&dns))?;
    scene.start(60)?;
    let mut traffic = scene.traffic()?;
    // Half as many are too many still, and may go.
    let said = Instant::now();
    dns.set(&hosts(all[..40].iter().copied()))?;
    eventually("forty serve", || scene.serving() == Some(40))?;
    traffic.rush.excuse(said);
    // The last twenty were those of the last backend.
    traffic.held.close("b2");
    dns.set(&hosts(all.clone()))?;
    eventually("sixty serve", || scene.serving() == Some(60))?;
    traffic.rush.go_on(300)?;
    // What is cut off is not what is left: no answer is as good as the first half of one.
    scene.bears("one of sixty", 59, &traffic, || dns.set(&hosts([all[0]])))?;
    dns.set(&hosts(all))?;
    scene.fresh()?;
    let rushed = traffic.finish("sixty addresses")?;
    assert_eq!(rushed.answers.len(), 3, "{rushed:?}");
    Ok(())
}
