//! Records of a made-up balancer: what is written is what is read, and a replay says what the daemon said.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use lb_common::{
    ids::BackendRef,
    seed::Seed,
    service::{Service, ServiceKey},
    slot_table::{bucket_of, bucket_scale},
};

use super::{format::*, *};
use crate::{
    counters::BackendTotals,
    skew::{
        attribution::{Place as Whose, SeedFault as Fault, SeedFinding, TableRead},
        state::Limits,
    },
    state::desired::BackendState,
    watch::{
        monitor::{Monitor, Settings},
        published::{Member, Published, Table},
        readback::{Findings, WrongTable},
        report::{CauseName, ServiceSkew, SkewReport, StateName},
        show,
        source::{BUCKETS, Source},
    },
};

const SLOTS: u32 = 1021;
const CPUS: u32 = 4;

/// A balancer with one service of four backends, whose picks are drawn by SplitMix64.
#[derive(Clone)]
struct Balancer {
    random: u64,
    histograms: Vec<[u64; BUCKETS]>,
    backends: BTreeMap<(u32, u32), BackendTotals>,
    slots: Arc<[BackendRef]>,
    /// A CPU that picks one slot, whatever the key.
    stuck: Option<u32>,
}

impl Balancer {
    fn new() -> Self {
        Self {
            random: 1,
            histograms: vec![[0; BUCKETS]; CPUS as usize],
            backends: BTreeMap::new(),
            slots: (0..SLOTS).map(|slot| BackendRef::new(1 + slot % 4, 1)).collect(),
            stuck: None,
        }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn pick(&mut self, flows: u32) {
        for flow in 0..flows {
            let cpu = flow % CPUS;
            let slot = match self.stuck {
                Some(stuck) if stuck == cpu => 17,
                _ => (self.draw() % u64::from(SLOTS)) as u32,
            };
            self.histograms[cpu as usize][bucket_of(slot, bucket_scale(SLOTS)) as usize] += 1;
            let id = self.slots[slot as usize].id();
            let counted = self.backends.entry((cpu, id)).or_default();
            counted.fresh_flows += 1;
            counted.flows += 1;
            counted.packets += 9;
        }
    }

    fn published(&self) -> Arc<Published> {
        let members = (1..=4).map(|id| Member {
            endpoint: [10, 0, 0, id as u8].into(),
            reference: BackendRef::new(id, 1),
            state: BackendState::Serving,
            owned: self.slots.iter().filter(|slot| slot.id() == id).count() as u32,
            weight: 1,
        });
        let table = Table {
            name: "web".into(),
            service: Service {
                id: 7,
                slots_count: SLOTS,
                table_generation: 3,
                ..Service::default()
            },
            slots: Arc::clone(&self.slots),
            members: members.collect(),
        };
        let seed = |k0| Seed {
            k0,
            k1: 0x005e_c2e7,
            generation: 4,
            reserved: 0,
        };
        Arc::new(Published {
            seeds: (0..=CPUS)
                .map(|index| (index, seed(u64::from(index) + 0x005e_c2e7)))
                .collect(),
            services: [(ServiceKey::default(), Arc::new(table))].into(),
        })
    }
}

impl Source for Balancer {
    fn cpus(&self) -> u32 {
        CPUS
    }

    fn origin(&self) -> u64 {
        0
    }

    fn histogram(&self, cpu: u32) -> [u64; BUCKETS] {
        self.histograms[cpu as usize]
    }

    fn backend(&self, cpu: u32, id: u32) -> BackendTotals {
        self.backends.get(&(cpu, id)).copied().unwrap_or_default()
    }

    fn seeds(&self) -> Vec<Seed> {
        self.published().seeds.values().copied().collect()
    }

    fn slot(&self, index: u32) -> Option<BackendRef> {
        self.slots.get(index as usize).copied()
    }

    fn is_serving(&self, _backend: BackendRef) -> bool {
        true
    }
}

fn settings() -> Settings {
    Settings {
        interval: Duration::from_secs(1),
        false_alarms_per_year: 1.0,
        auto_heal: false,
        auto_heal_services: BTreeMap::new(),
        limits: Limits::DEFAULT,
    }
}

/// The daemon's side of a recording.
struct Live {
    source: Balancer,
    published: Arc<Published>,
    monitor: Monitor,
    second: u64,
    readings: Vec<Reading>,
}

impl Live {
    fn new() -> Self {
        let source = Balancer::new();
        Self {
            published: source.published(),
            source,
            monitor: Monitor::new(settings()),
            second: 100,
            readings: Vec::new(),
        }
    }

