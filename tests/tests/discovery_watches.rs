//! Promise: a source that watches its server says each change, and misses none: not when the server dies, forgets what was,
//! or is not the one it was.

use std::{fs, path::PathBuf};

use anyhow::Result;
use axum::http::StatusCode;
use lb_user::{discovery::SourceKind, state::desired::BackendState};
use rustix::process::Signal;
use serde_json::json;
use tests::{
    Proof,
    sources::{
        Followed,
        consul::{Consul, instance},
        etcd::Etcd,
        kubernetes::{Kubernetes, endpoint},
    },
};

const A: &str = "192.0.2.1";
const B: &str = "192.0.2.2";
const C: &str = "192.0.2.3";

// etcd

fn follow_etcd(urls: Vec<String>, login: Option<(&str, PathBuf)>) -> Result<Followed> {
    let (user, password_file) = login.unzip();
    Followed::start(SourceKind::Etcd {
        urls,
        prefix: "/web/".to_owned(),
        user: user.map(str::to_owned),
        password_file,
        ca_file: None,
    })
}

#[test]
fn keys_are_followed_as_they_come_change_and_go() -> Proof {
    let etcd = Etcd::start()?;
    etcd.put(&format!("/web/{A}:80"), "")?;
    etcd.put("/webx/192.0.2.99", "")?;
    let mut source = follow_etcd(vec![etcd.url()], None)?;
    source.until_pool(&[A])?;
    assert_eq!(source.endpoint(A)?.port, Some(80));
    let entry = json!({"address": B, "weight": 5, "tags": ["new"]});
    etcd.put("/web/b", &entry.to_string())?;
    source.until_pool(&[A, B])?;
    assert_eq!(source.endpoint(B)?.weight, 5);
    let entry = json!({"address": B, "state": "draining"});
    etcd.put("/web/b", &entry.to_string())?;
    source.until("it drains", |source, _| {
        source
            .endpoint(B)
            .is_ok_and(|endpoint| endpoint.state == BackendState::Draining)
    })?;
    // Another key for the same address is refused, and takes over when the first goes.
    etcd.put("/web/c", &json!({"address": B}).to_string())?;
    source.until("the second key is refused", |source, _| {
        source.refused.iter().any(|refused| refused.reason.contains(B))
    })?;
    etcd.delete("/web/b")?;
    etcd.delete(&format!("/web/{A}:80"))?;
    source.until_pool(&[B])?;
    assert_eq!(source.endpoint(B)?.state, BackendState::Serving);
    etcd.put("/web/d", "no JSON")?;
    source.until("a value is refused", |source, _| {
        source.refused.iter().any(|refused| refused.entry == "/web/d")
    })?;
    source.end()?;
    Ok(())
}

#[test]
fn a_killed_etcd_changes_nothing_and_is_followed_again() -> Proof {
    let mut etcd = Etcd::start()?;
    etcd.put(&format!("/web/{A}"), "")?;
    // The first URL leads nowhere.
    let dead = "http://127.0.0.1:1".to_owned();
    let mut source = follow_etcd(vec![dead, etcd.url()], None)?;
    source.until_pool(&[A])?;
    etcd.kill()?;
    source.until_failed("http://127.0.0.1")?;
    etcd.restart()?;
    etcd.put(&format!("/web/{B}"), "")?;
    source.until_pool(&[A, B])?;
    assert_eq!(source.snapshots(), 1, "the watch did not go on where it ended");
    Ok(())
}

#[test]
fn a_frozen_etcd_is_noticed_though_its_connection_stands() -> Proof {
    let etcd = Etcd::start()?;
    etcd.put(&format!("/web/{A}"), "")?;
    let mut source = follow_etcd(vec![etcd.url()], None)?;
    source.until_pool(&[A])?;
    etcd.signal(Signal::STOP)?;
    source.until_failed("http://127.0.0.1")?;
    etcd.signal(Signal::CONT)?;
    etcd.put(&format!("/web/{B}"), "")?;
    source.until_pool(&[A, B])?;
    assert_eq!(source.snapshots(), 1, "the watch did not go on where it ended");
    Ok(())
}

