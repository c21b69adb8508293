//! T10: whether the intervals of effect sizes hold what they promise.

use lb_user::skew::effect::{
    Effect,
    interval::{Prior, anytime, clopper_pearson, ln_evidence},
};

use crate::{
    chance::{Multinomial, binomial, rng},
    lab::Lab,
    row::{Limit, Row, Unit},
    service::{Service, cv, mild, tv},
};

/// Flows; how far the root mean square of the debiased variation may be off: at most, and in the study.
const SIZES: [(u64, f64, f64); 3] = [(500, 0.15, 0.030), (5000, 0.05, 0.001), (50_000, 0.05, 0.001)];

const ALPHA: f64 = 0.01;

pub fn coverage(lab: &mut Lab) {
    for (flows, limit, study) in SIZES {
        window(lab, flows, limit, study);
    }
    peeks(lab);
}

fn window(lab: &mut Lab, flows: u64, limit: f64, study: f64) {
    let service = Service::random(10, &mut rng(lab.seed, "T10 weights", 0));
    let p = service.p();
    let q = mild(&p, 0.2, &mut rng(lab.seed, "T10 fault", 0));
    let (drawn, true_tv, true_cv) = (Multinomial::new(&q), tv(&p, &q), cv(&p, &q));
    let runs = lab.size(2000, 200);
    let found = lab.repeat(&format!("T10 {flows}"), runs, |rng| {
        let mut counts = Vec::new();
        drawn.draw(flows, &mut counts, rng);
        let effect = Effect::measure(&counts, &p, ALPHA);
        let misses = |[low, high]: [f64; 2], truth: f64| f64::from(u8::from(truth < low || truth > high));
        let ratios = effect.ratios.iter().any(|ratio| {
            let truth = q[ratio.category] / p[ratio.category];
            misses(ratio.interval, truth) > 0.0
        });
        [
            misses(effect.tv_interval, true_tv),
            misses(effect.cv_interval, true_cv),
            f64::from(u8::from(ratios)),
            effect.cv.powi(2),
        ]
    });
    let mean = |index: usize| found.iter().map(|row| row[index]).sum::<f64>() / runs as f64;
    let error = |part: f64| (part * (1.0 - part) / runs as f64).sqrt();
    let mut missed = |name: &str, index: usize, limit: Limit, study: Option<f64>| {
        let scenario = format!("{flows} flows, 10 backends off by 20 %: 99 % interval of {name} misses");
        let part = mean(index);
        lab.push(
            Row::new("T10", scenario, part, Unit::Part, limit)
                .error(error(part))
                .study(study)
                .bound(ALPHA, Unit::Part)
                .from(runs, "windows"),
        );
    };
    missed("TV", 0, Limit::AtMost(ALPHA), Some(0.0));
    // An interval for small deviations, at 20 %.
    missed("CV", 1, Limit::None, None);
    missed("any ratio", 2, Limit::AtMost(0.015), None);
    let off = (mean(3).sqrt() / true_cv - 1.0).abs();
    let scenario = format!("{flows} flows: debiased CV (root mean square) is off by");
    lab.push(
        Row::new("T10", scenario, off, Unit::Part, Limit::AtMost(limit))
            .study(study)
            .from(runs, "windows"),
    );
}

/// Looking again and again: the anytime interval of one share.
fn peeks(lab: &mut Lab) {
    let (runs, peeks, share) = (lab.size(1000, 40), lab.size(1000, 250), 0.1);
    let found = lab.repeat("T10 peeks", runs, |rng| {
        let (mut hits, mut flows) = (0, 0);
        let (mut ever, mut fixed) = (false, false);
        for peek in 0..peeks {
            hits += binomial(50, share, rng);
            flows += 50;
            let refuted = ln_evidence(hits, flows, share, Prior::JEFFREYS) >= -ALPHA.ln();
            ever |= refuted;
            // Intervals take a hundred times longer, and leave out the shares against which there is evidence.
            if peek % 10 == 0 {
                let outside = |[low, high]: [f64; 2]| share < low || share > high;
                assert_eq!(
                    outside(anytime(hits, flows, ALPHA, Prior::JEFFREYS)),
                    refuted,
                    "{hits} of {flows}"
                );
                fixed |= outside(clopper_pearson(hits, flows, ALPHA));
            }
        }
        (ever, fixed)
    });
    let part = |missed: usize| missed as f64 / runs as f64;
    let ever = part(found.iter().filter(|(ever, _)| *ever).count());
    let fixed = part(found.iter().filter(|(_, fixed)| *fixed).count());
    let scenario = format!("99 % anytime interval of a share, {peeks} peeks: ever misses");
    lab.push(
        Row::new("T10", scenario, ever, Unit::Part, Limit::AtMost(0.015))
            .error((ever * (1.0 - ever) / runs as f64).sqrt())
            .study(0.004)
            .bound(ALPHA, Unit::Part)
            .from(runs, "runs"),
    );
    let scenario = "  the same by the interval for one look (Clopper-Pearson), a tenth of the peeks";
    lab.push(Row::new("T10", scenario, fixed, Unit::Part, Limit::AtLeast(0.03)).from(runs, "runs"));
}
