//! Promise: a source says what its server knows, soon and completely; whatever happens to the server, it never says that
//! nothing is there when it only cannot tell, and goes on by itself when the server is back.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use anyhow::Result;
use lb_user::{
    config::Seconds,
    discovery::{SourceKind, spec::Record},
};
use serde_json::json;
use tests::{
    Proof,
    lab::eventually,
    sources::{
        Followed,
        broken::{BrokenSite, Endless},
        dns::{BrokenDns, Fault},
        dnsmasq::Dnsmasq,
        site::Site,
    },
};

const A: &str = "192.0.2.1";
const B: &str = "192.0.2.2";
const C: &str = "192.0.2.3";
const V6: &str = "2001:db8::1";

// Files

fn list(addresses: &[&str]) -> String {
    json!({"endpoints": addresses}).to_string()
}

fn toml(addresses: &[&str]) -> String {
    let entry = |address| format!("[[endpoints]]\naddress = \"{address}\"\n");
    addresses.iter().map(entry).collect()
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(new, path)?)
}

fn follow_file(path: &Path) -> Result<Followed> {
    Followed::start(SourceKind::File {
        path: path.to_owned(),
    })
}

#[test]
fn a_file_is_followed_through_every_way_to_change_it() -> Proof {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("web.json");
    let mut source = follow_file(&path)?;
    source.until_failed("web.json: No such file")?;
    fs::write(&path, list(&[A]))?;
    source.until_pool(&[A])?;
    replace(&path, &list(&[A, B]))?;
    source.until_pool(&[A, B])?;
    fs::write(&path, list(&[B, V6]))?;
    source.until_pool(&[B, V6])?;
    fs::write(&path, list(&[]))?;
    source.until_pool(&[])?;
    source.end()?;
    Ok(())
}

#[test]
fn what_is_wrong_with_a_file_changes_nothing() -> Proof {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("web.json");
    fs::write(&path, list(&[A, "127.0.0.1", A]))?;
    let mut source = follow_file(&path)?;
    source.until_pool(&[A])?;
    let refused: Vec<_> = source
        .refused
        .iter()
        .map(|refused| refused.entry.as_str())
        .collect();
    assert_eq!(refused, ["127.0.0.1", A]);
    fs::write(&path, "")?;
    source.until_failed("the file is empty")?;
    fs::write(&path, "{\"endpoints\": [")?;
    source.until_failed("EOF while parsing")?;
    fs::remove_file(&path)?;
    source.until_failed("No such file")?;
    replace(&path, &list(&[B]))?;
    source.until_pool(&[B])?;
    Ok(())
}

#[test]
fn a_file_is_not_believed_while_it_is_written() -> Proof {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("web.toml");
    fs::write(&path, toml(&[A, B]))?;
    let mut source = follow_file(&path)?;
    source.until_pool(&[A, B])?;
    let text = toml(&[A, B, C]);
    // The first part is a whole TOML document by itself.
    let (first, rest) = text.split_at(toml(&[A]).len());
    let mut file = File::create(&path)?;
    file.write_all(first.as_bytes())?;
    file.sync_all()?;
    // Gives it the occasion to be wrong; whether it is, is in what it says.
    sleep(Duration::from_millis(300));
    file.write_all(rest.as_bytes())?;
    drop(file);
    source.until_pool(&[A, B, C])?;
    assert!(!source.saw(": 1 ["), "half a file was believed");
    assert!(!source.saw("empty"), "a truncated file was reported");
    Ok(())
}

#[test]
fn a_file_behind_links_is_followed_when_any_of_them_changes() -> Proof {
    let directory = tempfile::tempdir()?;
    let at = |path: &str| -> PathBuf { directory.path().join(path) };
    // As the kubelet mounts a ConfigMap: a link to a link in a directory that is replaced as a whole.
    for (version, addresses) in [("..one", [A, B]), ("..two", [B, C])] {
        fs::create_dir(at(version))?;
        fs::write(at(version).join("web.json"), list(&addresses))?;
    }
    symlink("..one", at("..data"))?;
    symlink("..data/web.json", at("web.json"))?;
    let mut source = follow_file(&at("web.json"))?;
    source.until_pool(&[A, B])?;
    symlink("..two", at("..data_tmp"))?;
    fs::rename(at("..data_tmp"), at("..data"))?;
    fs::remove_dir_all(at("..one"))?;
    source.until_pool(&[B, C])?;
    // A change behind all links is one too.
    replace(&at("..two/web.json"), &list(&[A]))?;
    source.until_pool(&[A])?;
    Ok(())
}

