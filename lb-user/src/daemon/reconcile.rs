//! What happens without anybody asking: next hops that change, and maps that are not as they should be.

use std::{collections::BTreeSet, net::IpAddr, time::Instant};

use super::{
    controller::Controller,
    edits,
    ledger::{Answers, BringError},
    start::attach_options,
};
use crate::{
    api::types::{Problem, steps_written},
    events::Kind,
    maps::Scope,
    metrics::Trigger,
    net::{self, Resolution},
};

/// Next hops that get an event of their own; more become one.
const SINGLE_EVENTS: usize = 8;

impl Controller {
    /// Takes the resolver's newest answers to the datapath at once.
    pub(super) fn follow_next_hops(&mut self, since: Instant) {
        let news = self.resolver.news(&mut self.answers);
        let Answers { differing, changed } = self.ledger.take_news(news);
        if differing.is_empty() {
            return;
        }
        let names = self.ledger.services_with(&differing);
        if !changed.is_empty() {
            self.tell_next_hops(&changed);
            let affected = self.ledger.services_with(&changed);
            self.ledger.refresh_desired(&affected);
            let keys = names
                .iter()
                .filter_map(|name| Some(self.ledger.effective.services.get(name)?.spec.key()));
            let scope = Scope::Services(keys.collect());
            let result = self.bring_about(&scope, Trigger::NextHop);
            if self.note_outcome(&result, "next hops") {
                self.shared.recorder.change_applied(since.elapsed());
            }
        }
        self.publish(Some(&names));
    }

    /// Compares all maps with what they should hold, and puts right what differs; interfaces too.
    pub(super) fn reconcile(&mut self) {
        // Backends that are gone are followed until now: others may have had their addresses.
        let addresses = self.ledger.addresses();
        self.ledger.forget_answers(&addresses);
        self.resolver.want(addresses);
        self.reattach();
        let left = self.left_as_it_is();
        let result = self.bring_about(&self.all_but(&left), Trigger::Reconcile);
        self.note_outcome(&result, "reconcile");
        if let Ok(steps) = result
            && steps > 0
        {
            self.shared.recorder.drift_repaired();
            let text = format!(
                "the maps were not as they should be; put right ({})",
                steps_written(steps)
            );
            self.shared.events.record(Kind::Drift, "datapath", text);
            self.publish(None);
        }
        self.tell_what_is_left(&left);
    }

    /// An interface that was made anew, or lost the program, gets it again.
    fn reattach(&mut self) {
        let missing = match self.missing_interfaces() {
            Ok(missing) => missing,
            Err(error) => return tracing::warn!("cannot look at the interfaces: {error}"),
        };
        if missing.is_empty() {
            if self.troubles.remove("interfaces").is_some() {
                self.publish(Some(&BTreeSet::new()));
            }
            return;
        }
        let object = missing.join(", ");
        let options = attach_options(&self.config, &self.options);
        match self.datapath.attach(&options) {
            Ok(_) => {
                self.shared
                    .events
                    .record(Kind::Drift, object, "the program was not there; attached again");
                self.troubles.remove("interfaces");
            }
            Err(error) => {
                let problem = Problem {
                    object: object.clone(),
                    problem: format!("no traffic is balanced here: {}", edits::with_sources(&error)),
                    next_step: "bring the interface back; it is tried again every 10 s".to_owned(),
                };
                if self.troubles.insert("interfaces", problem.clone()).as_ref() != Some(&problem) {
                    self.shared.events.record(Kind::Degraded, object, problem.problem);
                }
            }
        }
        self.publish(Some(&BTreeSet::new()));
    }

    /// Interfaces that should run the program and do not.
    fn missing_interfaces(&self) -> anyhow::Result<Vec<String>> {
        let program = self.datapath.identity()?.id;
        let present = net::interfaces()?;
        let runs = |name: &String| {
            present
                .get(name)
                .and_then(|found| found.xdp)
                .is_some_and(|xdp| xdp.program_id == program)
        };
        Ok(self
            .config
            .datapath
            .interfaces
            .iter()
            .filter(|name| !runs(name))
            .cloned()
            .collect())
    }

    /// Remembers trouble with the datapath, or that it is over; answers whether all went well.
    pub(super) fn note_outcome(&mut self, result: &Result<usize, BringError>, object: &str) -> bool {
        let had_trouble = self.troubles.contains_key("datapath");
        match result {
            Ok(_) => {
                if self.troubles.remove("datapath").is_some() {
                    self.shared
                        .events
                        .record(Kind::Applied, object, "the datapath is as wanted again");
                    self.publish(Some(&BTreeSet::new()));
                }
                true
            }
            Err(error) => {
                let text = edits::with_sources(error);
                let next_step = match error {
                    BringError::Plan(error) => error.next_step(),
                    BringError::Observe(_) | BringError::Apply(_) => {
                        "it is tried again every 10 s; see what is missing with `evenkeel plan`".to_owned()
                    }
                };
                let problem = Problem {
                    object: "datapath".to_owned(),
                    problem: text.clone(),
                    next_step,
                };
                let known = self
                    .troubles
                    .insert("datapath", problem.clone())
                    .is_some_and(|before| before == problem);
                if !known {
                    self.shared.events.record(Kind::ApplyFailed, object, text);
                }
                if !had_trouble {
                    self.publish(Some(&BTreeSet::new()));
                }
                false
            }
        }
    }

    fn tell_next_hops(&self, changed: &BTreeSet<IpAddr>) {
        let events = &self.shared.events;
        if changed.len() > SINGLE_EVENTS {
            let lost = changed
                .iter()
                .filter(|address| !self.ledger.next_hops.contains_key(address))
                .count();
            let text = format!("{} changed, {lost} of them lost", changed.len());
            return events.record(Kind::NextHop, "next hops", text);
        }
        for address in changed {
            let text = match (
                self.ledger.next_hops.get(address),
                self.ledger.resolutions.get(address),
            ) {
                (Some(hop), _) => {
                    let name = super::view::interface_name(hop.interface);
                    format!(
                        "reached through {} dev {name}",
                        super::view::mac(&hop.mac_destination)
                    )
                }
                (None, Some(Resolution::Unresolved { reason, .. })) => {
                    format!("no longer reachable: {reason}")
                }
                (None, _) => "no longer resolved".to_owned(),
            };
            events.record(Kind::NextHop, address.to_string(), text);
        }
    }
}
