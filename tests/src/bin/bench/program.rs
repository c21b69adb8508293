//! The programs under test, loaded over the same maps, and one way to time them.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader, TestRun, TestRunOptions,
    maps::{HashMap, Map, ProgramArray},
    programs::Xdp,
};
use lb_common::{
    backend::{self, Backend},
    bench::BenchState,
    counters::{CpuCounters, Event, VERDICT_SLOTS},
    fingerprint::FingerprintKey,
    flow_hash::Key,
    ids::BackendRef,
    map_names::{self, MapName},
    seed::Seed,
    service::{Service, ServiceKey, VIP_MARK},
    service_index::head_shift,
    settings::{LAYOUT_VERSION, Settings, clock_multiplier, initial_jiffies, one_in},
    slot_table::bucket_scale,
    vip_filter,
};

use lb_user::maps::{MappedArray, ServiceIndex};

use crate::memory::MappedMap;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Evenkeel,
    Lru,
    Floor,
}

impl Target {
    pub const ALL: [Self; 3] = [Self::Evenkeel, Self::Lru, Self::Floor];
}

/// The BPF objects: the one that ships, and the one with the programs of the benchmark.
pub struct Objects {
    pub product: Vec<u8>,
    pub bench: Vec<u8>,
}

/// 198.51.100.10, and 2001:db8:fe::10.
pub const VIP4: [u8; 16] = [198, 51, 100, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
pub const VIP6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const BACKENDS: u32 = 100;
const SLOTS: u32 = 10_007;
/// Packets of a stretch from which on caches do not matter.
const LONG: u32 = 100_000;

const CPU_WORDS: usize = size_of::<CpuCounters>() / 8;

/// The loaded programs and the maps that a measurement writes.
pub struct Bench {
    _directory: PinDirectory,
    wrapper: Ebpf,
    product: Ebpf,
    target: ProgramArray<aya::maps::MapData>,
    state: MappedMap<BenchState>,
    flows: MappedMap<[u64; 8]>,
    counters: MappedMap<[u64; CPU_WORDS]>,
    cpu: u32,
}

/// Pins live only so long as both objects need to find each other's maps.
struct PinDirectory(PathBuf);

impl Drop for PinDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Bench {
    /// Loads everything with a flow table of `flow_entries` (a power of two) and an LRU map of `lru_entries`.
    pub fn load(objects: &Objects, flow_entries: u32, lru_entries: u32) -> Result<Self> {
        let cpu = pin_to_last_cpu()?;
        let directory = PinDirectory(PathBuf::from(format!(
            "/sys/fs/bpf/evenkeel-bench-{}-{flow_entries}",
            std::process::id()
        )));
        std::fs::create_dir_all(&directory.0).context("cannot make a pin directory; is bpffs mounted?")?;
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)? as u32;
        let load = |object: &[u8]| -> Result<Ebpf> {
            let paths: Vec<_> = map_names::ALL
                .iter()
                .map(|map| directory.0.join(map.name))
                .collect();
            let mut loader = EbpfLoader::new();
            for (map, path) in map_names::ALL.iter().zip(&paths) {
                loader.map_pin_path(map.name, path.as_path());
            }
            loader
                .map_max_entries(map_names::FLOWS.name, flow_entries / 4)
                .map_max_entries(map_names::SEEDS.name, cpus + 1)
                .map_max_entries(map_names::FRESH.name, (cpus + 1) * 4096)
                .map_max_entries(map_names::CPU_COUNTERS.name, cpus)
                .map_max_entries(map_names::BACKEND_COUNTERS.name, cpus * 1024)
                .map_max_entries("BENCH_LRU", lru_entries);
            loader.load(object).context("cannot load a BPF object")
        };
        let mut product = load(&objects.product)?;
        let mut wrapper = load(&objects.bench)?;
        program(&mut product, "evenkeel")?.load()?;
        for name in ["bench_wrap", "bench_floor", "bench_lru"] {
            program(&mut wrapper, name)?.load()?;
        }
        let target = ProgramArray::try_from(wrapper.take_map("BENCH_TARGET").context("no BENCH_TARGET")?)?;
        let mut bench = Self {
            state: mapped(&wrapper, "BENCH_STATE", 1)?,
            flows: mapped(&product, map_names::FLOWS.name, flow_entries as usize / 4)?,
            counters: mapped(&product, map_names::CPU_COUNTERS.name, cpus as usize)?,
            _directory: directory,
            target,
            wrapper,
            product,
            cpu,
        };
        bench.configure(flow_entries, cpus)?;
        Ok(bench)
    }

    fn configure(&mut self, flow_entries: u32, cpus: u32) -> Result<()> {
        let hz = 250;
        let settings = Settings {
            layout_version: LAYOUT_VERSION,
            possible_cpus: cpus,
            table_key: FingerprintKey::expand(Key {
                k0: 0x0123_4567_89ab_cdef,
                k1: 0xfedc_ba98_7654_3210,
            }),
            clock_base: initial_jiffies(hz),
            clock_multiplier: clock_multiplier(hz),
            flow_mask: flow_entries / 4 - 1,
            fresh_mask: 4095,
            sample_mask: one_in(64),
            packet_sample_mask: one_in(64),
            backend_stride: 1024,
            timeouts: [0, 10, 30, 120, 21_600, 0, 0, 0],
            service_shift: head_shift(map_names::SERVICE_HEADS.capacity as u32),
            fragment_mask: map_names::FRAGMENTS.capacity as u32 - 1,
            icmp_rate: 1000,
            flags: 0,
        };
        mapped(&self.product, map_names::SETTINGS.name, 1)?.set(0, settings);
        let mut seeds = mapped(&self.product, map_names::SEEDS.name, cpus as usize + 1)?;
        for index in 0..=cpus as usize {
            let seed = Seed {
                k0: 77 + index as u64,
                k1: 99,
                generation: 1,
                reserved: 0,
            };
            seeds.set(index, seed);
        }
        let mut filter = mapped::<[u64; vip_filter::WORDS]>(&self.product, map_names::VIP_FILTER.name, 1)?;
        let mut bits = [0; vip_filter::WORDS];
        for (address, family) in [(VIP4, 4), (VIP6, 6)] {
            let bit = vip_filter::bit_of(&address, family);
            bits[bit as usize / 64] |= 1 << (bit % 64);
        }
        filter.set(0, bits);
        self.fill_services()
    }

    fn fill_services(&mut self) -> Result<()> {
        let mut backends = mapped::<Backend>(
            &self.product,
            map_names::BACKENDS.name,
            map_names::BACKENDS.capacity,
        )?;
        // Values of arrays lie 8 octets apart, whatever their size.
        let mut slots = mapped::<u64>(&self.product, map_names::SLOTS.name, map_names::SLOTS.capacity)?;
        let mut index = self.service_index()?;
        let usual = self
            .wrapper
            .map_mut("BENCH_SERVICES")
            .context("no BENCH_SERVICES")?;
        let mut usual = HashMap::<_, ServiceKey, Service>::try_from(usual)?;
        for (number, (address, family)) in [(VIP4, 4), (VIP6, 6)].into_iter().enumerate() {
            let service = Service {
                id: number as u32 + 1,
                slots_offset: number as u32 * SLOTS,
                slots_count: SLOTS,
                table_generation: 1,
                bucket_scale: bucket_scale(SLOTS),
                ..Service::default()
            };
            let first = 1 + number as u32 * BACKENDS;
            for id in first..first + BACKENDS {
                backends.set(id as usize, backend_of(id, service.id, family));
            }
            for slot in 0..SLOTS {
                let reference = BackendRef::new(first + slot % BACKENDS, 1);
                slots.set(
                    (service.slots_offset + slot) as usize,
                    u64::from(reference.bits()),
                );
            }
            let mark = Service {
                id: VIP_MARK,
                ..Service::default()
            };
            index.set(&ServiceKey::vip_mark(address, family), &mark)?;
            let mut key = ServiceKey::vip_mark(address, family);
            key.port = 80u16.to_be_bytes();
            key.protocol = 6;
            index.set(&key, &service)?;
            usual.insert(key, service, 0)?;
        }
        Ok(())
    }

    fn service_index(&self) -> Result<ServiceIndex> {
        let array = |map: MapName| match self.product.map(map.name) {
            Some(Map::Array(data)) => Ok((data, map.capacity as u32)),
            _ => anyhow::bail!("no array {}", map.name),
        };
        let (heads, heads_len) = array(map_names::SERVICE_HEADS)?;
        let (entries, entries_len) = array(map_names::SERVICES)?;
        let heads = MappedArray::new(map_names::SERVICE_HEADS.name, heads.fd(), heads_len, true)?;
        let entries = MappedArray::new(map_names::SERVICES.name, entries.fd(), entries_len, true)?;
        Ok(ServiceIndex::open(heads, entries, Duration::ZERO))
    }

    /// Forgets every flow in the target's table.
    pub fn clear_flows(&mut self, target: Target) -> Result<()> {
        match target {
            Target::Evenkeel => self.flows.clear(),
            Target::Lru => self.clear_lru()?,
            Target::Floor => (),
        }
        Ok(())
    }

    fn clear_lru(&mut self) -> Result<()> {
        let map = self.wrapper.map_mut("BENCH_LRU").context("no BENCH_LRU")?;
        let mut lru = HashMap::<_, [u64; 5], u64>::try_from(map)?;
        let keys: Vec<_> = lru.keys().collect::<Result<_, _>>()?;
        for key in keys {
            lru.remove(&key)?;
        }
        Ok(())
    }

    /// An event of this CPU so far.
    pub fn event(&self, event: Event) -> u64 {
        self.counters.get(self.cpu as usize)[VERDICT_SLOTS + event as usize]
    }

    fn moved_verdicts(&self) -> Vec<((&'static str, &'static str), u64)> {
        let counters = self.counters.get(self.cpu as usize);
        let moved =
            |verdict: lb_ebpf::verdict::Verdict| (verdict.names(), counters[verdict.counter() as usize]);
        lb_ebpf::verdict::Verdict::all()
            .map(moved)
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Runs the wrapper over `runs` packets and returns nanoseconds a packet, wrapper included. The first half of a short
    /// stretch fills the CPU's caches, from which other work may have taken everything, and is not timed; a long one
    /// visits more than caches hold, and all of it counts.
    ///
    /// `flows` 1 leaves the packet alone; otherwise source address and port step from `first_address`.
    pub fn time(
        &mut self,
        target: Target,
        packet: &[u8],
        flows: u32,
        first_address: u32,
        runs: u32,
        expect: u32,
    ) -> Result<f64> {
        self.select(target)?;
        let cold = if runs < LONG { runs / 2 } else { 0 };
        self.state.set(
            0,
            BenchState {
                first_run: u64::from(cold),
                last_run: u64::from(runs),
                flows,
                first_address,
                length: packet.len() as u32,
                ethertype: u16::from_ne_bytes([packet[12], packet[13]]),
                v6: u16::from(packet[12] == 0x86),
                ..BenchState::default()
            },
        );
        let wrapper = program(&mut self.wrapper, "bench_wrap")?;
        let mut out = vec![0; packet.len() + 64];
        let result = wrapper.test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            repeat: runs,
            ..TestRunOptions::default()
        })?;
        let expect = if target == Target::Floor { 3 } else { expect };
        ensure!(
            result.return_value == expect,
            "{target:?} answered {} instead of {expect}; verdicts moved: {:?}",
            result.return_value,
            self.moved_verdicts()
        );
        let state = self.state.get(0);
        ensure!(
            state.runs == u64::from(runs),
            "the wrapper ran {} times, not {runs}",
            state.runs
        );
        Ok((state.ended - state.started) as f64 / f64::from(runs - cold - 1))
    }

    /// Nanoseconds of the floor alone, no wrapper: what one repetition of the test run costs at least.
    pub fn floor_alone(&mut self, packet: &[u8]) -> Result<f64> {
        const RUNS: u32 = 500_000;
        let floor = program(&mut self.wrapper, "bench_floor")?;
        let timed = |repeat| -> Result<f64> {
            let started = thread_time();
            floor.test_run(TestRunOptions {
                data_in: Some(packet),
                repeat,
                ..TestRunOptions::default()
            })?;
            Ok(thread_time() - started)
        };
        // The difference leaves out what the system call itself costs.
        let short = timed(RUNS)?;
        let long = timed(3 * RUNS)?;
        Ok((long - short) / f64::from(2 * RUNS))
    }

    fn select(&mut self, target: Target) -> Result<()> {
        let fd = match target {
            Target::Evenkeel => program(&mut self.product, "evenkeel")?.fd()?.try_clone()?,
            Target::Lru => program(&mut self.wrapper, "bench_lru")?.fd()?.try_clone()?,
            Target::Floor => program(&mut self.wrapper, "bench_floor")?.fd()?.try_clone()?,
        };
        self.target.set(0, &fd, 0)?;
        Ok(())
    }
}