#[test]
fn compacted_revisions_are_made_up_for() -> Proof {
    let mut etcd = Etcd::start()?;
    etcd.put(&format!("/web/{A}"), "")?;
    let mut source = follow_etcd(vec![etcd.url()], None)?;
    source.until_pool(&[A])?;
    etcd.kill()?;
    source.until_failed("http://127.0.0.1")?;
    etcd.elsewhere(|etcd| {
        etcd.delete(&format!("/web/{A}"))?;
        let newest = etcd.put(&format!("/web/{B}"), "")?;
        etcd.compact(newest)
    })?;
    source.until_pool(&[B])?;
    assert_eq!(
        source.snapshots(),
        2,
        "the second list makes up for what was missed"
    );
    Ok(())
}

#[test]
fn a_store_that_lost_everything_is_listed_anew() -> Proof {
    let mut etcd = Etcd::start()?;
    for address in [A, B, C] {
        etcd.put(&format!("/web/{address}"), "")?;
    }
    let mut source = follow_etcd(vec![etcd.url()], None)?;
    source.until_pool(&[A, B, C])?;
    etcd.lose_everything()?;
    etcd.put(&format!("/web/{B}"), "")?;
    source.until_pool(&[B])?;
    Ok(())
}

#[test]
fn many_keys_are_listed_page_by_page_and_bounded() -> Proof {
    let etcd = Etcd::start()?;
    let addresses: Vec<_> = (0..1_200_u32)
        .map(|host| format!("198.18.{}.{}", host / 200, host % 200 + 1))
        .collect();
    let keys: Vec<_> = addresses
        .iter()
        .map(|address| format!("/web/{address}"))
        .collect();
    for some in keys.chunks(100) {
        etcd.put_together(some)?;
    }
    let expected: Vec<_> = addresses.iter().map(String::as_str).collect();
    follow_etcd(vec![etcd.url()], None)?.until_pool(&expected)?;
    let kind = SourceKind::Etcd {
        urls: vec![etcd.url()],
        prefix: "/web/".to_owned(),
        user: None,
        password_file: None,
        ca_file: None,
    };
    Followed::with_most(kind, 1_199)?
        .until_failed("1200 endpoints are more than max_endpoints = 1199 allows")?;
    Ok(())
}

#[test]
fn a_protected_store_is_followed_with_a_password() -> Proof {
    let mut etcd = Etcd::start()?;
    etcd.put(&format!("/web/{A}"), "")?;
    etcd.protect("open sesame")?;
    let directory = tempfile::tempdir()?;
    let password = directory.path().join("password");
    fs::write(&password, "wrong\n")?;
    let mut source = follow_etcd(vec![etcd.url()], Some(("root", password.clone())))?;
    source.until_failed("authentication failed")?;
    fs::write(&password, "open sesame\n")?;
    source.until_pool(&[A])?;
    etcd.put(&format!("/web/{B}"), "")?;
    source.until_pool(&[A, B])?;
    follow_etcd(vec![etcd.url()], None)?.until_failed("user name is empty")?;
    Ok(())
}

// Consul

