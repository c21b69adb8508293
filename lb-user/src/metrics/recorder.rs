//! What the daemon itself does: plans, applies, rotations, and how long a change took.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, exponential_buckets};

use super::full_name;
use crate::watch::report::RemedyDone;

/// Why a plan was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    Start,
    /// Services or backends were changed through the interface.
    Edit,
    Reload,
    /// A next hop changed.
    NextHop,
    Seeds,
    /// The regular comparison with the maps.
    Reconcile,
    /// A failed change was taken back.
    Rollback,
    /// Seeds or slots were not as written, or traffic is uneven.
    Heal,
    /// Another part of the new flows is sampled.
    Samples,
    /// A source named other backends.
    Discovery,
    /// A backend passes or fails its checks.
    Health,
}

/// Why seeds were rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationCause {
    /// Unset or unfit when the daemon started.
    Start,
    Timer,
    Command,
    /// The bitmap of fresh keys was nearly full.
    FreshKeysFull,
    /// The hash spreads unevenly, or a seed was not as written.
    Skew,
}

/// Counters of the daemon's own doings.
pub struct Recorder {
    change_latency: Histogram,
    plans: IntCounterVec,
    plan_seconds: Histogram,
    plan_failures: IntCounter,
    apply_seconds: Histogram,
    apply_steps: IntCounter,
    apply_failures: IntCounter,
    drift_repairs: IntCounter,
    rotations: IntCounterVec,
    reloads: IntCounterVec,
    skew_check: Histogram,
    self_checks: IntCounterVec,
    remedies: IntCounterVec,
}

impl Default for Recorder {
    fn default() -> Self {
        let rotations = labelled("seed_rotations_total", "Seeds written, by cause.", "cause");
        // An alert on an increase does not see a counter that appears with its first event: all begin at zero.
        for cause in RotationCause::ALL {
            rotations.with_label_values(&[cause.name()]);
        }
        let reloads = labelled(
            "config_reloads_total",
            "Reloads of the configuration, by result.",
            "result",
        );
        for result in ["accepted", "refused"] {
            reloads.with_label_values(&[result]);
        }
        let remedies = labelled_twice(
            "skew_remedies_total",
            "Remedies against an uneven spread, by result.",
            ["remedy", "result"],
        );
        for remedy in RemedyDone::NAMES {
            for result in ["ok", "failed"] {
                remedies.with_label_values(&[remedy, result]);
            }
        }
        Self {
            change_latency: histogram(
                "change_latency_seconds",
                "From the event (an edit, a reload, a next hop) until the datapath has it.",
            ),
            plans: labelled("plans_total", "Plans made, by what asked for them.", "trigger"),
            plan_seconds: histogram("plan_seconds", "Time to read the maps and make a plan."),
            plan_failures: counter("plan_failures_total", "Plans that could not be made."),
            apply_seconds: histogram("apply_seconds", "Time to write a plan that has steps."),
            apply_steps: counter("apply_steps_total", "Steps written to the maps."),
            apply_failures: counter("apply_failures_total", "Plans that stopped at a failed step."),
            drift_repairs: counter(
                "drift_repairs_total",
                "Reconciles that found the maps other than they should be and put them right.",
            ),
            rotations,
            reloads,
            skew_check: histogram(
                "skew_check_seconds",
                "What one check of the spread of new flows costs, its reading included.",
            ),
            self_checks: labelled_twice(
                "skew_self_checks_total",
                "Self-checks that need no traffic, by result.",
                ["check", "result"],
            ),
            remedies,
        }
    }
}

