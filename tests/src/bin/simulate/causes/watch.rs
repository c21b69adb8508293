//! What a daemon would know: the streams of a box and a service, counts since the service last changed, and what is
//! read back and computed again.

use std::collections::BTreeMap;

use lb_common::seed::Seed;
use lb_user::skew::{
    Category, Shares, Stream, StreamSpec,
    attribution::{
        Audit, CpuBackends, CpuHash, Evidence, HashEvidence, Heavy, ServiceEvidence, TableRead, Verdict,
        audit::{Audits, Choice},
        explain, seed_findings,
    },
    shares::histogram_shares,
    tilt::Tolerance,
};

use super::class::{CPUS, CpuSet};
use crate::{datapath::Pick, service::Service, trial::crossed};

/// Heaviest keys and flows that sketches remember.
const TOP_KEYS: usize = 64;
const TOP_FLOWS: usize = 10;

/// What is known besides counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Statistics,
    /// And seeds and tables as the datapath holds them.
    Readback,
    /// And a hundred choices a second computed again.
    Audits,
}

impl Known {
    pub const ALL: [Self; 3] = [Self::Statistics, Self::Readback, Self::Audits];

    pub fn name(self) -> &'static str {
        match self {
            Self::Statistics => "statistics",
            Self::Readback => "statistics + readback",
            Self::Audits => "statistics + readback + audits",
        }
    }
}

/// Streams, and counts since the service changed.
pub struct Watch {
    ln_arl: f64,
    cpus: Vec<Stream>,
    sum: Stream,
    service: Stream,
    by_cpu: Vec<Stream>,
    buckets: Vec<f64>,
    shares: Vec<f64>,
    /// Of this check, by CPU.
    hash_now: Vec<Vec<u64>>,
    fresh_now: Vec<Vec<u64>>,
    window: Window,
    pub leaving: Vec<usize>,
    pub audits: Audits,
}

/// Counts of a while.
struct Window {
    hash: Vec<Vec<u64>>,
    fresh: Vec<Vec<u64>>,
    all: Vec<u64>,
    packets: Vec<u64>,
    /// By key that may come again, and backend.
    keys: BTreeMap<(u32, usize), u64>,
    /// Of the heaviest flows, most first.
    flows: Vec<Heavy>,
}

/// How the datapath holds tables and seeds, as read back.
pub struct Readback {
    pub seeds: Vec<Seed>,
    pub wanted: BTreeMap<u32, Seed>,
    /// CPUs with another table.
    pub wrong: CpuSet,
}

impl Watch {
    pub fn new(service: &Service, ln_arl: f64) -> Self {
        let shares = service.shares(Tolerance::DEFAULT);
        let buckets = Shares::of_histogram(service.size(), Tolerance::DEFAULT);
        let histogram = || Stream::new(StreamSpec::new(ln_arl), buckets.clone());
        let cpus = CPUS as usize;
        Self {
            ln_arl,
            cpus: (0..cpus).map(|_| histogram()).collect(),
            sum: histogram(),
            service: Stream::new(StreamSpec::new(ln_arl), shares.clone()),
            by_cpu: (0..cpus)
                .map(|_| Stream::new(StreamSpec::sparse_only(ln_arl), shares.clone()))
                .collect(),
            buckets: histogram_shares(service.size()),
            shares: service.p(),
            hash_now: vec![vec![0; 256]; cpus],
            fresh_now: vec![vec![0; service.count()]; cpus],
            window: Window::new(service.count()),
            leaving: Vec::new(),
            audits: Audits::default(),
        }
    }

    /// The control plane published another table.
    pub fn set_service(&mut self, service: &Service) {
        let shares = service.shares(Tolerance::DEFAULT);
        self.service.set_shares(shares.clone());
        self.by_cpu
            .iter_mut()
            .for_each(|stream| stream.set_shares(shares.clone()));
        self.shares = service.p();
        self.window = Window::new(service.count());
    }

    /// A flow that was given to a backend.
    pub fn count(&mut self, pick: &Pick, backend: usize, key: Option<u32>, packets: u64) {
        let cpu = pick.cpu as usize;
        if pick.fresh {
            self.hash_now[cpu][pick.bucket as usize] += 1;
            self.fresh_now[cpu][backend] += 1;
        }
        self.window.all[backend] += 1;
        if let Some(key) = key {
            *self.window.keys.entry((key, backend)).or_default() += 1;
        }
        self.window.flow(Heavy {
            count: packets,
            backend,
        });
    }

    /// More packets of flows that last; all their packets so far are `flows`.
    pub fn count_lasting(&mut self, packets: u64, flow: Heavy) {
        self.window.packets[flow.backend] += packets;
        self.window
            .flows
            .retain(|known| known.backend != flow.backend || known.count + packets != flow.count);
        self.window.keep(flow);
    }

    pub fn audit(&mut self, cpu: u32, choice: Choice) {
        self.audits.count(cpu, choice);
    }

