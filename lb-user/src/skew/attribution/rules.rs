//! The rules of attribution, one function each.

use std::collections::BTreeSet;

use super::{
    crowd::Crowd,
    evidence::{Audit, Evidence, Heavy, ServiceEvidence},
    heterogeneity::{LN_DIFFER, across_cpus, is_everywhere, ln_p_of_pairs},
    readback::Place,
    verdict::{Cause, Concentration, Elephants, HashProof, Scope, Shortage, Spread, TableProof, Verdict},
};
use crate::skew::{concentration as keys, effect::noise_floor, power};

fn global(cause: Cause) -> Option<Verdict> {
    Some(Verdict {
        cause,
        scope: Scope::Global,
    })
}

/// R1.
pub(super) fn seeds(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.seeds.is_empty() {
        return None;
    }
    let cpu = |place| match place {
        Place::Cpu(cpu) => Some(cpu),
        Place::Shared => None,
    };
    let shared = evidence
        .seeds
        .iter()
        .any(|finding| finding.place == Place::Shared);
    let cpus: BTreeSet<u32> = evidence
        .seeds
        .iter()
        .filter_map(|finding| cpu(finding.place))
        .collect();
    Some(Verdict {
        cause: Cause::Seed {
            findings: evidence.seeds.to_vec(),
        },
        scope: Scope::of(shared, cpus),
    })
}

/// R0, slots.
pub(super) fn audited_slots(evidence: &Evidence<'_>) -> Option<Verdict> {
    let (wrong, checked, scope) = audited(evidence.audits, |audit| audit.wrong_slot)?;
    let cause = Cause::Hash(HashProof::Audit { wrong, checked });
    Some(Verdict { cause, scope })
}

/// R0, backends.
pub(super) fn audited_backends(evidence: &Evidence<'_>) -> Option<Verdict> {
    let (wrong, checked, scope) = audited(evidence.audits, |audit| audit.wrong_backend)?;
    Some(table_verdict(TableProof::Audit { wrong, checked }, scope))
}

/// Mistakes found, choices checked, and where; `None` without a mistake.
fn audited(audits: &[Audit], wrong: impl Fn(&Audit) -> u64) -> Option<(u64, u64, Scope)> {
    let pairs: Vec<(u64, u64)> = audits.iter().map(|audit| (wrong(audit), audit.checked)).collect();
    let bad = audits.iter().filter(|audit| wrong(audit) > 0);
    let cpus: BTreeSet<u32> = bad.map(|audit| audit.cpu).collect();
    let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0u64, u64::saturating_add);
    (!cpus.is_empty()).then(|| {
        (
            sum(&mut pairs.iter().map(|(wrong, _)| *wrong)),
            sum(&mut pairs.iter().map(|(_, checked)| *checked)),
            Scope::of(is_everywhere(&pairs), cpus),
        )
    })
}

/// R2.
pub(super) fn tables(evidence: &Evidence<'_>) -> Option<Verdict> {
    let wrong: Vec<_> = evidence
        .tables
        .iter()
        .filter(|table| table.found != table.wanted)
        .collect();
    if wrong.is_empty() {
        return None;
    }
    let proof = TableProof::Checksum {
        wrong: wrong.len(),
        read: evidence.tables.len(),
    };
    let everywhere = wrong.len() == evidence.tables.len() || wrong.iter().any(|table| table.cpu.is_none());
    let cpus = wrong.iter().filter_map(|table| table.cpu).collect();
    Some(table_verdict(proof, Scope::of(everywhere, cpus)))
}

fn table_verdict(proof: TableProof, scope: Scope) -> Verdict {
    let cause = match scope {
        Scope::Global => Cause::Table(proof),
        Scope::Cpus(_) => Cause::StaleTable(proof),
    };
    Verdict { cause, scope }
}

/// R3.
pub(super) fn histograms(evidence: &Evidence<'_>) -> Option<Verdict> {
    let hash = &evidence.hash;
    if !hash.alarmed() {
        return None;
    }
    let crowd = Crowd::find(hash);
    let bad: BTreeSet<u32> = hash
        .cpus
        .iter()
        .filter(|cpu| crowd.is_bad(cpu))
        .map(|cpu| cpu.cpu)
        .collect();
    // CPUs that had too few flows to be judged have no vote.
    let judged = hash.cpus.iter().filter(|cpu| total(cpu.fresh) >= 3);
    let judged: Vec<bool> = judged.map(|cpu| bad.contains(&cpu.cpu)).collect();
    // Half of them are some of them: of two CPUs one.
    let most = 2 * judged.iter().filter(|bad| **bad).count() > judged.len();
    let cause = Cause::Hash(HashProof::Histogram {
        buckets: crowd.buckets.len(),
        share: crowd.share,
        expected: crowd.expected,
    });
    // No CPU stands out, yet their sum does: all are a little wrong.
    let scope = Scope::of(most || bad.is_empty(), bad);
    Some(Verdict { cause, scope })
}

