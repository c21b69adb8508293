//! A box and a service through 150 checks, in the 31st of which something happens to them.

use lb_common::{
    ids::BackendRef,
    sample::Sample,
    seed::{Seed, of_cpu},
};
use lb_user::skew::{
    attribution::{
        Heavy, Verdict,
        audit::{Intended, recompute},
    },
    threshold,
};
use rand::{RngExt, distr::Distribution};
use rand_distr::Pareto;

use super::{
    class::{CPUS, Case, CpuSet},
    faults::SeedFault,
    watch::{Known, Readback, Watch},
};
use crate::{
    chance::{Rng, poisson},
    datapath::{Datapath, Pick},
    traffic::{Arrival, Source},
};

/// Checks before it happens, and in all.
pub const QUIET: u32 = 30;
const CHECKS: u32 = 150;
/// Checks from an alarm to the verdict: scopes become clearer.
const SETTLE: u32 = lb_user::skew::attribution::SETTLE_CHECKS;
const ROTATION: u32 = 60;
/// Choices computed again, a check.
const SAMPLES: f64 = 100.0;
const TABLE_GENERATION: u32 = 1;

/// What came of a case.
pub struct Story {
    /// By what is known.
    pub verdicts: [Verdict; 3],
    /// Check of the first alarm of any stream.
    pub alarm: Option<u32>,
    /// Check of the first choice that was found to be wrong.
    pub audit: Option<u32>,
}

/// Runs a case.
pub fn run(case: &Case, rng: &mut Rng) -> Story {
    let mut world = World::new(case, rng);
    let (mut alarm, mut audit) = (None, None);
    let mut verdicts = [const { None }; 3];
    for check in 1..=CHECKS {
        world.check(check, rng);
        if world.watch.check() {
            alarm.get_or_insert(check);
        }
        if audit.is_none() && world.watch.has_wrong_audit() {
            audit = Some(check);
        }
        for (known, verdict) in Known::ALL.into_iter().zip(&mut verdicts) {
            let seen = match known {
                Known::Audits => alarm.into_iter().chain(audit).min(),
                Known::Statistics | Known::Readback => alarm,
            };
            let due = seen.map_or(CHECKS, |seen| (seen + SETTLE).min(CHECKS));
            if verdict.is_none() && check == due {
                *verdict = Some(world.watch.verdict(known, &world.readback()));
            }
        }
        // Nothing that is asked for can come any more.
        if audit.is_some() && verdicts.iter().all(Option::is_some) {
            break;
        }
    }
    let verdicts = verdicts.map(|verdict| verdict.expect("every case ends with a verdict"));
    Story {
        verdicts,
        alarm,
        audit,
    }
}

struct World<'a> {
    case: &'a Case,
    source: Source,
    datapath: Datapath,
    /// Seeds as written last.
    wanted: Vec<Seed>,
    /// The table as published, as samples name backends.
    published: Vec<BackendRef>,
    watch: Watch,
    packets: Pareto<f64>,
    /// Flows that last: their packets a check, and so far.
    elephants: Vec<(u64, Heavy)>,
    happened: bool,
}

impl<'a> World<'a> {
    fn new(case: &'a Case, rng: &mut Rng) -> Self {
        let datapath = Datapath::new(CPUS, case.traffic.by_client(), case.before.size(), rng);
        let mean_packets = PACKETS_SHAPE / (PACKETS_SHAPE - 1.0);
        let elephants = case.elephants.iter().map(|(part, backend)| {
            let packets = (part * case.rate * mean_packets) as u64;
            (
                packets,
                Heavy {
                    count: 0,
                    backend: *backend,
                },
            )
        });
        Self {
            elephants: elephants.collect(),
            source: Source::new(case.traffic.clone(), rng),
            wanted: datapath.seeds.clone(),
            datapath,
            published: references(&case.before.slots),
            // 130 streams, each with one false alarm in a hundred million checks.
            watch: Watch::new(&case.before, threshold::ln_arl(1, 1e8)),
            packets: Pareto::new(1.0, PACKETS_SHAPE).expect("scale and shape are positive"),
            case,
            happened: false,
        }
    }

    fn check(&mut self, check: u32, rng: &mut Rng) {
        if check == QUIET + 1 {
            self.happen();
        }
        for _ in 0..poisson(self.case.rate, rng) {
            self.flow(rng);
        }
        for (packets, flow) in &mut self.elephants {
            flow.count += *packets;
            self.watch.count_lasting(*packets, *flow);
        }
        if check.is_multiple_of(ROTATION) {
            self.rotate(rng);
        }
    }

