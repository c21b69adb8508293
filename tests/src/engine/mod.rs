//! The loaded program as an engine for cases: own maps, run by `BPF_PROG_TEST_RUN` on one CPU, attached to nothing.

mod array;
mod cpu;
mod maps;

use std::{
    fs, mem,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, anyhow, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData, ProgramArray, RingBuf},
    programs::{TestRun, TestRunOptions, Xdp},
};
use lb_common::{
    map_names::{self, Rare},
    sample::Sample,
    service_index::{entries_for, heads_for},
};
use lb_ebpf::testing::{
    engine::{Action, Engine, Ran, State},
    tables::Sizes,
    world::{World, sizes},
};

use crate::lab::sweep;
pub use cpu::pin_to_one as pin_to_one_cpu;
use maps::Maps;

/// Services there is room for: more than any world has.
const SERVICES: u32 = 32;
/// Octets a program may make of a frame: what one page holds between headroom and tailroom.
const LARGEST_OUTPUT: usize = 4096;

/// The program in the kernel.
pub struct KernelEngine {
    cpu: u32,
    maps: Maps,
    samples: RingBuf<MapData>,
    programs: Ebpf,
    /// The same programs loaded once more over the same maps.
    others: Option<Ebpf>,
    output: Vec<u8>,
    pins: Pins,
    object: Vec<u8>,
}

impl KernelEngine {
    /// Loads the object and keeps this thread on one CPU.
    pub fn load(object: &[u8]) -> Result<Self> {
        let cpu = pin_to_one_cpu()?;
        let pins = Pins::new()?;
        let mut programs = load(object, &pins, sizes(cpu))?;
        let samples = programs
            .take_map(map_names::SAMPLES.name)
            .context("the object has no ring of samples")?;
        Ok(Self {
            cpu,
            maps: Maps::take(&mut programs)?,
            samples: RingBuf::try_from(samples)?,
            programs,
            others: None,
            output: vec![0; LARGEST_OUTPUT],
            pins,
            object: object.to_vec(),
        })
    }

    /// Goes on with another load of the program over the same maps, as an upgrade does.
    pub fn replace_program(&mut self) -> Result<()> {
        let before = self.program_id()?;
        let new = match self.others.take() {
            Some(others) => others,
            None => load(&self.object, &self.pins, sizes(self.cpu))?,
        };
        self.others = Some(mem::replace(&mut self.programs, new));
        ensure!(self.program_id()? != before, "the program was not replaced");
        Ok(())
    }

    /// Goes on without the programs for rare frames.
    pub fn without_rare(&mut self) -> Result<()> {
        let mut map = rare_map(&self.programs)?;
        for rare in Rare::ALL {
            map.clear_index(&(rare as u32))?;
        }
        Ok(())
    }

    fn program_id(&self) -> Result<u32> {
        let program = self
            .programs
            .program("evenkeel")
            .context("the object has no program `evenkeel`")?;
        Ok(program.info()?.id())
    }

    fn test_run(&mut self, name: &str, frame: &[u8]) -> Result<Ran> {
        let program = self
            .programs
            .program(name)
            .with_context(|| format!("the object has no program `{name}`"))?;
        let program: &Xdp = program.try_into()?;
        let done = program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut self.output),
                ..TestRunOptions::default()
            })
            .with_context(|| format!("running `{name}` on {} octets", frame.len()))?;
        let action = match done.return_value {
            1 => Action::Drop,
            2 => Action::Pass,
            3 => Action::Transmit,
            4 => Action::Redirect,
            other => return Err(anyhow!("`{name}` answered {other}")),
        };
        Ok(Ran {
            action,
            bytes: self.output[..done.data_size_out as usize].to_vec(),
        })
    }
}

