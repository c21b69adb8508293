//! What sources say, for people: answers to `discovery`, and the trouble that `status` shows.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    shared::Shared,
    sources::why_held,
    view::{SourceView, View},
};
use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::{Filter, Held, Problem, Source, SourceState},
    },
    discovery::guard,
};

/// Held endpoints that are named.
const NAMED: usize = 16;

pub fn discovery(shared: &Shared, filter: &Filter) -> Result<Vec<Source>, Refusal> {
    let view = shared.view();
    if let Some(service) = &filter.service
        && !view.services.contains_key(service)
    {
        return Err(Refusal::new(
            RefusalKind::NotFound,
            format!("there is no service {service}"),
            "`evenkeel services` lists them",
        ));
    }
    let now = Instant::now();
    let wanted = view.sources.iter().filter(|source| {
        filter
            .service
            .as_deref()
            .is_none_or(|name| name == &*source.service)
    });
    Ok(wanted.map(|source| show(source, now)).collect())
}

/// State of a source, as shown and as counted.
pub fn state(source: &SourceView) -> SourceState {
    match (&source.health.failing, source.health.heard) {
        _ if !source.loaded => SourceState::NotLoaded,
        (None, Some(_)) => SourceState::Fresh,
        (_, Some(_)) => SourceState::Stale,
        (_, None) => SourceState::FromDisk,
    }
}

fn show(source: &SourceView, now: Instant) -> Source {
    let health = &source.health;
    let refused = health
        .last_refused
        .iter()
        .map(|refused| format!("{}: {}", refused.entry, refused.reason));
    Source {
        service: source.service.to_string(),
        name: source.name.to_string(),
        kind: source.kind.to_owned(),
        follows: health.describes.clone(),
        state: state(source),
        error: health.failing.as_ref().map(|(_, error)| error.to_string()),
        stale_seconds: health.stale_for(now).as_secs(),
        heard_seconds: health
            .heard
            .map(|heard| now.saturating_duration_since(heard).as_secs()),
        from_disk: health.from_disk,
        revision: health.revision.clone(),
        endpoints: source.endpoints,
        named: source.named,
        held: source.held.as_ref().map(|held| show_held(held, now)),
        held_by_hand: source.held_by_hand,
        updates: health.updates,
        failures: health.failures,
        refused: health.refused,
        refused_now: refused.chain(source.not_admitted.iter().cloned()).collect(),
    }
}

fn show_held(held: &guard::Held, now: Instant) -> Held {
    let endpoints: Vec<IpAddr> = held.endpoints.iter().take(NAMED).copied().collect();
    Held {
        endpoints,
        count: held.endpoints.len(),
        why: why_held(&held.why, held.endpoints.len()),
        since_seconds: now.saturating_duration_since(held.since).as_secs(),
        until_seconds: held
            .until
            .map(|until| until.saturating_duration_since(now).as_secs()),
    }
}

/// What of sources wants a human.
pub(super) fn problems(view: &View) -> Vec<Problem> {
    let now = Instant::now();
    view.sources
        .iter()
        .flat_map(|source| problems_of(source, now))
        .collect()
}

/// A source that fails for less is left to try again.
const PATIENCE: Duration = Duration::from_secs(30);

fn problems_of(source: &SourceView, now: Instant) -> Vec<Problem> {
    let (service, name) = (&source.service, &source.name);
    let problem = |problem: String, next_step: String| Problem {
        object: format!("source {service}/{name}"),
        problem,
        next_step,
    };
    let mut problems = Vec::new();
    if let Some((since, error)) = &source.health.failing
        && (now.saturating_duration_since(*since) >= PATIENCE || !source.loaded)
    {
        let what_serves = match source.loaded {
            true => "backends stay as they were last known",
            false => "it never had a state",
        };
        problems.push(problem(
            format!("it fails: {error}; {what_serves}"),
            format!(
                "look at {}; it is asked again all the time",
                source.health.describes
            ),
        ));
    }
    if let Some(held) = &source.held {
        problems.push(problem(
            format!("{}; they stay", why_held(&held.why, held.endpoints.len())),
            format!("if that is meant: `evenkeel discovery accept {service} {name}`"),
        ));
    }
    if !source.health.last_refused.is_empty() || !source.not_admitted.is_empty() {
        let count = source.health.last_refused.len() + source.not_admitted.len();
        problems.push(problem(
            format!("{count} or more of its entries cannot be backends"),
            format!("see which with `evenkeel discovery {service}`"),
        ));
    }
    problems
}
