//! TC programs on interfaces: which there are, and one that is not Evenkeel's and keeps every packet.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use aya::programs::{SchedClassifier, TcAttachType};

use super::{
    Netns,
    xdp::{BPF_LINK_CREATE, bpf, load_as},
};

const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_EGRESS: u32 = 47;
/// Before all others (linux/bpf.h).
const BPF_F_BEFORE: u32 = 1 << 3;
/// `r0 = TCX_PASS; exit`: the packet goes on, and no other program sees it.
static PASS: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];

/// `union bpf_attr` for `BPF_LINK_CREATE` of a TC program.
#[repr(C)]
struct LinkAttributes {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    reserved: u32,
    expected_revision: u64,
}

/// A program on what an interface sends, before all others, until it is dropped.
pub struct Tcx {
    _link: OwnedFd,
}

impl Tcx {
    pub fn keep_all(netns: &Netns, interface: &str) -> Result<Self> {
        let index = netns.interface(interface)?;
        let link = netns.run(|| {
            let program = load_as(BPF_PROG_TYPE_SCHED_CLS, &PASS)?;
            let attributes = LinkAttributes {
                program: program.as_raw_fd() as u32,
                interface: index,
                attach_type: BPF_TCX_EGRESS,
                flags: BPF_F_BEFORE,
                relative: 0,
                reserved: 0,
                expected_revision: 0,
            };
            bpf(BPF_LINK_CREATE, &attributes)
        });
        Ok(Self {
            _link: link.with_context(|| format!("a TC program on {interface}"))?,
        })
    }
}

/// Names of the programs on what an interface receives, and on what it sends, in their order.
pub fn programs(netns: &Netns, interface: &str) -> Result<[Vec<String>; 2]> {
    let side = |side| -> Result<Vec<String>> {
        let (_, programs) = SchedClassifier::query_tcx(interface, side)?;
        let names = programs
            .iter()
            .map(|program| program.name_as_str().unwrap_or_default());
        Ok(names.map(str::to_owned).collect())
    };
    netns.run(|| Ok([side(TcAttachType::Ingress)?, side(TcAttachType::Egress)?]))
}
