//! A service as the planner would build it: weights, slot table, shares; and what a fault makes of shares.

use std::net::{IpAddr, Ipv4Addr};

use lb_user::{
    plan::slot_table::{self, Member},
    skew::{Shares, tilt::Tolerance},
};
use rand::{RngExt, seq::index::sample};

use super::chance::Rng;

/// Backends with their slots.
#[derive(Clone)]
pub struct Service {
    /// By backend: id, as counters and streams name it, and weight (0 while it drains).
    pub backends: Vec<(u32, u32)>,
    /// By slot: index of its owner.
    pub slots: Vec<u32>,
    /// By backend: slots it owns.
    pub owned: Vec<u32>,
}

impl Service {
    /// `size` slots; `None` as many as the planner gives so many backends.
    ///
    /// # Panics
    /// If the planner refuses the weights: a scenario is wrong.
    pub fn new(backends: &[(u32, u32)], size: Option<u32>) -> Self {
        let serving = backends.iter().zip(0..).filter(|((_, weight), _)| *weight > 0);
        let (members, index): (Vec<Member>, Vec<u32>) = serving
            .map(|((id, weight), index)| {
                let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + id));
                let weight = *weight;
                (Member { address, weight }, index)
            })
            .unzip();
        let size = slot_table::size_for(backends.len(), size).expect("so many backends can be");
        let owners = slot_table::build(&members, size).expect("every backend owns a slot");
        let slots: Vec<u32> = owners.iter().map(|owner| index[*owner as usize]).collect();
        let mut owned = vec![0; backends.len()];
        slots.iter().for_each(|owner| owned[*owner as usize] += 1);
        Self {
            backends: backends.to_vec(),
            slots,
            owned,
        }
    }

    /// `count` backends of weights between 50 and 200.
    pub fn random(count: u32, rng: &mut Rng) -> Self {
        let backends: Vec<(u32, u32)> = (0..count).map(|id| (id, random_weight(rng))).collect();
        Self::new(&backends, None)
    }

    /// `count` backends of one weight.
    pub fn even(count: u32) -> Self {
        let backends: Vec<(u32, u32)> = (0..count).map(|id| (id, 100)).collect();
        Self::new(&backends, None)
    }

    /// How many backends.
    pub fn count(&self) -> usize {
        self.backends.len()
    }

    pub fn size(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Expected shares of the backends, as the detector is told them.
    pub fn shares(&self, tolerance: Tolerance) -> Shares {
        let ids = self.backends.iter().map(|(id, _)| *id);
        let owned: Vec<(u32, u32)> = ids.zip(self.owned.iter().copied()).collect();
        Shares::of_slots(&owned, self.size(), tolerance)
    }

    /// The same as numbers.
    pub fn p(&self) -> Vec<f64> {
        let size = f64::from(self.size());
        self.owned.iter().map(|owned| f64::from(*owned) / size).collect()
    }

    /// The backend whose share is nearest to `share`.
    pub fn nearest(&self, share: f64) -> usize {
        let off = |p: &f64| (p - share).abs();
        let nearest = self
            .p()
            .into_iter()
            .enumerate()
            .min_by(|a, b| off(&a.1).total_cmp(&off(&b.1)));
        nearest.map_or(0, |(index, _)| index)
    }
}

pub fn random_weight(rng: &mut Rng) -> u32 {
    rng.random_range(50..=200)
}

/// Category `b` gets `factor` times its share, at most everything; the others what is left, as before among each other.
pub fn one(p: &[f64], b: usize, factor: f64) -> Vec<f64> {
    let share = (p[b] * factor).min(1.0);
    let rest = (1.0 - share) / (1.0 - p[b]);
    let of = |(index, p): (usize, &f64)| if index == b { share } else { p * rest };
    p.iter().enumerate().map(of).collect()
}

/// Every category is off by `size`: half of them, which ones by chance, up, the others down.
pub fn mild(p: &[f64], size: f64, rng: &mut Rng) -> Vec<f64> {
    let up = sample(rng, p.len(), p.len() / 2).into_vec();
    let mut q: Vec<f64> = p.iter().map(|p| p * (1.0 - size)).collect();
    up.into_iter()
        .for_each(|index| q[index] = p[index] * (1.0 + size));
    normal(q)
}

/// Weights are ignored.
pub fn equal(p: &[f64]) -> Vec<f64> {
    vec![1.0 / p.len() as f64; p.len()]
}

/// A part `part` of the flows goes to category `to`.
pub fn stuck(p: &[f64], to: usize, part: f64) -> Vec<f64> {
    let mut q: Vec<f64> = p.iter().map(|p| (1.0 - part) * p).collect();
    q[to] += part;
    q
}

/// Only the categories for which `stays` holds get flows.
pub fn only(p: &[f64], stays: impl Fn(usize) -> bool) -> Vec<f64> {
    let kept = |(index, p): (usize, &f64)| if stays(index) { *p } else { 0.0 };
    normal(p.iter().enumerate().map(kept).collect())
}

fn normal(mut q: Vec<f64>) -> Vec<f64> {
    let sum: f64 = q.iter().sum();
    q.iter_mut().for_each(|q| *q /= sum);
    q
}

/// Total variation between shares: the part of the flows that is misplaced.
pub fn tv(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0
}

/// Coefficient of variation of flows over expected flows.
pub fn cv(p: &[f64], q: &[f64]) -> f64 {
    let square = p
        .iter()
        .zip(q)
        .map(|(p, q)| if *p > 0.0 { (q - p).powi(2) / p } else { 0.0 });
    square.sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::chance;

    fn is_whole(q: &[f64]) {
        assert!(
            (q.iter().sum::<f64>() - 1.0).abs() < 1e-12 && q.iter().all(|q| *q >= 0.0),
            "{q:?}"
        );
    }

    #[test]
    fn faults_move_shares_as_they_say() {
        let p = [0.1, 0.2, 0.3, 0.4];
        let mut rng = chance::rng(1, "faults", 0);
        let doubled = one(&p, 1, 2.0);
        assert!((doubled[1] - 0.4).abs() < 1e-12 && (doubled[0] / doubled[3] - 0.25).abs() < 1e-12);
        assert_eq!(one(&p, 1, 0.0)[1], 0.0);
        assert!((tv(&p, &stuck(&p, 2, 0.5)) - 0.35).abs() < 1e-12);
        assert_eq!(only(&p, |index| index % 2 == 0)[1], 0.0);
        for q in [
            doubled,
            one(&p, 1, 0.0),
            mild(&p, 0.2, &mut rng),
            equal(&p),
            only(&p, |index| index != 0),
        ] {
            is_whole(&q);
        }
        assert!((cv(&[0.5, 0.5], &[0.6, 0.4]) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn a_draining_backend_owns_no_slot_and_keeps_its_place() {
        let service = Service::new(&[(7, 100), (3, 0), (9, 50)], None);
        assert_eq!(service.owned[1], 0);
        assert_eq!(service.shares(Tolerance::DEFAULT).ids(), [7, 3, 9]);
        assert!((service.p()[0] - 2.0 / 3.0).abs() < 0.01);
        assert_eq!(service.nearest(0.3), 2);
        is_whole(&service.p());
    }
}
