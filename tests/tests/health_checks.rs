//! Promise: a health check says what a real server is like, and why; and what changes is told once.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_user::health::Standing;
use serde_json::{Value, json};
use tests::{
    Proof,
    health::{
        Bed, Dnsmasq, GrpcServer, Nginx, Scripted, ScriptedUdp,
        bed::key,
        check,
        dns::{ANSWER, QUESTION},
        grpc::Answer,
        nginx::{EXPIRED, NAME},
        scripted::read_head,
    },
    lab::within,
};

/// A check that fails like this.
#[track_caller]
fn fails(spec: &Value, address: SocketAddr, reason: &str) {
    assert_eq!(check(spec, address), Err(reason.to_owned()), "{spec}");
}

#[track_caller]
fn passes(spec: &Value, address: SocketAddr) {
    assert_eq!(check(spec, address), Ok(()), "{spec}");
}

/// `with` in `base`.
fn and(mut base: Value, with: Value) -> Value {
    if let (Some(base), Value::Object(with)) = (base.as_object_mut(), with) {
        base.extend(with);
    }
    base
}

/// With time enough for a slow machine.
fn http() -> Value {
    json!({"type": "http", "timeout": "20s"})
}

fn https() -> Value {
    json!({"type": "https", "timeout": "20s"})
}

/// A port where nobody listens.
fn dead() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

#[test]
fn tcp_checks_say_whether_somebody_listens() -> Proof {
    let nginx = Nginx::start()?;
    let tcp = json!({"type": "tcp", "timeout": "20s"});
    passes(&tcp, nginx.plain);
    passes(&tcp, nginx.tls);
    fails(&tcp, dead()?, "connection refused");
    Ok(())
}

#[test]
fn http_checks_look_at_status_and_body() -> Proof {
    let nginx = Nginx::start()?;
    let at = |with: Value| and(http(), with);
    passes(&http(), nginx.plain);
    passes(&at(json!({"path": "/moved"})), nginx.plain);
    passes(&at(json!({"path": "/broken", "status": [500, 599]})), nginx.plain);
    passes(&at(json!({"body": "is ok"})), nginx.plain);
    fails(
        &at(json!({"path": "/broken"})),
        nginx.plain,
        "status 503, wanted 200 to 399",
    );
    fails(
        &at(json!({"path": "/moved", "status": [200, 200]})),
        nginx.plain,
        "status 301, wanted 200",
    );
    fails(
        &at(json!({"body": "not so"})),
        nginx.plain,
        "the body does not contain \"not so\"",
    );
    let own = format!("host={} agent=evenkeel/", nginx.plain);
    passes(&at(json!({"path": "/host", "body": own})), nginx.plain);
    let host = json!({"path": "/host", "host": "www.example.org", "body": "host=www.example.org "});
    passes(&at(host), nginx.plain);
    fails(&http(), dead()?, "connection refused");
    // nginx says so in plain text.
    fails(&http(), nginx.tls, "status 400, wanted 200 to 399");
    Ok(())
}

#[test]
fn https_checks_look_at_certificates_when_told_to() -> Proof {
    let nginx = Nginx::start()?;
    let at = |with: Value| and(https(), with);
    passes(&https(), nginx.tls);
    passes(
        &at(json!({"server_name": "other.test", "body": "all is ok"})),
        nginx.tls,
    );
    fails(
        &at(json!({"path": "/broken"})),
        nginx.tls,
        "status 503, wanted 200 to 399",
    );
    let verified = |name: &str, ca| at(json!({"verify": true, "server_name": name, "ca_file": ca}));
    passes(&verified(NAME, nginx.ca()), nginx.tls);
    let by_host = json!({"verify": true, "host": format!("{NAME}:8443"), "ca_file": nginx.ca()});
    passes(&at(by_host), nginx.tls);
    let untrusted = "certificate is of an issuer that is not trusted";
    fails(&verified(NAME, nginx.other_ca()), nginx.tls, untrusted);
    let reason = check(&verified("other.test", nginx.ca()), nginx.tls);
    let reason = reason.err().unwrap_or_default();
    assert!(
        reason.starts_with("certificate is not for other.test, but for "),
        "{reason}"
    );
    assert!(reason.contains(NAME), "{reason}");
    // By the address, which the certificate does not have.
    let reason = check(&at(json!({"verify": true, "ca_file": nginx.ca()})), nginx.tls);
    let reason = reason.err().unwrap_or_default();
    assert!(
        reason.starts_with("certificate is not for 127.0.0.1, but for "),
        "{reason}"
    );
    fails(
        &verified(EXPIRED, nginx.ca()),
        nginx.tls,
        "certificate has expired",
    );
    passes(&at(json!({"server_name": EXPIRED})), nginx.tls);
    // Whatever the system trusts, it is not this authority.
    let reason = check(&at(json!({"verify": true, "server_name": NAME})), nginx.tls);
    let reason = reason.err().unwrap_or_default();
    assert!(
        reason == untrusted || reason.starts_with("the system has no certificates"),
        "{reason}"
    );
    let missing = verified(NAME, "/nonexistent/ca.pem".into());
    let reason = check(&missing, nginx.tls).err().unwrap_or_default();
    assert!(reason.starts_with("ca_file /nonexistent/ca.pem: "), "{reason}");
    fails(&https(), nginx.plain, "the answer is not TLS");
    fails(&https(), dead()?, "connection refused");
    Ok(())
}

