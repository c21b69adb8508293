//! Carries out a plan, step by step; the only writer of the maps.

use std::{ops::Range, time::Instant};

use lb_common::{seed::Seed, service::ServiceKey};

use crate::{
    maps::{MapError, MapWriter, REST},
    plan::step::{Plan, Step},
};

/// Applies plans one after the other and remembers which slot regions were freed a moment ago.
#[derive(Debug, Default)]
pub struct Applier {
    resting: Vec<(Range<u32>, Instant)>,
}

/// A plan that was carried out whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    pub steps: usize,
}

/// A plan that stopped. What was done stays; the next plan starts from what is there.
#[derive(Debug, thiserror::Error)]
#[error("step {} of {total} ({what}) failed after {done} were done", .step + 1)]
pub struct ApplyError {
    /// Index of the failed step.
    pub step: usize,
    pub done: usize,
    pub total: usize,
    pub what: String,
    pub source: Box<StepError>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("seed {index} reads back as another one; something else writes this map")]
    SeedReadBack { index: u32 },
    #[error("seed {index} has generation {generation} and an all-zero key")]
    ZeroSeed { index: u32, generation: u32 },
}

impl Applier {
    /// For maps that nobody else wrote.
    pub fn new() -> Self {
        Self::default()
    }

    /// For maps that another daemon may have written until a moment ago: whatever region is free, it may just have been
    /// freed.
    pub fn taking_over() -> Self {
        Self {
            resting: vec![(0..u32::MAX, Instant::now())],
        }
    }

    /// Carries out the steps in their order and stops at the first failure.
    pub fn apply(&mut self, plan: &Plan, maps: &mut impl MapWriter) -> Result<Applied, ApplyError> {
        for (index, step) in plan.steps.iter().enumerate() {
            self.carry_out(step, maps).map_err(|error| ApplyError {
                step: index,
                done: index,
                total: plan.steps.len(),
                what: step.to_string(),
                source: Box::new(error),
            })?;
        }
        Ok(Applied {
            steps: plan.steps.len(),
        })
    }

    fn carry_out(&mut self, step: &Step, maps: &mut impl MapWriter) -> Result<(), StepError> {
        match step {
            Step::WriteSettings(settings) => maps.write_settings(settings)?,
            Step::WriteSeed { index, seed } => write_seed(*index, *seed, maps)?,
            Step::ClearFresh { index } => maps.clear_fresh(*index)?,
            Step::WriteBackend { id, backend } => maps.write_backend(*id, backend)?,
            Step::WriteSlots { offset, slots } => {
                self.wait_for(*offset..offset.saturating_add(slots.len() as u32));
                maps.write_slots(*offset, slots)?;
            }
            Step::WriteService { key, service } => {
                let before = region_of(key, maps)?;
                maps.write_service(key, service)?;
                if before.start != service.slots_offset {
                    self.rest(before);
                }
            }
            Step::RemoveService { key } => {
                let before = region_of(key, maps)?;
                maps.remove_service(key)?;
                self.rest(before);
            }
            Step::WriteFilter(filter) => maps.write_filter(filter)?,
        }
        Ok(())
    }

    fn rest(&mut self, region: Range<u32>) {
        self.resting.retain(|(_, since)| since.elapsed() < REST);
        if !region.is_empty() {
            self.resting.push((region, Instant::now()));
        }
    }

    fn wait_for(&self, region: Range<u32>) {
        let wait = self
            .resting
            .iter()
            .filter(|(resting, _)| resting.start < region.end && region.start < resting.end)
            .map(|(_, since)| REST.saturating_sub(since.elapsed()))
            .max();
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            std::thread::sleep(wait);
        }
    }
}

fn region_of(key: &ServiceKey, maps: &impl MapWriter) -> Result<Range<u32>, MapError> {
    Ok(maps.read_service(key)?.map_or(0..0, |service| {
        service.slots_offset..service.slots_offset.saturating_add(service.slots_count)
    }))
}

