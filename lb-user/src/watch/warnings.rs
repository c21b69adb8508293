//! What is worth knowing beside alarms of the spread: told when it begins and when it ends, and shown in between.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use lb_common::{
    seed::{SHARED, of_cpu},
    service::ServiceKey,
    slot_table::MAX_SLOTS,
};

use super::{epochs::EpochAlarm, filters, incident::Told, report::WarningName};
use crate::{
    cli::table,
    events::Kind,
    skew::shares::{SLOT_RATIO, SlotMismatch},
};

/// Whose warning it is; nobody's: the host's.
pub(super) type About = (WarningName, Option<ServiceKey>, u32);

/// A warning in words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    /// A service by name, or what of the host.
    pub object: String,
    pub text: String,
    /// What to do.
    pub todo: String,
}

/// A warning that stands.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub since: Duration,
    pub said: Said,
}

/// Those that stand.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    pub standing: BTreeMap<About, Standing>,
}

impl Warnings {
    /// Takes what holds now. Another text of what stood before is shown, and not told again.
    pub fn follow(&mut self, at: Duration, now: BTreeMap<About, Said>) -> Vec<Told> {
        let tell = |kind, said: &Said, text: String| Told {
            kind,
            object: said.object.clone(),
            text,
        };
        let mut told = Vec::new();
        self.standing.retain(|about, standing| {
            let stays = now.contains_key(about);
            if !stays {
                let text = format!("no longer: {}", standing.said.text);
                told.push(tell(Kind::Heal, &standing.said, text));
            }
            stays
        });
        for (about, said) in now {
            match self.standing.get_mut(&about) {
                Some(standing) => standing.said = said,
                None => {
                    let name = about.0.name();
                    let text = format!("warning {name}: {}; {}", said.text, said.todo);
                    told.push(tell(Kind::Skew, &said, text));
                    self.standing.insert(about, Standing { since: at, said });
                }
            }
        }
        told
    }

    /// Whether one of them is an alarm.
    pub fn is_alarm(&self) -> bool {
        self.standing.keys().any(|(name, ..)| name.is_alarm())
    }

    /// Filters that take new keys for known ones.
    pub fn starved(&self) -> impl Iterator<Item = &Said> {
        let starved = |(about, _): &(&About, &Standing)| about.0 == WarningName::FreshKeysStarved;
        self.standing
            .iter()
            .filter(starved)
            .map(|(_, standing)| &standing.said)
    }
}

/// The slots do not stand for the weights.
pub(super) fn weights(
    service: &str,
    mismatches: &[SlotMismatch],
    slots: usize,
    endpoints: &[IpAddr],
) -> Option<Said> {
    let off = |found: &&SlotMismatch| (found.owned - found.wanted).abs();
    let worst = mismatches
        .iter()
        .max_by(|one, other| off(one).total_cmp(&off(other)))?;
    let endpoint = endpoints.get(worst.backend)?;
    let more = match mismatches.len() {
        1 => String::new(),
        2 => ", and 1 more backend is off".to_owned(),
        count => format!(", and {} more backends are off", count - 1),
    };
    Some(Said {
        object: service.to_owned(),
        text: format!(
            "its {} slots do not stand for its weights: {endpoint} owns {} of them and should own {}{more}",
            table::count(slots as u64),
            percent(worst.owned),
            percent(worst.wanted)
        ),
        todo: match enough(mismatches, slots) {
            Some(enough) => format!(
                "give {service} a larger table, slots = {} or more, or weights that differ less",
                enough
            ),
            None => format!("give the backends of {service} weights that differ less, or fewer backends"),
        },
    })
}

/// Slots with which one slot more or less is no mismatch any more; `None`: more than there may be.
fn enough(mismatches: &[SlotMismatch], slots: usize) -> Option<u64> {
    let wanted = mismatches
        .iter()
        .map(|found| found.wanted)
        .filter(|share| *share > 0.0);
    let least = wanted.fold(1.0, f64::min);
    let room = SLOT_RATIO.end() - 1.0;
    let enough = ((1.0 / (room * least)).ceil() as u64).max(2 * slots as u64);
    (enough <= u64::from(MAX_SLOTS)).then_some(enough)
}

/// Many keys among the samples, and hardly a bit set.
pub(super) fn starved(found: &filters::Found) -> Said {
    Said {
        object: "fresh keys".to_owned(),
        text: format!(
            "the filter of {} takes new keys for known ones: {} different keys among the samples, and {} of its bits \
             are set; alarms that rest on fresh keys cannot be raised",
            whose(found.index),
            table::count(found.filter.distinct.unwrap_or_default() as u64),
            table::count(found.filter.set)
        ),
        todo: "clear it with a new seed: evenkeel seeds rotate --all; if it comes again the program is broken: replace it"
            .to_owned(),
    }
}

/// The filter of the shared seed, which no clock renews.
pub(super) fn full(found: &filters::Found) -> Said {
    Said {
        object: "fresh keys".to_owned(),
        text: format!(
            "the filter of {} is {} full: new clients of services with client affinity or fleet selection are taken \
             for known ones, and their spread is hardly watched",
            whose(found.index),
            percent(found.filter.fill())
        ),
        todo: "rotate it when clients may get other backends for new flows: evenkeel seeds rotate --shared (of a fleet: \
               change its secret on every node, then evenkeel reload)"
            .to_owned(),
    }
}

/// Seed after seed prefers or neglects one backend.
pub(super) fn epochs(service: &str, alarm: &EpochAlarm, endpoints: &[IpAddr]) -> Option<Said> {
    Some(Said {
        object: service.to_owned(),
        text: format!(
            "over {} seeds {} got {} of the new flows on average instead of {}, which no traffic explains",
            alarm.seeds,
            endpoints.get(alarm.backend)?,
            percent(alarm.part),
            percent(alarm.expected)
        ),
        todo: format!(
            "compare evenkeel backends {service} with evenkeel skew {service}; if the slots are as published, replace the \
             program"
        ),
    })
}

fn whose(index: u32) -> String {
    match index {
        SHARED => "the shared seed".to_owned(),
        index => format!("CPU {}", index - of_cpu(0)),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