    fn happen(&mut self) {
        self.happened = true;
        if let Some(after) = &self.case.after {
            self.watch.set_service(after);
            self.watch.leaving = self.case.leaving.into_iter().collect();
            self.published = references(&after.slots);
        }
        let on = |cpus: CpuSet| {
            (0..CPUS)
                .filter(move |cpu| cpus >> cpu & 1 == 1)
                .map(|cpu| of_cpu(cpu) as usize)
        };
        let seeds = &mut self.datapath.seeds;
        match self.case.seeds {
            Some(SeedFault::Zero(cpus)) => {
                on(cpus).for_each(|index| (seeds[index].k0, seeds[index].k1) = (0, 0))
            }
            Some(SeedFault::Equal(cpus)) => on(cpus).for_each(|index| {
                (seeds[index].k0, seeds[index].k1) = (seeds[index - 1].k0, seeds[index - 1].k1);
            }),
            Some(SeedFault::Old(_)) | None => {}
        }
    }

    /// Seeds that are stuck stay as they are.
    fn rotate(&mut self, rng: &mut Rng) {
        let stuck = match self.case.seeds {
            Some(SeedFault::Old(cpus) | SeedFault::Zero(cpus) | SeedFault::Equal(cpus)) if self.happened => {
                cpus
            }
            _ => 0,
        };
        let takes = |index: u32| index == 0 || stuck >> (index - 1) & 1 == 0;
        self.datapath.rotate(takes, rng);
        for ((index, wanted), found) in (0..).zip(&mut self.wanted).zip(&self.datapath.seeds) {
            match takes(index) {
                true => *wanted = *found,
                false => wanted.generation += 1,
            }
        }
    }

    fn flow(&mut self, rng: &mut Rng) {
        let arrival = self.source.next(rng);
        let hash_fault = self.case.hash.as_ref().filter(|_| self.happened);
        let distort = |cpu, hash| hash_fault.map_or(hash, |fault| fault.distort(cpu, hash));
        let pick = self.datapath.pick(&arrival.tuple, distort);
        let backend = self.table(pick.cpu)[pick.slot as usize] as usize;
        let packets = self.packets.sample(rng) as u64;
        self.watch.count(&pick, backend, arrival.key, packets);
        if rng.random::<f64>() * self.case.rate < SAMPLES {
            self.audit(&arrival, &pick, backend);
        }
    }

    /// The table that a CPU uses.
    fn table(&self, cpu: u32) -> &[u32] {
        let Case {
            before, after, wrong, ..
        } = self.case;
        match (self.happened, wrong, after) {
            (true, Some((cpus, table)), _) if cpus >> cpu & 1 == 1 => table,
            (true, _, Some(after)) => &after.slots,
            _ => &before.slots,
        }
    }

    /// The datapath's sample of a choice, computed again.
    fn audit(&mut self, arrival: &Arrival, pick: &Pick, backend: usize) {
        let sample = Sample {
            words: arrival.tuple.words,
            hash: pick.hash,
            ports: arrival.tuple.ports,
            slot: pick.slot,
            table_generation: TABLE_GENERATION,
            seed_generation: self.datapath.seeds[pick.seed_index as usize].generation,
            backend: reference(backend as u32),
            seed_index: pick.seed_index,
            cpu: pick.cpu,
            protocol: arrival.tuple.protocol,
            family: 4,
            ..Sample::default()
        };
        let intended = Intended {
            seed: self.wanted[pick.seed_index as usize],
            shared: false,
            by_client: self.case.traffic.by_client(),
            slots: &self.published,
            table_generation: TABLE_GENERATION,
        };
        let choice = recompute(&sample, &intended, |_| true);
        self.watch.audit(pick.cpu, choice);
    }

    fn readback(&self) -> Readback {
        Readback {
            seeds: self.datapath.seeds.clone(),
            wanted: (0..).zip(self.wanted.iter().copied()).collect(),
            wrong: match &self.case.wrong {
                Some((cpus, _)) if self.happened => *cpus,
                _ => 0,
            },
        }
    }
}

/// Of packets a flow (Pareto): its mean is 6, and a single flow can have thousands.
const PACKETS_SHAPE: f64 = 1.2;

fn reference(backend: u32) -> BackendRef {
    BackendRef::new(1 + backend, 1)
}

fn references(slots: &[u32]) -> Vec<BackendRef> {
    slots.iter().map(|owner| reference(*owner)).collect()
}