    /// Ends a check; whether any stream has an alarm.
    pub fn check(&mut self) -> bool {
        let add = |sum: &mut Vec<u64>, counts: &Vec<u64>| {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count)
        };
        let (mut hash, mut fresh) = (vec![0; 256], vec![0; self.shares.len()]);
        for cpu in 0..CPUS as usize {
            add(&mut hash, &self.hash_now[cpu]);
            add(&mut fresh, &self.fresh_now[cpu]);
            add(&mut self.window.hash[cpu], &self.hash_now[cpu]);
            add(&mut self.window.fresh[cpu], &self.fresh_now[cpu]);
            crossed(&mut self.cpus[cpu], &self.hash_now[cpu]);
            crossed(&mut self.by_cpu[cpu], &self.fresh_now[cpu]);
            self.hash_now[cpu].fill(0);
            self.fresh_now[cpu].fill(0);
        }
        crossed(&mut self.sum, &hash);
        crossed(&mut self.service, &fresh);
        let single = [&self.sum, &self.service].into_iter();
        single
            .chain(&self.cpus)
            .chain(&self.by_cpu)
            .any(|stream| stream.alarm().is_some())
    }

    pub fn has_wrong_audit(&self) -> bool {
        self.audits
            .to_vec()
            .iter()
            .any(|audit| audit.wrong_slot + audit.wrong_backend > 0)
    }

    pub fn verdict(&self, known: Known, readback: &Readback) -> Verdict {
        let read = known != Known::Statistics;
        let seeds = if read {
            seed_findings(&readback.seeds, &readback.wanted)
        } else {
            Vec::new()
        };
        let tables: Vec<TableRead> = (0..if read { CPUS } else { 0 })
            .map(|cpu| TableRead {
                cpu: Some(cpu),
                wanted: 0,
                found: readback.wrong >> cpu & 1,
            })
            .collect();
        let audits: Vec<Audit> = if known == Known::Audits {
            self.audits.to_vec()
        } else {
            Vec::new()
        };
        let cpus: Vec<CpuHash<'_>> = (0..)
            .zip(self.cpus.iter().zip(&self.window.hash))
            .map(|(cpu, (stream, fresh))| CpuHash {
                cpu,
                reading: stream.reading(),
                fresh,
            })
            .collect();
        let by_cpu: Vec<CpuBackends<'_>> = (0..)
            .zip(self.by_cpu.iter().zip(&self.window.fresh))
            .map(|(cpu, (stream, fresh))| CpuBackends {
                cpu,
                alarm: worst(stream),
                fresh,
            })
            .collect();
        let fresh: Vec<u64> = (0..self.shares.len())
            .map(|backend| self.window.fresh.iter().map(|counts| counts[backend]).sum())
            .collect();
        explain(&Evidence {
            ln_arl: self.ln_arl,
            seeds: &seeds,
            tables: &tables,
            audits: &audits,
            hash: HashEvidence {
                shares: &self.buckets,
                cpus: &cpus,
                sum: Some(self.sum.reading()),
            },
            service: ServiceEvidence {
                shares: &self.shares,
                fresh: &fresh,
                alarm: worst(&self.service),
                cpus: &by_cpu,
                all: &self.window.all,
                packets: &self.window.packets,
                top_keys: &self.window.top_keys(),
                top_flows: &self.window.flows,
                leaving: &self.leaving,
            },
        })
    }
}

/// Index of the backend that a stream's alarm names.
fn worst(stream: &Stream) -> Option<usize> {
    let Category::Member(id) = stream.alarm()?.category else {
        return None;
    };
    stream.shares().ids().iter().position(|own| *own == id)
}

impl Window {
    fn new(backends: usize) -> Self {
        Self {
            hash: vec![vec![0; 256]; CPUS as usize],
            fresh: vec![vec![0; backends]; CPUS as usize],
            all: vec![0; backends],
            packets: vec![0; backends],
            keys: BTreeMap::new(),
            flows: Vec::new(),
        }
    }

    /// A flow that was over within the check.
    fn flow(&mut self, flow: Heavy) {
        self.packets[flow.backend] += flow.count;
        self.keep(flow);
    }

    /// Among the heaviest, if it is one of them.
    fn keep(&mut self, flow: Heavy) {
        if self.flows.len() == TOP_FLOWS && self.flows.last().is_some_and(|least| least.count >= flow.count) {
            return;
        }
        let place = self.flows.partition_point(|known| known.count > flow.count);
        self.flows.insert(place, flow);
        self.flows.truncate(TOP_FLOWS);
    }

    fn top_keys(&self) -> Vec<Heavy> {
        let mut heavy: Vec<Heavy> = self
            .keys
            .iter()
            .map(|((_, backend), count)| Heavy {
                count: *count,
                backend: *backend,
            })
            .collect();
        heavy.sort_by_key(|key| std::cmp::Reverse(key.count));
        heavy.truncate(TOP_KEYS);
        heavy
    }
}