    fn run(&mut self, seconds: u64, flows: u32, findings: &Findings) {
        for _ in 0..seconds {
            self.source.pick(flows);
            let at = Duration::from_secs(self.second);
            let published = Arc::clone(&self.published);
            let looked = Findings {
                seeds_read: 1 + CPUS as usize,
                tables_read: 1,
                slots_read: SLOTS.into(),
                ..findings.clone()
            };
            self.monitor.check(at, published, Some(looked), &self.source);
            self.readings
                .push(take(&self.monitor, &self.source, at, self.second * 1000));
            self.second += 1;
        }
    }

    /// As a replay shows it: a record has no flows by CPU, and no bets from seed to seed.
    fn report(&self) -> SkewReport {
        let now_ms = (self.second - 1) * 1000;
        let mut report = show::report(&self.monitor, None, now_ms);
        for service in &mut report.services {
            assert!(service.seeds.take().is_some());
        }
        report
    }

    fn write(&self, path: &Path) {
        let mut writer = Writer::create(path).unwrap();
        for reading in &self.readings {
            writer.push(reading).unwrap();
        }
        assert_eq!(writer.checks(), self.readings.len() as u64);
    }
}

fn replay(path: &Path) -> Explained {
    let (header, checks) = open(path).unwrap();
    let mut replay = Replay::new(&header);
    for check in checks {
        replay.step(&check.unwrap());
    }
    replay.finish()
}

/// Everything of a service but how many checks the monitor had taken before the recording began.
fn shown(report: &SkewReport) -> &ServiceSkew {
    &report.services[0]
}

#[test]
fn a_replay_says_what_the_daemon_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut live = Live::new();
    live.run(20, 500, &Findings::default());
    live.source.stuck = Some(1);
    live.run(12, 500, &Findings::default());
    live.write(&path);
    let explained = replay(&path);
    assert_eq!(explained.report, live.report());
    assert_eq!(shown(&explained.report).state, StateName::Firing);
    assert_eq!(shown(&explained.report).cause, Some(CauseName::HashFailure));
    assert_eq!(shown(&explained.report).scope.as_deref(), Some("CPU 1"));
    assert_eq!(explained.last_alarm.as_ref(), Some(&explained.report));
    let fired = explained
        .events
        .iter()
        .find(|event| event.text.starts_with("firing"))
        .unwrap();
    assert!((20.0..=22.0).contains(&fired.seconds), "{fired:?}");
    assert_eq!(replay(&path), explained, "the same file, the same answer");
}

#[test]
fn an_even_record_is_quiet() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut live = Live::new();
    live.run(130, 300, &Findings::default());
    live.write(&path);
    let explained = replay(&path);
    assert!(!explained.report.is_alarm() && explained.last_alarm.is_none());
    assert_eq!(explained.events, []);
    assert_eq!(shown(&explained.report).cause, Some(CauseName::Healthy));
    assert_eq!((explained.checks, explained.seconds), (130, 129.0));
}

#[test]
fn what_was_read_back_is_known_without_traffic() {
    let zero = Findings {
        seeds: vec![SeedFinding {
            place: Whose::Cpu(1),
            fault: Fault::Zero,
        }],
        ..Findings::default()
    };
    let wrong = WrongTable {
        read: TableRead {
            cpu: None,
            wanted: 1,
            found: 2,
        },
        wrong: 250,
        slots: SLOTS,
    };
    let table = Findings {
        tables: [(ServiceKey::default(), wrong)].into(),
        ..Findings::default()
    };
    let directory = tempfile::tempdir().unwrap();
    for (name, findings, cause) in [
        ("seed", zero, CauseName::SeedFailure),
        ("table", table, CauseName::TableMismatch),
    ] {
        let path = directory.path().join(name);
        let mut live = Live::new();
        live.run(3, 0, &Findings::default());
        live.run(2, 0, &findings);
        live.run(1, 0, &Findings::default());
        live.write(&path);
        let explained = replay(&path);
        let alarm = explained.last_alarm.unwrap();
        assert_eq!(shown(&alarm).cause, Some(cause), "{name}");
        assert_eq!(explained.report, live.report(), "{name}");
    }
}

