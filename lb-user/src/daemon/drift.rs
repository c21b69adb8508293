//! What something else wrote into the maps, where that is not put right without being asked for.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::service::ServiceKey;
use tokio::task::block_in_place;

use super::{controller::Controller, edits};
use crate::{
    api::types::{Done, Problem},
    events::Kind,
    maps::Scope,
    metrics::Trigger,
    skew::attribution::Place,
    watch::report,
};

/// Its key among the troubles.
const TROUBLE: &str = "drift";

/// Seeds and slots that are not as they were written, and are left so.
#[derive(Debug, Default)]
pub(super) struct Left {
    seeds: Vec<Place>,
    services: BTreeMap<ServiceKey, String>,
}

impl Controller {
    /// What a comparison of the maps has to leave alone.
    pub(super) fn left_as_it_is(&self) -> Left {
        let Some(watch) = self.shared.skew.get() else {
            return Left::default();
        };
        let findings = watch.look_before_repair();
        // What a failed change left half done is finished, whoever wrote to the maps besides.
        if self.ledger.is_behind() {
            return Left::default();
        }
        let seeds = match self.config.skew.auto_heal {
            true => Vec::new(),
            false => findings.seeds.iter().map(|finding| finding.place).collect(),
        };
        let services = findings.tables.keys().filter_map(|key| {
            let name = &self.ledger.desired.services.get(key)?.name;
            (!self.heals(name)).then(|| (*key, name.clone()))
        });
        Left {
            seeds,
            services: services.collect(),
        }
    }

    /// Everything else.
    pub(super) fn all_but(&self, left: &Left) -> Scope {
        if left.services.is_empty() {
            return Scope::All;
        }
        let keys = self.ledger.desired.services.keys().copied();
        Scope::Services(keys.filter(|key| !left.services.contains_key(key)).collect())
    }

    /// Tells of it once, and shows it for as long as it is so.
    pub(super) fn tell_what_is_left(&mut self, left: &Left) {
        let Some(problem) = left.problem() else {
            if self.troubles.remove(TROUBLE).is_some() {
                let text = "seeds and slots are as they were written again";
                self.shared.events.record(Kind::Heal, "datapath", text);
                self.publish(Some(&BTreeSet::new()));
            }
            return;
        };
        let known = self.troubles.insert(TROUBLE, problem.clone());
        if known.as_ref() != Some(&problem) {
            let text = format!("{}; {}", problem.problem, problem.next_step);
            self.shared.events.record(Kind::Drift, "datapath", text);
            self.publish(Some(&BTreeSet::new()));
        }
    }

    /// Someone asked for a change of all that there is, and it is in force: so that the maps are all as they should be.
    pub(super) fn put_right(&mut self, mut done: Done, trigger: Trigger) -> Done {
        let result = block_in_place(|| self.bring_about(&Scope::All, trigger));
        self.note_outcome(&result, "datapath");
        match result {
            Ok(steps) => {
                done.steps += steps;
                if let Some(watch) = self.shared.skew.get() {
                    // The change itself has written the seeds already.
                    watch.put_right(steps > 0 || self.troubles.contains_key(TROUBLE));
                }
                block_in_place(|| self.tell_what_is_left(&Left::default()));
            }
            Err(error) => {
                let why = edits::with_sources(&error);
                done.notes
                    .push(format!("what else differed could not be put right: {why}"));
            }
        }
        done
    }
}

impl Left {
    fn problem(&self) -> Option<Problem> {
        let seeds = self.seeds.iter().map(|place| report::whose(*place));
        let slots = self.services.values().map(|name| format!("the slots of {name}"));
        let what: Vec<String> = seeds.chain(slots).collect();
        if what.is_empty() {
            return None;
        }
        let verb = match (self.services.len(), what.len()) {
            (0, 1) => "is",
            _ => "are",
        };
        Some(Problem {
            object: "datapath".to_owned(),
            problem: format!(
                "{} {verb} not as written, and left so: auto_heal is off",
                report::listed(&what)
            ),
            next_step: "put it right with `evenkeel reload`, seeds also with `evenkeel seeds rotate --all`; look for what \
                        else writes to the pinned maps"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_named() {
        assert_eq!(Left::default().problem(), None);
        let seed = Left {
            seeds: vec![Place::Cpu(1)],
            services: BTreeMap::new(),
        };
        assert_eq!(
            seed.problem().unwrap().problem,
            "the seed of CPU 1 is not as written, and left so: auto_heal is off"
        );
        let both = Left {
            seeds: vec![Place::Shared],
            services: [(ServiceKey::default(), "web".to_owned())].into(),
        };
        assert_eq!(
            both.problem().unwrap().problem,
            "the shared seed and the slots of web are not as written, and left so: auto_heal is off"
        );
    }
}