fn write_seed(index: u32, seed: Seed, maps: &mut impl MapWriter) -> Result<(), StepError> {
    if seed.generation != 0 && seed.k0 == 0 && seed.k1 == 0 {
        return Err(StepError::ZeroSeed {
            index,
            generation: seed.generation,
        });
    }
    maps.write_seed(index, seed)?;
    if maps.read_seed(index)? != seed {
        return Err(StepError::SeedReadBack { index });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::IpAddr};

    use lb_common::{fingerprint::FingerprintKey, ids::BackendRef, service::Service};

    use super::*;
    use crate::{
        maps::{InMemoryMaps, MapReader},
        plan::{Scope, SlotTableCache, make_plan},
        state::{
            desired::{
                Affinity, BackendState, Desired, DesiredBackend, DesiredService, DesiredSettings, Mode,
                NextHop, Protocol, Selection, service_key,
            },
            observed::Capacity,
        },
    };

    fn maps() -> InMemoryMaps {
        InMemoryMaps::new(Capacity {
            services: 4,
            backends: 16,
            slots: 16_384,
            possible_cpus: 2,
            flow_buckets: 16,
            fresh_words: 4,
            hz: 250,
        })
    }

    fn seed(generation: u32) -> Seed {
        Seed {
            k0: 1,
            k1: 2,
            generation,
            reserved: 0,
        }
    }

    #[test]
    fn stops_at_the_first_failure_and_says_how_far_it_got() {
        let mut maps = maps();
        maps.fail_at(1);
        let plan = Plan {
            steps: vec![
                Step::WriteSeed {
                    index: 0,
                    seed: seed(1),
                },
                Step::ClearFresh { index: 0 },
                Step::WriteSeed {
                    index: 1,
                    seed: seed(1),
                },
            ],
        };
        let error = Applier::new().apply(&plan, &mut maps).unwrap_err();
        assert_eq!((error.step, error.done, error.total), (1, 1, 3));
        assert_eq!(
            error.to_string(),
            format!("step 2 of 3 ({}) failed after 1 were done", plan.steps[1])
        );
        assert_eq!(maps.seeds[0], seed(1));
        assert_eq!(maps.seeds[1], Seed::default());
    }

    #[test]
    fn a_zero_key_is_never_written() {
        let mut maps = maps();
        let plan = Plan {
            steps: vec![Step::WriteSeed {
                index: 1,
                seed: Seed {
                    generation: 3,
                    ..Seed::default()
                },
            }],
        };
        let error = Applier::new().apply(&plan, &mut maps).unwrap_err();
        assert!(matches!(*error.source, StepError::ZeroSeed { index: 1, .. }));
        assert_eq!(maps.writes, 0);
    }

    #[test]
    fn a_freed_region_rests_before_it_is_written_again() {
        let mut maps = maps();
        let key = ServiceKey::default();
        let service = |slots_offset| Service {
            id: 1,
            slots_offset,
            slots_count: 1021,
            ..Service::default()
        };
        maps.services.insert(key, service(0));
        let slots = vec![BackendRef::new(1, 1); 1021];
        let switch = |offset| Plan {
            steps: vec![
                Step::WriteSlots {
                    offset,
                    slots: slots.clone(),
                },
                Step::WriteService {
                    key,
                    service: service(offset),
                },
            ],
        };
        let mut applier = Applier::new();
        let start = Instant::now();
        applier.apply(&switch(1021), &mut maps).unwrap();
        assert_eq!(applier.resting.len(), 1);
        applier.apply(&switch(0), &mut maps).unwrap();
        assert!(start.elapsed() >= REST);
    }

    #[test]
    fn maps_that_another_daemon_left_rest_wholly() {
        let mut maps = maps();
        let plan = Plan {
            steps: vec![Step::WriteSlots {
                offset: 7,
                slots: vec![BackendRef::new(1, 1); 1021],
            }],
        };
        let start = Instant::now();
        Applier::taking_over().apply(&plan, &mut maps).unwrap();
        assert!(start.elapsed() >= REST);
    }

    fn desired() -> Desired {
        let next_hop = |last| NextHop {
            interface: 2,
            mac_source: [2; 6],
            mac_destination: [2, 0, 0, 0, 0, last],
            source: IpAddr::from([10, 0, 0, 1]),
            mtu: 1500,
            gateway: false,
        };
        let backend = |last| DesiredBackend {
            weight: 1,
            mode: Mode::Dsr,
            state: BackendState::Serving,
            udp_idle: 120,
            next_hop: Some(next_hop(last)),
            sources: BTreeSet::new(),
        };
        let service = |name: &str, last: std::ops::Range<u8>| DesiredService {
            name: name.to_owned(),
            selection: Selection::PerCpu,
            affinity: Affinity::None,
            slots: None,
            backends: last
                .map(|last| (IpAddr::from([10, 0, 0, last]), backend(last)))
                .collect(),
        };
        let key = |port| service_key(IpAddr::from([192, 0, 2, 10]), Some(port), Protocol::Tcp);
        Desired {
            services: [
                (key(80), service("web", 10..13)),
                (key(443), service("tls", 10..12)),
            ]
            .into(),
            settings: DesiredSettings {
                table_key: FingerprintKey::from_words([3; _]),
                ..DesiredSettings::default()
            },
            seeds: (0..3)
                .map(|index| {
                    (
                        index,
                        Seed {
                            k0: u64::from(index) + 1,
                            ..seed(1)
                        },
                    )
                })
                .collect(),
        }
    }

    fn changed(mut desired: Desired) -> Desired {
        let gone = *desired.services.keys().next_back().unwrap();
        desired.services.remove(&gone);
        let service = desired.services.values_mut().next().unwrap();
        service.backends.remove(&IpAddr::from([10, 0, 0, 11]));
        for seed in desired.seeds.values_mut() {
            (seed.k1, seed.generation) = (99, 2);
        }
        desired
    }

    fn reconcile(desired: &Desired, maps: &mut InMemoryMaps) -> Result<usize, ApplyError> {
        let observed = maps.observe(&Scope::All).unwrap();
        let plan = make_plan(desired, &observed, &Scope::All, &mut SlotTableCache::default()).unwrap();
        Applier::new().apply(&plan, maps).map(|applied| applied.steps)
    }

    /// Every slot of a service that is there names an entry that is there.
    fn assert_sound(maps: &InMemoryMaps) {
        let observed = maps.observe(&Scope::All).unwrap();
        for slot in observed.slots.values().flatten().filter(|slot| !slot.is_unset()) {
            let entry = maps.backends[slot.id() as usize];
            assert!(entry.is_named_by(*slot), "{slot:?} names {entry:?}");
        }
    }

    #[test]
    fn whatever_write_fails_the_next_plan_gets_there() {
        let (first, second) = (desired(), changed(desired()));
        let mut done = maps();
        reconcile(&first, &mut done).unwrap();
        let writes = done.writes;
        for failure in 0..writes {
            let mut maps = maps();
            maps.fail_at(failure);
            let error = reconcile(&first, &mut maps).unwrap_err();
            assert_eq!((error.done, maps.writes), (failure, failure));
            assert_sound(&maps);
            maps.heal();
            reconcile(&first, &mut maps).unwrap();
            assert_eq!(
                reconcile(&first, &mut maps).unwrap(),
                0,
                "after failure {failure}"
            );
            assert_eq!(maps.observe(&Scope::All).unwrap().services.len(), 2);
        }
        for failure in 0.. {
            let mut maps = done.clone();
            maps.fail_at(failure);
            if reconcile(&second, &mut maps).is_ok() {
                break;
            }
            assert_sound(&maps);
            maps.heal();
            reconcile(&second, &mut maps).unwrap();
            assert_eq!(
                reconcile(&second, &mut maps).unwrap(),
                0,
                "after failure {failure}"
            );
            assert_eq!(maps.observe(&Scope::All).unwrap().services.len(), 1);
            assert_eq!(maps.seeds[1].generation, 2);
        }
    }
}
