//! How to watch, and what a check asks for and tells.

use std::{collections::BTreeMap, time::Duration};

use lb_common::service::ServiceKey;

use crate::{
    skew::state::{Limits, Remedy},
    watch::incident::Told,
};

/// How to watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub interval: Duration,
    pub false_alarms_per_year: f64,
    pub auto_heal: bool,
    /// Services that differ from it.
    pub auto_heal_services: BTreeMap<String, bool>,
    pub limits: Limits,
}

/// Whose remedy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Box,
    Service(ServiceKey),
}

/// Something to be done; [`carried_out`](super::Monitor::carried_out) wants to hear of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub owner: Owner,
    pub remedy: Remedy,
}

/// What the last known-answer test came to.
#[derive(Clone, Debug, Default)]
pub(in crate::watch) struct KnownAnswers {
    pub at: Option<Duration>,
    pub cpus: usize,
    pub checked: u64,
    pub wrong: u64,
    pub error: Option<String>,
}

/// What a check came to.
#[derive(Debug, Default)]
pub struct Outcome {
    pub asks: Vec<Ask>,
    pub told: Vec<Told>,
}
