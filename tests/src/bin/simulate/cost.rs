//! T11: what a check of a large box costs in time and memory.

use std::time::Duration;

use lb_user::skew::{Shares, Stream, StreamSpec, shares::histogram_shares, tilt::Tolerance};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    chance::{Multinomial, Rng, quantile, rng},
    histograms::{SLOTS, ln_arl},
    lab::Lab,
    row::{Limit, Row, Unit},
    service::Service,
};

pub fn cost(lab: &mut Lab) {
    let services = lab.size(1000, 10);
    let mut rng = rng(lab.seed, "T11", 0);
    let service = Service::random(1000, &mut rng);
    let shares = service.shares(Tolerance::DEFAULT);
    let new = || Stream::new(StreamSpec::new(ln_arl()), shares.clone());
    let mut streams: Vec<Stream> = (0..services).map(|_| new()).collect();
    let drawn = draws(&service.p(), 1000, &mut rng);
    let time = check_all(&mut streams, &drawn);
    // Streams share the table's rows where services share a table, which these would not: counted for each.
    let bytes = (streams[0].heap_bytes() + size_of::<Stream>() + service.len() * size_of::<u64>()) as f64;
    let scenario = "1,000 services of 1,000 backends: memory, last counters included";
    lab.push(
        Row::new(
            "T11",
            scenario,
            1000.0 * bytes / 1e6,
            Unit::Megabytes,
            Limit::AtMost(100.0),
        )
        .study(68.0)
        .from(1, "box"),
    );
    let mut histograms: Vec<Stream> = (0..65)
        .map(|_| {
            Stream::new(
                StreamSpec::new(ln_arl()),
                Shares::of_histogram(SLOTS, Tolerance::DEFAULT),
            )
        })
        .collect();
    let drawn = draws(&histogram_shares(SLOTS), 16, &mut rng);
    let of_histograms = check_all(&mut histograms, &drawn);
    if !lab.timing {
        return;
    }
    let scale = 1000.0 / services as f64;
    let scenario = "1,000 services of 1,000 backends, 1,000 flows each: CPU time of a check";
    lab.push(
        Row::new(
            "T11",
            scenario,
            scale * time,
            Unit::Milliseconds,
            Limit::AtMost(60.0),
        )
        .study(26.0)
        .from(ROUNDS as u64, "checks"),
    );
    let scenario = "65 histograms, 16 flows each: CPU time of a check";
    lab.push(
        Row::new(
            "T11",
            scenario,
            of_histograms,
            Unit::Milliseconds,
            Limit::AtMost(2.0),
        )
        .study(0.4)
        .from(ROUNDS as u64, "checks"),
    );
}

const ROUNDS: usize = 11;

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