#[test]
fn a_file_with_too_many_endpoints_is_refused_whole() -> Proof {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("web.json");
    fs::write(&path, list(&[A, B]))?;
    let mut source = Followed::with_most(SourceKind::File { path: path.clone() }, 2)?;
    source.until_pool(&[A, B])?;
    replace(&path, &list(&[A, B, C]))?;
    source.until_failed("3 endpoints are more than max_endpoints = 2 allows")?;
    Ok(())
}

// DNS

fn follow_dns(server: std::net::SocketAddr, host: &str, record: Record) -> Result<Followed> {
    Followed::start(SourceKind::Dns {
        host: host.to_owned(),
        record,
        server: Some(server),
        min_interval: Seconds(1),
        max_interval: Seconds(2),
    })
}

#[test]
fn addresses_of_a_name_are_followed() -> Proof {
    let hosts = format!("{A} web.example\n{B} web.example\n{V6} web.example\n");
    let mut server = Dnsmasq::start(&hosts, &[])?;
    let address = server.address;
    for (record, expected) in [
        (Record::A, &[A, B][..]),
        (Record::Aaaa, &[V6]),
        (Record::Both, &[A, B, V6]),
    ] {
        follow_dns(address, "web.example", record)?.until_pool(expected)?;
    }
    let mut source = follow_dns(address, "web.example", Record::A)?;
    source.until_pool(&[A, B])?;
    server.set(&format!("{A} web.example\n{C} web.example\n"))?;
    source.until_pool(&[A, C])?;
    server.kill()?;
    source.until_failed("web.example. A: ")?;
    server.restart()?;
    source.until_pool(&[A, C])?;
    Ok(())
}

#[test]
fn a_name_without_addresses_says_why() -> Proof {
    let server = Dnsmasq::start(&format!("{A} web.example\n"), &[])?;
    for (host, record, why) in [
        ("gone.example", Record::A, "NXDOMAIN"),
        ("gone.example", Record::Srv, "NXDOMAIN"),
        ("web.example", Record::Aaaa, "NOERROR without AAAA records"),
    ] {
        let mut source = follow_dns(server.address, host, record)?;
        source.until_pool(&[])?;
        assert_eq!(source.revision.as_deref(), Some(why), "{host} {record:?}");
    }
    // dnsmasq refuses what it has nobody to ask about.
    let mut source = follow_dns(server.address, "web.elsewhere", Record::A)?;
    source.until_failed("Refused")?;
    Ok(())
}

#[test]
fn the_hosts_file_is_not_asked() -> Proof {
    let server = Dnsmasq::start("", &[])?;
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    // A name that this host's file has an IPv4 address for, and not `localhost`, which nobody is ever asked about.
    let host = hosts
        .lines()
        .filter(|line| line.contains('.') && line.starts_with(|first: char| first.is_ascii_digit()))
        .flat_map(|line| line.split_whitespace().skip(1))
        .find(|name| !name.contains("localhost") && !name.starts_with('#'))
        .unwrap_or("nobody");
    let mut source = follow_dns(server.address, host, Record::A)?;
    source.until_failed("Refused")?;
    assert!(!source.saw("snapshot"), "{host} has addresses from elsewhere");
    Ok(())
}

#[test]
fn services_give_ports_and_weights_of_the_lowest_priority() -> Proof {
    let hosts = format!("{A} a.example\n{V6} a.example\n{B} b.example\n{C} c.example\n");
    let server = Dnsmasq::start(
        &hosts,
        &[
            "--srv-host=_http._tcp.example,a.example,8080,10,7",
            "--srv-host=_http._tcp.example,b.example,8081,10,0",
            "--srv-host=_http._tcp.example,gone.example,8082,10,1",
            "--srv-host=_http._tcp.example,c.example,8083,20,1",
        ],
    )?;
    let mut source = follow_dns(server.address, "_http._tcp.example", Record::Srv)?;
    source.until_pool(&[A, B, V6])?;
    for (address, port, weight) in [(A, 8080, 7), (V6, 8080, 7), (B, 8081, 1)] {
        let endpoint = source.endpoint(address)?;
        assert_eq!(
            (endpoint.port, endpoint.weight),
            (Some(port), weight),
            "{address}"
        );
    }
    let refused: Vec<_> = source
        .refused
        .iter()
        .map(|refused| (refused.entry.as_str(), refused.reason.as_str()))
        .collect();
    assert_eq!(refused, [("8082 gone.example.", "the target: NXDOMAIN")]);
    Ok(())
}

