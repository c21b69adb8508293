//! A scrape of the metrics as Prometheus makes it: over HTTP, from the maps' own counters.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, Map, MapData};
use lb_common::{counters::BackendCounters, map_names};
use lb_user::{
    daemon::{
        shared::Shared,
        view::{SeedView, Sources, View},
    },
    maps::{MapReader, Scope},
    metrics::{self, Metrics},
};

use super::{Maps, ROUNDS, median, milliseconds};
use crate::report::Report;

/// The daemon's default.
const MAX_SERIES: usize = 100_000;

/// Ten services of a thousand backends, each of which has counted something.
pub(super) fn run(report: &mut Report) -> Result<()> {
    let mut maps = Maps::load("scrape", 10, 1_000)?;
    maps.apply(&Scope::All)?;
    maps.count()?;
    let shared = Arc::new(Shared::new(
        "evenkeel.toml".into(),
        maps.pins.clone(),
        maps.maps.counters(),
        maps.view()?,
    ));
    shared.count_flows();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let metrics = Metrics::new(shared, MAX_SERIES)?;
    let address = runtime.block_on(metrics::serve(SocketAddr::from(([127, 0, 0, 1], 0)), metrics))?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let text = get(address)?;
        rounds.push(milliseconds(started));
        let packets = text
            .lines()
            .filter(|line| line.starts_with("evenkeel_backend_packets_total{"));
        ensure!(packets.count() == 10_000, "a backend is missing in the scrape");
    }
    runtime.shutdown_background();
    report.note("scrape_10000_ms", median(rounds));
    Ok(())
}

impl Maps {
    /// Numbers as long as they are after some days, on every CPU.
    fn count(&self) -> Result<()> {
        let map = MapData::from_pin(self.pins.join(map_names::BACKEND_COUNTERS.name))?;
        let mut counters: Array<_, [u64; size_of::<BackendCounters>() / 8]> =
            Array::try_from(Map::Array(map))?;
        for index in 0..counters.len() {
            let flows = 1_000_000 + u64::from(index);
            counters.set(index, [flows, 57 * flows, 41_000 * flows, flows / 3], 0)?;
        }
        Ok(())
    }

    /// What the daemon would show of these maps.
    fn view(&self) -> Result<View> {
        let observed = self.maps.observe(&Scope::All)?;
        let (resolutions, counters) = (Default::default(), self.maps.counters());
        let sources = Sources::new(&observed, &resolutions, &counters);
        let services = self.effective.services.iter().map(|(name, service)| {
            let wanted = self.desired.services.get(&service.spec.key());
            let wanted = wanted.with_context(|| format!("{name} is not wanted"))?;
            Ok((name.clone(), Arc::new(sources.service(service, wanted, None))))
        });
        let seeds = observed.seeds.iter().map(|seed| SeedView {
            generation: seed.generation,
            since: Instant::now(),
            next: None,
        });
        Ok(View {
            services: services.collect::<Result<_>>()?,
            seeds: seeds.collect(),
            ..View::default()
        })
    }
}

fn get(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{:.200}", answer);
    Ok(answer)
}