#[test]
fn silent_servers_fail_by_time_and_by_name_of_what_is_missing() -> Proof {
    let silent = Scripted::silent()?;
    let quick = |kind: &str| json!({"type": kind, "timeout": "200ms"});
    passes(&quick("tcp"), silent.address);
    fails(&quick("http"), silent.address, "no answer within 200ms");
    fails(
        &quick("https"),
        silent.address,
        "no end of the TLS handshake within 200ms",
    );
    fails(&quick("grpc"), silent.address, "no answer within 200ms");
    let slow = Scripted::start(|mut stream, _| {
        read_head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nall");
        // Until the check gives up.
        let _ = stream.read_to_end(&mut Vec::new());
    })?;
    let waits = and(quick("http"), json!({"body": "is ok"}));
    fails(&waits, slow.address, "no end of the answer within 200ms");
    Ok(())
}

#[test]
fn hostile_answers_fail_and_are_bounded() -> Proof {
    let with_body = and(http(), json!({"body": "ok"}));
    let garbage = Scripted::saying("\x01\x02 neither here nor there\r\n\r\n")?;
    let reason = check(&http(), garbage.address).err().unwrap_or_default();
    assert!(reason.starts_with("the answer is not HTTP: "), "{reason}");
    let reason = check(&json!({"type": "grpc", "timeout": "20s"}), garbage.address);
    let reason = reason.err().unwrap_or_default();
    assert!(
        reason.contains("HTTP/2") || reason.contains("closed") || reason.contains("reset"),
        "{reason}"
    );
    let closing = Scripted::saying("")?;
    fails(
        &http(),
        closing.address,
        "the connection was closed before the end of an answer",
    );
    let cut = Scripted::saying("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort")?;
    fails(
        &with_body,
        cut.address,
        "the connection was closed before the end of an answer",
    );
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let endless = Scripted::endless(head, &[b'x'; 8192])?;
    fails(
        &with_body,
        endless.address,
        "the first 64 KiB of the body do not contain \"ok\"",
    );
    passes(&http(), endless.address);
    let endless_well = Scripted::endless(head, b"all is ok\n")?;
    passes(&with_body, endless_well.address);
    let endless_head = Scripted::endless("HTTP/1.1 200 OK\r\n", b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n")?;
    let reason = check(&http(), endless_head.address).err().unwrap_or_default();
    assert!(reason.starts_with("the answer is not HTTP: "), "{reason}");
    Ok(())
}

#[test]
fn a_text_is_found_across_pieces_of_the_body() -> Proof {
    let pieces = Scripted::saying(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nall i\r\n1\r\ns\r\n3\r\n ok\r\n0\r\n\r\n",
    )?;
    passes(&and(http(), json!({"body": "all is ok"})), pieces.address);
    fails(
        &and(http(), json!({"body": "all is okay"})),
        pieces.address,
        "the body does not contain \"all is okay\"",
    );
    Ok(())
}

#[test]
fn grpc_checks_pass_only_when_serving() -> Proof {
    let spec = |service: &str| json!({"type": "grpc", "service": service, "timeout": "20s"});
    let serving = GrpcServer::start(Answer::Status(1))?;
    passes(&json!({"type": "grpc", "timeout": "20s"}), serving.address);
    passes(&spec("shop"), serving.address);
    fails(
        &spec("cellar"),
        serving.address,
        "the server knows no service \"cellar\" (grpc status 5)",
    );
    for (answer, reason) in [
        (Answer::Status(0), "the server says UNKNOWN"),
        (Answer::Status(2), "the server says NOT_SERVING"),
        (Answer::Status(3), "the server says SERVICE_UNKNOWN"),
        (
            Answer::Unimplemented,
            "the server has no grpc.health.v1.Health (grpc status 12)",
        ),
        (Answer::NoTrailers, "the answer ends without a grpc-status"),
        (Answer::Long, "the answer is too long for a health check"),
        (Answer::Page, "the answer is not gRPC but \"text/html\""),
    ] {
        fails(&spec("shop"), GrpcServer::start(answer)?.address, reason);
    }
    fails(&spec(""), dead()?, "connection refused");
    Ok(())
}

#[test]
fn udp_checks_wait_for_the_right_answer() -> Proof {
    let dnsmasq = Dnsmasq::start()?;
    let ask = json!({"type": "udp", "payload": QUESTION, "timeout": "20s"});
    passes(&ask, dnsmasq.address);
    passes(&and(ask.clone(), json!({"expect": ANSWER})), dnsmasq.address);
    let wrong = and(ask.clone(), json!({"expect": "nonsense", "timeout": "200ms"}));
    let reason = "answers came, but none that contains \"nonsense\" within 200ms";
    fails(&wrong, dnsmasq.address, reason);
    let hello_first = ScriptedUdp::start(|_| vec![b"hello".to_vec(), b"pong".to_vec()])?;
    passes(&and(ask.clone(), json!({"expect": "pong"})), hello_first.address);
    let deaf = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let impatient = and(ask.clone(), json!({"timeout": "200ms"}));
    fails(&impatient, deaf.local_addr()?, "no answer within 200ms");
    let gone = deaf.local_addr()?;
    drop(deaf);
    fails(&ask, gone, "port unreachable");
    Ok(())
}

/// Dozens of checks take a second or two; a busy machine may take many times as long.
fn in_time(what: &str, mut ask: impl FnMut() -> bool) -> Result<()> {
    within(Duration::from_secs(60), what, || {
        ensure!(ask(), "still not so");
        Ok(())
    })
}

/// Often, so that tests are short.
fn often() -> Value {
    json!({"type": "http", "interval": "30ms", "timeout": "20s", "rise": 2, "fall": 3})
}

#[test]
fn a_killed_server_goes_down_once_and_comes_up_once() -> Proof {
    let mut nginx = Nginx::start()?;
    let mut bed = Bed::new()?;
    bed.want(&[(1, &often(), nginx.plain)])?;
    assert_eq!(bed.change()?, (1, true, None));
    nginx.kill()?;
    let (number, up, reason) = bed.change()?;
    assert!((number, up) == (1, false), "{number} {up} {reason:?}");
    assert!(bed.health(1)?.failed >= 3, "{:?}", bed.health(1));
    in_time("ten more failures", || {
        bed.health(1).is_ok_and(|health| health.failed >= 13)
    })?;
    bed.no_change()?;
    let health = bed.health(1)?;
    assert!(
        health.reason.as_deref() == Some("connection refused"),
        "{health:?}"
    );
    assert!(
        health.standing == Standing::Down && health.last == Some(false),
        "{health:?}"
    );
    nginx.again()?;
    assert_eq!(bed.change()?, (1, true, None));
    let passed = bed.health(1)?.passed;
    in_time("ten more passes", || {
        bed.health(1).is_ok_and(|health| health.passed >= passed + 10)
    })?;
    bed.no_change()?;
    Ok(())
}

#[test]
fn only_failures_in_a_row_count() -> Proof {
    // Two failures in a row change nothing, three do; afterwards it takes two passes.
    let row = Scripted::web(|check| ![5, 6, 10, 11, 12, 14, 20, 21, 30].contains(&check))?;
    let one_in_ten = Scripted::web(|check| check % 10 != 9)?;
    let mut bed = Bed::new()?;
    bed.want(&[(1, &often(), row.address), (2, &often(), one_in_ten.address)])?;
    in_time("fifty checks each", || {
        let done = |number| {
            bed.health(number)
                .is_ok_and(|health| health.passed + health.failed >= 50)
        };
        done(1) && done(2)
    })?;
    let mut told = [bed.change()?, bed.change()?, bed.change()?, bed.change()?].to_vec();
    bed.no_change()?;
    told.sort_by_key(|change| change.0);
    let reason = Some("status 503, wanted 200 to 399".to_owned());
    let expected = [
        (1, true, None),
        (1, false, reason),
        (1, true, None),
        (2, true, None),
    ];
    assert_eq!(told, expected);
    assert!(bed.health(2)?.failed >= 5 && bed.health(1)?.failed >= 9);
    Ok(())
}

#[test]
fn a_backend_that_starts_down_and_fails_needs_its_rise() -> Proof {
    let server = Scripted::web(|check| ![0, 2].contains(&check))?;
    let mut bed = Bed::new()?;
    bed.want(&[(1, &often(), server.address)])?;
    let reason = Some("status 503, wanted 200 to 399".to_owned());
    assert_eq!(bed.change()?, (1, false, reason));
    assert_eq!(bed.change()?, (1, true, None));
    assert!(bed.health(1)?.passed >= 3, "it came up by a single pass");
    Ok(())
}

#[test]
fn another_set_stops_and_starts_the_right_ones() -> Proof {
    let servers = [
        Scripted::web(|_| true)?,
        Scripted::web(|_| true)?,
        Scripted::web(|_| true)?,
    ];
    let mut bed = Bed::new()?;
    let spec = often();
    let at = |index: usize| (index as u8, &spec, servers[index].address);
    bed.want(&[at(0), at(1)])?;
    let mut first = [bed.change()?, bed.change()?];
    first.sort();
    assert_eq!(first, [(0, true, None), (1, true, None)]);
    in_time("ten checks", || {
        bed.health(1).is_ok_and(|health| health.passed >= 10)
    })?;
    bed.want(&[at(1), at(2)])?;
    let gone = servers[0].accepted();
    let kept = bed.health(1)?;
    assert!(
        kept.passed >= 10 && kept.standing == Standing::Up,
        "history is lost: {kept:?}"
    );
    assert_eq!(bed.change()?, (2, true, None));
    in_time("ten checks", || {
        bed.health(2).is_ok_and(|health| health.passed >= 10)
    })?;
    // One may have been on its way.
    assert!(
        servers[0].accepted() <= gone + 1,
        "a backend that is gone is still checked"
    );
    let checked: Vec<_> = bed.checker.snapshot().into_keys().collect();
    assert_eq!(checked, [key(1), key(2)]);
    // Another way of checking begins anew, and what is up stays up.
    let other = and(spec.clone(), json!({"fall": 4}));
    bed.want(&[(1, &other, servers[1].address), at(2)])?;
    let anew = bed.health(1)?;
    assert!(anew.passed < 10 && anew.standing == Standing::Up, "{anew:?}");
    bed.want(&[])?;
    assert!(bed.checker.snapshot().is_empty());
    Ok(())
}

#[test]
fn a_slow_check_is_neither_doubled_nor_in_the_way_of_others() -> Proof {
    let (silent, well) = (Scripted::silent()?, Scripted::web(|_| true)?);
    let mut bed = Bed::new()?;
    let slow = and(often(), json!({"timeout": "300ms", "fall": 1}));
    bed.want(&[(1, &slow, silent.address), (2, &often(), well.address)])?;
    let reason = Some("no answer within 300ms".to_owned());
    let mut told = [bed.change()?, bed.change()?];
    told.sort();
    assert_eq!(told, [(1, false, reason), (2, true, None)]);
    in_time("three slow checks", || {
        bed.health(1).is_ok_and(|health| health.failed >= 3)
    })?;
    assert!(silent.most_open() <= 2, "{} checks at a time", silent.most_open());
    let pace = bed.checker.pace();
    assert!(pace.skipped > 0 && pace.started >= pace.ended, "{pace:?}");
    let (slow, quick) = (bed.health(1)?, bed.health(2)?);
    assert!(quick.passed > slow.failed, "{slow:?} {quick:?}");
    Ok(())
}

#[test]
fn what_this_host_refuses_takes_no_backend_down() -> Proof {
    // Broadcast needs a permission that the socket does not ask for (ip(7)).
    let broadcast = (Ipv4Addr::new(127, 255, 255, 255), 9).into();
    let spec = json!({"type": "udp", "payload": "x", "interval": "20ms", "timeout": "20s", "fall": 1});
    let mut bed = Bed::new()?;
    bed.want(&[(1, &spec, broadcast)])?;
    in_time("five checks", || {
        bed.health(1).is_ok_and(|health| health.unable >= 5)
    })?;
    bed.no_change()?;
    let health = bed.health(1)?;
    assert_eq!(health.standing, Standing::Unknown);
    assert_eq!((health.passed, health.failed), (0, 0));
    let reason = health.reason.unwrap_or_default();
    assert!(reason.starts_with("the check could not be made: "), "{reason}");
    assert!(bed.checker.pace().unable >= 5);
    Ok(())
}
