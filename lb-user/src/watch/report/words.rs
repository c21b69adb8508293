//! Verdicts, remedies and conclusions as sentences.

use std::net::IpAddr;

use crate::{
    cli::{duration, table::count},
    skew::{
        attribution::{
            Cause, Concentration, Elephants, HashProof, Place, Scope, SeedFault, SeedFinding, Shortage,
            TableProof, Verdict,
        },
        state::{Conclusion, Remedy, Withheld},
    },
};

/// What sentences call a service and its backends.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub service: &'a str,
    /// By category of the service's stream.
    pub backends: &'a [IpAddr],
}

impl Names<'_> {
    fn backend(&self, category: usize) -> String {
        let address = self.backends.get(category);
        address.map_or_else(|| format!("backend number {category}"), ToString::to_string)
    }
}

/// `all CPUs`, `CPU 3`, `CPUs 3 and 7`, `some CPUs`.
pub fn scope_of(scope: &Scope) -> String {
    match scope {
        Scope::Global => "all CPUs".to_owned(),
        Scope::Cpus(cpus) if cpus.is_empty() => "some CPUs".to_owned(),
        Scope::Cpus(cpus) => {
            let numbers: Vec<String> = cpus.iter().map(ToString::to_string).collect();
            let noun = if numbers.len() == 1 { "CPU" } else { "CPUs" };
            format!("{noun} {}", listed(&numbers))
        }
    }
}

/// `a`, `a and b`, `a, b and c`; from the sixth on `… and 7 more`.
pub fn listed(words: &[String]) -> String {
    const MOST: usize = 5;
    match words {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [most @ .., last] if words.len() <= MOST => format!("{} and {last}", most.join(", ")),
        _ => format!("{} and {} more", words[..MOST].join(", "), words.len() - MOST),
    }
}

/// The verdict as a sentence with the numbers behind it.
pub fn explanation(verdict: &Verdict, names: Names<'_>) -> String {
    let place = scope_of(&verdict.scope);
    match &verdict.cause {
        Cause::Seed { findings } => seeds(findings),
        Cause::Hash(proof) => hash(proof, &place),
        Cause::Table(proof) => table(
            proof,
            names,
            &format!("on {place} the slot table of {}", names.service),
        ),
        Cause::StaleTable(proof) => table(
            proof,
            names,
            &format!(
                "on {place}, but not on the others, the slot table of {}",
                names.service
            ),
        ),
        Cause::KeyConcentration(found) => keys(found),
        Cause::Drained { backends } => {
            let backends: Vec<String> = backends.iter().map(|backend| names.backend(*backend)).collect();
            let verb = if backends.len() == 1 { "takes" } else { "take" };
            format!(
                "{} {verb} no new flows by intention (draining or removed)",
                listed(&backends)
            )
        }
        Cause::TooLittleData(shortage) => little(shortage),
        Cause::ElephantFlows(found) => elephants(found),
        Cause::Healthy => "new flows are spread as the slots say".to_owned(),
    }
}

fn seeds(findings: &[SeedFinding]) -> String {
    let told: Vec<String> = findings
        .iter()
        .map(|SeedFinding { place, fault }| {
            let whose = whose(*place);
            match fault {
                SeedFault::Zero => format!("{whose} is zero"),
                SeedFault::Generation { found, wanted } => {
                    format!("{whose} is of generation {found} instead of {wanted}")
                }
                SeedFault::Key => format!("{whose} is another one than was written"),
                SeedFault::Equal { to } => format!("{whose} equals {}", self::whose(*to)),
            }
        })
        .collect();
    format!("seeds in the datapath are not as written: {}", listed(&told))
}

/// `the seed of CPU 1`, `the shared seed`.
pub fn whose(place: Place) -> String {
    match place {
        Place::Shared => "the shared seed".to_owned(),
        Place::Cpu(cpu) => format!("the seed of CPU {cpu}"),
    }
}

fn hash(proof: &HashProof, place: &str) -> String {
    match proof {
        HashProof::Audit { wrong, checked } => format!(
            "the hash is wrong on {place}: {} of {} choices computed again gave another slot",
            count(*wrong),
            count(*checked)
        ),
        HashProof::Histogram {
            buckets,
            share,
            expected,
        } => format!(
            "the hash does not spread on {place}: {} of new keys fall into {buckets} of 256 buckets, which should get {}",
            percent(*share),
            percent(*expected)
        ),
    }
}

fn table(proof: &TableProof, names: Names<'_>, subject: &str) -> String {
    match proof {
        TableProof::Checksum { wrong, read } => {
            format!("{subject} is not the published one: {wrong} of {read} checksums differ")
        }
        TableProof::Audit { wrong, checked } => format!(
            "{subject} names other backends than published: {} of {} choices computed again did not match",
            count(*wrong),
            count(*checked)
        ),
        TableProof::Spread(spread) => format!(
            "{subject} seems wrong: the hash spreads, but {} gets {} of new flows instead of {}",
            names.backend(spread.backend),
            percent(spread.share),
            percent(spread.expected)
        ),
    }
}

fn keys(found: &Concentration) -> String {
    format!(
        "few clients make most flows: {} flows amount to {} independent choices, {} of them misplaced, {} without the heaviest ten",
        count(found.flows),
        count(found.effective_flows.max(0.0) as u64),
        percent(found.tv),
        percent(found.tv_without_top)
    )
}