#[test]
fn an_answer_too_large_for_a_datagram_is_complete() -> Proof {
    let addresses: Vec<_> = (1..=250).map(|host| format!("198.51.100.{host}")).collect();
    let hosts: String = addresses
        .iter()
        .map(|address| format!("{address} large.example\n"))
        .collect();
    let server = Dnsmasq::start(&hosts, &[])?;
    let expected: Vec<_> = addresses.iter().map(String::as_str).collect();
    follow_dns(server.address, "large.example", Record::A)?.until_pool(&expected)?;
    Ok(())
}

#[test]
fn a_broken_name_server_is_no_empty_answer() -> Proof {
    for (fault, with) in [
        (Fault::Code(2), "Server Failure"),
        (Fault::Code(5), "Refused"),
        (Fault::Garbage, "web.example. A: "),
        (Fault::Silence, "web.example. A: "),
    ] {
        let server = BrokenDns::start(fault)?;
        let mut source = follow_dns(server.address, "web.example", Record::A)?;
        source.until_failed(with)?;
        assert!(!source.saw("snapshot"), "{fault:?} was taken for an answer");
    }
    Ok(())
}

// HTTP

fn follow_http(url: String, token_file: Option<PathBuf>) -> Result<Followed> {
    Followed::start(SourceKind::Http {
        url,
        interval: Seconds(1),
        token_file,
        ca_file: None,
    })
}

fn groups(addresses: &[&str]) -> String {
    let targets: Vec<_> = addresses.iter().map(|address| format!("{address}:80")).collect();
    json!([{"targets": targets, "labels": {"__meta_weight": "3"}}]).to_string()
}

#[test]
fn a_site_is_followed_and_asked_only_for_what_is_new() -> Proof {
    let mut site = Site::start(&groups(&[A, B]))?;
    let mut source = follow_http(site.url("list.json"), None)?;
    source.until_pool(&[A, B])?;
    assert_eq!(source.endpoint(A)?.weight, 3);
    assert_eq!(source.endpoint(A)?.port, Some(80));
    source.until_confirmed()?;
    // nginx writes its log after the answer.
    eventually("there is a 304 in the log", || {
        site.log().is_ok_and(|log| log.contains("304 -"))
    })?;
    let log = site.log()?;
    let first = log.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("200 ") && first != "200 -",
        "not compressed: {log}"
    );
    site.set(&list(&[B, C]))?;
    source.until_pool(&[B, C])?;
    site.set("<html>We'll be right back</html>")?;
    source.until_failed("the answer is no list of endpoints")?;
    site.remove()?;
    source.until_failed("404 Not Found")?;
    site.kill()?;
    source.until_failed("Connection refused")?;
    site.set(&list(&[A]))?;
    site.restart()?;
    source.until_pool(&[A])?;
    Ok(())
}

#[test]
fn a_site_is_trusted_by_its_certificate_alone() -> Proof {
    let site = Site::start(&list(&[A]))?;
    let follow = |ca_file| {
        Followed::start(SourceKind::Http {
            url: site.secure_url("list.json"),
            interval: Seconds(1),
            token_file: None,
            ca_file,
        })
    };
    follow(Some(site.authority()))?.until_pool(&[A])?;
    follow(None)?.until_failed("certificate")?;
    Ok(())
}

#[test]
fn redirects_stay_on_their_host() -> Proof {
    let site = Site::start(&list(&[A]))?;
    follow_http(site.url("over"), None)?.until_pool(&[A])?;
    follow_http(site.url("away"), None)?.until_failed("it redirects to another host, localhost")?;
    Ok(())
}

#[test]
fn a_token_is_read_at_each_request() -> Proof {
    let site = Site::start(&list(&[A]))?;
    let directory = tempfile::tempdir()?;
    let token = directory.path().join("token");
    let mut source = follow_http(site.url("secret.json"), Some(token.clone()))?;
    source.until_failed("token: No such file")?;
    fs::write(&token, "wrong\n")?;
    source.until_failed("401 Unauthorized")?;
    fs::write(&token, "let-me-in\n")?;
    source.until_pool(&[A])?;
    Ok(())
}

#[test]
fn an_answer_without_end_is_given_up() -> Proof {
    for (endless, with) in [
        (Endless::Silence, "timed out"),
        // 1 MiB, and 4 KiB for each of the endpoints that are allowed.
        (Endless::Flood, "more than 1089536 octets"),
    ] {
        let site = BrokenSite::start(endless)?;
        let kind = SourceKind::Http {
            url: site.url(),
            interval: Seconds(1),
            token_file: None,
            ca_file: None,
        };
        Followed::with_most(kind, 10)?.until_failed(with)?;
    }
    Ok(())
}
