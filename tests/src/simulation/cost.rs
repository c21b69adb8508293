//! What a check of a large box costs in time and memory.

use std::time::Duration;

use lb_user::skew::{Shares, Stream, StreamSpec, shares::histogram_shares, threshold, tilt::Tolerance};
use rustix::time::{ClockId, clock_gettime};

use super::{
    chance::{Multinomial, Rng, quantile},
    service::Service,
};

/// Services of the box, and backends of each.
pub const SERVICES: usize = 1000;
pub const BACKENDS: u32 = 1000;
/// Histograms of 64 CPUs, and their sum.
pub const HISTOGRAMS: usize = 65;
/// Checks of which the median counts.
pub const ROUNDS: usize = 11;

/// New flows in a check, of a service and of a histogram.
const FLOWS: u64 = 1000;
const HISTOGRAM_FLOWS: u64 = 16;
/// Slots of a service of 20 backends.
const HISTOGRAM_SLOTS: u32 = 3203;

/// Of one check.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// CPU time for [`SERVICES`] services of [`BACKENDS`] backends, milliseconds.
    pub services_ms: f64,
    /// What these keep in memory from check to check, last counters included: 10⁶ octets.
    pub services_mb: f64,
    /// CPU time for [`HISTOGRAMS`] histograms, milliseconds.
    pub histograms_ms: f64,
}

/// Measures with so many services, and scales to [`SERVICES`].
pub fn measure(services: usize, rng: &mut Rng) -> Cost {
    let spec = StreamSpec::new(threshold::ln_arl(HISTOGRAMS as u64, 1e6));
    let service = Service::random(BACKENDS, rng);
    let shares = service.shares(Tolerance::DEFAULT);
    let mut streams: Vec<Stream> = (0..services).map(|_| Stream::new(spec, shares.clone())).collect();
    let drawn = draws(&service.p(), FLOWS, rng);
    let time = check_all(&mut streams, &drawn);
    // Streams share the table's rows where services share a table, which these would not: counted for each.
    let each = streams.first().map_or(0, Stream::heap_bytes);
    let bytes = each + size_of::<Stream>() + service.count() * size_of::<u64>();
    let histogram = || Stream::new(spec, Shares::of_histogram(HISTOGRAM_SLOTS, Tolerance::DEFAULT));
    let mut histograms: Vec<Stream> = (0..HISTOGRAMS).map(|_| histogram()).collect();
    let drawn = draws(&histogram_shares(HISTOGRAM_SLOTS), HISTOGRAM_FLOWS, rng);
    Cost {
        services_ms: time * SERVICES as f64 / services as f64,
        services_mb: (SERVICES * bytes) as f64 / 1e6,
        histograms_ms: check_all(&mut histograms, &drawn),
    }
}

/// Counts of a few checks.
fn draws(p: &[f64], flows: u64, rng: &mut Rng) -> Vec<Vec<u64>> {
    let multinomial = Multinomial::new(p);
    let mut one = |_| {
        let mut counts = Vec::new();
        multinomial.draw(flows, &mut counts, rng);
        counts
    };
    (0..16).map(&mut one).collect()
}

/// CPU time of one check of all streams, in milliseconds: the median of several.
fn check_all(streams: &mut [Stream], drawn: &[Vec<u64>]) -> f64 {
    let round = |round: usize, streams: &mut [Stream]| {
        let start = cpu_time();
        for (index, stream) in streams.iter_mut().enumerate() {
            std::hint::black_box(stream.check(&drawn[(index + round) % drawn.len()]));
        }
        (cpu_time() - start).as_secs_f64() * 1e3
    };
    let times: Vec<f64> = (0..ROUNDS).map(|index| round(index, streams)).collect();
    quantile(&times, 0.5)
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
