//! The programs of health checks through the VIP, and their map: loaded, attached by links, and never pinned.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use aya::{
    Ebpf, EbpfError,
    maps::{HashMap, MapData, MapError},
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType,
        tc::{SchedClassifierLink, TcAttachOptions},
    },
};
use lb_common::check::{CHECKS, CheckEntry, CheckKey};
use rustix::{
    net::{AddressFamily, SocketType, netdevice::index_to_name, socket},
    system::uname,
};

use super::load::loader;

/// The programs, and what each is attached to.
const PROGRAMS: [(&str, TcAttachType); 2] = [
    ("check_ingress", TcAttachType::Ingress),
    ("check_egress", TcAttachType::Egress),
];
/// Only a new entry is written (linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

/// Why checks cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub enum CheckPathError {
    #[error("checks through the VIP need Linux 6.6 or later, and this is {release}")]
    NoTcx { release: String },
    #[error("the kernel refuses the map or the object of checks through the VIP")]
    Object(#[source] Box<EbpfError>),
    #[error("the object of checks through the VIP has no {0}; rebuild with `cargo xtask build`")]
    Missing(&'static str),
    #[error("the kernel refuses program {name}")]
    Program {
        name: &'static str,
        source: Box<ProgramError>,
    },
    #[error("the kernel refused them a moment ago")]
    Waiting,
    #[error("there is no interface with index {index}")]
    NoInterface { index: u32, source: io::Error },
    #[error("cannot attach program {name} to interface {interface}")]
    Attach {
        name: &'static str,
        interface: String,
        source: Box<ProgramError>,
    },
}

/// Programs, map and links.
pub struct Loaded {
    ebpf: Ebpf,
    checks: HashMap<MapData, CheckKey, CheckEntry>,
    /// By index of the interface. Dropping a link detaches.
    links: BTreeMap<u32, Vec<SchedClassifierLink>>,
}

/// Why an entry was not written.
pub enum Refused {
    /// Its key has an entry.
    Taken,
    Full,
    Other(MapError),
}

/// Whether the kernel has links for TC programs (TCX, Linux 6.6). `None` when this process may not ask.
pub fn has_tcx() -> Option<bool> {
    // Every network namespace has it.
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => Some(true),
        Err(ProgramError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EINVAL) => {
            Some(false)
        }
        Err(_) => None,
    }
}

/// The object that this binary carries.
fn object() -> &'static [u8] {
    aya::include_bytes_aligned!(env!("EVENKEEL_CHECK_OBJECT"))
}

impl Loaded {
    pub fn new() -> Result<Self, CheckPathError> {
        if has_tcx() == Some(false) {
            let release = uname().release().to_string_lossy().into_owned();
            return Err(CheckPathError::NoTcx { release });
        }
        let loaded = loader().load(object());
        let mut ebpf = loaded.map_err(|error| CheckPathError::Object(error.into()))?;
        for (name, _) in PROGRAMS {
            let source = program(&mut ebpf, name)?.load();
            source.map_err(|source| CheckPathError::Program {
                name,
                source: source.into(),
            })?;
        }
        let map = ebpf.take_map(CHECKS.name);
        let checks = map.and_then(|map| HashMap::try_from(map).ok());
        Ok(Self {
            ebpf,
            checks: checks.ok_or(CheckPathError::Missing(CHECKS.name))?,
            links: BTreeMap::new(),
        })
    }

    /// Attaches to these interfaces and to no others; those that cannot be attached to are left out.
    ///
    /// # Errors
    /// Why the first of those is left out.
    pub fn attach(&mut self, interfaces: &BTreeSet<u32>) -> Result<(), CheckPathError> {
        self.links.retain(|index, _| interfaces.contains(index));
        let mut result = Ok(());
        for index in interfaces {
            if !self.links.contains_key(index) {
                match attach_to(&mut self.ebpf, *index) {
                    Ok(links) => {
                        self.links.insert(*index, links);
                    }
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        result
    }

    pub fn insert(&mut self, key: CheckKey, entry: CheckEntry) -> Result<(), Refused> {
        let inserted = self.checks.insert(key, entry, BPF_NOEXIST);
        inserted.map_err(|error| match &error {
            MapError::SyscallError(call) => match call.io_error.raw_os_error() {
                Some(libc::EEXIST) => Refused::Taken,
                Some(libc::E2BIG) => Refused::Full,
                _ => Refused::Other(error),
            },
            _ => Refused::Other(error),
        })
    }

    pub fn was_handed(&self, key: &CheckKey) -> bool {
        self.checks.get(key, 0).is_ok_and(|entry| entry.handed != 0)
    }

    /// One that is gone already is gone.
    pub fn remove(&mut self, key: &CheckKey) {
        let _ = self.checks.remove(key);
    }
}

fn attach_to(ebpf: &mut Ebpf, index: u32) -> Result<Vec<SchedClassifierLink>, CheckPathError> {
    let interface = name_of(index).map_err(|source| CheckPathError::NoInterface { index, source })?;
    let mut links = Vec::new();
    for (name, side) in PROGRAMS {
        let program = program(ebpf, name)?;
        // First, since a program of others may end the walk: a check that it takes would look like a dead backend.
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        let link = program
            .attach_with_options(&interface, side, options)
            .and_then(|link| program.take_link(link));
        links.push(link.map_err(|source| CheckPathError::Attach {
            name,
            interface: interface.clone(),
            source: source.into(),
        })?);
    }
    Ok(links)
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, CheckPathError> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(CheckPathError::Missing(name))
}

fn name_of(index: u32) -> io::Result<String> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(index_to_name(any, index)?)
}
