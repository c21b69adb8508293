//! Where the flows of a hash that does not spread crowd.

use super::{
    evidence::{CpuHash, HashEvidence},
    rules::total,
};

/// The buckets where too many flows of the CPUs in doubt are.
pub(super) struct Crowd {
    pub(super) buckets: Vec<usize>,
    /// Part of those CPUs' flows that is there, and that should be.
    pub(super) share: f64,
    pub(super) expected: f64,
}

fn is_strong(cpu: &CpuHash<'_>) -> bool {
    cpu.reading.alarmed || cpu.reading.significant
}

impl Crowd {
    pub(super) fn find(hash: &HashEvidence<'_>) -> Self {
        let anyone = !hash.cpus.iter().any(is_strong);
        let mut pooled = vec![0.0; hash.shares.len()];
        for cpu in hash.cpus.iter().filter(|cpu| anyone || is_strong(cpu)) {
            for (sum, count) in pooled.iter_mut().zip(cpu.fresh) {
                *sum += *count as f64;
            }
        }
        let n: f64 = pooled.iter().sum();
        let crowded = |(bucket, p): (usize, &f64)| {
            let (x, mean) = (pooled[bucket], n * p);
            let sigma = (mean * (1.0 - p)).max(0.0).sqrt();
            (x >= 3.0 && x >= 2.0 * mean && x - mean >= 4.0 * sigma).then_some(bucket)
        };
        let buckets: Vec<usize> = hash.shares.iter().enumerate().filter_map(crowded).collect();
        let part = |values: &[f64]| buckets.iter().map(|bucket| values[*bucket]).sum::<f64>();
        let (inside, expected) = (part(&pooled), part(hash.shares));
        Self {
            buckets,
            share: if n > 0.0 { inside / n } else { 0.0 },
            expected,
        }
    }

    /// Whether a CPU takes part: by its own evidence, or since it crowds more like those in doubt than as expected.
    pub(super) fn is_bad(&self, cpu: &CpuHash<'_>) -> bool {
        let n = total(cpu.fresh) as f64;
        let inside = self.buckets.iter().filter_map(|bucket| cpu.fresh.get(*bucket));
        let inside = inside.map(|count| *count as f64).sum::<f64>();
        let crowds = !self.buckets.is_empty() && n > 0.0 && inside / n >= (self.share + self.expected) / 2.0;
        is_strong(cpu) || crowds
    }
}
