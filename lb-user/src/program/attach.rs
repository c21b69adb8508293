//! Puts the program on interfaces by pinned links, and replaces it there without a gap.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
};

use aya::programs::{ProgramError, ProgramInfo, Xdp, links::LinkError, xdp::XdpLink};

use super::{
    AttachedInterface, AttachedMode, Datapath, PinError, XdpMode,
    links::{PinnedXdpLink, remove_pin, wait_until_gone},
    load::RareError,
    mode::attach_in_mode,
};
use crate::net::{self, Interface, NetError};

/// Where to attach and how.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    pub interfaces: Vec<String>,
    pub xdp_mode: XdpMode,
    /// Take the place of an XDP program that something else attached over netlink.
    pub replace: bool,
}

/// Why the program is not on an interface.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("there is no interface {name}; there are: {known}")]
    NoInterface { name: String, known: String },
    #[error("interface {name} is not Ethernet; the datapath reads Ethernet frames only")]
    NotEthernet { name: String },
    #[error(
        "interface {name} already runs XDP program {program_id} of something else; \
         detach it, or start with `--replace` to take its place"
    )]
    Foreign { name: String, program_id: u32 },
    #[error(
        "cannot take the place of XDP program {program_id} on interface {name}; if it is held by a link \
         (`bpftool link`), only its owner can detach it"
    )]
    ForeignStays {
        name: String,
        program_id: u32,
        source: NetError,
    },
    #[error(
        "interface {name} refuses native XDP; set `xdp_mode = \"auto\"` to fall back to generic; `ip -details link show dev {name}` names its driver"
    )]
    Native { name: String, source: ProgramError },
    #[error("cannot attach to interface {name} in {} mode", mode.name())]
    Attach {
        name: String,
        mode: AttachedMode,
        source: ProgramError,
    },
    #[error("this kernel has no links for XDP, which need Linux 5.9; interface {name} is left alone")]
    NoLinks { name: String, source: LinkError },
    #[error("cannot replace the program on interface {name}")]
    Update { name: String, source: ProgramError },
    #[error("cannot read the link pinned at {}", path.display())]
    ReadLink { path: PathBuf, source: LinkError },
    #[error("cannot pin {}", path.display())]
    PinObject {
        path: PathBuf,
        source: aya::pin::PinError,
    },
    #[error("cannot move the program's pin to {}", path.display())]
    MoveProgram { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Rare(#[from] RareError),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("the object has no XDP program to attach")]
    NoProgram,
}

impl Datapath {
    /// Attaches to these interfaces and to no others. Links from before are updated in place, without a gap; on
    /// an error the interfaces that were new are left as they were.
    pub fn attach(&mut self, options: &AttachOptions) -> Result<Vec<AttachedInterface>, AttachError> {
        let all = net::interfaces()?;
        let mut links = self.pinned_links(&all)?;
        let present = chosen(options, all)?;
        self.make_way(options, &present, &links)?;
        // Before the program meets a frame. One from before, until it is replaced, has the same layout of maps.
        self.install_rare()?;
        let mut attached: Vec<AttachedInterface> = Vec::new();
        for interface in &present {
            let link = links.remove(&interface.index);
            match self.attach_one(interface, link, options.xdp_mode) {
                Ok(done) => attached.push(done),
                Err(error) => {
                    self.take_back(&attached);
                    return Err(error);
                }
            }
        }
        self.pin_program()?;
        for link in links.into_values() {
            link.remove()?;
        }
        if let Some(used) = self.unused.take() {
            used.keep();
        }
        self.attached.clone_from(&attached);
        Ok(attached)
    }

    /// The pinned links by interface, each pinned under its interface's name of today. Those of interfaces that
    /// are gone are removed.
    fn pinned_links(
        &self,
        all: &BTreeMap<String, Interface>,
    ) -> Result<BTreeMap<u32, PinnedXdpLink>, AttachError> {
        let mut links = BTreeMap::new();
        for name in self.pins.linked_interfaces()? {
            let path = self.pins.link(&name);
            let link = PinnedXdpLink::open(&path).map_err(|source| AttachError::ReadLink { path, source })?;
            links.extend(link.map(|link| (link.interface, link)));
        }
        let names: BTreeMap<u32, &String> = all
            .iter()
            .map(|(name, interface)| (interface.index, name))
            .collect();
        let (mut here, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = links
            .into_iter()
            .partition(|(index, _)| names.contains_key(index));
        for link in gone.into_values() {
            link.remove()?;
        }
        // Two interfaces may have swapped names: all move aside before any moves to its place.
        let mut moving = Vec::new();
        for (index, link) in &mut here {
            let place = self.pins.link(names[index]);
            if link.path != place {
                let aside = self.pins.link(&format!("renamed_interface_{index}"));
                link.move_to(aside)?;
                moving.push((link, place));
            }
        }
        for (link, place) in moving {
            link.move_to(place)?;
        }
        Ok(here)
    }

    /// Looks for programs of others on all interfaces before anything is changed on one.
    fn make_way(
        &self,
        options: &AttachOptions,
        present: &[Interface],
        links: &BTreeMap<u32, PinnedXdpLink>,
    ) -> Result<(), AttachError> {
        let pinned = ProgramInfo::from_pin(self.pins.program()).ok();
        let ours: BTreeSet<u32> = links
            .values()
            .map(|link| link.program_id)
            .chain(pinned.map(|program| program.id()))
            .collect();
        let foreign: Vec<_> = present
            .iter()
            .filter_map(|interface| Some((interface, interface.xdp?)))
            .filter(|(_, xdp)| !ours.contains(&xdp.program_id))
            .collect();
        for (interface, xdp) in foreign {
            let name = interface.name.clone();
            let program_id = xdp.program_id;
            if !options.replace {
                return Err(AttachError::Foreign { name, program_id });
            }
            net::clear_xdp(interface.index, xdp.native).map_err(|source| AttachError::ForeignStays {
                name,
                program_id,
                source,
            })?;
        }
        Ok(())
    }

    fn attach_one(
        &mut self,
        interface: &Interface,
        link: Option<PinnedXdpLink>,
        wanted: XdpMode,
    ) -> Result<AttachedInterface, AttachError> {
        let path = self.pins.link(&interface.name);
        let known = self
            .attached
            .iter()
            .find(|before| before.index == interface.index)
            .and_then(|before| before.reason.clone());
        let program = self.program().ok_or(AttachError::NoProgram)?;
        if let Some(link) = link {
            match adoptable(interface, &link, wanted) {
                Some(mode) => return update(program, interface, link, mode, known),
                None => drop_link(link)?,
            }
        }
        let (link, mode, reason) = attach_in_mode(program, interface, wanted)?;
        link.pin(&path)
            .map_err(|source| AttachError::PinObject { path, source })?;
        Ok(AttachedInterface {
            name: interface.name.clone(),
            index: interface.index,
            mode,
            reason,
            adopted: false,
        })
    }

    fn take_back(&self, attached: &[AttachedInterface]) {
        for interface in attached.iter().filter(|interface| !interface.adopted) {
            if let Err(error) = remove_pin(&self.pins.link(&interface.name)) {
                tracing::warn!(%error, "cannot take back a link");
            }
        }
    }

    /// The pin always names a whole program: the new one takes the old one's place by rename.
    fn pin_program(&mut self) -> Result<(), AttachError> {
        let (next, path) = (self.pins.next_program(), self.pins.program());
        remove_pin(&next)?;
        let program = self.program().ok_or(AttachError::NoProgram)?;
        program.pin(&next).map_err(|source| AttachError::PinObject {
            path: next.clone(),
            source,
        })?;
        fs::rename(&next, &path).map_err(|source| AttachError::MoveProgram { path, source })
    }
}

/// The wanted interfaces as they are, each once.
fn chosen(
    options: &AttachOptions,
    mut all: BTreeMap<String, Interface>,
) -> Result<Vec<Interface>, AttachError> {
    let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
    let names: BTreeSet<&String> = options.interfaces.iter().collect();
    names
        .into_iter()
        .map(|name| {
            let interface = all.remove(name).ok_or_else(|| AttachError::NoInterface {
                name: name.clone(),
                known: known.clone(),
            })?;
            if interface.ethernet || interface.loopback {
                Ok(interface)
            } else {
                Err(AttachError::NotEthernet { name: name.clone() })
            }
        })
        .collect()
}

/// The mode a pinned link runs in, if it is the one on this interface and in a wanted mode.
fn adoptable(interface: &Interface, link: &PinnedXdpLink, wanted: XdpMode) -> Option<AttachedMode> {
    // An interface of another network namespace may have the same index.
    let xdp = interface.xdp.filter(|xdp| xdp.program_id == link.program_id)?;
    let mode = if xdp.native {
        AttachedMode::Native
    } else {
        AttachedMode::Generic
    };
    match (wanted, mode) {
        (XdpMode::Auto, _)
        | (XdpMode::Native, AttachedMode::Native)
        | (XdpMode::Generic, AttachedMode::Generic) => Some(mode),
        (XdpMode::Native, AttachedMode::Generic) | (XdpMode::Generic, AttachedMode::Native) => None,
    }
}

fn drop_link(link: PinnedXdpLink) -> Result<(), AttachError> {
    let (program, interface) = (link.program_id, link.interface);
    link.remove()?;
    Ok(wait_until_gone(&[program].into(), &[interface].into())?)
}

fn update(
    program: &mut Xdp,
    interface: &Interface,
    link: PinnedXdpLink,
    mode: AttachedMode,
    known_reason: Option<String>,
) -> Result<AttachedInterface, AttachError> {
    let failed = |source| AttachError::Update {
        name: interface.name.clone(),
        source,
    };
    let link = XdpLink::try_from(link.link).map_err(|source| AttachError::ReadLink {
        path: link.path,
        source,
    })?;
    let id = program.attach_to_link(link).map_err(failed)?;
    // The pin holds the link; this process need not.
    drop(program.take_link(id).map_err(failed)?);
    Ok(AttachedInterface {
        name: interface.name.clone(),
        index: interface.index,
        mode,
        reason: match mode {
            AttachedMode::Native => None,
            AttachedMode::Generic => known_reason.or_else(|| Some("kept from before this start".to_owned())),
        },
        adopted: true,
    })
}