/// R4.
pub(super) fn backends(evidence: &Evidence<'_>) -> Option<Verdict> {
    let service = &evidence.service;
    let worst = service.worst()?;
    let pairs = service.pairs(worst);
    let flows = total(service.fresh) as f64;
    let hits = service.fresh.get(worst).copied().unwrap_or(0) as f64;
    let spread = Spread {
        backend: worst,
        share: if flows > 0.0 { hits / flows } else { 0.0 },
        expected: service.shares.get(worst).copied().unwrap_or(0.0),
        across_cpus: across_cpus(&pairs),
        ln_p_of_pairs: ln_p_of_pairs(&pairs),
    };
    let differ = spread.across_cpus.ln_p < LN_DIFFER || spread.ln_p_of_pairs < LN_DIFFER;
    let proof = TableProof::Spread(spread);
    if differ || service.alarm.is_none() {
        let cpus = outliers(service, &pairs, spread);
        return Some(table_verdict(proof, Scope::Cpus(cpus)));
    }
    Some(table_verdict(proof, Scope::Global))
}

/// CPUs with an alarm of their own, or whose share of the worst backend is four standard deviations off.
fn outliers(service: &ServiceEvidence<'_>, pairs: &[(u64, u64)], spread: Spread) -> BTreeSet<u32> {
    let p = spread.expected;
    let off = |(x, n): (u64, u64)| {
        let (x, n) = (x as f64, n as f64);
        n * p >= 0.5 && (x - n * p).abs() >= 4.0 * (n * p * (1.0 - p)).sqrt() && x != n * p
    };
    let cpus = service.cpus.iter().zip(pairs);
    let out = cpus.filter(|(cpu, pair)| cpu.alarm.is_some() || off(**pair));
    out.map(|(cpu, _)| cpu.cpu).collect()
}

/// R5.
pub(super) fn concentration(evidence: &Evidence<'_>) -> Option<Verdict> {
    let ServiceEvidence {
        shares,
        all,
        top_keys,
        ..
    } = evidence.service;
    let flows = total(all);
    let n = flows as f64;
    let tv = variation(all, shares)?;
    let net_tv = tv - noise_floor(shares.len(), n) - (1000f64.ln() / (2.0 * n)).sqrt();
    let top: Vec<u64> = top_keys.iter().map(|key| key.count).collect();
    let effective_flows = keys::effective_flows(flows, &top);
    let expected_tv = keys::expected_tv(shares, effective_flows);
    let tv_without_top = variation(&without(all, top_keys), shares).unwrap_or(0.0);
    let explained = tv_without_top <= tv / 2.0 || tv <= 4.0 * expected_tv;
    if net_tv < 0.03 || effective_flows >= n / 3.0 || !explained {
        return None;
    }
    global(Cause::KeyConcentration(Concentration {
        net_tv,
        tv,
        tv_without_top,
        effective_flows,
        flows,
        expected_tv,
    }))
}

/// R6.
pub(super) fn leaving(evidence: &Evidence<'_>) -> Option<Verdict> {
    let backends = evidence.service.leaving.to_vec();
    if backends.is_empty() {
        return None;
    }
    global(Cause::Drained { backends })
}

/// R7. A single backend needs no data.
pub(super) fn shortage(evidence: &Evidence<'_>) -> Option<Verdict> {
    let ServiceEvidence { shares, fresh, .. } = evidence.service;
    let flows = total(fresh);
    let needed = power::flows_required(shares, evidence.ln_arl);
    let choice = shares.iter().filter(|share| **share > 0.0).count() > 1;
    if !choice || flows as f64 >= needed {
        return None;
    }
    global(Cause::TooLittleData(Shortage {
        flows,
        needed,
        detectable_ratio: power::detectable_ratio(shares, evidence.ln_arl, flows as f64),
    }))
}

/// R8. Backends that drain have no new flows, and packets of the old ones: they are left out.
pub(super) fn elephants(evidence: &Evidence<'_>) -> Option<Verdict> {
    let service = &evidence.service;
    let mut packets = service.packets.to_vec();
    for backend in service.leaving {
        if let Some(count) = packets.get_mut(*backend) {
            *count = 0;
        }
    }
    let tv = variation(&packets, service.shares)?;
    let tv_without_top = variation(&without(&packets, service.top_flows), service.shares).unwrap_or(0.0);
    if tv < 0.20 || tv_without_top > tv / 2.0 {
        return None;
    }
    global(Cause::ElephantFlows(Elephants { tv, tv_without_top }))
}

pub(super) fn total(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

/// Total variation of counts from shares; `None` without counts.
fn variation(counts: &[u64], shares: &[f64]) -> Option<f64> {
    let n: f64 = counts.iter().map(|count| *count as f64).sum();
    let parts = counts.iter().zip(shares);
    (n > 0.0).then(|| {
        parts
            .map(|(count, share)| (*count as f64 / n - share).abs())
            .sum::<f64>()
            / 2.0
    })
}

/// Counts without those of the ten heaviest.
fn without(counts: &[u64], heaviest: &[Heavy]) -> Vec<u64> {
    let mut rest = counts.to_vec();
    for heavy in heaviest.iter().take(10) {
        if let Some(count) = rest.get_mut(heavy.backend) {
            *count = count.saturating_sub(heavy.count);
        }
    }
    rest
}
