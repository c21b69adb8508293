//! What a fault is made of: hashes that do not spread, tables that are wrong, seeds that are stuck, flows of many packets.

use rand::RngExt;

use super::class::CpuSet;
use crate::{
    chance::Rng,
    service::{Service, tv},
};

/// A hash that does not spread on some CPUs.
pub struct HashFault {
    pub cpus: CpuSet,
    /// This part of the keys gets one of these hashes.
    pub part: f64,
    pub values: Vec<u64>,
}

impl HashFault {
    /// The same for a key at all times.
    pub fn distort(&self, cpu: u32, hash: u64) -> u64 {
        let low = hash & 0xffff_ffff;
        if self.cpus >> cpu & 1 == 1 && (low as f64) < self.part * 4_294_967_296.0 {
            self.values[(low % self.values.len() as u64) as usize]
        } else {
            hash
        }
    }
}

/// What is wrong with the seeds of some CPUs. The hash under them is good.
#[derive(Clone, Copy)]
pub enum SeedFault {
    /// No longer written.
    Old(CpuSet),
    Zero(CpuSet),
    /// Those of the CPU before.
    Equal(CpuSet),
}

/// A backend that owns no slot or two to four times as many, or a table that was built for equal weights.
pub fn wrong_table(service: &Service, slots: Option<u32>, rng: &mut Rng) -> Vec<u32> {
    let backend = rng.random_range(0..service.count() as u32);
    let mut table = service.slots.clone();
    match rng.random_range(0..3) {
        0 => {
            let others: Vec<u32> = table.iter().copied().filter(|owner| *owner != backend).collect();
            let mut other = || others[rng.random_range(0..others.len())];
            table
                .iter_mut()
                .filter(|owner| **owner == backend)
                .for_each(|owner| *owner = other());
        }
        1 => {
            let factor = rng.random_range(2.0..4.0);
            let wanted = (factor * f64::from(service.owned[backend as usize])).min(0.9 * table.len() as f64);
            let mut missing = wanted as u32 - service.owned[backend as usize];
            while missing > 0 {
                let slot = rng.random_range(0..table.len());
                missing -= u32::from(table[slot] != backend);
                table[slot] = backend;
            }
        }
        _ => {
            let even: Vec<(u32, u32)> = service.backends.iter().map(|(id, _)| (*id, 100)).collect();
            table = Service::new(&even, slots).slots;
        }
    }
    table
}

/// One to three flows that have half of the packets or more, and do not make up for each other.
pub fn elephants(p: &[f64], rng: &mut Rng) -> Vec<(f64, usize)> {
    loop {
        let of_all = rng.random_range(0.5..0.9);
        let count = rng.random_range(1..=3);
        let backends: Vec<usize> = (0..count).map(|_| rng.random_range(0..p.len())).collect();
        let mut packets: Vec<f64> = p.iter().map(|p| (1.0 - of_all) * p).collect();
        backends
            .iter()
            .for_each(|backend| packets[*backend] += of_all / f64::from(count));
        if tv(p, &packets) >= 0.25 {
            let part = of_all / (1.0 - of_all) / f64::from(count);
            return backends.into_iter().map(|backend| (part, backend)).collect();
        }
    }
}