impl Recorder {
    /// Makes the counters part of the scrape.
    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        for histogram in [
            &self.change_latency,
            &self.plan_seconds,
            &self.apply_seconds,
            &self.skew_check,
        ] {
            registry.register(Box::new(histogram.clone()))?;
        }
        for counter in [
            &self.plan_failures,
            &self.apply_steps,
            &self.apply_failures,
            &self.drift_repairs,
        ] {
            registry.register(Box::new(counter.clone()))?;
        }
        for counters in [
            &self.plans,
            &self.rotations,
            &self.reloads,
            &self.self_checks,
            &self.remedies,
        ] {
            registry.register(Box::new(counters.clone()))?;
        }
        Ok(())
    }

    /// A change is in the datapath, this long after its event.
    pub fn change_applied(&self, latency: Duration) {
        self.change_latency.observe(latency.as_secs_f64());
    }

    pub fn planned(&self, trigger: Trigger, took: Duration) {
        self.plans.with_label_values(&[trigger.name()]).inc();
        self.plan_seconds.observe(took.as_secs_f64());
    }

    pub fn plan_failed(&self) {
        self.plan_failures.inc();
    }

    /// Steps applied so far.
    pub fn steps(&self) -> u64 {
        self.apply_steps.get()
    }

    pub fn applied(&self, steps: usize, took: Duration) {
        self.apply_steps.inc_by(steps as u64);
        self.apply_seconds.observe(took.as_secs_f64());
    }

    pub fn apply_failed(&self) {
        self.apply_failures.inc();
    }

    pub fn drift_repaired(&self) {
        self.drift_repairs.inc();
    }

    pub fn rotated(&self, cause: RotationCause, seeds: usize) {
        self.rotations
            .with_label_values(&[cause.name()])
            .inc_by(seeds as u64);
    }

    /// The spread of new flows was checked.
    pub fn skew_checked(&self, took: Duration) {
        self.skew_check.observe(took.as_secs_f64());
    }

    /// A self-check was made.
    pub fn self_checked(&self, check: &str, ok: bool) {
        let result = if ok { "ok" } else { "failed" };
        self.self_checks.with_label_values(&[check, result]).inc();
    }

    /// A remedy was carried out, or could not be.
    pub fn remedied(&self, remedy: &str, ok: bool) {
        let result = if ok { "ok" } else { "failed" };
        self.remedies.with_label_values(&[remedy, result]).inc();
    }

    pub fn reloaded(&self, accepted: bool) {
        self.reloads
            .with_label_values(&[if accepted { "accepted" } else { "refused" }])
            .inc();
    }
}

impl Trigger {
    /// Whether someone wants a change, the start of the daemon included.
    pub const fn is_asked_for(self) -> bool {
        match self {
            Self::Start | Self::Edit | Self::Reload | Self::Rollback => true,
            Self::NextHop
            | Self::Seeds
            | Self::Reconcile
            | Self::Heal
            | Self::Samples
            | Self::Discovery
            | Self::Health => false,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Edit => "edit",
            Self::Reload => "reload",
            Self::NextHop => "next_hop",
            Self::Seeds => "seeds",
            Self::Reconcile => "reconcile",
            Self::Rollback => "rollback",
            Self::Heal => "heal",
            Self::Samples => "samples",
            Self::Discovery => "discovery",
            Self::Health => "health",
        }
    }
}

impl RotationCause {
    const ALL: [Self; 5] = [
        Self::Start,
        Self::Timer,
        Self::Command,
        Self::FreshKeysFull,
        Self::Skew,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Timer => "timer",
            Self::Command => "command",
            Self::FreshKeysFull => "fresh_keys_full",
            Self::Skew => "skew",
        }
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(full_name(name), help).expect("the name is valid")
}

fn labelled(name: &str, help: &str, label: &str) -> IntCounterVec {
    IntCounterVec::new(Opts::new(full_name(name), help), &[label]).expect("the name is valid")
}

fn labelled_twice(name: &str, help: &str, labels: [&str; 2]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(full_name(name), help), &labels).expect("the name is valid")
}

fn histogram(name: &str, help: &str) -> Histogram {
    let buckets = exponential_buckets(0.000_25, 2.0, 16).expect("start, factor and count are positive");
    Histogram::with_opts(HistogramOpts::new(full_name(name), help).buckets(buckets))
        .expect("the name is valid")
}
