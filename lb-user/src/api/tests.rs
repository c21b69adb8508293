//! Client and server over a real Unix socket, with a daemon that is made up.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    sync::Arc,
};

use hyper::StatusCode;

use super::{
    client::{Client, ClientError},
    peer::Allowed,
    server::{self, Backend, Refusal, RefusalKind},
    socket,
    types::{
        self, ApplyFile, Change, Done, Edit, Event, EventsQuery, ExplainQuery, Explanation, Filter,
        FlowTable, Flows, PlanText, Rotate, Seed, ServiceSettings, SourceRequest, Status,
    },
};
use crate::{
    state::desired::Protocol,
    watch::{record::Reading, report::SkewReport},
};

/// Echoes what it was asked.
struct Echo;

fn done(text: String) -> Done {
    Done {
        revision: 7,
        steps: 0,
        text,
        notes: Vec::new(),
    }
}

impl Backend for Echo {
    fn status(&self) -> Status {
        panic!("not asked for")
    }

    fn services(&self) -> Vec<types::Service> {
        Vec::new()
    }

    fn backends(&self, filter: &Filter) -> Result<Vec<types::Backend>, Refusal> {
        let error = format!("{:?} {:?} {}", filter.service, filter.backend, filter.now);
        Err(Refusal::new(RefusalKind::NotFound, error, "look"))
    }

    fn seeds(&self) -> Vec<Seed> {
        Vec::new()
    }

    fn flows(&self, _filter: &Filter) -> Result<Flows, Refusal> {
        Ok(Flows {
            table: FlowTable::default(),
            counts: Vec::new(),
            flows: Vec::new(),
            truncated: false,
        })
    }

    fn skew(&self, filter: &Filter) -> Result<SkewReport, Refusal> {
        let error = format!("{:?}", filter.service);
        Err(Refusal::new(RefusalKind::NotFound, error, "look"))
    }

    fn skew_counters(&self) -> Result<Reading, Refusal> {
        Err(Refusal::new(RefusalKind::Unavailable, "starting", "wait"))
    }

    fn discovery(&self, filter: &Filter) -> Result<Vec<types::Source>, Refusal> {
        let error = format!("{:?}", filter.service);
        Err(Refusal::new(RefusalKind::NotFound, error, "look"))
    }

    async fn order_sources(&self, request: SourceRequest) -> Result<Done, Refusal> {
        Ok(done(format!("{:?} {:?}", request.action, request.source)))
    }

    fn events(&self, query: EventsQuery) -> Vec<Event> {
        let event = Event {
            id: query.after + 1,
            time_ms: 0,
            kind: crate::events::Kind::Edit,
            object: String::new(),
            text: format!("{:?}", query.limit),
        };
        vec![event]
    }

    async fn plan(&self) -> Result<PlanText, Refusal> {
        Err(Refusal::new(RefusalKind::Unavailable, "ending", "wait"))
    }

    async fn explain(&self, query: ExplainQuery) -> Result<Explanation, Refusal> {
        Ok(Explanation {
            packet: format!("{} {}", query.source, query.destination),
            answers: Vec::new(),
        })
    }

    async fn change(&self, change: Change) -> Result<Done, Refusal> {
        match change.if_revision {
            Some(_) => Err(Refusal::new(
                RefusalKind::Conflict,
                "another revision",
                "look again",
            )),
            None => Ok(done(format!("{} edits", change.edits.len()))),
        }
    }

    async fn apply(&self, file: ApplyFile) -> Result<Done, Refusal> {
        Ok(done(file.toml))
    }

    async fn reload(&self) -> Result<Done, Refusal> {
        Err(Refusal::new(RefusalKind::Invalid, "a bad file", "correct it"))
    }

    async fn rotate(&self, rotate: Rotate) -> Result<Done, Refusal> {
        Ok(done(format!("{rotate:?}")))
    }
}