fn little(shortage: &Shortage) -> String {
    let shown = match shortage.detectable_ratio {
        Some(ratio) => format!("so many would show a backend at {ratio:.1} times its share"),
        None => "so few show nothing yet".to_owned(),
    };
    if shortage.needed.is_finite() {
        format!(
            "{} fresh flows, of {} that it takes to see a doubled share; {shown}",
            count(shortage.flows),
            count(shortage.needed.ceil() as u64)
        )
    } else {
        "with one backend nothing can be uneven".to_owned()
    }
}

fn elephants(found: &Elephants) -> String {
    format!(
        "few flows carry most packets: {} of the packets are misplaced, {} without the heaviest ten flows; new flows are spread well",
        percent(found.tv),
        percent(found.tv_without_top)
    )
}

/// What to do about a verdict, most urgent first; `healing`: a remedy is at work or will be.
pub fn advice(verdict: &Verdict, names: Names<'_>, healing: bool) -> Vec<String> {
    let service = names.service;
    let wait = "nothing yet: a remedy is at work, and this says whether it helps".to_owned();
    let mut todo: Vec<String> = Vec::new();
    if healing && verdict.cause.is_fault() {
        todo.push(wait);
    }
    let by_hand = match &verdict.cause {
        Cause::Seed { .. } => "renew the seeds by hand: evenkeel seeds rotate --all; if it comes again, look for what else writes to the pinned maps".to_owned(),
        Cause::Hash(_) => "renew the seeds by hand: evenkeel seeds rotate --all; if that does not help the program is broken: restart the daemon of a version that is known to work, or take the host out of routing".to_owned(),
        Cause::Table(_) | Cause::StaleTable(_) => format!(
            "see the shares with `evenkeel backends {service}`, and what differs with `evenkeel plan`; write it again: evenkeel reload; if it comes again, look for what else writes to the pinned maps"
        ),
        Cause::KeyConcentration(_) => format!(
            "no fault of the balancer: few clients are few choices; without client affinity ({service}: affinity = \"none\") each of their connections is a choice of its own"
        ),
        Cause::Drained { .. } => return todo,
        Cause::ElephantFlows(_) => "no fault of the balancer: a flow stays on its backend; look at the backends' load".to_owned(),
        Cause::TooLittleData(_) | Cause::Healthy => return todo,
    };
    todo.push(match todo.is_empty() {
        true => by_hand,
        false => format!("if it does not help: {by_hand}"),
    });
    todo
}

/// A remedy that was carried out.
pub fn remedy_done(remedy: &Remedy) -> String {
    match remedy {
        Remedy::RotateSeeds { cpus: None } => "rotated all seeds".to_owned(),
        Remedy::RotateSeeds { cpus: Some(cpus) } => {
            format!("rotated the seeds of {}", scope_of(&Scope::Cpus(cpus.clone())))
        }
        Remedy::RewriteSeeds => "wrote the seeds again".to_owned(),
        Remedy::RewriteSlots { service } => format!("wrote the slots of {service} again"),
    }
}

/// What a remedy's outcome tells; `None` where it tells nothing.
pub fn conclusion(conclusion: Conclusion) -> Option<&'static str> {
    match conclusion {
        Conclusion::None => None,
        Conclusion::BadSeedOrAimedKeys => {
            Some("new seeds made it even: the seed was bad, or clients had aimed at it")
        }
        Conclusion::BrokenHash => Some(
            "new seeds left it uneven: the hash itself is broken (replace the program), or someone learns the seeds and aims at them",
        ),
        Conclusion::ForeignWrite => Some(
            "writing what should be there made it even: something else had written to the maps, or a write was lost",
        ),
        Conclusion::NotTheTable => {
            Some("the table is as published and traffic is not: the program, or the expectation, is wrong")
        }
        Conclusion::SeedsDoNotStay => {
            Some("seeds that are written do not stay: something else writes to the maps")
        }
    }
}

/// Why nothing is done by itself; `now` by the clock of the moments in it.
pub fn withheld(why: &Withheld, now: std::time::Duration) -> String {
    let left = |until: std::time::Duration| duration::show(until.saturating_sub(now).as_secs());
    match why {
        Withheld::NoVerdict => "no remedy yet: the cause is not known".to_owned(),
        Withheld::NoFault { cause: _ } => "no remedy: the balancer is not at fault".to_owned(),
        Withheld::Exhausted { cause: _ } => "no remedy left: what there is has been tried".to_owned(),
        Withheld::AutoHealOff => {
            "no remedy by itself: auto_heal is off, and what differs is left until someone puts it right"
                .to_owned()
        }
        Withheld::Cooldown { until } => {
            format!(
                "no remedy for {}: another one was carried out shortly before",
                left(*until)
            )
        }
        Withheld::Budget { until } if *until == std::time::Duration::MAX => {
            "no remedy by itself: the budget of remedies is 0".to_owned()
        }
        Withheld::Budget { until } => {
            format!("no remedy for {}: the budget of remedies is spent", left(*until))
        }
    }
}

/// One decimal; small parts keep two digits that say something.
fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.01 {
        format!("{:.2}%", share * 100.0)
    } else {
        format!("{:.1}%", share * 100.0)
    }
}

#[cfg(test)]
mod tests;