#[test]
fn a_record_holds_no_secret_and_no_client() {
    let mut live = Live::new();
    live.run(2, 100, &Findings::default());
    let text = serde_json::to_string(&live.readings[1]).unwrap();
    for secret in [0x005e_c2e7_u64, 0x005e_c2e8, 0x005e_c2e9] {
        assert!(!text.contains(&secret.to_string()), "{text}");
    }
    assert_eq!(serde_json::from_str::<Reading>(&text).unwrap(), live.readings[1]);
}

/// The lines of a good record, one of which is spoiled.
fn spoiled(line: usize, spoil: impl FnOnce(&str) -> String) -> RecordError {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut live = Live::new();
    live.run(4, 100, &Findings::default());
    live.write(&path);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
    lines[line - 1] = spoil(&lines[line - 1]);
    fs::write(&path, lines.concat()).unwrap();
    let checks = match open(&path) {
        Ok((_, checks)) => checks,
        Err(error) => return error,
    };
    let all: Vec<Result<Check, RecordError>> = checks.collect();
    assert_eq!(all.len(), line - 1, "reading ends at the first error");
    all.into_iter()
        .find_map(Result::err)
        .expect("the record is spoiled")
}

#[test]
fn what_is_no_record_is_refused_by_its_line() {
    let replaced = |line, from: &'static str, to: &'static str| {
        let error = spoiled(line, |text| {
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1)
        });
        assert!(!error.next_step().is_empty());
        error.to_string()
    };
    let ends = |text: String, wanted: &str| assert!(text.ends_with(wanted), "{text}");
    ends(
        spoiled(1, |_| String::new()).to_string(),
        "its first line is no header",
    );
    ends(
        spoiled(1, |_| "hello\n".to_owned()).to_string(),
        "its first line is no header",
    );
    assert!(
        replaced(1, "\"evenkeel_skew_record\":1", "\"evenkeel_skew_record\":2")
            .contains("is a record of version 2")
    );
    assert!(replaced(1, "\"interval_ms\":1000", "\"interval_ms\":0").contains("line 1"));
    let garbage = spoiled(3, |_| "{}{}\n".to_owned());
    assert!(matches!(garbage, RecordError::Line { line: 3, .. }), "{garbage}");
    let unknown = spoiled(3, |text| {
        text.replacen("{\"at_ms\"", "{\"colour\":1,\"at_ms\"", 1)
    });
    assert!(matches!(unknown, RecordError::Line { line: 3, .. }), "{unknown}");
    let cut = spoiled(5, |text| text[..text.len() / 2].to_owned());
    assert!(matches!(cut, RecordError::Cut { line: 5, .. }), "{cut}");
    assert!(cut.next_step().contains("head -n 4"));
    ends(
        replaced(4, "\"at_ms\":102000", "\"at_ms\":101000"),
        "not after the check before (101000 ms)",
    );
    ends(
        replaced(2, "\"cpu\":3", "\"cpu\":9"),
        "CPU 9 is none of the 4 that there are",
    );
    ends(
        replaced(2, "\"cpu\":1", "\"cpu\":0"),
        "CPUs are not in rising order",
    );
    ends(
        replaced(2, "10.0.0.2", "10.0.0.1"),
        "a backend of web is there twice",
    );
    ends(
        replaced(2, "\"slots\":1021", "\"slots\":900"),
        "backends of web own 1021 of 900 slots",
    );
    let buckets = spoiled(2, |text| {
        let at = text.rfind("]}]").unwrap();
        format!("{},0{}", &text[..at], &text[at..])
    });
    assert!(
        buckets.to_string().ends_with("has 257 buckets instead of 256"),
        "{buckets}"
    );
}

#[test]
fn an_empty_or_missing_file_says_so_and_none_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    assert!(matches!(open(&path), Err(RecordError::Open(..))));
    fs::write(&path, "").unwrap();
    assert!(matches!(open(&path), Err(RecordError::Empty(_))));
    assert_eq!(
        Writer::create(&path).unwrap_err().kind(),
        std::io::ErrorKind::AlreadyExists
    );
}