fn load(object: &[u8], pins: &Pins, sizes: Sizes) -> Result<Ebpf> {
    let regions = sizes.cpus + 1;
    let entries = [
        (map_names::SETTINGS, 1),
        (map_names::VIP_FILTER, 1),
        (map_names::SERVICE_HEADS, heads_for(SERVICES) as usize),
        (map_names::SERVICES, entries_for(SERVICES) as usize),
        (map_names::BACKENDS, sizes.backends),
        (map_names::SLOTS, sizes.slots),
        (map_names::SEEDS, regions),
        (map_names::FLOWS, sizes.flow_buckets),
        (map_names::FRESH, regions * sizes.fresh_words),
        (map_names::BACKEND_COUNTERS, sizes.cpus * sizes.backends),
        (map_names::CPU_COUNTERS, sizes.cpus),
        (map_names::SAMPLES, rustix::param::page_size()),
        (map_names::FRAGMENTS, sizes.fragment_buckets),
        (map_names::RARE, map_names::RARE.capacity),
    ];
    let mut loader = EbpfLoader::new();
    for (map, entries) in entries {
        loader.map_max_entries(map.name, entries as u32);
        loader.map_pin_path(map.name, pins.0.join(map.name));
    }
    let mut programs = loader.load(object).context("loading the object")?;
    for name in ["evenkeel", "decap"]
        .into_iter()
        .chain(Rare::ALL.map(Rare::program))
    {
        let program: &mut Xdp = programs
            .program_mut(name)
            .context("the object lacks a program")?
            .try_into()?;
        program
            .load()
            .with_context(|| format!("the kernel refuses `{name}`"))?;
    }
    install_rare(&mut programs)?;
    Ok(programs)
}

/// Puts the programs for rare frames where the balancer's finds them.
fn install_rare(programs: &mut Ebpf) -> Result<()> {
    let mut map = rare_map(programs)?;
    for rare in Rare::ALL {
        let program = programs.program(rare.program());
        let program: &Xdp = program.context("the object lacks a program")?.try_into()?;
        map.set(rare as u32, program.fd()?, 0)?;
    }
    Ok(())
}

fn rare_map(programs: &Ebpf) -> Result<ProgramArray<MapData>> {
    let map = programs.map(map_names::RARE.name);
    let Some(Map::ProgramArray(map)) = map else {
        anyhow::bail!("the object has no map {}", map_names::RARE.name);
    };
    let again = MapData::from_id(map.info()?.id())?;
    Ok(ProgramArray::try_from(Map::from_map_data(again)?)?)
}

/// A directory for the maps' pins, by which a second program finds them; gone when dropped.
struct Pins(PathBuf);

impl Pins {
    fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        sweep::once();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!(
            "{}/ek-{}-engine-{number}",
            sweep::BPFFS,
            std::process::id()
        ));
        fs::create_dir(&path)
            .with_context(|| format!("making {} (is bpffs mounted there?)", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Engine for KernelEngine {
    fn cpu(&self) -> u32 {
        self.cpu
    }

    fn reset(&mut self, world: &World) {
        assert_eq!(world.cpu, self.cpu, "the world is for another CPU");
        self.maps.clear();
        self.configure(world);
        self.maps.write_flows(world);
        self.samples();
    }

    fn configure(&mut self, world: &World) {
        self.maps
            .write(world)
            .unwrap_or_else(|error| panic!("writing the maps: {error:#}"));
    }

    fn clear_fresh(&mut self) {
        self.maps.clear_fresh();
    }

    fn run(&mut self, frame: &[u8]) -> Ran {
        self.test_run("evenkeel", frame)
            .unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn decap(&mut self, frame: &[u8]) -> Ran {
        self.test_run("decap", frame)
            .unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn state(&self) -> State {
        self.maps.state(self.cpu)
    }

    fn samples(&mut self) -> Vec<Sample> {
        let mut samples = Vec::new();
        while let Some(item) = self.samples.next() {
            assert_eq!(item.len(), size_of::<Sample>());
            // SAFETY: the record has the size of a sample, which is plain data.
            samples.push(unsafe { item.as_ptr().cast::<Sample>().read_unaligned() });
        }
        samples
    }
}