#[test]
fn consul_is_asked_as_its_documentation_says() -> Proof {
    let consul = Consul::start(10, vec![instance("web-1", A, 5)])?;
    let directory = tempfile::tempdir()?;
    let token = directory.path().join("token");
    fs::write(&token, "let-me-in")?;
    let mut source = Followed::start(SourceKind::Consul {
        url: consul.url(),
        service: "web".to_owned(),
        datacenter: Some("dc1".to_owned()),
        tag: Some("primary".to_owned()),
        token_file: Some(token),
        ca_file: None,
    })?;
    source.until_pool(&[A])?;
    assert_eq!(
        (source.endpoint(A)?.weight, source.endpoint(A)?.port),
        (5, Some(8080))
    );
    assert!(source.endpoint(A)?.tags.contains("primary"));
    consul.set(11, vec![instance("web-1", A, 5), instance("web-2", "", 1)]);
    source.until_pool(&[A, "192.0.2.250"])?;
    // The index goes backwards, as after a restore: it is asked without one again.
    consul.set(3, vec![instance("web-2", B, 1)]);
    source.until_pool(&[B])?;
    consul.fail(StatusCode::INTERNAL_SERVER_ERROR);
    source.until_failed("500 Internal Server Error: rpc error: no cluster leader")?;
    consul.set(4, vec![instance("web-2", C, 1)]);
    source.until_pool(&[C])?;
    let asked = consul.asked();
    let plain = "dc=dc1 passing=1 tag=primary token let-me-in";
    let blocked = |index| format!("dc=dc1 index={index} passing=1 tag=primary wait=60s token let-me-in");
    assert_eq!(
        asked[..4],
        [plain.to_owned(), blocked(10), blocked(11), plain.to_owned()],
        "{asked:?}"
    );
    Ok(())
}

// Kubernetes

fn follow_kubernetes(server: &Kubernetes, token_file: PathBuf) -> Result<Followed> {
    Followed::start(SourceKind::Kubernetes {
        url: Some(server.url()),
        namespace: "shop".to_owned(),
        service: "web".to_owned(),
        port: Some("http".to_owned()),
        token_file: Some(token_file),
        ca_file: None,
    })
}

#[test]
fn slices_are_listed_and_watched() -> Proof {
    let server = Kubernetes::start()?;
    let directory = tempfile::tempdir()?;
    let token = directory.path().join("token");
    fs::write(&token, "an-old-token")?;
    for (name, address) in [("web-a", A), ("web-b", B), ("web-c", C)] {
        server.put(name, &json!([endpoint(address, true, true, false)]));
    }
    let mut source = follow_kubernetes(&server, token.clone())?;
    source.until_failed("401 Unauthorized")?;
    fs::write(&token, "pod-token")?;
    source.until_pool(&[A, B, C])?;
    assert_eq!(source.endpoint(A)?.port, Some(8080));
    assert_eq!(source.endpoint(A)?.zone.as_deref(), Some("zone-a"));
    source.until_confirmed()?;
    server.put("web-a", &json!([endpoint(A, false, true, true)]));
    source.until("it drains", |source, _| {
        source
            .endpoint(A)
            .is_ok_and(|endpoint| endpoint.state == BackendState::Draining)
    })?;
    server.put("web-a", &json!([endpoint(A, false, false, true)]));
    source.until_pool(&[B, C])?;
    // An endpoint that moves from one slice to another is never gone.
    server.put("web-d", &json!([endpoint(B, true, true, false)]));
    server.delete("web-b");
    server.delete("web-c");
    source.until_pool(&[B])?;
    assert!(!source.saw("gone [192.0.2.2]"));
    assert_eq!(server.asked()[..2], ["list", "list from web-c"]);
    Ok(())
}

#[test]
fn a_watch_goes_on_and_an_expired_one_is_made_up_for() -> Proof {
    let server = Kubernetes::start()?;
    let directory = tempfile::tempdir()?;
    let token = directory.path().join("token");
    fs::write(&token, "pod-token")?;
    server.put("web-a", &json!([endpoint(A, true, true, false)]));
    let mut source = follow_kubernetes(&server, token)?;
    source.until_pool(&[A])?;
    source.until_confirmed()?;
    server.bookmark();
    source.until_confirmed()?;
    server.end_watches();
    source.until_confirmed()?;
    let asked = server.asked();
    assert_eq!(asked, ["list", "watch 1", "watch 2"], "from the bookmark on");
    server.put("web-b", &json!([endpoint(B, true, true, false)]));
    source.until_pool(&[A, B])?;
    server.compact();
    server.delete("web-a");
    source.until_pool(&[B])?;
    assert_eq!(
        server.asked().iter().filter(|asked| *asked == "list").count(),
        2,
        "{:?}",
        server.asked()
    );
    server.garble();
    source.until_failed("an event of the watch cannot be read")?;
    source.until_pool(&[B])?;
    Ok(())
}
