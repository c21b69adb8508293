//! XDP programs that are not Evenkeel's: one passes every frame, one sends every frame back.

use std::{
    ffi::CString,
    fs, io,
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use anyhow::{Context, Result};

use super::{Netns, netns::unique, sweep::BPFFS};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_PIN: libc::c_long = 6;
pub(super) const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// `r0 = XDP_PASS; exit` (linux/bpf.h, `struct bpf_insn`).
static PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x0000_0000_0000_0095];
/// `r0 = XDP_TX; exit`.
static BOUNCE: [u64; 2] = [0x0000_0003_0000_00b7, 0x0000_0000_0000_0095];

/// A program on an interface until it is dropped.
pub struct Xdp {
    _link: OwnedFd,
}

/// The start of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct LoadAttributes {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

/// The start of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkAttributes {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The start of `union bpf_attr` for `BPF_OBJ_PIN`.
#[repr(C)]
struct PinAttributes {
    path: u64,
    program: u32,
    flags: u32,
}

impl Xdp {
    /// A program that passes every frame.
    pub fn pass(netns: &Netns, interface: &str) -> Result<Self> {
        Self::with(&PASS, netns, interface)
    }

    /// A program that sends every frame back.
    pub fn bounce(netns: &Netns, interface: &str) -> Result<Self> {
        Self::with(&BOUNCE, netns, interface)
    }

    /// Attaches a passing program over netlink, as `ip link` does: no link holds it, and it stays.
    pub fn leave(netns: &Netns, interface: &str) -> Result<()> {
        let program = load(&PASS)?;
        let pin = format!("{BPFFS}/{}-stranger", unique());
        let path = CString::new(pin.clone())?;
        let attributes = PinAttributes {
            path: path.as_ptr() as u64,
            program: program.as_raw_fd() as u32,
            flags: 0,
        };
        call(BPF_OBJ_PIN, &attributes).with_context(|| format!("pinning {pin}"))?;
        let attached = netns.ip(&format!("link set dev {interface} xdp pinned {pin}"));
        fs::remove_file(&pin)?;
        attached
    }

    fn with(program: &'static [u64], netns: &Netns, interface: &str) -> Result<Self> {
        let index = netns.interface(interface)?;
        let link = netns.run(|| attach(program, index));
        Ok(Self {
            _link: link.with_context(|| format!("an XDP program on {interface}"))?,
        })
    }
}

fn load(instructions: &'static [u64]) -> io::Result<OwnedFd> {
    load_as(BPF_PROG_TYPE_XDP, instructions)
}

/// Loads a program of any type.
pub(super) fn load_as(program_type: u32, instructions: &'static [u64]) -> io::Result<OwnedFd> {
    let load = LoadAttributes {
        program_type,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    bpf(BPF_PROG_LOAD, &load)
}

fn attach(instructions: &'static [u64], interface: u32) -> io::Result<OwnedFd> {
    let program = load(instructions)?;
    let link = LinkAttributes {
        program: program.as_raw_fd() as u32,
        interface,
        attach_type: BPF_XDP,
        flags: 0,
    };
    bpf(BPF_LINK_CREATE, &link)
}

/// A command that answers a new descriptor.
pub(super) fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    // SAFETY: nobody else has the descriptor that the kernel just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn call<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads as many octets of the attributes as the size says, and through their pointers only
    // memory that outlives the call.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}