struct Running {
    client: Client,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
    _file: socket::SocketFile,
    _directory: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn start() -> Running {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let bound = socket::bind(&path, None).unwrap();
    // Tests may run as anybody.
    let allowed = Allowed {
        group: Some(rustix::process::getgid().as_raw()),
    };
    let task = tokio::spawn(server::serve(bound.listener, allowed, Arc::new(Echo)));
    Running {
        client: Client::new(&path),
        task,
        _file: bound.file,
        _directory: directory,
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, types::Failure) {
    match answer {
        Err(ClientError::Refused { status, failure }) => (status.as_u16(), failure),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_and_bodies_arrive_as_sent() {
    let running = start();
    let client = &running.client;
    let query = ExplainQuery {
        protocol: Protocol::Tcp,
        source: "[2001:db8::1]:4000".parse().unwrap(),
        destination: "192.0.2.1:443".parse().unwrap(),
        syn: true,
    };
    let answer: Explanation = client.query("/v1/explain", &query).await.unwrap();
    assert_eq!(answer.packet, "[2001:db8::1]:4000 192.0.2.1:443");
    let events: Vec<Event> = client
        .query(
            "/v1/events",
            &EventsQuery {
                after: 41,
                limit: Some(3),
            },
        )
        .await
        .unwrap();
    assert_eq!((events[0].id, events[0].text.as_str()), (42, "Some(3)"));
    let flows: Flows = client.query("/v1/flows", &Filter::default()).await.unwrap();
    assert!(flows.counts.is_empty());
    let rotated: Done = client.post("/v1/seeds/rotate", &Rotate::Cpu(3)).await.unwrap();
    assert_eq!(rotated.text, "Cpu(3)");
    let edit = Edit::ServiceAdd {
        name: "web".into(),
        vip: "192.0.2.1".parse().unwrap(),
        port: None,
        protocol: Protocol::Udp,
        settings: ServiceSettings::default(),
    };
    let change = Change {
        if_revision: None,
        edits: vec![edit],
    };
    assert_eq!(
        client.post::<Done>("/v1/change", &change).await.unwrap().text,
        "1 edits"
    );
    let large = "x".repeat(3 << 20);
    let file = ApplyFile {
        file: "-".into(),
        toml: large.clone(),
        if_revision: None,
    };
    assert_eq!(client.post::<Done>("/v1/apply", &file).await.unwrap().text, large);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_carry_status_error_and_next_step() {
    let running = start();
    let client = &running.client;
    let filter = Filter {
        service: Some("a b&c".into()),
        backend: Some("10.0.0.1".parse().unwrap()),
        now: true,
        ..Filter::default()
    };
    let (status, failure) = refused(client.query::<Vec<types::Backend>>("/v1/backends", &filter).await);
    assert_eq!(
        (status, failure.error.as_str()),
        (404, "Some(\"a b&c\") Some(10.0.0.1) true")
    );
    assert_eq!(failure.next_step.as_deref(), Some("look"));
    assert_eq!(failure.reason, RefusalKind::NotFound);
    let change = Change {
        if_revision: Some(1),
        edits: Vec::new(),
    };
    assert_eq!(refused(client.post::<Done>("/v1/change", &change).await).0, 409);
    assert_eq!(refused(client.post::<Done>("/v1/reload", &()).await).0, 422);
    assert_eq!(refused(client.get::<PlanText>("/v1/plan").await).0, 503);
    let (status, failure) = refused(client.get::<PlanText>("/v2/plan").await);
    assert_eq!(status, StatusCode::NOT_FOUND.as_u16());
    assert!(failure.next_step.unwrap().contains("same version"));
    assert_eq!(failure.reason, RefusalKind::Unsupported);
    let unknown = serde_json::json!({ "edits": [], "colour": "red" });
    let (status, failure) = refused(client.post::<Done>("/v1/change", &unknown).await);
    assert_eq!(status, 422);
    assert!(failure.error.contains("colour"), "{}", failure.error);
    assert!(failure.next_step.unwrap().contains("correct"));
    let (status, failure) = refused(client.get::<Explanation>("/v1/explain?protocol=icmp").await);
    assert_eq!(status, 422);
    assert!(failure.error.contains("icmp"), "{}", failure.error);
}

#[tokio::test]
async fn a_missing_daemon_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Client::new(&directory.path().join("api.sock"))
        .get::<PlanText>("/v1/plan")
        .await;
    assert!(matches!(missing, Err(ClientError::Unreachable(..))));
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let bound = socket::bind(&path, None).unwrap();
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(directory.path(), 0o755);
    open(&path, 0o666);
    let task = tokio::spawn(server::serve(bound.listener, Allowed::default(), Arc::new(Echo)));
    let answer =
        tokio::task::spawn_blocking(move || std::thread::spawn(move || ask_as_stranger(&path)).join());
    let answer = answer.await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(
        answer.contains("may not use this daemon")
            && answer.contains("[api]")
            && answer.contains("\"reason\":\"forbidden\""),
        "{answer}"
    );
    task.abort();
}

/// Asks from a thread that is not root any more: on Linux, credentials belong to threads.
fn ask_as_stranger(path: &Path) -> String {
    if rustix::process::geteuid().is_root() {
        // SAFETY: three integers; only this thread's effective user changes, and it ends soon.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
        assert_eq!(result, 0);
    }
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .write_all(b"GET /v1/plan HTTP/1.1\r\nhost: evenkeel\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
