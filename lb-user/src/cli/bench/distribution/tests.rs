//! The gate on recordings that are made here.

use std::path::Path;

use super::*;
use crate::{
    state::desired::BackendState,
    watch::record::{
        Writer,
        format::{BackendRecord, Check, CpuRecord, Header, ServiceRecord, VERSION},
    },
};

/// A service of four backends that get `per_check` fresh flows each at every one of 30 checks.
fn record(path: &Path, per_check: [u64; 4]) {
    let mut writer = Writer::create(path).unwrap();
    for check in 0..30u64 {
        let backends = per_check.iter().zip(1u32..).map(|(flows, id)| BackendRecord {
            endpoint: [10, 0, 0, id as u8].into(),
            id,
            generation: 1,
            state: BackendState::Serving,
            weight: 1,
            owned: 256,
            fresh: vec![check * flows],
            flows: check * flows,
            packets: 0,
        });
        let service = ServiceRecord {
            name: "web".into(),
            id: 1,
            slots: 1024,
            table_generation: 1,
            flags: 0,
            backends: backends.collect(),
            table_fault: None,
            audits: vec![],
            top_keys: vec![],
            top_flows: vec![],
        };
        let each = per_check.iter().sum::<u64>() / 256;
        let cpu = CpuRecord {
            cpu: 0,
            fresh: vec![check * each; 256],
        };
        writer
            .push(&Reading {
                header: Header {
                    evenkeel_skew_record: VERSION,
                    daemon_version: "0.1.0".into(),
                    time_ms: 1_767_225_600_000,
                    cpus: 1,
                    interval_ms: 1000,
                    false_alarms_per_year: 1.0,
                },
                check: Check {
                    at_ms: 1000 + check * 1000,
                    source: 1,
                    services: vec![service],
                    cpus: vec![cpu],
                    ..Check::default()
                },
            })
            .unwrap();
    }
}

async fn judged(per_check: [u64; 4], flows: u64, service: Option<&str>) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("record");
    record(&file, per_check);
    let args = Args {
        service: service.map(str::to_owned),
        flows,
        timeout: Duration::from_secs(1),
        file: Some(file),
    };
    let context = Context {
        socket: None,
        json: true,
    };
    run(&args, &context).await
}

fn code(error: &anyhow::Error) -> u8 {
    error
        .downcast_ref::<Advice>()
        .map_or(exit::FAILED, |advice| advice.code)
}

#[tokio::test]
async fn even_traffic_passes_and_a_starved_backend_fails() {
    assert_eq!(judged([2560; 4], 200_000, None).await.unwrap(), exit::OK);
    assert_eq!(
        judged([3413, 3413, 3414, 0], 200_000, None).await.unwrap(),
        exit::UNEVEN
    );
    assert_eq!(
        judged([3072, 2432, 2432, 2304], 200_000, Some("web"))
            .await
            .unwrap(),
        exit::UNEVEN
    );
}

#[tokio::test]
async fn too_little_traffic_is_no_verdict() {
    let error = judged([256; 4], 1_000_000, None).await.unwrap_err();
    assert_eq!(code(&error), exit::DEADLINE);
    let said = error.to_string();
    assert!(
        said.starts_with("too little traffic to judge: 29,696 fresh flows in 29s, of 1,000,000"),
        "{said}"
    );
    assert!(said.ends_with("at this rate 1,000,000 take 16m 17s"), "{said}");
    let error = judged([256; 4], 1, Some("dns")).await.unwrap_err();
    assert_eq!(code(&error), exit::NOT_FOUND);
}

fn verdict_of(per_check: [u64; 4]) -> Verdict {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("record");
    record(&file, per_check);
    let (header, checks) = record::open(&file).unwrap();
    let mut judge = Judge::new(&header, None);
    checks.for_each(|check| judge.take(&check.unwrap()));
    judge.verdict(1000)
}

#[test]
fn reports_are_read_at_a_glance() {
    insta::assert_snapshot!("passed", render(&verdict_of([2560; 4]), Paint::PLAIN));
    insta::assert_snapshot!("failed", render(&verdict_of([3413, 3413, 3414, 0]), Paint::PLAIN));
    insta::assert_snapshot!("not_shown", render(&verdict_of([4; 4]), Paint::PLAIN));
}