/// Nanoseconds this thread has run; time in which other work had the CPU is left out.
fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn backend_of(id: u32, service: u32, family: u8) -> Backend {
    Backend {
        address: [10; 16],
        service,
        // Test runs come in on the loopback interface.
        interface: 1,
        mac_destination: [2, 0, 0, 0, 0, id as u8],
        mac_source: [2, 0, 0, 0, 1, 0],
        generation: 1,
        state: backend::state::SERVING,
        mode: backend::mode::DSR,
        family,
        mtu: 1500,
        udp_idle: 120,
        ..Backend::default()
    }
}

fn program<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object
        .program_mut(name)
        .with_context(|| format!("no program {name}"))?;
    Ok(program.try_into()?)
}

fn mapped<T: lb_common::pod::Pod>(object: &Ebpf, name: &str, entries: usize) -> Result<MappedMap<T>> {
    let map = object.map(name).with_context(|| format!("no map {name}"))?;
    let aya::maps::Map::Array(data) = map else {
        anyhow::bail!("map {name} is no array");
    };
    MappedMap::new(data.fd(), entries)
}

/// Stays on one CPU, the last one that may be used: interrupts tend to go to the first.
fn pin_to_last_cpu() -> Result<u32> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let cpu = (0..CpuSet::MAX_CPU)
        .rev()
        .find(|cpu| allowed.is_set(*cpu))
        .context("no CPU to run on")?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    Ok(cpu as u32)
}
