//! Loads the program and creates or adopts its pinned maps; attaches nothing.

use std::{io, path::PathBuf};

use aya::{
    Ebpf, EbpfError, EbpfLoader, VerifierLogLevel,
    maps::{Map, MapData, ProgramArray, RingBuf},
    programs::{ProgramError, Xdp},
};
use lb_common::map_names::{self, Rare};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    AttachedInterface, MissingPrivilege, PROGRAM, PinError, ProgramIdentity, WantedCapacity, capacity,
    object,
    pins::{Lock, Pins},
    privileges::check_privileges,
    refusal::next_step,
    remove::remove_all,
};
use crate::maps::{MapError, PinnedMaps};

/// What to load and where to pin it.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub pin_directory: PathBuf,
    pub capacity: WantedCapacity,
}

/// Why the program could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Privilege(#[from] MissingPrivilege),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the kernel refuses the maps or the object; {next_step}")]
    Object {
        next_step: String,
        source: Box<EbpfError>,
    },
    #[error("the object has no XDP program {name}; rebuild with `cargo xtask build`")]
    NoProgram { name: &'static str },
    #[error("the kernel refuses program {name}; {next_step}")]
    Program {
        name: &'static str,
        next_step: String,
        source: Box<ProgramError>,
    },
    #[error("cannot ask the kernel about program {PROGRAM}")]
    Info { source: ProgramError },
    #[error("cannot read what the datapath logs")]
    Log { source: io::Error },
}

/// Why the balancer's program has nothing to leave rare frames to.
#[derive(Debug, thiserror::Error)]
pub enum RareError {
    #[error("the object lacks a program for rare frames, or their map {}", map_names::RARE.name)]
    Missing,
    #[error("cannot put a program into map {}", map_names::RARE.name)]
    Map(#[source] aya::maps::MapError),
}

/// The loaded program. Dropping it leaves program, links and maps pinned, and traffic flowing; only new maps
/// that were never attached go with it.
pub struct Datapath {
    pub(super) ebpf: Ebpf,
    pub(super) pins: Pins,
    pub(super) attached: Vec<AttachedInterface>,
    /// Until the first attachment.
    pub(super) unused: Option<UnusedMaps>,
    pub(super) lock: Lock,
    adopted: bool,
    notes: Vec<String>,
}

impl Datapath {
    /// Loads the program and opens its maps. Nothing is attached yet: the maps are to be filled first.
    pub fn load(options: &LoadOptions) -> Result<(Self, PinnedMaps), LoadError> {
        check_privileges()?;
        let pins = Pins::new(&options.pin_directory);
        pins.create()?;
        let lock = pins.lock()?;
        let plan = capacity::plan(&options.capacity, pins.directory())?;
        let unused = (!plan.adopted).then(|| UnusedMaps(Some(pins.clone())));
        let ebpf = load_object(&pins, &plan)?;
        let maps = PinnedMaps::open(pins.directory())?;
        let datapath = Self {
            ebpf,
            pins,
            attached: Vec::new(),
            unused,
            lock,
            adopted: plan.adopted,
            notes: plan.notes,
        };
        Ok((datapath, maps))
    }

    /// Whether the maps were there before.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// What of the wanted capacity does not hold because maps were adopted.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub fn attached(&self) -> &[AttachedInterface] {
        &self.attached
    }

    pub fn identity(&self) -> Result<ProgramIdentity, LoadError> {
        let program = self
            .ebpf
            .program(PROGRAM)
            .ok_or(LoadError::NoProgram { name: PROGRAM })?;
        program
            .info()
            .map(|info| ProgramIdentity::new(&info))
            .map_err(|source| LoadError::Info { source })
    }

    /// The ring buffer of sampled picks; once.
    pub fn take_samples(&mut self) -> Option<RingBuf<MapData>> {
        let map: Map = self.ebpf.take_map(map_names::SAMPLES.name)?;
        RingBuf::try_from(map).ok()
    }

    /// Makes the balancer's program, this one or one that is attached from before over the same maps, leave rare frames to
    /// the programs that were loaded with this one. The pinned map keeps them.
    pub(super) fn install_rare(&mut self) -> Result<(), RareError> {
        let fds = Rare::ALL.map(|rare| {
            let program: &Xdp = self.ebpf.program(rare.program())?.try_into().ok()?;
            Some((rare, program.fd().ok()?.try_clone().ok()?))
        });
        let map = self
            .ebpf
            .map_mut(map_names::RARE.name)
            .ok_or(RareError::Missing)?;
        let mut programs = ProgramArray::try_from(map).map_err(RareError::Map)?;
        for entry in fds {
            let (rare, fd) = entry.ok_or(RareError::Missing)?;
            programs.set(rare as u32, &fd, 0).map_err(RareError::Map)?;
        }
        Ok(())
    }

    pub(super) fn program(&mut self) -> Option<&mut Xdp> {
        self.ebpf.program_mut(PROGRAM)?.try_into().ok()
    }
}

fn load_object(pins: &Pins, plan: &capacity::Plan) -> Result<Ebpf, LoadError> {
    let mut loader = loader();
    for (name, entries) in &plan.sizes {
        loader.map_max_entries(name, *entries);
        loader.map_pin_path(name, pins.map(name));
    }
    let mut ebpf = loader.load(object()).map_err(|source| LoadError::Object {
        next_step: next_step(&source),
        source: source.into(),
    })?;
    for name in [PROGRAM].into_iter().chain(Rare::ALL.map(Rare::program)) {
        let program: &mut Xdp = ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or(LoadError::NoProgram { name })?;
        program.load().map_err(|source| LoadError::Program {
            name,
            next_step: next_step(&source),
            source: source.into(),
        })?;
    }
    Ok(ebpf)
}

/// A loader of the object, with all the memory for maps that the kernel lets this process have.
pub(crate) fn loader<'a>() -> EbpfLoader<'a> {
    raise_memory_lock();
    let mut loader = EbpfLoader::new();
    // A refusal then says its reason and what the verifier walked, without a trace of up to a million instructions.
    loader.verifier_log_level(VerifierLogLevel::STATS);
    loader
}

/// Maps count against RLIMIT_MEMLOCK before Linux 5.11. Where raising it is forbidden, loading says what is missing.
fn raise_memory_lock() {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    let _ = setrlimit(Resource::Memlock, unlimited);
}

/// New maps that no traffic has met: their pins go when loading or the first attachment fails.
pub(super) struct UnusedMaps(Option<Pins>);

impl UnusedMaps {
    /// Traffic meets them now.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UnusedMaps {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|pins| remove_all(&pins)) {
            tracing::warn!(%error, "cannot take back the new maps");
        }
    }
}
