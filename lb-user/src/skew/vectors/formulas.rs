//! Kinds of vectors that are one formula.

use serde::Deserialize;

use super::{
    Computed,
    compare::{Found, numbers},
    text::{Count, plain},
};
use crate::skew::{
    attribution::heterogeneity as spread,
    classical as tests, concentration,
    effect::{Effect, interval},
    power, tilt,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToleranceInput {
    p: f64,
    delta: f64,
}

pub(super) fn tolerance(input: ToleranceInput) -> Computed {
    let tolerated = tilt::tolerated(input.p, input.delta);
    Ok(vec![
        ("up", Found::Number(tolerated.up)),
        ("dn", Found::Number(tolerated.down)),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SparseIncrement {
    p: f64,
    delta: f64,
    p_floor: f64,
    x: Count,
    n: Count,
}

pub(super) fn sparse_increment(input: SparseIncrement) -> Computed {
    let SparseIncrement {
        p,
        delta,
        p_floor,
        x,
        n,
    } = input;
    let cost = tilt::Cost::new(p, tilt::Tolerance { delta, p_floor });
    Ok(vec![
        ("psi", numbers(cost.psi())),
        ("inc", numbers(cost.increments(x.0 as f64, n.0 as f64))),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    counts: Vec<Count>,
    p: Vec<f64>,
}

pub(super) fn classical(input: Counts) -> Computed {
    let counts = plain(&input.counts);
    let (chi2, g) = (tests::chi2(&counts, &input.p), tests::g(&counts, &input.p));
    let degrees = tests::degrees(&input.p);
    let ln_p = tests::ln_p(chi2, degrees);
    Ok(vec![
        ("chi2", Found::Number(chi2)),
        ("g", Found::Number(g)),
        ("df", Found::Count(degrees as u64)),
        ("ln_p_chi2", Found::Number(ln_p)),
        ("ln_p_g", Found::Number(tests::ln_p(g, degrees))),
        ("scipy_p_chi2", Found::Number(ln_p.exp())),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BayesFactor {
    counts: Vec<Count>,
    p: Vec<f64>,
    k: f64,
}

pub(super) fn dm_bayes_factor(input: BayesFactor) -> Computed {
    let ln_factor = tests::ln_bayes_factor(&plain(&input.counts), &input.p, input.k);
    Ok(vec![
        ("ln_bf", Found::Number(ln_factor)),
        ("anytime_p", Found::Number(tests::anytime_p(ln_factor))),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EffectInput {
    counts: Vec<Count>,
    p: Vec<f64>,
    alpha: f64,
}

pub(super) fn effect(input: EffectInput) -> Computed {
    let effect = Effect::measure(&plain(&input.counts), &input.p, input.alpha);
    let ratio = |ratio: Option<crate::skew::effect::Ratio>| ratio.map_or(0.0, |ratio| ratio.seen);
    Ok(vec![
        ("chi2", Found::Number(effect.chi2)),
        ("cv_raw", Found::Number(effect.cv_raw)),
        ("cv_debiased", Found::Number(effect.cv)),
        ("tv", Found::Number(effect.tv)),
        ("tv_lcb", Found::Number(effect.tv_interval[0])),
        ("tv_ucb", Found::Number(effect.tv_interval[1])),
        ("max_ratio", Found::Number(ratio(effect.most()))),
        ("min_ratio", Found::Number(ratio(effect.least()))),
        ("lambda_lo", Found::Number(effect.lambda_interval[0])),
        ("lambda_hi", Found::Number(effect.lambda_interval[1])),
        ("cv_lo", Found::Number(effect.cv_interval[0])),
        ("cv_hi", Found::Number(effect.cv_interval[1])),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShareInterval {
    x: Count,
    n: Count,
    alpha: f64,
    a: f64,
    b: f64,
    theta: f64,
}

pub(super) fn share_interval(input: ShareInterval) -> Computed {
    let ShareInterval {
        x,
        n,
        alpha,
        a,
        b,
        theta,
    } = input;
    let prior = interval::Prior { a, b };
    Ok(vec![
        (
            "clopper_pearson",
            numbers(interval::clopper_pearson(x.0, n.0, alpha)),
        ),
        (
            "ln_e_at_theta",
            Found::Number(interval::ln_evidence(x.0, n.0, theta, prior)),
        ),
        ("anytime_cs", numbers(interval::anytime(x.0, n.0, alpha, prior))),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lorden {
    p: Vec<f64>,
    q: Vec<f64>,
    #[serde(rename = "A")]
    arl: f64,
}

pub(super) fn lorden(input: Lorden) -> Computed {
    let bound = power::lorden(&input.p, &input.q, input.arl.ln());
    Ok(vec![
        ("kl", Found::Number(bound.kl)),
        ("tv", Found::Number(bound.tv)),
        ("bound_flows", Found::Number(bound.flows)),
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Required {
    p: Vec<f64>,
    #[serde(rename = "A")]
    arl: f64,
}

pub(super) fn n_required(input: Required) -> Computed {
    let flows = power::flows_required(&input.p, input.arl.ln());
    Ok(vec![("flows", Found::Number(flows))])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedTv {
    p: Vec<f64>,
    neff: f64,
}

pub(super) fn expected_tv(input: ExpectedTv) -> Computed {
    let tv = concentration::expected_tv(&input.p, input.neff);
    Ok(vec![("tv", Found::Number(tv))])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EffectiveFlows {
    n_all: Count,
    top_key_flows: Vec<Count>,
}

pub(super) fn n_eff(input: EffectiveFlows) -> Computed {
    let effective = concentration::effective_flows(input.n_all.0, &plain(&input.top_key_flows));
    Ok(vec![("neff", Found::Number(effective))])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Heterogeneity {
    x: Vec<Count>,
    n: Vec<Count>,
}

pub(super) fn heterogeneity(input: Heterogeneity) -> Computed {
    let pairs: Vec<(u64, u64)> = plain(&input.x).into_iter().zip(plain(&input.n)).collect();
    let found = spread::across_cpus(&pairs);
    Ok(vec![
        ("chi2", Found::Number(found.chi2)),
        ("df", Found::Count(found.degrees as u64)),
        ("ln_p", Found::Number(found.ln_p)),
    ])
}
